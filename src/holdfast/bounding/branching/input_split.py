"""Branch and bound over the input: a box that is not settled by its bounds is cut down to where a failure could be, then halved.

A failure is a point of the box whose output lies in one of the polytopes of `Avoid`. Over every box each row of each polytope has a
linear function of the input below it, so

- a polytope with a row that stays positive is ruled out on this box, and on all boxes inside it;
- where such a function is positive there is no failure: the box shrinks to what the functions of the other polytopes leave;
- where few functions are undecided, slopes are trained for the box (alpha-CROWN) before it is cut further;
- what is left is halved along the input that is behind most of what the bounds lost (`Forms.share`).

The halves cover the box, so once none is left no failure exists. Every bound holds in float64 with its roundings paid for.
"""

from abc import abstractmethod
from dataclasses import dataclass, field, replace
from typing import ClassVar, Generic, TypeVar

import torch
from torch import Tensor

from holdfast import batch, time_limit
from holdfast.bounding.alpha_beta_crown import RowTask, arguments, together
from holdfast.bounding.branching.subproblem_queue import (
    NUMBERS,
    Branching,
    Frontier,
    Points,
    PolytopeQuestion,
    SearchSettings,
    Seen,
    SubproblemSearch,
    all_open,
)
from holdfast.bounding.crown import linear_bound
from holdfast.bounding.crown_with_fixed_bounds import propagate, take_rows
from holdfast.bounding.graph.graph import Graph, Relaxed
from holdfast.bounding.node_bounds import Boxes
from holdfast.bounding.zonotope import Forms
from holdfast.property import Avoid
from holdfast.region import Box, Region
from holdfast.rounding import TINY, gamma

ROUNDS = 3  # of cutting a box down; later ones find next to nothing
UNDECIDED = 16  # functions of a box, up to which slopes are trained for it
TRIAL, MOST = 8, 128  # boxes for which they are: at first, and together
STEPS, PACE = 20, 0.2
Q = TypeVar("Q", bound=SearchSettings)
P = TypeVar("P", bound="BoxParts")


@dataclass(frozen=True, eq=False)
class BoxParts(Frontier):
    """Boxes of inputs."""

    lower: Tensor = field(kw_only=True)  # (n, *shape) float64
    upper: Tensor = field(kw_only=True)


class Halving(SubproblemSearch[Q, P], Generic[Q, P]):
    """Each box in two along the input that promises most, whatever bounds it."""

    @abstractmethod
    def bound(self, question: Q, parts: P) -> Seen[P]:
        """gain (n, inputs): what halving each of them may win."""

    few: ClassVar[int] = (
        0  # parts up to which halves are halved again: so many take as long to bound as one; never most of a batch
    )

    def cut(self, question: Q, parts: P, gain: Tensor) -> tuple[P, Tensor]:
        halves, gain, cut = _halve_boxes(parts, gain)
        while 0 < len(halves) <= min(self.few, self.at_once(question) // 32):
            again, gain_again, whole = _halve_boxes(halves, gain)
            if not bool(whole.all()):  # what cannot be halved stays as it is
                break
            halves, gain = again, gain_again
        return halves, ~cut


def _halve_boxes(parts: P, gain: Tensor) -> tuple[P, Tensor, Tensor]:
    """-> the halves of all parts that can be halved, what halving them again may win, and (n,) bool: which these parts are."""
    lower, upper = parts.lower.flatten(1), parts.upper.flatten(1)
    middle = lower / 2 + upper / 2
    divisible = (lower < middle) & (middle < upper)
    axis = torch.where(divisible, gain, -1.0).argmax(1, keepdim=True)
    chosen = torch.zeros_like(divisible).scatter(1, axis, True)
    first = replace(parts, upper=torch.where(chosen, middle, upper).reshape(parts.upper.shape))
    second = replace(parts, lower=torch.where(chosen, middle, lower).reshape(parts.lower.shape))
    cut = divisible.any(1)
    left = torch.where(chosen, gain / 2, gain)[cut]
    return (
        batch.concatenate([batch.take(half, cut) for half in (first, second)]),
        torch.cat([left, left]),
        cut,
    )


@dataclass(frozen=True)
class InputSplit(Halving[PolytopeQuestion, BoxParts], Branching[BoxParts]):
    """Halves of boxes: for networks with few inputs."""

    few: ClassVar[int] = 16

    batch: int = 512
    walks: bool = (
        True  # back from every neuron; without them, forms alone bound the neurons, for about half the time
    )
    waiting: int = 2**18
    elements: int = 2**23  # float64 numbers in the forms of one batch of boxes

    def start(self, graph: Graph, region: Region, rules: Avoid) -> BoxParts:
        lower, upper = region.enclosing_box()
        task = torch.arange(len(lower), device=lower.device)
        return BoxParts(
            task,
            all_open(rules),
            torch.full_like(rules.offset[:, 0, 0], -torch.inf),
            lower=lower,
            upper=upper,
        )

    def at_once(self, question: PolytopeQuestion) -> int:
        """Forms hold a number for each node and each noise."""
        graph = question.graph
        return max(
            1, min(self.batch, self.elements // (max(node.size for node in graph.nodes) * noises(graph)))
        )

    def most(self, graph: Graph) -> int:
        return min(self.waiting, NUMBERS // graph.entry.size)

    def bound(self, question: PolytopeQuestion, parts: BoxParts) -> Seen[BoxParts]:
        graph, rules = question.graph, question.rules
        forms = Forms.over(graph.entry, parts.lower, parts.upper)
        known, _ = propagate(graph, Box.between(parts.lower, parts.upper), forms, walks=self.walks)
        matrix, offset = rules.matrix[parts.task], rules.offset[parts.task]
        planes = _planes(graph, known, forms, matrix, offset)
        cut = shrink_box(planes, parts.lower.flatten(1), parts.upper.flatten(1), parts.open)
        share = (cut.upper - cut.lower) / (parts.upper - parts.lower).flatten(1)
        gain = _gains(forms, graph, matrix, cut) * torch.nan_to_num(share, 0.0)
        lower, upper = (end.reshape(parts.lower.shape) for end in (cut.lower, cut.upper))
        smaller = replace(parts, open=cut.open, bound=cut.bound, lower=lower, upper=upper)
        smaller = (
            replace(smaller, open=_train_open_boxes(question, known, smaller)) if self.walks else smaller
        )
        left = smaller.open.any(1)
        return Seen(
            smaller,
            gain,
            candidate_points(batch.take(smaller, left), planes.slope[left, :, : offset.shape[2]]),
        )


@torch.no_grad()
def _train_open_boxes(question: PolytopeQuestion, known: Boxes, parts: BoxParts) -> Tensor:
    """-> (boxes, polytopes) bool: what is left open by slopes that are trained (alpha-CROWN), as bounds of activations are.

    Where few functions are undecided, a box is halved many times before the planes that these choose by themselves settle it; training
    takes as long as a few halves. The boxes nearest to being settled are tried first, and others while that goes well.
    """
    graph, rules, open_ = question.graph, question.rules, parts.open
    if not arguments(graph):
        return open_
    undecided = ((together(graph, known.lower) < 0) & (together(graph, known.upper) > 0)).sum(1)
    pairs = (open_ & (undecided <= UNDECIDED)[:, None]).nonzero()
    pairs, open_ = pairs[parts.bound[pairs[:, 0]].argsort(descending=True, stable=True)], open_.clone()
    count = TRIAL
    while len(pairs) and not time_limit.has_expired():
        (part, polytope), pairs = pairs[:count].unbind(1), pairs[count:]
        task, none = (
            parts.task[part],
            rules.offset.new_zeros((len(part), sum(node.size for node in arguments(graph)))),
        )
        asked = RowTask(
            graph,
            take_rows(known, part),
            graph.output,
            rules.matrix[task, polytope],
            rules.offset[task, polytope],
            none,
        )
        settled = asked.train(none * torch.nan, none, STEPS, PACE).least > 0
        open_[part, polytope] = ~settled
        if 3 * int(settled.sum()) < len(part):
            break
        count = min(4 * count, MOST)
    return open_


def noises(graph: Graph) -> int:
    """Of the forms of a graph."""
    return graph.entry.size + sum(node.size for node in graph.nodes if isinstance(node, Relaxed))


@dataclass(frozen=True)
class BoxPlanes:
    """slope . x + constant <= row . output + offset over the box, for each row of each polytope."""

    slope: Tensor  # (boxes, polytopes, rows, inputs)
    constant: Tensor  # (boxes, polytopes, rows)

    def minimum(self, lower: Tensor, upper: Tensor) -> Tensor:
        """(boxes, polytopes, inputs) twice -> (boxes, polytopes, rows): no plane goes below over these boxes."""
        terms = torch.where(self.slope > 0, self.slope * lower[:, :, None], self.slope * upper[:, :, None])
        size = terms.abs().sum(-1) + self.constant.abs()
        return terms.sum(-1) + self.constant - 2 * gamma(terms.shape[-1] + 1) * size - TINY


def _planes(graph: Graph, known: Boxes, forms: Forms, matrix: Tensor, offset: Tensor) -> BoxPlanes:
    """For every row the plane of a walk back to the input, and that of its form: either may be the better one."""
    rows = matrix.flatten(1, 2)
    found = linear_bound(graph, known, rows)
    slope, constant = found.coefficients.reshape(*offset.shape, -1), found.constant.reshape(offset.shape)
    if graph.output in forms.of:
        other_slope, other_constant = forms.below(graph.entry, graph.output, rows)
        slope = torch.cat([slope, other_slope.reshape(slope.shape)], dim=2)
        constant = torch.cat([constant, other_constant.reshape(constant.shape)], dim=2)
        offset = torch.cat([offset, offset], dim=2)
    return BoxPlanes(slope, constant + offset - 2 * gamma(1) * (constant.abs() + offset.abs()))


@dataclass(frozen=True)
class Cut:
    """What is left of the boxes."""

    lower: Tensor  # (boxes, inputs)
    upper: Tensor
    open: Tensor  # (boxes, polytopes)
    least: Tensor  # (boxes, polytopes, rows): lower bounds of the rows where the polytope may still be met
    bound: Tensor  # (boxes,)


def shrink_box(
    planes: BoxPlanes, lower: Tensor, upper: Tensor, unsettled: Tensor, known: Tensor | None = None
) -> Cut:
    """Every polytope cuts the box by itself, by all its planes at once; the smallest box around what they leave stays.

    known (boxes, polytopes, rows): what else is below the rows over the whole box, if anything is.

    A plane is at least its smallest value plus slope_i times the way of x_i from the end where it is smallest. A failure needs it to
    be at most zero, so that way is at most -least / |slope_i|.
    """
    low, high = (end[:, None].expand(*unsettled.shape, -1) for end in (lower, upper))
    least = planes.minimum(low, high)
    if known is not None:
        unsettled = unsettled & ~(known > 0).any(-1)
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
    least = least if known is None else torch.fmax(least, known)
    bound = torch.where(unsettled, torch.nan_to_num(least, -torch.inf).amax(-1), torch.inf).amin(-1)
    lower = torch.where(unsettled[..., None], low, torch.inf).amin(1)
    upper = torch.where(unsettled[..., None], high, -torch.inf).amax(1)
    return Cut(lower, upper, unsettled, least, bound)


def _up(value: Tensor) -> Tensor:
    """The next number above: more than one rounding of a sum."""
    return torch.nextafter(value, torch.full_like(value, torch.inf))


def _gains(forms: Forms, graph: Graph, matrix: Tensor, cut: Cut) -> Tensor:
    """-> (boxes, inputs): what halving each input may win back of what the bounds lost, in shares of what is missing, over all rows."""
    if graph.output not in forms.of:
        return torch.ones_like(cut.lower)
    generators = forms.of[graph.output].generators
    least = torch.stack(cut.least.chunk(2, dim=2)).amax(0)  # of the two planes of each row
    weight = torch.where(cut.open[..., None], 1 / (-least).clamp_min(1e-12), 0)
    effect = (generators @ matrix.flatten(1, 2).transpose(1, 2)).abs() @ weight.flatten(1).unsqueeze(
        -1
    )  # (boxes, noises, 1)
    return torch.nan_to_num((forms.share[:, :, : effect.shape[1]] @ effect).squeeze(-1), 0.0, 0.0)


def candidate_points(boxes: BoxParts, slope: Tensor) -> Points:
    """The middle of every box, and where each plane is lowest."""
    lower, upper = boxes.lower.flatten(1)[:, None], boxes.upper.flatten(1)[:, None]
    corners = torch.where(slope.flatten(1, 2) > 0, lower, upper)
    places = torch.cat([lower / 2 + upper / 2, corners], dim=1)
    each = torch.arange(len(boxes), device=lower.device).repeat_interleave(places.shape[1])
    return Points(
        places.reshape(-1, *boxes.lower.shape[1:]), boxes.lower[each], boxes.upper[each], boxes.task[each]
    )
