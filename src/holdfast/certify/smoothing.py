"""Randomised smoothing (Cohen, Rosenfeld, Kolter 2019): a radius that holds with a confidence, for any
network, black boxes too.

Statement. Let f be the network and g the smoothed classifier

    g(x) = argmax over c of P(f(x + noise) = c),   noise ~ N(0, sigma^2 I).

If P(f(x + noise) = c) >= p > 1/2, then g(x') = c for all x' with ||x' - x||_2 < sigma * Phi^-1(p), where Phi
is the standard normal distribution function. Here p is a lower confidence bound (Clopper and Pearson) of the
unknown probability, so the radius holds with that confidence.

The statement is about g, ANOTHER classifier; nothing follows for f itself. So such a radius never becomes a
bound of a bracket.

As in the paper the noise is not clipped: the network is queried at points outside its domain too.

Assumption: the samples of the noise are independent and normally distributed.

Reference: J. Cohen, E. Rosenfeld, J. Z. Kolter, Certified adversarial robustness via randomized smoothing,
2019.
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
from holdfast.result import Bound, Goal, Key, Record, Traits, trivial_bound
from holdfast.solver import Progress, Sink, Stop, solve

# Largest number of samples of one input in a step (chosen by hand). The number depends on the size of an
# input only, so every sample is the same however the inputs are batched.
BLOCK_SAMPLES = 256
BLOCK_NUMBERS = 2**16  # Largest number of values in the samples of one input in a step (chosen by hand).


@dataclass(frozen=True)
class SmoothingSettings:
    """The smoothed classifier and the number of samples. The confidence holds for each input by itself, not
    for all together.
    """

    sigma: float  # standard deviation of the noise, in the units of the input
    samples: int  # samples from which the probability is estimated
    confidence: float

    def __post_init__(self) -> None:
        if not 0 < self.sigma < math.inf:
            raise BadInput(f"smoothing: sigma must be a positive number, got {self.sigma}.")
        if not 0 < self.confidence < 1:
            raise BadInput(f"smoothing: the confidence must lie between 0 and 1, got {self.confidence}.")
        if self.samples < 1:
            raise BadInput(f"smoothing: at least one sample is needed, got {self.samples}.")

    def at_least(self, count: int) -> float:
        """Return the lower confidence bound of the probability of an event that occurred `count` times."""
        from scipy.stats import beta  # imported here since the import is slow

        return float(beta.ppf(1 - self.confidence, count, self.samples - count + 1)) if count else 0.0

    def radius(self, probability: float) -> float:
        """Return the radius that follows from a lower bound of the probability; 0 without a majority."""
        from scipy.stats import norm

        return self.sigma * float(norm.ppf(probability)) if probability > 0.5 else 0.0

    def assumptions(self, what: str) -> tuple[str, ...]:
        return (
            "it is the radius of the smoothed classifier (the majority under Gaussian noise of width "
            f"{self.sigma:g}), not of the network",
            f"within it, in the Euclidean norm, {what}",
            "the noise is not clipped to the domain, and the network answers the same to the same input",
        )


@dataclass(frozen=True)
class Smoothed:
    """The result for one input."""

    prediction: int | None  # None: the samples show no majority, or the input was not measured
    counts: Tensor  # (classes,) int64: how often the network predicted each class
    # lower confidence bound of the probability of the chosen class, with the confidence of `radius`
    p_lower: float
    radius: Bound

    @property
    def measured(self) -> bool:
        """Whether all samples were counted; if not, neither the class nor the radius is meaningful."""
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
    """Run CERTIFY of the paper for every input: some samples choose the class, others estimate its
    probability.

    Takes `choosing` + `samples` queries of each input. A sample with a non-finite output counts for no class.
    """
    if choosing < 1:
        raise BadInput(
            f"smoothing: at least one sample is needed to choose a class, got choosing={choosing}."
        )
    method = Smoothing(sigma, samples, confidence, choosing)
    records = solve([smoothing_problem(net, x)], [method], stop, seed=seed, store=store, progress=progress)
    return [smoothed_of(record) for record in records]


def smoothed_of(record: Record) -> Smoothed:
    """Return the result that a record holds; before all samples are counted it is empty."""
    counts = record.aside["counts"].long() if "counts" in record.aside else torch.zeros(0, dtype=torch.int64)
    guess = next((e for e in record.bracket.estimates if e.evidence.method == "Smoothing"), None)
    if guess is None or "chosen" not in record.aside:
        return Smoothed(None, counts, 0.0, trivial_bound(0.0))
    p_lower = float(record.aside["p_lower"])
    return Smoothed(int(record.aside["chosen"]) if p_lower > 0.5 else None, counts, p_lower, guess)


@dataclass(frozen=True)
class Anything(Property):
    """A specification that always holds: the problem is about the smoothed classifier, not about the network
    itself.
    """

    def score(self, outputs: Tensor) -> Tensor:
        return outputs.new_ones(outputs.shape[:-1])

    def check(self, batch: int, outputs: int) -> None:
        pass


def smoothing_problem(net: Network, x: Tensor) -> Problem:
    """Return the problem: Euclidean balls without a domain, since the noise is not clipped."""
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
    """The counts of each class, or of violations and non-violations of the specification, (batch, classes).

    The samples that choose the class and the samples from which its probability is estimated are counted
    separately.
    """

    drawn: int
    choosing: Tensor
    counts: Tensor
    seed: int


@dataclass(frozen=True)
class Smoothing(Method[ClassCounts]):
    """Estimate the radius within which the majority under noise keeps its class; zero if no majority shows.

    There is no result before all samples are counted: the confidence belongs to a number of samples that was
    fixed beforehand. Every block of samples of an input has its own seed, so a resumed run draws the same
    samples as an undisturbed one.

    Attributes:
        choosing: samples that choose the class; with 0 the specification (its label) is given, and it is
            counted how often it holds.
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
        if not isinstance(problem.region, Ball) or problem.region.norm != 2:
            return "smoothing speaks of the radius of Euclidean balls only: norm=2, all features free"
        return None

    def start(self, problem: Problem, seed: int) -> ClassCounts:
        classes = problem.network.outputs_for(problem.region.centre) if self.choosing else 2
        none = torch.zeros(len(problem), classes, dtype=torch.int64)
        return ClassCounts(0, none, none, seed)

    def resume_state(self, problem: Problem, state: ClassCounts, aside: Mapping[str, Tensor]) -> ClassCounts:
        drawn = aside.get("drawn")
        # Also if NaN: not all inputs had the same number of samples.
        if drawn is None or not bool((drawn == drawn[0]).all()):
            return state
        counts, choosing = (aside[name].to(torch.int64).cpu() for name in ("counts", "choosing"))
        return replace(state, drawn=int(drawn[0]), choosing=choosing, counts=counts)

    def step(self, problem: Problem, state: ClassCounts) -> tuple[ClassCounts | None, Claims]:
        """Draw one block of samples of every input."""
        block = max(1, min(BLOCK_SAMPLES, BLOCK_NUMBERS // problem.region.centre[0].numel()))
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
        """Return (size, batch, classes) int64: one-hot predictions of the samples, all zero where an output
        is not finite.
        """
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
        # The reshape also handles zero samples, where a run is resumed at its end.
        return answer.reshape(*points.shape[:2], outputs.shape[-1]).cpu()


def _generator(state: ClassCounts, key: Key) -> torch.Generator:
    """Return the generator of a block on the CPU, so that every device gets the same numbers."""
    drawn = hashlib.sha256(f"{state.seed} {key} {state.drawn}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(drawn[:7], "big"))
