"""v^n for whole n >= 2: bent one way for even n, both ways for odd n."""

from dataclasses import dataclass

from torch import Tensor

from holdfast.bounding.relax.base import Point, Relaxation, clamp
from holdfast.bounding.relax.hull import hull_slopes


@dataclass(frozen=True)
class Power(Relaxation):
    exponent: int = 2

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
        below, above = hull_slopes(self.function, lambda v: self.exponent * v ** (self.exponent - 1), low, high)
        return (below,), (above,)
