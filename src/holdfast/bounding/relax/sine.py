"""Sine and cosine, on boxes of any width.

Where the derivative is the slope, f(v) - slope v falls or rises by the same amount from one period to the next, so for each of the two such
places of a period only the first and the last in the box count. A place is found to a few units d of v itself, which moves the value by
d^2 / 2 at most: the magnitude grows with the square of v to pay for that.
"""

import math
from abc import abstractmethod

import torch
from torch import Tensor

from holdfast.bounding.relax.base import BENT, Interval, Point, Relaxation, clamp, value_range
from holdfast.bounding.relax.hull import hull_slopes
from holdfast.bounding.relax.parabola import SmoothCurve

PERIOD = 2 * math.pi


class _Wave(Relaxation):
    measured = True
    unknown = BENT

    @abstractmethod
    def _steep(self, slope: Tensor) -> tuple[Tensor, Tensor]:
        """The two places of a period where the derivative is the slope, -1 <= slope <= 1."""

    @abstractmethod
    def _derivative(self, v: Tensor) -> Tensor: ...

    def magnitude(self, lower: Point, upper: Point) -> Tensor:
        return 1 + (torch.maximum(lower[0].abs(), upper[0].abs()) * 2.0**-25).square()

    def limits(self, lower: Point, upper: Point) -> Interval:
        one = torch.ones_like(lower[0])
        return -one, one

    def candidates(self, lower: Point, upper: Point, slope: Point) -> list[Point]:
        """A slope steeper than the curve ever is has the places of the steepest one, which do no harm."""
        (low,), (high,) = lower, upper
        points = [lower, upper]
        for root in self._steep(slope[0].clamp(-1, 1)):
            for turns in (torch.ceil((low - root) / PERIOD), torch.floor((high - root) / PERIOD)):
                points.append((clamp(root + PERIOD * turns, low, high),))
        return points

    def slopes(self, lower: Point, upper: Point) -> tuple[Point, Point]:
        """Over more than a period, level: no line comes much closer."""
        (low,), (high,) = lower, upper
        wide = high - low > PERIOD
        below, above = hull_slopes(self.function, self._derivative, low, high)
        return (torch.where(wide, 0.0, below),), (torch.where(wide, 0.0, above),)

    def curves(self) -> tuple[SmoothCurve]:
        return (SmoothCurve(self, lambda v: -self.function(v), lambda lower, upper: 1.0, steepest=1.0),)


class Sine(_Wave):
    def function(self, *v: Tensor) -> Tensor:
        return torch.sin(v[0])

    def _derivative(self, v: Tensor) -> Tensor:
        return torch.cos(v)

    def _steep(self, slope: Tensor) -> tuple[Tensor, Tensor]:
        """cos(v) = slope."""
        root = torch.acos(slope)
        return root, -root

    def derivative_range(self, lower: Point, upper: Point) -> list[Interval]:
        return [value_range(Cosine(), lower, upper)]


class Cosine(_Wave):
    def function(self, *v: Tensor) -> Tensor:
        return torch.cos(v[0])

    def _derivative(self, v: Tensor) -> Tensor:
        return -torch.sin(v)

    def _steep(self, slope: Tensor) -> tuple[Tensor, Tensor]:
        """-sin(v) = slope."""
        root = torch.asin(slope)
        return -root, math.pi + root

    def derivative_range(self, lower: Point, upper: Point) -> list[Interval]:
        low, high = value_range(Sine(), lower, upper)
        return [(-high, -low)]
