"""Branch and bound by splits of ranges: of pre-activations, and of inputs if the region is a box.

Statement. If the children of every split cover their parent, min over the region of (row . f + offset) is
at least the smallest bound of the open subproblems: {l <= y <= u} is the union of {l <= y <= p} and {p <= y
<= u}.

For networks with curved activations (tanh, sigmoid, the gates of recurrent cells) and for all norms. A
subproblem contains the points at which every pre-activation lies in a given range. A split divides one of
these ranges at a point, and both children cover the subproblem. All ranges are computed again for a
subproblem, by CROWN and, where available, by quadratic models together. Bounds use multipliers of the range
constraints (`multipliers`).

Assumption: a bound of a subproblem holds at every point of the region whose pre-activations lie in its
ranges.

Reference: Shi et al., "Neural network verification with branch-and-bound for general nonlinearities" (GenBaB,
2024).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

import torch
from torch import Tensor

from holdfast import batch, time_limit
from holdfast.bounding.alpha_beta_crown import concatenate_nodes, split_by_node
from holdfast.bounding.branching.multipliers import Least, optimise_multipliers
from holdfast.bounding.branching.preactivation_score import (
    preactivations_of,
    score_by_linear_bounds,
    score_by_quadratic_models,
    split_points,
)
from holdfast.bounding.branching.subproblem_queue import (
    MAX_QUEUE_VALUES,
    BoundedSubproblems,
    Branching,
    CandidatePoints,
    PolytopeQuestion,
    SubproblemQueue,
    all_open,
)
from holdfast.bounding.crown import minimisation_region
from holdfast.bounding.crown_with_fixed_bounds import combine_rows, propagate
from holdfast.bounding.graph.graph import Graph, Node
from holdfast.bounding.node_bounds import Boxes
from holdfast.bounding.quadratic_models import ParabolaCoefficients, Quadratic
from holdfast.memory_budget import free_bytes
from holdfast.property import Avoid
from holdfast.region import Box, Region
from holdfast.rounding import add_rounding_down

# The settings were chosen by hand, unless a comment says otherwise.
PORTIONS_PER_STEP = 8  # Portions of subproblems that are bounded in one step of the search.
# Largest number of values in the models, or backward passes, of one portion; the deadline is checked after
# each.
PORTION_VALUES = {"cpu": 2**23, "cuda": 2**30}
# Splits after which scores are computed again, at the cost of bounding three subproblems.
RESCORING_DEPTH = 8
GAIN_DECAY = 0.5  # The estimated gain of a range that was split falls to this share of itself.
# The first split gains about this share of its estimate (measured on recurrent networks).
REALISED_GAIN_SHARE = 0.75
MAX_SPLITS_AT_ONCE = 5  # Largest number of splits of a subproblem without bounds in between.


@dataclass(frozen=True, eq=False)
class RangeSubproblems(SubproblemQueue):
    """Subproblems given by ranges of every input and every pre-activation."""

    lower: Tensor = field(kw_only=True)  # (n, *shape) float64: ranges of the inputs
    upper: Tensor = field(kw_only=True)
    low: Tensor = field(kw_only=True)  # (n, arguments) float64: ranges of the pre-activations
    high: Tensor = field(kw_only=True)
    cut: Tensor = field(kw_only=True)  # (n, arguments) bool: pre-activations with ranges that were split
    # (n, inputs + arguments): estimated gain of each split; NaN: not computed
    gain: Tensor = field(kw_only=True)
    whole: Tensor = field(kw_only=True)  # (n, inputs + arguments): the estimate over the whole region
    depth: Tensor = field(kw_only=True)  # (n,): number of splits
    first: Tensor = field(kw_only=True)  # (n,): the bound over the whole region
    # (n,): predicted number of descendants, if splits go on to gain as they did
    ahead: Tensor = field(kw_only=True)


@dataclass(frozen=True)
class NonlinearSplit(Branching[RangeSubproblems]):
    """Splits the range with the largest estimated gain.

    `view` holds the quadratic models of the graph and `coefficients` their free coefficients, one row for each row
    of the batch; without them only linear bounds are used.
    """

    waiting: int = 2**14
    view: Quadratic | None = None
    coefficients: ParabolaCoefficients | None = None

    def start(self, graph: Graph, region: Region, rules: Avoid) -> RangeSubproblems:
        lower, upper = region.enclosing_box()
        task = torch.arange(len(region), device=lower.device)
        nothing = torch.full_like(rules.offset[:, 0, 0], -torch.inf)
        count = sum(node.size for node in preactivations_of(graph))
        high = nothing.abs()[:, None].expand(-1, count)
        gain = (nothing * torch.nan)[:, None].expand(-1, graph.entry.size + count)
        return RangeSubproblems(
            task,
            all_open(rules),
            nothing,
            lower=lower,
            upper=upper,
            low=-high,
            high=high,
            cut=high < 0,
            gain=gain,
            whole=gain,
            depth=torch.zeros_like(task),
            first=nothing,
            ahead=torch.ones_like(nothing),
        )

    def at_once(self, question: PolytopeQuestion) -> int:
        return PORTIONS_PER_STEP * self._together(question)

    def most(self, graph: Graph) -> int:
        return min(
            self.waiting,
            MAX_QUEUE_VALUES
            // (3 * (graph.entry.size + sum(node.size for node in preactivations_of(graph)))),
        )

    def bound(
        self, question: PolytopeQuestion, parts: RangeSubproblems
    ) -> BoundedSubproblems[RangeSubproblems]:
        found, order = [], []
        for some in self._portions(question, parts):
            portion = batch.take(parts, some)
            found.append(portion if time_limit.has_expired() else self._bound_ranges(question, portion))
            order.append(some)
        after = batch.take(batch.concatenate(found), torch.cat(order).argsort())
        left = batch.take(after, after.open.any(1))
        middle = (
            left.lower / 2 + left.upper / 2
            if question.region.boxed
            else question.region.centre.double()[left.task]
        )
        points = CandidatePoints(middle, left.lower, left.upper, left.task)
        return BoundedSubproblems(after, after.gain, points)

    def cut(
        self, question: PolytopeQuestion, parts: RangeSubproblems, gain: Tensor
    ) -> tuple[RangeSubproblems, Tensor]:
        """Split as often as predicted to be necessary, without bounding the subproblems in between."""
        times = torch.where(
            _input_gains_most(question, parts) | (parts.depth > 0), _predict_splits(parts), 1
        ).clamp(1, MAX_SPLITS_AT_ONCE)
        done, stuck = _cut_once(question, parts)
        times = torch.cat([times[~stuck], times[~stuck]])
        for turn in range(1, MAX_SPLITS_AT_ONCE):
            again = times >= turn + 1
            if not bool(again.any()):
                break
            twice, whole = _cut_once(question, batch.take(done, again))
            kept = batch.take(done, again)
            done = batch.concatenate([batch.take(done, ~again), twice, batch.take(kept, whole)])
            times = torch.cat(
                [
                    times[~again],
                    times[again][~whole],
                    times[again][~whole],
                    torch.zeros_like(times[again][whole]),
                ]
            )
        return replace(
            done, gain=torch.where((done.depth % RESCORING_DEPTH == 0)[:, None], torch.nan, done.gain)
        ), stuck

    def _together(self, question: PolytopeQuestion) -> int:
        """The number of subproblems that are bounded before the deadline is checked again."""
        graph, device = question.graph, question.graph.device
        nodes = max(node.size for node in graph.nodes)
        numbers = (
            self.view.numbers
            if self.coefficients and self.view
            else sum(node.size for node in preactivations_of(graph)) * nodes
        )
        available = (
            free_bytes(device) // self.view.bytes(training=True)
            if self.coefficients and self.view
            else MAX_QUEUE_VALUES
        )
        return max(1, min(available, PORTION_VALUES[device.type] // max(1, numbers)))

    def _portions(self, question: PolytopeQuestion, parts: RangeSubproblems) -> Iterator[Tensor]:
        """Groups of subproblems with the same perturbed inputs, which models require."""
        kinds = (parts.upper > parts.lower).flatten(1).unique(dim=0, return_inverse=True)[1]
        for kind in kinds.unique():
            yield from (kinds == kind).nonzero().flatten().split(self._together(question))

    def _bound_ranges(self, question: PolytopeQuestion, parts: RangeSubproblems) -> RangeSubproblems:
        graph = question.graph
        region = _region(question, parts)
        nodes = preactivations_of(question.graph)
        matrix, offset = (
            part[parts.task].flatten(1, 2) for part in (question.rules.matrix, question.rules.offset)
        )
        ends = [split_by_node(graph, side, nodes) for side in (parts.low, parts.high)]
        within = {node: (ends[0][node], ends[1][node]) for node in nodes}
        free = {
            node: where for node, where in split_by_node(graph, parts.cut, nodes).items() if bool(where.any())
        }
        ways: list[Least] = []
        if self.coefficients and self.view:
            mine = {key: value[:, parts.task].double() for key, value in self.coefficients.items()}
            models, known, empty = self.view.within(region, mine, within, kept=free)
            ways.append(models.least)
        else:
            known, empty = propagate(graph, region, within=within)
        ways.append(partial(_by_planes, graph, known))
        found = torch.stack(
            [_raise_bounds(way, matrix, offset, graph.output, known, free) for way in ways]
        ).amax(0)
        value = found.reshape(len(parts), *question.rules.offset.shape[1:]).amax(2)
        # an empty subproblem contains no counterexample
        unsettled = parts.open & ~(value > 0) & ~empty[:, None]
        bound = torch.fmax(torch.where(unsettled, value, torch.inf).amin(1), parts.bound)
        first = torch.where(parts.depth == 0, bound, parts.first)
        low, high = (concatenate_nodes(graph, side, nodes) for side in (known.lower, known.upper))
        after = replace(parts, open=unsettled, bound=bound, first=first, low=low, high=high)
        after = self._score_ranges(question, after, known, matrix, offset, found)
        return replace(after, ahead=2 ** _predict_splits(after))

    def _score_ranges(
        self,
        question: PolytopeQuestion,
        parts: RangeSubproblems,
        known: Boxes,
        matrix: Tensor,
        offset: Tensor,
        found: Tensor,
    ) -> RangeSubproblems:
        """Compute the estimated gains of open subproblems where they are not known."""
        unscored = parts.gain.isnan().any(1) & parts.open.any(1)
        if not bool(unscored.any()) or time_limit.has_expired():
            return parts
        # Only the best row of each polytope counts.
        rows = found.reshape(len(parts), *question.rules.offset.shape[1:])
        counted = ((rows == rows.amax(2, keepdim=True)) & parts.open[..., None]).flatten(1)
        if self.coefficients and self.view:
            mine = {key: value[:, parts.task].float() for key, value in self.coefficients.items()}
            inputs, arguments = score_by_quadratic_models(self.view, known, matrix, offset, counted, mine)
            # Trained parabolas cancel each other's curvature, and another range would need another parabola,
            # so splitting pre-activations gains nothing where inputs can be split.
            gains = inputs, torch.zeros_like(arguments) if known.region.boxed else arguments
        else:
            gains = score_by_linear_bounds(question.graph, known, matrix, offset, counted)
        gain = torch.where(unscored[:, None], torch.cat(gains, dim=1), parts.gain)
        return replace(parts, gain=gain, whole=torch.where((parts.depth == 0)[:, None], gain, parts.whole))


def _region(question: PolytopeQuestion, parts: RangeSubproblems) -> Region:
    return (
        Box.between(parts.lower, parts.upper)
        if question.region.boxed
        else batch.take(question.region, parts.task)
    )


def _by_planes(graph: Graph, known: Boxes, rows: Mapping[Node, Tensor], offset: Tensor) -> Tensor:
    planes = combine_rows(
        graph, known, {node: part.reshape(*offset.shape, *node.shape) for node, part in rows.items()}
    )
    return add_rounding_down(planes.minimum(minimisation_region(known)), offset)


def _raise_bounds(
    least: Least, matrix: Tensor, offset: Tensor, output: Node, known: Boxes, free: Mapping[Node, Tensor]
) -> Tensor:
    """(n, rows): the bounds of the rows, with multipliers for ranges that were split; NaN counts as -inf."""
    rows = {output: matrix}
    if not free:
        return torch.nan_to_num(least(rows, offset), -torch.inf, -torch.inf, -torch.inf)
    low, high, which = (
        torch.cat([side[node].flatten(1) for node in free], dim=1)
        for side in (known.lower, known.upper, free)
    )
    return optimise_multipliers(least, rows, offset, list(free), low, high, which)


def _cut_once(question: PolytopeQuestion, parts: RangeSubproblems) -> tuple[RangeSubproblems, Tensor]:
    """Split each subproblem once, all first children before all second children.

    The second result, (n,) bool, marks subproblems that cannot be split.
    """
    low, high = (
        torch.cat([ends.flatten(1), held], dim=1)
        for ends, held in ((parts.lower, parts.low), (parts.upper, parts.high))
    )
    inputs = question.graph.entry.size
    point = torch.cat([(low / 2 + high / 2)[:, :inputs], split_points(low, high)[:, inputs:]], dim=1)
    divisible = (low < point) & (point < high) & point.isfinite()
    if not question.region.boxed:
        divisible[:, :inputs] = False
    place = torch.where(divisible, torch.nan_to_num(parts.gain, 0.0), -torch.inf).argmax(1, keepdim=True)
    here = point.gather(1, place)
    held = torch.zeros_like(divisible).scatter(1, place, True)[:, inputs:]
    left = parts.gain.scatter(1, place, GAIN_DECAY * parts.gain.gather(1, place))
    parts = replace(parts, gain=left, cut=parts.cut | held, depth=parts.depth + 1, ahead=parts.ahead / 2)
    cut, halves = divisible.any(1), []
    for ends in ((low, high.scatter(1, place, here)), (low.scatter(1, place, here), high)):
        (lower, below), (upper, above) = (end.split([inputs, end.shape[1] - inputs], dim=1) for end in ends)
        box = {"lower": lower.reshape(parts.lower.shape), "upper": upper.reshape(parts.upper.shape)}
        halves.append(batch.take(replace(parts, **box, low=below, high=above), cut))
    return batch.concatenate(halves), ~cut


def _input_gains_most(question: PolytopeQuestion, parts: RangeSubproblems) -> Tensor:
    """(n,) bool: where an input has the largest gain; its estimates are more reliable than others."""
    return torch.nan_to_num(parts.gain, 0.0).argmax(1) < question.graph.entry.size


def _predict_splits(parts: RangeSubproblems) -> Tensor:
    """(n,): the predicted number of further splits of each subproblem.

    Splits are expected to raise the bound by as much as they did on average since the whole region; at first,
    by their estimate.
    """
    promised = REALISED_GAIN_SHARE * parts.gain.nan_to_num(0.0).amax(1)
    gain = torch.where(parts.depth > 0, (parts.bound - parts.first) / parts.depth.clamp_min(1), promised)
    levels = torch.where(parts.bound < 0, -parts.bound / gain.clamp_min(1e-9), 0)
    return torch.nan_to_num(levels, 60.0).clamp(0, 60)
