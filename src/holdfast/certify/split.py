"""Branch and bound over the input: where one proof does not cover the region, halves of it are proved on their own.

The halves of a box cover it, so a radius holds once every box that its region was cut into is proved.
"""

import math
from dataclasses import dataclass, field, replace
from typing import ClassVar

import torch
from torch import Tensor

from holdfast import batch, clock
from holdfast.bounding.bounder import ClosedForm
from holdfast.bounding.branching.frontier import NUMBERS, Points, Seen
from holdfast.bounding.branching.input_split import BoxParts, Halving
from holdfast.bounding.graph.graph import Graph
from holdfast.bounding.graph.of_problem import ASSUMPTIONS, CHECKS, graph_of
from holdfast.bounding.second_order import Bends
from holdfast.certify.tighten import Tighten, Training, boxes_at_once, quadratic_of
from holdfast.method import Claims, Method
from holdfast.problem import Problem
from holdfast.property import LinearProperty
from holdfast.region import Box, Patch
from holdfast.region.normed import NormFamily
from holdfast.result import Traits
from holdfast.rounding import gamma

AT_ONCE = 256  # boxes that are looked at together


@dataclass(frozen=True, eq=False)
class Halves(BoxParts):
    """Boxes of inputs. Their bounds are those of float32, by which they are ordered and nothing is proved."""

    ahead: Tensor = field(kw_only=True)  # (n,): boxes that are still to come of it, if halving goes on to help as it promises


@dataclass(frozen=True, eq=False)
class Splitting:
    training: Training
    low: Tensor  # (batch,)
    frontier: Halves | None = None  # None: as long as the training is not done
    radius: Tensor = field(kw_only=True)  # (batch,): what is tried, where boxes wait
    push: Tensor = field(kw_only=True)  # (batch,): how much further than what is proved
    cuts: Tensor = field(kw_only=True)  # (batch,): boxes that were halved, in this attempt


@dataclass(frozen=True)
class Split(Method[Splitting]):
    """First what Tighten does, then larger radii by halving boxes, each along the input that promises most.

    An attempt that would take more than `boxes` of them is given up, and a smaller radius is tried, until it is less than `finest` beyond.
    """

    finds: ClassVar[str] = "still larger proved lower ends"
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
        none = torch.zeros_like(training.low)
        return Splitting(training, training.low, radius=none, push=torch.full_like(none, 0.04), cuts=none)

    def told(self, problem: Problem, state: Splitting, lower: Tensor, upper: Tensor) -> Splitting:
        """An attempt at a radius that is proved already gives way to a larger one."""
        training, better = self._tighten.told(problem, state.training, lower, upper), lower.isfinite() & (lower > state.low)
        state = replace(state, training=training, low=torch.where(better, lower, state.low))
        if state.frontier is None or not bool(better.any()):
            return state
        return self._attempting(problem, state, better & (lower >= state.radius))

    def step(self, problem: Problem, state: Splitting) -> tuple[Splitting | None, Claims]:
        if state.frontier is None:
            training, claims = self._tighten.advance(problem, state.training)
            state = replace(state, training=training, low=training.low)
            if not self._tighten.done(problem, training):
                return state, claims
            state = self._attempting(problem, state, torch.ones_like(state.low, dtype=torch.bool))
            return state if state.frontier else None, claims
        question = _Question(problem, graph_of(problem), state.training.best)
        frontier, points = _SecondOrder().advance(question, state.frontier)
        before, waiting, left = (task.bincount(minlength=len(problem)) for task in (state.frontier.task, frontier.task, points.task))
        cuts = state.cuts if clock.passed() else state.cuts + left
        ahead = torch.zeros_like(state.low).index_add(0, frontier.task, frontier.ahead)
        stuck = torch.zeros_like(before, dtype=torch.bool)
        stuck[list(frontier.given_up)] = True
        proved = (before > 0) & (waiting == 0) & ~stuck
        lost = stuck | (waiting > 0) & (2 * cuts + 1 + (ahead - waiting).clamp_min(0) > self.boxes)  # 2 cuts + 1 boxes there are by now
        low, push = torch.where(proved, state.radius, state.low), torch.where(lost, state.push / 2, state.push)
        state = self._attempting(problem, replace(state, low=low, push=push, cuts=cuts, frontier=frontier), proved | lost)
        return state if state.frontier else None, Claims(proved=low, assumptions=ASSUMPTIONS, checks=CHECKS)

    def _attempting(self, problem: Problem, state: Splitting, again: Tensor) -> Splitting:
        """These rows, (batch,) bool, with nothing but the next radius that is worth an attempt, if any is."""
        if problem.goal != "radius" or not _boxed(problem.region):
            return state
        family, low = problem.family, state.low
        larger = family.at(torch.minimum(low * (1 + state.push), family.limit()))
        lower, upper = larger.enclosing_box()
        row, none = torch.arange(len(low), device=low.device), torch.zeros_like(low)
        new = Halves(row, torch.ones_like(low, dtype=torch.bool)[:, None], none - torch.inf, lower=lower, upper=upper, ahead=none)
        new = batch.take(new, again & (state.push >= self.finest) & (low > 0) & (low < family.limit()))
        rest = [] if state.frontier is None else [batch.take(state.frontier, ~again[state.frontier.task])]
        radius, cuts = torch.where(again, larger.radius.double(), state.radius), torch.where(again, 0, state.cuts)
        return replace(state, frontier=replace(batch.concatenate([*rest, new]), given_up=frozenset()), radius=radius, cuts=cuts)


def _boxed(region: object) -> bool:
    """Is the region all of the box around it?"""
    return isinstance(region, Patch) or (isinstance(region, NormFamily) and math.isinf(region.p))


@dataclass(frozen=True, eq=False)
class _Question:
    problem: Problem
    graph: Graph
    bends: Bends  # of the second-order models, none where there are no such models

    def rows(self, task: Tensor) -> tuple[Tensor, Tensor]:
        assert isinstance(self.problem.property, LinearProperty)
        matrix, offset = self.problem.property.rows(self.graph.output.size)
        return matrix[task], offset[task]


class _SecondOrder(Halving[_Question, Halves]):
    """Boxes by trained second-order models, or by planes where there are none."""

    def at_once(self, question: _Question) -> int:
        return min(AT_ONCE, boxes_at_once(question.problem, quadratic_of(question.problem), training=True))

    def most(self, graph: Graph) -> int:
        return NUMBERS // graph.entry.size

    def bound(self, question: _Question, parts: Halves) -> Seen[Halves]:
        proved, least, gain = torch.zeros_like(parts.open[:, 0]), parts.bound.clone(), torch.zeros_like(parts.lower)
        ahead = parts.ahead.clone()
        kinds = (parts.upper > parts.lower).flatten(1).unique(dim=0, return_inverse=True)[1]  # models hold only what moves
        look = _by_models if question.bends else _by_planes
        for kind in kinds.unique():
            if not clock.passed():
                some = (kinds == kind).nonzero().flatten()
                proved[some], found, slopes = look(question, batch.take(parts, some))
                least[some], gain[some] = torch.nan_to_num(found, -torch.inf), torch.nan_to_num(slopes, 0.0, 0.0, 0.0)
                levels = -1.5 * least[some] / gain[some].flatten(1).amax(1).clamp_min(1e-300)
                ahead[some] = 2 ** levels.clamp(0, 60) / 2  # half of them for each half
        lower, upper = parts.lower[~proved], parts.upper[~proved]
        points = Points(lower / 2 + upper / 2, lower, upper, parts.task[~proved])
        return Seen(replace(parts, open=~proved[:, None], bound=least, ahead=ahead), gain.flatten(1), points)


def _by_models(question: _Question, parts: Halves) -> tuple[Tensor, Tensor, Tensor]:
    """-> proved (n,), the bound (n,), and what halving along each input may add to it, (n, *shape)."""
    view, (matrix, offset) = quadratic_of(question.problem), question.rows(parts.task)
    bends = {key: value[:, parts.task] for key, value in question.bends.items()}
    low, high = parts.lower.clone().requires_grad_(), parts.upper.clone().requires_grad_()
    with torch.enable_grad():
        first = view.least(Box.between(low, high), matrix, offset, bends).amin(1)
        falls, rises = torch.autograd.grad(first.sum(), [low, high])
    # To the first order, the worse half gains half the width times the smaller of the two slopes.
    gain = torch.minimum(falls, -rises) * (parts.upper - parts.lower) / 2
    proved = first.detach() > 0
    if bool(proved.any()):
        sure = {key: value[:, proved].double() for key, value in bends.items()}
        region = Box.between(parts.lower[proved], parts.upper[proved])
        proved = proved.masked_scatter(proved, _positive(view.least(region, matrix[proved], offset[proved], sure).amin(1)))
    return proved, first.detach().double(), gain


def _by_planes(question: _Question, parts: Halves) -> tuple[Tensor, Tensor, Tensor]:
    """Where there are no second-order models: planes, and the inputs over which the worst of them falls most."""
    (matrix, offset), region = question.rows(parts.task), Box.between(parts.lower, parts.upper)
    found, linear = ClosedForm(question.graph).bound(region, matrix)
    assert linear is not None
    least, worst = (found + offset - 4 * gamma(1) * (found.abs() + offset.abs())).min(1)
    slope = linear.coefficients[torch.arange(len(worst), device=worst.device), worst]
    return _positive(least), least, slope.abs() * (parts.upper - parts.lower) / 4


def _positive(score: Tensor) -> Tensor:
    """What overflows proves nothing."""
    return score.isfinite() & (score > 0)
