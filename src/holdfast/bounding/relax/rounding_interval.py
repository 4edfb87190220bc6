"""A number as the network's own arithmetic may have it: v, give or take a few of its last places. What jumps reads this.

A bound holds in real arithmetic, where v is what it is. But a jump makes a whole step of the last place of v, so that a point on it would
be proved to lie on one side and be computed to lie on the other. Here both count. That is a caution and no proof of what is executed,
which `executed_error` is for.
"""

import torch
from torch import Tensor

from holdfast.bounding.relax.base import UNIT, Interval, Point, Relaxation, unsplit
from holdfast.bounding.relax.parabola import Pieces

SHARE = 2.0**-18  # 64 units of float32


class Unsure(Relaxation):
    """v. Its magnitude is so large that what is charged for rounding is SHARE of 1 + |v|."""

    unknown = unsplit("one line")

    def function(self, *v: Tensor) -> Tensor:
        return v[0]

    def magnitude(self, lower: Point, upper: Point) -> Tensor:
        return (1 + torch.maximum(lower[0].abs(), upper[0].abs())) * (SHARE / (64 * UNIT))

    def candidates(self, lower: Point, upper: Point, slope: Point) -> list[Point]:
        return [lower, upper]

    def slopes(self, lower: Point, upper: Point) -> tuple[Point, Point]:
        one = (torch.ones_like(lower[0]),)
        return one, one

    def derivative_range(self, lower: Point, upper: Point) -> list[Interval]:
        one = torch.ones_like(lower[0])
        return [(one, one)]

    def curves(self) -> tuple[Pieces]:
        return (_Line(self, (), ((1.0, 0.0),), steepest=1.0),)

    def executed_error(self, lower: Point, upper: Point, dtype: torch.dtype) -> Tensor:
        return torch.zeros_like(lower[0])


class _Line(Pieces):
    def sizes(self, lower: Tensor, upper: Tensor) -> tuple[Tensor, float]:  # type: ignore[override]
        return self.relaxation.magnitude((lower,), (upper,)), 1.0
