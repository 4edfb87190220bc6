"""Certified upper bounds of the slope of a score s over a region, and of DeepQuant's Lipschitz metric Q.

Slope. On a convex region X, with ||.||_* the dual norm of ||.||,

    |s(x') - s(x)| <= L ||x' - x||  for all x, x' in X,   L = sup over z in X of ||grad s(z)||_*,

where a generalised gradient takes the place of grad s at kinks. `gradient_bounds` encloses every component of
the gradient over X; the dual norm of the componentwise largest absolute values is the bound of L.

Metric. Q(s, x, d, p) = sup over 0 < ||x' - x||_p <= d of |s(x') - s(x)| / ||x' - x||_p. `Shells` proves an
upper bound of it; a search (`metric`) finds a lower bound.

Assumption: s is computed from linear functions of the network's outputs whose slopes are known
(`BoundedProperty`).

Reference: P. Xu, W. Ruan, X. Huang, Quantifying safety risks of deep neural networks (definition of Q).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor

from holdfast import time_limit
from holdfast.bounding.crown import intervals, lower_bound, propagate
from holdfast.bounding.gradient import gradient_bounds
from holdfast.bounding.graph.graph import Graph
from holdfast.bounding.graph.problem_graph import ASSUMPTIONS, CHECKS, checked_graph, graph_of, rows_of
from holdfast.bounding.node_bounds import Boxes
from holdfast.derivations import (
    METRIC_CHANGE,
    METRIC_OPERATIONS,
    METRIC_ROWS,
    METRIC_SLOPE,
    NONNEGATIVE_SUM,
)
from holdfast.errors import BadInput, UnsupportedLayer
from holdfast.method import Claims, Method
from holdfast.problem import Problem
from holdfast.property import BoundedProperty
from holdfast.region import Region
from holdfast.result import Goal, Traits
from holdfast.rounding import charge, round_down, round_up

CHUNK = 128  # Number of balls bounded in one batch (chosen by hand).


@dataclass(frozen=True)
class ScoreBounds:
    """Certified bounds of the score over the region, row by row: least <= score <= most, and the slope of the
    score is at most `slope`.
    """

    least: Tensor  # (batch,) float64
    most: Tensor
    slope: Tensor


def slope_bound(problem: Problem, *, norm: float = math.inf) -> Tensor:
    """Upper-bound the slope of the score: |s(x') - s(x)| <= result * ||x' - x|| for all x, x' in the region.

    Returns (batch,) float64, infinite where nothing is proved. The norm is that of the region (for frames,
    the largest of their norms, each divided by its share); for a Box it is `norm`.
    """
    return bound_score_and_slope(problem, norm).slope


def bound_score_and_slope(
    problem: Problem, norm: float = math.inf, bounded: Callable[[Graph, Region], Boxes] = propagate
) -> ScoreBounds:
    """Bound the score and its slope over the region by a single bound propagation."""
    graph, prop = _graph(problem), problem.property
    assert isinstance(prop, BoundedProperty)
    boxes = bounded(graph, problem.region)
    rows, offset = rows_of(problem, graph)
    found = lower_bound(graph, boxes, torch.cat([rows, -rows], dim=1), torch.cat([offset, -offset], dim=1))
    lower, upper = found[:, : rows.shape[1]], -found[:, rows.shape[1] :]
    steepest = _lengths(problem, _gradients(graph, boxes, rows, *prop.slopes(lower, upper)), norm).amax(1)
    return ScoreBounds(prop.least(lower), prop.most(lower, upper), steepest.nan_to_num(torch.inf, torch.inf))


def _check(problem: Problem) -> None:
    """Raise BadInput if the slope of this score cannot be bounded on this region."""
    if not isinstance(problem.property, BoundedProperty):
        raise BadInput(
            "a slope can be bounded for scores of linear functions of the outputs, not for "
            f"{type(problem.property).__name__}."
        )
    if not problem.region.has_slope:
        raise BadInput(
            "a slope can be bounded on convex regions with a norm (Ball, Frames, Patch, Box), not on a "
            f"{type(problem.region).__name__}."
        )


def _graph(problem: Problem) -> Graph:
    """Return the graph of the score itself; a final softmax is kept."""
    _check(problem)
    return graph_of(replace(problem, goal="worst") if problem.bounds_radius else problem)


def _gradients(graph: Graph, boxes: Boxes, rows: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """Bound the gradients of the linear functions whose maximum or minimum is the score ("pieces"), feature
    by feature.

    Args:
        rows: (batch, rows, outputs), linear functions of the outputs.
        low, high: (batch, pieces, rows), bounds of the derivative of each piece with respect to each row.

    Returns:
        (batch, pieces, *shape): upper bounds of the absolute value of every component of each piece's
            gradient.

    The gradient of a piece is (middle + deviation) @ rows, where |deviation| is at most half the width of the
    interval [low, high]. The term of the middle is propagated backwards as a single linear function of the
    outputs, so that common terms cancel. The term of the deviation is at most the half width times the
    absolute gradient of each row.
    """
    middle = low / 2 + high / 2
    spread = round_up(high / 2 - low / 2, METRIC_OPERATIONS) + charge(middle.abs(), METRIC_SLOPE)
    spread = torch.where(low == high, 0, spread)
    whole = middle @ rows
    error = charge(middle.abs() @ rows.abs(), METRIC_ROWS, rows.shape[1])
    used = (spread != 0).any(1).any(0)
    parts = rows[:, used]
    ends = gradient_bounds(
        graph, boxes, torch.cat([whole - error, parts], dim=1), torch.cat([whole + error, parts], dim=1)
    )
    size = torch.maximum(ends[0].abs(), ends[1].abs()).flatten(2)
    count = low.shape[1]
    deviation = round_up(spread[..., used] @ size[:, count:], NONNEGATIVE_SUM, rows.shape[1] + 4)
    found = round_up(size[:, :count] + deviation, METRIC_OPERATIONS)
    return found.reshape(*found.shape[:2], *boxes.region.shape)


def _lengths(problem: Problem, gradient: Tensor, norm: float) -> Tensor:
    """Map (batch, pieces, *shape) >= 0 to (batch, pieces): the dual norm of the gradient over the features
    that can change, rounded up.
    """
    region = problem.region
    lower, upper = region.enclosing_box()
    gradient = torch.where((lower < upper)[:, None], gradient, 0)
    return region.greatest_slope(gradient, norm)


@dataclass(frozen=True, eq=False)
class ShellBounds:
    """The bounds known of every ball, (1 + balls, batch) each, radii increasing from zero; infinite where no
    bound is known yet.
    """

    radii: Tensor
    view: ScoreBounds
    waiting: tuple[int, ...]  # indices of the balls to bound next, in this order


@dataclass(frozen=True)
class Shells(Method[ShellBounds]):
    """Upper-bound Q over the region around x = centre: |s(x') - s(x)| <= bound * ||x' - x|| for every x' of
    the region.

    The ball is divided into `shells` by radii r_0 < r_1 < ...; each is `ratio` times the previous one. For
    the ball of radius r_k let L_k be an upper bound of the slope and U_k an upper bound of |s(x') - s(x)|,
    both certified. A straight walk from x to x' stays in ball k while its distance is below r_k. So with

        B_0 = min(U_0, L_0 r_0),   B_k = min(U_k, B_(k-1) + L_k (r_k - r_(k-1)))

    the change at a distance r in [r_(k-1), r_k] is at most

        min(B_k, B_(k-1) + L_k (r - r_(k-1))).

    Divided by r, the first term decreases and the second is monotone, so the quotient is largest at r_(k-1)
    or where the two terms are equal. Inside the smallest ball the quotient is at most L_0. A bound of a ball
    also holds for the balls inside it, so the largest ball is bounded first, which yields a bound after the
    first step.
    """

    finds: ClassVar[str] = "certified upper bounds of the steepness Q"
    help: ClassVar[str] = "DeepQuant's metric Q from above: bounds of the gradient on shells of the ball"
    needs_graph: ClassVar[bool] = True
    traits: ClassVar[Traits] = Traits(seeded=False, glass=True)
    goals: ClassVar[tuple[Goal, ...]] = ("steepness",)

    shells: int = 16
    ratio: float = 2 ** (1 / 3)

    def __post_init__(self) -> None:
        if self.shells < 1 or not self.ratio > 1:
            raise BadInput(
                f"metric: shells must be at least 1 and their ratio above 1, got {self.shells} and "
                f"{self.ratio}."
            )

    def obstacle(self, problem: Problem) -> str | None:
        if not (problem.region.grows and problem.region.has_slope):
            return (
                "the metric Q is defined for balls around an input (Ball, Frames, Patch), not for a "
                f"{type(problem.region).__name__}"
            )
        if not bool(_largest(problem).isfinite().all()):
            return (
                "Q over an infinite ball in an unbounded domain cannot be bounded here; give a radius or a "
                "domain"
            )
        try:
            _check(problem)
            checked_graph(problem)
            at_input = problem.take(torch.zeros(1, dtype=torch.int64)).tile_radii(torch.zeros(1, 1))
            bound_score_and_slope(at_input, bounded=intervals)  # interval bounds: this visits every layer
        except (BadInput, UnsupportedLayer) as error:
            return str(error)
        return None

    def start(self, problem: Problem, seed: int) -> ShellBounds:
        largest = _largest(problem)
        shrink = float(self.ratio) ** -torch.arange(
            self.shells, -1, -1, dtype=torch.float64, device=largest.device
        )
        radii = torch.cat([torch.zeros_like(largest)[None], largest * shrink[:, None]])
        radii[-1] = largest
        unknown = torch.full_like(radii, torch.inf)
        return ShellBounds(radii, ScoreBounds(-unknown, unknown, unknown), (0, *range(len(radii) - 1, 0, -1)))

    def step(self, problem: Problem, state: ShellBounds) -> tuple[ShellBounds | None, Claims]:
        """Bound as many balls as fit into one batch.

        Balls of one radius share a batch: the intermediate bounds of a small ball take less work, but not
        next to a large one.
        """
        some = list(state.waiting[: max(1, CHUNK // len(problem))])
        exact = replace(problem, region=replace(problem.family, radius=_largest(problem)))
        balls = exact.tile_radii(state.radii[some])
        seen = []
        for portion in time_limit.portions(balls.region.centre):
            found = time_limit.in_time(partial(bound_score_and_slope, balls.take(portion)), None)
            if found is None:
                break
            seen.append(found)
        if not seen:
            return state, Claims()
        done = sum(len(part.least) for part in seen)
        view = ScoreBounds(state.view.least.clone(), state.view.most.clone(), state.view.slope.clone())
        places = torch.tensor(some, device=state.radii.device).repeat_interleave(len(problem))[:done]
        rows = torch.arange(len(problem), device=state.radii.device).repeat(len(some))[:done]
        for name in ("least", "most", "slope"):
            getattr(view, name)[places, rows] = torch.cat([getattr(part, name) for part in seen])
        state = ShellBounds(state.radii, view, state.waiting[done // len(problem) :])
        most = _largest_quotient(state.radii, view.least, view.most, view.slope)
        proved = torch.where(most.isfinite(), -most, torch.nan)
        return state if state.waiting else None, Claims(proved=proved, assumptions=ASSUMPTIONS, checks=CHECKS)


def _largest(problem: Problem) -> Tensor:
    """Return the radius of the outermost ball, (batch,)."""
    return torch.minimum(problem.family.radius.double(), problem.family.limit())


def _largest_quotient(radii: Tensor, least: Tensor, most: Tensor, slope: Tensor) -> Tensor:
    """Upper-bound Q, (batch,), from bounds of the balls, (1 + balls, batch) each, radii increasing from
    zero.
    """
    change = torch.maximum(most[1:] - least[:1], most[:1] - least[1:])
    size = most[1:].abs() + least[1:].abs() + most[:1].abs() + least[:1].abs()
    change = (change + charge(size, METRIC_CHANGE)).nan_to_num(torch.inf, torch.inf)
    # A bound of a ball also holds for the balls inside it.
    change, slope, radii = _falling_inwards(change), _falling_inwards(slope[1:]), radii[1:]
    best, before = slope[0], torch.minimum(change[0], round_up(slope[0] * radii[0], METRIC_OPERATIONS))
    for k in range(1, len(radii)):
        width = radii[k] - radii[k - 1]
        now = torch.minimum(change[k], round_up(before + slope[k] * width, METRIC_OPERATIONS))
        further = round_down((now - before).clamp_min(0) / slope[k], METRIC_OPERATIONS)
        meet = torch.where(slope[k] > 0, radii[k - 1] + further, radii[k])
        meet = torch.maximum(round_down(meet, METRIC_OPERATIONS), radii[k - 1])
        meet = torch.minimum(meet, radii[k])
        largest = torch.maximum(before / radii[k - 1], now / meet)
        best = torch.maximum(best, round_up(largest, METRIC_OPERATIONS))
        before = now
    return torch.where(radii[-1] > 0, best, 0).nan_to_num(torch.inf, torch.inf)


def _falling_inwards(values: Tensor) -> Tensor:
    """Map (balls, batch), from the smallest ball outwards, to the smallest of the bounds that hold for each
    ball.
    """
    return values.flip(0).cummin(0).values.flip(0)
