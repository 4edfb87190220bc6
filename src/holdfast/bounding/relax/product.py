"""The product of two pre-activations.

Statement and assumptions: see `base.py`. v z - a v - b z is bilinear, so over a box its extremes lie at the four corners.

Reference: McCormick 1976; the convex envelope of v z over a box is the maximum of two planes through corners.
"""

import torch
from torch import Tensor

from holdfast.bounding.relax.base import Interval, Point, Relaxation, without_sign_split


class Product(Relaxation):
    """v z."""

    measured = True
    arguments = 2
    unknown = without_sign_split("of two arguments")

    def function(self, *v: Tensor) -> Tensor:
        return v[0] * v[1]

    def magnitude(self, lower: Point, upper: Point) -> Tensor:
        return torch.maximum(lower[0].abs(), upper[0].abs()) * torch.maximum(lower[1].abs(), upper[1].abs())

    def candidates(self, lower: Point, upper: Point, slope: Point) -> list[Point]:
        return corners(lower, upper)

    def slopes(self, lower: Point, upper: Point) -> tuple[Point, Point]:
        """The mean of McCormick's two planes on either side: slope (l_z + u_z) / 2 in v and (l_v + u_v) / 2
        in z.
        """
        middle = (lower[1] / 2 + upper[1] / 2, lower[0] / 2 + upper[0] / 2)
        return middle, middle

    def derivative_range(self, lower: Point, upper: Point) -> list[Interval]:
        return [(lower[1], upper[1]), (lower[0], upper[0])]

    def curves(self) -> tuple[None, None]:
        return None, None


def corners(lower: Point, upper: Point) -> list[Point]:
    """The four corners of a box."""
    return [(v, z) for v in (lower[0], upper[0]) for z in (lower[1], upper[1])]
