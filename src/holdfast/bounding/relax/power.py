"""v^n for whole n >= 2: bent one way for even n, both ways for odd n."""

from dataclasses import dataclass

import torch
from torch import Tensor

from holdfast.bounding.relax.base import BENT, Interval, Point, Relaxation, clamp, hull, near_and_far
from holdfast.bounding.relax.hull import hull_slopes
from holdfast.bounding.relax.parabola import SmoothCurve


@dataclass(frozen=True)
class Power(Relaxation):
    exponent: int = 2
    measured = True
    unknown = BENT

    def function(self, *v: Tensor) -> Tensor:
        return v[0] ** self.exponent

    def candidates(self, lower: Point, upper: Point, slope: Point) -> list[Point]:
        """Ends, and where n v^(n-1) = slope: at most two points, of one size."""
        size = (slope[0].abs() / self.exponent) ** (1 / (self.exponent - 1))
        return [lower, upper, *((clamp(root, lower[0], upper[0]),) for root in (size, -size))]

    def slopes(self, lower: Point, upper: Point) -> tuple[Point, Point]:
        (low,), (high,) = lower, upper
        if self.exponent == 2:
            return (low + high,), (low + high,)
        below, above = hull_slopes(
            self.function, lambda v: self.exponent * v ** (self.exponent - 1), low, high
        )
        return (below,), (above,)

    def limits(self, lower: Point, upper: Point) -> Interval | None:
        """An even power is never negative."""
        zero = torch.zeros_like(lower[0])
        return (zero, zero + torch.inf) if self.exponent % 2 == 0 else None

    def derivative_range(self, lower: Point, upper: Point) -> list[Interval]:
        """n v^(n - 1): rises for even n; for odd n it is even and rises with |v|."""
        ends = (lower[0], upper[0]) if self.exponent % 2 == 0 else near_and_far(lower[0], upper[0])
        return [hull(*(self.exponent * v ** (self.exponent - 1) for v in ends), units=64 + 4 * self.exponent)]

    def curves(self) -> tuple[SmoothCurve]:
        n = self.exponent
        most = n * (n - 1) * (n - 2)
        return (
            SmoothCurve(
                self,
                lambda v: n * (n - 1) * v ** (n - 2),
                lambda lower, upper: (
                    most * torch.maximum(lower.abs(), upper.abs()) ** max(n - 3, 0) * (1 + 1e-9)
                ),
            ),
        )
