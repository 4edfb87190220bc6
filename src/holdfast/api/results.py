"""What the public functions return: lists and numbers that print as a table, and know how to become a data
frame, a page or a decision.

The lists are Python lists, so that iterating, indexing and unpacking work as on any list.
"""

import html
import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, SupportsIndex, TypeVar, overload

import torch
from torch import Tensor

from holdfast import batch
from holdfast.api.printed_table import (
    PrintedTable,
    data_frame,
    make_table,
    plain,
    plural,
    shown_bounds,
    wrap_sentence,
)
from holdfast.errors import BadInput
from holdfast.formatting import format_nearest, shorten
from holdfast.network import Network
from holdfast.problem import Problem
from holdfast.property import Robustness
from holdfast.property.robustness import Targeted
from holdfast.question import DataDescription, ModelDescription, Question, Request
from holdfast.region import Ball
from holdfast.result import Bracket, Key, Record
from holdfast.verification.ranges import Range

if TYPE_CHECKING:  # named in base classes below, which the linter does not see
    from holdfast.api.risk import Risk  # noqa: F401
    from holdfast.certify.smoothing import Smoothed  # noqa: F401
    from holdfast.report.gate import Decision
    from holdfast.store import Store, StoredInput

T = TypeVar("T")
GATE_HELP = "min_certified with at (a radius), max_broken, max_unknown or min_accuracy"


# ---- tables


# ---- the run behind a result


@dataclass(frozen=True)
class AnswerList:
    """The problems that were solved, their records, and what is needed to write them as a run."""

    net: Network
    problems: tuple[Problem, ...]
    records: tuple[Record, ...]
    command: str
    request: Request = field(default_factory=Request)

    @cached_property
    def rows(self) -> dict[int, tuple[Problem, int]]:
        """For each input the first problem, and the row of it, that is about the input."""
        found: dict[int, tuple[Problem, int]] = {}
        for problem in self.problems:
            for row, key in enumerate(problem.keys):
                found.setdefault(key.index, (problem, row))
        return found

    def label(self, index: int) -> int | None:
        """The class of an input where the property is about one."""
        problem, row = self.rows[index]
        known = isinstance(problem.property, Robustness | Targeted)
        return int(problem.property.label[row]) if known else None  # type: ignore[attr-defined]

    def class_name(self, index: int) -> str:
        """The name of the class of an input, else its number, else nothing."""
        label = self.label(index)
        if label is None:
            return ""
        return self.net.classes[label] if self.net.classes is not None else str(label)

    @property
    def question(self) -> Question:
        """What a run on disk says of it."""
        net = self.net
        region = self.problems[0].region if self.problems else None
        model = ModelDescription(
            net.name,
            net.source,
            net.fingerprint,
            tuple(net.notes),
            str(region.domain if isinstance(region, Ball) else net.domain),
            vocabulary=net.vocabulary,
        )
        channels = None if net.channels is None else tuple(net.channels.titles)
        data = DataDescription(count=len(self.rows), classes=net.classes, columns=channels)
        return Question(self.command, model, data, self.request)

    def answer(self) -> str:
        """The answer in a sentence: the first line of the page and the last line of the terminal, and where
        its radius comes from.
        """
        from holdfast.report.answer_sentence import answer_sentence, radius_origin
        from holdfast.report.summary import parts_of, rows_of

        # The first input says whether inputs are images. Failed inputs say whether they are misclassified.
        needed = {record.key.index for record in self.records if fails_at_input(record.bracket)}
        needed |= {min(self.rows)} if self.rows else set()
        parts = parts_of(rows_of(self.records, [self._stored_input(index) for index in sorted(needed)]))
        sentence = answer_sentence(self.question, parts)
        origin = radius_origin(self.question, parts)
        return plain(f"{sentence[:-1]} ({origin})." if origin else sentence)

    def _stored_input(self, index: int) -> "StoredInput":
        """The input as a run holds it."""
        from holdfast.store import StoredInput

        problem, row = self.rows[index]
        x = _as_given(problem, row)
        tokens = tuple(x.tolist()) if problem.region.embedded else None
        numbers = x.float() if x.dtype == torch.bfloat16 else x  # numpy has no bfloat16
        return StoredInput(
            index, numbers.numpy(), self.label(index), self.prediction(index), str(index), tokens
        )

    def prediction(self, index: int) -> int | None:
        """The class that the network gives an input; None if it has a single output."""
        problem, row = self.rows[index]
        outputs = self.net(problem.region.centre[row : row + 1])
        return int(outputs.argmax(-1)) if outputs.shape[-1] > 1 else None

    @contextmanager
    def as_store(self) -> Iterator["Store"]:
        """The records as a run in a temporary folder."""
        from holdfast.store import Store

        with TemporaryDirectory(prefix="holdfast-") as folder, Store.create(folder, self.question) as store:
            self._write_inputs(store)
            store.write(self.records)
            yield store

    def _write_inputs(self, store: "Store") -> None:
        x: list[Tensor] = []
        tokens: list[Sequence[int] | None] = []
        predictions: list[int | None] = []
        places = sorted(self.rows)
        for index in places:
            problem, row = self.rows[index]
            data = _as_given(problem, row)
            x.append(data)
            tokens.append(data.tolist() if problem.region.embedded else None)
            predictions.append(self.prediction(index))
        labels = [self.label(index) for index in places]
        store.put_inputs(x, labels, predictions, [str(index) for index in places], tokens)


def _as_given(problem: Problem, row: int) -> Tensor:
    """Return an input as users give it: token ids for words, else numbers."""
    region = batch.take(problem.region, torch.tensor([row], device=problem.region.centre.device))
    return region.as_data(region.centre)[0].detach().cpu()


@dataclass(frozen=True, eq=False)
class GateDecision:
    """Whether a result satisfies the rules of a gate. bool(...) says it; printing it shows every rule with
    its numbers.
    """

    decision: "Decision"

    @property
    def passed(self) -> bool:
        """Whether every rule holds."""
        return self.decision.passed

    @property
    def checks(self) -> tuple[Any, ...]:
        """The rules one by one: name, passed, wanted, found and details."""
        return self.decision.checks

    def __bool__(self) -> bool:
        return self.passed

    def __str__(self) -> str:
        lines = [
            f"{'passed' if check.passed else 'FAILED'}  {check.name}: wanted {check.wanted}, found "
            f"{check.found}"
            for check in self.checks
        ]
        return "\n".join([*lines, f"gate: {'passed' if self.passed else 'FAILED'}"])

    __repr__ = __str__


# ---- lists


class Results(list[T], ABC):
    """A list with one element for each input. It prints as a table with a sentence below."""

    def __init__(self, values: Sequence[T], answered: AnswerList | None = None) -> None:
        super().__init__(values)
        self._answered = answered

    @overload
    def __getitem__(self, place: SupportsIndex) -> T: ...

    @overload
    def __getitem__(self, place: slice) -> list[T]: ...

    def __getitem__(self, place: SupportsIndex | slice) -> T | list[T]:
        """The answer for one input, by its place. A name is refused with what it is called here."""
        if isinstance(place, str):
            raise TypeError(
                f"the answers are numbered from 0 to {len(self) - 1}, got {place!r}. A column of all of them: "
                f"result.to_frame()[{place!r}], or an attribute such as result.lower."
            )
        return super().__getitem__(place)

    @property
    def records(self) -> tuple[Record, ...]:
        """The records behind the answers: what each took, how it ended, and what could not be done."""
        return () if self._answered is None else self._answered.records

    @abstractmethod
    def table(self) -> PrintedTable:
        """The result as a table of texts."""

    @abstractmethod
    def frame_rows(self) -> list[dict[str, Any]]:
        """The rows of `to_frame`."""

    @abstractmethod
    def summary(self) -> str:
        """The result in a sentence or two."""

    def to_frame(self) -> Any:
        """The result as a pandas DataFrame, one row for each input (and frame, output or part)."""
        return data_frame(self.frame_rows())

    def report(self, path: str | Path) -> Path:
        """Write the result as a page (.html), a fragment of a model card (.md) or its records (.json), and
        return the path.
        """
        from holdfast.report import write_report

        if not isinstance(path, str | Path):
            raise BadInput(
                f"path: expected the path of a file, as in 'report.html', got {type(path).__name__}."
            )
        with self._run().as_store() as store:
            return write_report(store, path)

    def gate(
        self,
        at: float | None = None,
        *,
        min_certified: float | None = None,
        max_broken: float | None = None,
        max_unknown: float | None = None,
        min_accuracy: float | None = None,
        confidence: float | None = None,
    ) -> GateDecision:
        """Check the result against rules, as `holdfast gate` does.

        Args:
            at: the radius (for worst scores the score, by default 0) at which inputs count as certified or
                broken.
            min_certified: at least this share of the inputs is certified there.
            max_broken: at most this share has a counterexample there; unknown inputs count too, unless
                max_unknown is given.
            max_unknown: at most this share is unknown there.
            min_accuracy: at least this share is classified right.
            confidence: with min_certified: the share of the population that the inputs were drawn from is
                meant, and its lower confidence bound (Clopper and Pearson) counts.
        """
        from holdfast.report.gate import Rules, gate
        from holdfast.report.pairing import load

        shares = {
            "min_certified": min_certified,
            "max_broken": max_broken,
            "max_unknown": max_unknown,
            "min_accuracy": min_accuracy,
        }
        for name, value in shares.items():
            wrong = isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1
            if value is not None and wrong:
                raise BadInput(f"{name}: expected a share between 0 and 1, as in 0.9, got {value!r}.")
        if confidence is not None and (
            isinstance(confidence, bool) or not isinstance(confidence, int | float)
        ):
            raise BadInput(f"confidence: expected a number between 0 and 1, as in 0.95, got {confidence!r}.")
        if at is not None and (isinstance(at, bool) or not isinstance(at, int | float) or math.isnan(at)):
            raise BadInput(f"at: expected a number, the radius at which inputs are counted, got {at!r}.")
        if all(value is None for value in shares.values()):
            raise BadInput(f"gate: no rule is given. Give {GATE_HELP}.")
        needs_at = any(value is not None for name, value in shares.items() if name != "min_accuracy")
        if at is None and needs_at and self._run().command != "worst":
            raise BadInput(
                "at: a share certified, broken or unknown is one at a radius: say which, as in at=0.05."
            )
        rules = Rules(
            at, min_certified, max_broken, min_accuracy, max_unknown=max_unknown, confidence=confidence
        )
        with self._run().as_store() as store:
            return GateDecision(gate(load(store, "this result"), rules))

    def _run(self) -> AnswerList:
        if self._answered is None:
            raise BadInput("this list was made by hand, so that there are no records to write.")
        return self._answered

    def __str__(self) -> str:
        return f"{self.table()}\n{wrap_sentence(self.summary())}" if self else "no inputs"

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        return f"{self.table().to_html()}<p>{html.escape(self.summary())}</p>"

    def __reduce__(self) -> Any:
        return type(self), (list(self), self._answered)


class BracketList(Results[Bracket]):
    """One bracket for each input: lower <= the truth <= upper."""

    @property
    def lower(self) -> Tensor:
        """(inputs,) float64: the certified lower bounds."""
        return torch.tensor([bracket.lower.value for bracket in self], dtype=torch.float64)

    @property
    def upper(self) -> Tensor:
        """(inputs,) float64: the upper bounds from counterexamples."""
        return torch.tensor([bracket.upper.value for bracket in self], dtype=torch.float64)

    @property
    def witnesses(self) -> list[Tensor | None]:
        """For each input the counterexample behind its upper bound, where there is one."""
        return [bracket.upper.evidence.witness for bracket in self]

    def frame_rows(self) -> list[dict[str, Any]]:
        records = self.records or (None,) * len(self)
        return [
            self._frame_row(place, bracket, record)
            for place, (bracket, record) in enumerate(zip(self, records, strict=True))
        ]

    def _frame_row(self, place: int, bracket: Bracket, record: Record | None) -> dict[str, Any]:
        key = Key(place) if record is None else record.key
        row: dict[str, Any] = {"input": key.index}
        if key.frame is not None:
            row["frame"] = key.frame
        if self._answered is not None:
            row["class"] = self._answered.class_name(key.index)
        row |= bracket_columns(bracket)
        if record is not None:
            row |= {"status": record.status, "seconds": record.seconds, "queries": record.queries}
        return {**row, "note": bracket.note}


def bracket_columns(bracket: Bracket) -> dict[str, Any]:
    """The columns of a bracket in a data frame."""
    return {
        "lower": bracket.lower.value,
        "upper": bracket.upper.value,
        "lower_kind": bracket.lower.evidence.kind if bracket.lower.known else "",
        "upper_kind": bracket.upper.evidence.kind if bracket.upper.known else "",
        "lower_method": bracket.lower.evidence.method if bracket.lower.known else "",
        "upper_method": bracket.upper.evidence.method if bracket.upper.known else "",
        "exact": bracket.closed,
    }


def fails_at_input(bracket: Bracket) -> bool:
    """Whether the property does not even hold at the input itself, as where it is misclassified."""
    return bool(bracket.note) and bracket.upper.value == 0 and bracket.upper.evidence.witness is not None


class RadiusList(BracketList):
    """The robustness radius of each input: certified lower bound, and upper bound from a counterexample."""

    @property
    def counts(self) -> bool:
        """Whether the radius counts changes (pixels, frames, words) and is no distance."""
        return self._answered is not None and self._answered.request.norm in ("0", "words", "edits")

    def _row(self, place: int, bracket: Bracket) -> dict[str, str]:
        certified, attacked = shown_bounds(bracket)
        if (
            self.counts
            and math.isfinite(bracket.upper.value)
            and attacked != "-"
            and not fails_at_input(bracket)
        ):
            attacked = f"{bracket.upper.value + 1:.0f}"  # this number of changes suffices
        if bracket.upper.value == math.inf:
            attacked = "none" if bracket.closed else "-"
        key = self.records[place].key if self.records else Key(place)
        if fails_at_input(bracket):
            remark = self._failure(key.index)
        else:
            remark = "<- exact" if bracket.closed else ""
        name = "" if self._answered is None else self._answered.class_name(key.index)
        frame = "" if key.frame is None else str(key.frame)
        row = {"input": str(key.index), "frame": frame, "certified": certified, "attacked": attacked}
        return {**row, "class": shorten(name, 30), " ": remark}

    def _failure(self, index: int) -> str:
        """Why the property fails at an input itself, as a remark of its row."""
        answered = self._answered
        label = None if answered is None else answered.label(index)
        if answered is None or label is None:
            return "<- fails at the input"
        return "<- misclassified" if answered.prediction(index) != label else "<- tied with another class"

    def table(self) -> PrintedTable:
        rows = [self._row(place, bracket) for place, bracket in enumerate(self)]
        return make_table(rows, ("input", "frame", "certified", "attacked"))

    def summary(self) -> str:
        """How many inputs are certified, how many have a counterexample, and which one is the weakest."""
        if not self:
            return "No inputs."
        rest = [(place, bracket) for place, bracket in enumerate(self) if not fails_at_input(bracket)]
        text = "" if self._answered is None else self._answered.answer()
        if len(rest) > 1:
            weakest, bracket = min(rest, key=lambda one: (one[1].upper.value, one[1].lower.value))
            if math.isfinite(bracket.upper.value) or bracket.lower.value < math.inf:
                low = shown_bounds(bracket)[0]
                found = f"certified {low}" if low != "-" else "nothing certified"
                row = self._row(weakest, bracket)["attacked"]
                found += f", attacked at {row}" if row not in ("-", "none") else ", no counterexample"
                key = self.records[weakest].key if self.records else Key(weakest)
                name = f"input {key.index}" if key.frame is None else f"frame {key.frame}"
                text += f" Weakest: {name} ({found})."
        return text.strip()


class FrameRadiusList(Results[RadiusList]):
    """For each input the radius of each of its frames, or places, changed alone."""

    @property
    def lower(self) -> Tensor:
        """(inputs, frames) float64: the certified lower bounds; NaN behind the end of shorter inputs."""
        return _pad_rows([row.lower for row in self])

    @property
    def upper(self) -> Tensor:
        """(inputs, frames) float64: the upper bounds from counterexamples; NaN behind the end of shorter
        inputs.
        """
        return _pad_rows([row.upper for row in self])

    def frame_rows(self) -> list[dict[str, Any]]:
        return [one for row in self for one in row.frame_rows()]

    def table(self) -> PrintedTable:
        rows = []
        for place, brackets in enumerate(self):
            for frame, bracket in enumerate(brackets):
                certified, attacked = shown_bounds(bracket)
                remark = "<- exact" if bracket.closed else ""
                shown = {
                    "input": str(place),
                    "frame": str(frame),
                    "certified": certified,
                    "attacked": attacked,
                }
                rows.append({**shown, " ": remark})
        return make_table(rows, ("input", "frame", "certified", "attacked"))

    def summary(self) -> str:
        """How many inputs are certified in every frame, and which frame of each input is the weakest."""
        parts = []
        for place, row in enumerate(self[:5]):
            frame = min(range(len(row)), key=lambda k: (row[k].upper.value, row[k].lower.value), default=None)
            if frame is not None:
                low, high = shown_bounds(row[frame])
                parts.append(f"input {place}: frame {frame} ({low} to {high})")
        more = len(self) - len(parts)
        answer = "" if self._answered is None else f"{self._answered.answer()} "
        return f"{answer}Weakest frames: {'; '.join(parts)}{f'; and {more} more' if more > 0 else ''}."


def _pad_rows(rows: Sequence[Tensor]) -> Tensor:
    """Rows of different lengths in one tensor, NaN behind their ends."""
    if not rows:
        return torch.zeros((0, 0), dtype=torch.float64)
    return torch.nn.utils.rnn.pad_sequence(list(rows), batch_first=True, padding_value=math.nan)


class WorstList(BracketList):
    """The smallest score of the property over each region. A positive lower bound proves that the property
    holds there.
    """

    def table(self) -> PrintedTable:
        rows = []
        for place, bracket in enumerate(self):
            low, high = shown_bounds(bracket)
            rows.append({"input": str(place), "lower": low, "upper": high, "property": _holds(bracket)})
        return make_table(rows, ("input", "lower", "upper"))

    def summary(self) -> str:
        """Over how many regions the property is proved, in how many it is broken, and how many are unknown."""
        return _answer_or_counts(self._answered, list(self))


def _answer_or_counts(answered: AnswerList | None, found: Sequence[Bracket]) -> str:
    """The sentence of the records; of a list made by hand, the counts alone."""
    if answered is not None:
        return answered.answer()
    held = [_holds(bracket) for bracket in found]
    return (
        f"The property is proved over {held.count('proved')} of {plural(len(held), 'region')}, broken in "
        f"{held.count('broken')}, unknown in {held.count('unknown')}."
    )


def _holds(bracket: Bracket) -> str:
    if bracket.lower.value > 0:
        return "proved"
    return "broken" if bracket.upper.value <= 0 else "unknown"


class RiskList(Results["Risk"]):
    """The risk of each input: worst score, radius and metric Q."""

    def frame_rows(self) -> list[dict[str, Any]]:
        rows = []
        for place, risk in enumerate(self):
            row: dict[str, Any] = {"input": place, "score": risk.score}
            for name, bracket in (("worst", risk.worst), ("radius", risk.radius), ("metric", risk.metric)):
                low, high = (
                    (math.nan, math.nan) if bracket is None else (bracket.lower.value, bracket.upper.value)
                )
                row |= {f"{name}_lower": low, f"{name}_upper": high}
            row["estimate"] = math.nan if risk.estimate is None else risk.estimate.value
            rows.append(
                {**row, "queries": risk.queries, "seconds": risk.seconds, "notes": "; ".join(risk.notes)}
            )
        return rows

    def table(self) -> PrintedTable:
        from holdfast.api.risk import estimate_text

        rows = []
        for place, risk in enumerate(self):
            row = {"input": str(place), "score": plain(format_nearest(risk.score))}
            for name, bracket in (("worst score", risk.worst), ("radius", risk.radius), ("Q", risk.metric)):
                row[name] = "" if bracket is None else " to ".join(dict.fromkeys(shown_bounds(bracket)))
            row["estimate s/Q"] = plain(estimate_text(risk))
            rows.append(row)
        return make_table(rows, ("input", "score"))

    def summary(self) -> str:
        """How often the property is proved over the whole region, and how often it is broken."""
        return _answer_or_counts(self._answered, [risk.worst for risk in self])


class RangeList(Results[Range]):
    """The smallest and largest value of each output over each box."""

    @property
    def lower(self) -> Tensor:
        """(ranges,) float64: proved, no value is smaller."""
        return torch.tensor([found.minimum.lower.value for found in self], dtype=torch.float64)

    @property
    def upper(self) -> Tensor:
        """(ranges,) float64: proved, no value is larger."""
        return torch.tensor([found.maximum.upper.value for found in self], dtype=torch.float64)

    def frame_rows(self) -> list[dict[str, Any]]:
        return [
            {
                "box": found.box,
                "output": found.output,
                "minimum_lower": found.minimum.lower.value,
                "minimum_upper": found.minimum.upper.value,
                "maximum_lower": found.maximum.lower.value,
                "maximum_upper": found.maximum.upper.value,
                "gap": found.gap,
                "closed": found.closed,
                "seconds": found.seconds,
                "queries": found.queries,
                "note": found.note,
            }
            for found in self
        ]

    def table(self) -> PrintedTable:
        rows = []
        for found in self:
            low, high = (
                " to ".join(dict.fromkeys(shown_bounds(end))) for end in (found.minimum, found.maximum)
            )
            row = {"box": str(found.box), "output": str(found.output), "smallest": low, "largest": high}
            rows.append({**row, "note": shorten(found.note, 40)})
        return make_table(rows, ("box", "output"))

    def summary(self) -> str:
        """The proved range of every output, or of many outputs how tightly they are known."""
        if self._answered is not None:
            return self._answered.answer()
        done = sum(found.closed for found in self)
        tolerance = f"{self[0].tolerance:g}" if self else ""
        return f"{done} of {plural(len(self), 'range')} known to the tolerance {tolerance}."


class SmoothedList(Results["Smoothed"]):
    """The class and the certified radius of the smoothed classifier at each input."""

    def frame_rows(self) -> list[dict[str, Any]]:
        return [
            {
                "input": k,
                "class": one.prediction,
                "p_lower": one.p_lower,
                "radius": one.radius.value,
                "measured": one.measured,
            }
            for k, one in enumerate(self)
        ]

    def table(self) -> PrintedTable:
        rows = [
            {
                "input": str(k),
                "class": "-" if one.prediction is None else str(one.prediction),
                "probability at least": plain(format_nearest(one.p_lower)),
                "radius": plain(format_nearest(one.radius.value)),
            }
            for k, one in enumerate(self)
        ]
        return make_table(rows, ("input", "probability at least", "radius"))

    def summary(self) -> str:
        """At how many inputs the smoothed classifier has a class."""
        known = sum(one.prediction is not None for one in self)
        of = plural(len(self), "input")
        return f"The smoothed classifier has a class at {known} of {of}; it is not the network itself."


# ---- single results
