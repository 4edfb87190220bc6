"""Sine and cosine, on boxes of any width.

Statement and assumptions: see `base.py`. f'(v) = a has two solutions per period (|a| <= 1). From one period to the next f(v)
- a v changes there by the same amount -a 2 pi, so for each of the two families only the first and the last
solution in the box can be extreme.

Rounding: a solution is found to d = 4 u (1 + |v|). f(v) - a v is stationary there with curvature at most one,
so the error is at most d^2 / 2 <= 8 u^2 (1 + |v|)^2; the magnitude 1 + (2^-25 v)^2 covers it in the 64 u of
`base.py`.

Reference: none; the derivation above is complete.
"""

import math
from abc import abstractmethod

import torch
from torch import Tensor

from holdfast.bounding.relax.base import NO_KINK, Interval, Point, Relaxation, clamp, value_range
from holdfast.bounding.relax.hull import hull_slopes
from holdfast.bounding.relax.parabola import SmoothCurve

PERIOD = 2 * math.pi  # The period of sine and cosine.


class _Wave(Relaxation):
    """What sine and cosine have in common."""

    measured = True
    unknown = NO_KINK

    @abstractmethod
    def _steep(self, slope: Tensor) -> tuple[Tensor, Tensor]:
        """The two solutions of f'(v) = slope in a period, for -1 <= slope <= 1."""

    @abstractmethod
    def _derivative(self, v: Tensor) -> Tensor: ...

    def magnitude(self, lower: Point, upper: Point) -> Tensor:
        """1 + (2^-25 v)^2, which covers the error of the solutions (see the module's docstring)."""
        return 1 + (torch.maximum(lower[0].abs(), upper[0].abs()) * 2.0**-25).square()

    def limits(self, lower: Point, upper: Point) -> Interval:
        one = torch.ones_like(lower[0])
        return -one, one

    def candidates(self, lower: Point, upper: Point, slope: Point) -> list[Point]:
        """Ends, and the first and last solution of f'(v) = slope in the box. For |slope| > 1 there is no
        solution; the candidates of slope +-1 are harmless.
        """
        (low,), (high,) = lower, upper
        points = [lower, upper]
        for root in self._steep(slope[0].clamp(-1, 1)):
            for turns in (torch.ceil((low - root) / PERIOD), torch.floor((high - root) / PERIOD)):
                points.append((clamp(root + PERIOD * turns, low, high),))
        return points

    def slopes(self, lower: Point, upper: Point) -> tuple[Point, Point]:
        """Zero over more than a period, where no linear bound is much tighter."""
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
