"""Runs of one network that asked the same: their brackets hold the same truth, so none may exclude another."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from typing import TYPE_CHECKING, Any

from holdfast.report.summary import Row
from holdfast.result import Bracket, contradiction

if TYPE_CHECKING:
    from holdfast.report.pairing import Run

# How a run was told to search, where it lay and what it kept: these change what is found, not what is true.
SEARCH = {"asked", "begun_in", "classes", "data", "methods", "model", "seed", "spec", "stop", "tier", "arithmetic", "vocabulary"}
SEARCH_ASKED = {
    "arithmetic", "batch", "data", "gap", "limit", "methods", "mode", "network", "queries", "saliency", "scale", "seconds", "seed", "tier",
}  # fmt: skip
OUTSIDE = {"model", "trust", "device", "vocabulary"}  # of a network: the rest says how its inputs are prepared


def agree(runs: "Sequence[Run]", pairs: Sequence[tuple[Row, ...]]) -> None:
    """Contradiction where one run's proved lower end lies above what another's witness shows, for the same network, question and input.

    Every witness was replayed by the network and, where it has one, by its twin in float64, so no rounding explains that.
    """
    for one, two in combinations(range(len(runs)), 2):
        if not _same(runs[one], runs[two]):
            continue
        for pair in pairs:
            first, second = pair[one], pair[two]
            for a, b, frame in _brackets(first, second):
                for low, high, names in ((a, b, (one, two)), (b, a, (two, one))):
                    if low.lower.value > high.upper.value:
                        both = f"input {first.index}{frame} of {runs[one].name} (input {second.index}{frame} of {runs[two].name})"
                        said = f"{runs[names[0]].name}: ", f"{runs[names[1]].name}: "
                        raise contradiction(low.lower, high.upper, both, said)


def _brackets(first: Row, second: Row) -> Iterator[tuple[Bracket, Bracket, str]]:
    """Of the input, and of each of its frames that both were asked about."""
    yield first.bracket, second.bracket, ""
    others = {record.key.frame: record.bracket for record in second.frames}
    for record in first.frames:
        if record.key.frame in others:
            yield record.bracket, others[record.key.frame], f", frame {record.key.frame}"


def _same(one: "Run", two: "Run") -> bool:
    """The same network, and a question that differs in nothing but how it was searched."""
    known = [_model(run.question) for run in (one, two)]
    return known[0] is not None and known[0] == known[1] and _truth(one.question) == _truth(two.question)


def _model(question: Mapping[str, Any]) -> str | None:
    told = question.get("model")
    found = told.get("fingerprint") if isinstance(told, Mapping) else None
    return str(found) if found else None


def _truth(question: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What the answer depends on, besides the network's weights and the input."""
    asked = question.get("asked") or {}
    network = asked.get("network") or {}
    parts = ((question, SEARCH), (asked, SEARCH_ASKED), (network, OUTSIDE))
    return [{name: value for name, value in part.items() if name not in left_out and value is not None} for part, left_out in parts]
