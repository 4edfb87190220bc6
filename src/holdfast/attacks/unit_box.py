"""Regions as unit boxes, so that a search over boxes can search them."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from holdfast.region import Drift, Region
from holdfast.region.normed import NormFamily
from holdfast.region.norms import norm


@dataclass(frozen=True, eq=False)
class Chart:
    """t in [0, 1]^n -> low + t (high - low), then back into the region where the box is larger."""

    region: Region
    low: Tensor  # (batch, n) float64
    high: Tensor  # (batch, n) float64

    def point(self, t: Tensor) -> Tensor:
        """(..., batch, n) -> (..., batch, *shape), points of the region."""
        return self.region.project(self.corner(t))

    def corner(self, t: Tensor) -> Tensor:
        """The same before it is brought back into the region."""
        x = self.low + t * (self.high - self.low)
        return x.reshape(*x.shape[:-1], *self.region.shape).to(self.region.centre)

    def place(self, x: Tensor) -> Tensor:
        """The way back: (..., batch, *shape) -> (..., batch, n); features that cannot move lie anywhere."""
        width = self.high - self.low
        return ((self.region.flatten(x.double()) - self.low) / torch.where(width > 0, width, 1)).clamp(0, 1)


@dataclass(frozen=True, eq=False)
class Radial(Chart):
    """x + r u / ||u||_p for u in [-1, 1]^n and r = radius ||u||_inf, in every group of features; clipped to the domain.

    The cube is stretched onto the ball along rays. The clip only comes closer. A feature at the end of its domain has but one way to go.
    """

    def corner(self, t: Tensor) -> Tensor:
        family = self.family
        u = (self.low + t * (self.high - self.low)).reshape(*t.shape[:-1], *family.shape)
        grouped = family.group_features(u)
        unit = grouped * _quotient(grouped, math.inf, family.p)
        away = (unit * (family.radius.double()[:, None] * family.free())[..., None]).reshape(u.shape)
        return family.domain.clamp((family.centre.double() + away).to(family.centre))

    def place(self, x: Tensor) -> Tensor:
        family = self.family
        reach = (family.radius.double()[:, None] * family.free())[..., None]
        away = family.group_features(x.double() - family.centre.double()) / torch.where(reach > 0, reach, 1)
        u = family.flatten((away * _quotient(away, family.p, math.inf)).reshape(x.shape))
        width = self.high - self.low
        return ((u - self.low) / torch.where(width > 0, width, 1)).clamp(0, 1)

    @property
    def family(self) -> NormFamily:
        assert isinstance(self.region, NormFamily)
        return self.region


@dataclass(frozen=True, eq=False)
class DriftBox(Chart):
    """A chart of the offsets, of which there are fewer than numbers in a window."""

    offsets: Chart

    def point(self, t: Tensor) -> Tensor:
        return self.drift.windows(self.offsets.point(t), self.region.centre)

    def place(self, x: Tensor) -> Tensor:
        return self.offsets.place(self.drift.offset(x))

    @property
    def drift(self) -> Drift:
        assert isinstance(self.region, Drift)
        return self.region


def chart(region: Region) -> Chart:
    """Radial where the region is a ball that is no box, that of its offsets for a drift, else the box around the region."""
    if isinstance(region, Drift):
        offsets = chart(region.offsets())
        return DriftBox(region, offsets.low, offsets.high, offsets)
    low, high = (region.flatten(end) for end in region.enclosing_box())
    if isinstance(region, NormFamily) and not math.isinf(region.p) and bool(region.radius.isfinite().all()):
        centre = region.flatten(region.centre.double())
        return Radial(region, -(low < centre).double(), (high > centre).double())
    return Chart(region, low, high)


def _quotient(v: Tensor, above: float, below: float) -> Tensor:
    """(..., n) -> (..., 1): one norm over another, zero for zero."""
    lower = norm(v, below).unsqueeze(-1)
    return torch.where(lower > 0, norm(v, above).unsqueeze(-1) / torch.where(lower > 0, lower, 1), 0.0)
