"""v^n for integers n >= 2: convex for even n, with an inflection point at zero for odd n.

Statement and assumptions: see `base.py`. f'(v) = n v^(n-1) = a has at most two solutions +-(|a| / n)^(1 / (n-1)), so these
and the ends of the box include every extreme point. Rounding: stationary points count to second order.

Reference: none; the derivation above is complete.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from holdfast.bounding.relax.base import (
    NO_KINK,
    Interval,
    Point,
    Relaxation,
    clamp,
    hull,
    smallest_and_largest_magnitude,
)
from holdfast.bounding.relax.hull import hull_slopes
from holdfast.bounding.relax.parabola import SmoothCurve


@dataclass(frozen=True)
class Power(Relaxation):
    """v ** exponent."""

    exponent: int = 2
    measured = True
    unknown = NO_KINK

    def function(self, *v: Tensor) -> Tensor:
        return v[0] ** self.exponent

    def candidates(self, lower: Point, upper: Point, slope: Point) -> list[Point]:
        """Ends, and the solutions of n v^(n-1) = slope: at most two points with the same |v|."""
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
        """Even powers are nonnegative."""
        zero = torch.zeros_like(lower[0])
        return (zero, zero + torch.inf) if self.exponent % 2 == 0 else None

    def derivative_range(self, lower: Point, upper: Point) -> list[Interval]:
        """n v^(n-1) is increasing for even n; for odd n it is even and increases with |v|."""
        ends = (
            (lower[0], upper[0])
            if self.exponent % 2 == 0
            else smallest_and_largest_magnitude(lower[0], upper[0])
        )
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
