"""exp, log, sqrt, 1 / sqrt and 1 / v: convex or concave functions, bounded by a tangent on one side and the
chord on the other.

Statement: see `base.py`. If f is convex on the box, f(v) - a v is smallest where f'(v) = a (or at the nearer
end) and largest at an end; if f is concave, the other way round. Every class gives the solution of f'(v) = a
in closed form.

Assumptions: the box lies in the function's domain. Outside of it f is NaN or infinite, and since the ends of
the box are candidates, the intercepts are infinite.

Rounding: a closed-form root is within a few u of itself (of 1 for log), and f(v) - a v is stationary there,
so the error is of second order.

References: Zhang et al. 2018 (CROWN); Shi et al. 2020 for exp and 1 / v in softmax.
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
    rounding_error,
)
from holdfast.bounding.relax.parabola import SmoothCurve


class Exp(Relaxation):
    """exp(v); exp'(v) = a at v = log a."""

    measured = True
    unknown = NO_KINK

    def function(self, *v: Tensor) -> Tensor:
        return torch.exp(v[0])

    def candidates(self, lower: Point, upper: Point, slope: Point) -> list[Point]:
        """Ends, and log(slope)."""
        return [lower, upper, (clamp(torch.log(slope[0].clamp_min(0)), lower[0], upper[0]),)]

    def slopes(self, lower: Point, upper: Point) -> tuple[Point, Point]:
        (low,), (high,) = lower, upper
        tangent = torch.exp(low / 2 + high / 2)
        return (tangent,), (chord(torch.exp(low), torch.exp(high), low, high, tangent),)

    def limits(self, lower: Point, upper: Point) -> Interval:
        zero = torch.zeros_like(lower[0])
        return zero, zero + torch.inf

    def derivative_range(self, lower: Point, upper: Point) -> list[Interval]:
        return [hull(torch.exp(lower[0]), torch.exp(upper[0]))]

    def curves(self) -> tuple[SmoothCurve]:
        return (SmoothCurve(self, torch.exp, lambda lower, upper: torch.exp(upper) * (1 + 1e-9)),)


class Log(Relaxation):
    """log(v) for v > 0; log'(v) = a at v = 1 / a."""

    unknown = NO_KINK

    def function(self, *v: Tensor) -> Tensor:
        return torch.log(v[0])

    def candidates(self, lower: Point, upper: Point, slope: Point) -> list[Point]:
        return [lower, upper, (clamp(1 / slope[0], lower[0], upper[0]),)]

    def slopes(self, lower: Point, upper: Point) -> tuple[Point, Point]:
        (low,), (high,) = lower, upper
        tangent = 1 / (low / 2 + high / 2)
        return (chord(torch.log(low), torch.log(high), low, high, tangent),), (tangent,)

    def derivative_range(self, lower: Point, upper: Point) -> list[Interval]:
        return _monotone(lambda v: 1 / v, lower[0], upper[0])

    def curves(self) -> tuple[SmoothCurve]:
        return (SmoothCurve(self, lambda v: -1 / (v * v), lambda lower, upper: _falling(2.0, -3.0, lower)),)

    def executed_error(self, lower: Point, upper: Point, dtype: torch.dtype) -> Tensor:
        return _normal(lower[0], rounding_error(self.magnitude(lower, upper), dtype), dtype)


class Sqrt(Relaxation):
    """sqrt(v) for v >= 0."""

    unknown = NO_KINK

    def function(self, *v: Tensor) -> Tensor:
        return torch.sqrt(v[0])

    def magnitude(self, lower: Point, upper: Point) -> Tensor:
        """A touching point below the smallest normal number has few digits; the lower limit 1e-278 covers its
        error.
        """
        return torch.sqrt(upper[0].clamp_min(1e-278))

    def candidates(self, lower: Point, upper: Point, slope: Point) -> list[Point]:
        """Ends, and the solution of 1 / (2 sqrt(v)) = slope."""
        return [lower, upper, (clamp((0.5 / slope[0]) ** 2, lower[0], upper[0]),)]

    def slopes(self, lower: Point, upper: Point) -> tuple[Point, Point]:
        (low,), (high,) = lower, upper
        return (1 / (torch.sqrt(low) + torch.sqrt(high)),), (0.5 / torch.sqrt(low / 2 + high / 2),)

    def derivative_range(self, lower: Point, upper: Point) -> list[Interval]:
        return _monotone(lambda v: 0.5 / v.sqrt(), lower[0], upper[0])

    def curves(self) -> tuple[SmoothCurve]:
        return (
            SmoothCurve(
                self, lambda v: -0.25 / (v * v.sqrt()), lambda lower, upper: _falling(0.375, -2.5, lower)
            ),
        )

    def executed_error(self, lower: Point, upper: Point, dtype: torch.dtype) -> Tensor:
        """The square root is correctly rounded, but a pre-activation may be flushed to zero, which loses its
        root.
        """
        return rounding_error(self.magnitude(lower, upper), dtype) + math.sqrt(torch.finfo(dtype).tiny)


class Rsqrt(Relaxation):
    """1 / sqrt(v) for v > 0."""

    unknown = NO_KINK

    def function(self, *v: Tensor) -> Tensor:
        return 1 / torch.sqrt(v[0])

    def candidates(self, lower: Point, upper: Point, slope: Point) -> list[Point]:
        """Ends, and the solution of -1 / (2 v sqrt(v)) = slope."""
        return [lower, upper, (clamp((-2 * slope[0]) ** (-2 / 3), lower[0], upper[0]),)]

    def slopes(self, lower: Point, upper: Point) -> tuple[Point, Point]:
        a, b, middle = torch.sqrt(lower[0]), torch.sqrt(upper[0]), lower[0] / 2 + upper[0] / 2
        return (-0.5 * middle**-1.5,), (-1 / (a * b * (a + b)),)

    def derivative_range(self, lower: Point, upper: Point) -> list[Interval]:
        return _monotone(lambda v: -0.5 / (v * v.sqrt()), lower[0], upper[0])

    def curves(self) -> tuple[SmoothCurve]:
        return (
            SmoothCurve(
                self, lambda v: 0.75 / (v * v * v.sqrt()), lambda lower, upper: _falling(1.875, -3.5, lower)
            ),
        )

    def executed_error(self, lower: Point, upper: Point, dtype: torch.dtype) -> Tensor:
        return _normal(lower[0], rounding_error(self.magnitude(lower, upper), dtype), dtype)


class Reciprocal(Relaxation):
    """1 / v on boxes without zero: convex for v > 0, concave for v < 0."""

    unknown = NO_KINK

    def function(self, *v: Tensor) -> Tensor:
        return 1 / v[0]

    def candidates(self, lower: Point, upper: Point, slope: Point) -> list[Point]:
        """Ends, and the solutions of -1 / v^2 = slope. A box that contains zero has NaN as a candidate, so
        its intercepts are infinite.
        """
        (low,), (high,) = lower, upper
        level = 1 / torch.sqrt((-slope[0]).clamp_min(0))
        pole = torch.where((low <= 0) & (high >= 0), torch.nan, low)
        return [lower, upper, (clamp(level, low, high),), (clamp(-level, low, high),), (pole,)]

    def slopes(self, lower: Point, upper: Point) -> tuple[Point, Point]:
        (low,), (high,) = lower, upper
        tangent, across = -1 / (low / 2 + high / 2) ** 2, -1 / low / high
        return (torch.where(low > 0, tangent, across),), (torch.where(low > 0, across, tangent),)

    def derivative_range(self, lower: Point, upper: Point) -> list[Interval]:
        """-1 / v^2 is even, so a negative box has the range of its mirror image."""
        return _monotone(lambda v: -1 / (v * v), *_mirror(lower[0], upper[0]))

    def curves(self) -> tuple[SmoothCurve]:
        return (
            SmoothCurve(
                self,
                lambda v: 2 / (v * v * v),
                lambda lower, upper: _falling(6.0, -4.0, _mirror(lower, upper)[0]),
            ),
        )

    def executed_error(self, lower: Point, upper: Point, dtype: torch.dtype) -> Tensor:
        return _normal(
            _mirror(lower[0], upper[0])[0], rounding_error(self.magnitude(lower, upper), dtype), dtype
        )


def _monotone(derivative: Callable[[Tensor], Tensor], lower: Tensor, upper: Tensor) -> list[Interval]:
    """The range of a derivative that is monotone for v > 0; infinite for a box that reaches zero."""
    least, most = hull(derivative(lower), derivative(upper), units=128)
    return [(torch.where(lower > 0, least, -torch.inf), torch.where(lower > 0, most, torch.inf))]


def _falling(factor: float, power: float, lower: Tensor) -> Tensor:
    """An upper bound of factor v^power (power < 0) for v >= lower; infinite for a box that reaches zero."""
    return torch.where(lower > 0, factor * lower**power * (1 + 1e-9), torch.inf)


def _mirror(low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
    """The box, reflected to positive numbers if it is negative."""
    return torch.where(high < 0, -high, low), torch.where(high < 0, -low, high)


def _normal(lower: Tensor, error: Tensor, dtype: torch.dtype) -> Tensor:
    """The error; infinite if the box reaches below the smallest normal number, where flushing to zero hits a
    pole.
    """
    return torch.where(lower >= torch.finfo(dtype).tiny, error, torch.inf)
