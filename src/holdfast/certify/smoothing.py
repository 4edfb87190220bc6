"""Randomised smoothing (Cohen, Rosenfeld, Kolter 2019): a radius with a confidence for any network, black boxes too.

It speaks of ANOTHER classifier: the smoothed one answers what the network answers most often around x, under Gaussian noise. Where the
network gives an answer with probability p > 1/2 under noise of width sigma, the smoothed classifier gives it everywhere within
sigma * Phi^-1(p) of x in the Euclidean norm. p is not known; from the number of samples with that answer follows a lower end for it that is
right with the confidence asked for (Clopper and Pearson). Nothing follows for the network itself, so such a radius is never an end of
a bracket.

As in the paper, the noise is not clipped: the network is asked about points outside of its domain as well.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch
from scipy.stats import beta, norm
from torch import Tensor

from holdfast.errors import BadInput
from holdfast.method import Claims, Method
from holdfast.network import Network
from holdfast.problem import Problem
from holdfast.region import Ball
from holdfast.result import Bound, Evidence, Traits

ELEMENTS = 2**22  # numbers in one draw of noise


@dataclass(frozen=True)
class Noise:
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
        return float(beta.ppf(1 - self.confidence, count, self.samples - count + 1)) if count else 0.0

    def radius(self, probability: float) -> float:
        """What follows from a lower end of the probability; without a majority, nothing."""
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

    prediction: int | None  # None: no class has a majority that the samples could show
    counts: Tensor  # (classes,) int64: how often the network gave each class
    p_lower: float  # the class chosen has at least this probability, with the confidence of `radius`
    radius: Bound


def smoothed(
    net: Network, x: Tensor, *, sigma: float, samples: int = 10_000, confidence: float = 0.999, choosing: int = 100, seed: int = 0
) -> list[Smoothed]:
    """CERTIFY of the paper, for every input: the class is chosen by some samples, its probability estimated by others.

    Costs `choosing` + `samples` queries for each input. A network with outputs that are no numbers has no answer there.
    """
    noise = Noise(sigma, samples, confidence)
    if choosing < 1:
        raise BadInput(f"smoothing: at least one sample is needed to choose a class, got choosing={choosing}.")
    centre = torch.as_tensor(x)
    if centre.dim() < 2 or not len(centre):
        raise BadInput(f"smoothing: x has shape {tuple(centre.shape)}, expected (inputs, ...) with at least one input.")
    centre = net.exactly(centre) if centre.is_floating_point() else net.embed(centre)
    generator = torch.Generator().manual_seed(seed)
    chosen = _counts(net, centre, sigma, choosing, generator).argmax(1)
    counts = _counts(net, centre, sigma, samples, generator)
    settings = {"sigma": sigma, "samples": samples, "choosing": choosing}
    evidence = Evidence(
        "sampled", "Smoothing", settings, seed, str(net.dtype), noise.assumptions("it keeps its class"), confidence=confidence
    )
    return [_certified(noise, int(label), row, evidence) for label, row in zip(chosen, counts, strict=True)]


def _certified(noise: Noise, label: int, counts: Tensor, evidence: Evidence) -> Smoothed:
    p_lower = noise.at_least(int(counts[label]))
    return Smoothed(label if p_lower > 0.5 else None, counts, p_lower, Bound(noise.radius(p_lower), evidence))


def _counts(net: Network, centre: Tensor, sigma: float, samples: int, generator: torch.Generator) -> Tensor:
    """-> (inputs, classes) int64: how often each class is the answer under noise."""
    total: Tensor | None = None
    for points in _draws(centre, sigma, samples, generator):
        outputs = net(points.flatten(0, 1))
        answer = torch.nn.functional.one_hot(outputs.argmax(-1), outputs.shape[-1]) * outputs.isfinite().all(-1, keepdim=True)
        found = answer.reshape(len(points), len(centre), -1).sum(0).cpu()
        total = found if total is None else total + found
    assert total is not None
    return total


def _draws(centre: Tensor, sigma: float, samples: int, generator: torch.Generator) -> Iterator[Tensor]:
    """-> (some, inputs, *shape) at a time: the inputs with noise. The numbers are drawn on the processor: the same on every device."""
    at_once = max(1, ELEMENTS // centre.numel())
    for begin in range(0, samples, at_once):
        noise = torch.randn((min(at_once, samples - begin), *centre.shape), generator=generator)
        yield centre + sigma * noise.to(centre)


@dataclass(frozen=True)
class Counted:
    """How often the property held so far."""

    drawn: int
    held: Tensor  # (batch,) int64
    generator: torch.Generator


@dataclass(frozen=True)
class Smoothing(Method[Counted]):
    """The radius within which the majority under noise keeps the property; an estimate, zero where no majority shows.

    The property (its label) is given, so no samples are spent on choosing a class. Nothing is said before all samples are counted: the
    confidence belongs to a number of samples that was fixed beforehand.
    """

    finds: ClassVar[str] = "sampled radii of the smoothed classifier"
    help: ClassVar[str] = "randomised smoothing: a radius with a confidence, for any network"
    traits: ClassVar[Traits] = Traits(glass=False)

    sigma: float = 0.25
    samples: int = 10_000
    confidence: float = 0.999

    def __post_init__(self) -> None:
        self._noise()

    def _noise(self) -> Noise:
        return Noise(self.sigma, self.samples, self.confidence)

    def obstacle(self, problem: Problem) -> str | None:
        if problem.goal != "radius" or not isinstance(problem.region, Ball) or problem.region.p != 2:
            return "smoothing speaks of the radius of Euclidean balls only: norm=2, all features free"
        return None

    def start(self, problem: Problem, seed: int) -> Counted:
        return Counted(0, torch.zeros(len(problem), dtype=torch.int64), torch.Generator().manual_seed(seed))

    def step(self, problem: Problem, state: Counted) -> tuple[Counted | None, Claims]:
        """As many samples as one draw holds."""
        centre = problem.region.centre
        count = min(self.samples - state.drawn, max(1, ELEMENTS // centre.numel()))
        held = state.held.clone()
        for points in _draws(centre, self.sigma, count, state.generator):
            held += (problem.score(points) > 0).sum(0).cpu()
        state = Counted(state.drawn + count, held, state.generator)
        if state.drawn < self.samples:
            return state, Claims()
        noise = self._noise()
        radii = [noise.radius(noise.at_least(int(k))) for k in state.held]
        assumptions = noise.assumptions("the majority keeps the property")
        estimate = torch.tensor(radii, dtype=torch.float64)
        return None, Claims(estimate=estimate, estimate_kind="sampled", confidence=self.confidence, assumptions=assumptions)
