"""What is known of one input at one radius or score, the same words for the comparison, the gate and the page."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, get_args

from holdfast.report.summary import Row

Verdict = Literal["certified", "broken", "unknown"]
VERDICTS: tuple[Verdict, ...] = get_args(Verdict)


VNNLIB = {"certified": "certified (unsat)", "broken": "broken (sat)"}  # what a solver of VNN-LIB calls them


def verdict(row: Row, at: float) -> Verdict:
    """certified: proved to hold at the radius or probability, to keep a score above it, a value below it, a steepness no larger.
    broken: shown not to. unknown: neither.

    A radius counts as certified up to its lower end, including it. It is broken only beyond the upper end: where units are counted
    that end is the last count that may still hold.
    """
    if row.fails_at_once:
        return "broken"
    proved, shown = row.sense.proved(row.bracket).value, row.sense.witnessed(row.bracket).value
    if not row.sense.rises:
        proved, shown, at = -proved, -shown, -at
    if row.goal in ("worst", "largest"):
        return "certified" if proved > at else "broken" if shown <= at else "unknown"
    return "certified" if proved >= at else "broken" if shown < at else "unknown"


def spoken(said: Verdict, command: str) -> str:
    return VNNLIB.get(said, said) if command == "verify" else said


def right(row: Row) -> bool:
    """Does the network say the label? Where the run kept neither, whether the property holds at the input itself."""
    return row.source.label == row.source.prediction if row.source and labelled(row) else not row.fails_at_once


def labelled(row: Row) -> bool:
    return row.source is not None and row.source.label is not None and row.source.prediction is not None


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


def tally(rows: Iterable[Row], at: float, *, silent: int = 0) -> Tally:
    found = [verdict(row, at) for row in rows]
    return Tally(at, found.count("certified"), found.count("broken"), found.count("unknown") + silent, silent)
