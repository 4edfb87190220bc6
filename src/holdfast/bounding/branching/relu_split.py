"""Branch and bound by splits of unstable ReLU-like neurons: active in one child, inactive in the other.

Statement. {z_i >= 0} and {z_i <= 0} cover a subproblem, so min over the region of (row . f + offset) is at
least the smallest bound of the open subproblems.

For networks with many inputs, with boxes that cannot be halved often enough. A subproblem is a list of
decided signs of pre-activations. Over it all intermediate bounds are computed again, then slopes and
multipliers are optimised for every polytope (`alpha_beta_crown`). Both signs of a pre-activation cover the
subproblem. Before the first split the intermediate bounds of the region are optimised, then refined by small
branch-and-bound searches of their own (`intermediate_refinement`). If the region is a box, a
subproblem without unstable neurons is solved exactly (`leaf_linear_program`).

Assumption: split activations have a single kink, at zero.

References: Bunel et al., "Branch and bound for piecewise linear neural network verification" (2020); Wang et
al. (beta-CROWN, 2021).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial

import torch
from torch import Tensor

from holdfast import batch, time_limit
from holdfast.bounding.alpha_beta_crown import (
    RowTask,
    TrainedBounds,
    concatenate_nodes,
    relu_preactivations,
    split_by_node,
    tighten_intermediate_bounds,
)
from holdfast.bounding.branching.intermediate_refinement import refine_intermediate_bounds
from holdfast.bounding.branching.leaf_linear_program import solve
from holdfast.bounding.branching.split_score import neuron_costs
from holdfast.bounding.branching.subproblem_queue import (
    MAX_QUEUE_VALUES,
    BoundedSubproblems,
    Branching,
    CandidatePoints,
    PolytopeQuestion,
    SubproblemQueue,
    all_open,
    count_within_capacity,
)
from holdfast.bounding.crown_with_fixed_bounds import propagate
from holdfast.bounding.graph.graph import Graph, Node
from holdfast.bounding.input_forms import InputForms, is_wide, moving_inputs
from holdfast.bounding.node_bounds import IntervalBounds
from holdfast.memory_budget import free_bytes
from holdfast.property import Avoid
from holdfast.region import Region

# The settings were chosen by hand, unless a comment says otherwise.
# A subproblem that cannot be split further is optimised for this many times as many steps.
LEAF_STEPS_FACTOR = 8
CPU_PAIRS = 216  # Number of pairs of a subproblem and a polytope that are bounded together on a CPU.
# The same on a GPU, if they fit in memory. On an H200 and `benchmarks.lipschitz mnist_fc` this bounds about
# 5,000 subproblems per second, 2^12 pairs 550 (benchmarks/RESULTS.md).
MAX_GPU_PAIRS = 2**16
# Float64 values for each element of the graph that are alive while a pair is bounded, for planning memory.
VALUES_PER_ELEMENT = 64
# Share of the remaining time for the optimisation of intermediate bounds where none are refined: it bounds all layers again
# for each layer, which takes a minute for a residual network.
EARLY_TIGHTENING_TIME_SHARE = 0.2
REFINEMENT_TIME_SHARE = 0.9  # Share of the remaining time for the refinement of intermediate bounds.
MAX_FORM_INPUTS = 32  # Most perturbed inputs of a wide network with affine forms at the start.
# Number of pairs, those with the lowest bounds, for which candidate points of counterexamples are returned.
MAX_CANDIDATE_PAIRS = 2**11


@dataclass(frozen=True, eq=False)
class SignSubproblems(SubproblemQueue):
    """Subproblems given by decided signs and bounds of every pre-activation of a ReLU-like activation."""

    sign: Tensor = field(kw_only=True)  # (n, arguments) int8: +1 or -1 for decided signs, else 0
    lower: Tensor = field(kw_only=True)  # (n, arguments) float64: intermediate bounds in this subproblem
    upper: Tensor = field(kw_only=True)
    slope: Tensor = field(kw_only=True)  # (n, arguments) float32: initial slopes; NaN: CROWN's
    multiplier: Tensor = field(kw_only=True)  # (n, arguments) float32
    tight: Tensor = field(
        kw_only=True
        # (n,) int64: 1 once intermediate bounds are optimised, 2 once they are also refined; both precede the
        # first split
    )
    first: Tensor = field(kw_only=True)  # (n,): the bound over the whole region
    # (n,): predicted number of descendants, if splits go on to gain as they did
    ahead: Tensor = field(kw_only=True)


@dataclass(frozen=True)
class ActivationSplit(Branching[SignSubproblems]):
    """Splits the neuron whose linear bounds cost the bound most.

    With `refine`, intermediate bounds are computed again for every subproblem, and the choice of the neuron
    counts its effect on them. Without it they stay those of the whole region, which takes a tenth of the time
    and needs more subproblems.
    """

    # pairs of a subproblem and a polytope that are bounded together; default: what the device can hold
    batch: int | None = None
    waiting: int = 2**14
    steps: int = 20  # Adam steps
    pace: float = 0.2
    refine: bool = True
    # neurons with intermediate bounds to optimise before the first split, the costliest ones; None: all
    ends: int | None = None
    # passes of `intermediate_refinement` over all layers, each with twice the rounds of the last
    passes: int = 4

    @torch.no_grad()
    def start(self, graph: Graph, region: Region, rules: Avoid) -> SignSubproblems:
        blank = torch.zeros(
            (len(region), sum(node.size for node in relu_preactivations(graph))), device=graph.device
        )
        task = torch.arange(len(region), device=graph.device)
        nothing = torch.full_like(rules.offset[:, 0, 0], -torch.inf)
        upper = torch.full_like(blank, torch.inf, dtype=torch.float64)
        lower = -upper
        for rows in time_limit.portions(region.centre) if relu_preactivations(graph) else ():
            some = batch.take(region, rows)
            known = time_limit.in_time(partial(propagate, graph, some, _input_forms(graph, some)), None)
            if known is None:
                break
            lower[rows], upper[rows] = (
                concatenate_nodes(graph, known[0].lower),
                concatenate_nodes(graph, known[0].upper),
            )
        return SignSubproblems(
            task,
            all_open(rules),
            nothing,
            sign=blank.to(torch.int8),
            lower=lower,
            upper=upper,
            slope=blank * torch.nan,
            multiplier=blank,
            tight=torch.zeros_like(task),
            first=nothing,
            ahead=torch.ones_like(nothing),
        )

    def at_once(self, question: PolytopeQuestion) -> int:
        """The number of pairs of a subproblem and a polytope that are bounded together."""
        if self.batch or question.graph.device.type != "cuda":
            return self.batch or CPU_PAIRS
        each = 8 * VALUES_PER_ELEMENT * sum(node.size for node in question.graph.nodes)
        return max(CPU_PAIRS, min(MAX_GPU_PAIRS, free_bytes(question.graph.device) // each))

    def fits(self, question: PolytopeQuestion, parts: SignSubproblems) -> int:
        return count_within_capacity(parts.open.sum(1), self.at_once(question))

    def most(self, graph: Graph) -> int:
        more = 16 if graph.device.type == "cuda" else 1  # GPUs bound more subproblems together
        return more * min(
            self.waiting,
            MAX_QUEUE_VALUES // (6 * max(1, sum(node.size for node in relu_preactivations(graph)))),
        )

    def bound(
        self, question: PolytopeQuestion, parts: SignSubproblems
    ) -> BoundedSubproblems[SignSubproblems]:
        graph = question.graph
        region = question.region
        if not relu_preactivations(graph):
            return _decide_affine(question, parts)
        ends = split_by_node(graph, parts.lower), split_by_node(graph, parts.upper)
        within = {node: (ends[0][node], ends[1][node]) for node in ends[0]}
        known, empty = propagate(graph, batch.take(region, parts.task), within=within, walks=self.refine)
        # an empty subproblem contains no counterexample
        parts = replace(parts, open=parts.open & ~empty[:, None])
        # pairs of a subproblem and a polytope that is open there
        part, polytope = parts.open.nonzero().unbind(1)
        task = parts.task[part]
        if not len(part):
            return BoundedSubproblems(
                parts,
                parts.lower,
                _points(region, region.centre.double()[part][:, None], region.centre.double()[part], part),
            )
        row_task = question.rows_of(known, part, task, polytope, parts.sign[part])
        found = row_task.train(
            parts.slope[part].double(), parts.multiplier[part].double(), self.steps, self.pace
        )
        found, candidates = _solve_decided(row_task, found, self.steps, self.pace)
        settled = found.least > 0
        # polytopes are weighted by the distance of their bounds to zero
        share = torch.where(settled, 0, -found.least)
        entering = torch.zeros_like(parts.lower).index_add(0, part, found.entering * share[:, None])
        cost = neuron_costs(graph, known, entering, through_ends=self.refine)
        lower, upper = concatenate_nodes(graph, known.lower), concatenate_nodes(graph, known.upper)
        after = replace(
            self.record_children(
                _record_pair_bounds(parts, part, polytope, found.least), part, polytope, found
            ),
            lower=lower,
            upper=upper,
        )
        undecided = ((lower < 0) & (upper > 0)).sum(1)
        whole = ~parts.sign.any(1)
        after = replace(
            after,
            first=torch.where(whole, after.bound, parts.first),
            ahead=_predict_descendants(parts, after.bound, undecided),
        )
        worst = (
            torch.where(settled, torch.inf, found.least)
            .topk(min(MAX_CANDIDATE_PAIRS, len(settled)), largest=False)
            .indices
        )
        worst = worst[~settled[worst]]
        return BoundedSubproblems(
            after, cost, _points(region, found.planes[worst], candidates[worst], task[worst])
        )

    def record_children(
        self, parts: SignSubproblems, part: Tensor, polytope: Tensor, found: TrainedBounds
    ) -> SignSubproblems:
        """Store slopes and multipliers of pairs, from which the optimisation of their children starts."""
        slope, multiplier = parts.slope.clone(), parts.multiplier.clone()
        # those of one of its polytopes
        slope[part] = found.slope.float()
        multiplier[part] = found.multiplier.float()
        return replace(parts, slope=slope, multiplier=multiplier)

    def cut(
        self, question: PolytopeQuestion, parts: SignSubproblems, gain: Tensor
    ) -> tuple[SignSubproblems, Tensor]:
        """Split at the costliest neuron; a whole region gets tighter intermediate bounds instead."""
        if not gain.shape[1]:
            return batch.take(parts, parts.task[:0]), torch.ones_like(parts.tight, dtype=torch.bool)
        most, place = gain.max(1, keepdim=True)
        whole = ~parts.sign.any(1) & (parts.tight < (2 if self.passes else 1))
        stuck = ~whole & (most.squeeze(1) <= 0)
        positive = replace(
            parts, sign=parts.sign.scatter(1, place, 1), lower=parts.lower.scatter(1, place, 0.0)
        )
        negative = replace(
            parts, sign=parts.sign.scatter(1, place, -1), upper=parts.upper.scatter(1, place, 0.0)
        )
        halves = (batch.take(half, ~whole & ~stuck) for half in (positive, negative))
        return batch.concatenate(
            [self._narrow_root(question, batch.take(parts, whole), gain[whole]), *halves]
        ), stuck

    def _narrow_root(
        self, question: PolytopeQuestion, parts: SignSubproblems, gain: Tensor
    ) -> SignSubproblems:
        """Tighten the intermediate bounds of whole regions; drops regions that this decides."""
        if not len(parts):
            return parts
        graph, region = question.graph, batch.take(question.region, parts.task)
        worth, at_once = gain > 0, self.at_once(question)
        if self.ends is not None and self.ends < gain.shape[1]:
            worth &= gain >= gain.topk(self.ends, dim=1).values[:, -1:]
        lower, upper = split_by_node(graph, parts.lower), split_by_node(graph, parts.upper)
        ends = {node: (lower[node], upper[node]) for node in lower}
        if bool((parts.tight == 0).any()):
            until = time_limit.share_of_remaining(1.0 if self.passes else EARLY_TIGHTENING_TIME_SHARE)
            with time_limit.within(until):
                ends |= tighten_intermediate_bounds(
                    graph,
                    region,
                    self.steps,
                    self.pace,
                    at_once,
                    worth=split_by_node(graph, worth),
                    known=ends,
                )
        else:
            ends, parts = self._refine_regions(question, parts, ends, split_by_node(graph, worth))
        lower, upper = ({node: both[side] for node, both in ends.items()} for side in (0, 1))
        parts = replace(
            parts,
            lower=concatenate_nodes(graph, lower),
            upper=concatenate_nodes(graph, upper),
            tight=parts.tight + 1,
        )
        return batch.take(parts, parts.open.any(1))

    def _refine_regions(
        self,
        question: PolytopeQuestion,
        parts: SignSubproblems,
        ends: Mapping[Node, IntervalBounds],
        worth: Mapping[Node, Tensor],
    ) -> tuple[dict[Node, IntervalBounds], SignSubproblems]:
        """Refine one region after the other, each within its share of the time."""
        found = list[dict[Node, IntervalBounds]]()
        until = time_limit.share_of_remaining(REFINEMENT_TIME_SHARE)
        open_ = parts.open.clone()
        for row in torch.arange(len(parts), device=open_.device).split(1):
            task, known = parts.task[row], {node: (low[row], high[row]) for node, (low, high) in ends.items()}
            polytope = parts.open[row[0]].nonzero().flatten()
            matrix = question.rules.matrix[task[0], polytope]
            offset = question.rules.offset[task[0], polytope]
            with (
                time_limit.within(until),
                time_limit.within(time_limit.share_of_remaining(1 / (len(parts) - len(found)))),
            ):
                held, positive = refine_intermediate_bounds(
                    question.graph,
                    batch.take(question.region, task),
                    known,
                    (matrix.flatten(0, 1), offset.flatten()),
                    self.passes,
                    self.at_once(question),
                    worth={node: which[row] for node, which in worth.items()},
                )
            found.append(held)
            # a polytope with a positive row is excluded
            open_[row[0], polytope] = ~positive.reshape(offset.shape).any(1)
        both = {
            node: (torch.cat([held[node][0] for held in found]), torch.cat([held[node][1] for held in found]))
            for node in ends
        }
        return both, replace(parts, open=open_)


def _input_forms(graph: Graph, region: Region) -> InputForms | None:
    """Affine forms with symbols of the inputs alone, where few inputs of a wide network vary: they cost as much as a few
    backward passes, and they decide neurons that otherwise need one each.
    """
    lower, upper = region.enclosing_box()
    few = region.boxed and is_wide(graph) and moving_inputs(lower, upper) <= MAX_FORM_INPUTS
    return InputForms(graph, lower, upper, 0) if few else None


def _decide_affine(question: PolytopeQuestion, parts: SignSubproblems) -> BoundedSubproblems[SignSubproblems]:
    """Decide a network without ReLU-like activations, which is affine, by a linear programme."""
    graph = question.graph
    region = question.region
    known, _ = propagate(graph, batch.take(region, parts.task))
    part, polytope = parts.open.nonzero().unbind(1)
    task = parts.task[part]
    row_task = question.rows_of(known, part, task, polytope, parts.sign[part])
    solution = solve(row_task)
    least = row_task.prove(solution.multiplier, solution.weight)
    where = task[~(least > 0)]
    lower, upper = region.enclosing_box()
    points = CandidatePoints(solution.point[~(least > 0)], lower[where], upper[where], where)
    return BoundedSubproblems(_record_pair_bounds(parts, part, polytope, least), parts.lower, points)


def _record_pair_bounds(
    parts: SignSubproblems, part: Tensor, polytope: Tensor, least: Tensor
) -> SignSubproblems:
    """The subproblems with the bounds of their pairs."""
    unsettled = torch.zeros_like(parts.open)
    bound = torch.full_like(parts.open, torch.inf, dtype=torch.float64)
    unsettled[part, polytope] = ~(least > 0)
    bound[part, polytope] = torch.where(least > 0, torch.inf, least)
    return replace(parts, open=unsettled, bound=bound.amin(1))


def _solve_decided(
    row_task: RowTask, found: TrainedBounds, steps: int, pace: float
) -> tuple[TrainedBounds, Tensor]:
    """Solve pairs without unstable neurons by a linear programme; without a box, optimise longer.

    Returns the bounds, and (pairs, *shape) points to try: the solutions, or the centres of the regions.
    """
    point = row_task.known.region.centre.double()
    which = (~row_task.undecided.any(1) & ~(found.least > 0)).nonzero().flatten()
    if not len(which):
        return found, point
    last = row_task.take(which)
    if not row_task.known.region.boxed:
        more = last.train(found.slope[which], found.multiplier[which], LEAF_STEPS_FACTOR * steps, pace)
        return found.or_better(found.replace_at(which, more)), point
    solution = solve(last)
    point[which] = solution.point
    least = last.prove(solution.multiplier, solution.weight)
    better = replace(last_found := batch.take(found, which), least=least, multiplier=solution.multiplier)
    return found.replace_at(which, last_found.or_better(better)), point


def _points(region: Region, planes: Tensor, others: Tensor, task: Tensor) -> CandidatePoints:
    """Candidate points: the minimisers of the linear bounds, and one further point for each pair."""
    each = task.repeat_interleave(planes.shape[1])
    low = batch.take(region, each).vertex(planes.flatten(0, 1)) if len(each) else planes.flatten(0, 1)
    each, (lower, upper) = torch.cat([each, task]), region.enclosing_box()
    return CandidatePoints(torch.cat([low, others]), lower[each], upper[each], each)


def _predict_descendants(parts: SignSubproblems, bound: Tensor, undecided: Tensor) -> Tensor:
    """(n,): the predicted number of descendants of each child.

    Splits are expected to raise the bound by as much as they did on average since the whole region; at most
    all remaining signs are decided.
    """
    depth = parts.sign.abs().sum(1)
    gain = (bound - parts.first) / depth
    levels = torch.where(depth > 0, -bound / gain.clamp_min(1e-9), 1)
    return 2 ** torch.minimum(levels.clamp(0, 60), undecided) / 2
