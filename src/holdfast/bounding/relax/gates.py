"""The products of gated recurrent cells: sigmoid(v) z and sigmoid(v) tanh(z).

Statement and assumptions: see `base.py`, for f(v, z) - a v - b z on a box of two pre-activations.

- sigmoid(v) z is linear in z, so extremes lie on the edges z = l_z and z = u_z: at corners, or where
  sigmoid'(v) = a / z.
- sigmoid(v) tanh(z): extremes lie at corners, on the edges (sigmoid'(v) = a / tanh(z), or tanh'(z) = b /
  sigmoid(v)), or at interior stationary points, which `_interior` finds.

Rounding: see `base.py`; an edge or interior candidate is a stationary point, so its error counts to second
order.

Reference: Ko et al. 2019 (POPQORN) for linear bounds of these two functions; here the intercepts are exact
for any slopes.
"""

import torch
from torch import Tensor

from holdfast.bounding.relax.base import (
    Curve,
    Interval,
    Point,
    Relaxation,
    chord,
    clamp,
    hull,
    without_sign_split,
)
from holdfast.bounding.relax.product import corners
from holdfast.bounding.relax.sigmoidal import Sigmoid, Tanh, tanh_slope_root


class SigmoidTimes(Relaxation):
    """sigmoid(v) z. Linear in z, so extremes lie on the edges z = l and z = u, where sigmoid'(v) = a / z."""

    measured = True
    arguments = 2
    unknown = without_sign_split("of two arguments")

    def function(self, *v: Tensor) -> Tensor:
        return torch.sigmoid(v[0]) * v[1]

    def magnitude(self, lower: Point, upper: Point) -> Tensor:
        return torch.maximum(lower[1].abs(), upper[1].abs())

    def candidates(self, lower: Point, upper: Point, slope: Point) -> list[Point]:
        points = corners(lower, upper)
        for z in (lower[1], upper[1]):
            points += [(v, z) for v in _sigmoid_slope_roots(slope[0], z, lower[0], upper[0])]
        return points

    def slopes(self, lower: Point, upper: Point) -> tuple[Point, Point]:
        s_lower, s_upper = torch.sigmoid(lower[0]), torch.sigmoid(upper[0])
        z = lower[1] / 2 + upper[1] / 2
        a = z * chord(s_lower, s_upper, lower[0], upper[0], s_lower * (1 - s_lower))
        both = a, s_lower / 2 + s_upper / 2
        return both, both

    def extremes(self, lower: Point, upper: Point) -> list[Point]:
        return corners(lower, upper)

    def derivative_range(self, lower: Point, upper: Point) -> list[Interval]:
        (steep,) = Sigmoid().derivative_range(lower[:1], upper[:1])
        return [_times(steep, (lower[1], upper[1])), hull(torch.sigmoid(lower[0]), torch.sigmoid(upper[0]))]

    def curves(self) -> tuple[Curve | None, ...]:
        return *Sigmoid().curves(), None


class SigmoidTanh(Relaxation):
    """sigmoid(v) tanh(z). Extremes lie at corners, on the four edges, or in the interior, where both
    derivatives vanish.
    """

    measured = True
    arguments = 2
    unknown = without_sign_split("of two arguments")

    def function(self, *v: Tensor) -> Tensor:
        return torch.sigmoid(v[0]) * torch.tanh(v[1])

    def magnitude(self, lower: Point, upper: Point) -> Tensor:
        return torch.ones_like(lower[0])

    def candidates(self, lower: Point, upper: Point, slope: Point) -> list[Point]:
        (low_v, low_z), (high_v, high_z) = lower, upper
        points = corners(lower, upper)
        for z in (low_z, high_z):
            points += [(v, z) for v in _sigmoid_slope_roots(slope[0], torch.tanh(z), low_v, high_v)]
        for v in (low_v, high_v):
            root = tanh_slope_root(slope[1] / torch.sigmoid(v).clamp_min(1e-300))
            points += [(v, clamp(z, low_z, high_z)) for z in (root, -root)]
        for s in _interior(slope[0], slope[1]):
            # Given v, the optimal z has a closed form; with it, an error in v counts only to second order.
            v, root = clamp(torch.logit(s), low_v, high_v), tanh_slope_root(slope[1] / s)
            points += [(v, clamp(z, low_z, high_z)) for z in (root, -root)]
        return points

    def slopes(self, lower: Point, upper: Point) -> tuple[Point, Point]:
        s_lower, s_upper = torch.sigmoid(lower[0]), torch.sigmoid(upper[0])
        t_lower, t_upper = torch.tanh(lower[1]), torch.tanh(upper[1])
        a = (t_lower + t_upper) / 2 * chord(s_lower, s_upper, lower[0], upper[0], s_lower * (1 - s_lower))
        both = a, (s_lower + s_upper) / 2 * chord(t_lower, t_upper, lower[1], upper[1], 1 - t_lower**2)
        return both, both

    def extremes(self, lower: Point, upper: Point) -> list[Point]:
        return corners(lower, upper)

    def derivative_range(self, lower: Point, upper: Point) -> list[Interval]:
        gate, value = (
            hull(torch.sigmoid(lower[0]), torch.sigmoid(upper[0])),
            hull(torch.tanh(lower[1]), torch.tanh(upper[1])),
        )
        (steep,), (steep_value,) = (
            Sigmoid().derivative_range(lower[:1], upper[:1]),
            Tanh().derivative_range(lower[1:], upper[1:]),
        )
        return [_times(steep, value), _times(gate, steep_value)]

    def curves(self) -> tuple[Curve | None, ...]:
        return *Sigmoid().curves(), *Tanh().curves()


def _times(a: Interval, b: Interval) -> Interval:
    """The product of two intervals."""
    return hull(*(x * y for x in a for y in b), units=4)


def _sigmoid_slope_roots(a: Tensor, z: Tensor, lower: Tensor, upper: Tensor) -> list[Tensor]:
    """The two solutions v of sigmoid'(v) z = a, clamped: sigmoid(v) = (1 +- sqrt(1 - 4 a / z)) / 2."""
    root = 2 * tanh_slope_root(torch.where(z == 0, 1.0, 4 * a / torch.where(z == 0, 1.0, z)))
    return [clamp(root, lower, upper), clamp(-root, lower, upper)]


def _interior(a: Tensor, b: Tensor) -> list[Tensor]:
    """Candidates s = sigmoid(v) of the interior stationary points: s (1 - s) t = a and s (1 - t^2) = b, with
    t = tanh(z).

    Eliminating t leaves h(s) = s - a^2 / (s (1 - s)^2) - b = 0. h is concave on (0, 1), so it has at most two
    roots, one on either side of its maximum. An extreme point needs f_vv and f_zz of one sign, which means s
    > 1/2, so only [1/2, 1) is searched.

    Newton's method for a concave function, started outside the roots (h < 0), never passes the root. Such
    starting points are 1/2 and 1 - |a| / sqrt(1 - b): at the root, (1 - s)^2 = a^2 / (s (s - b)) > a^2 / (1 -
    b). Where the two roots nearly coincide, every step still halves the error.
    """
    first = torch.full_like(a, 0.5)
    last = 1 - a.abs() / (1 - b).clamp_min(1e-300).sqrt()
    s = torch.stack([first, last.clamp(0.5, 1 - 2.0**-52)])
    # h increases up to the first root and decreases from the second.
    rises = torch.stack([torch.ones_like(a), -torch.ones_like(a)])
    for _ in range(26):
        left = 1 - s
        pull = a * a / (s * left * left)
        h, slope = s - pull - b, 1 - pull * (2 / left - 1 / s)
        outside = (h < 0) & (slope * rises > 0)
        s = torch.where(outside, s - h / torch.where(outside, slope, 1.0), s).clamp(0.5, 1 - 2.0**-52)
    return list(s)
