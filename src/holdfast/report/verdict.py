"""What is known of one input at one radius or score, the same words for the comparison, the gate and the page."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, get_args

from holdfast.report.summary import InputRow
from holdfast.result import DONE, Share

Verdict = Literal["certified", "broken", "unknown"]
VERDICTS: tuple[Verdict, ...] = get_args(Verdict)


VNNLIB = {"certified": "certified (unsat)", "broken": "broken (sat)"}  # what a solver of VNN-LIB calls them


def verdict(row: InputRow, at: float) -> Verdict:
    """certified: proved to hold at the radius or probability, to keep a score above it, a value below it, a steepness no larger.
    broken: shown not to. unknown: neither.

    A radius counts as certified up to its lower bound, including it. It is broken only beyond the upper bound: where units are counted
    that end is the last count that may still hold.
    """
    if row.fails_at_once:
        return "broken"
    proved, shown = row.sense.proved_bound(row.bracket).value, row.sense.witnessed_bound(row.bracket).value
    if not row.sense.rises:
        proved, shown, at = -proved, -shown, -at
    if row.goal in ("worst", "largest"):
        return "certified" if proved > at else "broken" if shown <= at else "unknown"
    return "certified" if proved >= at else "broken" if shown < at else "unknown"


def is_measured(row: InputRow, said: Verdict) -> bool:
    """Whether the verdict is final: certified, broken, or unknown although every method has done all it can. Where not, the run ended too
    early to tell."""
    return said != "unknown" or row.status in DONE


def spoken(said: Verdict, command: str) -> str:
    return VNNLIB.get(said, said) if command == "verify" else said


def right(row: InputRow) -> bool:
    """Does the network say the label? Where the run kept neither, whether the property holds at the input itself."""
    return (
        row.source.label == row.source.prediction
        if row.source and is_labelled(row)
        else not row.fails_at_once
    )


def is_labelled(row: InputRow) -> bool:
    return row.source is not None and row.source.label is not None and row.source.prediction is not None


@dataclass(frozen=True)
class VerdictCounts:
    """How many inputs are certified, broken and unknown at a radius.

    silent        have no answer at all and are among the unknown.
    not_measured  of the unknown, those of which the run ended too early to tell, the silent ones among them.
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
        """Of the inputs measured, those certified."""
        return Share(self.certified, self.count - self.not_measured, self.count)

    @property
    def unknown_text(self) -> str:
        """How many are unknown, and of how many that is so for want of time or of an answer."""
        return f"{self.unknown} unknown" + (
            f" ({self.not_measured} of these not measured)" if self.not_measured else ""
        )


def tally(rows: Iterable[InputRow], at: float, *, silent: int = 0) -> VerdictCounts:
    found: Counter[Verdict] = Counter()
    not_measured = silent
    for row in rows:
        said = verdict(row, at)
        found[said] += 1
        not_measured += not is_measured(row, said)
    return VerdictCounts(
        at, found["certified"], found["broken"], found["unknown"] + silent, silent, not_measured
    )
