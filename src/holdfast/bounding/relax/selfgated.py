"""Self-gated activations v g(v): SiLU, GELU, GELU with tanh, and Mish.

Statement and assumptions: see `base.py`. The derivative f' of each function decreases, increases and decreases again: f''
changes sign at two inflection points and nowhere else. So on each of the three pieces f'(v) = a has at most
one solution, and bisection finds it: `candidates` misses no stationary point of f(v) - a v.

Rounding: bisection may take the wrong half only where the computed derivative is within a few u of the slope.
Since f' is monotone on the piece, all points from there to the solution are equally close to stationary, so
the value changes by at most these few u times the distance, which the 64 u of `base.py` cover. For |v| >
`far` the function equals 0 or v to within the last place of any slope.

Two inflection points: with x = exp(v), s = sigmoid(w),

- GELU, v Phi(v): f'' = phi(v) (2 - v^2).
- v s with w = a v + b v^3, a > 0, b >= 0 (SiLU: a = 1, b = 0): f'' has the sign of 2 w' + v w'' - v w'^2
  tanh(w / 2), which is even. For v > 0 it is zero where v tanh(w / 2) (a / 2 + 9 b^2 v^4 / (2 a + 12 b v^2))
  = 1; the left side increases from 0 without bound, so there is one solution.
- Mish: f'' is zero where log x = 2 (x + 1) (x^2 + 2 x + 2) / p(x), p = 2 x^3 + 3 x^2 - 2 x - 2. The right
  side decreases on both sides of p's only positive root (the numerator of its derivative is -2 (3 x^4 + 20
  x^3 + 36 x^2 + 24 x + 4)), from -2 to -inf and from inf to 1, while log x increases from -inf to inf: one
  solution on either side.

References: Hendrycks and Gimpel 2016 (GELU); Elfwing et al. 2018 (SiLU); Misra 2019 (Mish).
"""

import math
from abc import abstractmethod
from typing import ClassVar

import torch
from torch import Tensor

from holdfast.bounding.relax.base import NO_KINK, UNIT, Interval, Point, Relaxation, clamp, hull
from holdfast.bounding.relax.hull import hull_slopes
from holdfast.bounding.relax.parabola import SmoothCurve

# Bisection steps: from an interval of at most 800 they leave 5e-8, whose square is a few u, and the error of
# a stationary point is of second order.
HALVINGS = 34


class SelfGated(Relaxation):
    """v gate(v), for a gate that increases from 0 to 1."""

    measured = True
    bends: ClassVar[tuple[float, float]]  # The two inflection points.
    far: ClassVar[float]  # For |v| > far the function is 0 or v, see the module's docstring.
    third: ClassVar[float]  # sup |f'''|, rounded up.
    unknown = NO_KINK

    @abstractmethod
    def gate(self, v: Tensor) -> Tensor: ...

    @abstractmethod
    def derivative(self, v: Tensor) -> Tensor:
        """f', accurate to a few u of one."""

    @abstractmethod
    def second(self, v: Tensor) -> Tensor:
        """f'', accurate to a few u of one for |v| <= far; beyond, zero up to 1e-300."""

    def function(self, *v: Tensor) -> Tensor:
        near = v[0].clamp_min(-self.far)
        return near * self.gate(near)

    def magnitude(self, lower: Point, upper: Point) -> Tensor:
        """|f(v)| <= |v|, and bisection may miss by a few u of |v|; below -far the function is constant."""
        return torch.maximum(*(end[0].clamp_min(-self.far).abs() for end in (lower, upper)))

    def candidates(self, lower: Point, upper: Point, slope: Point) -> list[Point]:
        """Ends, and on each of the three pieces the solution of f'(v) = slope, or an end of the piece if
        there is none.
        """
        ends = [
            clamp(torch.full_like(lower[0], end), lower[0], upper[0])
            for end in (-self.far, *self.bends, self.far)
        ]
        start, end = torch.stack(ends[:-1]), torch.stack(ends[1:])
        rising = torch.tensor([False, True, False], device=start.device).reshape(
            3, *(1 for _ in lower[0].shape)
        )
        for _ in range(HALVINGS):
            middle = start / 2 + end / 2
            past = (self.derivative(middle) > slope[0]) == rising
            start, end = torch.where(past, start, middle), torch.where(past, middle, end)
        return [lower, upper, *((place,) for place in start / 2 + end / 2)]

    def slopes(self, lower: Point, upper: Point) -> tuple[Point, Point]:
        below, above = hull_slopes(self.function, self.derivative, lower[0], upper[0])
        return (below,), (above,)

    def derivative_range(self, lower: Point, upper: Point) -> list[Interval]:
        """f' is monotone between the inflection points. Its terms may cancel near its zeros, so 256 u of one
        are added.
        """
        places = (
            *lower,
            *upper,
            *(clamp(torch.full_like(lower[0], point), lower[0], upper[0]) for point in self.bends),
        )
        return [hull(*(self.derivative(v.clamp(-self.far, self.far)) for v in places), more=256 * UNIT)]

    def curves(self) -> tuple[SmoothCurve]:
        return (
            SmoothCurve(
                self,
                lambda v: self.second(v.clamp(-self.far, self.far)),
                lambda lower, upper: self.third,
                steepest=1.13,
            ),
        )


class Silu(SelfGated):
    """v sigmoid(v)."""

    bends = (-2.3993572805154677, 2.3993572805154677)
    far = 800.0
    third = 0.52

    def gate(self, v: Tensor) -> Tensor:
        return torch.sigmoid(v)

    def derivative(self, v: Tensor) -> Tensor:
        s = torch.sigmoid(v)
        return s + v * s * torch.sigmoid(-v)

    def second(self, v: Tensor) -> Tensor:
        s, t = torch.sigmoid(v), torch.sigmoid(-v)
        return s * t * (2 + v * (t - s))


class Gelu(SelfGated):
    """v Phi(v), Phi the normal distribution function."""

    bends = (-math.sqrt(2), math.sqrt(2))
    far = 40.0
    third = 0.78

    def gate(self, v: Tensor) -> Tensor:
        tail: Tensor = torch.special.erfc(v * -math.sqrt(0.5))
        return tail / 2

    def derivative(self, v: Tensor) -> Tensor:
        return self.gate(v) + v * torch.exp(-v * v / 2) / math.sqrt(2 * math.pi)

    def second(self, v: Tensor) -> Tensor:
        return (2 - v * v) * torch.exp(-v * v / 2) / math.sqrt(2 * math.pi)


class GeluTanh(SelfGated):
    """v (1 + tanh(w / 2)) / 2 = v sigmoid(w) with w = 2 sqrt(2 / pi) (v + 0.044715 v^3)."""

    bends = (-1.4185040087908284, 1.4185040087908284)
    far = 25.0
    third = 0.9
    factor: ClassVar[float] = 2 * math.sqrt(2 / math.pi)

    def gate(self, v: Tensor) -> Tensor:
        return torch.sigmoid(self.factor * (v + 0.044715 * v**3))

    def derivative(self, v: Tensor) -> Tensor:
        w = self.factor * (v + 0.044715 * v**3)
        s = torch.sigmoid(w)
        return s + v * s * torch.sigmoid(-w) * self.factor * (1 + 3 * 0.044715 * v * v)

    def second(self, v: Tensor) -> Tensor:
        w, rise = self.factor * (v + 0.044715 * v**3), self.factor * (1 + 3 * 0.044715 * v * v)
        s, t = torch.sigmoid(w), torch.sigmoid(-w)
        return s * t * (2 * rise + v * ((t - s) * rise * rise + self.factor * 6 * 0.044715 * v))


class Mish(SelfGated):
    """v tanh(softplus(v)); with s = sigmoid(-v) the gate is (1 - s^2) / (1 + s^2)."""

    bends = (-2.2563763963607931, 1.4905711794854285)
    far = 800.0
    third = 0.7

    def gate(self, v: Tensor) -> Tensor:
        s = torch.sigmoid(-v)
        return torch.sigmoid(v) * (1 + s) / (1 + s * s)

    def derivative(self, v: Tensor) -> Tensor:
        s = torch.sigmoid(-v)
        return self.gate(v) + v * torch.sigmoid(v) * (2 * s / (1 + s * s)) ** 2

    def second(self, v: Tensor) -> Tensor:
        s, t = torch.sigmoid(-v), torch.sigmoid(v)
        return t * (2 * s / (1 + s * s)) ** 2 * (2 + v * (s - 2 * t * self.gate(v)))
