"""Norm balls over groups of features: one group is a Ball, one group a frame is Frames. All their mathematics is here."""

import math
from abc import abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from holdfast.region.base import EVERYWHERE, Domain, Family, check_centre, check_norm, step_from
from holdfast.region.norms import direction, dual, norm, norm_above, project, steepest
from holdfast.rounding import TINY, gamma


@dataclass(frozen=True, eq=False)
class NormFamily(Family):
    """All x with ||x_g - centre_g||_p <= radius for every free group g, x_g = centre_g for the others, inside the domain."""

    p: float = math.inf
    domain: Domain = EVERYWHERE

    def __post_init__(self) -> None:
        super().__post_init__()
        check_norm(self.p)
        object.__setattr__(self, "domain", Domain.of(self.domain))
        check_centre(self.centre, self.domain)

    @abstractmethod
    def grouped(self, x: Tensor) -> Tensor:
        """(..., *shape) -> (..., groups, n)."""

    @abstractmethod
    def free(self) -> Tensor:
        """-> (batch, groups) bool: the groups that may move."""

    def _moving(self) -> Tensor:
        """-> (batch, *shape) bool: the features that may move."""
        like = self.grouped(self.centre)
        return self.free()[..., None].expand(like.shape).reshape(self.centre.shape)

    def length(self, delta: Tensor) -> Tensor:
        """(..., batch, *shape) -> (..., batch): the largest norm of a group; differentiable, plain rounding."""
        return norm(self.grouped(delta), self.p).amax(-1)

    def distance(self, x: Tensor) -> Tensor:
        delta = x.double() - self.centre.double()
        away = norm_above(self.grouped(delta), self.p).amax(-1)
        still = self.flatten((delta == 0) | self._moving()).all(-1)
        inside = self.flatten(self.domain.contains(x)).all(-1)
        return torch.where(still & inside & away.isfinite(), away, torch.inf)

    def contains(self, x: Tensor) -> Tensor:
        distance = self.distance(x)
        return (distance <= self.radius) & distance.isfinite()

    def limit(self) -> Tensor:
        """Where no group may move there is nothing to fear at any radius; else nothing is known beforehand."""
        return torch.full((len(self),), torch.inf, dtype=torch.float64, device=self.centre.device)

    def reach(self) -> Tensor:
        centre = self.centre.double()
        if self.domain.bounded:
            furthest = torch.maximum(centre - self.domain.lower.to(centre), self.domain.upper.to(centre) - centre)
        else:
            furthest = centre.abs() + 1
        return self.length(furthest)

    def _extent(self) -> Tensor:
        """-> (batch,), finite: how far there is anything to look at."""
        radius, reach = self.radius.double(), self.reach()
        return torch.minimum(radius, reach) if self.domain.bounded else torch.where(radius.isfinite(), radius, reach)

    def project(self, x: Tensor) -> Tensor:
        # The distance is rounded up, so aim a hair below the radius; the clip to the domain only comes closer.
        target = self.radius.double() / (1 + 40 * gamma(self.centre[0].numel()))
        delta = self.grouped((x.double() - self.centre.double()) * self._moving())
        pulled = project(delta, target[:, None].expand(delta.shape[:-1]), self.p).reshape(x.shape)
        there = self.contains(x)[(..., *(None for _ in self.shape))]
        return self.domain.clamp(torch.where(there, x, step_from(self.centre, pulled, x)))

    def sample(self, count: int, generator: torch.Generator) -> Tensor:
        like = self.grouped(self.centre)
        away = direction(torch.Size((count, *like.shape)), self.p, generator, like)
        # Half the points on the surface, half anywhere inside.
        share = torch.rand((count, *like.shape[:-1], 1), generator=generator).to(like).mul(2).clamp_max(1)
        radius = self._extent().to(like)
        return self.project(self.centre + (away * share * radius[:, None, None]).reshape(count, *self.centre.shape))

    def vertex(self, a: Tensor) -> Tensor:
        """Exact for p = inf and p = 1, for other p before the clip to the domain."""
        radius = self._extent().to(a)
        grouped = self.grouped(torch.where(self._moving(), a, torch.zeros_like(a)))
        if self.p == 1 and self.domain.bounded:
            step = _knapsack(grouped, radius, *(self.grouped(room) for room in self._room(a)))
        else:
            step = steepest(grouped, self.p) * radius[:, None, None]
        return self.project(self.centre.to(a) + step.reshape(a.shape))

    def _room(self, like: Tensor) -> tuple[Tensor, Tensor]:
        """How far each feature may fall and rise inside the domain."""
        centre = self.centre.to(like)
        return centre - self.domain.lower.to(like), self.domain.upper.to(like) - centre

    def enclosing_box(self) -> tuple[Tensor, Tensor]:
        centre, reach = self.centre.double(), self.per_row(self.radius.double())
        widened = torch.where(self._moving(), reach + (centre.abs() + reach) * gamma(1) + TINY, 0)
        return self.domain.clamp(centre - widened), self.domain.clamp(centre + widened)

    def minimise_linear(self, a: Tensor) -> Tensor:
        """The larger of two lower bounds: over the ball alone, and over the box around it clipped to the domain."""
        flat, centre = self.flatten(a.double()), self.flatten(self.centre.double())[:, None]
        slopes = (norm_above(self.grouped(a), dual(self.p)) * self.free()[:, None]).sum(-1)
        fall = torch.where(slopes == 0, 0, slopes * self.radius[:, None])  # an infinite radius along no slope costs nothing
        slack = gamma(flat.shape[-1]) * ((flat * centre).abs().sum(-1) + fall)
        ball = (flat * centre).sum(-1) - fall - 2 * slack - TINY
        return torch.fmax(ball, minimise_over_box(a, *self.enclosing_box()))


def minimise_over_box(a: Tensor, lower: Tensor, upper: Tensor) -> Tensor:
    """(batch, rows, *shape), (batch, *shape) twice -> (batch, rows); result <= a.x for lower <= x <= upper."""
    flat = a.double().reshape(*a.shape[:2], -1)
    low, high = lower.reshape(len(lower), 1, -1), upper.reshape(len(upper), 1, -1)
    terms = torch.where(flat == 0, 0, torch.minimum(flat * low, flat * high))  # 0 * inf is no number, but costs nothing
    return terms.sum(-1) - 2 * gamma(flat.shape[-1]) * terms.abs().sum(-1) - TINY


def _knapsack(a: Tensor, radius: Tensor, down: Tensor, up: Tensor) -> Tensor:
    """The change of L1 length at most `radius` in each group, between -down and up, that lowers a.x the most: steepest first."""
    capacity = torch.where(a > 0, down, up).expand(a.shape)
    order = a.abs().argsort(-1, descending=True)
    filled = capacity.gather(-1, order)
    before = filled.cumsum(-1) - filled
    amount = torch.minimum(filled, (radius[:, None, None] - before).clamp_min(0))
    return -a.sign() * torch.zeros_like(a).scatter(-1, order, amount)
