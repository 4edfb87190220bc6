"""Stairs: floor, ceil and round, level but for jumps by one, a distance of one apart.

Over a box f(v) - slope v is a line on every step, and beside the jumps it changes by the same amount from one to the next. So its extremes
lie at an end of the box, or beside the first or the last jump in it. Values are whole numbers, computed without rounding, and so are the
jumps up to 2^52; beyond, a step is smaller than the rounding that is charged. At a jump itself the function has the value that torch gives
it: of a box that ends there only the side counts that it has points of.
"""

from typing import ClassVar

import torch
from torch import Tensor

from holdfast.bounding.relax.base import Curve, Deviation, Interval, Point, Relaxation, clamp, unsplit


class _Stairs(Relaxation):
    unknown = unsplit("jumps again and again")
    ahead: ClassVar[float]  # the jump above the step of value k is at k + ahead

    def magnitude(self, lower: Point, upper: Point) -> Tensor:
        return 1 + torch.maximum(lower[0].abs(), upper[0].abs())

    def limits(self, lower: Point, upper: Point) -> Interval:
        return self.function(*lower), self.function(*upper)

    def _jumps(self, lower: Point, upper: Point) -> tuple[Tensor, Tensor]:
        """The first and the last in the box, where there is one."""
        return self.function(*lower) + self.ahead, self.function(*upper) - (1 - self.ahead)

    def candidates(self, lower: Point, upper: Point, slope: Point) -> list[Point]:
        """Ends, and both sides of the first and of the last jump."""
        (low,), (high,) = lower, upper
        sides = [_beside(jump, sign) for jump in self._jumps(lower, upper) for sign in (-1, 1)]
        return [lower, upper, *((clamp(side, low, high),) for side in sides)]

    def slopes(self, lower: Point, upper: Point) -> tuple[Point, Point]:
        """Below: level up to the first jump, slope one to the last, then steep to the end of the box. Above, the same turned around."""
        (low,), (high,) = lower, upper
        first, last = self._jumps(lower, upper)
        middle = low / 2 + high / 2
        behind, before = (torch.where(width > 1e-9, 1 / width, 0.0) for width in (high - last, first - low))
        below = torch.where(middle < first, 0.0, torch.where(middle < last, 1.0, behind))
        above = torch.where(middle > last, 0.0, torch.where(middle > first, 1.0, before))
        level = ~self.can_tighten(lower, upper)
        return (torch.where(level, 0.0, below),), (torch.where(level, 0.0, above),)

    def can_tighten(self, lower: Point, upper: Point) -> Tensor:
        return self.function(*lower) != self.function(*upper)

    def derivative_range(self, lower: Point, upper: Point) -> list[Interval]:
        """Level, but for the jumps."""
        jumps = torch.where(self.can_tighten(lower, upper), torch.inf, 0.0).to(lower[0])
        return [(torch.zeros_like(jumps), jumps)]

    def curves(self) -> tuple[Curve]:
        return (_Band(self),)

    def executed_error(self, lower: Point, upper: Point, dtype: torch.dtype) -> Tensor:
        """Whole numbers are exact."""
        return torch.zeros_like(lower[0])


class Floor(_Stairs):
    ahead = 1.0

    def function(self, *v: Tensor) -> Tensor:
        return torch.floor(v[0])


class Ceil(_Stairs):
    ahead = 0.0

    def function(self, *v: Tensor) -> Tensor:
        return torch.ceil(v[0])


class Round(_Stairs):
    """Halves go to the even neighbour."""

    ahead = 0.5

    def function(self, *v: Tensor) -> Tensor:
        return torch.round(v[0])


def _beside(v: Tensor, sign: int) -> Tensor:
    """The next number to one side; beside zero one that is never taken for it."""
    return torch.where(v == 0, sign * 1e-300, torch.nextafter(v, torch.full_like(v, sign * torch.inf)))


class _Band(Curve):
    """v - ahead <= f(v) <= v - ahead + 1; on a single step, its value."""

    def __init__(self, stairs: _Stairs) -> None:
        self.stairs = stairs

    def function(self, x: Tensor) -> Tensor:
        return self.stairs.function(x)

    def sizes(self, lower: Tensor, upper: Tensor) -> tuple[float, float]:
        return 1.0, 1.0

    def extremes(
        self, deviation: Deviation, slope: Tensor, bend: Tensor, lower: Tensor, upper: Tensor, at: Tensor
    ) -> Interval:
        """Of a line less a parabola: at the ends, and where the parabola is as steep as the line; clamped where there is no such place."""
        step = self.function(lower)

        def strays(line: float) -> Tensor:
            top = clamp(at + (line - slope) / (2 * bend), lower, upper)
            places = torch.stack([lower, upper, top])
            away = places - at
            return (places if line else step) - away * (slope + bend * away)

        level, rising = strays(0.0), strays(1.0)
        same = step == self.function(upper)
        least = torch.where(same, level.amin(0), rising.amin(0) - self.stairs.ahead)
        return least, torch.where(same, level.amax(0), rising.amax(0) + (1 - self.stairs.ahead))
