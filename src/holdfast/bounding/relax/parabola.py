"""Quadratic relaxation: bounds of the deviation of a function from any parabola on an interval.

Statement: for any coefficients b1 (`slope`) and b2 (`quad`) and any point `at`, `deviation` returns low and
high with

    low <= f(x) - b1 (x - at) - b2 (x - at)^2 <= high   for all lower <= x <= upper,   rounding included.

So the coefficients are free, and soundness depends only on this enclosure.

Smooth functions (`SmoothCurve`): on a grid of step h, the deviation d lies within h^2 / 8 sup |d''| of the
straight line between neighbouring values (the error of linear interpolation), and d'' changes between grid
points by at most h / 2 sup |f'''| from the nearer one. Piecewise quadratic functions (`PiecewiseQuadratic`): the extremes
lie at ends, kinks, and stationary points of each piece.

Rounding: each value, location and grid end is off by a few u of all that enters; 64 u of it are added.

Reference: Süli and Mayers, An Introduction to Numerical Analysis, 2003, chapter 6, for interpolation errors.

Assumption: the bounds of |d''| and |f'''| that a class states hold on the whole interval.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from holdfast.bounding.relax.base import UNIT, Curve, Deviation, Interval, Relaxation, clamp

# Half width above which `interpolate_parabola` uses the grid instead of the third derivative (chosen by hand;
# it affects tightness only).
ROUGH = 0.4
# The number of grid cells (chosen by hand): the looseness of the bound decreases with its square, and is
# about 2 % with 24.
CELLS = 24


@dataclass(frozen=True)
class SmoothCurve(Curve):
    """A smooth function: that of a relaxation, or one that exceeds it by at most `below`. `second` is
    accurate to 1e-13 of one plus its size.
    """

    relaxation: Relaxation
    second: Callable[[Tensor], Tensor]
    third: Callable[[Tensor, Tensor], Tensor | float]  # sup |f'''| on the interval.
    steepest: float | None = None  # sup |f'|; None: from the relaxation's `derivative_range`.
    value: float = 1.0  # |f(x)| <= value + steepest |x|
    # The smooth function, where the relaxation's own is not smooth.
    given: Callable[[Tensor], Tensor] | None = None
    # By how much the relaxation's function may lie below `given`.
    below: Callable[[Tensor, Tensor], Tensor] | None = None

    def function(self, x: Tensor) -> Tensor:
        return self.relaxation.function(x) if self.given is None else self.given(x)

    def sizes(self, lower: Tensor, upper: Tensor) -> tuple[Tensor | float, Tensor | float]:
        if self.steepest is not None:
            return self.value, self.steepest
        ((low, high),) = self.relaxation.derivative_range((lower,), (upper,)) or [(lower * torch.nan, upper)]
        return 1 + self.relaxation.magnitude((lower,), (upper,)), torch.maximum(low.abs(), high.abs())

    def extremes(
        self, deviation: Deviation, slope: Tensor, quad: Tensor, lower: Tensor, upper: Tensor, at: Tensor
    ) -> Interval:
        share = torch.linspace(0, 1, CELLS + 1, dtype=lower.dtype, device=lower.device).reshape(
            -1, *(1 for _ in lower.shape)
        )
        grid = lower + (upper - lower) * share
        seconds = self.second(grid)
        values, curvature = deviation(grid), seconds - 2 * quad
        step = (upper - lower) / CELLS * (1 + 1e-9) + 8 * UNIT * (
            lower.abs() + upper.abs()
        )  # The grid points are rounded, too.
        missed = 1e-13 if self.steepest is not None else 1e-13 * (1 + seconds.abs().amax(0))
        across, turn = step * step / 8, step * self.third(lower, upper) / 2 + missed
        highest = torch.maximum(values[1:], values[:-1]) + across * (
            turn - torch.minimum(curvature[1:], curvature[:-1])
        ).clamp_min(0)
        lowest = torch.minimum(values[1:], values[:-1]) - across * (
            turn + torch.maximum(curvature[1:], curvature[:-1])
        ).clamp_min(0)
        least = lowest.amin(0) if self.below is None else lowest.amin(0) - self.below(lower, upper)
        return least, highest.amax(0)


@dataclass(frozen=True)
class PiecewiseQuadratic(Curve):
    """Pieces p v + q v^2 + constant that meet at kinks. Extremes of the deviation lie at ends, at kinks, and
    where a piece is as steep as the parabola.
    """

    relaxation: Relaxation
    kinks: tuple[float, ...]
    pieces: tuple[tuple[float, float], ...]  # (p, q) per piece
    steepest: float
    value: float = 1.0  # |f(x)| <= value + steepest |x|

    def function(self, x: Tensor) -> Tensor:
        return self.relaxation.function(x)

    def sizes(self, lower: Tensor, upper: Tensor) -> tuple[float, float]:
        return self.value, self.steepest

    def extremes(
        self, deviation: Deviation, slope: Tensor, quad: Tensor, lower: Tensor, upper: Tensor, at: Tensor
    ) -> Interval:
        # Stationary points of each piece; clamped where there is none.
        tops = [at + (p + 2 * q * at - slope) / (2 * (quad - q)) for p, q in self.pieces]
        places = [*(torch.full_like(lower, kink) for kink in self.kinks), *tops]
        values = deviation(torch.stack([lower, upper, *(clamp(place, lower, upper) for place in places)]))
        return values.amin(0), values.amax(0)


@dataclass(frozen=True)
class ConcatenatedCurve(Curve):
    """One curve up to zero, where there may be a kink, and another from there on."""

    before: Curve
    behind: Curve

    def function(self, x: Tensor) -> Tensor:
        return self.before.function(x)

    def sizes(self, lower: Tensor, upper: Tensor) -> tuple[Tensor | float, Tensor | float]:
        return self.before.sizes(lower, upper)

    def extremes(
        self, deviation: Deviation, slope: Tensor, quad: Tensor, lower: Tensor, upper: Tensor, at: Tensor
    ) -> Interval:
        turn = clamp(torch.zeros_like(lower), lower, upper)
        least, most = zip(
            self.before.extremes(deviation, slope, quad, lower, turn, at),
            self.behind.extremes(deviation, slope, quad, turn, upper, at),
            strict=True,
        )
        return torch.minimum(*least), torch.maximum(*most)


def parabola(curve: Curve, lower: Tensor, upper: Tensor, at: Tensor) -> tuple[Tensor, Tensor]:
    """Coefficients (slope, quad) of a good parabola around `at`: the interpolant at the three Chebyshev
    points of the interval.
    """
    middle = lower / 2 + upper / 2
    reach = (upper / 2 - lower / 2).clamp_min(1e-3) * (math.sqrt(3) / 2)
    centre, right, left = (curve.function(x) for x in (middle, middle + reach, middle - reach))
    quad = (right + left - 2 * centre) / (2 * reach * reach)
    return (right - left) / (2 * reach) + 2 * quad * (at - middle), quad


def deviation(
    curve: Curve, slope: Tensor, quad: Tensor, lower: Tensor, upper: Tensor, at: Tensor
) -> Interval:
    """(low, high) that enclose f(x) - slope (x - at) - quad (x - at)^2 on lower <= x <= upper, rounded
    outwards.
    """

    def strays(x: Tensor) -> Tensor:
        away = x - at
        return curve.function(x) - away * (slope + quad * away)

    least, most = curve.extremes(strays, slope, quad, lower, upper, at)
    furthest = torch.maximum(lower.abs(), upper.abs())
    away = torch.maximum((lower - at).abs(), (upper - at).abs())
    # Values, locations and the ends of the grid are each off by a few u of all that enters.
    value, steep = curve.sizes(lower, upper)
    size = (
        value
        + (steep + slope.abs() + 2 * quad.abs() * away) * (furthest + at.abs() + away)
        + quad.abs() * away * away
    )
    slack = 64 * UNIT * size
    return least - slack, most + slack


def interpolate_parabola(
    curve: SmoothCurve, at: Tensor, radius: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(value, slope, quad, stray) with |f(at + D) - value - slope D - quad D^2| <= stray for |D| <= radius.

    The parabola interpolates f at the three Chebyshev points of [at - radius, at + radius], x_k. The
    interpolation error is f'''(xi) / 6 times the product of the (x - x_k), which is at most radius^3 / 4 (the
    Chebyshev polynomial T_3 scaled): together sup |f'''| radius^3 / 24. The rounding error of the three
    values is amplified by at most 5/3 (the Lebesgue constant); 256 u of all that enters cover it.
    """
    wide = radius.clamp_min(1e-5)
    step = wide * (math.sqrt(3) / 2)
    left, value, right = (curve.function(x) for x in (at - step, at, at + step))
    slope, quad = (right - left) / (2 * step), (right / 2 + left / 2 - value) / (step * step)
    most, steep = curve.sizes(at - wide, at + wide)
    size = most + (steep + slope.abs() + quad.abs() * wide) * (at.abs() + wide)
    around = wide * (1 + 1e-9) + 4 * UNIT * at.abs()
    lower, upper = at - around, at + around
    stray = curve.third(lower, upper) * (wide * wide * wide) * ((1 + 1e-9) / 24) + 256 * UNIT * size
    # On wide intervals the third derivative gives a loose bound. They are few; use the grid.
    rough = (wide > ROUGH).nonzero(as_tuple=True)
    least, most = deviation(curve, *(t[rough] for t in (slope, quad, lower, upper, at)))
    stray[rough] = torch.minimum(
        stray[rough], torch.maximum(most - value[rough], value[rough] - least) * (1 + 4 * UNIT)
    )
    return value, slope, quad, stray
