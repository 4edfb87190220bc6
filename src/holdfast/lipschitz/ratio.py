"""The state that all searches for the metric Q share: the ratio |s(x') - s(x)| / ||x' - x||, the query budget
and the best points.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from holdfast.attacks.descent import broadcast_rows, select_nearest
from holdfast.problem import Problem

# Assumed rounding error of a score, in units in the last place of the largest output (chosen by hand).
ROUNDING_ULPS = 8
# Weight of the ratio of the smoothed score in what the searches maximise (chosen by hand; small enough not to
# outweigh the score).
SMOOTHED_WEIGHT = 1e-6
LANDMARKS = 12  # Number of improvements that are kept on the way to the best point (chosen by hand).

# Maps outputs (..., batch, outputs) to scores (..., batch) whose gradients are followed: the score or its
# smoothed version.
Guide = Callable[[Tensor], Tensor]


@dataclass
class QueryTally:
    """Count queries and keep the best points; all searches query the network through this object.

    Every point counts as one query of its row, also when its gradient is computed. The assumed rounding error
    of the scores is subtracted from the change, so that a tiny distance cannot turn it into a large ratio.
    Where nothing remains, as for saturated probabilities, a small multiple of the ratio of the smoothed score
    indicates the better direction. The searches receive the ratio with this term; the stored ratio is without
    it.
    """

    problem: Problem
    budget: int
    queries: int = 0  # queries of each row
    outputs: Tensor = field(init=False)  # (batch, outputs) at the input itself
    centre: Tensor = field(init=False)  # (2, batch) the score and the smoothed score at the input
    noise: Tensor = field(init=False)  # (batch,) assumed rounding error of a change of the score
    ratio: Tensor = field(init=False)  # (batch,) float64: the largest ratio found
    point: Tensor = field(init=False)  # (batch, *shape)
    # Queries, ratio and point of the last improvement in each stretch of the search (stretches of equal log
    # length).
    trail: list[tuple[Tensor, Tensor, Tensor]] = field(init=False)

    def __post_init__(self) -> None:
        x = self.problem.region.centre
        self.outputs = self.problem.network(x)
        self.centre = self._scores(self.outputs)
        self.noise = (
            ROUNDING_ULPS * torch.finfo(self.outputs.dtype).eps * self.outputs.abs().amax(-1).double()
        )
        self.queries = 1
        self.ratio, self.point = torch.zeros_like(self.noise), x
        nowhere = (torch.zeros_like(self.noise, dtype=torch.int64), self.ratio, x)
        self.trail = [nowhere] * LANDMARKS

    @property
    def left(self) -> int:
        """Number of queries that every row may still make."""
        return self.budget - self.queries

    @property
    def radius(self) -> Tensor:
        """(batch,), finite: the largest distance that is searched."""
        family = self.problem.family
        radius = torch.minimum(family.radius.double(), family.limit())
        return torch.where(radius.isfinite(), radius, family.reach())

    def smoothed_score(self, outputs: Tensor) -> Tensor:
        """Map outputs (..., batch, outputs) to smoothed scores (..., batch), which have useful gradients
        where probabilities are saturated.
        """
        heat = ((self.outputs.amax(-1) - self.outputs.amin(-1)) / 4).clamp_min(1)
        return self.problem.property.score(outputs / heat[:, None].to(outputs))

    def query(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Query points (k, batch, *shape) of the region; return the signed changes of the score and the
        ratios, each (k, batch).
        """
        outputs = self.problem.network(x.flatten(0, 1))
        return self._keep_best(x, self._scores(outputs.unflatten(0, x.shape[:2])))

    def query_with_gradients(self, x: Tensor, guide: Guide) -> tuple[Tensor, Tensor, Tensor]:
        """Do the same as `query` and return also the gradients of the guide's score (k, batch, *shape), from
        the same pass.
        """
        scores: list[Tensor] = []

        def follow_outputs(outputs: Tensor) -> Tensor:
            scores.append(self._scores(outputs.detach()))
            return guide(outputs)

        _, gradients = self.problem.score_and_gradient(x, follow_outputs)
        return *self._keep_best(x, torch.cat(scores, 1)), gradients

    def _scores(self, outputs: Tensor) -> Tensor:
        """Map (..., batch, outputs) to (2, ..., batch): the score and the smoothed score."""
        return torch.stack([self.problem.property.score(outputs), self.smoothed_score(outputs)]).double()

    def _keep_best(self, x: Tensor, scores: Tensor) -> tuple[Tensor, Tensor]:
        assert len(x) <= self.left, "a search made more queries than its budget allows"
        region = self.problem.region
        change, other = scores - self.centre[:, None]
        clear = (change.abs() - self.noise).clamp_min(0) * change.sign()
        ratio, trace = (
            torch.nan_to_num(c.abs() / self.problem.family.distance(x), nan=0.0, posinf=0.0)
            for c in (clear, other)
        )
        self.queries += len(x)
        point, least = select_nearest(region, x, -ratio)
        better = -least > self.ratio
        self.ratio = torch.where(better, -least, self.ratio)
        self.point = torch.where(broadcast_rows(better, region), point.to(self.point), self.point)
        place = min(LANDMARKS - 1, int(LANDMARKS * math.log(self.queries) / math.log(self.budget)))
        at, kept, seen = self.trail[place]
        seen = torch.where(broadcast_rows(better, region), self.point, seen)
        self.trail[place] = (
            torch.where(better, self.queries, at),
            torch.where(better, self.ratio, kept),
            seen,
        )
        return torch.where(clear == 0, other, change), ratio + SMOOTHED_WEIGHT * trace
