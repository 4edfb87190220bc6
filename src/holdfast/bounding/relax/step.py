"""Functions with one jump, at zero. The step: 0 for v < 0, 1 for v > 0. The sign: -1, 0, 1.

Comparisons are steps, and a choice between two values is a step times their difference.

Statement and assumptions: see `base.py`. On either side of zero f(v) - a v is linear, so the extremes over a box lie at its
ends, at zero, or next to zero on either side (+-1e-300). Values are integers, so nothing is rounded but the
products with slopes.

Reference: none; the derivation above is complete.
"""

import torch
from torch import Tensor

from holdfast.bounding.relax.base import (
    Deviation,
    Interval,
    Point,
    Relaxation,
    ends_and_places,
    without_sign_split,
)
from holdfast.bounding.relax.parabola import PiecewiseQuadratic


class Step(Relaxation):
    """0 below zero, 1 above. At zero itself, where rounding may have decided the comparison, both values
    count.
    """

    unknown = without_sign_split("discontinuous, so its two linear pieces do not meet")

    def function(self, *v: Tensor) -> Tensor:
        return torch.where(v[0] >= 0, 1.0, v[0].clamp(0, 0))  # NaN stays NaN.

    def magnitude(self, lower: Point, upper: Point) -> Tensor:
        return torch.ones_like(lower[0])

    def candidates(self, lower: Point, upper: Point, slope: Point) -> list[Point]:
        """Ends, and both sides of zero."""
        (low,), (high,) = lower, upper
        across = (low <= 0) & (high >= 0)
        return [lower, upper, *((torch.where(across, side, low),) for side in (-1e-300, 1e-300))]

    def slopes(self, lower: Point, upper: Point) -> tuple[Point, Point]:
        """Below: from the foot of the step to (u, f(u)). Above: from (l, f(l)) to the top of the step. Slope
        zero where that is tighter at the middle.
        """
        (low,), (high,) = lower, upper
        middle = low / 2 + high / 2
        below = torch.where((low < 0) & (middle > 0) & (high > 1e-9), 1 / high, 0.0)
        above = torch.where((high > 0) & (middle < 0) & (low < -1e-9), -1 / low, 0.0)
        return (below,), (above,)

    def limits(self, lower: Point, upper: Point) -> Interval:
        return torch.where(lower[0] > 0, 1.0, torch.zeros_like(lower[0])), torch.where(
            upper[0] < 0, 0.0, torch.ones_like(upper[0])
        )

    def can_tighten(self, lower: Point, upper: Point) -> Tensor:
        return (lower[0] <= 0) & (upper[0] >= 0)

    def derivative_range(self, lower: Point, upper: Point) -> list[Interval]:
        """Zero, and infinite at the jump."""
        jump = torch.where((lower[0] > 0) | (upper[0] < 0), 0.0, torch.inf).to(lower[0])
        return [(torch.zeros_like(jump), jump)]

    def curves(self) -> tuple[PiecewiseQuadratic]:
        return (_Jump(self, (), ((0.0, 0.0),), steepest=0.0),)

    def executed_error(self, lower: Point, upper: Point, dtype: torch.dtype) -> Tensor:
        """Comparisons are exact."""
        return torch.zeros_like(lower[0])


class Sign(Relaxation):
    """-1 below zero, 0 at zero, 1 above."""

    unknown = without_sign_split("discontinuous, so its two linear pieces do not meet")

    def function(self, *v: Tensor) -> Tensor:
        return torch.where(v[0].isnan(), v[0], torch.sign(v[0]))

    def magnitude(self, lower: Point, upper: Point) -> Tensor:
        return torch.ones_like(lower[0])

    def limits(self, lower: Point, upper: Point) -> Interval:
        return self.function(*lower), self.function(*upper)

    def candidates(self, lower: Point, upper: Point, slope: Point) -> list[Point]:
        """Ends, zero, and both sides of zero if the box contains them."""
        return ends_and_places(lower, upper, (-1e-300, 0.0, 1e-300))

    def slopes(self, lower: Point, upper: Point) -> tuple[Point, Point]:
        """Below: from the foot of the jump to (u, f(u)). Above: from (l, f(l)) to the top of the jump. Slope
        zero where that is tighter at the middle.
        """
        (low,), (high,) = lower, upper
        (bottom, top), middle = self.limits(lower, upper), low / 2 + high / 2
        below = torch.where((low <= 0) & (middle > 0) & (high > 1e-9), (1 - bottom) / high, 0.0)
        above = torch.where((high >= 0) & (middle < 0) & (low < -1e-9), (1 + top) / -low, 0.0)
        return (below,), (above,)

    def can_tighten(self, lower: Point, upper: Point) -> Tensor:
        return self.function(*lower) != self.function(*upper)

    def derivative_range(self, lower: Point, upper: Point) -> list[Interval]:
        """Zero, and infinite at the jump."""
        jump = torch.where((lower[0] > 0) | (upper[0] < 0), 0.0, torch.inf).to(lower[0])
        return [(torch.zeros_like(jump), jump)]

    def curves(self) -> tuple[PiecewiseQuadratic]:
        return (_SignJump(self, (), ((0.0, 0.0),), steepest=0.0),)

    def executed_error(self, lower: Point, upper: Point, dtype: torch.dtype) -> Tensor:
        return torch.zeros_like(lower[0])


class _SignJump(PiecewiseQuadratic):
    """The sign as a curve with a jump."""

    def extremes(
        self, deviation: Deviation, slope: Tensor, quad: Tensor, lower: Tensor, upper: Tensor, at: Tensor
    ) -> Interval:
        """Include zero and both sides of it wherever the box touches it."""
        least, most = super().extremes(deviation, slope, quad, lower, upper, at)
        across, there = (lower <= 0) & (upper >= 0), deviation(torch.zeros_like(lower))
        return torch.where(across, torch.minimum(least, there - 1), least), torch.where(
            across, torch.maximum(most, there + 1), most
        )


class _Jump(PiecewiseQuadratic):
    """The step as a curve with a jump."""

    def extremes(
        self, deviation: Deviation, slope: Tensor, quad: Tensor, lower: Tensor, upper: Tensor, at: Tensor
    ) -> Interval:
        """Include both sides of zero wherever the box touches it."""
        least, most = super().extremes(deviation, slope, quad, lower, upper, at)
        across, top = (lower <= 0) & (upper >= 0), deviation(torch.zeros_like(lower))
        return torch.where(across, torch.minimum(least, top - 1), least), torch.where(
            across, torch.maximum(most, top), most
        )
