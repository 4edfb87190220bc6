"""How fast a score can change over a region: certified upper bounds of its slope, and of DeepQuant's Lipschitzian metric Q.

Q(s, x, d, p) is the largest |s(x') - s(x)| / ||x' - x||_p over the ball of radius d. A search finds it from below; here it is bounded from
above.
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
from holdfast.errors import BadInput, UnsupportedLayer
from holdfast.method import Claims, Method
from holdfast.problem import Problem
from holdfast.property import BoundedProperty
from holdfast.region import Box, Patch, Region
from holdfast.region.base import check_norm
from holdfast.region.normed import NormFamily
from holdfast.region.norms import dual, norm_above
from holdfast.result import Goal, Traits
from holdfast.rounding import TINY, gamma

UP, DOWN = 1 + 32 * gamma(1), 1 - 32 * gamma(1)  # a few operations on numbers that are not negative
CHUNK = 128  # balls that are bounded at once


@dataclass(frozen=True)
class ScoreBounds:
    """What is proved of the score over the region, row by row: least <= score <= most, and its slope is at most `slope`."""

    least: Tensor  # (batch,) float64
    most: Tensor
    slope: Tensor


def slope_bound(problem: Problem, *, norm: float = math.inf) -> Tensor:
    """-> (batch,) float64: |s(x') - s(x)| <= bound * ||x' - x|| for all x, x' of the region; infinite where nothing is known.

    The length is the region's own (for frames, the largest of theirs, each over its share), `norm` for a Box.
    """
    return look(problem, norm).slope


def look(
    problem: Problem, norm: float = math.inf, bounded: Callable[[Graph, Region], Boxes] = propagate
) -> ScoreBounds:
    """The score and its slope over the region, from one propagation."""
    graph, prop = _graph(problem), problem.property
    assert isinstance(prop, BoundedProperty)
    boxes = bounded(graph, problem.region)
    rows, offset = rows_of(problem, graph)
    found = lower_bound(graph, boxes, torch.cat([rows, -rows], dim=1), torch.cat([offset, -offset], dim=1))
    lower, upper = found[:, : rows.shape[1]], -found[:, rows.shape[1] :]
    steepest = _lengths(problem, _gradients(graph, boxes, rows, *prop.slopes(lower, upper)), norm).amax(1)
    return ScoreBounds(prop.least(lower), prop.most(lower, upper), steepest.nan_to_num(torch.inf, torch.inf))


def _check(problem: Problem) -> None:
    if not isinstance(problem.property, BoundedProperty):
        raise BadInput(
            f"a slope is proved for scores known from linear rows, not for {type(problem.property).__name__}."
        )
    if not isinstance(problem.region, NormFamily | Patch | Box):
        raise BadInput(
            f"a slope needs a convex region with a length (Ball, Frames, Patch, Box), not {type(problem.region).__name__}."
        )


def _graph(problem: Problem) -> Graph:
    """The graph of the score itself: no last softmax is left out."""
    _check(problem)
    return graph_of(problem if problem.goal == "steepness" else replace(problem, goal="worst"))


def _gradients(graph: Graph, boxes: Boxes, rows: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """rows (batch, rows, outputs), low and high (batch, pieces, rows): the slopes of the pieces along the rows ->
    (batch, pieces, *shape): no gradient of a piece is larger, feature by feature.

    A piece's gradient is (the middle slopes + what is left) . rows. The middle is one row of the outputs, walked back whole, so that what
    its parts share cancels; what is left is at most the half width times the size of each row's gradient.
    """
    middle = low / 2 + high / 2
    spread = torch.where(low == high, 0, (high / 2 - low / 2) * UP + 4 * gamma(1) * middle.abs())
    whole = middle @ rows
    error = gamma(rows.shape[1] + 4) * (middle.abs() @ rows.abs()) + TINY
    used = (spread != 0).any(1).any(0)
    parts = rows[:, used]
    ends = gradient_bounds(
        graph, boxes, torch.cat([whole - error, parts], dim=1), torch.cat([whole + error, parts], dim=1)
    )
    size = torch.maximum(ends[0].abs(), ends[1].abs()).flatten(2)
    count = low.shape[1]
    found = size[:, :count] + spread[..., used] @ size[:, count:] * (1 + 4 * gamma(rows.shape[1] + 4))
    return (found * UP).reshape(*found.shape[:2], *boxes.region.shape)


def _lengths(problem: Problem, gradient: Tensor, norm: float) -> Tensor:
    """(batch, pieces, *shape) >= 0 -> (batch, pieces): the dual length of the gradient over the features that move, rounded up."""
    region = problem.region
    lower, upper = region.enclosing_box()
    gradient = torch.where((lower < upper)[:, None], gradient, 0)
    if isinstance(region, NormFamily):
        each = norm_above(region.group_features(gradient), dual(region.p))
        free = region.free()[:, None]
        return torch.where(free == 0, 0, each * free).sum(-1) * (1 + 4 * gamma(free.shape[-1]))
    return norm_above(gradient.flatten(2), dual(math.inf if isinstance(region, Patch) else check_norm(norm)))


@dataclass(frozen=True, eq=False)
class Looked:
    """What is known so far of every ball, (1 + balls, batch) each, radii rising from zero; infinite where nothing is."""

    radii: Tensor
    view: ScoreBounds
    waiting: tuple[int, ...]  # balls to look at, the next one first


@dataclass(frozen=True)
class Shells(Method[Looked]):
    """No |s(x') - s(x)| / length(x' - x) over the region around x = centre is larger than what is proved here.

    The ball is cut into `shells`, the radius of each `ratio` times that of the next smaller. For the ball of radius r_k let L_k bound the
    slope and U_k bound |s(x') - s(x)|, both proved. Walking straight out to x' one is in the ball k while at distance below r_k, so with
    B_k = min(U_k, B_(k-1) + L_k (r_k - r_(k-1))) the change at distance r between r_(k-1) and r_k is at most
    min(B_k, B_(k-1) + L_k (r - r_(k-1))). Divided by r, the first falls and the second is monotone: the quotient is largest at r_(k-1) or
    where the two meet. Inside the smallest ball it is at most L_0. What bounds a ball bounds those inside it, so the largest comes first
    and says something at once.
    """

    finds: ClassVar[str] = "proved upper ends of the steepness Q"
    help: ClassVar[str] = "DeepQuant's metric Q from above: bounds of the gradient on shells of the ball"
    traits: ClassVar[Traits] = Traits(seeded=False, glass=True)
    goals: ClassVar[tuple[Goal, ...]] = ("steepness",)

    shells: int = 16
    ratio: float = 2 ** (1 / 3)

    def __post_init__(self) -> None:
        if self.shells < 1 or not self.ratio > 1:
            raise BadInput(
                f"metric: shells must be at least 1 and their ratio above 1, got {self.shells} and {self.ratio}."
            )

    def obstacle(self, problem: Problem) -> str | None:
        if not isinstance(problem.region, NormFamily | Patch):
            return f"the metric is asked for balls around an input (Ball, Frames, Patch), not for a {type(problem.region).__name__}"
        if not bool(_largest(problem).isfinite().all()):
            return "an infinite ball in an unbounded domain has no largest quotient here; give a radius or a domain"
        try:
            _check(problem)
            checked_graph(problem)
            at_input = problem.take(torch.zeros(1, dtype=torch.int64)).tile_radii(torch.zeros(1, 1))
            look(at_input, bounded=intervals)  # every layer
        except (BadInput, UnsupportedLayer) as error:
            return str(error)
        return None

    def start(self, problem: Problem, seed: int) -> Looked:
        largest = _largest(problem)
        shrink = float(self.ratio) ** -torch.arange(
            self.shells, -1, -1, dtype=torch.float64, device=largest.device
        )
        radii = torch.cat([torch.zeros_like(largest)[None], largest * shrink[:, None]])
        radii[-1] = largest
        unknown = torch.full_like(radii, torch.inf)
        return Looked(radii, ScoreBounds(-unknown, unknown, unknown), (0, *range(len(radii) - 1, 0, -1)))

    def step(self, problem: Problem, state: Looked) -> tuple[Looked | None, Claims]:
        """As many balls as are bounded at once; balls of one size side by side: a small one is soon done, but not next to a large one."""
        some = list(state.waiting[: max(1, CHUNK // len(problem))])
        assert isinstance(problem.region, NormFamily | Patch)
        exact = replace(problem, region=replace(problem.region, radius=_largest(problem)))
        balls = exact.tile_radii(state.radii[some])
        seen = []
        for portion in time_limit.portions(balls.region.centre):
            found = time_limit.in_time(partial(look, balls.take(portion)), None)
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
        state = Looked(state.radii, view, state.waiting[done // len(problem) :])
        most = _largest_quotient(state.radii, view.least, view.most, view.slope)
        proved = torch.where(most.isfinite(), -most, torch.nan)
        return state if state.waiting else None, Claims(proved=proved, assumptions=ASSUMPTIONS, checks=CHECKS)


def _largest(problem: Problem) -> Tensor:
    return torch.minimum(problem.family.radius.double(), problem.family.limit())


def _largest_quotient(radii: Tensor, least: Tensor, most: Tensor, slope: Tensor) -> Tensor:
    """All (1 + balls, batch), radii rising from zero -> (batch,)."""
    change = torch.maximum(most[1:] - least[:1], most[:1] - least[1:])
    change = (
        change + 4 * gamma(1) * (most[1:].abs() + least[1:].abs() + most[:1].abs() + least[:1].abs()) + TINY
    ).nan_to_num(torch.inf, torch.inf)
    # What bounds a ball bounds those inside it.
    change, slope, radii = _falling_inwards(change), _falling_inwards(slope[1:]), radii[1:]
    best, before = slope[0], torch.minimum(change[0], slope[0] * radii[0] * UP)
    for k in range(1, len(radii)):
        width = radii[k] - radii[k - 1]
        now = torch.minimum(change[k], (before + slope[k] * width) * UP)
        meet = torch.where(
            slope[k] > 0, radii[k - 1] + ((now - before).clamp_min(0) / slope[k]) * DOWN, radii[k]
        )
        meet = torch.minimum(torch.maximum(meet * DOWN, radii[k - 1]), radii[k])
        best = torch.maximum(best, torch.maximum(before / radii[k - 1], now / meet) * UP)
        before = now
    return torch.where(radii[-1] > 0, best, 0).nan_to_num(torch.inf, torch.inf)


def _falling_inwards(values: Tensor) -> Tensor:
    """(balls, batch), from the smallest ball out -> the smallest of all that hold for it."""
    return values.flip(0).cummin(0).values.flip(0)
