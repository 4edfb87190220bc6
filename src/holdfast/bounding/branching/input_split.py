"""Branch and bound over the input: a box that is not settled by its bounds is cut down to where a failure could be, then halved.

A failure is a point of the box whose output lies in one of the polytopes of `Avoid`. Over every box each row of each polytope has a
linear function of the input below it, so

- a polytope with a row that stays positive is ruled out on this box, and on all boxes inside it;
- where such a function is positive there is no failure: the box shrinks to what the functions of the other polytopes leave;
- what is left is halved along the input that is behind most of what the bounds lost (`Forms.share`).

The halves cover the box, so once none is left no failure exists. Every bound holds in float64 with its roundings paid for.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from typing import Generic, TypeVar

import torch
from torch import Tensor

from holdfast import batch
from holdfast.bounding.crown import Boxes, linear_bound
from holdfast.bounding.crown_within import propagate
from holdfast.bounding.graph.graph import Graph, Relaxed
from holdfast.bounding.zonotope import Forms
from holdfast.property import Avoid
from holdfast.region import Box
from holdfast.rounding import TINY, gamma

NUMBERS = 2**26  # in all parts that wait
ROUNDS = 3  # of cutting a box down; later ones find next to nothing


@dataclass(frozen=True, eq=False)
class Frontier:
    """The parts of the region that are not settled, however they were cut."""

    task: Tensor  # (n,) the row of the property that speaks of this part
    open: Tensor  # (n, polytopes) bool: those that are not ruled out here
    bound: Tensor  # (n,): the score is at least this here
    lost: float = torch.inf  # the least bound of parts that were given up, since nothing is left to cut
    looked: int = 0  # parts that were bounded so far

    def __len__(self) -> int:
        return len(self.bound)

    @property
    def least(self) -> float:
        """No score on what is not settled is below this."""
        return min(float(self.bound.min()), self.lost) if len(self) else self.lost


@dataclass(frozen=True, eq=False)
class Points:
    """Places where a failure is most likely, each with the box around it that is left to search."""

    x: Tensor  # (n, *shape)
    lower: Tensor  # (n, *shape)
    upper: Tensor
    task: Tensor  # (n,)


F = TypeVar("F", bound=Frontier)


class Branching(ABC, Generic[F]):
    """A way to cut: worst parts first; while too many wait, those nearest to being settled, which keeps the memory bounded."""

    @abstractmethod
    def start(self, graph: Graph, region: Box, rules: Avoid) -> F:
        """The whole region of every row of the batch, uncut."""

    @abstractmethod
    def look(self, graph: Graph, region: Box, rules: Avoid, parts: F, deadline: float = math.inf) -> tuple[F, Points]:
        """Bound every part: what is left of them, cut further, and the points to try. What takes long ends at the deadline (of the
        monotonic clock) with what it has."""

    @abstractmethod
    def at_once(self, graph: Graph, frontier: F) -> int:
        """How many parts are looked at together."""

    @abstractmethod
    def most(self, graph: Graph) -> int:
        """How many may wait."""

    @torch.no_grad()
    def step(self, graph: Graph, region: Box, rules: Avoid, frontier: F, deadline: float = math.inf) -> tuple[F, Points]:
        """Look at some of the parts."""
        count = min(len(frontier), self.at_once(graph, frontier))
        chosen = frontier.bound.topk(count, largest=len(frontier) > self.most(graph)).indices
        rest = torch.ones_like(frontier.bound, dtype=torch.bool)
        rest[chosen] = False
        left, points = self.look(graph, region, rules, batch.take(frontier, chosen), deadline)
        both = batch.concatenate([batch.take(frontier, rest), left])
        return replace(both, lost=left.lost, looked=frontier.looked + count), points


@dataclass(frozen=True, eq=False)
class BoxParts(Frontier):
    """Boxes of inputs."""

    lower: Tensor = field(kw_only=True)  # (n, *shape) float64
    upper: Tensor = field(kw_only=True)


@dataclass(frozen=True)
class InputSplit(Branching[BoxParts]):
    """Halves of boxes: for networks with few inputs."""

    batch: int = 512
    walks: bool = True  # back from every neuron; without them, forms alone bound the neurons, for about half the time
    waiting: int = 2**18
    elements: int = 2**23  # float64 numbers in the forms of one batch of boxes

    def start(self, graph: Graph, region: Box, rules: Avoid) -> BoxParts:
        lower, upper = region.enclosing_box()
        task = torch.arange(len(lower), device=lower.device)
        return BoxParts(task, all_open(rules), torch.full_like(rules.offset[:, 0, 0], -torch.inf), lower=lower, upper=upper)

    def at_once(self, graph: Graph, frontier: BoxParts) -> int:
        """Forms hold a number for each node and each noise."""
        noises = graph.entry.size + sum(node.size for node in graph.nodes if isinstance(node, Relaxed))
        return max(1, min(self.batch, self.elements // (max(node.size for node in graph.nodes) * noises)))

    def most(self, graph: Graph) -> int:
        return min(self.waiting, NUMBERS // graph.entry.size)

    def look(self, graph: Graph, region: Box, rules: Avoid, parts: BoxParts, deadline: float = math.inf) -> tuple[BoxParts, Points]:
        box = Box.between(parts.lower, parts.upper)
        forms = Forms.over(graph.entry, parts.lower, parts.upper)
        known, _ = propagate(graph, box, forms, walks=self.walks)
        matrix, offset = rules.matrix[parts.task], rules.offset[parts.task]
        planes = _planes(graph, known, forms, matrix, offset)
        cut = _cut(planes, parts.lower.flatten(1), parts.upper.flatten(1), parts.open)
        share = (cut.upper - cut.lower) / (parts.upper - parts.lower).flatten(1)
        gain = _gains(forms, graph, matrix, cut) * torch.nan_to_num(share, 0.0)
        left = cut.open.any(1)
        lower, upper = (end[left].reshape(-1, *parts.lower.shape[1:]) for end in (cut.lower, cut.upper))
        bound = torch.maximum(cut.bound, parts.bound)[left]
        smaller = BoxParts(parts.task[left], cut.open[left], bound, parts.lost, lower=lower, upper=upper)
        return _halves(smaller, gain[left]), _points(smaller, planes.slope[left, :, : offset.shape[2]])


def all_open(rules: Avoid) -> Tensor:
    """-> (batch, polytopes): nothing is ruled out yet."""
    return torch.ones(rules.offset.shape[:2], dtype=torch.bool, device=rules.offset.device)


@dataclass(frozen=True)
class _Planes:
    """slope . x + constant <= row . output + offset over the box, for each row of each polytope."""

    slope: Tensor  # (boxes, polytopes, rows, inputs)
    constant: Tensor  # (boxes, polytopes, rows)

    def minimum(self, lower: Tensor, upper: Tensor) -> Tensor:
        """(boxes, polytopes, inputs) twice -> (boxes, polytopes, rows): no plane goes below over these boxes."""
        terms = torch.where(self.slope > 0, self.slope * lower[:, :, None], self.slope * upper[:, :, None])
        size = terms.abs().sum(-1) + self.constant.abs()
        return terms.sum(-1) + self.constant - 2 * gamma(terms.shape[-1] + 1) * size - TINY


def _planes(graph: Graph, known: Boxes, forms: Forms, matrix: Tensor, offset: Tensor) -> _Planes:
    """For every row the plane of a walk back to the input, and that of its form: either may be the better one."""
    rows = matrix.flatten(1, 2)
    found = linear_bound(graph, known, rows)
    slope, constant = found.coefficients.reshape(*offset.shape, -1), found.constant.reshape(offset.shape)
    if graph.output in forms.of:
        other_slope, other_constant = forms.below(graph.entry, graph.output, rows)
        slope = torch.cat([slope, other_slope.reshape(slope.shape)], dim=2)
        constant = torch.cat([constant, other_constant.reshape(constant.shape)], dim=2)
        offset = torch.cat([offset, offset], dim=2)
    return _Planes(slope, constant + offset - 2 * gamma(1) * (constant.abs() + offset.abs()))


@dataclass(frozen=True)
class _Cut:
    """What is left of the boxes."""

    lower: Tensor  # (boxes, inputs)
    upper: Tensor
    open: Tensor  # (boxes, polytopes)
    least: Tensor  # (boxes, polytopes, rows): lower bounds of the rows where the polytope may still be met
    bound: Tensor  # (boxes,)


def _cut(planes: _Planes, lower: Tensor, upper: Tensor, unsettled: Tensor) -> _Cut:
    """Every polytope cuts the box by itself, by all its planes at once; the smallest box around what they leave stays.

    A plane is at least its smallest value plus slope_i times the way of x_i from the end where it is smallest. A failure needs it to
    be at most zero, so that way is at most -least / |slope_i|.
    """
    low, high = (end[:, None].expand(*unsettled.shape, -1) for end in (lower, upper))
    least = planes.minimum(low, high)
    for _ in range(ROUNDS):
        way = -least.unsqueeze(-1).clamp_max(0) / planes.slope.abs() * (1 + 4 * gamma(1)) + TINY
        way = torch.nan_to_num(way, torch.inf, torch.inf)
        most, fewest = _up(low[:, :, None] + way), -_up(way - high[:, :, None])
        high = torch.minimum(high, torch.where(planes.slope > 0, most, torch.inf).amin(2))
        low = torch.maximum(low, torch.where(planes.slope < 0, fewest, -torch.inf).amax(2))
        unsettled = unsettled & (low <= high).all(-1)
        low, high = torch.minimum(low, high), torch.maximum(low, high)  # of what is ruled out nothing is used
        least = planes.minimum(low, high)
        unsettled = unsettled & ~(least.isfinite() & (least > 0)).any(-1)
    bound = torch.where(unsettled, torch.nan_to_num(least, -torch.inf).amax(-1), torch.inf).amin(-1)
    lower = torch.where(unsettled[..., None], low, torch.inf).amin(1)
    upper = torch.where(unsettled[..., None], high, -torch.inf).amax(1)
    return _Cut(lower, upper, unsettled, least, bound)


def _up(value: Tensor) -> Tensor:
    """The next number above: more than one rounding of a sum."""
    return torch.nextafter(value, torch.full_like(value, torch.inf))


def _gains(forms: Forms, graph: Graph, matrix: Tensor, cut: _Cut) -> Tensor:
    """-> (boxes, inputs): what halving each input may win back of what the bounds lost, in shares of what is missing, over all rows."""
    if graph.output not in forms.of:
        return torch.ones_like(cut.lower)
    generators = forms.of[graph.output].generators
    least = torch.stack(cut.least.chunk(2, dim=2)).amax(0)  # of the two planes of each row
    weight = torch.where(cut.open[..., None], 1 / (-least).clamp_min(1e-12), 0)
    effect = (generators @ matrix.flatten(1, 2).transpose(1, 2)).abs() @ weight.flatten(1).unsqueeze(-1)  # (boxes, noises, 1)
    return torch.nan_to_num((forms.share[:, :, : effect.shape[1]] @ effect).squeeze(-1), 0.0, 0.0)


def _halves(boxes: BoxParts, gain: Tensor) -> BoxParts:
    lower, upper = boxes.lower.flatten(1), boxes.upper.flatten(1)
    middle = lower / 2 + upper / 2
    divisible = (lower < middle) & (middle < upper)
    axis = torch.where(divisible, gain, -1.0).argmax(1, keepdim=True)
    chosen = torch.zeros_like(divisible).scatter(1, axis, True)
    ends = torch.where(chosen, middle, upper), torch.where(chosen, middle, lower)
    first, second = (
        replace(boxes, upper=ends[0].reshape(boxes.upper.shape)),
        replace(boxes, lower=ends[1].reshape(boxes.lower.shape)),
    )
    stuck = ~divisible.any(1)
    lost = min(boxes.lost, float(boxes.bound[stuck].min())) if bool(stuck.any()) else boxes.lost
    return replace(batch.concatenate([batch.take(half, ~stuck) for half in (first, second)]), lost=lost)


def _points(boxes: BoxParts, slope: Tensor) -> Points:
    """The middle of every box, and where each plane is lowest."""
    lower, upper = boxes.lower.flatten(1)[:, None], boxes.upper.flatten(1)[:, None]
    corners = torch.where(slope.flatten(1, 2) > 0, lower, upper)
    places = torch.cat([lower / 2 + upper / 2, corners], dim=1)
    each = torch.arange(len(boxes), device=lower.device).repeat_interleave(places.shape[1])
    return Points(places.reshape(-1, *boxes.lower.shape[1:]), boxes.lower[each], boxes.upper[each], boxes.task[each])
