"""Evaluation of a network: accuracy, certified accuracy at the radius, and accuracy under attack."""

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
ROWS_PER_BATCH = 32  # Inputs bounded per batch; the deadline is checked in between (chosen by hand).


@dataclass(frozen=True)
class RobustnessResult:
    """Results on held-out inputs at the radius.

    Attributes:
        accuracy: the share that the network classifies correctly.
        outcomes: one for each input. proved: no perturbation of this radius changes the correct class.
            broken: a counterexample is known. neither: proof and attack ended without result. not proved: the
            proof failed, and there was no time for the attack to end. not measured: there was no time for the
            proof.
        commonest: the share of the most frequent class; a constant classifier has this accuracy and certified
            accuracy.
    """

    accuracy: float
    outcomes: tuple[Outcome, ...]
    commonest: float = 0.0

    @property
    def inputs(self) -> int:
        return len(self.outcomes)

    @property
    def proved(self) -> Share:
        """Share of inputs that are proved, among those for which the proof was computed."""
        return Share(
            self.outcomes.count("proved"), self.inputs - self.outcomes.count("not measured"), self.inputs
        )

    @property
    def not_broken(self) -> Share:
        """Share of inputs that no attack breaks, among inputs that are proved or fully attacked."""
        kept = self.outcomes.count("proved") + self.outcomes.count("neither")
        return Share(kept, kept + self.outcomes.count("broken"), self.inputs)

    @property
    def certified(self) -> float:
        """Certified accuracy: the share proved, of the inputs measured; NaN if none was."""
        return self.proved.value

    @property
    def unbroken(self) -> float:
        """Share that no attack breaks, of the inputs measured; NaN if none was."""
        return self.not_broken.value

    def as_json(self) -> dict[str, Any]:
        """Return the JSON form for harden.json; a share of zero inputs is null."""
        shares = {"certified": self.proved, "unbroken": self.not_broken}
        values = {name: share.value if share.measured else None for name, share in shares.items()}
        counts = {"proved": asdict(self.proved), "not_broken": asdict(self.not_broken)}
        return {
            "accuracy": self.accuracy,
            **values,
            **counts,
            "inputs": self.inputs,
            "commonest": self.commonest,
            "outcomes": list(self.outcomes),
        }

    @property
    def constant(self) -> bool:
        """Whether the accuracy does not exceed that of a constant classifier."""
        return self.accuracy <= self.commonest

    def __str__(self) -> str:
        return (
            f"{self.accuracy:.1%} right, proved: {self.proved}, not broken: {self.not_broken}; "
            f"{self.inputs} inputs"
        )


def proved_increase(before: RobustnessResult, after: RobustnessResult) -> tuple[int, int]:
    """The smallest and largest possible increase of proved inputs, over all outcomes of unmeasured inputs."""
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
    """Certify the first `limit` inputs with closed-form linear bounds at the full radius (the fast tier).

    Inputs for which the deadline leaves no time are not measured.
    """
    proved, count, total = 0, 0, 0
    for part in parts:
        rows = torch.arange(
            min(len(part), max(1, round(limit * len(part) / sum(map(len, parts))))), device=part.label.device
        )
        graph, total = None, total + len(rows)
        for some in rows.split(ROWS_PER_BATCH):
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
    """Return (inputs, rows): certified lower bounds of the property's rows over the region."""
    return lower_bound(graph, propagate(graph, problem.region), *rows_of(problem, graph))


def intervals_hold(margins: Tensor, label: Tensor) -> Tensor:
    """(batch, outputs) lower bounds of margins, (batch,) -> (batch,) bool.

    In float32: for training only, not a certificate.
    """
    return (margins.scatter(1, label[:, None], torch.inf) > 0).all(1)
