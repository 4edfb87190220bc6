"""Branch and bound over activations: a ReLU that is not decided by its bounds is taken once as positive and once as negative.

For networks with many inputs, whose boxes cannot be halved often enough. A part of the region is a list of decisions; over it all
bounds are found anew, then the slopes and multipliers of `trained` for every polytope. Both signs of an argument cover the part.
"""

import math
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from holdfast import batch
from holdfast.bounding.alpha_beta_crown import Found, Rows, apart, arguments, tightened, together
from holdfast.bounding.branching.input_split import NUMBERS, Branching, Frontier, Points, all_open
from holdfast.bounding.branching.leaf_program import solve
from holdfast.bounding.branching.split_score import costs
from holdfast.bounding.crown_within import propagate, taken
from holdfast.bounding.graph.graph import Graph
from holdfast.property import Avoid
from holdfast.region import Box

USUAL, MANY = 216, 4096  # pairs that are looked at together on a processor, and on a graphics card


@dataclass(frozen=True, eq=False)
class Decisions(Frontier):
    """What is known of every argument of a function that bends at zero."""

    sign: Tensor = field(kw_only=True)  # (n, arguments) int8: +1 or -1 where it is decided, else 0
    lower: Tensor = field(kw_only=True)  # (n, arguments) float64: its values in this part lie between these
    upper: Tensor = field(kw_only=True)
    slope: Tensor = field(kw_only=True)  # (n, arguments) float32: where training begins; NaN: with the function's own
    multiplier: Tensor = field(kw_only=True)  # (n, arguments) float32


@dataclass(frozen=True)
class ActivationSplit(Branching[Decisions]):
    """Both signs of the argument whose planes cost the bounds most."""

    batch: int | None = None  # parts times polytopes, looked at together; if not said, what keeps the machine busy
    waiting: int = 2**14
    steps: int = 20  # of training
    pace: float = 0.2

    def start(self, graph: Graph, region: Box, rules: Avoid) -> Decisions:
        blank = torch.zeros((len(region), sum(node.size for node in arguments(graph))), device=graph.device)
        task, nothing = torch.arange(len(region), device=graph.device), torch.full_like(rules.offset[:, 0, 0], -torch.inf)
        end = torch.full_like(blank, torch.inf, dtype=torch.float64)
        return Decisions(
            task, all_open(rules), nothing, sign=blank.to(torch.int8), lower=-end, upper=end, slope=blank * torch.nan, multiplier=blank
        )  # fmt: skip

    def pairs(self, graph: Graph) -> int:
        """How many pairs of a part and a polytope are looked at together."""
        return self.batch or (MANY if graph.device.type == "cuda" else USUAL)

    def at_once(self, graph: Graph, frontier: Decisions) -> int:
        return max(1, int(self.pairs(graph) * len(frontier) // frontier.open.sum()))

    def most(self, graph: Graph) -> int:
        return min(self.waiting, NUMBERS // (6 * max(1, sum(node.size for node in arguments(graph)))))

    def look(self, graph: Graph, region: Box, rules: Avoid, parts: Decisions, deadline: float = math.inf) -> tuple[Decisions, Points]:
        if not arguments(graph):
            return _at_once(graph, region, rules, parts)
        ends = apart(graph, parts.lower), apart(graph, parts.upper)
        known, empty = propagate(graph, batch.take(region, parts.task), within={node: (ends[0][node], ends[1][node]) for node in ends[0]})
        part, polytope = (parts.open & ~empty[:, None]).nonzero().unbind(1)  # pairs: a part, and a polytope not ruled out there
        task = parts.task[part]
        if not len(part):  # no point of any of the parts meets all its decisions
            return batch.take(parts, part), Points(region.lower[part], region.lower[part], region.upper[part], part)
        asked = Rows(graph, taken(known, part), graph.output, rules.matrix[task, polytope], rules.offset[task, polytope], parts.sign[part])
        found = asked.trained(parts.slope[part].double(), parts.multiplier[part].double(), self.steps, self.pace, deadline)
        found, ends_met = _finished(asked, found)
        settled = found.least > 0
        share = torch.where(settled, 0, -found.least)  # polytopes count by what is missing
        cost = costs(graph, known, torch.zeros_like(parts.lower).index_add(0, part, found.entering * share[:, None]))
        lower, upper = together(graph, known.lower), together(graph, known.upper)
        after = _after(replace(parts, lower=lower, upper=upper), part, polytope, found)
        left = after.open.any(1)
        points = _points(region, found.planes[~settled], ends_met[~settled], task[~settled])
        first = left & parts.lower.isinf().all(1)  # the whole region: before it is cut, its bounds are worth some training
        whole, others = self._tightened(graph, region, batch.take(after, first), deadline), left & ~first
        cut = _both_signs(batch.take(after, others), cost[others])
        return replace(batch.concatenate([whole, cut]), lost=cut.lost), points

    def _tightened(self, graph: Graph, region: Box, parts: Decisions, deadline: float) -> Decisions:
        if not len(parts):
            return parts
        held = tightened(graph, batch.take(region, parts.task), self.steps, self.pace, self.pairs(graph), deadline)
        lower, upper = (
            {**apart(graph, end), **{node: ends[side] for node, ends in held.items()}}
            for side, end in enumerate((parts.lower, parts.upper))
        )
        return replace(parts, lower=together(graph, lower), upper=together(graph, upper))


def _at_once(graph: Graph, region: Box, rules: Avoid, parts: Decisions) -> tuple[Decisions, Points]:
    """Without a function that bends at zero there is nothing to decide. The planes of an affine network are the network itself, so what
    they and a linear programme do not settle is given up."""
    known, _ = propagate(graph, batch.take(region, parts.task))
    part, polytope = parts.open.nonzero().unbind(1)
    task = parts.task[part]
    asked = Rows(graph, taken(known, part), graph.output, rules.matrix[task, polytope], rules.offset[task, polytope], parts.sign[part])
    solution = solve(asked)
    least = asked.proved(solution.multiplier, solution.weight)
    settled = least > 0
    lost = min(parts.lost, float(torch.maximum(least, parts.bound[part])[~settled].min())) if bool((~settled).any()) else parts.lost
    where = task[~settled]
    points = Points(solution.point[~settled], region.lower[where], region.upper[where], where)
    return replace(batch.take(parts, part[:0]), lost=lost), points


def _after(parts: Decisions, part: Tensor, polytope: Tensor, found: Found) -> Decisions:
    """The parts with what was found for their pairs."""
    settled = found.least > 0
    unsettled, bound = torch.zeros_like(parts.open), torch.full_like(parts.open, torch.inf, dtype=torch.float64)
    unsettled[part, polytope] = ~settled
    bound[part, polytope] = torch.where(settled, torch.inf, found.least)
    slope, multiplier = parts.slope.clone(), parts.multiplier.clone()
    slope[part], multiplier[part] = found.slope.float(), found.multiplier.float()  # of any of its polytopes
    return replace(parts, open=unsettled, bound=torch.maximum(bound.amin(1), parts.bound), slope=slope, multiplier=multiplier)


def _finished(asked: Rows, found: Found) -> tuple[Found, Tensor]:
    """Where nothing is left to decide a linear programme has the last word; and (pairs, *shape) points to try, its own or any."""
    point = asked.known.region.centre.clone()
    which = (~asked.undecided.any(1) & ~(found.least > 0)).nonzero().flatten()
    if not len(which):
        return found, point
    last = asked.take(which)
    solution = solve(last)
    point[which] = solution.point
    least = found.least.index_copy(0, which, torch.maximum(found.least[which], last.proved(solution.multiplier, solution.weight)))
    return replace(found, least=least), point


def _both_signs(parts: Decisions, cost: Tensor) -> Decisions:
    """Each part with its costliest argument taken as positive and as negative; what has none left to decide is given up."""
    most, place = cost.max(1, keepdim=True)
    stuck = most.squeeze(1) <= 0
    lost = min(parts.lost, float(parts.bound[stuck].min())) if bool(stuck.any()) else parts.lost
    positive = replace(parts, sign=parts.sign.scatter(1, place, 1), lower=parts.lower.scatter(1, place, 0.0))
    negative = replace(parts, sign=parts.sign.scatter(1, place, -1), upper=parts.upper.scatter(1, place, 0.0))
    return replace(batch.concatenate([batch.take(half, ~stuck) for half in (positive, negative)]), lost=lost)


def _points(region: Box, planes: Tensor, others: Tensor, task: Tensor) -> Points:
    """Where each plane is lowest, and one other for each pair."""
    each = task.repeat_interleave(planes.shape[1])
    corners = torch.where(planes.flatten(0, 1) > 0, region.lower[each], region.upper[each])
    each = torch.cat([each, task])
    return Points(torch.cat([corners, others]), region.lower[each], region.upper[each], each)
