"""A safety case over several runs: requirement, property, verdict, certificate, residual risk, and who answers for it.

`build_case` only reads: claims and verdicts from the runs, the checker's verdict about every certificate, which is
checked again, and what people state (requirements, assumptions with owners, operating domain, signers) from a TOML file. What
nobody stated is shown as not stated. The structure is that of the Goal Structuring Notation (GSN community standard,
version 3): a goal is argued by a strategy over goals, each with a solution that is a certificate.
"""

import hashlib
import json
import math
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import holdfast
from holdfast.certificates.checking import certificates, header_of
from holdfast.certificates.stated_claim import asked_of_record
from holdfast.errors import BadInput, HoldfastError
from holdfast.evidence.standards import StandardRow, standard_rows
from holdfast.formatting import format_bounds, format_nearest, shorten
from holdfast.question import Question
from holdfast.question_text import describe_question
from holdfast.report.claim_list import iterate_claims
from holdfast.result import Key, Record, has_proof, has_witness
from holdfast.store import Store
from holdfast_check import Model, ProofVerdict, Rejected, check, time_limit
from holdfast_check.claim_text import ClaimNumbers

NOT_STATED = "not stated"
MOST_CLAIMS = 2000  # Claims of a case (chosen by hand).
PROOFS = "proofs"  # The folder of certificates in a run.
MODEL_ENDINGS = (".onnx", ".onnx.gz", ".safetensors")
KEYS = {"title", "system", "operating_domain", "signers", "requirement", "assumption"}


@dataclass(frozen=True)
class CaseClaim:
    """One line of the case.

    Attributes:
        requirement: its id and text.
        sentence: the question or the proved claim, in words.
        verdict: proved, violated, open, or measured.
        number: the proved number, or the bracket.
        certificate: what the checker said.
        accepted: whether a certificate of this claim was accepted now.
        risk: what stays open.
        counterexample: of a violated claim whose witness the checker accepted, the input in words.
    """

    requirement: str
    text: str
    run: str
    key: str
    name: str
    sentence: str
    verdict: str
    number: str
    certificate: str
    accepted: bool
    digest: str
    risk: str
    numbers: Mapping[str, Any] | None = None
    counterexample: str = ""


@dataclass(frozen=True)
class CaseRequirement:
    """A requirement with the verdicts of its claims. verdict: violated if one is, proved if all are, measured if all
    are; else open. first: the number of its first claim in the document.
    """

    requirement: str
    text: str
    verdict: str
    claims: int
    proved: int
    violated: int
    accepted: int
    counterexamples: int
    first: int


@dataclass(frozen=True)
class CaseModel:
    """A model that claims are about. digest: the full digest, with the name of its kind before it."""

    name: str
    digest: str
    claims: int


@dataclass(frozen=True)
class CaseRun:
    """A run of the case: what it asked, of which model, with which versions."""

    folder: str
    sentence: str
    command: str
    model: str
    fingerprint: str
    data: str
    arithmetic: str
    versions: str


@dataclass(frozen=True)
class SafetyCase:
    """Everything that the document shows."""

    title: str
    system: str
    domain: str
    runs: tuple[CaseRun, ...]
    claims: tuple[CaseClaim, ...]
    assumptions: tuple[tuple[str, str], ...]
    signers: tuple[str, ...]
    standards: tuple[StandardRow, ...]
    requirements: tuple[CaseRequirement, ...]
    models: tuple[CaseModel, ...]
    written: str
    made_by: str = f"holdfast {holdfast.__version__}"
    counts: Mapping[str, int] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        return json.loads(json.dumps(asdict(self), default=str))  # type: ignore[no-any-return]

    def digest(self) -> str:
        """The SHA-256 of the case as JSON, without the time of writing: what a signer signs."""
        told = {**self.as_json(), "written": ""}
        return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True)
class CaseStatement:
    """What people state about the system, from a TOML file."""

    title: str = "Safety case"
    system: str = NOT_STATED
    domain: str = NOT_STATED
    signers: tuple[str, ...] = ()
    requirements: tuple[Mapping[str, Any], ...] = ()
    assumptions: tuple[tuple[str, str], ...] = ()


def read_statement(path: Path | None) -> CaseStatement:
    """Read what people state. BadInput with the key that is wrong."""
    if path is None:
        return CaseStatement()
    try:
        told = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise BadInput(f"{path}: not a readable TOML file ({error}).") from error
    unknown = sorted(set(told) - KEYS)
    if unknown:
        raise BadInput(f"{path}: {unknown[0]!r} is unknown; there are {', '.join(sorted(KEYS))}.")
    for name, kind in (("requirement", ("id", "text", "run", "inputs")), ("assumption", ("text", "owner"))):
        for one in _tables(path, told, name):
            wrong = sorted(set(one) - set(kind)) or sorted(set(kind[:1]) - set(one))
            if wrong:
                raise BadInput(f"{path}: [[{name}]] has the keys {', '.join(kind)}; look at {wrong[0]!r}.")
    signers = told.get("signers", [])
    if not isinstance(signers, list):
        raise BadInput(f"{path}: signers is a list of texts.")
    return CaseStatement(
        str(told.get("title", "Safety case")),
        str(told.get("system", NOT_STATED)),
        str(told.get("operating_domain", NOT_STATED)),
        tuple(map(str, signers)),
        tuple(_tables(path, told, "requirement")),
        tuple(
            (str(one["text"]), str(one.get("owner", NOT_STATED))) for one in _tables(path, told, "assumption")
        ),
    )


def _tables(path: Path, told: Mapping[str, Any], name: str) -> list[Mapping[str, Any]]:
    found = told.get(name, [])
    if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
        raise BadInput(f"{path}: write [[{name}]] before each {name}.")
    return found


def build_case(
    runs: Sequence[Path], stated: CaseStatement, models: Sequence[Path] = (), seconds: float | None = None
) -> SafetyCase:
    """Read the runs and ask the checker about every certificate.

    Args:
        models: .onnx files, or folders of them, that certificates are about, if they are not where the runs
            read them.
        seconds: for the checker, in all; certificates that are left are shown as not checked.
    """
    claims, told, assumed, questions = list[CaseClaim](), list[CaseRun](), dict[str, None](), list[Question]()
    with time_limit(seconds):
        for folder in runs:
            with Store.read(folder) as store:
                questions.append(store.question)
                told.append(_describe_run(folder, store))
                verdicts = _certificate_verdicts(folder, store, models)
                for line, record in _claims_of(folder, store, verdicts, stated, len(claims)):
                    claims.append(line)
                    assumed.update(dict.fromkeys(record.oriented.lower.evidence.assumptions))
                    if len(claims) > MOST_CLAIMS:
                        raise BadInput(f"a case of more than {MOST_CLAIMS} claims: give fewer runs.")
    known = _requirements_without_claim(stated, claims)
    if known:
        raise BadInput(f"requirement {known[0]!r} matches no record: name a run and inputs that it has.")
    counts = {
        name: sum(one.verdict == name for one in claims)
        for name in ("proved", "violated", "open", "measured")
    }
    counts["accepted"] = sum(one.accepted for one in claims)
    assumptions = [
        *stated.assumptions,
        *((text, "the method states it; owner not stated") for text in assumed),
    ]
    return SafetyCase(
        stated.title,
        stated.system,
        stated.domain,
        tuple(told),
        tuple(claims),
        tuple(assumptions),
        stated.signers,
        standard_rows(
            questions,
            counts,
            [one.numbers for one in claims],
            len({one.name for one in _models(told, claims)}),
        ),
        _requirements(claims),
        _models(told, claims),
        datetime.now(UTC).isoformat(timespec="seconds"),
        counts=counts,
    )


def _requirements(claims: Sequence[CaseClaim]) -> tuple[CaseRequirement, ...]:
    """The requirements in the order of their first claims."""
    grouped: dict[str, list[tuple[int, CaseClaim]]] = {}
    for number, claim in enumerate(claims, 1):
        grouped.setdefault(claim.requirement, []).append((number, claim))
    found = []
    for name, own in grouped.items():
        verdicts = [claim.verdict for _, claim in own]
        alike = verdicts[0] if len(set(verdicts)) == 1 else "open"
        found.append(
            CaseRequirement(
                name,
                own[0][1].text,
                "violated" if "violated" in verdicts else alike,
                len(own),
                verdicts.count("proved"),
                verdicts.count("violated"),
                sum(claim.accepted for _, claim in own),
                sum(bool(claim.counterexample) for _, claim in own),
                own[0][0],
            )
        )
    return tuple(found)


def _models(runs: Sequence[CaseRun], claims: Sequence[CaseClaim]) -> tuple[CaseModel, ...]:
    """The models of the claims: a run about a list of files has many."""
    by_folder = {run.folder: run for run in runs}
    counted: dict[tuple[str, str], int] = {}
    for claim in claims:
        run = by_folder[claim.run]
        told = dict((claim.numbers or {}).get("model") or {})
        name = str(told.pop("name", "")) or run.model
        digest = ", ".join(f"{kind} {value}" for kind, value in told.items()) or f"sha256 {run.fingerprint}"
        counted[name, digest] = counted.get((name, digest), 0) + 1
    return tuple(CaseModel(name, digest, count) for (name, digest), count in counted.items())


def _describe_run(folder: Path, store: Store) -> CaseRun:
    question, about = store.question, store.provenance
    versions = ", ".join(
        f"{name} {about[name]}" for name in ("holdfast", "torch", "python") if about.get(name)
    )
    return CaseRun(
        str(folder),
        describe_question(question),
        question.command,
        shorten(question.model.name.rsplit("/", 1)[-1]),
        question.model.fingerprint or "not hashed",
        shorten(question.data.name) or "none",
        question.means.arithmetic or "real",
        versions,
    )


def _certificate_verdicts(
    folder: Path, store: Store, given: Sequence[Path]
) -> dict[str, tuple[Path, ProofVerdict]]:
    """The best verdict about the certificates of each question, by their kind and the question's hash."""
    files = certificates(folder / PROOFS)
    if not files:
        return {}
    sources = dict(_model_files(folder, store.question, given))
    headers: dict[Path, Mapping[str, Any]] = {}
    for path in files:
        try:
            headers[path] = header_of(path)
        except HoldfastError as error:
            headers[path] = {"question": "", "why": str(error)}
    digests = {path: str((header.get("model") or {}).get("sha256", "")) for path, header in headers.items()}
    found: dict[str, tuple[Path, ProofVerdict]] = {}
    opened: dict[str, Model | str] = {}
    for path in sorted(files, key=lambda path: digests[path]):
        digest = digests[path]
        if digest not in opened:
            opened = {digest: _open_model(sources, digest)}  # One model in memory at a time.
        model = opened[digest]
        verdict = (
            ProofVerdict(False, str(path), model, finished=False)
            if isinstance(model, str)
            else check(model, path)
        )
        question = str(headers[path].get("question", ""))
        kind = f"{path.suffix} {question}"
        if question and (kind not in found or verdict.accepted):
            found[kind] = path, verdict
    return found


def _model_files(folder: Path, question: Question, given: Sequence[Path]) -> Iterator[tuple[str, Path]]:
    """Files of models by the digest that certificates name: those of the run's proofs, of the run, and given."""
    named = Path(question.begun_in) / str(question.options.get("network", {}).get("model", ""))
    places = [folder / PROOFS, named if named.suffix != ".csv" else named.parent, *given]
    for place in places:
        for path in sorted(place.rglob("*")) if place.is_dir() else [place]:
            if path.name.endswith(MODEL_ENDINGS) and path.is_file():
                try:
                    yield Model.digest_of(path), path
                except Rejected:
                    continue


def _open_model(sources: Mapping[str, Path], digest: str) -> Model | str:
    try:
        if digest not in sources:
            return f"the model with sha256 {digest[:16]} was not found; give it: --model"
        return Model.read_file(sources[digest])
    except Rejected as error:
        return str(error)


def _claims_of(
    folder: Path,
    store: Store,
    verdicts: Mapping[str, tuple[Path, ProofVerdict]],
    stated: CaseStatement,
    before: int,
) -> Iterator[tuple[CaseClaim, Record]]:
    """The lines of a run, one for each record."""
    question = store.question
    words: dict[Key, ClaimNumbers] = {one.key: one.numbers for one in iterate_claims(store)}
    bodies = store.claims()
    names = {one.index: one.name for one in store.stream_inputs()}
    for number, record in enumerate(store.stream(), before + 1):
        numbers = words.get(record.key)
        word = _verdict(record, question)
        kind = ".witness" if word == "violated" else ".proof"
        path, verdict = verdicts.get(f"{kind} {record.question}", (None, None))
        accepted = verdict is not None and verdict.accepted and verdict.numbers is not None
        witness = ""
        if accepted and word == "violated" and verdict is not None and verdict.numbers is not None:
            witness = verdict.numbers.sentence()
        shown = verdict.numbers if accepted and verdict is not None and word == "proved" else numbers
        if word in ("violated", "open") and record.key in bodies:
            shown = asked_of_record(bodies[record.key], question) or shown
            if shown is not None and witness and verdict is not None and verdict.numbers is not None:
                about = verdict.numbers
                shown = replace(shown, model=about.model, sha256=about.sha256, digest=about.digest)
        requirement, text = _requirement_of(stated, folder, record.key, number)
        if accepted and word != "violated" and path is not None and verdict is not None and verdict.numbers:
            told = f"accepted: {path.name}, {path.stat().st_size} bytes"
        elif accepted and path is not None:
            told, accepted = f"counterexample accepted: {path.name}, {path.stat().st_size} bytes", False
        elif verdict is not None and not verdict.accepted:
            told = f"{'rejected' if verdict.finished else 'not checked'}: {shorten(verdict.reason, 160)}"
            accepted = False
        else:
            told, accepted = (
                ("none" if has_proof(record) or has_witness(record) else "nothing is known"),
                False,
            )
        yield (
            CaseClaim(
                requirement,
                text,
                str(folder),
                str(record.key),
                names.get(record.key.index, "") or "",
                _sentence(shown, record, question),
                word,
                _number(record),
                told,
                accepted,
                "" if path is None or not accepted else hashlib.sha256(path.read_bytes()).hexdigest(),
                _risk(record, word, accepted, question),
                None if shown is None else shown.as_json(),
                witness,
            ),
            record,
        )


def _sentence(numbers: ClaimNumbers | None, record: Record, question: Question) -> str:
    if numbers is not None:
        return numbers.sentence()
    return f"{describe_question(question)} Record {record.key}: {_number(record)}."


def _verdict(record: Record, question: Question) -> str:
    """proved, violated or open; measured where the answer is a number and no property."""
    if record.status in ("failed", "refuted"):
        return "open"
    ends, goal = record.oriented, record.goal
    if goal == "radius":
        return "proved" if ends.lower.value > 0 else "violated" if ends.upper.value <= 0 else "open"
    if goal == "worst" and question.command.split(" ")[0] in ("verify", "worst"):
        shown = has_witness(record) and ends.upper.value <= 0
        return "proved" if ends.lower.value > 0 else "violated" if shown else "open"
    return "measured"


def _number(record: Record) -> str:
    """The bracket of a record as text, rounded outwards."""
    lower, upper = record.bracket.lower.value, record.bracket.upper.value
    low, high = format_bounds(lower, upper)
    what = {"worst": "smallest score", "radius": "radius", "largest": "largest value"}.get(
        record.goal, record.goal
    )
    at_least = f"at least {low}" if math.isfinite(lower) and not low.startswith(">") else "above 0"
    known = [at_least] if math.isfinite(lower) else []
    known += [f"at most {high}"] if math.isfinite(upper) else []
    return f"{what} {' and '.join(known)}" if known else f"{what}: nothing is known"


def _risk(record: Record, verdict: str, accepted: bool, question: Question) -> str:
    """What is left open after this evidence."""
    spent = f"{format_nearest(record.seconds)} s, {record.queries} network evaluations"
    if verdict == "violated":
        return "shown to fail by a counterexample that was replayed through the model"
    if verdict == "open":
        found = (
            "no counterexample was found"
            if not has_witness(record)
            else "the smallest score found is positive"
        )
        return f"not decided: attacked and proofs tried for {spent}; {found}; status {record.status}"
    parts = [] if accepted else ["rests on holdfast's engine: no certificate of it was accepted"]
    if (question.means.arithmetic or "real") == "real":
        parts.append("the deployed arithmetic may round differently")
    parts.append("not covered: inputs outside of the ranges, a target whose weights differ from the digest")
    return "; ".join(parts)


def _requirement_of(stated: CaseStatement, folder: Path, key: Key, number: int) -> tuple[str, str]:
    """The id and text of the first requirement that names this record; else a number."""
    for one in stated.requirements:
        runs, inputs = one.get("run"), one.get("inputs")
        if runs is not None and Path(str(runs)).name != folder.name:
            continue
        if inputs is not None and str(key) not in map(str, inputs) and str(key.index) not in map(str, inputs):
            continue
        return str(one["id"]), str(one.get("text", ""))
    return f"R{number}", NOT_STATED


def _requirements_without_claim(stated: CaseStatement, claims: Sequence[CaseClaim]) -> list[str]:
    used = {one.requirement for one in claims}
    return [str(one["id"]) for one in stated.requirements if str(one["id"]) not in used]


def write_case(case: SafetyCase, out: Path) -> Path:
    """Write case.html and case.json into a folder; returns the page."""
    from holdfast.report.template import template  # here: matplotlib takes a second

    out.mkdir(parents=True, exist_ok=True)
    (out / "case.json").write_text(json.dumps({**case.as_json(), "sha256": case.digest()}, indent=1) + "\n")
    page = out / "case.html"
    page.write_text(template("case.html.j2").render(case=case, digest=case.digest()), encoding="utf-8")
    return page
