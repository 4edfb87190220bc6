"""CLEVER (Weng et al. 2018): an estimate of the robustness radius from sampled gradients, and its form for
sequences.

Let g be the margin to a target class and L its local Lipschitz constant in a ball around the input. Then
every x with

    ||x - centre||_p < g(centre) / L

keeps the class. The largest dual norm of the gradient over samples is at most L, so g / (sampled L) is only
an estimate, and often too large. CLEVER fits a reverse Weibull law to the maxima of batches of samples and
takes its end point for L. CLEVER-RNN (POPQORN, section 4) adds up the largest gradient norms of the time
steps and fits no law.

Both sample a ball of the radius epsilon_0 = share * reach, where the reach is the distance to the furthest
corner of the domain (for an unbounded domain, the norm of |x| + 1). Gradients outside of this ball are not
seen, so the estimate is at most epsilon_0. The default share is 0.1.

References: T.-W. Weng et al., Evaluating the robustness of neural networks: an extreme value theory approach,
2018; C.-Y. Ko et al., POPQORN: quantifying robustness of recurrent neural networks, 2019.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from holdfast.method import Claims, Method
from holdfast.problem import Problem
from holdfast.property import LinearProperty
from holdfast.random_streams import RandomStreams
from holdfast.region.normed import NormFamily
from holdfast.region.norms import dual, norm
from holdfast.result import Goal, Traits


@dataclass(frozen=True)
class CleverState:
    """The largest gradient norm of each batch of samples drawn until now."""

    maxima: Tensor  # (batches, rows, batch, groups)
    chance: RandomStreams


@dataclass(frozen=True)
class CLEVER(Method[CleverState]):
    """Estimate min over targets of g / L, capped at the sampled radius, from `batches` maxima over `samples`
    points each.
    """

    finds: ClassVar[str] = "estimates"
    help: ClassVar[str] = "CLEVER: a radius from the largest gradients of random points, no guarantee"
    traits: ClassVar[Traits] = Traits(glass=True)
    goals: ClassVar[tuple[Goal, ...]] = ("radius",)

    batches: int = 10
    samples: int = 32
    share: float = 0.1  # epsilon_0, the radius of the sampled ball, as a share of the family's reach.
    weibull: bool = True  # False: use the largest sampled gradient norm, as CLEVER-RNN does.

    def obstacle(self, problem: Problem) -> str | None:
        if not problem.network.differentiable:
            return "needs gradients, and the network is a black box"
        if problem.region.as_norm_family() is None:
            return "estimates the radius of a norm ball; this problem has another region"
        return None if isinstance(problem.property, LinearProperty) else "needs a property in linear rows"

    def start(self, problem: Problem, seed: int) -> CleverState:
        empty = torch.zeros(0, dtype=torch.float64, device=problem.region.centre.device)
        return CleverState(empty, RandomStreams.of(problem.keys, seed, empty.device))

    def step(self, problem: Problem, state: CleverState) -> tuple[CleverState | None, Claims]:
        assert isinstance(problem.property, LinearProperty)
        family = problem.region.as_norm_family()
        assert family is not None
        radius = family.reach() * self.share
        matrix, offset = problem.property.rows(problem.network.outputs_for(family.centre))
        points = family.at(radius).sample(self.samples, state.chance.substream(len(state.maxima)))
        seen = _steepest(problem, family, points, matrix)
        maxima = torch.cat([state.maxima.reshape(-1, *seen.shape), seen[None]])
        if len(maxima) < self.batches:
            return CleverState(maxima, state.chance), Claims()
        slope = self._end_point(maxima).sum(-1)  # (rows, batch): the norms of the groups add up
        margin = torch.einsum("bro,bo->rb", matrix, problem.network(family.centre).double()) + offset.t()
        estimate = torch.minimum((margin / slope.clamp_min(1e-300)).amin(0), radius)
        assumptions = (self._assumption(),)
        return None, Claims(estimate=estimate, assumptions=assumptions)

    def _assumption(self) -> str:
        return f"the steepest slope within {self.share:g} of the reach was seen or extrapolated"

    def _end_point(self, maxima: Tensor) -> Tensor:
        """Map (batches, ...) to (...): the estimated end point of the distribution of the maxima."""
        largest = maxima.amax(0)
        if not self.weibull or self.batches < 5:
            return largest
        return weibull_end(maxima)


@dataclass(frozen=True)
class CleverRNN(CLEVER):
    """Estimate the radius as CLEVER does, with the sum over frames of the largest sampled gradient norms for
    L.
    """

    finds: ClassVar[str] = "estimates, sampled within epsilon_0 = 0.1 of the reach"
    help: ClassVar[str] = (
        "CLEVER-RNN: as clever, from the largest gradients themselves; epsilon_0, the radius of sampling, is "
        "a tenth of the distance to the domain's furthest corner; no guarantee"
    )
    keyword: ClassVar[str] = "clever-rnn"

    weibull: bool = False

    def _assumption(self) -> str:
        return f"the steepest slope within epsilon_0 = {self.share:g} of the reach was seen"


def _steepest(problem: Problem, family: NormFamily, points: Tensor, matrix: Tensor) -> Tensor:
    """Return the largest dual norms of the gradients, (rows, batch, groups).

    Args:
        points: (samples, batch, *shape).
        matrix: (batch, rows, outputs), the linear functions of the outputs to differentiate.
    """
    rows, batch = matrix.shape[1], len(family)
    copies = points.expand(rows, *points.shape).flatten(0, 2)  # (rows * samples * batch, *shape)
    weights = matrix.permute(1, 0, 2)[:, None]  # (rows, 1, batch, outputs)

    def score(outputs: Tensor) -> Tensor:
        return (outputs.reshape(rows, len(points), batch, -1) * weights.to(outputs)).sum(-1).flatten()

    _, gradient = problem.network.score_and_gradient(copies, score)
    length = norm(family.group_features(gradient.reshape(rows, *points.shape)).double(), dual(family.norm))
    return (length * family.free()).amax(1)


def weibull_end(maxima: Tensor) -> Tensor:
    """Map (samples, ...), positive, to (...): the maximum-likelihood end point of a reverse Weibull law.

    If `end` is the end point, then y = end - maxima follows a Weibull law. For each candidate on a grid just
    above the largest value the most likely shape c solves

        sum(y^c log y) / sum(y^c) - 1/c = mean(log y).

    The left-hand side increases in c, so it is solved by bisection. c >= 1 is required: otherwise the
    likelihood has no maximum.
    """
    top = maxima.amax(0)
    beyond = torch.logspace(-3, 0, 40, dtype=maxima.dtype, device=maxima.device).reshape(
        -1, *(1 for _ in maxima.shape)
    )
    y = (1 + beyond) - maxima / top.clamp_min(1e-300)  # (grid, samples, ...), in units of the largest value
    log = y.log()
    low, high = torch.ones_like(log[:, 0]), torch.full_like(log[:, 0], 100.0)
    for _ in range(40):
        shape = (low + high) / 2
        weight = torch.softmax(shape[:, None] * log, dim=1)
        rising = (weight * log).sum(1) - 1 / shape < log.mean(1)
        low, high = torch.where(rising, shape, low), torch.where(rising, high, shape)
    shape = low
    mean_power = torch.logsumexp(shape[:, None] * log, dim=1) - math.log(len(maxima))
    likelihood = shape.log() - mean_power + (shape - 1) * log.mean(1)
    best = likelihood.argmax(0)
    return top * (1 + beyond.flatten()[best])
