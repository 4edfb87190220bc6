"""Runs of one network that asked the same: their brackets hold the same truth, so none may exclude another."""

from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import TYPE_CHECKING

from holdfast.report.summary import InputRow, frame_name
from holdfast.result import Bracket, contradiction

if TYPE_CHECKING:
    from holdfast.report.pairing import Run


def agree(runs: "Sequence[Run]", pairs: Sequence[tuple[InputRow, ...]]) -> None:
    """Contradiction where one run's lower bound lies above another's upper bound, for the same network, question and input: a proof
    excludes what a witness shows, whichever of the two is the upper one.

    Every witness was replayed by the network and, where it has one, by its twin in float64, and a score says how far rounding may have
    moved it, so no rounding explains that.
    """
    for one, two in combinations(range(len(runs)), 2):
        if not runs[one].question.same_truth(runs[two].question):
            continue
        for pair in pairs:
            first, second = pair[one], pair[two]
            for a, b, frame in _brackets(first, second, frame_name(runs[one].question)):
                for low, high, names in ((a, b, (one, two)), (b, a, (two, one))):
                    if low.lower.value > high.upper.value + low.lower.slack + high.upper.slack:
                        both = f"input {first.name}{frame} of {runs[one].name} (input {second.name}{frame} of {runs[two].name})"
                        said = f"{runs[names[0]].name}: ", f"{runs[names[1]].name}: "
                        raise contradiction(low.lower, high.upper, both, said)


def _brackets(first: InputRow, second: InputRow, thing: str) -> Iterator[tuple[Bracket, Bracket, str]]:
    """Of the input, and of each of its frames that both were asked about."""
    yield first.bracket, second.bracket, ""
    others = {record.key.frame: record.bracket for record in second.frames}
    for record in first.frames:
        if record.key.frame in others:
            yield record.bracket, others[record.key.frame], f", {thing} {record.key.frame}"
