"""Parabolas beside a function: for any two coefficients, how far the function strays from b1 D + b2 D^2 on an interval.

As with planes the coefficients are free and the soundness lies in one place: the smallest and the largest deviation, bounded
rigorously. A smooth function is looked at on a grid; between two neighbours at distance h the deviation d(x) lies within h^2 / 8 times the
largest |d''| of the straight line between its values, and d'' itself changes by at most half a step of the third derivative.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from holdfast.bounding.relax import LeakyRelu, Relaxation, Relu, Sigmoid, Tanh
from holdfast.bounding.relax.base import UNIT, clamp

CELLS = 24  # of the grid: the excess of the bound falls with its square, and is about two parts in a hundred here


class Curve(ABC):
    """A function of one argument that parabolas can follow."""

    @abstractmethod
    def function(self, x: Tensor) -> Tensor: ...

    @abstractmethod
    def steepest(self) -> float:
        """No slope of the function is larger in size."""

    @abstractmethod
    def extremes(
        self, deviation: Callable[[Tensor], Tensor], slope: Tensor, bend: Tensor, lower: Tensor, upper: Tensor, at: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Bounds of f(x) - slope (x - at) - bend (x - at)^2 for lower <= x <= upper, but for rounding."""


@dataclass(frozen=True)
class Smooth(Curve):
    """third: no third derivative is larger in size."""

    of: Callable[[Tensor], Tensor]
    second: Callable[[Tensor], Tensor]
    third: float
    slope: float

    def function(self, x: Tensor) -> Tensor:
        return self.of(x)

    def steepest(self) -> float:
        return self.slope

    def extremes(
        self, deviation: Callable[[Tensor], Tensor], slope: Tensor, bend: Tensor, lower: Tensor, upper: Tensor, at: Tensor
    ) -> tuple[Tensor, Tensor]:
        share = torch.linspace(0, 1, CELLS + 1, dtype=lower.dtype, device=lower.device).reshape(-1, *(1 for _ in lower.shape))
        grid = lower + (upper - lower) * share
        values, bends = deviation(grid), self.second(grid) - 2 * bend
        step = (upper - lower) / CELLS * (1 + 1e-9) + 8 * UNIT * (lower.abs() + upper.abs())  # the places are rounded too
        across, turn = step * step / 8, step * self.third / 2 + 1e-13
        highest = torch.maximum(values[1:], values[:-1]) + across * (turn - torch.minimum(bends[1:], bends[:-1])).clamp_min(0)
        lowest = torch.minimum(values[1:], values[:-1]) - across * (turn + torch.maximum(bends[1:], bends[:-1])).clamp_min(0)
        return lowest.amin(0), highest.amax(0)


@dataclass(frozen=True)
class Bent(Curve):
    """Two straight pieces that meet at zero: extremes at the ends, at zero, and where the parabola is as steep as a piece."""

    relaxation: LeakyRelu

    def function(self, x: Tensor) -> Tensor:
        return self.relaxation.function(x)

    def steepest(self) -> float:
        return 1.0

    def extremes(
        self, deviation: Callable[[Tensor], Tensor], slope: Tensor, bend: Tensor, lower: Tensor, upper: Tensor, at: Tensor
    ) -> tuple[Tensor, Tensor]:
        tops = [at + (piece - slope) / (2 * bend) for piece in (1.0, self.relaxation.negative_slope)]  # clamped where it has no top
        points = [lower, upper, clamp(torch.zeros_like(lower), lower, upper), *(clamp(top, lower, upper) for top in tops)]
        values = deviation(torch.stack(points))
        return values.amin(0), values.amax(0)


def _tanh_second(x: Tensor) -> Tensor:
    t = torch.tanh(x)
    return -2 * t * (1 - t * t)


def _sigmoid_second(x: Tensor) -> Tensor:
    s = torch.sigmoid(x)
    return s * (1 - s) * (1 - 2 * s)


TANH = Smooth(torch.tanh, _tanh_second, third=2.0, slope=1.0)
SIGMOID = Smooth(torch.sigmoid, _sigmoid_second, third=0.125, slope=0.25)


def curve_of(relaxation: Relaxation) -> Curve | None:
    """The curve of a relaxation of one argument, where there is one."""
    if isinstance(relaxation, Tanh):
        return TANH
    if isinstance(relaxation, Sigmoid):
        return SIGMOID
    if isinstance(relaxation, LeakyRelu | Relu):
        return Bent(relaxation)
    return None


def parabola(curve: Curve, lower: Tensor, upper: Tensor, at: Tensor) -> tuple[Tensor, Tensor]:
    """Good slope and bend for a parabola around `at`: through the three Chebyshev points of the interval."""
    middle = lower / 2 + upper / 2
    reach = (upper / 2 - lower / 2).clamp_min(1e-3) * (math.sqrt(3) / 2)
    centre, right, left = (curve.function(x) for x in (middle, middle + reach, middle - reach))
    bend = (right + left - 2 * centre) / (2 * reach * reach)
    return (right - left) / (2 * reach) + 2 * bend * (at - middle), bend


def deviation(curve: Curve, slope: Tensor, bend: Tensor, lower: Tensor, upper: Tensor, at: Tensor) -> tuple[Tensor, Tensor]:
    """The smallest and largest f(x) - slope (x - at) - bend (x - at)^2 for lower <= x <= upper, rounded outwards."""

    def strays(x: Tensor) -> Tensor:
        away = x - at
        return curve.function(x) - away * (slope + bend * away)

    least, most = curve.extremes(strays, slope, bend, lower, upper, at)
    furthest = torch.maximum(lower.abs(), upper.abs())
    away = torch.maximum((lower - at).abs(), (upper - at).abs())
    # Values, their places and the end of the grid are each off by a few units of all that enters.
    size = 1 + (curve.steepest() + slope.abs() + 2 * bend.abs() * away) * (furthest + at.abs() + away) + bend.abs() * away * away
    slack = 64 * UNIT * size
    return least - slack, most + slack
