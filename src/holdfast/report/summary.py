"""A run in rows and totals, the same ones for the terminal and the page."""

import math
import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import ROUND_CEILING, ROUND_FLOOR, ROUND_HALF_EVEN, Context, Decimal

from holdfast.question import Question
from holdfast.result import Answers, Bound, Bracket, Key, Record, Status, overall
from holdfast.store import StoredInput

DIGITS = 4
LONG = 120  # signs of a name, a class or a word
CONTROL = re.compile("[\x00-\x1f\x7f-\x9f]")
WORST_FIRST: tuple[Status, ...] = ("interrupted", "stopped", "finished", "closed")


@dataclass(frozen=True)
class Row:
    """One input. Where its frames were asked one by one, the bracket is that of the weakest frame:
    min of the lower ends <= min of the truths <= min of the upper ends."""

    index: int
    bracket: Bracket
    status: Status
    seconds: float
    queries: int
    frames: tuple[Record, ...] = ()
    source: StoredInput | None = None
    answers: Answers | None = None  # at the input and at the witness of the bracket; None: not stored

    @property
    def fails_at_once(self) -> bool:
        """The property does not even hold at the input itself: a misclassified input."""
        return bool(self.bracket.note) and self.bracket.upper.value == 0


def is_open(bracket: Bracket) -> bool:
    """Nothing was found above, and what is proved below does not settle it."""
    return math.isinf(bracket.upper.value) and not bracket.closed


def unbreakable(bracket: Bracket) -> bool:
    """Proved at every radius."""
    return bracket.lower.value == math.inf


def by_lower_end(records: Iterable[Record]) -> bool:
    """Frames are compared by what is proved of them, if anything is of any, else by what was found."""
    return any(record.bracket.lower.value > 0 for record in records)


def weakest(frames: Sequence[Record], count: int = 3) -> list[int]:
    """The frames that break first, at most `count` of them; what nothing breaks is never among them."""
    proved = by_lower_end(frames)
    ends = sorted(
        (b.lower.value if proved else b.upper.value, b.upper.value, record.key.frame or 0)
        for record in frames
        if not unbreakable(b := record.bracket)
    )
    return [frame for _, _, frame in ends[:count]]


def rows_of(records: Iterable[Record], inputs: Iterable[StoredInput] = (), answers: Mapping[Key, Answers] | None = None) -> list[Row]:
    """One row for each input that has a record, in the order of the data."""
    sources = {stored.index: stored for stored in inputs}
    groups: dict[int, list[Record]] = {}
    for record in records:
        groups.setdefault(record.key.index, []).append(record)
    return [_row(index, group, sources.get(index), answers or {}) for index, group in sorted(groups.items())]


def _row(index: int, group: list[Record], source: StoredInput | None, answers: Mapping[Key, Answers]) -> Row:
    brackets = [record.bracket for record in group]
    estimates: dict[str, Bound] = {}
    for estimate in (e for bracket in brackets for e in bracket.estimates):
        smallest = estimates.setdefault(estimate.evidence.method, estimate)
        if estimate.value < smallest.value:
            estimates[estimate.evidence.method] = estimate
    breakable = [bracket for bracket in brackets if not unbreakable(bracket)]
    first = min(group, key=lambda record: record.bracket.upper.value)
    notes = dict.fromkeys(bracket.note for bracket in breakable or brackets if bracket.note)
    return Row(
        index=index,
        bracket=Bracket(
            min((b.lower for b in brackets), key=lambda bound: bound.value),
            first.bracket.upper,
            tuple(estimates.values()),
            "; ".join(notes),
        ),
        status=min((record.status for record in group), key=WORST_FIRST.index),
        seconds=sum(record.seconds for record in group),
        queries=sum(record.queries for record in group),
        frames=tuple(record for record in group if record.key.frame is not None),
        source=source,
        answers=answers.get(first.key),
    )


@dataclass(frozen=True)
class Totals:
    """Counts of rows, and the ends on average. Means leave out the rows that nothing breaks; they are infinite where an end is, and
    NaN without rows."""

    rows: int
    fail_at_once: int
    proved: int  # lower end above zero
    closed: int
    interrupted: int
    stopped: int  # the budget ran out
    open_above: int  # no witness: the upper end holds by definition only
    unbreakable: int  # proved at every radius
    mean_lower: float
    mean_upper: float
    median_lower: float
    median_upper: float
    mean_found_upper: float  # over the rows where something was found above
    seconds: float
    queries: int


def totals_of(rows: Sequence[Row]) -> Totals:
    brackets = [row.bracket for row in rows]
    lower, upper = [b.lower.value for b in brackets], [b.upper.value for b in brackets]
    means = overall(brackets)
    return Totals(
        rows=len(rows),
        fail_at_once=sum(row.fails_at_once for row in rows),
        proved=sum(value > 0 for value in lower),
        closed=means.closed,
        interrupted=sum(row.status == "interrupted" for row in rows),
        stopped=sum(row.status == "stopped" for row in rows),
        open_above=sum(map(is_open, brackets)),
        unbreakable=means.unbreakable,
        mean_lower=means.lower,
        mean_upper=means.upper,
        median_lower=statistics.median(lower) if rows else math.nan,
        median_upper=statistics.median(upper) if rows else math.nan,
        mean_found_upper=_mean([value for value in upper if math.isfinite(value)]),
        seconds=sum(row.seconds for row in rows),
        queries=sum(row.queries for row in rows),
    )


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else math.nan


# ---- words and numbers


def short(text: object, most: int = LONG) -> str:
    """Words of any length, cut where they would fill the page, and without signs that would steer a terminal."""
    words = CONTROL.sub("\N{REPLACEMENT CHARACTER}", str(text))
    return words if len(words) <= most else f"{words[:most]}…"


def at_least(value: float, digits: int = DIGITS) -> str:
    """A lower end for people: rounded down, so that what is shown still holds."""
    return _rounded(value, ROUND_FLOOR, digits)


def at_most(value: float, digits: int = DIGITS) -> str:
    """An upper end for people: rounded up."""
    return _rounded(value, ROUND_CEILING, digits)


def about(value: float) -> str:
    return _rounded(value, ROUND_HALF_EVEN, DIGITS)


def _rounded(value: float, rounding: str, digits: int) -> str:
    if math.isnan(value):
        return "–"
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    few = Context(prec=digits, rounding=rounding).plus(Decimal(repr(value)))
    return f"{float(few):.{digits}g}"


def norm_name(norm: object) -> str:
    return "L∞" if str(norm) in ("inf", "Infinity") else f"L{norm:g}" if isinstance(norm, int | float) else f"L{norm}"


def word_name(token: int, vocabulary: Sequence[str]) -> str:
    return short(vocabulary[token]) if 0 <= token < len(vocabulary) else f"#{token}"


def class_name(question: Question, label: int | None) -> str:
    classes = question.data.classes or ()
    if label is None:
        return ""
    return short(classes[label]) if 0 <= label < len(classes) else str(label)
