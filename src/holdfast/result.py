"""Results: bounds with their evidence, and brackets lower <= truth <= upper that only ever tighten."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

from holdfast.errors import BadInput, Contradiction
from holdfast.foreign_text import LONGEST_NOTE, cut_text
from holdfast.formatting import round_bounds
from holdfast.goals import Goal as Goal
from holdfast.goals import Objective, objective_of

if TYPE_CHECKING:
    from torch import Tensor

Kind = Literal["proved", "witnessed", "sampled", "estimated"]
Setting = str | int | float | bool | None

BY_DEFINITION = "definition"  # The method of bounds that no method computed.
DIGITS = 6  # Significant digits of a bracket as text.
SHOWN = 8  # Numbers of a counterexample that a message shows.
GUARANTEED: tuple[Kind, ...] = ("proved", "witnessed")


@dataclass(frozen=True)
class Traits:
    """Properties of a method, in the terms of ISO/IEC 24029-2:2023. The defaults are the cautious answers.

    Attributes:
        complete: it decides every problem of its kind.
        seeded: it draws random numbers, repeatable by its seed.
        glass: it reads the model's structure (True), only queries it (False), or this is not known (None).
        exact: its result is the true value.
        runs: its proofs only evaluate the model.
    """

    complete: bool = False
    seeded: bool = True
    glass: bool | None = None
    exact: bool = False
    runs: bool = False


@dataclass(frozen=True)
class Evidence:
    """The evidence for a bound.

    Attributes:
        kind: proved: it holds for every point of the region. witnessed: `witness` is a concrete input that
            shows it, replayed through the user's model. sampled: it holds with probability `confidence`.
            estimated: no guarantee.
        method: the method that computed it.
        settings: the settings of the method.
        seed: the seed of the method. With method and settings it reproduces the bound.
        dtype: the arithmetic in which it was computed.
        assumptions: what the bound assumes, one sentence each.
        confidence: of a sampled bound.
        witness: the concrete input of a witnessed bound.
        checks: what was checked before the bound was accepted, one sentence each, such as that the proof is
            about this model.
        traits: properties of the method.
    """

    kind: Kind
    method: str
    settings: Mapping[str, Setting] = field(default_factory=dict)
    seed: int | None = None
    dtype: str | None = None
    assumptions: tuple[str, ...] = ()
    confidence: float | None = None
    witness: "Tensor | None" = field(default=None, compare=False)
    checks: tuple[str, ...] = ()
    traits: Traits = Traits()


DEFINITION = Traits(complete=True, seeded=False, glass=False, exact=True, runs=True)


@dataclass(frozen=True)
class Bound:
    """A number and its evidence.

    Attributes:
        value: the number.
        evidence: why it holds.
        slack: for a witness whose value was computed (not counted): the largest rounding error of that value,
            compared with real arithmetic, which proofs are about. A proved bound that exceeds a witnessed
            value by at most the slack does not contradict it.
        executed: for a witness: the value that the user's model computed in its own arithmetic.
    """

    value: float
    evidence: Evidence
    slack: float = 0.0
    executed: float | None = None

    @property
    def known(self) -> bool:
        """Whether a method computed it. Otherwise it holds by definition: no distance is negative."""
        return self.evidence.method != BY_DEFINITION

    def __repr__(self) -> str:
        return f"Bound({self.value!r} {self.evidence.kind} by {self.evidence.method})"

    def negate(self) -> "Bound":
        return replace(
            self, value=0.0 - self.value, executed=None if self.executed is None else 0.0 - self.executed
        )  # 0.0 - x avoids -0.0


def trivial_bound(value: float) -> Bound:
    """A trivial bound: no distance is below zero, no number above infinity."""
    return Bound(value, Evidence(kind="proved", method=BY_DEFINITION, traits=DEFINITION))


def contradiction(
    lower: Bound, upper: Bound, where: str = "", names: tuple[str, str] = ("", "")
) -> Contradiction:
    """Return the error for bounds that exclude each other: both methods, both values and the input.

    Args:
        lower: the lower bound.
        upper: the upper bound, which lies below it.
        where: the name of the input. The counterexample is shown by its numbers.
        names: names of the two sides, such as runs, where the methods do not distinguish them. For two
            results of the same method its settings are shown.
    """
    same = lower.evidence.method == upper.evidence.method
    said = [f"{name}{_by(bound.evidence, same)}" for name, bound in zip(names, (lower, upper), strict=True)]
    shown = next((end.evidence.witness for end in (lower, upper) if end.evidence.witness is not None), None)
    places = [text for text in (where, "" if shown is None else f"the witness {_numbers(shown)}") if text]
    at = f", at {', '.join(places)}" if places else ""
    return Contradiction(
        f"{said[0]} says at least {lower.value!r} ({lower.evidence.kind}), {said[1]} says at most "
        f"{upper.value!r} "
        f"({upper.evidence.kind}){at}: one of the two is wrong. Please report it with the model; until "
        "then trust neither."
    )


def _by(evidence: Evidence, in_full: bool) -> str:
    """The name of the method; in full: with its settings and seed."""
    told = [f"{name}={value}" for name, value in evidence.settings.items()] if in_full else []
    told += [f"seed={evidence.seed}"] if in_full and evidence.seed is not None else []
    return f"{evidence.method} [{', '.join(told)}]" if told else evidence.method


def _numbers(witness: "Tensor") -> str:
    """The first numbers of an input."""
    values = witness.flatten().tolist()
    more = f", ... {len(values)} numbers in all" if len(values) > SHOWN else ""
    return f"({', '.join(f'{value:.9g}' for value in values[:SHOWN])}{more})"


@dataclass(frozen=True)
class Bracket:
    """lower.value <= truth <= upper.value. Estimates are kept separately and never change a bound."""

    lower: Bound
    upper: Bound
    estimates: tuple[Bound, ...] = ()
    note: str = ""

    def __post_init__(self) -> None:
        for end in (self.lower, self.upper):
            assert end.evidence.kind in GUARANTEED, (
                f"{end.evidence.kind} evidence cannot be an end of a bracket"
            )
            assert not math.isnan(end.value), "NaN never proves"
        if self.lower.value > self.upper.value:
            if self.lower.value > self.upper.value + self.lower.slack + self.upper.slack:
                raise contradiction(self.lower, self.upper)
            proved = (
                "lower" if self.lower.evidence.kind == "proved" else "upper"
            )  # The proved bound is moved to the witnessed one: they differ by rounding only.
            witness = self.upper if proved == "lower" else self.lower
            object.__setattr__(self, proved, replace(getattr(self, proved), value=witness.value))
        if len(self.note) > LONGEST_NOTE:
            object.__setattr__(self, "note", cut_text(self.note, LONGEST_NOTE))

    @property
    def gap(self) -> float:
        """upper - lower; infinite while a bound is unknown."""
        return 0.0 if self.closed else self.upper.value - self.lower.value

    @property
    def closed(self) -> bool:
        """Whether both bounds are the same number, which is then the true value."""
        return self.lower.value == self.upper.value

    @property
    def counterexample(self) -> "Tensor":
        """The input behind the upper bound. BadInput if none was found."""
        witness = self.upper.evidence.witness
        if witness is None:
            raise BadInput(
                "counterexample: none was found for this input. `upper.evidence.witness` is None there; give "
                "the search more time (seconds=, tier=)."
            )
        return witness

    @property
    def missing(self) -> tuple[str, str]:
        """Texts for the lower and the upper bound where no method computed it."""
        others = (self.upper, self.lower)
        said = [
            "nothing known"
            if not o.known
            else f"nothing {'proved' if o.evidence.kind == 'witnessed' else 'found'}"
            for o in others
        ]
        return said[0], said[1]

    def tighten(self, *, lower: Bound | None = None, upper: Bound | None = None) -> "Bracket":
        """Return the bracket with each given bound that is tighter; raise Contradiction if the bounds then
        cross.
        """
        better_lower = lower is not None and lower.value > self.lower.value
        better_upper = upper is not None and upper.value < self.upper.value
        if not (better_lower or better_upper):
            return self
        return replace(
            self,
            lower=lower if better_lower and lower is not None else self.lower,
            upper=upper if better_upper and upper is not None else self.upper,
        )

    def negate(self) -> "Bracket":
        """Return the bracket of the negated quantity."""
        return replace(
            self,
            lower=self.upper.negate(),
            upper=self.lower.negate(),
            estimates=tuple(e.negate() for e in self.estimates),
        )

    def refutes(self, estimate: Bound) -> bool:
        """Whether the upper bound shows that an estimate is too large. Sampled numbers are about another
        quantity.
        """
        return estimate.evidence.kind == "estimated" and estimate.value > self.upper.value

    def with_estimate(self, estimate: Bound) -> "Bracket":
        """Return the bracket with this estimate; it replaces an earlier one of the same method."""
        assert estimate.evidence.kind not in GUARANTEED
        others = tuple(e for e in self.estimates if e.evidence.method != estimate.evidence.method)
        return replace(self, estimates=(*others, estimate))

    def __str__(self) -> str:
        shown = [
            text.replace("−", "-").replace("∞", "inf")
            for text in round_bounds(self.lower.value, self.upper.value, DIGITS)
        ]
        sides = zip((self.lower, self.upper), shown, self.missing, strict=True)
        parts = [
            f"{number} {end.evidence.kind}" if end.known or self.closed else missing
            for end, number, missing in sides
        ]
        text = f"[{', '.join(parts)}]"
        return f"{text} ({self.note})" if self.note else text

    def __repr__(self) -> str:
        return f"Bracket{self}"


@dataclass(frozen=True)
class Share:
    """How many of the measured inputs have a property. Inputs that were not measured count neither way."""

    count: int
    measured: int
    total: int

    @property
    def not_measured(self) -> int:
        return self.total - self.measured

    @property
    def value(self) -> float:
        """The fraction of the measured inputs; NaN if none was measured."""
        return self.count / self.measured if self.measured else math.nan

    def __str__(self) -> str:
        if not self.measured:
            return f"not measured ({self.total} inputs)" if self.total else "no inputs"
        if self.not_measured:
            return f"{self.count} of {self.measured} measured ({self.not_measured} not measured)"
        return f"{self.value:.1%} ({self.count} of {self.total})"


@dataclass(frozen=True)
class Overall:
    """Means over a set of inputs with finite radius: lower <= mean radius <= upper, unless `lower` uses
    estimates.
    """

    lower: float
    upper: float
    closed: int  # brackets whose bounds are equal
    unbreakable: int  # infinite radii, which are not part of the means
    count: int

    @property
    def centre(self) -> float:
        return (self.lower + self.upper) / 2

    @property
    def radius(self) -> float:
        """Half the width of the interval: |mean radius - centre| <= radius."""
        return (self.upper - self.lower) / 2


def overall(brackets: Iterable[Bracket], estimated_by: str | None = None) -> Overall:
    """Return the mean bounds of a set of brackets: infinite where a bound is, NaN where there is nothing to
    average.

    Args:
        brackets: one for each input.
        estimated_by: a method whose estimates replace lower bounds. With "Grid", centre and radius are those
            of DeepTRE's Definition 4, and `lower` is an estimate and not proved. An estimate above a
            counterexample counts as the counterexample's distance.
    """
    lower = upper = 0.0
    closed = unbreakable = count = 0
    for b in brackets:
        count, closed, unbreakable = count + 1, closed + b.closed, unbreakable + (b.lower.value == math.inf)
        if b.lower.value < math.inf:
            guesses = [e.value for e in b.estimates if e.evidence.method == estimated_by]
            lower, upper = lower + min(max([b.lower.value, *guesses]), b.upper.value), upper + b.upper.value
    some = count - unbreakable
    return Overall(
        lower / some if some else math.nan, upper / some if some else math.nan, closed, unbreakable, count
    )


@dataclass(frozen=True)
class Key:
    """The identity of a record in a run.

    Attributes:
        index: the position of the input in the data.
        frame: the time step (or output, or case) where each is measured separately.
        part: the part of a query that has several: worst, radius and steepness of a risk; smallest and
            largest of a range.
    """

    index: int
    frame: int | None = None
    part: str = ""

    def __str__(self) -> str:
        place = str(self.index) if self.frame is None else f"{self.index}/{self.frame}"
        return f"{place} {self.part}" if self.part else place

    def __lt__(self, other: "Key") -> bool:
        return self._order < other._order

    @property
    def _order(self) -> tuple[str, int, int]:
        return self.part, self.index, -1 if self.frame is None else self.frame


Status = Literal["closed", "finished", "stopped", "interrupted", "failed", "refuted"]
DONE: tuple[Status, ...] = ("closed", "finished")  # A resumed run skips these records.
WITHOUT_CLAIM: tuple[Status, ...] = ("failed", "refuted")
# Relative difference that a recomputation on another machine may have (chosen by hand).
RECOMPUTATION_TOLERANCE = 1e-9


@dataclass(frozen=True)
class Record:
    """A stored result: the bracket, its cost, and why the search ended.

    Attributes:
        key: which input (and frame, and part) it is about.
        bracket: the bounds.
        status: closed: both bounds are equal. finished: every method has ended, or the requested gap is
        reached.
            stopped: the budget was spent. interrupted: by Ctrl-C; a resumed run continues it. failed: the
            model raised, crashed, hung, returned NaN or ran out of memory on this input, as the note says; a
            resumed run tries again. refuted: a proof and a counterexample excluded each other, or the model
            changed during the run; no bound is kept.
        seconds: time spent on it.
        queries: model queries spent on it.
        skipped: methods that were not applicable, each with its reason.
        question: the hash of the problem: the network's program, the input, the region, the property and the
        goal.
        means: the hash of the methods, their settings, the seed and the gap. A run with other means continues
            from these bounds.
        goal: the quantity that the bracket bounds.
        aside: additional tensors by name, such as a saliency map.
    """

    key: Key
    bracket: Bracket
    status: Status
    seconds: float
    queries: int
    skipped: tuple[str, ...] = ()
    question: str = ""
    means: str = ""
    goal: Goal = "radius"
    aside: "Mapping[str, Tensor]" = field(default_factory=dict, compare=False)

    def __post_init__(self) -> None:
        if any(len(reason) > LONGEST_NOTE for reason in self.skipped):
            object.__setattr__(
                self, "skipped", tuple(cut_text(reason, LONGEST_NOTE) for reason in self.skipped)
            )

    @property
    def objective(self) -> Objective:
        return objective_of(self.goal)

    @property
    def oriented(self) -> Bracket:
        """The bracket with the proved bound as the lower one and the witnessed bound as the upper one."""
        return self.objective.orient(self.bracket)

    @property
    def explained(self) -> Bracket:
        """The bracket; where nothing is proved, its note says which methods were not applicable and why."""
        bracket, ends = self.bracket, (self.bracket.lower, self.bracket.upper)
        if (
            bracket.closed
            or not self.skipped
            or any(end.known and end.evidence.kind == "proved" for end in ends)
        ):
            return bracket
        more = (
            text for text in self.skipped if text not in bracket.note
        )  # The note already names stages that were left out.
        return replace(bracket, note="; ".join(filter(None, (bracket.note, *more))))

    @property
    def witness(self) -> "Tensor | None":
        """The concrete input behind the upper bound, or behind the lower one where the goal is a maximum."""
        ends = (self.bracket.upper, self.bracket.lower)
        return next((end.evidence.witness for end in ends if end.evidence.witness is not None), None)


def has_proof(record: Record) -> bool:
    """Return whether the record has a proved bound that is not trivial."""
    return record.status not in WITHOUT_CLAIM and record.oriented.lower.value > record.objective.least


def has_witness(record: Record) -> bool:
    """Return whether the record has a counterexample, or another witness."""
    return record.status not in WITHOUT_CLAIM and record.oriented.upper.value < record.objective.most


@dataclass(frozen=True)
class Likely:
    """A class with the network's output for it.

    Attributes:
        label: the number of the class.
        output: the network's output.
        share: the class probability: the output itself where the outputs are probabilities (none below 0, sum
            1), else their softmax. It is the network's confidence, not its accuracy. NaN for forecasts and
            multi-label outputs.
    """

    label: int
    output: float
    share: float


@dataclass(frozen=True)
class Answers:
    """The most likely classes, in descending order, at the input and at the counterexample (empty without
    one).
    """

    before: tuple[Likely, ...]
    after: tuple[Likely, ...] = ()
