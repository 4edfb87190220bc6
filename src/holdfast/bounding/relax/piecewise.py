"""Piecewise-linear and ReLU-like functions: ReLU, leaky ReLU, |v|, clip, ELU and hard swish.

Statement and assumptions: see `base.py`. On each piece f(v) - a v is linear, or convex or concave with a stationary point in
closed form. So the ends of the box, the kinks inside it and these stationary points include every extreme
point.

Rounding: kinks are exact (clamped constants); stationary points count to second order.

References: Ehlers 2017 for the upper chord of an unstable ReLU; Zhang et al. 2018 (CROWN) and Singh et al.
2019 (DeepPoly) for the adaptive lower slope.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from holdfast.bounding.relax.base import (
    UNIT,
    Interval,
    KinkSides,
    Point,
    Relaxation,
    chord,
    clamp,
    ends_and_places,
    hull,
    rounding_error,
    without_sign_split,
)
from holdfast.bounding.relax.hull import hull_slopes
from holdfast.bounding.relax.parabola import ConcatenatedCurve, PiecewiseQuadratic, SmoothCurve
from holdfast.rounding import UNDERFLOW


@dataclass(frozen=True)
class LeakyRelu(Relaxation):
    """max(v, slope v) for slope <= 1."""

    negative_slope: float = 0.01

    def function(self, *v: Tensor) -> Tensor:
        return torch.where(v[0] > 0, v[0], self.negative_slope * v[0])

    def candidates(self, lower: Point, upper: Point, slope: Point) -> list[Point]:
        """Linear on either side of zero: the ends, and zero."""
        return [lower, upper, (clamp(torch.zeros_like(lower[0]), lower[0], upper[0]),)]

    def slopes(self, lower: Point, upper: Point) -> tuple[Point, Point]:
        (low,), (high,) = lower, upper
        # Tensors, because `where` makes float32 of two Python numbers.
        one, flat = (
            torch.ones_like(low),
            torch.full_like(low, self.negative_slope),
        )
        positive = torch.where(low + high > 0, one, flat)
        steep = torch.where(low >= 0, one, torch.where(high <= 0, flat, 0.0))
        across = chord(self.function(low), self.function(high), low, high, positive)
        return (positive,), (torch.where((low < 0) & (high > 0), across, steep),)

    def can_tighten(self, lower: Point, upper: Point) -> Tensor:
        return (lower[0] < 0) & (upper[0] > 0)

    def derivative_range(self, lower: Point, upper: Point) -> list[Interval]:
        """Exact: 1 for a nonnegative box, the slope for a nonpositive one, otherwise both."""
        one, flat = torch.ones_like(lower[0]), torch.full_like(lower[0], self.negative_slope)
        ends = torch.minimum(one, flat), torch.maximum(one, flat)
        low, high = (torch.where(lower[0] >= 0, one, torch.where(upper[0] <= 0, flat, end)) for end in ends)
        return [(low, high)]

    def curves(self) -> tuple[PiecewiseQuadratic]:
        return (
            PiecewiseQuadratic(
                self,
                (0.0,),
                ((1.0, 0.0), (self.negative_slope, 0.0)),
                steepest=max(1.0, abs(self.negative_slope)),
            ),
        )

    def sides(self) -> KinkSides:
        return KinkSides(0.0, 0.0, self.negative_slope, 1.0)

    def executed_error(self, lower: Point, upper: Point, dtype: torch.dtype) -> Tensor:
        """For v < 0 the product is rounded, and the slope itself, unless it is 0, 1 or -1."""
        inexact = abs(self.negative_slope) not in (0.0, 1.0)
        return rounding_error(
            abs(self.negative_slope) * lower[0].clamp_max(0).abs() if inexact else torch.zeros_like(lower[0]),
            dtype,
        )


class Relu(LeakyRelu):
    """max(v, 0)."""

    def __init__(self) -> None:
        super().__init__(negative_slope=0.0)

    def limits(self, lower: Point, upper: Point) -> Interval:
        return lower[0].clamp_min(0), upper[0].clamp_min(0)


class Abs(LeakyRelu):
    """|v|."""

    def __init__(self) -> None:
        super().__init__(negative_slope=-1.0)


@dataclass(frozen=True)
class Clip(Relaxation):
    """v clipped to [low, high], low <= high; either may be infinite."""

    low: float = -torch.inf
    high: float = torch.inf
    unknown = without_sign_split("three linear pieces with two finite bounds; supported with one")

    def function(self, *v: Tensor) -> Tensor:
        return v[0].clamp(self.low, self.high)

    def candidates(self, lower: Point, upper: Point, slope: Point) -> list[Point]:
        return ends_and_places(lower, upper, (self.low, self.high))

    def slopes(self, lower: Point, upper: Point) -> tuple[Point, Point]:
        """Below: slope zero if the middle is below the first kink, otherwise the chord from the first kink to
        the end of the box. Above: the mirror image.
        """
        (low,), (high,) = lower, upper
        middle = low / 2 + high / 2
        inside = ((self.low < middle) & (middle < self.high)).to(low)
        below = chord(self.function(low), self.function(high), low.clamp_min(self.low), high, inside)
        above = chord(self.function(low), self.function(high), low, high.clamp_max(self.high), inside)
        return (torch.where(middle < self.low, 0.0, below),), (torch.where(middle > self.high, 0.0, above),)

    def limits(self, lower: Point, upper: Point) -> Interval:
        return self.function(*lower), self.function(*upper)

    def can_tighten(self, lower: Point, upper: Point) -> Tensor:
        (low,), (high,) = lower, upper
        return ((low < self.low) & (self.low < high)) | ((low < self.high) & (self.high < high))

    def derivative_range(self, lower: Point, upper: Point) -> list[Interval]:
        """1 inside [low, high], 0 outside."""
        (low,), (high,) = lower, upper
        inside, outside = (low >= self.low) & (high <= self.high), (high <= self.low) | (low >= self.high)
        return [(torch.where(inside, 1.0, 0.0).to(low), torch.where(outside & ~inside, 0.0, 1.0).to(low))]

    def curves(self) -> tuple[PiecewiseQuadratic]:
        ends = tuple(end for end in (self.low, self.high) if math.isfinite(end))
        return (
            PiecewiseQuadratic(
                self, ends, ((0.0, 0.0), (1.0, 0.0)), steepest=1.0, value=1 + max(map(abs, ends), default=0.0)
            ),
        )

    def sides(self) -> KinkSides | None:
        if self.high == math.inf and self.low > -math.inf:
            return KinkSides(self.low, self.low, 0.0, 1.0)
        return (
            KinkSides(self.high, self.high, 1.0, 0.0)
            if self.low == -math.inf and self.high < math.inf
            else None
        )

    def executed_error(self, lower: Point, upper: Point, dtype: torch.dtype) -> Tensor:
        """Nothing is computed; only the two bounds are rounded to the type."""
        ends = torch.tensor(
            [end for end in (self.low, self.high) if math.isfinite(end)] or [0.0], dtype=torch.float64
        )
        return torch.full_like(lower[0], float((ends.to(dtype).double() - ends).abs().max()) + UNDERFLOW)


@dataclass(frozen=True)
class Elu(Relaxation):
    """v for v > 0, alpha (exp(v) - 1) for v <= 0, alpha > 0. Convex for alpha <= 1; otherwise with a concave
    kink at zero.
    """

    alpha: float = 1.0
    unknown = without_sign_split("nonlinear below zero")

    def function(self, *v: Tensor) -> Tensor:
        return torch.where(v[0] > 0, v[0], self.alpha * torch.expm1(v[0].clamp_max(0)))

    def candidates(self, lower: Point, upper: Point, slope: Point) -> list[Point]:
        """Ends, the kink at zero, and the solution of alpha exp(v) = slope."""
        (low,), (high,) = lower, upper
        level = torch.log((slope[0] / self.alpha).clamp_min(1e-300)).clamp_max(0)
        return [lower, upper, (clamp(torch.zeros_like(low), low, high),), (clamp(level, low, high),)]

    def slopes(self, lower: Point, upper: Point) -> tuple[Point, Point]:
        (low,), (high,) = lower, upper
        if self.alpha > 1:
            below, above = hull_slopes(self.function, self._derivative, low, high)
            return (below,), (above,)
        tangent = self._derivative(low / 2 + high / 2)
        return (tangent,), (chord(self.function(low), self.function(high), low, high, tangent),)

    def _derivative(self, v: Tensor) -> Tensor:
        return torch.where(v > 0, 1.0, self.alpha * torch.exp(v.clamp_max(0)))

    def derivative_range(self, lower: Point, upper: Point) -> list[Interval]:
        """alpha exp(v) increases to alpha at zero; for v > 0 the derivative is 1."""
        (low,), (high,) = lower, upper
        least, most = hull(*(self.alpha * torch.exp(v.clamp_max(0)) for v in (low, high)))
        least = torch.where(low >= 0, 1.0, torch.where(high > 0, least.clamp_max(1), least))
        return [(least, torch.where(low >= 0, 1.0, torch.where(high > 0, most.clamp_min(1), most)))]

    def curves(self) -> tuple[ConcatenatedCurve]:
        bent = SmoothCurve(
            self,
            lambda v: self.alpha * torch.exp(v.clamp_max(0)),
            lambda lower, upper: self.alpha,
            steepest=max(1.0, self.alpha),
            value=1 + self.alpha,
        )
        return (ConcatenatedCurve(bent, PiecewiseQuadratic(self, (), ((1.0, 0.0),), steepest=1.0)),)

    def executed_error(self, lower: Point, upper: Point, dtype: torch.dtype) -> Tensor:
        """The error of exp(v) - 1 is measured in units of one."""
        return rounding_error(self.alpha + upper[0].clamp_min(0), dtype)


class Hardswish(Relaxation):
    """v (v + 3) / 6 for |v| <= 3, 0 for v < -3, v for v > 3."""

    measured = True
    unknown = without_sign_split("nonlinear between its kinks")

    def function(self, *v: Tensor) -> Tensor:
        inside = v[0].clamp(-3, 3)
        return torch.where(v[0] > 3, v[0], inside * (inside + 3) / 6)

    def magnitude(self, lower: Point, upper: Point) -> Tensor:
        return torch.maximum(*(end[0].clamp_min(-3).abs() for end in (lower, upper)))

    def candidates(self, lower: Point, upper: Point, slope: Point) -> list[Point]:
        """Ends, the two kinks, and the solution of (2 v + 3) / 6 = slope between them."""
        (low,), (high,) = lower, upper
        level = (3 * slope[0] - 1.5).clamp(-3, 3)
        return [
            lower,
            upper,
            *((clamp(v, low, high),) for v in (level, torch.full_like(low, -3), torch.full_like(low, 3))),
        ]

    def slopes(self, lower: Point, upper: Point) -> tuple[Point, Point]:
        below, above = hull_slopes(self.function, self._derivative, lower[0], upper[0])
        return (below,), (above,)

    def _derivative(self, v: Tensor) -> Tensor:
        return torch.where(v < -3, 0.0, torch.where(v > 3, 1.0, (2 * v + 3) / 6))

    def derivative_range(self, lower: Point, upper: Point) -> list[Interval]:
        """Both one-sided derivatives of each kink in the box count; for a box that is a single kink either
        may be used.
        """
        (low,), (high,) = lower, upper
        between = (low < 3) & (high > -3)
        parts = [(between, (2 * v.clamp(-3, 3) + 3) / 6) for v in (low, high)]
        parts += [(low < -3, torch.zeros_like(low)), (high > 3, torch.ones_like(low))]
        least, most = (
            torch.stack([torch.where(here, slope, none) for here, slope in parts])
            for none in (torch.inf, -torch.inf)
        )
        known = least.amin(0) <= most.amax(0)
        return [
            (
                torch.where(known, least.amin(0), -0.5) - 64 * UNIT,
                torch.where(known, most.amax(0), 1.5) + 64 * UNIT,
            )
        ]

    def curves(self) -> tuple[PiecewiseQuadratic]:
        return (PiecewiseQuadratic(self, (-3.0, 3.0), ((0.0, 0.0), (0.5, 1 / 6), (1.0, 0.0)), steepest=1.5),)
