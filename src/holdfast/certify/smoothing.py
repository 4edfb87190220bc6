"""Randomised smoothing (Cohen, Rosenfeld, Kolter 2019): a radius with a confidence for any network, black boxes too.

It speaks of ANOTHER classifier: the smoothed one answers what the network answers most often around x, under Gaussian noise. Where the
network gives an answer with probability p > 1/2 under noise of width sigma, the smoothed classifier gives it everywhere within
sigma * Phi^-1(p) of x in the Euclidean norm. p is not known; from the number of samples with that answer follows a lower bound for it that
is right with the confidence asked for (Clopper and Pearson). Nothing follows for the network itself, so such a radius is never an end of
a bracket.

As in the paper, the noise is not clipped: the network is asked about points outside of its domain as well.
"""

import hashlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from holdfast.errors import BadInput
from holdfast.method import Claims, Method
from holdfast.network import Network
from holdfast.problem import Problem
from holdfast.property import Property
from holdfast.region import Ball
from holdfast.result import Bound, Goal, Key, Record, Traits, by_definition
from holdfast.solver import Progress, Sink, Stop, solve

BLOCK = 256  # samples of one input in a step, fewer where inputs are large; it depends on nothing but the size of an input,
NUMBERS = 2**16  # so that every sample is the same however the inputs are batched


@dataclass(frozen=True)
class SmoothingSettings:
    """Which smoothed classifier, and how much of it is seen. Each input is judged with this confidence by itself, not all together."""

    sigma: float  # the width of the noise, in the units of the input
    samples: int  # that count
    confidence: float

    def __post_init__(self) -> None:
        if not 0 < self.sigma < math.inf:
            raise BadInput(f"smoothing: sigma must be a positive number, got {self.sigma}.")
        if not 0 < self.confidence < 1:
            raise BadInput(f"smoothing: the confidence must lie between 0 and 1, got {self.confidence}.")
        if self.samples < 1:
            raise BadInput(f"smoothing: at least one sample is needed, got {self.samples}.")

    def at_least(self, count: int) -> float:
        """So often it happened: with the confidence asked for, its probability is at least this."""
        from scipy.stats import beta  # takes its time

        return float(beta.ppf(1 - self.confidence, count, self.samples - count + 1)) if count else 0.0

    def radius(self, probability: float) -> float:
        """What follows from a lower bound of the probability; without a majority, nothing."""
        from scipy.stats import norm

        return self.sigma * float(norm.ppf(probability)) if probability > 0.5 else 0.0

    def assumptions(self, what: str) -> tuple[str, ...]:
        return (
            f"it is the radius of the smoothed classifier (the majority under Gaussian noise of width {self.sigma:g}), not of the network",
            f"within it, in the Euclidean norm, {what}",
            "the noise is not clipped to the domain, and the network answers the same to the same input",
        )


@dataclass(frozen=True)
class Smoothed:
    """What the smoothed classifier says about one input."""

    prediction: (
        int | None
    )  # None: no class has a majority that the samples could show, or it was not measured
    counts: Tensor  # (classes,) int64: how often the network gave each class
    p_lower: float  # the class chosen has at least this probability, with the confidence of `radius`
    radius: Bound

    @property
    def measured(self) -> bool:
        """Whether all samples were counted. Where not, neither the class nor the radius says anything."""
        return self.radius.known


def smoothed(
    net: Network,
    x: Tensor,
    *,
    sigma: float,
    samples: int = 10_000,
    confidence: float = 0.999,
    choosing: int = 100,
    seed: int = 0,
    stop: Stop | None = None,
    store: Sink | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> list[Smoothed]:
    """CERTIFY of the paper, for every input: the class is chosen by some samples, its probability estimated by others.

    Costs `choosing` + `samples` queries for each input. A network with outputs that are no numbers has no answer there.
    """
    if choosing < 1:
        raise BadInput(
            f"smoothing: at least one sample is needed to choose a class, got choosing={choosing}."
        )
    method = Smoothing(sigma, samples, confidence, choosing)
    records = solve([smoothing_problem(net, x)], [method], stop, seed=seed, store=store, progress=progress)
    return [smoothed_of(record) for record in records]


def smoothed_of(record: Record) -> Smoothed:
    """The view of a record; before all samples are counted it says nothing."""
    counts = record.aside["counts"].long() if "counts" in record.aside else torch.zeros(0, dtype=torch.int64)
    guess = next((e for e in record.bracket.estimates if e.evidence.method == "Smoothing"), None)
    if guess is None or "chosen" not in record.aside:
        return Smoothed(None, counts, 0.0, by_definition(0.0))
    p_lower = float(record.aside["p_lower"])
    return Smoothed(int(record.aside["chosen"]) if p_lower > 0.5 else None, counts, p_lower, guess)


@dataclass(frozen=True)
class Anything(Property):
    """Nothing is required of the network itself: it is the smoothed classifier that is asked about."""

    def score(self, outputs: Tensor) -> Tensor:
        return outputs.new_ones(outputs.shape[:-1])

    def check(self, batch: int, outputs: int) -> None:
        pass


def smoothing_problem(net: Network, x: Tensor) -> Problem:
    """Euclidean balls without a domain: the noise is not clipped."""
    centre = torch.as_tensor(net.inputs(x, alike=True))
    if centre.dim() < 2 or not len(centre):
        raise BadInput(
            f"smoothing: x has shape {tuple(centre.shape)}, expected (inputs, ...) with at least one input."
        )
    centre = net.exactly(centre) if centre.is_floating_point() else net.embed(centre)
    ball = Ball(centre, torch.zeros(len(centre), dtype=torch.float64), 2.0)
    return Problem(net, ball, Anything(), "radius", tuple(Key(i) for i in range(len(centre))))


@dataclass(frozen=True)
class ClassCounts:
    """How often each class was the answer so far, or the property held and did not: (batch, classes), of the samples that choose a class
    and of those that count."""

    drawn: int
    choosing: Tensor
    counts: Tensor
    seed: int


@dataclass(frozen=True)
class Smoothing(Method[ClassCounts]):
    """The radius within which the majority under noise keeps its class; an estimate, zero where no majority shows.

    choosing  samples that choose the class; with 0 the property (its label) is given, and what is counted is how often it holds.

    Nothing is said before all samples are counted: the confidence belongs to a number of samples that was fixed beforehand. Every block of
    samples of an input has its own seed, so that a run that was stopped goes on with the very samples it would have drawn.
    """

    finds: ClassVar[str] = "sampled radii of the smoothed classifier"
    help: ClassVar[str] = "randomised smoothing: a radius with a confidence, for any network"
    traits: ClassVar[Traits] = Traits(glass=False)
    goals: ClassVar[tuple[Goal, ...]] = ("radius",)

    sigma: float = 0.25
    samples: int = 10_000
    confidence: float = 0.999
    choosing: int = 0

    def __post_init__(self) -> None:
        self._noise()

    def _noise(self) -> SmoothingSettings:
        return SmoothingSettings(self.sigma, self.samples, self.confidence)

    def obstacle(self, problem: Problem) -> str | None:
        if problem.goal != "radius" or not isinstance(problem.region, Ball) or problem.region.p != 2:
            return "smoothing speaks of the radius of Euclidean balls only: norm=2, all features free"
        return None

    def start(self, problem: Problem, seed: int) -> ClassCounts:
        classes = problem.network.outputs_for(problem.region.centre) if self.choosing else 2
        none = torch.zeros(len(problem), classes, dtype=torch.int64)
        return ClassCounts(0, none, none, seed)

    def resume_state(self, problem: Problem, state: ClassCounts, aside: Mapping[str, Tensor]) -> ClassCounts:
        drawn = aside.get("drawn")
        if drawn is None or not bool((drawn == drawn[0]).all()):  # NaN too: not all inputs were as far
            return state
        counts, choosing = (aside[name].to(torch.int64).cpu() for name in ("counts", "choosing"))
        return replace(state, drawn=int(drawn[0]), choosing=choosing, counts=counts)

    def step(self, problem: Problem, state: ClassCounts) -> tuple[ClassCounts | None, Claims]:
        """One block of samples of every input."""
        block = max(1, min(BLOCK, NUMBERS // problem.region.centre[0].numel()))
        size = min(block, self.choosing + self.samples - state.drawn)
        answers = self._answers(problem, state, size)  # (size, batch, classes)
        first = max(0, min(size, self.choosing - state.drawn))
        state = replace(
            state,
            drawn=state.drawn + size,
            choosing=state.choosing + answers[:first].sum(0),
            counts=state.counts + answers[first:].sum(0),
        )
        aside = {
            "drawn": torch.full((len(problem),), float(state.drawn)),
            "counts": state.counts.double(),
            "choosing": state.choosing.double(),
        }
        if state.drawn < self.choosing + self.samples:
            return state, Claims(aside=aside)
        chosen = state.choosing.argmax(1) if self.choosing else torch.ones(len(problem), dtype=torch.int64)
        noise = self._noise()
        p_lower = [noise.at_least(int(k)) for k in state.counts.gather(1, chosen[:, None])]
        if self.choosing:
            aside |= {"chosen": chosen.double(), "p_lower": torch.tensor(p_lower, dtype=torch.float64)}
        assumptions = noise.assumptions(
            "it keeps its class" if self.choosing else "the majority keeps the property"
        )
        estimate = torch.tensor([noise.radius(p) for p in p_lower], dtype=torch.float64)
        return None, Claims(
            estimate=estimate,
            estimate_kind="sampled",
            confidence=self.confidence,
            assumptions=assumptions,
            aside=aside,
        )

    def _answers(self, problem: Problem, state: ClassCounts, size: int) -> Tensor:
        """-> (size, batch, classes) int64: one at the answer to each sample, nowhere where an output is no number."""
        centre = problem.region.centre
        noise = torch.stack(
            [
                torch.randn((size, *centre.shape[1:]), generator=_generator(state, key))
                for key in problem.keys
            ],
            1,
        )
        points = centre + self.sigma * noise.to(centre)
        if not self.choosing:
            held = problem.score(points) > 0
            return torch.stack([~held, held], -1).long().cpu()
        outputs = problem.network(points.flatten(0, 1))
        answer = torch.nn.functional.one_hot(outputs.argmax(-1), outputs.shape[-1]) * outputs.isfinite().all(
            -1, keepdim=True
        )
        return answer.reshape(
            *points.shape[:2], outputs.shape[-1]
        ).cpu()  # of no samples too, where a run is taken up at its end


def _generator(state: ClassCounts, key: Key) -> torch.Generator:
    """On the processor: the same numbers on every device."""
    drawn = hashlib.sha256(f"{state.seed} {key} {state.drawn}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(drawn[:7], "big"))
