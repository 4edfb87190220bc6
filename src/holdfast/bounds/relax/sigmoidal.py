"""tanh and the logistic function: convex below zero, concave above."""

import torch
from torch import Tensor

from holdfast.bounds.relax.base import Point, Relaxation, chord, clamp

LAST_BELOW_ONE = 1 - 2.0**-53


class Tanh(Relaxation):
    def function(self, *v: Tensor) -> Tensor:
        return torch.tanh(v[0])

    def magnitude(self, lower: Point, upper: Point) -> Tensor:
        return torch.ones_like(lower[0])

    def candidates(self, lower: Point, upper: Point, slope: Point) -> list[Point]:
        """Ends, and where 1 - tanh(v)^2 = slope, on both sides of zero."""
        root = tanh_slope_root(slope[0])
        return [lower, upper, (clamp(root, lower[0], upper[0]),), (clamp(-root, lower[0], upper[0]),)]

    def slopes(self, lower: Point, upper: Point) -> tuple[Point, Point]:
        return (_supporting_slope(lower[0], upper[0]),), (_supporting_slope(-upper[0], -lower[0]),)


class Sigmoid(Relaxation):
    """sigmoid(v) = (1 + tanh(v / 2)) / 2."""

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


def tanh_slope_root(slope: Tensor) -> Tensor:
    """The v >= 0 with tanh'(v) = slope; zero where the slope is too steep, far out where it is level."""
    return torch.atanh((1 - slope).clamp(0, 1).sqrt().clamp_max(LAST_BELOW_ONE))


def _supporting_slope(lower: Tensor, upper: Tensor) -> Tensor:
    """The slope of tanh's convex envelope at the middle of the box: among lower lines, the one highest there.

    The envelope follows tanh up to the point d from which the chord to the upper end is a tangent, then that chord.
    """
    low, high = torch.minimum(lower, torch.zeros_like(lower)), torch.minimum(upper, torch.zeros_like(upper))
    f_upper = torch.tanh(upper)
    start, end = low, high
    for _ in range(26):
        middle = start / 2 + end / 2
        f = torch.tanh(middle)
        before = f + (1 - f * f) * (upper - middle) < f_upper  # the tangent still passes below the upper end
        start, end = torch.where(before, middle, start), torch.where(before, end, middle)
    d = torch.where(lower >= 0, lower, start / 2 + end / 2)
    f_d = torch.tanh(d)
    to_end = chord(f_d, f_upper, d, upper, 1 - f_d * f_d)
    centre = lower / 2 + upper / 2
    f_centre = torch.tanh(centre)
    return torch.where(centre < d, 1 - f_centre * f_centre, to_end)
