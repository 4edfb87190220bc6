"""Functions in pieces: ReLU and its kin, absolute values, clipping, ELU, hard swish. Where pieces meet is always a candidate."""

from dataclasses import dataclass

import torch
from torch import Tensor

from holdfast.bounding.relax.base import Point, Relaxation, chord, clamp
from holdfast.bounding.relax.hull import hull_slopes


@dataclass(frozen=True)
class LeakyRelu(Relaxation):
    """max(v, slope * v) for slope <= 1."""

    negative_slope: float = 0.01

    def function(self, *v: Tensor) -> Tensor:
        return torch.where(v[0] > 0, v[0], self.negative_slope * v[0])

    def candidates(self, lower: Point, upper: Point, slope: Point) -> list[Point]:
        """Linear on both sides of zero."""
        return [lower, upper, (clamp(torch.zeros_like(lower[0]), lower[0], upper[0]),)]

    def slopes(self, lower: Point, upper: Point) -> tuple[Point, Point]:
        (low,), (high,) = lower, upper
        positive = torch.where(low + high > 0, 1.0, self.negative_slope).to(low)
        steep = torch.where(low >= 0, 1.0, torch.where(high <= 0, self.negative_slope, 0.0)).to(low)
        across = chord(self.function(low), self.function(high), low, high, positive)
        return (positive,), (torch.where((low < 0) & (high > 0), across, steep),)

    def unresolved(self, lower: Point, upper: Point) -> Tensor:
        return (lower[0] < 0) & (upper[0] > 0)


class Relu(LeakyRelu):
    def __init__(self) -> None:
        super().__init__(negative_slope=0.0)


class Abs(LeakyRelu):
    def __init__(self) -> None:
        super().__init__(negative_slope=-1.0)


@dataclass(frozen=True)
class Clip(Relaxation):
    """v between two numbers, low <= high, either of which may be infinite."""

    low: float = -torch.inf
    high: float = torch.inf

    def function(self, *v: Tensor) -> Tensor:
        return v[0].clamp(self.low, self.high)

    def candidates(self, lower: Point, upper: Point, slope: Point) -> list[Point]:
        (low,), (high,) = lower, upper
        return [lower, upper, *((clamp(torch.full_like(low, kink), low, high),) for kink in (self.low, self.high))]

    def slopes(self, lower: Point, upper: Point) -> tuple[Point, Point]:
        """Below: level as far as the middle, or from where it bends up to the upper end. Above, the same turned around."""
        (low,), (high,) = lower, upper
        middle = low / 2 + high / 2
        inside = ((self.low < middle) & (middle < self.high)).to(low)
        below = chord(self.function(low), self.function(high), low.clamp_min(self.low), high, inside)
        above = chord(self.function(low), self.function(high), low, high.clamp_max(self.high), inside)
        return (torch.where(middle < self.low, 0.0, below),), (torch.where(middle > self.high, 0.0, above),)

    def unresolved(self, lower: Point, upper: Point) -> Tensor:
        (low,), (high,) = lower, upper
        return ((low < self.low) & (self.low < high)) | ((low < self.high) & (self.high < high))


@dataclass(frozen=True)
class Elu(Relaxation):
    """v for v > 0, alpha (exp(v) - 1) below, for alpha > 0; convex for alpha <= 1, else bent back at zero."""

    alpha: float = 1.0

    def function(self, *v: Tensor) -> Tensor:
        return torch.where(v[0] > 0, v[0], self.alpha * torch.expm1(v[0].clamp_max(0)))

    def candidates(self, lower: Point, upper: Point, slope: Point) -> list[Point]:
        """Ends, the bend at zero, and where alpha exp(v) = slope."""
        (low,), (high,) = lower, upper
        level = torch.log((slope[0] / self.alpha).clamp_min(1e-300)).clamp_max(0)
        return [lower, upper, (clamp(torch.zeros_like(low), low, high),), (clamp(level, low, high),)]

    def slopes(self, lower: Point, upper: Point) -> tuple[Point, Point]:
        (low,), (high,) = lower, upper
        if self.alpha > 1:
            below, above = hull_slopes(self.function, self._derivative, low, high)
            return (below,), (above,)
        tangent = self._derivative(low / 2 + high / 2)
        return (tangent,), (chord(self.function(low), self.function(high), low, high, tangent),)

    def _derivative(self, v: Tensor) -> Tensor:
        return torch.where(v > 0, 1.0, self.alpha * torch.exp(v.clamp_max(0)))


class Hardswish(Relaxation):
    """v (v + 3) / 6 between -3 and 3, 0 before, v after."""

    def function(self, *v: Tensor) -> Tensor:
        inside = v[0].clamp(-3, 3)
        return torch.where(v[0] > 3, v[0], inside * (inside + 3) / 6)

    def magnitude(self, lower: Point, upper: Point) -> Tensor:
        return torch.maximum(*(end[0].clamp_min(-3).abs() for end in (lower, upper)))

    def candidates(self, lower: Point, upper: Point, slope: Point) -> list[Point]:
        """Ends, the two kinks, and where (2 v + 3) / 6 = slope between them."""
        (low,), (high,) = lower, upper
        level = (3 * slope[0] - 1.5).clamp(-3, 3)
        return [lower, upper, *((clamp(v, low, high),) for v in (level, torch.full_like(low, -3), torch.full_like(low, 3)))]

    def slopes(self, lower: Point, upper: Point) -> tuple[Point, Point]:
        below, above = hull_slopes(self.function, self._derivative, lower[0], upper[0])
        return (below,), (above,)

    def _derivative(self, v: Tensor) -> Tensor:
        return torch.where(v < -3, 0.0, torch.where(v > 3, 1.0, (2 * v + 3) / 6))
