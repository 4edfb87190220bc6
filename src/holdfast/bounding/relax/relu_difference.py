"""The difference of a ReLU at two points: relu(z + d) - relu(z), for the pre-activation z and its change d.

Statement and assumptions: see `base.py`, for f(z, d) - a z - b d on a box. f is linear on each side of the lines z = 0 and
z + d = 0, so its extremes over the box lie at corners, where one of the lines crosses an edge, or where both
lines meet, at the origin. Two networks with similar weights have small d, and f lies between min(0, d) and
max(0, d), however far z may move; relaxing both ReLUs on their own loses this.

Rounding: see `base.py`; the only rounded operation is z + d for z < 0, whose positive results lie below d.

References: Paulsen et al. 2020 (ReluDiff) for the bounds min(0, d) and max(0, d); the intercepts are exact
here for any slopes.
"""

from collections.abc import Mapping, Sequence
from typing import ClassVar

import torch
from torch import Tensor

from holdfast.bounding.relax.base import Interval, Point, Relaxation, chord, clamp, intercept, rounding_error
from holdfast.bounding.relax.product import corners

TWO_ARGUMENTS = "of two arguments"


class ReluDifference(Relaxation):
    """relu(z + d) - relu(z)."""

    arguments = 2
    unknown: ClassVar[Mapping[str, str]] = {
        "sign split": TWO_ARGUMENTS,
        "parabola": TWO_ARGUMENTS,
    }

    def function(self, *v: Tensor) -> Tensor:
        """max(d, -z) for z >= 0 and max(z + d, 0) for z < 0, so that nothing large is subtracted."""
        return torch.where(v[0] >= 0, torch.maximum(v[1], -v[0]), (v[0] + v[1]).clamp_min(0))

    def magnitude(self, lower: Point, upper: Point) -> Tensor:
        """|f| <= |d|, and z + d is read only where it lies between 0 and d."""
        return torch.maximum(lower[1].abs(), upper[1].abs())

    def candidates(self, lower: Point, upper: Point, slope: Point) -> list[Point]:
        (low_z, low_d), (high_z, high_d) = lower, upper
        zero = torch.zeros_like(low_z)
        points = corners(lower, upper)
        for d in (low_d, high_d):
            points += [(clamp(z, low_z, high_z), d) for z in (zero, -d)]
        points += [(z, clamp(-z, low_d, high_d)) for z in (low_z, high_z)]
        return [*points, (clamp(zero, low_z, high_z), clamp(zero, low_d, high_d))]

    def slopes(self, lower: Point, upper: Point) -> tuple[Point, Point]:
        """Of three pairs of slopes those whose linear bounds are closest in the middle of the box.

        They are the bounds of min(0, d) and max(0, d), those of both ReLUs on their own, and those of the ReLU
        of z + d minus the linear bound of slope one or zero on the other side.
        """
        (low_z, low_d), (high_z, high_d) = lower, upper
        low_w, high_w = low_z + low_d, high_z + high_d
        zero = torch.zeros_like(low_z)
        rise = _upper_slope(low_d, high_d)
        above_w, above_z = _upper_slope(low_w, high_w), _upper_slope(low_z, high_z)
        below_w, below_z = _lower_slope(low_w, high_w), _lower_slope(low_z, high_z)
        down = [(zero, 1 - rise), (below_w - above_z, below_w), (below_w - below_z, below_w)]
        up = [(zero, rise), (above_w - below_z, above_w), (below_w - below_z, below_w)]
        middle = (low_z / 2 + high_z / 2, low_d / 2 + high_d / 2)
        return self._best(down, 0, lower, upper, middle), self._best(up, 1, lower, upper, middle)

    def _best(self, choices: Sequence[Point], side: int, lower: Point, upper: Point, at: Point) -> Point:
        """The slopes whose lower (side 0) or upper (side 1) bound at a point is the tightest."""
        values = torch.stack(
            [
                intercept(self, lower, upper, slope)[side] + slope[0] * at[0] + slope[1] * at[1]
                for slope in choices
            ]
        )
        worst = -torch.inf if side == 0 else torch.inf
        values = torch.where(values.isnan(), worst, values)
        chosen = (values.argmax(0) if side == 0 else values.argmin(0))[None]
        first, second = (torch.stack([slope[k] for slope in choices]).gather(0, chosen)[0] for k in (0, 1))
        return first, second

    def limits(self, lower: Point, upper: Point) -> Interval:
        return lower[1].clamp_max(0), upper[1].clamp_min(0)

    def can_tighten(self, lower: Point, upper: Point) -> Tensor:
        """Where one of the two ReLUs is unstable."""
        unstable = [
            (low < 0) & (high > 0)
            for low, high in ((lower[0], upper[0]), (lower[0] + lower[1], upper[0] + upper[1]))
        ]
        return unstable[0] | unstable[1]

    def derivative_range(self, lower: Point, upper: Point) -> list[Interval]:
        """By z the derivative of one ReLU minus that of the other; by d that of the ReLU of z + d."""
        infinite = torch.full_like(lower[0], torch.inf)
        low_w = torch.nextafter(lower[0] + lower[1], -infinite)
        high_w = torch.nextafter(upper[0] + upper[1], infinite)
        (w_least, w_most), (z_least, z_most) = _steps(low_w, high_w), _steps(lower[0], upper[0])
        return [(w_least - z_most, w_most - z_least), (w_least, w_most)]

    def executed_error(self, lower: Point, upper: Point, dtype: torch.dtype) -> Tensor:
        """Of the difference of two ReLUs, whose sizes are at most |z| + |d|."""
        sizes = [torch.maximum(low.abs(), high.abs()) for low, high in zip(lower, upper, strict=True)]
        return rounding_error(sizes[0] + sizes[1], dtype)


def _steps(low: Tensor, high: Tensor) -> Interval:
    """The range of the derivative of a ReLU: 1 for a nonnegative box, 0 for a nonpositive one, otherwise both."""
    one, zero = torch.ones_like(low), torch.zeros_like(low)
    least = torch.where(low >= 0, one, zero)
    return least, torch.where((high <= 0) & (low < 0), zero, one)


def _upper_slope(low: Tensor, high: Tensor) -> Tensor:
    """The slope of the upper bound of a ReLU: of its chord if it is unstable."""
    across = chord(low.clamp_min(0), high.clamp_min(0), low, high, (low + high > 0).to(low))
    return torch.where(low >= 0, torch.ones_like(low), torch.where(high <= 0, torch.zeros_like(low), across))


def _lower_slope(low: Tensor, high: Tensor) -> Tensor:
    """The slope of the lower bound of a ReLU: one where its positive side is longer, else zero."""
    return (low + high > 0).to(low)
