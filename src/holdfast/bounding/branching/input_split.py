"""Branch and bound by input splits: open boxes are shrunk to where counterexamples may be, then halved.

A counterexample is a point of the box with an output in one of the polytopes of `Avoid`: all rows of the
polytope are at most zero there.

Statement. With linear lower bounds L_r(x) = slope_r . x + constant_r <= row_r . output + offset_r over a
box B,

    max over r of min over B of L_r > 0   implies   no counterexample of this polytope in B,
    every counterexample x of B has       slope_r . x + constant_r <= 0   for all rows r of some polytope. So

- a polytope with a row that is positive over the box is excluded on this box and on all boxes inside it;
- where such a linear bound is positive there is no counterexample, so the box shrinks to the part that the
  linear bounds of the open polytopes leave;
- boxes with few unstable neurons have their slopes optimised (alpha-CROWN) before they are split;
- open boxes are halved along the input to which most of the bounds' loss is attributed (`Forms.share`), or, where
  interval arithmetic bounds the neurons (`intervals`), along which the linear bounds change most over the box.

The halves cover the box, so once none is left there is no counterexample. All bounds hold in float64 with
rounding errors included.

Assumption: the region is its enclosing box, or contained in it.

Reference: Wang et al., "Formal security analysis of neural networks using symbolic intervals" (ReluVal,
2018), for input splits.
"""

from abc import abstractmethod
from dataclasses import dataclass, field, replace
from typing import ClassVar, Generic, TypeVar

import torch
from torch import Tensor

from holdfast import batch, time_limit
from holdfast.bounding.alpha_beta_crown import concatenate_nodes, relu_preactivations
from holdfast.bounding.branching.subproblem_queue import (
    MAX_QUEUE_VALUES,
    BoundedSubproblems,
    Branching,
    CandidatePoints,
    PolytopeQuestion,
    SearchSettings,
    SubproblemQueue,
    SubproblemSearch,
    all_open,
)
from holdfast.bounding.crown import linear_bound
from holdfast.bounding.crown_with_fixed_bounds import propagate
from holdfast.bounding.graph.graph import Graph, Relaxed
from holdfast.bounding.input_forms import InputForms, is_wide, moving_inputs, varies_little
from holdfast.bounding.node_bounds import Boxes
from holdfast.bounding.zonotope import Forms
from holdfast.derivations import (
    BOX_CORNER,
    FEW_OPERATIONS,
)
from holdfast.property import Avoid
from holdfast.region import Box, Region
from holdfast.rounding import TINY, add_rounding_down, charge, round_up

SHRINK_ROUNDS = 3  # Number of times that a box is shrunk; further rounds gain next to nothing.
# The settings of alpha-CROWN were chosen by hand; it was introduced for the ACAS Xu properties.
MAX_UNSTABLE_FOR_TRAINING = 16  # Largest number of unstable neurons of a box for which slopes are optimised.
# Number of boxes in the first batch, which shows whether the optimisation decides boxes.
FIRST_TRAINED_BOXES = 8
MAX_TRAINED_BOXES = 128  # Largest number of boxes in a batch.
NUM_STEPS = 20  # Adam steps.
# Largest number of generator values at one node of a wide network, for a box and for a batch of boxes (tuned on cgan of
# `benchmarks.lipschitz practice`: symbols decide boxes, batches gain little).
WIDE_VALUES, WIDE_BATCH_VALUES = 2**24, 2**25
# Symbols of errors that a box needs, about, where most inputs are fixed: few neurons are then unstable (chosen by hand).
FEW_SYMBOLS = 128
# Largest number of varying inputs of a box for which interval arithmetic and one backward pass bound it, if most inputs
# are fixed: affine forms take about fifty times as long for a box there (`benchmarks.lipschitz practice --only mscn_128d`,
# the only network on which this was measured), which a few more halvings make up for.
FEWEST_INPUTS = 3
LEARNING_RATE = 0.2  # Adam's first learning rate, which decreases linearly to zero.
Q = TypeVar("Q", bound=SearchSettings)
P = TypeVar("P", bound="BoxSubproblems")


@dataclass(frozen=True, eq=False)
class BoxSubproblems(SubproblemQueue):
    """Subproblems that are boxes of inputs."""

    lower: Tensor = field(kw_only=True)  # (n, *shape) float64
    upper: Tensor = field(kw_only=True)


class Halving(SubproblemSearch[Q, P], Generic[Q, P]):
    """Halves each box along the input with the largest gain, independent of the bounding method."""

    @abstractmethod
    def bound(self, question: Q, parts: P) -> BoundedSubproblems[P]:
        """Bound the boxes; gain (n, inputs) estimates what halving each input may gain."""

    # Halves are halved again up to this number of boxes, which take about as long to bound as one. At most a
    # 32nd of a batch.
    few: ClassVar[int] = 0

    def cut(self, question: Q, parts: P, gain: Tensor) -> tuple[P, Tensor]:
        halves, gain, cut = _halve_boxes(parts, gain)
        while 0 < len(halves) <= min(self.few, self.at_once(question) // 32):
            again, gain_again, whole = _halve_boxes(halves, gain)
            if not bool(whole.all()):  # some box cannot be halved any more
                break
            halves, gain = again, gain_again
        return halves, ~cut


def _halve_boxes(parts: P, gain: Tensor) -> tuple[P, Tensor, Tensor]:
    """Halve all boxes that can be halved.

    Returns the halves, their gains, and (n,) bool: which boxes were halved.
    """
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
class InputSplit(Halving[PolytopeQuestion, BoxSubproblems], Branching[BoxSubproblems]):
    """Input splits with CROWN and zonotopes: for networks with few inputs."""

    few: ClassVar[int] = 16

    batch: int = 512
    # Refine intermediate bounds by backward passes; without them zonotopes alone bound the neurons, in about
    # half of the time.
    walks: bool = True
    waiting: int = 2**18
    elements: int = 2**23  # largest number of float64 values in the affine forms of one batch of boxes
    # Bound neurons by interval arithmetic alone: for boxes in which few inputs vary, which become small soon.
    intervals: bool = False

    def start(self, graph: Graph, region: Region, rules: Avoid) -> BoxSubproblems:
        lower, upper = region.enclosing_box()
        task = torch.arange(len(lower), device=lower.device)
        return BoxSubproblems(
            task,
            all_open(rules),
            torch.full_like(rules.offset[:, 0, 0], -torch.inf),
            lower=lower,
            upper=upper,
        )

    def at_once(self, question: PolytopeQuestion) -> int:
        """The number of boxes in a batch, limited by the size of their affine forms."""
        graph = question.graph
        if self.intervals:
            return max(1, min(self.batch, self.elements // sum(node.size for node in graph.nodes)))
        widest, symbols = max(node.size for node in graph.nodes), count_noise_symbols(graph)
        if is_wide(graph):
            return max(1, min(self.batch, WIDE_BATCH_VALUES // min(widest * symbols, WIDE_VALUES)))
        lower, upper = question.region.enclosing_box()
        if varies_little(lower, upper):
            symbols = min(symbols, moving_inputs(lower, upper) + FEW_SYMBOLS)
        return max(1, min(self.batch, self.elements // (widest * symbols)))

    def most(self, graph: Graph) -> int:
        return min(self.waiting, MAX_QUEUE_VALUES // graph.entry.size)

    def bound(self, question: PolytopeQuestion, parts: BoxSubproblems) -> BoundedSubproblems[BoxSubproblems]:
        graph, rules = question.graph, question.rules
        wide = is_wide(graph)
        forms: Forms | None
        if self.intervals:
            forms = None
        elif wide or varies_little(parts.lower, parts.upper):
            values = WIDE_VALUES if wide else WIDE_BATCH_VALUES // len(parts)
            forms = InputForms(graph, parts.lower, parts.upper, values)
        else:
            forms = Forms.over(graph.entry, parts.lower, parts.upper)
        walks = self.walks and not wide and not self.intervals
        known, _ = propagate(graph, Box.between(parts.lower, parts.upper), forms, walks=walks)
        matrix, offset = rules.matrix[parts.task], rules.offset[parts.task]
        planes = _planes(graph, known, forms, matrix, offset)
        cut = shrink_box(planes, parts.lower.flatten(1), parts.upper.flatten(1), parts.open)
        share = (cut.upper - cut.lower) / (parts.upper - parts.lower).flatten(1)
        if forms is None:
            gain = torch.nan_to_num(planes.slope.abs().amax((1, 2)) * (cut.upper - cut.lower), 0.0, 0.0, 0.0)
        else:
            gain = _gains(forms, graph, matrix, cut) * torch.nan_to_num(share, 0.0)
        lower, upper = (end.reshape(parts.lower.shape) for end in (cut.lower, cut.upper))
        smaller = replace(parts, open=cut.open, bound=cut.bound, lower=lower, upper=upper)
        smaller = replace(smaller, open=_train_open_boxes(question, known, smaller)) if walks else smaller
        left = smaller.open.any(1)
        return BoundedSubproblems(
            smaller,
            gain,
            candidate_points(batch.take(smaller, left), planes.slope[left, :, : offset.shape[2]]),
        )


@torch.no_grad()
def _train_open_boxes(question: PolytopeQuestion, known: Boxes, parts: BoxSubproblems) -> Tensor:
    """(boxes, polytopes) bool: what remains open after slopes were optimised (alpha-CROWN).

    Where few neurons are unstable, CROWN's slopes need many halvings to decide a box, while an optimisation
    takes as long as a few halvings. The boxes nearest to being decided are tried first, and further ones as
    long as at least a third of them is decided.
    """
    graph = question.graph
    rules = question.rules
    open_ = parts.open
    if not relu_preactivations(graph):
        return open_
    undecided = (
        (concatenate_nodes(graph, known.lower) < 0) & (concatenate_nodes(graph, known.upper) > 0)
    ).sum(1)
    pairs = (open_ & (undecided <= MAX_UNSTABLE_FOR_TRAINING)[:, None]).nonzero()
    pairs, open_ = pairs[parts.bound[pairs[:, 0]].argsort(descending=True, stable=True)], open_.clone()
    count = FIRST_TRAINED_BOXES
    while len(pairs) and not time_limit.has_expired():
        (part, polytope), pairs = pairs[:count].unbind(1), pairs[count:]
        task = parts.task[part]
        none = rules.offset.new_zeros((len(part), sum(node.size for node in relu_preactivations(graph))))
        row_task = question.rows_of(known, part, task, polytope, none)
        settled = row_task.train(none * torch.nan, none, NUM_STEPS, LEARNING_RATE).least > 0
        open_[part, polytope] = ~settled
        if 3 * int(settled.sum()) < len(part):
            break
        count = min(4 * count, MAX_TRAINED_BOXES)
    return open_


def fixes_most_inputs(lower: Tensor, upper: Tensor) -> bool:
    """Whether most inputs are fixed, and at most FEWEST_INPUTS vary in any box."""
    return varies_little(lower, upper) and moving_inputs(lower, upper) <= FEWEST_INPUTS


def count_noise_symbols(graph: Graph) -> int:
    """The largest number of noise symbols of a graph."""
    return graph.entry.size + sum(node.size for node in graph.nodes if isinstance(node, Relaxed))


@dataclass(frozen=True)
class BoxLinearBounds:
    """Linear lower bounds over boxes, one for each row of each polytope.

    slope . x + constant <= row . output + offset for every x of the box.
    """

    slope: Tensor  # (boxes, polytopes, rows, inputs)
    constant: Tensor  # (boxes, polytopes, rows)

    def minimum(self, lower: Tensor, upper: Tensor) -> Tensor:
        """(boxes, polytopes, inputs) twice -> (boxes, polytopes, rows): lower bounds over these boxes."""
        terms = torch.where(self.slope > 0, self.slope * lower[:, :, None], self.slope * upper[:, :, None])
        size = terms.abs().sum(-1) + self.constant.abs()
        return terms.sum(-1) + self.constant - charge(size, BOX_CORNER, terms.shape[-1] + 1)


def _planes(
    graph: Graph, known: Boxes, forms: Forms | None, matrix: Tensor, offset: Tensor
) -> BoxLinearBounds:
    """Linear bounds of every row by CROWN, and by its affine form if there is one; either may be the better one."""
    rows = matrix.flatten(1, 2)
    found = linear_bound(graph, known, rows)
    slope, constant = found.coefficients.reshape(*offset.shape, -1), found.constant.reshape(offset.shape)
    if forms is not None and graph.output in forms.of:
        other_slope, other_constant = forms.linear_lower_bound(graph.entry, graph.output, rows)
        slope = torch.cat([slope, other_slope.reshape(slope.shape)], dim=2)
        constant = torch.cat([constant, other_constant.reshape(constant.shape)], dim=2)
        offset = torch.cat([offset, offset], dim=2)
    return BoxLinearBounds(slope, add_rounding_down(constant, offset))


@dataclass(frozen=True)
class ShrunkBoxes:
    """Boxes after shrinking."""

    lower: Tensor  # (boxes, inputs)
    upper: Tensor
    open: Tensor  # (boxes, polytopes)
    least: Tensor  # (boxes, polytopes, rows): lower bounds of the rows of open polytopes
    bound: Tensor  # (boxes,)


def shrink_box(
    planes: BoxLinearBounds, lower: Tensor, upper: Tensor, unsettled: Tensor, known: Tensor | None = None
) -> ShrunkBoxes:
    """Shrink boxes to the parts in which their open polytopes may be reached.

    Every polytope shrinks the box by all its linear bounds at once; the result is the smallest box around
    what all polytopes leave. A linear bound at x is at least its minimum over the box plus |slope_i| times
    the distance of x_i from the endpoint at which it is minimal. At a counterexample it is at most zero, so
    that distance is at most -minimum / |slope_i|.

    Args:
        known: (boxes, polytopes, rows), further lower bounds of the rows over the whole box.
    """
    low, high = (end[:, None].expand(*unsettled.shape, -1) for end in (lower, upper))
    least = planes.minimum(low, high)
    if known is not None:
        unsettled = unsettled & ~(known > 0).any(-1)
    for _ in range(SHRINK_ROUNDS):
        way = -least.unsqueeze(-1).clamp_max(0) / planes.slope.abs()
        way = round_up(way, FEW_OPERATIONS) + TINY
        way = torch.nan_to_num(way, torch.inf, torch.inf)
        most, fewest = _up(low[:, :, None] + way), -_up(way - high[:, :, None])
        high = torch.minimum(high, torch.where(planes.slope > 0, most, torch.inf).amin(2))
        low = torch.maximum(low, torch.where(planes.slope < 0, fewest, -torch.inf).amax(2))
        unsettled = unsettled & (low <= high).all(-1)
        # reorders excluded boxes only, which are not used
        low, high = torch.minimum(low, high), torch.maximum(low, high)
        least = planes.minimum(low, high)
        unsettled = unsettled & ~(least.isfinite() & (least > 0)).any(-1)
    least = least if known is None else torch.fmax(least, known)
    bound = torch.where(unsettled, torch.nan_to_num(least, -torch.inf).amax(-1), torch.inf).amin(-1)
    lower = torch.where(unsettled[..., None], low, torch.inf).amin(1)
    upper = torch.where(unsettled[..., None], high, -torch.inf).amax(1)
    return ShrunkBoxes(lower, upper, unsettled, least, bound)


def _up(value: Tensor) -> Tensor:
    """The next larger floating-point number: covers the rounding error of a sum."""
    return torch.nextafter(value, torch.full_like(value, torch.inf))


def _gains(forms: Forms, graph: Graph, matrix: Tensor, cut: ShrunkBoxes) -> Tensor:
    """(boxes, inputs): the estimated gain of halving each input, relative to what the rows' bounds lack."""
    if graph.output not in forms.of:
        return torch.ones_like(cut.lower)
    generators = forms.of[graph.output].generators
    least = torch.stack(cut.least.chunk(2, dim=2)).amax(0)  # the better of CROWN and the affine form
    weight = torch.where(cut.open[..., None], 1 / (-least).clamp_min(1e-12), 0)
    # (boxes, noise symbols, 1)
    effect = (generators @ matrix.flatten(1, 2).transpose(1, 2)).abs() @ weight.flatten(1).unsqueeze(-1)
    return torch.nan_to_num(forms.attribute(effect), 0.0, 0.0)


def candidate_points(boxes: BoxSubproblems, slope: Tensor) -> CandidatePoints:
    """Candidate points: the centre of every box, and the minimiser of each linear bound."""
    lower, upper = boxes.lower.flatten(1)[:, None], boxes.upper.flatten(1)[:, None]
    corners = torch.where(slope.flatten(1, 2) > 0, lower, upper)
    places = torch.cat([lower / 2 + upper / 2, corners], dim=1)
    each = torch.arange(len(boxes), device=lower.device).repeat_interleave(places.shape[1])
    return CandidatePoints(
        places.reshape(-1, *boxes.lower.shape[1:]), boxes.lower[each], boxes.upper[each], boxes.task[each]
    )
