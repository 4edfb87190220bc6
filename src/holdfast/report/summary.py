"""Rows and totals of a run, shared by the terminal and the page."""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, overload

from numpy.typing import NDArray

from holdfast.batch_solver import NOTHING_MOVES
from holdfast.formatting import format_bounds, format_percent, format_range, shorten
from holdfast.goals import Objective, objective_of
from holdfast.question import ClassLabel, Question
from holdfast.report.wording import QUANTITIES, RADIUS, Quantity, has_separate_outputs, quantity_of
from holdfast.result import DONE, Answers, Bound, Bracket, Goal, Key, Record, Share, Status, overall
from holdfast.store import StoredInput

DEEPTRE_NOTE = "DeepTRE's Definition 4: its lower bounds are estimates and prove nothing"
GRID = "Grid"  # The method of DeepTRE; its lower bounds are estimates.
UNANSWERED: tuple[Status, ...] = ("refuted", "failed")  # Statuses of inputs without a result.
WORST_FIRST: tuple[Status, ...] = ("refuted", "failed", "interrupted", "stopped", "finished", "closed")


@dataclass(frozen=True)
class InputRow:
    """One input, or one output of an input where each output is a query.

    If its frames or cases were queried one by one, the bracket is that of the weakest: min of the lower
    bounds <= min of the exact values <= min of the upper bounds, and with max where smaller is better.

    answers: at the input and at the counterexample; None if not stored.
    """

    index: int
    bracket: Bracket
    status: Status
    seconds: float
    queries: int
    frames: tuple[Record, ...] = ()
    source: StoredInput | None = None
    answers: Answers | None = None
    goal: Goal = "radius"
    part: str = ""
    output: int | None = None

    @property
    def objective(self) -> Objective:
        return objective_of(self.goal)

    @property
    def sense(self) -> Quantity:
        return quantity_of(self.goal, self.part)

    @property
    def fails_at_once(self) -> bool:
        """Whether the property fails at the input itself: a misclassified input."""
        return self.objective.bounds_radius and bool(self.bracket.note) and self.bracket.upper.value == 0

    @property
    def measured(self) -> bool:
        """Whether the proved bound is known, or every method has done all it can.

        Otherwise the budget ran out (or the run was interrupted, or the input failed) before anything was
        proved. Such a default bound says nothing about the network and is never counted as zero.
        """
        return (
            self.status in DONE
            or self.fails_at_once
            or self.bracket.closed
            or self.sense.proved_bound(self.bracket).known
        )

    @property
    def witness(self) -> NDArray[Any] | None:
        found = self.sense.witnessed_bound(self.bracket).evidence.witness
        return None if found is None else found.numpy()

    @property
    def changed_frame(self) -> int | None:
        """The frame that the counterexample changes, if frames were queried one by one."""
        weaker = min if self.sense.rises else max
        first = weaker(
            self.frames, key=lambda record: self.sense.witnessed_bound(record.bracket).value, default=None
        )
        return None if first is None else first.key.frame

    @property
    def display_name(self) -> str:
        """The name of the input, unless it only repeats its index."""
        return shorten(self.source.name) if self.source and self.source.name != str(self.index) else ""

    @property
    def name(self) -> str:
        return str(self.index) if self.output is None else f"{self.index}, output {self.output}"


@dataclass(frozen=True)
class QuestionPart:
    """The rows of one part of a question; most questions have a single part."""

    name: str
    sense: Quantity
    rows: Sequence[InputRow]

    @cached_property
    def heading(self) -> str:
        outputs = {row.output for row in self.rows if row.output is not None}
        of = "" if not outputs else " of each output" if len(outputs) > 1 else f" of output {min(outputs)}"
        return f"{self.sense.heading}{of}"

    @cached_property
    def answered(self) -> set[int]:
        return {row.index for row in self.rows}


class Brackets(Sequence[Bracket]):
    """The brackets of rows, or of the rows at given indices, read on access."""

    def __init__(self, rows: Sequence[InputRow], places: Sequence[int] | None = None) -> None:
        self._rows, self._places = rows, range(len(rows)) if places is None else places

    def __len__(self) -> int:
        return len(self._places)

    @overload
    def __getitem__(self, place: int) -> Bracket: ...

    @overload
    def __getitem__(self, place: slice) -> list[Bracket]: ...

    def __getitem__(self, place: int | slice) -> Bracket | list[Bracket]:
        if isinstance(place, slice):
            return [self._rows[k].bracket for k in self._places[place]]
        return self._rows[self._places[place]].bracket


def parts_of(rows: Iterable[InputRow]) -> list[QuestionPart]:
    """Group rows by part, in the order of SENSES; an empty run has one empty part."""
    groups: dict[str, list[InputRow]] = {}
    for row in rows:
        groups.setdefault(row.part, []).append(row)
    return order_parts(groups)


def order_parts(groups: Mapping[str, Sequence[InputRow]]) -> list[QuestionPart]:
    """Return the parts in the order of QUANTITIES."""
    found = [QuestionPart(name, group[0].sense, group) for name, group in groups.items()]
    order = [known.quantity for known in QUANTITIES.values()]
    return sorted(found, key=lambda part: (order.index(part.sense.quantity), part.name)) or [
        QuestionPart("", RADIUS, ())
    ]


def frame_name(question: Question) -> str:
    """Return the name of a separate query within one input: word, frame, case or place."""
    usual = "word" if question.frames_are_words else "frame"
    return {"verify": "case", "monitor": "place"}.get(question.command.split(" ")[0], usual)


def is_unbreakable(bracket: Bracket) -> bool:
    """Return whether the property is proved at every radius."""
    return bracket.lower.value == math.inf


def is_immovable(bracket: Bracket) -> bool:
    """Return whether the bracket is infinite only because nothing may change."""
    return is_unbreakable(bracket) and NOTHING_MOVES in bracket.lower.evidence.assumptions


def ranks_by_lower_bound(records: Iterable[Record]) -> bool:
    """Return whether frames are compared by their proved bounds, because none has a counterexample."""
    return not any(math.isfinite(record.bracket.upper.value) for record in records)


def weakest_frames(frames: Sequence[Record], count: int = 3) -> list[int]:
    """Return the `count` frames with the smallest radius; unbreakable frames are left out."""
    proved = ranks_by_lower_bound(frames)
    ends = sorted(
        (b.lower.value if proved else b.upper.value, b.upper.value, record.key.frame or 0)
        for record in frames
        if not is_unbreakable(b := record.bracket)
    )
    return [frame for _, _, frame in ends[:count]]


def rows_of(
    records: Iterable[Record],
    inputs: Iterable[StoredInput] = (),
    answers: Mapping[Key, Answers] | None = None,
) -> list[InputRow]:
    """Return one row for each input with a record, by part and in the order of the data."""
    sources = {stored.index: stored for stored in inputs}
    groups: dict[Key, list[Record]] = {}
    for record in records:
        own = record.key.frame if has_separate_outputs(record.goal, record.key.part) else None
        groups.setdefault(Key(record.key.index, own, record.key.part), []).append(record)
    return [
        _row(key, group, sources.get(key.index), answers or {})
        for key, group in sorted(groups.items(), key=lambda item: item[0])
    ]


def _row(
    key: Key, group: list[Record], source: StoredInput | None, answers: Mapping[Key, Answers]
) -> InputRow:
    sense = quantity_of(group[0].goal, key.part)
    weaker = min if sense.rises else max
    # Of equal bounds, prefer one that is not vacuous.
    brackets = sorted((record.bracket for record in group), key=is_immovable)
    estimates: dict[str, Bound] = {}
    for estimate in (e for bracket in brackets for e in bracket.estimates):
        other = estimates.get(estimate.evidence.method, estimate)
        estimates[estimate.evidence.method] = weaker(other, estimate, key=lambda bound: bound.value)
    breakable = [bracket for bracket in brackets if not is_unbreakable(bracket)]
    first = weaker(group, key=lambda record: sense.witnessed_bound(record.bracket).value)
    notes = dict.fromkeys(bracket.note for bracket in breakable or brackets if bracket.note)
    return InputRow(
        index=key.index,
        bracket=Bracket(
            weaker((b.lower for b in brackets), key=lambda bound: bound.value),
            weaker((b.upper for b in brackets), key=lambda bound: bound.value),
            tuple(estimates.values()),
            "; ".join(notes),
        ),
        status=min((record.status for record in group), key=WORST_FIRST.index),
        seconds=sum(record.seconds for record in group),
        queries=sum(record.queries for record in group),
        frames=()
        if key.frame is not None
        else tuple(record for record in group if record.key.frame is not None),
        source=source,
        answers=answers.get(first.key),
        goal=group[0].goal,
        part=key.part,
        output=key.frame,
    )


@dataclass(frozen=True)
class Totals:
    """Counts of rows, and means and medians of their bounds.

    Means and medians are over the measured rows; means leave out unbreakable rows. They are infinite if a
    bound is, and NaN without rows.

    failed, refuted: rows without a result. still: nothing may change; counted only as answered and closed.
    proved: the proved bound is above zero, or known where zero has no meaning. stopped: the budget ran out.
    not_measured: answered rows whose search ended before anything was proved; no mean, median or share
    counts them. open_above: no counterexample, so that bound holds only by definition. unbreakable: proved
    at every radius, although something may change. averaged: rows of the means. mean_found: mean of the
    witnessed bounds that were found. mean_estimated: mean of DeepTRE's estimated lower bounds, NaN without
    that method.
    """

    rows: int
    failed: int
    refuted: int
    still: int
    fail_at_once: int
    proved: int
    closed: int
    interrupted: int
    stopped: int
    not_measured: int
    open_above: int
    unbreakable: int
    averaged: int
    mean_lower: float
    mean_upper: float
    median_lower: float
    median_upper: float
    mean_found: float
    mean_estimated: float
    seconds: float
    queries: int

    @property
    def deeptre_interval(self) -> tuple[float, float] | None:
        """Centre and radius of DeepTRE's Definition 4: (l + u) / 2 and (u - l) / 2, where l is estimated."""
        low, high = self.mean_estimated, self.mean_upper
        return ((low + high) / 2, (high - low) / 2) if math.isfinite(low) and math.isfinite(high) else None

    @property
    def answered(self) -> int:
        return self.rows - self.failed - self.refuted

    @property
    def proved_share(self) -> Share:
        """The share of measured rows that have a proved bound."""
        return Share(self.proved, self.answered - self.not_measured, self.rows)


def totals_of(rows: Sequence[InputRow]) -> Totals:
    """Compute the totals of the rows of one part."""
    sense = rows[0].sense if rows else RADIUS
    known = [
        (place, is_immovable(row.bracket), row.measured)
        for place, row in enumerate(rows)
        if row.status not in UNANSWERED
    ]
    brackets = Brackets(rows, [place for place, fixed, _ in known if not fixed])
    measured = Brackets(rows, [place for place, _, looked_at in known if looked_at])
    moving = Brackets(rows, [place for place, fixed, looked_at in known if looked_at and not fixed])
    lower, upper = [b.lower.value for b in measured], [b.upper.value for b in measured]
    means, nothing_moves = overall(moving), len(known) - len(brackets)
    return Totals(
        rows=len(rows),
        failed=sum(row.status == "failed" for row in rows),
        refuted=sum(row.status == "refuted" for row in rows),
        still=nothing_moves,
        fail_at_once=sum(row.fails_at_once for row in rows),
        proved=sum(map(sense.holds, brackets)),
        closed=means.closed + nothing_moves,
        interrupted=sum(row.status == "interrupted" for row in rows),
        stopped=sum(row.status == "stopped" for row in rows),
        not_measured=len(known) - len(measured),
        open_above=sum(map(sense.is_open, brackets)),
        unbreakable=means.unbreakable,
        averaged=means.count - means.unbreakable,
        mean_lower=means.lower,
        mean_upper=means.upper,
        median_lower=statistics.median(lower) if lower else math.nan,
        median_upper=statistics.median(upper) if upper else math.nan,
        mean_estimated=overall(brackets, GRID).lower
        if any(_estimated_by(b, GRID) for b in brackets)
        else math.nan,
        mean_found=mean_of(
            [
                end
                for b in moving
                if not sense.is_open(b) and math.isfinite(end := sense.witnessed_bound(b).value)
            ]
        ),
        seconds=sum(row.seconds for row in rows),
        queries=sum(row.queries for row in rows),
    )


def estimate_kind(bracket: Bracket, estimate: Bound) -> str:
    """Return "estimated", and whether the counterexample refutes the estimate."""
    return (
        f"{estimate.evidence.kind}, refuted by the witness"
        if bracket.refutes(estimate)
        else estimate.evidence.kind
    )


def _estimated_by(bracket: Bracket, method: str) -> bool:
    return any(estimate.evidence.method == method for estimate in bracket.estimates)


def mean_of(values: Sequence[float]) -> float:
    """Return the mean of an exact sum, so that all views agree in the last digit; NaN without values."""
    return math.fsum(values) / len(values) if len(values) else math.nan


# ---- Text of brackets and names.


def bracket_text(bracket: Bracket) -> str:
    """Format both bounds; a bound that no method found becomes a phrase."""
    if bracket.closed:
        return format_range(bracket.lower.value, bracket.upper.value)
    if not bracket.lower.known and not bracket.upper.known:
        return bracket.missing[0]
    shown = format_bounds(bracket.lower.value, bracket.upper.value)
    sides = zip((bracket.lower, bracket.upper), shown, bracket.missing, strict=True)
    return " to ".join(text if bound.known else missing for bound, text, missing in sides)


def share_text(share: Share) -> str:
    """Format a share in percent, or as counts if some inputs were not measured."""
    return format_percent(share.value) if share.total and not share.not_measured else str(share)


def word_name(token: int, vocabulary: Sequence[str]) -> str:
    return shorten(vocabulary[token]) if 0 <= token < len(vocabulary) else f"#{token}"


def class_name(question: Question, label: ClassLabel | None) -> str:
    return shorten(question.data.class_name(label))
