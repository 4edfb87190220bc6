"""Floor, ceil and round: constant up to jumps by one, at distance one.

Statement and assumptions: see `base.py`. Between jumps f(v) - a v is linear, and on either side of the jumps it changes by
the same amount from one jump to the next. So the extremes over a box lie at its ends, or on either side of
the first or the last jump inside it.

Rounding: values are integers, computed exactly, and so are the jumps up to 2^52; beyond that, a step is
smaller than the charged rounding error. At a jump the function has torch's value: for a box that ends there,
only the side that it contains counts.

Reference: none; the derivation above is complete.
"""

from typing import ClassVar

import torch
from torch import Tensor

from holdfast.bounding.relax.base import (
    Curve,
    Deviation,
    Interval,
    Point,
    Relaxation,
    clamp,
    without_sign_split,
)

# Boxes that are wider, in steps, are not worth tighter bounds (chosen by hand).
WIDE_STEPS = 1.0


class _Stairs(Relaxation):
    """What floor, ceil and round have in common."""

    unknown = without_sign_split("more than one jump")
    ahead: ClassVar[float]  # The step with value k ends at the jump k + ahead.

    def magnitude(self, lower: Point, upper: Point) -> Tensor:
        return 1 + torch.maximum(lower[0].abs(), upper[0].abs())

    def limits(self, lower: Point, upper: Point) -> Interval:
        return self.function(*lower), self.function(*upper)

    def _jumps(self, lower: Point, upper: Point) -> tuple[Tensor, Tensor]:
        """The first and the last jump in the box, if there is one."""
        return self.function(*lower) + self.ahead, self.function(*upper) - (1 - self.ahead)

    def candidates(self, lower: Point, upper: Point, slope: Point) -> list[Point]:
        """Ends, and both sides of the first and of the last jump."""
        (low,), (high,) = lower, upper
        sides = [_beside(jump, sign) for jump in self._jumps(lower, upper) for sign in (-1, 1)]
        return [lower, upper, *((clamp(side, low, high),) for side in sides)]

    def slopes(self, lower: Point, upper: Point) -> tuple[Point, Point]:
        """Below: zero before the first jump, one up to the last, then steep up to the end of the box. Above:
        the mirror image.
        """
        (low,), (high,) = lower, upper
        first, last = self._jumps(lower, upper)
        middle = low / 2 + high / 2
        behind, before = (torch.where(width > 1e-9, 1 / width, 0.0) for width in (high - last, first - low))
        below = torch.where(middle < first, 0.0, torch.where(middle < last, 1.0, behind))
        above = torch.where(middle > last, 0.0, torch.where(middle > first, 1.0, before))
        level = ~self._jumps_inside(lower, upper)
        return (torch.where(level, 0.0, below),), (torch.where(level, 0.0, above),)

    def can_tighten(self, lower: Point, upper: Point) -> Tensor:
        """On wide boxes the linear bounds are one apart, whatever the box."""
        return self._jumps_inside(lower, upper) & (upper[0] - lower[0] < WIDE_STEPS)

    def _jumps_inside(self, lower: Point, upper: Point) -> Tensor:
        return self.function(*lower) != self.function(*upper)

    def derivative_range(self, lower: Point, upper: Point) -> list[Interval]:
        """Zero, and infinite at jumps."""
        jumps = torch.where(self._jumps_inside(lower, upper), torch.inf, 0.0).to(lower[0])
        return [(torch.zeros_like(jumps), jumps)]

    def curves(self) -> tuple[Curve]:
        return (_Band(self),)

    def executed_error(self, lower: Point, upper: Point, dtype: torch.dtype) -> Tensor:
        """Integers are exact."""
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
    """Round to the nearest integer; halves to the even one."""

    ahead = 0.5

    def function(self, *v: Tensor) -> Tensor:
        return torch.round(v[0])


def _beside(v: Tensor, sign: int) -> Tensor:
    """The neighbouring float on one side; next to zero, +-1e-300, which is not flushed to zero."""
    return torch.where(v == 0, sign * 1e-300, torch.nextafter(v, torch.full_like(v, sign * torch.inf)))


class _Band(Curve):
    """The enclosure v - ahead <= f(v) <= v - ahead + 1; exact on a single step."""

    def __init__(self, stairs: _Stairs) -> None:
        self.stairs = stairs

    def function(self, x: Tensor) -> Tensor:
        return self.stairs.function(x)

    def sizes(self, lower: Tensor, upper: Tensor) -> tuple[float, float]:
        return 1.0, 1.0

    def extremes(
        self, deviation: Deviation, slope: Tensor, quad: Tensor, lower: Tensor, upper: Tensor, at: Tensor
    ) -> Interval:
        """The extremes of a line minus a parabola: at the ends, and where the slopes are equal (clamped)."""
        step = self.function(lower)

        def strays(line: float) -> Tensor:
            top = clamp(at + (line - slope) / (2 * quad), lower, upper)
            places = torch.stack([lower, upper, top])
            away = places - at
            return (places if line else step) - away * (slope + quad * away)

        level, rising = strays(0.0), strays(1.0)
        same = step == self.function(upper)
        least = torch.where(same, level.amin(0), rising.amin(0) - self.stairs.ahead)
        return least, torch.where(same, level.amax(0), rising.amax(0) + (1 - self.stairs.ahead))
