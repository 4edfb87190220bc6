"""A few changed units: pixels, channels, frames or table features (the L0 'norm')."""

from dataclasses import dataclass

import torch
from torch import Tensor

from holdfast.errors import BadInput
from holdfast.region.base import Domain, Family, check_centre
from holdfast.rounding import TINY, gamma


@dataclass(frozen=True, eq=False)
class Sparse(Family):
    """All x that differ from the centre in at most `radius` units, each changed unit anywhere in the domain.

    A unit is everything that shares a position on the axes not named: axes=(0,) makes the channels of an image (channels,
    height, width) one pixel, axes=(1,) the features of a sequence (frames, features) one frame, axes=() every number its own unit.
    """

    domain: Domain
    axes: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "domain", Domain.of(self.domain))
        check_centre(self.centre, self.domain)
        if not self.domain.bounded:
            raise BadInput("norm 0 needs a bounded domain (domain=, --domain): a changed unit may take any value of it.")
        if any(not 0 <= axis < len(self.shape) for axis in self.axes) or len(self.axes) == len(self.shape) > 0:
            raise BadInput(f"unit axes {self.axes} do not fit inputs of shape {self.shape}.")

    def _batch_axes(self) -> tuple[int, ...]:
        """The unit's axes counted from the end, so that leading axes do not matter."""
        return tuple(axis - len(self.shape) for axis in self.axes)

    def _any(self, changed: Tensor) -> Tensor:
        """(..., *shape) bool -> the same with the unit's axes reduced to one: does any part of the unit change?"""
        return changed.any(self._batch_axes(), keepdim=True) if self.axes else changed

    @property
    def units(self) -> int:
        return int(self._any(torch.ones(1, *self.shape, dtype=torch.bool)).sum())

    def distance(self, x: Tensor) -> Tensor:
        count = self.flatten_units(self._any(x != self.centre)).sum(-1).double()
        inside = self.flatten(self.domain.contains(x)).all(-1)
        return torch.where(inside, count, torch.inf)

    def flatten_units(self, per_unit: Tensor) -> Tensor:
        return self.flatten(per_unit)

    def contains(self, x: Tensor) -> Tensor:
        return self.distance(x) <= self.radius

    def limit(self) -> Tensor:
        return torch.full_like(self.radius, self.units, dtype=torch.float64)

    def below(self, distance: Tensor) -> Tensor:
        return distance - 1

    def _keep(self, weight: Tensor) -> Tensor:
        """(..., batch, *unit shape) -> bool: the `radius` units of the largest weight, none of weight zero."""
        flat = self.flatten_units(weight)
        rank = flat.argsort(-1, descending=True).argsort(-1)
        return ((rank < self.radius.floor()[:, None]) & (flat > 0)).reshape(weight.shape)

    def project(self, x: Tensor) -> Tensor:
        x = self.domain.clamp(x)
        change = (x - self.centre).abs()
        weight = change.amax(self._batch_axes(), keepdim=True) if self.axes else change
        return torch.where(self._keep(weight), x, self.centre.to(x))

    def sample(self, count: int, generator: torch.Generator) -> Tensor:
        share = torch.rand((count, *self.centre.shape), generator=generator).to(self.centre)
        lower, upper = self.domain.lower.to(share), self.domain.upper.to(share)
        extreme = torch.rand((count, *self.centre.shape), generator=generator).to(share) < 0.7
        values = lower + torch.where(extreme, share.round(), share) * (upper - lower)
        unit = self._any(torch.ones((count, *self.centre.shape), dtype=torch.bool))
        weight = torch.rand(unit.shape, generator=generator).to(share) + 1e-9
        return torch.where(self._keep(weight), self.domain.clamp(values), self.centre)

    def between(self, low: Tensor, high: Tensor, count: int) -> Tensor:
        return super().between(low.clamp_min(0.5), high, count).round().clamp_min(1)

    def evenly(self, low: Tensor, high: Tensor, count: int) -> Tensor:
        return super().evenly(low, high, count).round().clamp_min(1)

    def vertex(self, a: Tensor) -> Tensor:
        ends = torch.where(a > 0, self.domain.lower.to(a), self.domain.upper.to(a)).expand(a.shape)
        gain = (a * (self.centre.to(a) - ends)).clamp_min(0)
        per_unit = gain.sum(self._batch_axes(), keepdim=True) if self.axes else gain
        return torch.where(self._keep(per_unit), ends, self.centre.to(a))

    def enclosing_box(self) -> tuple[Tensor, Tensor]:
        centre = self.centre.double()
        free = self.per_row(self.radius >= 1).expand_as(centre)
        lower, upper = self.domain.lower.to(centre), self.domain.upper.to(centre)
        return torch.where(free, lower, centre), torch.where(free, upper, centre)

    def minimise_linear(self, a: Tensor) -> Tensor:
        """a.centre plus the `radius` best gains, which is exact for a linear function over this region."""
        a, centre = a.double(), self.centre.double()[:, None]
        at_ends = torch.minimum(a * self.domain.lower.to(a), a * self.domain.upper.to(a))
        gain = (at_ends - a * centre).clamp_max(0)
        per_unit = gain.sum(self._batch_axes(), keepdim=True) if self.axes else gain
        ordered = self.flatten_units(per_unit).sort(-1).values
        taken = torch.arange(ordered.shape[-1], device=a.device) < self.radius.floor()[:, None, None]
        slack = gamma(a[0, 0].numel()) * self.flatten((a * centre).abs() + (at_ends - a * centre).abs()).sum(-1)
        return self.flatten(a * centre).sum(-1) + (ordered * taken).sum(-1) - 3 * slack - TINY
