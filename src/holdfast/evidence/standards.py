"""Evidence of some runs for a standard or a law, row by row, and the gaps that remain.

Every cell is derived from the questions, the verdicts and the certificates of the runs. Titles of clauses are short
descriptions, not quotations; compare them with your copy.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.question import Question

NOTHING = "nothing in these runs"


@dataclass(frozen=True)
class StandardRow:
    """One requirement of a standard: its subject, the evidence of the runs, and the evidence that is missing."""

    standard: str
    clause: str
    about: str
    shown: str
    missing: str


def standard_rows(
    questions: Sequence[Question],
    counts: Mapping[str, int],
    claims: Sequence[Mapping[str, Any] | None],
    models_named: int,
) -> tuple[StandardRow, ...]:
    """The table of standards for these runs. models_named: how many models the document lists with a digest."""
    commands = {question.command.split(" ")[0] for question in questions}
    total = sum(counts[name] for name in ("proved", "violated", "open", "measured"))
    decided = (
        f"{counts['proved']} proved, {counts['violated']} violated, {counts['open']} open of {total} claims"
    )
    certified = f"{counts['accepted']} certificates accepted by the independent checker"
    ranges = sum(one is not None and bool(one["inputs"].get("ranges")) for one in claims)
    executed = [question for question in questions if question.means.arithmetic == "executed"]
    models = f"{models_named} {'model' if models_named == 1 else 'models'} named by digest"
    sampled = commands & {"smoothing", "monitor"}
    stability = commands & {"radius", "worst", "verify", "smoothing"}
    reach = commands & {"reach", "verify"}
    sensitivity = commands & {"risk", "saliency"}

    def if_any(found: Any, text: str) -> str:
        return text if found else NOTHING

    iso, law = "ISO/IEC 24029-2:2023", "EU AI Act, Article 15"
    rows = [
        (iso, "5.2", "domain of the property", f"ranges by name for {ranges} of {total} claims", "whether this domain is the field of use"),
        (iso, "5.3", "stability", if_any(stability, f"{decided} (commands: {', '.join(sorted(commands))})"), "perturbations outside of the stated sets"),
        (iso, "5.4", "sensitivity", if_any(sensitivity, "runs of risk or saliency are part of this case"), "" if sensitivity else "a run of risk or saliency"),
        (iso, "5.5", "relevance", if_any("saliency" in commands, "maps of a run of saliency"), "" if "saliency" in commands else "a run of saliency or radius --frames each"),
        (iso, "5.6", "reachability", if_any(reach, "forbidden outputs (verify) or ranges of outputs (reach)"), "" if reach else "a run of verify or reach"),
        (iso, "6.2", "attributes of the verifier", "each number names its method, complete or not, arithmetic, exact or not (pages of the runs)", ""),
        (iso, "7", "use along the life cycle", "evidence of verification before deployment, with the model's digest", "design, deployment, operation, monitoring and re-evaluation: processes of yours; a changed model has another digest and needs new runs"),
        ("ISO/IEC DIS 24029-3", "draft", "statistical methods", if_any(sampled, "sampled statements with their confidence (smoothing, monitor)"), "" if sampled else "no statistical statement is made; how the inputs were drawn is not known to holdfast"),
        (law, "15(1)", "appropriate and consistent robustness", decided, "the level that is appropriate; accuracy on the field of use"),
        (law, "15(4)", "resilience against errors, faults, inconsistencies", if_any(stability, decided), "faults other than the stated perturbations"),
        (law, "15(5)", "measures against adversarial examples", f"{counts['violated']} counterexamples, {counts['proved']} proofs that no attack of the stated sets can pass", "poisoned data, stolen models, other attacks"),
        (law, "dates", "application", "Annex III from 2 December 2027, Annex I from 2 August 2028; harmonised standards are not yet cited", "legal advice; dates as of November 2026"),
        ("EASA concept paper, ED-324 / ARP6983", "robustness", "robustness of the trained model", f"{decided}; {certified}", "coverage of the operational design domain by these claims"),
        ("EASA concept paper, ED-324 / ARP6983", "target", "semantics preserved from model to target", if_any(executed, f"{len(executed)} runs prove the executed float32 arithmetic; {models}") if executed else models, "" if executed else "claims are about real arithmetic: --arithmetic executed, and a comparison on the target"),
        ("FDA, predetermined change control plan", "modification protocol", "a changed model performs as planned", f"{models} and their questions are stored, so that a changed model can be asked the same", "a comparison with the model before: holdfast gate --against"),
        ("NIST AI RMF 1.0", "MEASURE 2.6", "safety: fails safely outside of limits", if_any(reach, decided), "behaviour outside of the stated ranges"),
        ("NIST AI RMF 1.0", "MEASURE 2.7", "security and resilience are evaluated", decided, "threats other than perturbed inputs"),
        ("UL 4600", "argument and evidence", "a safety case with claims, argument, evidence", f"goals and solutions of this document; {certified}", "hazard analysis, the autonomous item as a whole, safety performance indicators"),
        ("AMLAS", "stages 5 and 6", "model verification, and its evidence", f"{decided}; {certified}", "stages 1 to 4 and deployment: requirements, data, learning, integration"),
    ]  # fmt: skip
    return tuple(StandardRow(*row) for row in rows)
