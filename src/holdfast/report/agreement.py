"""Consistency of runs of one network and one question: their brackets contain the same value, so they must
overlap.
"""

from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import TYPE_CHECKING

from holdfast.report.summary import InputRow, frame_name
from holdfast.result import Bracket, contradiction

if TYPE_CHECKING:
    from holdfast.report.pairing import Run


def agree(runs: "Sequence[Run]", pairs: Sequence[tuple[InputRow, ...]]) -> None:
    """Raise Contradiction if a lower bound of one run lies above an upper bound of another for the same
    input.

    Only runs of the same network and question are compared. Every counterexample was replayed by the
    network and, where there is one, by its copy in float64, and the slack of a score bounds its rounding
    error. So rounding does not explain a contradiction: a proof or a replay is wrong.
    """
    for one, two in combinations(range(len(runs)), 2):
        if not runs[one].question.same_truth(runs[two].question):
            continue
        for pair in pairs:
            first, second = pair[one], pair[two]
            for a, b, frame in _brackets(first, second, frame_name(runs[one].question)):
                for low, high, names in ((a, b, (one, two)), (b, a, (two, one))):
                    if low.lower.value > high.upper.value + low.lower.slack + high.upper.slack:
                        both = (
                            f"input {first.name}{frame} of {runs[one].name} (input "
                            f"{second.name}{frame} of {runs[two].name})"
                        )
                        prefixes = f"{runs[names[0]].name}: ", f"{runs[names[1]].name}: "
                        raise contradiction(low.lower, high.upper, both, prefixes)


def _brackets(first: InputRow, second: InputRow, thing: str) -> Iterator[tuple[Bracket, Bracket, str]]:
    """Yield the two brackets of the input, and those of every frame that both rows hold, with the name of
    the frame.
    """
    yield first.bracket, second.bracket, ""
    others = {record.key.frame: record.bracket for record in second.frames}
    for record in first.frames:
        if record.key.frame in others:
            yield record.bracket, others[record.key.frame], f", {thing} {record.key.frame}"
