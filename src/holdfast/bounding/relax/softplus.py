"""Softplus, log(1 + exp(beta v)) / beta: convex, with derivative sigmoid(beta v).

Statement and assumptions: see `base.py`. The extremes of f(v) - a v over a box lie at its ends, where sigmoid(beta v) = a, or
on either side of the discontinuity of torch's kernel at beta v = threshold.

Reference: Zhang et al. 2018 (CROWN).
"""

import math
from dataclasses import dataclass

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
from holdfast.rounding import UNDERFLOW


@dataclass(frozen=True)
class Softplus(Relaxation):
    """Softplus as torch computes it: v where beta v > threshold, so f jumps down there by log(1 +
    exp(-threshold)) / beta.
    """

    beta: float = 1.0
    threshold: float = 20.0
    # As in the kernels of log-sigmoid and logaddexp: exp is only taken of negative numbers.
    stable: bool = False
    unknown = NO_KINK

    def function(self, *v: Tensor) -> Tensor:
        return torch.where(v[0] * self.beta > self.threshold, v[0], self._smooth(v[0]))

    def _smooth(self, v: Tensor) -> Tensor:
        """The smooth function, without the discontinuity."""
        return (torch.relu(v * self.beta) + torch.log1p(torch.exp(-(v * self.beta).abs()))) / self.beta

    def _drop(self) -> tuple[float, float]:
        """The discontinuity, and how far from it rounding may decide on which side a number is."""
        drop = min(self.threshold / self.beta, 1e300)
        return drop, abs(drop) * 2.0**-50 + 1e-300

    def magnitude(self, lower: Point, upper: Point) -> Tensor:
        """The function is increasing up to the jump and at least -|threshold| / beta behind it."""
        return self._smooth(upper[0]) + max(-self.threshold / self.beta, 0.0)

    def candidates(self, lower: Point, upper: Point, slope: Point) -> list[Point]:
        """Ends, the solution of sigmoid(beta v) = slope, and both sides of the jump if the box comes within
        rounding of it.
        """
        (low,), (high,) = lower, upper
        drop, aside = self._drop()
        level = (torch.logit(slope[0].clamp(1e-300, 1 - 2.0**-53)) / self.beta).clamp_max(drop - aside)
        near = (low - 2 * aside <= drop) & (drop <= high + 2 * aside)
        sides = [(torch.where(near, side, low),) for side in (drop - aside, drop + aside)]
        return [lower, upper, (clamp(level, low, high),), *sides]

    def slopes(self, lower: Point, upper: Point) -> tuple[Point, Point]:
        """Below: the tangent at the middle. Above: the chord."""
        (low,), (high,) = lower, upper
        tangent = torch.sigmoid(self.beta * (low / 2 + high / 2))
        return (tangent,), (chord(self.function(low), self.function(high), low, high, tangent),)

    def derivative_range(self, lower: Point, upper: Point) -> list[Interval]:
        """sigmoid(beta v) is increasing. At the jump the slope is unbounded below; behind it, it is one."""
        least, most = hull(*(torch.sigmoid(self.beta * v) for v in (*lower, *upper)), units=4096)
        drop, aside = self._drop()
        before, behind = upper[0] < drop - aside, lower[0] > drop + aside
        one = torch.ones_like(least)
        low = torch.where(before, least, torch.where(behind, one, -torch.inf))
        return [(low, torch.where(behind, one, torch.maximum(most, one * ~before)))]

    def curves(self) -> tuple[SmoothCurve]:
        """The third derivative beta^2 s (1 - s) (1 - 2 s) is at most beta^2 / (6 sqrt(3)); behind the jump f
        is smaller by its height.
        """
        drop, aside = self._drop()
        return (
            SmoothCurve(
                self,
                lambda v: self.beta * torch.sigmoid(self.beta * v) * torch.sigmoid(-self.beta * v),
                lambda lower, upper: 0.0963 * self.beta**2,
                steepest=1.0,
                value=1 + 1 / self.beta,
                given=self._smooth,
                below=lambda lower, upper: torch.where(
                    upper < drop - aside, torch.zeros_like(upper), self._height()
                ),
            ),
        )

    def executed_error(self, lower: Point, upper: Point, dtype: torch.dtype) -> Tensor:
        """Rounding beta v counts where exp is steep for its size, and decides the side of the jump; exp must
        not overflow.
        """
        (low,), (high,) = lower, upper
        size = self._smooth(high)
        further = torch.minimum((-self.beta * low).clamp(0, 750) * size, size.new_tensor(0.4 / self.beta)) / 5
        drop, _ = self._drop()
        unsure = 8 * torch.finfo(dtype).eps * abs(drop) + UNDERFLOW
        near = (low - unsure <= drop) & (drop <= high + unsure)
        error = rounding_error(self.magnitude(lower, upper) + further, dtype) + torch.where(
            near, self._height(), torch.zeros_like(low)
        )
        safe = self.stable or self.threshold < 80
        return error if safe else torch.where(self.beta * high < 80, error, torch.inf)

    def _height(self) -> float:
        """An upper bound of the height of the jump."""
        return (
            (max(-self.threshold, 0.0) + math.log1p(math.exp(-abs(self.threshold)))) / self.beta * (1 + 1e-9)
        )
