"""Branch and bound over the input: where one proof does not cover the region, halves of it are proved on their own.

The halves of a box cover it, so a radius holds once every box that its region was cut into is proved.
"""

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from holdfast.bounding.crown import linear_bound, propagate
from holdfast.bounding.graph.of_problem import ASSUMPTIONS, CHECKS, graph_of
from holdfast.certify.tighten import Tighten, Training, boxes_at_once, quadratic_of
from holdfast.method import Claims, Method
from holdfast.problem import Problem
from holdfast.property import LinearProperty
from holdfast.region import Box, Patch
from holdfast.region.normed import NormFamily
from holdfast.result import Traits
from holdfast.rounding import gamma


@dataclass(frozen=True)
class Attempt:
    """One row at one radius: the boxes that are not proved yet."""

    radius: float
    lower: Tensor  # (open, *shape)
    upper: Tensor
    asked: int  # boxes looked at so far, in this attempt
    ahead: float  # boxes that are still to come, if halving goes on to help as it promises
    push: float  # how much further than what is proved


@dataclass(frozen=True)
class Splitting:
    training: Training
    trained: bool
    low: Tensor  # (batch,)
    attempts: tuple[Attempt | None, ...]  # None: that row is done


@dataclass(frozen=True)
class Split(Method[Splitting]):
    """First what Tighten does, then larger radii by halving boxes, each along the input that promises most, wave after wave.

    An attempt that would take more than `boxes` of them is given up, and a smaller radius is tried, until it is less than `finest` beyond.
    """

    finds: ClassVar[str] = "still larger ones"
    help: ClassVar[str] = "branch and bound over halves of the region"
    traits: ClassVar[Traits] = Traits(seeded=False, glass=True)

    boxes: int = 1024
    steps: int = 80  # of training before
    finest: float = 0.005

    @property
    def _tighten(self) -> Tighten:
        return Tighten(steps=self.steps)

    def obstacle(self, problem: Problem) -> str | None:
        return self._tighten.obstacle(problem)

    def start(self, problem: Problem, seed: int) -> Splitting:
        training = self._tighten.start(problem, seed)
        return Splitting(training, False, training.low, tuple(None for _ in problem.keys))

    def step(self, problem: Problem, state: Splitting) -> tuple[Splitting | None, Claims]:
        if not state.trained:
            training, claims = self._tighten.advance(problem, state.training)
            state = replace(state, training=training, low=training.low)
            if not self._tighten.done(problem, training):
                return state, claims
            attempts = tuple(self._attempt(problem, row, float(low), 0.04) for row, low in enumerate(state.low))
            state = replace(state, trained=True, attempts=attempts)
            return state if any(attempts) else None, claims
        low, next_ = state.low.clone(), list(state.attempts)
        for row, before in enumerate(state.attempts):
            if before is None:
                continue
            attempt = _wave(problem, state.training, row, before)
            if not len(attempt.lower):
                low[row] = attempt.radius
                next_[row] = self._attempt(problem, row, attempt.radius, attempt.push)
            elif attempt.asked + max(len(attempt.lower), attempt.ahead) > self.boxes:
                next_[row] = self._attempt(problem, row, float(low[row]), attempt.push / 2)
            else:
                next_[row] = attempt
        state = replace(state, low=low, attempts=tuple(next_))
        return state if any(next_) else None, Claims(proved=low, assumptions=ASSUMPTIONS, checks=CHECKS)

    def _attempt(self, problem: Problem, row: int, low: float, push: float) -> Attempt | None:
        region = problem.region
        if problem.goal != "radius" or not _boxed(region) or push < self.finest or not 0 < low < float(problem.family.limit()[row]):
            return None
        family = problem.take(torch.tensor([row], device=region.centre.device)).family
        larger = family.at(min(low * (1 + push), float(family.limit())))
        return Attempt(float(larger.radius), *larger.enclosing_box(), 0, 0.0, push)


def _boxed(region: object) -> bool:
    """Is the region all of the box around it?"""
    return isinstance(region, Patch) or (isinstance(region, NormFamily) and math.isinf(region.p))


def _wave(problem: Problem, training: Training, row: int, attempt: Attempt) -> Attempt:
    """Every open box is proved, or cut in two along the input where that helps most."""
    lower, upper, ahead = [], [], 0.0
    view = quadratic_of(problem)
    for low, high in zip(attempt.lower.split(n := boxes_at_once(problem, view)), attempt.upper.split(n), strict=True):
        proved, least, gain = _look(problem, training, row, low, high)
        low, high, least, gain = low[~proved], high[~proved], least[~proved], gain[~proved].flatten(1)
        axis = gain.argmax(1, keepdim=True)
        levels = -1.5 * least / gain.gather(1, axis).squeeze(1).clamp_min(1e-300)
        ahead += float((2 ** levels.clamp(0, 60)).sum())
        middle = low / 2 + high / 2
        chosen = torch.zeros_like(low.flatten(1), dtype=torch.bool).scatter(1, axis, True).reshape(low.shape)
        lower += [low, torch.where(chosen, middle, low)]
        upper += [torch.where(chosen, middle, high), high]
    return replace(attempt, lower=torch.cat(lower), upper=torch.cat(upper), asked=attempt.asked + len(attempt.lower), ahead=ahead)


def _look(problem: Problem, training: Training, row: int, lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """boxes (n, *shape) -> proved (n,), the bound (n,), and what halving along each input may add to it, (n, *shape)."""
    view = quadratic_of(problem)
    assert isinstance(problem.property, LinearProperty)
    matrix, offset = (t[row].expand(len(lower), *t.shape[1:]) for t in problem.property.rows(view.graph.output.size))
    if not training.bends:
        return _look_at_planes(problem, matrix, offset, lower, upper)
    bends = {key: value[:, row : row + 1].expand(-1, len(lower), -1) for key, value in training.best.items()}
    low, high = lower.clone().requires_grad_(), upper.clone().requires_grad_()
    with torch.enable_grad():
        first = view.least(Box.between(low, high), matrix, offset, bends).amin(1)
        falls, rises = torch.autograd.grad(first.sum(), [low, high])
    # To the first order, the worse half gains half the width times the smaller of the two slopes.
    gain = torch.minimum(falls, -rises) * (upper - lower) / 2
    proved = first > 0
    if bool(proved.any()):
        sure = {key: value[:, proved].double() for key, value in bends.items()}
        region = Box.between(lower[proved], upper[proved])
        proved = proved.clone().masked_scatter(proved, _positive(view.least(region, matrix[proved], offset[proved], sure).amin(1)))
    return proved, first.detach().double(), torch.nan_to_num(gain, 0.0, 0.0, 0.0)


def _look_at_planes(problem: Problem, matrix: Tensor, offset: Tensor, lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Where there are no second-order models: planes, and the inputs over which the worst of them falls most."""
    graph = graph_of(problem)
    region = Box.between(lower, upper)
    linear = linear_bound(graph, propagate(graph, region), matrix)
    found = linear.minimum(region)
    least, worst = (found + offset - 4 * gamma(1) * (found.abs() + offset.abs())).min(1)
    slope = linear.coefficients[torch.arange(len(lower), device=lower.device), worst]
    return _positive(least), least, slope.abs() * (upper - lower) / 4


def _positive(score: Tensor) -> Tensor:
    """What overflows proves nothing."""
    return score.isfinite() & (score > 0)
