"""Rounding to a grid whose step is another value: f(v, s) = s round(v / s).

Statement. For every s >= 0 the value on the grid is within s / 2 of v (of v itself for s = 0), so over a box

    v - (1/2 + SHARE) s <= f(v, s) <= v + (1/2 + SHARE) s,    s at most its upper bound.

The relaxation of f is that of the identity in v, with (1/2 + SHARE) s added as its deviation. SHARE covers quotients
v / s that float32 computes: with |v / s| <= 255 they are wrong by less than 255 * 4 * 2^-24 < 2^-12 = SHARE steps, and so is
the choice of the zero point. As v is bounded by the enclosure, not by single steps, errors of v itself do not jump.

Assumption: |v| <= 255 s, which holds for every element of the tensor that determines s.

Reference: none; the inequality is elementary.
"""

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor

from holdfast.bounding.relax.base import Interval, Point, Relaxation, without_sign_split

SHARE = 2.0**-12  # Error of a rounded quotient in float32, in steps of the grid.


class DynamicRounding(Relaxation):
    """v rounded to the grid with the step s; the preactivations are v and s."""

    arguments = 2
    unknown: ClassVar[Mapping[str, str]] = {
        **without_sign_split("many jumps"),
        "parabola": "the enclosure is linear in the step, too",
        "derivative": "it jumps",
        "as executed": "the step is computed from the whole tensor",
    }

    def function(self, *v: Tensor) -> Tensor:
        """The quotient is computed in float32, so that a comparison with the model sees the same ties."""
        value, step = v
        divisor = torch.where(step > 0, step, 1.0)
        steps = torch.round(value.float() / divisor.float()).to(value)
        return torch.where(step > 0, steps * step, value)

    def trend(self, *v: Tensor) -> Tensor:
        return v[0] + 0.0 * v[1]

    def deviation(self, lower: Point, upper: Point) -> Tensor:
        return (0.5 + SHARE) * (1 + 2.0**-40) * upper[1].clamp_min(0)

    def candidates(self, lower: Point, upper: Point, slope: Point) -> list[Point]:
        """The trend is linear: corners."""
        (low, small), (high, large) = lower, upper
        return [(low, small), (low, large), (high, small), (high, large)]

    def magnitude(self, lower: Point, upper: Point) -> Tensor:
        return torch.maximum(lower[0].abs(), upper[0].abs())

    def slopes(self, lower: Point, upper: Point) -> tuple[Point, Point]:
        both = (torch.ones_like(lower[0]), torch.zeros_like(lower[0]))
        return both, both

    def limits(self, lower: Point, upper: Point) -> Interval | None:
        return None

    def can_tighten(self, lower: Point, upper: Point) -> Tensor:
        """The linear bounds are as far apart as the largest step, which one pass bounds well."""
        return torch.zeros_like(lower[0], dtype=torch.bool)
