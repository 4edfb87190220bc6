"""Quadratic relaxation: parabolas beside a function. For any two coefficients, how far it strays from b1 D + b2 D^2 on an interval.

As with planes the coefficients are free and the soundness lies in one place: the smallest and the largest deviation, bounded
rigorously. A smooth function is looked at on a grid; between two neighbours at distance h the deviation d(x) lies within h^2 / 8 times the
largest |d''| of the straight line between its values, and d'' itself changes by at most half a step of the third derivative.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from holdfast.bounding.relax.base import UNIT, Curve, Deviation, Interval, Relaxation, clamp

ROUGH = 0.4  # half of an interval
CELLS = (
    24  # of the grid: the excess of the bound falls with its square, and is about two parts in a hundred here
)


@dataclass(frozen=True)
class SmoothCurve(Curve):
    """A relaxation's function, but for what it may lie below the given one; `second` is right to 1e-13 of one and of its size."""

    relaxation: Relaxation
    second: Callable[[Tensor], Tensor]
    third: Callable[[Tensor, Tensor], Tensor | float]  # no third derivative on the interval is larger in size
    steepest: float | None = None  # no slope is larger in size; None: the relaxation is asked on the interval
    value: float = 1.0  # |f(x)| <= value + steepest |x|
    given: Callable[[Tensor], Tensor] | None = (
        None  # the function that is smooth, where the relaxation's own is not
    )
    below: Callable[[Tensor, Tensor], Tensor] | None = (
        None  # by how much the relaxation's may be less than it
    )

    def function(self, x: Tensor) -> Tensor:
        return self.relaxation.function(x) if self.given is None else self.given(x)

    def sizes(self, lower: Tensor, upper: Tensor) -> tuple[Tensor | float, Tensor | float]:
        if self.steepest is not None:
            return self.value, self.steepest
        ((low, high),) = self.relaxation.derivative_range((lower,), (upper,)) or [(lower * torch.nan, upper)]
        return 1 + self.relaxation.magnitude((lower,), (upper,)), torch.maximum(low.abs(), high.abs())

    def extremes(
        self, deviation: Deviation, slope: Tensor, bend: Tensor, lower: Tensor, upper: Tensor, at: Tensor
    ) -> Interval:
        share = torch.linspace(0, 1, CELLS + 1, dtype=lower.dtype, device=lower.device).reshape(
            -1, *(1 for _ in lower.shape)
        )
        grid = lower + (upper - lower) * share
        seconds = self.second(grid)
        values, bends = deviation(grid), seconds - 2 * bend
        step = (upper - lower) / CELLS * (1 + 1e-9) + 8 * UNIT * (
            lower.abs() + upper.abs()
        )  # the places are rounded too
        missed = 1e-13 if self.steepest is not None else 1e-13 * (1 + seconds.abs().amax(0))
        across, turn = step * step / 8, step * self.third(lower, upper) / 2 + missed
        highest = torch.maximum(values[1:], values[:-1]) + across * (
            turn - torch.minimum(bends[1:], bends[:-1])
        ).clamp_min(0)
        lowest = torch.minimum(values[1:], values[:-1]) - across * (
            turn + torch.maximum(bends[1:], bends[:-1])
        ).clamp_min(0)
        least = lowest.amin(0) if self.below is None else lowest.amin(0) - self.below(lower, upper)
        return least, highest.amax(0)


@dataclass(frozen=True)
class Pieces(Curve):
    """Pieces p v + q v^2 + constant that meet at kinks: extremes at ends, at kinks, and where a piece is as steep as the parabola."""

    relaxation: Relaxation
    kinks: tuple[float, ...]
    pieces: tuple[tuple[float, float], ...]  # p, q
    steepest: float
    value: float = 1.0  # |f(x)| <= value + steepest |x|

    def function(self, x: Tensor) -> Tensor:
        return self.relaxation.function(x)

    def sizes(self, lower: Tensor, upper: Tensor) -> tuple[float, float]:
        return self.value, self.steepest

    def extremes(
        self, deviation: Deviation, slope: Tensor, bend: Tensor, lower: Tensor, upper: Tensor, at: Tensor
    ) -> Interval:
        tops = [
            at + (p + 2 * q * at - slope) / (2 * (bend - q)) for p, q in self.pieces
        ]  # clamped where there is no top
        places = [*(torch.full_like(lower, kink) for kink in self.kinks), *tops]
        values = deviation(torch.stack([lower, upper, *(clamp(place, lower, upper) for place in places)]))
        return values.amin(0), values.amax(0)


@dataclass(frozen=True)
class Joined(Curve):
    """One curve up to zero, where it may bend, and another from there on."""

    before: Curve
    behind: Curve

    def function(self, x: Tensor) -> Tensor:
        return self.before.function(x)

    def sizes(self, lower: Tensor, upper: Tensor) -> tuple[Tensor | float, Tensor | float]:
        return self.before.sizes(lower, upper)

    def extremes(
        self, deviation: Deviation, slope: Tensor, bend: Tensor, lower: Tensor, upper: Tensor, at: Tensor
    ) -> Interval:
        turn = clamp(torch.zeros_like(lower), lower, upper)
        least, most = zip(
            self.before.extremes(deviation, slope, bend, lower, turn, at),
            self.behind.extremes(deviation, slope, bend, turn, upper, at),
            strict=True,
        )
        return torch.minimum(*least), torch.maximum(*most)


def parabola(curve: Curve, lower: Tensor, upper: Tensor, at: Tensor) -> tuple[Tensor, Tensor]:
    """Good slope and bend for a parabola around `at`: through the three Chebyshev points of the interval."""
    middle = lower / 2 + upper / 2
    reach = (upper / 2 - lower / 2).clamp_min(1e-3) * (math.sqrt(3) / 2)
    centre, right, left = (curve.function(x) for x in (middle, middle + reach, middle - reach))
    bend = (right + left - 2 * centre) / (2 * reach * reach)
    return (right - left) / (2 * reach) + 2 * bend * (at - middle), bend


def deviation(
    curve: Curve, slope: Tensor, bend: Tensor, lower: Tensor, upper: Tensor, at: Tensor
) -> Interval:
    """The smallest and largest f(x) - slope (x - at) - bend (x - at)^2 for lower <= x <= upper, rounded outwards."""

    def strays(x: Tensor) -> Tensor:
        away = x - at
        return curve.function(x) - away * (slope + bend * away)

    least, most = curve.extremes(strays, slope, bend, lower, upper, at)
    furthest = torch.maximum(lower.abs(), upper.abs())
    away = torch.maximum((lower - at).abs(), (upper - at).abs())
    # Values, their places and the end of the grid are each off by a few units of all that enters.
    value, steep = curve.sizes(lower, upper)
    size = (
        value
        + (steep + slope.abs() + 2 * bend.abs() * away) * (furthest + at.abs() + away)
        + bend.abs() * away * away
    )
    slack = 64 * UNIT * size
    return least - slack, most + slack


def interpolate_parabola(
    curve: SmoothCurve, at: Tensor, radius: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """-> value, slope, bend, stray: the parabola through the three Chebyshev points of at -+ radius, which is no further than `stray` from
    f(at + D) for |D| <= radius.

    Between its points an interpolating parabola misses a sixth of the third derivative times the product of the distances from them, and
    for these points that product is at most radius^3 / 4. What rounding adds to values and places counts at most 5/3 times.
    """
    wide = radius.clamp_min(1e-5)
    step = wide * (math.sqrt(3) / 2)
    left, value, right = (curve.function(x) for x in (at - step, at, at + step))
    slope, bend = (right - left) / (2 * step), (right / 2 + left / 2 - value) / (step * step)
    most, steep = curve.sizes(at - wide, at + wide)
    size = most + (steep + slope.abs() + bend.abs() * wide) * (at.abs() + wide)
    around = wide * (1 + 1e-9) + 4 * UNIT * at.abs()
    lower, upper = at - around, at + around
    stray = curve.third(lower, upper) * (wide * wide * wide) * ((1 + 1e-9) / 24) + 256 * UNIT * size
    # The third derivative says little of wide intervals. They are few, and looked at on the grid.
    rough = (wide > ROUGH).nonzero(as_tuple=True)
    least, most = deviation(curve, *(t[rough] for t in (slope, bend, lower, upper, at)))
    stray[rough] = torch.minimum(
        stray[rough], torch.maximum(most - value[rough], value[rough] - least) * (1 + 4 * UNIT)
    )
    return value, slope, bend, stray
