"""ReLU, leaky ReLU and ELU: all that bends lies at zero or below."""

from dataclasses import dataclass

import torch
from torch import Tensor

from holdfast.bounds.relax.base import Point, Relaxation, chord, clamp


@dataclass(frozen=True)
class LeakyRelu(Relaxation):
    """max(v, slope * v) for 0 <= slope <= 1."""

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


@dataclass(frozen=True)
class Elu(Relaxation):
    """v for v > 0, alpha (exp(v) - 1) below; convex for alpha <= 1, and its derivative is known in any case."""

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
        middle = low / 2 + high / 2
        tangent = torch.where(middle > 0, 1.0, self.alpha * torch.exp(middle.clamp_max(0)))
        return (tangent,), (chord(self.function(low), self.function(high), low, high, tangent),)
