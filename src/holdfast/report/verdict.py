"""Verdicts of inputs at a radius or score, shared by the comparison, the gate and the page."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, get_args

from holdfast.report.summary import InputRow
from holdfast.result import DONE, Share

Verdict = Literal["certified", "broken", "unknown"]
VERDICTS: tuple[Verdict, ...] = get_args(Verdict)


VNNLIB = {"certified": "certified (unsat)", "broken": "broken (sat)"}  # With the terms of VNN-LIB solvers.


def verdict(row: InputRow, at: float) -> Verdict:
    """Return the verdict of an input at a radius, probability, score, value or steepness.

    certified: proved to hold at the radius or probability, to keep a score above, a value below, or a
    steepness at most `at`. broken: shown not to. unknown: neither.

    A radius is certified up to its lower bound, including it. It is broken only above the upper bound,
    because for counted units the upper bound is the largest count that may still hold.
    """
    if row.fails_at_once:
        return "broken"
    proved, shown = row.sense.proved_bound(row.bracket).value, row.sense.witnessed_bound(row.bracket).value
    if not row.sense.rises:
        proved, shown, at = -proved, -shown, -at
    if row.objective.is_certified(proved, at):
        return "certified"
    return "broken" if row.objective.is_broken(shown, at) else "unknown"


def is_measured(row: InputRow, outcome: Verdict) -> bool:
    """Return whether a verdict is final: certified, broken, or unknown although every method has done all
    it can.
    """
    return outcome != "unknown" or row.status in DONE


def verdict_text(outcome: Verdict, command: str) -> str:
    """Return the verdict as text; `verify` adds unsat or sat."""
    return VNNLIB.get(outcome, outcome) if command == "verify" else outcome


def is_correct(row: InputRow) -> bool:
    """Return whether the prediction is the label; without both, whether the property holds at the input
    itself.
    """
    return (
        row.source.label == row.source.prediction
        if row.source and is_labelled(row)
        else not row.fails_at_once
    )


def is_labelled(row: InputRow) -> bool:
    return row.source is not None and row.source.label is not None and row.source.prediction is not None


@dataclass(frozen=True)
class VerdictCounts:
    """Counts of certified, broken and unknown inputs at a radius.

    silent        inputs without any answer; they are included in unknown.
    not_measured  unknown inputs whose search ended too early, including the silent ones.
    """

    at: float
    certified: int
    broken: int
    unknown: int
    silent: int = 0
    not_measured: int = 0

    @property
    def count(self) -> int:
        return self.certified + self.broken + self.unknown

    @property
    def share(self) -> Share:
        """The share of measured inputs that are certified."""
        return Share(self.certified, self.count - self.not_measured, self.count)

    @property
    def unknown_text(self) -> str:
        """The number of unknown inputs, and how many of them were not measured."""
        return f"{self.unknown} unknown" + (
            f" ({self.not_measured} of these unfinished)" if self.not_measured else ""
        )


def tally(rows: Iterable[InputRow], at: float, *, silent: int = 0) -> VerdictCounts:
    """Count the verdicts of rows at a radius; `silent` inputs without a row are added as unknown."""
    found: Counter[Verdict] = Counter()
    not_measured = silent
    for row in rows:
        outcome = verdict(row, at)
        found[outcome] += 1
        not_measured += not is_measured(row, outcome)
    return VerdictCounts(
        at, found["certified"], found["broken"], found["unknown"] + silent, silent, not_measured
    )
