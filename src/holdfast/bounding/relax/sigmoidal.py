"""S-shaped functions: tanh, sigmoid, erf and atan, convex for v <= 0 and concave for v >= 0.

Statement and assumptions: see `base.py`. f' is even and decreasing in |v|, so f'(v) = a has at most two solutions +-r, with r
in closed form for every class. These and the ends of the box include every extreme point of f(v) - a v.

Slopes: the supporting slopes of the convex and the concave envelope at the middle of the box
(`_supporting_slope`).

Rounding: a solution is stationary, so its error counts to second order; for atan, r = sqrt(1 / a - 1) loses
digits as a approaches 1, where |f''| <= 2 r is as small as r.

References: Zhang et al. 2018 (CROWN); Singh et al. 2019 (DeepPoly).
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from holdfast.bounding.relax.base import (
    NO_KINK,
    Interval,
    Point,
    Relaxation,
    chord,
    clamp,
    hull,
    smallest_and_largest_magnitude,
)
from holdfast.bounding.relax.parabola import SmoothCurve

LAST_BELOW_ONE = 1 - 2.0**-53  # The largest float64 below one: atanh is finite up to it.


class Tanh(Relaxation):
    """tanh(v), with derivative 1 - tanh(v)^2."""

    measured = True
    unknown = NO_KINK

    def function(self, *v: Tensor) -> Tensor:
        return torch.tanh(v[0])

    def magnitude(self, lower: Point, upper: Point) -> Tensor:
        return torch.ones_like(lower[0])

    def candidates(self, lower: Point, upper: Point, slope: Point) -> list[Point]:
        """Ends, and the solutions of 1 - tanh(v)^2 = slope on both sides of zero."""
        root = tanh_slope_root(slope[0])
        return [lower, upper, (clamp(root, lower[0], upper[0]),), (clamp(-root, lower[0], upper[0]),)]

    def slopes(self, lower: Point, upper: Point) -> tuple[Point, Point]:
        return (_supporting_slope(lower[0], upper[0]),), (_supporting_slope(-upper[0], -lower[0]),)

    def derivative_range(self, lower: Point, upper: Point) -> list[Interval]:
        """1 / cosh(v)^2 is even and decreases with |v|; cosh overflows where it is below 1e-300."""
        return [
            hull(
                *(
                    torch.cosh(v).square().reciprocal()
                    for v in smallest_and_largest_magnitude(lower[0], upper[0])
                )
            )
        ]

    def curves(self) -> tuple[SmoothCurve]:
        return (SmoothCurve(self, _tanh_second, _tanh_third, steepest=1.0),)


class Sigmoid(Relaxation):
    """sigmoid(v) = (1 + tanh(v / 2)) / 2."""

    measured = True
    unknown = NO_KINK

    def function(self, *v: Tensor) -> Tensor:
        return torch.sigmoid(v[0])

    def magnitude(self, lower: Point, upper: Point) -> Tensor:
        return torch.ones_like(lower[0])

    def candidates(self, lower: Point, upper: Point, slope: Point) -> list[Point]:
        root = 2 * tanh_slope_root(4 * slope[0])
        return [lower, upper, (clamp(root, lower[0], upper[0]),), (clamp(-root, lower[0], upper[0]),)]

    def slopes(self, lower: Point, upper: Point) -> tuple[Point, Point]:
        low, high = lower[0] / 2, upper[0] / 2
        return (_supporting_slope(low, high) / 4,), (_supporting_slope(-high, -low) / 4,)

    def derivative_range(self, lower: Point, upper: Point) -> list[Interval]:
        """sigmoid(v) sigmoid(-v) is even and decreases with |v|."""
        return [
            hull(
                *(
                    torch.sigmoid(v) * torch.sigmoid(-v)
                    for v in smallest_and_largest_magnitude(lower[0], upper[0])
                )
            )
        ]

    def curves(self) -> tuple[SmoothCurve]:
        return (
            SmoothCurve(
                self,
                _sigmoid_second,
                lambda lower, upper: _tanh_third(lower / 2, upper / 2) / 16,
                steepest=0.25,
            ),
        )


class Erf(Relaxation):
    """erf(v), with derivative 2 exp(-v^2) / sqrt(pi)."""

    measured = True
    unknown = NO_KINK

    def function(self, *v: Tensor) -> Tensor:
        return torch.erf(v[0])

    def magnitude(self, lower: Point, upper: Point) -> Tensor:
        return torch.ones_like(lower[0])

    def candidates(self, lower: Point, upper: Point, slope: Point) -> list[Point]:
        root = (-torch.log(slope[0].clamp_min(0) * (math.sqrt(math.pi) / 2))).clamp_min(0).sqrt()
        return [lower, upper, (clamp(root, lower[0], upper[0]),), (clamp(-root, lower[0], upper[0]),)]

    def slopes(self, lower: Point, upper: Point) -> tuple[Point, Point]:
        return (_supporting_slope(lower[0], upper[0], _erf),), (
            _supporting_slope(-upper[0], -lower[0], _erf),
        )

    def derivative_range(self, lower: Point, upper: Point) -> list[Interval]:
        """The derivative is even and decreases with |v|. The exponent v^2, at most 750 where exp does not
        underflow, is rounded, too: up to 750 u relative, so 4096 u are charged.
        """
        return [
            hull(
                *(
                    torch.exp(-v * v) * (2 / math.sqrt(math.pi))
                    for v in smallest_and_largest_magnitude(lower[0], upper[0])
                ),
                units=4096,
            )
        ]

    def curves(self) -> tuple[SmoothCurve]:
        """The third derivative 4 (2 v^2 - 1) exp(-v^2) / sqrt(pi) has its largest absolute value 2.2568 at
        zero.
        """
        steep = 2 / math.sqrt(math.pi)
        return (
            SmoothCurve(
                self, lambda v: -2 * steep * v * torch.exp(-v * v), lambda lower, upper: 2.26, steepest=1.13
            ),
        )


class Atan(Relaxation):
    """atan(v), with derivative 1 / (1 + v^2)."""

    measured = True
    unknown = NO_KINK

    def function(self, *v: Tensor) -> Tensor:
        return torch.atan(v[0])

    def magnitude(self, lower: Point, upper: Point) -> Tensor:
        return torch.full_like(lower[0], 2.0)

    def candidates(self, lower: Point, upper: Point, slope: Point) -> list[Point]:
        root = (1 / slope[0].clamp_min(0) - 1).clamp_min(0).sqrt()
        return [lower, upper, (clamp(root, lower[0], upper[0]),), (clamp(-root, lower[0], upper[0]),)]

    def slopes(self, lower: Point, upper: Point) -> tuple[Point, Point]:
        return (_supporting_slope(lower[0], upper[0], _atan),), (
            _supporting_slope(-upper[0], -lower[0], _atan),
        )

    def derivative_range(self, lower: Point, upper: Point) -> list[Interval]:
        """The derivative is even and decreases with |v|."""
        return [hull(*(1 / (1 + v * v) for v in smallest_and_largest_magnitude(lower[0], upper[0])))]

    def curves(self) -> tuple[SmoothCurve]:
        """The third derivative (6 v^2 - 2) / (1 + v^2)^3 has its largest absolute value 2 at zero."""
        return (
            SmoothCurve(
                self, lambda v: -2 * v / (1 + v * v).square(), lambda lower, upper: 2.0, steepest=1.0
            ),
        )


def tanh_slope_root(slope: Tensor) -> Tensor:
    """The v >= 0 with tanh'(v) = slope; zero for slope >= 1, and far out for slope <= 0."""
    return torch.atanh((1 - slope).clamp(0, 1).sqrt().clamp_max(LAST_BELOW_ONE))


def _tanh(v: Tensor) -> tuple[Tensor, Tensor]:
    """tanh and its derivative."""
    f = torch.tanh(v)
    return f, 1 - f * f


def _erf(v: Tensor) -> tuple[Tensor, Tensor]:
    """erf and its derivative."""
    return torch.erf(v), torch.exp(-v * v) * (2 / math.sqrt(math.pi))


def _atan(v: Tensor) -> tuple[Tensor, Tensor]:
    """atan and its derivative."""
    return torch.atan(v), 1 / (1 + v * v)


def _supporting_slope(
    lower: Tensor, upper: Tensor, curve: Callable[[Tensor], tuple[Tensor, Tensor]] = _tanh
) -> Tensor:
    """The slope of the convex envelope at the middle of the box.

    `curve` returns value and derivative. The envelope follows the curve up to the point d at which the chord
    to (u, f(u)) is a tangent, and then that chord.
    """
    low, high = torch.minimum(lower, torch.zeros_like(lower)), torch.minimum(upper, torch.zeros_like(upper))
    f_upper, _ = curve(upper)
    start, end = low, high
    for _ in range(26):
        middle = start / 2 + end / 2
        f, steep = curve(middle)
        before = f + steep * (upper - middle) < f_upper  # The tangent passes below (u, f(u)).
        start, end = torch.where(before, middle, start), torch.where(before, end, middle)
    d = torch.where(lower >= 0, lower, start / 2 + end / 2)
    f_d, steep_d = curve(d)
    to_end = chord(f_d, f_upper, d, upper, steep_d)
    centre = lower / 2 + upper / 2
    return torch.where(centre < d, curve(centre)[1], to_end)


def _tanh_second(v: Tensor) -> Tensor:
    """tanh'' = -2 t (1 - t^2)."""
    t = torch.tanh(v)
    return -2 * t * (1 - t * t)


def _tanh_third(lower: Tensor, upper: Tensor) -> Tensor:
    """sup |tanh'''| on an interval: 2 (1 - w) |1 - 3 w| for w = tanh(v)^2, largest at an end or at w = 2/3.
    The last 1e-13 covers rounding.
    """
    near, far = (torch.tanh(v).square() for v in smallest_and_largest_magnitude(lower, upper))
    ends = torch.maximum(((1 - near) * (1 - 3 * near)).abs(), ((1 - far) * (1 - 3 * far)).abs())
    return 2 * torch.maximum(ends, ((near < 2 / 3) & (far > 2 / 3)) / 3.0) + 1e-13


def _sigmoid_second(v: Tensor) -> Tensor:
    """sigmoid'' = s (1 - s) (1 - 2 s)."""
    s = torch.sigmoid(v)
    return s * (1 - s) * (1 - 2 * s)
