"""Linear bounds of functions that are convex or concave on their whole domain: tangents and ends; slopes are untrusted.

Statement: for any slope a and any interval [l, u] inside the domain, `ConvexFunction.least` returns a number m with

    m <= min over v in [l, u] of  F(v) = sign f(v) - a v,   rounding included.

Proof. If F is convex, F(v) >= F(p) + F'(p) (v - p) for any point p of the interval, and the right side is smallest at an
end. If F is concave, F itself is smallest at an end. The point p is a guess of where F' vanishes, in plain floating
point; any p of the interval is sound. An interval that leaves the domain has no bounds, so nothing is proved with it.

Errors. Computed values of f are wrong by at most e = CONVEX_ERROR (|f| + `value_error`) + TINY, derivatives alike; each
entry of CONVEX says why. F(p) + F'(p) (v - p) is then wrong by at most e_f + e_d |v - p| plus the rounding of fewer
than ten operations, which CURVE_LINES charges.

Assumption: every function of CONVEX is convex or concave on its domain, as its entry says.

References: linear bounds of exp and reciprocal by tangents and chords: Shi et al. 2020 (Transformers), who
compose softmax from them as here.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from holdfast_check.arithmetic import (
    CONVEX_ERROR,
    CURVE_LINES,
    TINY,
    Array,
    charge,
    exponential,
    logarithm,
    sigmoid,
)
from holdfast_check.errors import NoBounds
from holdfast_check.functions import Point, chord_slope
from holdfast_check.limits import look_at_clock

LARGEST_EXPONENT = 230.0  # exp of it is below LARGEST = 1e100.
# torch's softplus is v for v > 20, which is less than log(1 + exp(v)) by at most exp(-20) < 2.1e-9.
TORCH_SOFTPLUS = 2.1e-9 / CONVEX_ERROR
SMALLEST_POSITIVE = (
    1e-60  # Functions of positive numbers are bounded from here on; their derivatives stay finite.
)


@dataclass(frozen=True)
class ConvexShape:
    """A function f that is convex (`curvature` = 1) or concave (-1) on [first, last].

    `tangent_at` guesses the point with a given derivative. `value_error` and `slope_error`: 1 where the error of
    a value or of a derivative is relative to 1 + its size, 0 where it is relative to its size.
    """

    value: Callable[[Array], Array]
    derivative: Callable[[Array], Array]
    tangent_at: Callable[[Array], Array]
    curvature: int
    first: float = -math.inf
    last: float = math.inf
    value_error: float = 0.0
    slope_error: float = 0.0


def _exp(v: Array) -> Array:
    """exp, for any number: below -700 it is less than 1e-300, which TINY covers."""
    return exponential(np.clip(v, -700.0, 700.0))


def _softplus(v: Array) -> Array:
    """log(1 + exp(v)) = max(v, 0) + log(1 + exp(-|v|)); the last argument lies in [1, 2]."""
    return np.maximum(v, 0.0) + logarithm(1.0 + _exp(-np.abs(v)))


# exp: relative error 2^-49. 1 / v, v^2 and sqrt: one rounding, v^(-1/2): two; their derivatives at most nine. log:
# 2^-46 (1 + |log v|). softplus: log at [1, 2] with an argument wrong by 2^-48, less than 2^-45; its derivative is
# sigmoid. elu: exp(v) - 1 below 0, with exp(v) <= 1. All are below CONVEX_ERROR = 2^-45 times |f| or 1 + |f|.
CONVEX = {
    "exp": ConvexShape(_exp, _exp, np.log, 1, last=LARGEST_EXPONENT),
    "reciprocal": ConvexShape(
        lambda v: 1.0 / v, lambda v: -1.0 / (v * v), lambda a: 1.0 / np.sqrt(-a), 1, SMALLEST_POSITIVE
    ),
    "rsqrt": ConvexShape(
        lambda v: 1.0 / np.sqrt(v),
        lambda v: -0.5 / (v * np.sqrt(v)),
        lambda a: np.cbrt(0.25 / (a * a)),
        1,
        SMALLEST_POSITIVE,
    ),
    "square": ConvexShape(lambda v: v * v, lambda v: 2.0 * v, lambda a: a / 2, 1),
    "softplus": ConvexShape(
        _softplus, sigmoid, lambda a: np.log(a) - np.log(1 - a), 1, value_error=1.0, slope_error=1.0
    ),
    "softplus of torch": ConvexShape(
        _softplus,
        sigmoid,
        lambda a: np.log(a) - np.log(1 - a),
        1,
        value_error=TORCH_SOFTPLUS,
        slope_error=1.0,
    ),
    "elu": ConvexShape(
        lambda v: np.where(v < 0, _exp(np.minimum(v, 0.0)) - 1.0, v),
        lambda v: np.where(v < 0, _exp(np.minimum(v, 0.0)), 1.0),
        np.log,
        1,
        value_error=1.0,
    ),
    "log": ConvexShape(
        logarithm, lambda v: 1.0 / v, lambda a: 1.0 / a, -1, SMALLEST_POSITIVE, value_error=1.0
    ),
    "sqrt": ConvexShape(np.sqrt, lambda v: 0.5 / np.sqrt(v), lambda a: 0.25 / (a * a), -1, SMALLEST_POSITIVE),
}


@dataclass(frozen=True)
class ConvexFunction:
    """A function of one number from the table CONVEX; it offers what `functions.PiecewiseLinear` offers."""

    name: str
    arguments: int = 1

    @property
    def curves(self) -> tuple[ConvexFunction, ...]:
        return (self,)

    def value(self, *v: Array) -> Array:
        return CONVEX[self.name].value(v[0])

    def _inside(self, lower: Array, upper: Array) -> None:
        shape = CONVEX[self.name]
        if not bool(((lower >= shape.first) & (upper <= shape.last)).all()):
            raise NoBounds(
                f"{self.name} of values between {lower.min():.4g} and {upper.max():.4g}; it is bounded only "
                f"between {shape.first:g} and {shape.last:g}"
            )

    def least(self, sign: float, slopes: Point, lower: Point, upper: Point) -> Array:
        """The statement of this module."""
        look_at_clock()
        a, low, high = np.broadcast_arrays(slopes[0], lower[0], upper[0])
        self._inside(low, high)
        shape = CONVEX[self.name]
        if sign * shape.curvature < 0:
            return np.minimum(self._end(sign, a, low), self._end(sign, a, high))
        with np.errstate(all="ignore"):
            guess = shape.tangent_at(sign * a)
        p = np.clip(np.where(np.isnan(guess), low / 2 + high / 2, guess), low, high)
        f, slope = shape.value(p), shape.derivative(p)
        at, steep = sign * f - a * p, sign * slope - a
        f_error = CONVEX_ERROR * (np.abs(f) + shape.value_error)
        slope_error = CONVEX_ERROR * (np.abs(slope) + shape.slope_error)
        bounds = []
        for away in (low - p, high - p):
            size = np.abs(f) + np.abs(a * p) + (np.abs(slope) + np.abs(a)) * np.abs(away)
            missed = f_error + slope_error * np.abs(away) + charge(size, CURVE_LINES) + TINY
            bounds.append(at + steep * away - 1.0000001 * missed)
        result: Array = np.minimum(*bounds)
        return result

    def _end(self, sign: float, a: Array, v: Array) -> Array:
        """A lower bound of sign f(v) - a v at points v."""
        shape = CONVEX[self.name]
        f = shape.value(v)
        missed = CONVEX_ERROR * (np.abs(f) + shape.value_error) + TINY
        missed = missed + charge(np.abs(f) + np.abs(a * v), CURVE_LINES)
        result: Array = sign * f - a * v - 1.0000001 * missed
        return result

    def range(self, lower: Point, upper: Point) -> tuple[Array, Array]:
        """An interval that contains all values on [lower, upper]."""
        level = (np.zeros_like(lower[0]),)
        return self.least(1.0, level, lower, upper), -self.least(-1.0, level, lower, upper)

    def slopes(self, lower: Point, upper: Point) -> tuple[Point, Point]:
        """The slope of the tangent at the middle, on the side where it is a bound, and of the chord."""
        shape, low, high = CONVEX[self.name], lower[0], upper[0]
        self._inside(low, high)
        tangent = shape.derivative(low / 2 + high / 2)
        chord = chord_slope(shape.value(low), shape.value(high), low, high, tangent)
        return ((tangent,), (chord,)) if shape.curvature > 0 else ((chord,), (tangent,))
