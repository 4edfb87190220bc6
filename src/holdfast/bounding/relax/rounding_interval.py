"""A pre-activation of a discontinuous function as the network's own arithmetic may compute it: v within a few
units of its last place.

Statement: the relaxation of f(v) = v with |error| <= SHARE (1 + |v|), which is added to the bounds of
`base.py` as rounding.

A bound holds in real arithmetic, where v has one value. But a discontinuity turns the last place of v into a
whole step: a point at a jump could be certified on one side and computed on the other. Here both sides count.
This is a safety margin, not a proof about execution; `executed_error` is for that.

Assumption: the network's own arithmetic computes v to within that distance of its value in real arithmetic.

Reference: none; the margin is this package's own.
"""

import torch
from torch import Tensor

from holdfast.bounding.relax.base import UNIT, Interval, Point, Relaxation, without_sign_split
from holdfast.bounding.relax.parabola import PiecewiseQuadratic

# The margin relative to 1 + |v|: 64 units roundoff (2^-24) of float32 (chosen by hand).
SHARE = 2.0**-18
# Largest absolute value that may be cast to an integer: sums of up to 2^11 of them fit into 32 bits, and float32 holds
# each exactly (chosen by hand).
LARGEST_INTEGER = 2.0**20


class _Identity(Relaxation):
    """v, with the error or the domain that a subclass gives it."""

    unknown = without_sign_split("linear")

    def candidates(self, lower: Point, upper: Point, slope: Point) -> list[Point]:
        return [lower, upper]

    def slopes(self, lower: Point, upper: Point) -> tuple[Point, Point]:
        one = (torch.ones_like(lower[0]),)
        return one, one

    def derivative_range(self, lower: Point, upper: Point) -> list[Interval]:
        one = torch.ones_like(lower[0])
        return [(one, one)]

    def curves(self) -> tuple[PiecewiseQuadratic]:
        return (_Line(self, (), ((1.0, 0.0),), steepest=1.0),)

    def executed_error(self, lower: Point, upper: Point, dtype: torch.dtype) -> Tensor:
        return torch.zeros_like(lower[0])


class RoundedInput(_Identity):
    """v. Its magnitude is scaled such that the rounding error charged by `base.py` is SHARE (1 + |v|)."""

    def function(self, *v: Tensor) -> Tensor:
        return v[0]

    def can_tighten(self, lower: Point, upper: Point) -> Tensor:
        return torch.zeros_like(lower[0], dtype=torch.bool)

    def magnitude(self, lower: Point, upper: Point) -> Tensor:
        return (1 + torch.maximum(lower[0].abs(), upper[0].abs())) * (SHARE / (64 * UNIT))


class IntegerRange(_Identity):
    """v for |v| <= LARGEST_INTEGER, otherwise undefined (NaN), so that its bounds are infinite.

    A cast to integers is followed by integer arithmetic, which wraps around where real arithmetic does not.
    """

    def function(self, *v: Tensor) -> Tensor:
        return torch.where(v[0].abs() <= LARGEST_INTEGER, v[0], torch.nan)

    def magnitude(self, lower: Point, upper: Point) -> Tensor:
        size = torch.maximum(lower[0].abs(), upper[0].abs())
        return torch.where(size <= LARGEST_INTEGER, size, torch.inf)

    def derivative_range(self, lower: Point, upper: Point) -> list[Interval]:
        inside = torch.maximum(lower[0].abs(), upper[0].abs()) <= LARGEST_INTEGER
        one = torch.ones_like(lower[0])
        return [(torch.where(inside, one, -torch.inf), torch.where(inside, one, torch.inf))]


class _Line(PiecewiseQuadratic):
    """The identity, with the magnitude of `RoundedInput` or `IntegerRange`, which is the size of its rounding error."""

    def sizes(self, lower: Tensor, upper: Tensor) -> tuple[Tensor, float]:  # type: ignore[override]
        return self.relaxation.magnitude((lower,), (upper,)), 1.0
