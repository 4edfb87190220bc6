"""Branch and bound over activations: a ReLU that is not decided by its bounds is taken once as positive and once as negative.

For networks with many inputs, whose boxes cannot be halved often enough. A part of the region is a list of decisions; over it all
bounds are found again, then the slopes and multipliers of `trained` for every polytope. Both signs of an argument cover the part.
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
    apart,
    arguments,
    tighten_intermediate_bounds,
    together,
)
from holdfast.bounding.branching.intermediate_refinement import refine_intermediate_bounds
from holdfast.bounding.branching.leaf_linear_program import solve
from holdfast.bounding.branching.split_score import costs
from holdfast.bounding.branching.subproblem_queue import (
    NUMBERS,
    Branching,
    Frontier,
    Points,
    PolytopeQuestion,
    Seen,
    all_open,
    upto,
)
from holdfast.bounding.crown_with_fixed_bounds import propagate, take_rows
from holdfast.bounding.graph.graph import Graph, Node
from holdfast.bounding.node_bounds import Ends
from holdfast.memory_budget import free_bytes
from holdfast.property import Avoid
from holdfast.region import Region

LAST = 8  # times the usual training, for a part with nothing left to cut
USUAL, MANY = 216, 2**16  # pairs that are looked at together on a CPU, and on a GPU with room for them
COPIES = 64  # float64 numbers for each number of the graph that are alive while a pair is looked at
SHARE = 0.9  # of the time that is left, for ends that are cut for
TRIED = 2**11  # pairs whose worst points are tried, those with the lowest bounds


@dataclass(frozen=True, eq=False)
class Decisions(Frontier):
    """What is known of every argument of a function that bends at zero."""

    sign: Tensor = field(kw_only=True)  # (n, arguments) int8: +1 or -1 where it is decided, else 0
    lower: Tensor = field(kw_only=True)  # (n, arguments) float64: its values in this part lie between these
    upper: Tensor = field(kw_only=True)
    slope: Tensor = field(
        kw_only=True
    )  # (n, arguments) float32: where training begins; NaN: with the function's own
    multiplier: Tensor = field(kw_only=True)  # (n, arguments) float32
    tight: Tensor = field(
        kw_only=True
    )  # (n,) int64: 1 with trained ends, 2 with those of `refine_intermediate_bounds`; before a region is cut they pay
    first: Tensor = field(kw_only=True)  # (n,): the bound of the whole region
    ahead: Tensor = field(
        kw_only=True
    )  # (n,): parts that are still to come of it, if decisions go on to help as they did


@dataclass(frozen=True)
class ActivationSplit(Branching[Decisions]):
    """Both signs of the argument whose planes cost the bounds most.

    refine  the ends of all arguments again for every part, and choose by what a decision does for them; else they stay what they were over
            the whole region, which costs a tenth of the time and closes a part later.
    """

    batch: int | None = (
        None  # parts times polytopes, looked at together; by default, what keeps the machine busy
    )
    waiting: int = 2**14
    steps: int = 20  # of training
    pace: float = 0.2
    refine: bool = True
    ends: int | None = None  # arguments whose ends are trained before the first cut, the costliest; None: all
    passes: int = 4  # over all layers, in which ends are then narrowed by cuts of their own, each with twice the rounds of the last

    @torch.no_grad()
    def start(self, graph: Graph, region: Region, rules: Avoid) -> Decisions:
        blank = torch.zeros((len(region), sum(node.size for node in arguments(graph))), device=graph.device)
        task, nothing = (
            torch.arange(len(region), device=graph.device),
            torch.full_like(rules.offset[:, 0, 0], -torch.inf),
        )
        upper = torch.full_like(blank, torch.inf, dtype=torch.float64)
        lower = -upper
        for rows in time_limit.portions(region.centre) if arguments(graph) else ():
            known = time_limit.in_time(partial(propagate, graph, batch.take(region, rows)), None)
            if known is None:
                break
            lower[rows], upper[rows] = together(graph, known[0].lower), together(graph, known[0].upper)
        return Decisions(
            task, all_open(rules), nothing, sign=blank.to(torch.int8), lower=lower, upper=upper, slope=blank * torch.nan, multiplier=blank,
            tight=torch.zeros_like(task), first=nothing, ahead=torch.ones_like(nothing),
        )  # fmt: skip

    def at_once(self, question: PolytopeQuestion) -> int:
        """Pairs of a part and a polytope."""
        if self.batch or question.graph.device.type != "cuda":
            return self.batch or USUAL
        each = 8 * COPIES * sum(node.size for node in question.graph.nodes)
        return max(USUAL, min(MANY, free_bytes(question.graph.device) // each))

    def fits(self, question: PolytopeQuestion, parts: Decisions) -> int:
        return upto(parts.open.sum(1), self.at_once(question))

    def most(self, graph: Graph) -> int:
        more = 16 if graph.device.type == "cuda" else 1  # where as many more are looked at together
        return more * min(self.waiting, NUMBERS // (6 * max(1, sum(node.size for node in arguments(graph)))))

    def bound(self, question: PolytopeQuestion, parts: Decisions) -> Seen[Decisions]:
        graph, region, rules = question.graph, question.region, question.rules
        if not arguments(graph):
            return _at_once(question, parts)
        ends = apart(graph, parts.lower), apart(graph, parts.upper)
        within = {node: (ends[0][node], ends[1][node]) for node in ends[0]}
        known, empty = propagate(graph, batch.take(region, parts.task), within=within, walks=self.refine)
        parts = replace(
            parts, open=parts.open & ~empty[:, None]
        )  # no point of what is empty meets all its decisions
        part, polytope = parts.open.nonzero().unbind(1)  # pairs: a part, and a polytope not ruled out there
        task = parts.task[part]
        if not len(part):
            return Seen(
                parts,
                parts.lower,
                _points(region, region.centre.double()[part][:, None], region.centre.double()[part], part),
            )
        asked = RowTask(
            graph,
            take_rows(known, part),
            graph.output,
            rules.matrix[task, polytope],
            rules.offset[task, polytope],
            parts.sign[part],
        )
        found = asked.train(
            parts.slope[part].double(), parts.multiplier[part].double(), self.steps, self.pace
        )
        found, ends_met = _solve_decided(asked, found, self.steps, self.pace)
        settled = found.least > 0
        share = torch.where(settled, 0, -found.least)  # polytopes count by what is missing
        entering = torch.zeros_like(parts.lower).index_add(0, part, found.entering * share[:, None])
        cost = costs(graph, known, entering, through_ends=self.refine)
        lower, upper = together(graph, known.lower), together(graph, known.upper)
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
            ahead=_ahead(parts, after.bound, undecided),
        )
        worst = (
            torch.where(settled, torch.inf, found.least).topk(min(TRIED, len(settled)), largest=False).indices
        )
        worst = worst[~settled[worst]]
        return Seen(after, cost, _points(region, found.planes[worst], ends_met[worst], task[worst]))

    def record_children(
        self, parts: Decisions, part: Tensor, polytope: Tensor, found: TrainedBounds
    ) -> Decisions:
        """With the slopes and multipliers that were found for pairs: where the training of what is cut from these begins."""
        slope, multiplier = parts.slope.clone(), parts.multiplier.clone()
        slope[part], multiplier[part] = (
            found.slope.float(),
            found.multiplier.float(),
        )  # of any of its polytopes
        return replace(parts, slope=slope, multiplier=multiplier)

    def cut(self, question: PolytopeQuestion, parts: Decisions, gain: Tensor) -> tuple[Decisions, Tensor]:
        """Each with its costliest argument taken as positive and as negative; the whole region, before that, with narrower ends."""
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

    def _narrow_root(self, question: PolytopeQuestion, parts: Decisions, gain: Tensor) -> Decisions:
        """Whole regions with narrower ends; without those that are settled by that."""
        if not len(parts):
            return parts
        graph, region = question.graph, batch.take(question.region, parts.task)
        worth, at_once = gain > 0, self.at_once(question)
        if self.ends is not None and self.ends < gain.shape[1]:
            worth &= gain >= gain.topk(self.ends, dim=1).values[:, -1:]
        lower, upper = apart(graph, parts.lower), apart(graph, parts.upper)
        ends = {node: (lower[node], upper[node]) for node in lower}
        if bool((parts.tight == 0).any()):
            ends |= tighten_intermediate_bounds(
                graph, region, self.steps, self.pace, at_once, worth=apart(graph, worth), known=ends
            )
        else:
            ends, parts = self._refine_regions(question, parts, ends, apart(graph, worth))
        lower, upper = ({node: both[side] for node, both in ends.items()} for side in (0, 1))
        parts = replace(
            parts, lower=together(graph, lower), upper=together(graph, upper), tight=parts.tight + 1
        )
        return batch.take(parts, parts.open.any(1))

    def _refine_regions(
        self,
        question: PolytopeQuestion,
        parts: Decisions,
        ends: Mapping[Node, Ends],
        worth: Mapping[Node, Tensor],
    ) -> tuple[dict[Node, Ends], Decisions]:
        """Every region in its turn, each with its part of a share of the time that is left."""
        found, until, open_ = list[dict[Node, Ends]](), time_limit.share(SHARE), parts.open.clone()
        for row in torch.arange(len(parts), device=open_.device).split(1):
            task, known = parts.task[row], {node: (low[row], high[row]) for node, (low, high) in ends.items()}
            polytope = parts.open[row[0]].nonzero().flatten()
            matrix, offset = (
                question.rules.matrix[task[0], polytope],
                question.rules.offset[task[0], polytope],
            )
            with time_limit.within(until), time_limit.within(time_limit.share(1 / (len(parts) - len(found)))):
                held, positive = refine_intermediate_bounds(
                    question.graph, batch.take(question.region, task), known, (matrix.flatten(0, 1), offset.flatten()), self.passes,
                    self.at_once(question), worth={node: which[row] for node, which in worth.items()},
                )  # fmt: skip
            found.append(held)
            open_[row[0], polytope] = ~positive.reshape(offset.shape).any(
                1
            )  # one row of a polytope that is positive rules it out
        both = {
            node: (torch.cat([held[node][0] for held in found]), torch.cat([held[node][1] for held in found]))
            for node in ends
        }
        return both, replace(parts, open=open_)


def _at_once(question: PolytopeQuestion, parts: Decisions) -> Seen[Decisions]:
    """Without a function that bends at zero there is nothing to decide. The planes of an affine network are the network itself, so a
    linear programme has the first and the last word."""
    graph, region, rules = question.graph, question.region, question.rules
    known, _ = propagate(graph, batch.take(region, parts.task))
    part, polytope = parts.open.nonzero().unbind(1)
    task = parts.task[part]
    asked = RowTask(
        graph,
        take_rows(known, part),
        graph.output,
        rules.matrix[task, polytope],
        rules.offset[task, polytope],
        parts.sign[part],
    )
    solution = solve(asked)
    least = asked.prove(solution.multiplier, solution.weight)
    where = task[~(least > 0)]
    lower, upper = region.enclosing_box()
    points = Points(solution.point[~(least > 0)], lower[where], upper[where], where)
    return Seen(_record_pair_bounds(parts, part, polytope, least), parts.lower, points)


def _record_pair_bounds(parts: Decisions, part: Tensor, polytope: Tensor, least: Tensor) -> Decisions:
    """The parts with the bounds of their pairs."""
    unsettled, bound = (
        torch.zeros_like(parts.open),
        torch.full_like(parts.open, torch.inf, dtype=torch.float64),
    )
    unsettled[part, polytope] = ~(least > 0)
    bound[part, polytope] = torch.where(least > 0, torch.inf, least)
    return replace(parts, open=unsettled, bound=bound.amin(1))


def _solve_decided(
    asked: RowTask, found: TrainedBounds, steps: int, pace: float
) -> tuple[TrainedBounds, Tensor]:
    """Where nothing is left to decide a linear programme has the last word, if the region is a box; elsewhere more training has. And
    (pairs, *shape) points to try, those of the programme or any."""
    point = asked.known.region.centre.double()
    which = (~asked.undecided.any(1) & ~(found.least > 0)).nonzero().flatten()
    if not len(which):
        return found, point
    last = asked.take(which)
    if not asked.known.region.boxed:
        more = last.train(found.slope[which], found.multiplier[which], LAST * steps, pace)
        return found.or_better(found.put(which, more)), point
    solution = solve(last)
    point[which] = solution.point
    least = last.prove(solution.multiplier, solution.weight)
    better = replace(last_found := batch.take(found, which), least=least, multiplier=solution.multiplier)
    return found.put(which, last_found.or_better(better)), point


def _points(region: Region, planes: Tensor, others: Tensor, task: Tensor) -> Points:
    """Where each plane is lowest, and one other for each pair."""
    each = task.repeat_interleave(planes.shape[1])
    low = batch.take(region, each).vertex(planes.flatten(0, 1)) if len(each) else planes.flatten(0, 1)
    each, (lower, upper) = torch.cat([each, task]), region.enclosing_box()
    return Points(torch.cat([low, others]), lower[each], upper[each], each)


def _ahead(parts: Decisions, bound: Tensor, undecided: Tensor) -> Tensor:
    """-> (n,): how many parts are to come of each half, if decisions go on to raise the bound as they did from the whole region on; no
    more than there are signs left."""
    depth = parts.sign.abs().sum(1)
    gain = (bound - parts.first) / depth
    levels = torch.where(depth > 0, -bound / gain.clamp_min(1e-9), 1)
    return 2 ** torch.minimum(levels.clamp(0, 60), undecided) / 2
