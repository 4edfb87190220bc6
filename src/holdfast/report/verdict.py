"""What is known of one input at one radius, the same words for the comparison, the gate and the page."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from holdfast.report.summary import Row

Verdict = Literal["certified", "broken", "unknown"]


def verdict(row: Row, at: float, *, scores: bool = False) -> Verdict:
    """certified: proved to hold at the radius, or to keep a score above it. broken: shown not to. unknown: neither.

    A radius counts as certified up to its lower end, including it. It is broken only beyond the upper end: where units are counted
    that end is the last count that may still hold.
    """
    if scores:
        return "certified" if row.bracket.lower.value > at else "broken" if row.bracket.upper.value <= at else "unknown"
    if row.fails_at_once:
        return "broken"
    return "certified" if row.bracket.lower.value >= at else "broken" if row.bracket.upper.value < at else "unknown"


def right(row: Row) -> bool:
    """Does the network say the label? Where the run kept neither, whether the property holds at the input itself."""
    if row.source is not None and row.source.label is not None and row.source.prediction is not None:
        return row.source.label == row.source.prediction
    return not row.fails_at_once


@dataclass(frozen=True)
class Tally:
    """How many inputs are certified, broken and unknown at a radius. `silent` have no answer at all and are among the unknown."""

    at: float
    certified: int
    broken: int
    unknown: int
    silent: int = 0

    @property
    def count(self) -> int:
        return self.certified + self.broken + self.unknown

    @property
    def share(self) -> float:
        """Of all inputs, those certified; 0 without any."""
        return self.certified / self.count if self.count else 0.0


def tally(rows: Iterable[Row], at: float, *, scores: bool = False, silent: int = 0) -> Tally:
    found = [verdict(row, at, scores=scores) for row in rows]
    return Tally(at, found.count("certified"), found.count("broken"), found.count("unknown") + silent, silent)
