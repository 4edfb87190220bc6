"""Where a network stands: how many inputs it gets right, how many are proved at the radius, how many no search breaks there."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from holdfast import clock
from holdfast.bounding.crown import lower_bound, propagate
from holdfast.bounding.graph.graph import Graph
from holdfast.bounding.graph.of_problem import graph_of, rows_of
from holdfast.hardening.examples import Examples
from holdfast.network import Network
from holdfast.problem import Problem

SOME = 32  # inputs bounded at once, so that the clock is looked at


@dataclass(frozen=True)
class Standing:
    """Of `inputs` held-out inputs: shares that are right, right and proved at the radius, right and broken by no search there. commonest:
    the share of the class that most of them have, which a network that says nothing else gets right, and proves."""

    accuracy: float
    certified: float
    unbroken: float
    inputs: int
    commonest: float = 0.0

    @property
    def constant(self) -> bool:
        """Whether it is right no more often than a network that says one class of everything."""
        return self.accuracy <= self.commonest

    def __str__(self) -> str:
        return f"{self.accuracy:.1%} right, {self.certified:.1%} proved, {self.unbroken:.1%} not broken ({self.inputs} inputs)"


@torch.no_grad()
def accuracy(net: Network, parts: Sequence[Examples]) -> float:
    right, count = 0, 0
    for part in parts:
        for rows in torch.arange(len(part), device=part.label.device).split(1024):
            right += int((net(part.points(rows)).argmax(-1) == part.label[rows]).sum())
            count += len(rows)
    return right / count


@torch.no_grad()
def certified(net: Network, parts: Sequence[Examples], limit: int) -> float | None:
    """The share of the first `limit` inputs whose class closed-form planes prove all over the region: the fast tier at one radius.

    Inputs that the clock leaves no time for do not count; None where there was time for none.
    """
    proved, count = 0, 0
    for part in parts:
        rows = torch.arange(min(len(part), max(1, round(limit * len(part) / sum(map(len, parts))))), device=part.label.device)
        graph = None
        for some in rows.split(SOME):
            if clock.passed():
                break
            problem = replace(part.judged(net, some), goal="radius")
            graph = graph_of(problem) if graph is None else graph
            found = clock.in_time(partial(_least, problem, graph), None)
            if found is not None:
                proved += int((found > 0).all(1).sum())
                count += len(some)
    return proved / count if count else None


def _least(problem: Problem, graph: Graph) -> Tensor:
    """(inputs, rows): no row of the property is less, all over the region."""
    return lower_bound(graph, propagate(graph, problem.region), *rows_of(problem, graph))


def intervals_hold(margins: Tensor, label: Tensor) -> Tensor:
    """(batch, outputs) least margins, (batch,) -> (batch,) bool: by intervals, in float32. Steers training, proves nothing."""
    return (margins.scatter(1, label[:, None], torch.inf) > 0).all(1)
