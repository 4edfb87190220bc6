"""A run in rows and totals, the same ones for the terminal and the page."""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, overload

from numpy.typing import NDArray

from holdfast.batch_solver import NOTHING_MOVES
from holdfast.formatting import between, ends, percent, short
from holdfast.question import Question, Said
from holdfast.question_text import reads_words
from holdfast.report.wording import RADIUS, SENSES, Sense, is_apart, sense_of
from holdfast.result import DONE, Answers, Bound, Bracket, Goal, Key, Record, Share, Status, overall
from holdfast.store import StoredInput

ANYTIME = "DeepTRE's Definition 4: its lower bounds are estimates and prove nothing"
GRID = "Grid"  # the method of DeepTRE, whose lower bounds are estimates
UNANSWERED: tuple[Status, ...] = ("refuted", "failed")  # nothing is known of such an input
WORST_FIRST: tuple[Status, ...] = ("refuted", "failed", "interrupted", "stopped", "finished", "closed")


@dataclass(frozen=True)
class InputRow:
    """One input, or one output of it where each is asked for. Where its frames or cases were asked one by one, the bracket is that of
    the weakest: min of the lower bounds <= min of the truths <= min of the upper bounds, and with max where a smaller number is better."""

    index: int
    bracket: Bracket
    status: Status
    seconds: float
    queries: int
    frames: tuple[Record, ...] = ()
    source: StoredInput | None = None
    answers: Answers | None = None  # at the input and at the witness of the bracket; None: not stored
    goal: Goal = "radius"
    part: str = ""
    output: int | None = None

    @property
    def sense(self) -> Sense:
        return sense_of(self.goal, self.part)

    @property
    def fails_at_once(self) -> bool:
        """The property does not even hold at the input itself: a misclassified input."""
        return self.goal == "radius" and bool(self.bracket.note) and self.bracket.upper.value == 0

    @property
    def measured(self) -> bool:
        """Whether the proved bound is known, or every method has done all it can. Where not, the budget ran out (or the run was
        interrupted,
        or the input failed) before anything could be proved: such an end says nothing of the network, and is never counted as zero."""
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
    def moved(self) -> int | None:
        """The frame that the witness changes, where each was asked by itself."""
        weaker = min if self.sense.rises else max
        first = weaker(
            self.frames, key=lambda record: self.sense.witnessed_bound(record.bracket).value, default=None
        )
        return None if first is None else first.key.frame

    @property
    def called(self) -> str:
        """The input's own name, where it says more than its place."""
        return short(self.source.name) if self.source and self.source.name != str(self.index) else ""

    @property
    def name(self) -> str:
        return str(self.index) if self.output is None else f"{self.index}, output {self.output}"


@dataclass(frozen=True)
class QuestionPart:
    """The rows of one part of a question; a question that has no parts is one."""

    name: str
    sense: Sense
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
    """Those of rows, or of the rows at some places, made when they are asked for where the rows are."""

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
    """At least one, however empty: the radius first, then the worst score, then what else there is."""
    groups: dict[str, list[InputRow]] = {}
    for row in rows:
        groups.setdefault(row.part, []).append(row)
    return in_order(groups)


def in_order(groups: Mapping[str, Sequence[InputRow]]) -> list[QuestionPart]:
    """Of rows by the names of their parts."""
    found = [QuestionPart(name, group[0].sense, group) for name, group in groups.items()]
    order = list(SENSES.values())
    return sorted(found, key=lambda part: (order.index(part.sense), part.name)) or [
        QuestionPart("", RADIUS, ())
    ]


def frame_name(question: Question) -> str:
    """What is asked one by one."""
    usual = "word" if reads_words(question) else "frame"
    return {"verify": "case", "monitor": "place"}.get(question.command.split(" ")[0], usual)


def unbreakable(bracket: Bracket) -> bool:
    """Proved at every radius."""
    return bracket.lower.value == math.inf


def still(bracket: Bracket) -> bool:
    """Nothing may change here, so that nothing could break it: true, and no merit of the network."""
    return unbreakable(bracket) and NOTHING_MOVES in bracket.lower.evidence.assumptions


def by_lower_end(records: Iterable[Record]) -> bool:
    """Frames are compared by where they are shown to break, or where no witness was found of any, by what is proved of them."""
    return not any(math.isfinite(record.bracket.upper.value) for record in records)


def weakest(frames: Sequence[Record], count: int = 3) -> list[int]:
    """The frames that break first, at most `count` of them; what nothing breaks is never among them."""
    proved = by_lower_end(frames)
    ends = sorted(
        (b.lower.value if proved else b.upper.value, b.upper.value, record.key.frame or 0)
        for record in frames
        if not unbreakable(b := record.bracket)
    )
    return [frame for _, _, frame in ends[:count]]


def rows_of(
    records: Iterable[Record],
    inputs: Iterable[StoredInput] = (),
    answers: Mapping[Key, Answers] | None = None,
) -> list[InputRow]:
    """One row for each input that has a record, part by part and in the order of the data."""
    sources = {stored.index: stored for stored in inputs}
    groups: dict[Key, list[Record]] = {}
    for record in records:
        own = record.key.frame if is_apart(record.goal, record.key.part) else None
        groups.setdefault(Key(record.key.index, own, record.key.part), []).append(record)
    return [
        _row(key, group, sources.get(key.index), answers or {})
        for key, group in sorted(groups.items(), key=lambda item: item[0])
    ]


def _row(
    key: Key, group: list[Record], source: StoredInput | None, answers: Mapping[Key, Answers]
) -> InputRow:
    sense = sense_of(group[0].goal, key.part)
    weaker = min if sense.rises else max
    brackets = sorted((record.bracket for record in group), key=still)  # of equal ends, one that says more
    estimates: dict[str, Bound] = {}
    for estimate in (e for bracket in brackets for e in bracket.estimates):
        other = estimates.get(estimate.evidence.method, estimate)
        estimates[estimate.evidence.method] = weaker(other, estimate, key=lambda bound: bound.value)
    breakable = [bracket for bracket in brackets if not unbreakable(bracket)]
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
    """Counts of rows, and the ends on average. Means and medians speak of the measured rows, means leave out those that nothing
    breaks; they are infinite where an end is, and NaN without rows."""

    rows: int
    failed: int  # no answer: the model could not be asked
    refuted: int  # nothing of it is believed
    still: int  # nothing may change; counted nowhere else but as answered and closed
    fail_at_once: int
    proved: int  # the proved bound is above zero, or known where zero means nothing
    closed: int
    interrupted: int
    stopped: int  # the budget ran out
    not_measured: int  # of the answered rows: the run ended before anything could be proved; no mean, median or share speaks of them
    open_above: int  # no witness: the end that it would show holds by definition only
    unbreakable: int  # proved at every radius, although something may change
    averaged: int  # the rows of the means
    mean_lower: float
    mean_upper: float
    median_lower: float
    median_upper: float
    mean_found: float  # of the witnessed bounds that were found
    mean_estimated: float  # of the lower bounds as DeepTRE estimates them, NaN where it was not asked
    seconds: float
    queries: int

    @property
    def anytime(self) -> tuple[float, float] | None:
        """Centre and radius of DeepTRE's Definition 4: (l + u) / 2 and (u - l) / 2, where l is estimated."""
        low, high = self.mean_estimated, self.mean_upper
        return ((low + high) / 2, (high - low) / 2) if math.isfinite(low) and math.isfinite(high) else None

    @property
    def answered(self) -> int:
        return self.rows - self.failed - self.refuted

    @property
    def proved_share(self) -> Share:
        """Rows with a proved bound, of those that were measured."""
        return Share(self.proved, self.answered - self.not_measured, self.rows)


def totals_of(rows: Sequence[InputRow]) -> Totals:
    """Of rows of one part."""
    sense = rows[0].sense if rows else RADIUS
    known = [
        (place, still(row.bracket), row.measured)
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
    """What stands behind the number: "estimated", and where a witness shows that it is wrong, that too."""
    return (
        f"{estimate.evidence.kind}, refuted by the witness"
        if bracket.refutes(estimate)
        else estimate.evidence.kind
    )


def _estimated_by(bracket: Bracket, method: str) -> bool:
    return any(estimate.evidence.method == method for estimate in bracket.estimates)


def mean_of(values: Sequence[float]) -> float:
    """Of the sum without rounding on the way, so that no two views disagree about its last digit; NaN without any."""
    return math.fsum(values) / len(values) if len(values) else math.nan


# ---- words


def bracket_text(bracket: Bracket) -> str:
    """Both bounds for people; an end that no method found is no number."""
    if bracket.closed:
        return between(bracket.lower.value, bracket.upper.value)
    if not bracket.lower.known and not bracket.upper.known:
        return bracket.missing[0]
    shown = ends(bracket.lower.value, bracket.upper.value)
    sides = zip((bracket.lower, bracket.upper), shown, bracket.missing, strict=True)
    return " to ".join(text if bound.known else missing for bound, text, missing in sides)


def share_text(share: Share) -> str:
    """In percent where every input was measured, else in numbers with those that were not."""
    return percent(share.value) if share.total and not share.not_measured else str(share)


def word_name(token: int, vocabulary: Sequence[str]) -> str:
    return short(vocabulary[token]) if 0 <= token < len(vocabulary) else f"#{token}"


def class_name(question: Question, label: Said | None) -> str:
    return short(question.data.class_name(label))
