"""The origins of the numbers of a run: method, settings, seed, assumptions, and the standard's attributes."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from holdfast.report.question import setting
from holdfast.report.standard import Tags, meaning_of, tags_of
from holdfast.result import Bound, Evidence, Record


@dataclass(frozen=True)
class BoundSource:
    """One origin of bounds or estimates: a method with its settings."""

    role: str
    kind: str
    method: str
    settings: str
    seed: str
    dtype: str
    confidence: str
    assumptions: str
    checks: str
    tags: Tags
    meaning: str


def sources(records: Iterable[Record]) -> list[tuple[BoundSource, int]]:
    """Return every origin with the number of its bounds or estimates, the most frequent first."""
    found: Counter[BoundSource] = Counter()
    seen: dict[tuple[str, int], tuple[Evidence, BoundSource]] = {}  # Stored records share their evidence.
    for record in records:
        bracket = record.bracket
        for role, bound in (
            ("lower", bracket.lower),
            ("upper", bracket.upper),
            *(("estimate", e) for e in bracket.estimates),
        ):
            evidence = bound.evidence
            if (role, id(evidence)) not in seen:
                seen[role, id(evidence)] = evidence, _source(role, bound)
            found[seen[role, id(evidence)][1]] += 1
    order = ("lower", "upper", "estimate")
    return sorted(found.items(), key=lambda item: (order.index(item[0].role), -item[1]))


def sentences(parts: Iterable[str]) -> str:
    """Join phrases as sentences, each with one full stop."""
    return " ".join(f"{part.rstrip('.')}." for part in parts)


def _source(role: str, bound: Bound) -> BoundSource:
    evidence = bound.evidence
    return BoundSource(
        role=role,
        kind=evidence.kind,
        method=evidence.method,
        settings=setting(evidence.settings),
        seed="" if evidence.seed is None else str(evidence.seed),
        dtype=(evidence.dtype or "").removeprefix("torch."),
        confidence="" if evidence.confidence is None else f"{evidence.confidence:.6g}",
        assumptions=sentences(evidence.assumptions),
        checks=sentences(evidence.checks),
        tags=tags_of(evidence),
        meaning=meaning_of(evidence),
    )
