"""Where a network stands: how many inputs it gets right, how many are proved at the radius, how many no search breaks there."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor

from holdfast import time_limit
from holdfast.bounding.crown import lower_bound, propagate
from holdfast.bounding.graph.graph import Graph
from holdfast.bounding.graph.problem_graph import graph_of, rows_of
from holdfast.hardening.examples import Examples
from holdfast.network import Network
from holdfast.problem import Problem
from holdfast.result import Share

Outcome = Literal["proved", "broken", "neither", "not proved", "not measured"]
SOME = 32  # inputs bounded at once, so that the clock is looked at


@dataclass(frozen=True)
class Standing:
    """What is known of held-out inputs at the radius.

    accuracy   the share that the network classifies correctly.
    outcomes   one for each input. proved: no perturbation of this radius changes the correct class. broken: a counterexample is known.
               neither: proof and search ended without either. not proved: the proof ended without success, the search had no time to
               end. not measured: there was no time for the proof; nothing is known.
    commonest  the share of the most frequent class, which a constant network classifies correctly, and proves.
    """

    accuracy: float
    outcomes: tuple[Outcome, ...]
    commonest: float = 0.0

    @property
    def inputs(self) -> int:
        return len(self.outcomes)

    @property
    def proved(self) -> Share:
        """Inputs that are proved, among those for which the proof was computed."""
        return Share(
            self.outcomes.count("proved"), self.inputs - self.outcomes.count("not measured"), self.inputs
        )

    @property
    def not_broken(self) -> Share:
        """Inputs that no search breaks, among those that are proved or where the search ended."""
        kept = self.outcomes.count("proved") + self.outcomes.count("neither")
        return Share(kept, kept + self.outcomes.count("broken"), self.inputs)

    @property
    def certified(self) -> float:
        """The share proved, of the inputs measured; NaN if none was."""
        return self.proved.value

    @property
    def unbroken(self) -> float:
        """The share that no search breaks, of the inputs measured; NaN if none was."""
        return self.not_broken.value

    def as_json(self) -> dict[str, Any]:
        """For harden.json; a share of nothing is null."""
        shares = {"certified": self.proved, "unbroken": self.not_broken}
        values = {name: share.value if share.measured else None for name, share in shares.items()}
        counts = {"proved": asdict(self.proved), "not_broken": asdict(self.not_broken)}
        return {
            "accuracy": self.accuracy, **values, **counts, "inputs": self.inputs, "commonest": self.commonest,
            "outcomes": list(self.outcomes),
        }  # fmt: skip

    @property
    def constant(self) -> bool:
        """Whether it is right no more often than a network that says one class of everything."""
        return self.accuracy <= self.commonest

    def __str__(self) -> str:
        return f"{self.accuracy:.1%} right, proved: {self.proved}, not broken: {self.not_broken}; {self.inputs} inputs"


def gain(before: Standing, after: Standing) -> tuple[int, int]:
    """The least and the largest number of inputs by which the proved ones can have grown, whatever the unmeasured inputs are."""
    pairs = list(zip(before.outcomes, after.outcomes, strict=True))
    least = sum((new == "proved") - (old in ("proved", "not measured")) for old, new in pairs)
    most = sum((new in ("proved", "not measured")) - (old == "proved") for old, new in pairs)
    return least, most


@torch.no_grad()
def accuracy(net: Network, parts: Sequence[Examples]) -> float:
    right, count = 0, 0
    for part in parts:
        for rows in torch.arange(len(part), device=part.label.device).split(1024):
            right += int((net(part.points(rows)).argmax(-1) == part.label[rows]).sum())
            count += len(rows)
    return right / count


@torch.no_grad()
def certified_share(net: Network, parts: Sequence[Examples], limit: int) -> Share:
    """How many of the first `limit` inputs closed-form linear bounds prove over the whole region: the fast tier at one radius.

    Inputs that the clock leaves no time for are not measured.
    """
    proved, count, total = 0, 0, 0
    for part in parts:
        rows = torch.arange(
            min(len(part), max(1, round(limit * len(part) / sum(map(len, parts))))), device=part.label.device
        )
        graph, total = None, total + len(rows)
        for some in rows.split(SOME):
            if time_limit.has_expired():
                break
            problem = replace(part.evaluation_problem(net, some), goal="radius")
            graph = graph_of(problem) if graph is None else graph
            found = time_limit.in_time(partial(_least, problem, graph), None)
            if found is not None:
                proved += int((found > 0).all(1).sum())
                count += len(some)
    return Share(proved, count, total)


def _least(problem: Problem, graph: Graph) -> Tensor:
    """(inputs, rows): no row of the property is less, all over the region."""
    return lower_bound(graph, propagate(graph, problem.region), *rows_of(problem, graph))


def intervals_hold(margins: Tensor, label: Tensor) -> Tensor:
    """(batch, outputs) least margins, (batch,) -> (batch,) bool: by intervals, in float32. Steers training, proves nothing."""
    return (margins.scatter(1, label[:, None], torch.inf) > 0).all(1)
