"""What a user takes home: numbers that carry their evidence, and brackets that only ever tighten."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

from holdfast.errors import Contradiction
from holdfast.foreign_text import LONGEST_NOTE, cut_text
from holdfast.formatting import decimals

if TYPE_CHECKING:
    from torch import Tensor

Kind = Literal["proved", "witnessed", "sampled", "estimated"]
Setting = str | int | float | bool | None
Goal = Literal["radius", "worst", "largest", "steepness", "probability"]

BY_DEFINITION = "definition"  # the method of ends that no method found
DIGITS = 6  # significant digits of a bracket as text
SHOWN = 8  # numbers of a witness in a message
GUARANTEED: tuple[Kind, ...] = ("proved", "witnessed")


@dataclass(frozen=True)
class Traits:
    """What is true of a method whatever it found, in the words of ISO/IEC 24029-2:2023. The cautious answer is the default.

    complete  it answers every question of its kind. seeded: it draws random numbers, repeatable by its seed. glass: it looks into the
    model (True), only asks it (False), or nobody said (None). exact: its answer is the truth. runs: its proofs only ever ran the model.
    """

    complete: bool = False
    seeded: bool = True
    glass: bool | None = None
    exact: bool = False
    runs: bool = False


@dataclass(frozen=True)
class Evidence:
    """Why a number may be believed.

    kind         proved: holds for every point of the region. witnessed: `witness` is a concrete input that shows it,
                 replayed through the user's model. sampled: holds with probability `confidence`. estimated: no guarantee.
    method       the method that found it, with its `settings` and `seed`, so that it can be found again.
    dtype        the arithmetic in which it was computed.
    assumptions  what must be true for the number to mean what it says, one sentence each.
    checks       what was looked at before the number was believed, one sentence each: that the proof speaks of this very model.
    traits       of the method.
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
    """One number and the reason to believe it.

    slack  of a witness whose value was computed, not counted: how far evaluating it may lie from the truth in real arithmetic, of which
           proofs speak. A proof that passes a witness by no more does not contradict it.
    executed  of a witness: the value that the user's own model gave in its own arithmetic.
    """

    value: float
    evidence: Evidence
    slack: float = 0.0
    executed: float | None = None

    @property
    def known(self) -> bool:
        """A method found it; else it holds by definition alone, as that no distance is below zero."""
        return self.evidence.method != BY_DEFINITION

    def __repr__(self) -> str:
        return f"Bound({self.value!r} {self.evidence.kind} by {self.evidence.method})"

    def negate(self) -> "Bound":
        return replace(
            self, value=0.0 - self.value, executed=None if self.executed is None else 0.0 - self.executed
        )  # no minus zero


def by_definition(value: float) -> Bound:
    """A bound that needs no computation: no distance is below zero, no number above infinity."""
    return Bound(value, Evidence(kind="proved", method=BY_DEFINITION, traits=DEFINITION))


def contradiction(
    lower: Bound, upper: Bound, where: str = "", names: tuple[str, str] = ("", "")
) -> Contradiction:
    """What to say of ends that exclude each other: both methods, both values, and at which input.

    where  the input that was asked about, as the caller knows it; the witness itself is shown by its numbers.
    names  of the two sides where the methods alone do not tell them apart, such as runs; settings tell a method from itself.
    """
    same = lower.evidence.method == upper.evidence.method
    said = [f"{name}{_by(bound.evidence, same)}" for name, bound in zip(names, (lower, upper), strict=True)]
    shown = next((end.evidence.witness for end in (lower, upper) if end.evidence.witness is not None), None)
    places = [text for text in (where, "" if shown is None else f"the witness {_numbers(shown)}") if text]
    at = f", at {', '.join(places)}" if places else ""
    return Contradiction(
        f"{said[0]} says at least {lower.value!r} ({lower.evidence.kind}), {said[1]} says at most {upper.value!r} "
        f"({upper.evidence.kind}){at}: one of the two is wrong. Please report it with the model; until then trust neither."
    )


def _by(evidence: Evidence, in_full: bool) -> str:
    """The method, with its settings where its name alone tells too little."""
    told = [f"{name}={value}" for name, value in evidence.settings.items()] if in_full else []
    told += [f"seed={evidence.seed}"] if in_full and evidence.seed is not None else []
    return f"{evidence.method} [{', '.join(told)}]" if told else evidence.method


def _numbers(witness: "Tensor") -> str:
    """A few numbers of an input, enough to find it again."""
    values = witness.flatten().tolist()
    more = f", ... {len(values)} numbers in all" if len(values) > SHOWN else ""
    return f"({', '.join(f'{value:.9g}' for value in values[:SHOWN])}{more})"


@dataclass(frozen=True)
class Bracket:
    """lower.value <= the truth <= upper.value; estimates stand beside it and never move an end."""

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
            )  # as much of it as the witness leaves, by rounding
            witness = self.upper if proved == "lower" else self.lower
            object.__setattr__(self, proved, replace(getattr(self, proved), value=witness.value))
        if len(self.note) > LONGEST_NOTE:
            object.__setattr__(self, "note", cut_text(self.note, LONGEST_NOTE))

    @property
    def gap(self) -> float:
        """upper - lower; infinite while an end is unknown."""
        return 0.0 if self.closed else self.upper.value - self.lower.value

    @property
    def closed(self) -> bool:
        """Both bounds are the same number: the truth is known."""
        return self.lower.value == self.upper.value

    @property
    def missing(self) -> tuple[str, str]:
        """What to say of the lower and the upper bound where no method found it: it is the one that the other is not."""
        others = (self.upper, self.lower)
        said = [
            "nothing known"
            if not o.known
            else f"nothing {'proved' if o.evidence.kind == 'witnessed' else 'found'}"
            for o in others
        ]
        return said[0], said[1]

    def tighten(self, *, lower: Bound | None = None, upper: Bound | None = None) -> "Bracket":
        """The bracket with whichever offered end is better than its own; raises Contradiction if they then cross."""
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
        """The bracket of the negative."""
        return replace(
            self,
            lower=self.upper.negate(),
            upper=self.lower.negate(),
            estimates=tuple(e.negate() for e in self.estimates),
        )

    def refutes(self, estimate: Bound) -> bool:
        """Does the upper bound show that an estimate of the same number is too large? What is sampled is a number of its own."""
        return estimate.evidence.kind == "estimated" and estimate.value > self.upper.value

    def with_estimate(self, estimate: Bound) -> "Bracket":
        """Beside the ends, one estimate per method: the newest."""
        assert estimate.evidence.kind not in GUARANTEED
        others = tuple(e for e in self.estimates if e.evidence.method != estimate.evidence.method)
        return replace(self, estimates=(*others, estimate))

    def __str__(self) -> str:
        shown = [
            text.replace("−", "-").replace("∞", "inf")
            for text in decimals(self.lower.value, self.upper.value, DIGITS)
        ]
        sides = zip((self.lower, self.upper), shown, self.missing, strict=True)
        text = f"[{', '.join(f'{shown} {end.evidence.kind}' if end.known or self.closed else missing for end, shown, missing in sides)}]"
        return f"{text} ({self.note})" if self.note else text

    def __repr__(self) -> str:
        return f"Bracket{self}"


@dataclass(frozen=True)
class Share:
    """How many of the inputs that were measured have some property. An input that was not measured counts neither as yes nor as no."""

    count: int
    measured: int
    total: int

    @property
    def not_measured(self) -> int:
        return self.total - self.measured

    @property
    def value(self) -> float:
        """Between 0 and 1, among the measured inputs; NaN if none was measured."""
        return self.count / self.measured if self.measured else math.nan

    def __str__(self) -> str:
        if not self.measured:
            return f"not measured ({self.total} inputs)" if self.total else "no inputs"
        if self.not_measured:
            return f"{self.count} of {self.measured} measured ({self.not_measured} not measured)"
        return f"{self.value:.1%} ({self.count} of {self.total})"


@dataclass(frozen=True)
class Overall:
    """A whole set of inputs: the means of their ends over those that can be broken at all, so lower <= the mean radius <= upper, unless
    `lower` was made of estimates."""

    lower: float
    upper: float
    closed: int  # brackets whose ends are equal
    unbreakable: int  # radii known to be infinite; left out of the means
    count: int

    @property
    def centre(self) -> float:
        return (self.lower + self.upper) / 2

    @property
    def radius(self) -> float:
        """How far the mean may lie from the centre."""
        return (self.upper - self.lower) / 2


def overall(brackets: Iterable[Bracket], estimated_by: str | None = None) -> Overall:
    """How the set holds on average. Infinite where an end is, NaN without anything to average.

    estimated_by  a method whose estimates are taken for lower bounds, where it gave one: with "Grid", centre and radius are those of
                  DeepTRE's Definition 4, and `lower` is an estimate, not a proof. An estimate above a witness counts as the witness.
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
    """Which question of a run a record answers: the input's position in the data, the frame (or output, or case) where these are asked
    one by one, and the part of a question that has several: worst, radius and steepness of a risk, the two ends of a range."""

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
DONE: tuple[Status, ...] = ("closed", "finished")  # a resumed run need not ask again


@dataclass(frozen=True)
class Record:
    """One answered question as it is stored: the bracket, what it cost and why the search ended.

    closed: both bounds are equal. finished: every method has done all it can, or the gap asked for is
    reached. stopped: the budget ran out.
    interrupted: Ctrl-C; a resumed run takes it up again.
    failed: the model raised, crashed, hung, answered NaN or had no memory for this input; the note says which. A resumed run tries again.
    refuted: a proof and a witness excluded each other, or the model changed while it was asked; nothing of it is kept.

    question  the hash of what was asked: the network's program, the input, the region, the property, the goal. An answer to one
              question is none to another.
    means     the hash of the methods, their settings, the seed and the gap; with others the search goes on from these ends.
    goal      the number that the bracket holds.
    aside     what was found on the way, a map of what matters say: one tensor a name, kept beside the record.
    """

    key: Key
    bracket: Bracket
    status: Status
    seconds: float
    queries: int
    skipped: tuple[str, ...] = ()  # methods that do not apply here, each with its reason
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
    def explained(self) -> Bracket:
        """The bracket; where nothing is proved, its note says which methods could not, and why."""
        bracket, ends = self.bracket, (self.bracket.lower, self.bracket.upper)
        if (
            bracket.closed
            or not self.skipped
            or any(end.known and end.evidence.kind == "proved" for end in ends)
        ):
            return bracket
        more = (
            text for text in self.skipped if text not in bracket.note
        )  # a stage that was left out is in the note already
        return replace(bracket, note="; ".join(filter(None, (bracket.note, *more))))

    @property
    def witness(self) -> "Tensor | None":
        """The concrete input that shows an end: the upper one, or the lower one where the largest number is asked for."""
        ends = (self.bracket.upper, self.bracket.lower)
        return next((end.evidence.witness for end in ends if end.evidence.witness is not None), None)


@dataclass(frozen=True)
class Likely:
    """A class as the network sees it.

    output  the network's own number.
    share   its probability: the output itself where all outputs already are one (none below 0, and together 1), else their softmax.
            It says how sure the network sounds, not how often it is right. NaN where outputs are no classes: forecasts, labels.
    """

    label: int
    output: float
    share: float


@dataclass(frozen=True)
class Answers:
    """The few likeliest classes, largest first, at the input and at the witness; `after` is empty where there is no witness."""

    before: tuple[Likely, ...]
    after: tuple[Likely, ...] = ()
