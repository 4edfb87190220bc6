"""What every search for the metric Q shares: the ratio |s(x') - s(x)| / ||x' - x||, the budget, and the best points so far."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from holdfast.attacks.descent import nearest, widen
from holdfast.problem import Problem

ROUNDING = 8  # units in the last place that the score of an input may be off
TRACE = 1e-6  # how loud the stand-in may speak beside the score
LANDMARKS = 12  # improvements that are kept on the way

Guide = Callable[
    [Tensor], Tensor
]  # outputs (..., batch, outputs) -> (..., batch): the score, or what stands in for it


@dataclass
class QueryTally:
    """The searches ask through here. Every point counts as one query of its row, with its gradient too.

    In a ratio the rounding of the scores is taken off the change, so that a tiny distance cannot turn it into a slope. Where nothing is
    left, as for probabilities that are saturated, a trace of the stand-in's ratio says which way is better: what the searches hear has
    it, what is kept has not.
    """

    problem: Problem
    budget: int
    queries: int = 0  # of each row
    outputs: Tensor = field(init=False)  # (batch, outputs) at the input itself
    centre: Tensor = field(init=False)  # (2, batch) its score, and the stand-in's
    noise: Tensor = field(init=False)  # (batch,) what rounding may do to a change of the score
    ratio: Tensor = field(init=False)  # (batch,) float64: the best so far
    point: Tensor = field(init=False)  # (batch, *shape)
    trail: list[tuple[Tensor, Tensor, Tensor]] = field(
        init=False
    )  # queries, ratio, point of the last gain in each part of the search

    def __post_init__(self) -> None:
        x = self.problem.region.centre
        self.outputs = self.problem.network(x)
        self.centre = self._scores(self.outputs)
        self.noise = ROUNDING * torch.finfo(self.outputs.dtype).eps * self.outputs.abs().amax(-1).double()
        self.queries = 1
        self.ratio, self.point = torch.zeros_like(self.noise), x
        nowhere = (torch.zeros_like(self.noise, dtype=torch.int64), self.ratio, x)
        self.trail = [nowhere] * LANDMARKS

    @property
    def left(self) -> int:
        """Queries that every row may still ask."""
        return self.budget - self.queries

    @property
    def radius(self) -> Tensor:
        """(batch,), finite: the largest distance worth a look."""
        family = self.problem.family
        radius = torch.minimum(family.radius.double(), family.limit())
        return torch.where(radius.isfinite(), radius, family.reach())

    def stand_in(self, outputs: Tensor) -> Tensor:
        """(..., batch, outputs) -> (..., batch): a score like the property's that has slopes where probabilities are saturated."""
        heat = ((self.outputs.amax(-1) - self.outputs.amin(-1)) / 4).clamp_min(1)
        return self.problem.property.score(outputs / heat[:, None].to(outputs))

    def ask(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """(k, batch, *shape) points of the region -> the signed changes of the score and the ratios, each (k, batch)."""
        outputs = self.problem.network(x.flatten(0, 1))
        return self._keep_best(x, self._scores(outputs.unflatten(0, x.shape[:2])))

    def ask_slope(self, x: Tensor, guide: Guide) -> tuple[Tensor, Tensor, Tensor]:
        """As `ask`, and the gradients of the guide's score (k, batch, *shape), by the same pass."""
        scores: list[Tensor] = []

        def follow_outputs(outputs: Tensor) -> Tensor:
            scores.append(self._scores(outputs.detach()))
            return guide(outputs)

        _, gradients = self.problem.score_and_gradient(x, follow_outputs)
        return *self._keep_best(x, torch.cat(scores, 1)), gradients

    def _scores(self, outputs: Tensor) -> Tensor:
        """(..., batch, outputs) -> (2, ..., batch): the property's and the stand-in's."""
        return torch.stack([self.problem.property.score(outputs), self.stand_in(outputs)]).double()

    def _keep_best(self, x: Tensor, scores: Tensor) -> tuple[Tensor, Tensor]:
        assert len(x) <= self.left, "a search asked more than it was allowed"
        region = self.problem.region
        change, other = scores - self.centre[:, None]
        clear = (change.abs() - self.noise).clamp_min(0) * change.sign()
        ratio, trace = (
            torch.nan_to_num(c.abs() / self.problem.family.distance(x), nan=0.0, posinf=0.0)
            for c in (clear, other)
        )
        self.queries += len(x)
        point, least = nearest(region, x, -ratio)
        better = -least > self.ratio
        self.ratio = torch.where(better, -least, self.ratio)
        self.point = torch.where(widen(better, region), point.to(self.point), self.point)
        place = min(LANDMARKS - 1, int(LANDMARKS * math.log(self.queries) / math.log(self.budget)))
        at, kept, seen = self.trail[place]
        seen = torch.where(widen(better, region), self.point, seen)
        self.trail[place] = (
            torch.where(better, self.queries, at),
            torch.where(better, self.ratio, kept),
            seen,
        )
        return torch.where(clear == 0, other, change), ratio + TRACE * trace
