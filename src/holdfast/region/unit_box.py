"""Maps from the unit box onto regions, so that a search over the unit box can search any region."""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from holdfast.region.norms import norm

if TYPE_CHECKING:
    from holdfast.region.base import Region
    from holdfast.region.drift import Drift
    from holdfast.region.normed import NormFamily


@dataclass(frozen=True, eq=False)
class BoxMap:
    """The map t in [0, 1]^n -> low + t (high - low), projected into the region where the box is larger than
    it.
    """

    region: "Region"
    low: Tensor  # (batch, n) float64
    high: Tensor  # (batch, n) float64

    def point(self, t: Tensor) -> Tensor:
        """Map (..., batch, n) to points (..., batch, *shape) of the region."""
        return self.region.project(self.corner(t))

    def corner(self, t: Tensor) -> Tensor:
        """Return the same as `point` before the projection into the region."""
        x = self.low + t * (self.high - self.low)
        return x.reshape(*x.shape[:-1], *self.region.shape).to(self.region.centre)

    def place(self, x: Tensor) -> Tensor:
        """The inverse map, (..., batch, *shape) to (..., batch, n); the value is arbitrary for features that
        cannot move.
        """
        width = self.high - self.low
        return ((self.region.flatten(x.double()) - self.low) / torch.where(width > 0, width, 1)).clamp(0, 1)


@dataclass(frozen=True, eq=False)
class Radial(BoxMap):
    """The map x = centre + r u / ||u||_p for u in [-1, 1]^n with r = radius * ||u||_inf, in every group of
    features, clipped to the domain.

    It stretches the cube onto the ball along rays. Clipping never increases the distance. A feature at the
    limit of its domain can move in one direction only, so its u is restricted to that sign.
    """

    region: "NormFamily"

    def corner(self, t: Tensor) -> Tensor:
        family = self.region
        u = (self.low + t * (self.high - self.low)).reshape(*t.shape[:-1], *family.shape)
        grouped = family.group_features(u)
        unit = grouped * _quotient(grouped, math.inf, family.norm)
        away = (unit * (family.radius.double()[:, None] * family.free())[..., None]).reshape(u.shape)
        return family.domain.clamp((family.centre.double() + away).to(family.centre))

    def place(self, x: Tensor) -> Tensor:
        family = self.region
        reach = (family.radius.double()[:, None] * family.free())[..., None]
        away = family.group_features(x.double() - family.centre.double()) / torch.where(reach > 0, reach, 1)
        u = family.flatten((away * _quotient(away, family.norm, math.inf)).reshape(x.shape))
        width = self.high - self.low
        return ((u - self.low) / torch.where(width > 0, width, 1)).clamp(0, 1)


@dataclass(frozen=True, eq=False)
class DriftBox(BoxMap):
    """A map onto the offsets of a drift, which are fewer than the numbers in a window."""

    region: "Drift"
    offsets: BoxMap

    def point(self, t: Tensor) -> Tensor:
        return self.region.windows(self.offsets.point(t), self.region.centre)

    def place(self, x: Tensor) -> Tensor:
        return self.offsets.place(self.region.offset(x))


def _quotient(v: Tensor, above: float, below: float) -> Tensor:
    """Map (..., n) to (..., 1): the quotient of two norms, zero for the zero vector."""
    lower = norm(v, below).unsqueeze(-1)
    return torch.where(lower > 0, norm(v, above).unsqueeze(-1) / torch.where(lower > 0, lower, 1), 0.0)
