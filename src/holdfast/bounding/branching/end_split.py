"""Ends of what functions read, by branch and bound of their own: how low and how high does an argument get over the region?

Planes lose a little at every function, and what they lose at the ends of one layer they lose again at the next: after four layers of 256
ReLUs their ends may be ten times too wide. But every argument by itself is a small question: a tree of signs of the functions before it,
each part with trained slopes and multipliers, is far above the planes of the whole region after a few dozen parts. All arguments of a
layer are asked at once, both sides of each, and every layer stands on the ends of those before it.

Parts are trained in float32 over what is undecided (`Undecided`), and what that finds is put into one bound in float64 (`Rows.proved`).
An end is the least of its tree: of what is settled, above `enough`, and of the bounds of the parts that wait.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial

import torch
from torch import Tensor

from holdfast import batch, clock
from holdfast.bounding.alpha_beta_crown import Rows, apart, arguments, bent, together
from holdfast.bounding.boxes import Boxes, Ends
from holdfast.bounding.branching.frontier import NUMBERS, BranchAndBound, Frontier, Points, Seen
from holdfast.bounding.crown_within import propagate, taken, with_ends
from holdfast.bounding.graph.graph import Graph, Node
from holdfast.bounding.undecided import Undecided
from holdfast.region import Region

NEAR = 0.1  # of what an end may still win: when so little is left, it is near enough
FIRST, STEPS, PACE = 20, 8, 0.5  # of training: over the whole region, over what is cut from it


@dataclass(frozen=True, eq=False)
class Sought:
    """For each of n tasks: how low does a row of the graph's output get over a region?"""

    graph: Graph
    known: Boxes  # over the region, one row
    undecided: Undecided
    matrix: Tensor  # (n, size of the output)
    offset: Tensor  # (n,)
    enough: Tensor  # (n,): parts above this are settled

    @staticmethod
    def of(graph: Graph, known: Boxes, matrix: Tensor, offset: Tensor, conditions: Tensor) -> "Sought | None":
        undecided = Undecided.of(graph, known, matrix, offset, conditions)
        return None if undecided is None else Sought(graph, known, undecided, matrix, offset, torch.zeros_like(offset))

    def proved(self, parts: "Leaves") -> Tensor:
        """-> (n,): what the slopes and multipliers of each part prove of its row there."""
        task, place = parts.task, self.undecided.place
        every = sum(node.size for node in arguments(self.graph))
        sign = torch.zeros((len(task), every), dtype=torch.float64, device=task.device)
        slope, multiplier = sign * torch.nan, sign.clone()
        sign[:, place], slope[:, place], multiplier[:, place] = parts.sign.double(), parts.slope.double(), parts.multiplier.double()
        far = torch.full_like(sign, torch.inf)
        lower, upper = apart(self.graph, torch.where(sign > 0, 0, -far)), apart(self.graph, torch.where(sign < 0, 0, far))
        known = taken(self.known, torch.zeros_like(task))
        known = with_ends(self.graph, known, {node: (lower[node], upper[node]) for node in lower})
        asked = Rows(self.graph, known, self.graph.output, self.matrix[task][:, None], self.offset[task][:, None], sign)
        return asked.proved(multiplier, torch.ones_like(asked.offset), slope)


@dataclass(frozen=True, eq=False)
class Leaves(Frontier):
    """Parts of the region, by the signs of k arguments: those of `Undecided`."""

    sign: Tensor = field(kw_only=True)  # (n, k) int8
    slope: Tensor = field(kw_only=True)  # (n, k) float32: where training begins; NaN: with the function's own
    multiplier: Tensor = field(kw_only=True)  # (n, k) float32


@dataclass(frozen=True)
class EndSplit(BranchAndBound[Sought, Leaves]):
    """Both signs of the argument whose plane costs a row most."""

    batch: int  # parts that are looked at together
    steps: int = STEPS

    def start(self, question: Sought) -> Leaves:
        task, undecided = torch.arange(len(question.matrix), device=question.matrix.device), question.undecided
        lower = together(question.graph, question.known.lower)[0, undecided.place]
        sign = torch.where(undecided.bends, 0, torch.where(lower >= 0, 1, -1)).to(torch.int8).expand(len(task), -1)
        blank, nothing = torch.zeros_like(sign, dtype=torch.float32), torch.full_like(question.enough, -torch.inf)
        open_ = torch.ones((len(task), 1), dtype=torch.bool, device=task.device)
        return Leaves(task, open_, nothing, sign=sign, slope=blank * torch.nan, multiplier=blank)

    def at_once(self, question: Sought) -> int:
        return self.batch

    def most(self, graph: Graph) -> int:
        return NUMBERS // (3 * max(1, sum(node.size for node in arguments(graph))))

    def bound(self, question: Sought, parts: Leaves) -> Seen[Leaves]:
        undecided, task = question.undecided, parts.task
        draft = undecided.trained(task, parts.sign, parts.slope, parts.multiplier, self.steps, PACE)
        parts = replace(parts, slope=draft.slope, multiplier=draft.multiplier)
        least = question.proved(parts)
        parts = replace(parts, bound=least, open=~(least > question.enough[task])[:, None])
        region = batch.take(undecided.region, torch.zeros_like(task))
        points = Points(region.vertex(draft.planes.double().reshape(-1, *region.shape)), *region.enclosing_box(), task)
        return Seen(parts, undecided.cost(parts.sign, draft), points)

    def cut(self, question: Sought, parts: Leaves, gain: Tensor) -> tuple[Leaves, Tensor]:
        most, place = gain.max(1, keepdim=True)
        stuck = most.squeeze(1) <= 0
        halves = (batch.take(replace(parts, sign=parts.sign.scatter(1, place, sign)), ~stuck) for sign in (1, -1))
        return batch.concatenate(list(halves)), stuck


def refined(
    graph: Graph,
    region: Region,
    known: Mapping[Node, Ends],
    rounds: int,
    at_once: int,
    *,
    worth: Mapping[Node, Tensor] | None = None,
) -> dict[Node, Ends]:
    """Narrower ends of every undecided argument over a region of one row, or of those worth it (1, *shape) bool, layer after layer; those
    that were found until the clock ends it, beside those that are known to hold there already.

    rounds  in each of which the worst part of every open end is looked at, and more of them where more fit.
    """
    held, planes = dict(known), clock.in_time(partial(propagate, graph, region), None)
    first = min((function.place for function in bent(graph)), default=0)
    layers = [node for node in arguments(graph) if node.place > first]  # ends of those before it are exact
    for layer, node in enumerate(layers if planes is not None else ()):
        if clock.passed():
            break
        part = graph.upto(node)
        found = clock.in_time(partial(propagate, part, region, within=held), None)
        if found is None or planes is None:
            break
        boxes, _ = found
        lower, upper = boxes.lower[node].flatten().clone(), boxes.upper[node].flatten().clone()
        undecided = (lower < 0) & (upper > 0)
        element = (undecided if worth is None else undecided & worth[node].flatten()).nonzero().flatten()
        if len(element):
            unit = torch.eye(node.size, dtype=torch.float64, device=element.device)[element]
            matrix = torch.cat([unit, -unit])
            sought = Sought.of(part, boxes, matrix, torch.zeros_like(matrix[:, 0]), _conditions(part, planes[0], boxes))
            if sought is None:
                break
            with clock.within(clock.share(1 / (len(layers) - layer))):
                end = _searched(sought, torch.cat([lower[element], -upper[element]]), rounds, EndSplit(at_once), sides=True)
            lower[element], upper[element] = end[: len(element)], torch.maximum(end[: len(element)], -end[len(element) :])
        held[node] = lower.reshape(1, *node.shape), upper.reshape(1, *node.shape)
    return held


def _conditions(graph: Graph, planes: Boxes, known: Boxes) -> Tensor:
    """-> (arguments,) bool: those that ends decide, and planes do not. There planes may say less than the ends, so that a condition which
    no point of the region fails may raise them."""
    by_planes, by_ends = ((together(graph, boxes.lower)[0], together(graph, boxes.upper)[0]) for boxes in (planes, known))
    return (by_planes[0] < 0) & (by_planes[1] > 0) & ((by_ends[0] >= 0) | (by_ends[1] <= 0))


def _searched(question: Sought, end: Tensor, rounds: int, rule: EndSplit, *, sides: bool) -> Tensor:
    """end (n,): what the rows are known to be at least -> the same, or more.

    sides  whether the second half of the rows is the first one turned around, of which no more than the signs are asked.
    """
    parts, looking = rule.start(question), replace(rule, steps=FIRST)
    met, stuck = torch.full_like(end, torch.inf), torch.zeros_like(end, dtype=torch.bool)
    begun = end
    for turn in range(rounds):
        wanted = ~stuck & _wanted(end, met) if sides else ~stuck
        for _ in range(max(1, -(-int(wanted[parts.task.unique()].sum()) // rule.batch))):
            now = wanted[parts.task]
            if clock.passed() or not bool(now.any()):
                return end
            seen = clock.in_time(partial(looking.advance, question, batch.take(parts, now)), None)
            if seen is None:
                return end
            looked, points = seen
            stuck[list(looked.given_up)] = True  # with nothing left to cut, its tree will say no more than it did
            parts = batch.concatenate([batch.take(parts, ~now), batch.take(looked, ~stuck[looked.task])])
            least = torch.full_like(end, torch.inf).scatter_reduce(0, parts.task, parts.bound, "amin")
            end = torch.where(stuck, end, torch.maximum(end, torch.minimum(least, question.enough)))
            value = question.undecided.at(points.x.flatten(1).float(), points.task).double()
            met = met.scatter_reduce(0, points.task, value, "amin")
            if sides:  # a point is one for both sides
                met = _other(_other(met).scatter_reduce(0, points.task, -value, "amin"))
        if turn == 0:
            begun, looking = end, rule
        near = torch.where(met > 0, 0, met - NEAR * (met - begun))
        question = replace(question, enough=torch.minimum(question.enough, near))
        parts = batch.take(parts, ~(parts.bound > question.enough[parts.task]))
    return end


def _wanted(end: Tensor, met: Tensor) -> Tensor:
    """(2 n,) of all lower ends, then of all upper ones -> (2 n,) bool: where more may be won. A sign that is decided is all that is asked;
    where every value met has one sign, the end that may prove it comes first."""
    decided, hopeful = end >= 0, met > 0
    return ~(decided | _other(decided)) & (hopeful | ~_other(hopeful))


def _other(sides: Tensor) -> Tensor:
    return sides.roll(len(sides) // 2)
