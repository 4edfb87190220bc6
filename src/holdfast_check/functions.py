"""Linear bounds of activations f(v) g(z) over boxes, verified by subdivision; slopes are untrusted.

Statement: for any slopes a, b, any c and any box B = [l_v, u_v] x [l_z, u_z], `least` returns a number m with

    m <= min over (v, z) in B of  sign f(v) g(z) - a v - b z - c v^2,   rounding included.

So a v + b z + m is a linear lower bound of f(v) g(z) over B (sign = 1), and a linear upper bound follows with
sign = -1.

Proof: Taylor's theorem with bounds of the second derivatives on every part of a subdivision of B; for
piecewise-linear functions the minimum lies at an end of the box or at a kink. A bad slope makes the bound
loose, never false. So a proof may bring slopes; where it brings none, those of `slopes` are used, and neither
are trusted.

References: linear bounds of activations: Zhang et al. 2018 (CROWN), Singh et al. 2019 (DeepPoly); of
sigmoid(v) z and sigmoid(v) tanh(z): Ko et al. 2019 (POPQORN). The intercepts here come from subdivision
(interval branch and bound), not from their formulas.

Assumption: f and g are twice differentiable with the bounds that each class states, or piecewise linear;
boxes are finite.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from holdfast_check.arithmetic import (
    CURVE_ERROR,
    CURVE_LINES,
    CURVE_SIDES,
    KINKS,
    ROOT_HALF,
    TWO_BY_ROOT_PI,
    Array,
    charge,
    erf,
    exponential,
    normal_distribution,
    sigmoid,
    tanh,
)
from holdfast_check.errors import zip_equal
from holdfast_check.limits import look_at_clock

Point = tuple[Array, ...]  # A point of the box: one array per pre-activation (v, or v and z).
# The largest number of times a box is halved, each time along one side (chosen by hand; more halvings only
# tighten an intercept).
DIVISIONS = 24
# Stop subdividing a part when its bound is within this fraction of the second-order term over the whole box
# (chosen by hand; it affects tightness only).
NEAR = 2.0**-14


@dataclass(frozen=True)
class SmoothFunction:
    """A function f with bounds of |f|, |f'| and |f''| on the real line."""

    value: Callable[[Array], Array]
    derivative: Callable[[Array, Array], Array]  # f' as a function of v and f(v).
    size: float | None  # sup |f|; None: |f(v)| <= |v|.
    first: float  # sup |f'|
    second: float  # sup |f''|
    rises: bool = True  # Whether f is nondecreasing.

    def largest(self, lower: Array, upper: Array) -> Array:
        """A bound of |f| on [lower, upper]."""
        return (
            np.maximum(np.abs(lower), np.abs(upper)) if self.size is None else np.full_like(lower, self.size)
        )


GELU_CUBIC, GELU_SCALE = 0.044715, float.fromhex("0x1.9884533d43651p+0")  # The second is 2 sqrt(2 / pi).


def _silu_derivative(v: Array, _: Array) -> Array:
    s = sigmoid(v)
    return s + v * s * (1.0 - s)


def _gelu_derivative(v: Array, _: Array) -> Array:
    short = np.clip(v, -9.0, 9.0)
    result: Array = normal_distribution(v) + short * exponential(-0.5 * short * short) * (
        0.5 * TWO_BY_ROOT_PI * ROOT_HALF
    )
    return result


def _gelu_gate(v: Array) -> Array:
    """sigmoid(2 sqrt(2 / pi) (v + 0.044715 v^3)); beyond 30 it is 0 or 1 up to 1e-300."""
    short = np.clip(v, -30.0, 30.0)
    return sigmoid(GELU_SCALE * (short + GELU_CUBIC * short * short * short))


def _gelu_tanh_derivative(v: Array, _: Array) -> Array:
    s, short = _gelu_gate(v), np.clip(v, -30.0, 30.0)
    result: Array = s + short * s * (1.0 - s) * GELU_SCALE * (1.0 + 3 * GELU_CUBIC * short * short)
    return result


# The last number bounds |f''|: sigmoid'' = s (1 - s) (1 - 2 s), |sigmoid''| <= 1 / (6 sqrt 3) = 0.09622...;
# tanh'' = -2 t (1 - t^2), |tanh''| <= 4 / (3 sqrt 3) = 0.76980...; |erf''| <= 4 / sqrt(2 pi e) = 0.96788...;
# silu'' = s (1 - s) (2 + v (1 - 2 s)), at most 1/2; gelu'' = (2 - v^2) exp(-v^2 / 2) / sqrt(2 pi), at most
# 0.79788...; the GELU by tanh has 0.79788... at 0 too, and 0.83 is a margin above (tests compare with 80 digits).
# Values of silu and both GELUs are wrong by less than 2^-44 (1 + |v|), derivatives by less than 2^-44 (1 + |v|).
CURVES = {
    "one": SmoothFunction(np.ones_like, lambda v, f: np.zeros_like(f), 1.0, 0.0, 0.0),
    "identity": SmoothFunction(lambda v: v, lambda v, f: np.ones_like(f), None, 1.0, 0.0),
    "sigmoid": SmoothFunction(sigmoid, lambda v, s: s * (1.0 - s), 1.0, 0.25, 0.0963),
    "tanh": SmoothFunction(tanh, lambda v, t: 1.0 - t * t, 1.0, 1.0, 0.7699),
    "erf": SmoothFunction(
        erf, lambda v, f: TWO_BY_ROOT_PI * exponential(-(np.clip(v, -20.0, 20.0) ** 2)), 1.0, 1.1284, 0.968
    ),
    "silu": SmoothFunction(lambda v: v * sigmoid(v), _silu_derivative, None, 1.1, 0.5001, False),
    "gelu": SmoothFunction(lambda v: v * normal_distribution(v), _gelu_derivative, None, 1.13, 0.798, False),
    "gelu by tanh": SmoothFunction(
        lambda v: v * _gelu_gate(v), _gelu_tanh_derivative, None, 1.13, 0.83, False
    ),
}


@dataclass(frozen=True)
class ProductFunction:
    """f(v) g(z); a function of v alone has g = one.

    Like `PiecewiseLinear` it offers `value`; `range`, an interval that contains all values on a box; `slopes`
    of linear bounds below and above, for proofs that bring none; and `least`, the statement of this module.
    """

    f: str
    g: str = "one"

    @property
    def arguments(self) -> int:
        return 1 if self.g == "one" else 2

    @property
    def curves(self) -> tuple[ProductFunction | PiecewiseLinear, ...]:
        """The factors, one per pre-activation."""
        return (ProductFunction(self.f), ProductFunction(self.g))[: self.arguments]

    def _two(self, v: Point) -> tuple[Array, Array]:
        """v and z; z = 0 where the function has one pre-activation."""
        return (v[0], v[1]) if self.arguments == 2 else (v[0], np.zeros_like(v[0]))

    def value(self, *v: Array) -> Array:
        v_0, z = self._two(v)
        return CURVES[self.f].value(v_0) * CURVES[self.g].value(z)

    def range(self, lower: Point, upper: Point) -> tuple[Array, Array]:
        """An interval that contains all values on a box. A nondecreasing factor lies between
        its values at the ends, and the product of two intervals lies between products of their ends. A factor
        that is not nondecreasing is bounded by `least` with slopes of zero.
        """
        if not (CURVES[self.f].rises and CURVES[self.g].rises):
            level = (np.zeros_like(lower[0]),) * self.arguments
            return self.least(1.0, level, lower, upper), -self.least(-1.0, level, lower, upper)
        (l_v, l_z), (u_v, u_z) = self._two(lower), self._two(upper)
        f, g = (
            [CURVES[name].value(end) for end in ends]
            for name, ends in ((self.f, (l_v, u_v)), (self.g, (l_z, u_z)))
        )
        corners = np.stack([a * b for a in f for b in g])
        sizes = CURVES[self.f].largest(l_v, u_v) * CURVES[self.g].largest(l_z, u_z)
        missed = (
            4.0
            * CURVE_ERROR
            * (1.0 + CURVES[self.f].largest(l_v, u_v) + CURVES[self.g].largest(l_z, u_z) + sizes)
        )
        return corners.min(0) - missed, corners.max(0) + missed

    def slopes(self, lower: Point, upper: Point) -> tuple[Point, Point]:
        """(slopes below, slopes above), one per pre-activation; any slopes are sound."""
        if self.arguments == 1 and CURVES[self.f].rises:
            return (_below(CURVES[self.f], lower[0], upper[0]),), (
                _below(CURVES[self.f], -upper[0], -lower[0]),
            )
        if self.arguments == 1:  # Convex around zero: the tangent at the middle, and the chord.
            curve, middle = CURVES[self.f], (lower[0] + upper[0]) / 2
            tangent = curve.derivative(middle, curve.value(middle))
            ends = curve.value(lower[0]), curve.value(upper[0])
            return (tangent,), (chord_slope(*ends, lower[0], upper[0], tangent),)
        chords, middles = [], []
        for curve, low, high in zip_equal((CURVES[self.f], CURVES[self.g]), lower, upper):
            f_low, f_high = curve.value(low), curve.value(high)
            chords.append(chord_slope(f_low, f_high, low, high, curve.derivative(low, f_low)))
            middles.append((f_low + f_high) / 2)
        both = chords[0] * middles[1], chords[1] * middles[0]
        return both, both

    def least(
        self, sign: float, slopes: Point, lower: Point, upper: Point, quadratic: Array | float = 0.0
    ) -> Array:
        """A lower bound of F(v, z) = sign f(v) g(z) - a v - b z - quadratic v^2 over a box.

        Around the middle of a box with half sides h and k, Taylor's theorem gives

            F >= F(middle) - |F_v| h - |F_z| k
                 - ((|f''| |g| + 2 |quadratic|) h^2 + 2 |f'| |g'| h k + |f| |g''| k^2) / 2,

        with suprema over the whole box. Parts of the box are halved until each is bounded below by the
        smallest value found so far, less NEAR times the second-order term over the whole box.

        Rounding: `missed` exceeds the error of F(middle) and of both derivatives. The middle of a part is
        rounded by at most 2 u times the largest |v|; sides are made longer by twice that (`grain_v`,
        `grain_z`).
        """
        f, g = CURVES[self.f], CURVES[self.g]
        parts = np.broadcast_arrays(*self._two(slopes), *self._two(lower), *self._two(upper), quadratic)
        shape, (a, b, l_v, l_z, u_v, u_z, quad) = parts[0].shape, (part.reshape(-1) for part in parts)
        f_size, g_size = 1.000001 * f.largest(l_v, u_v), 1.000001 * g.largest(l_z, u_z)
        seconds = f.second * g_size + 2 * np.abs(quad), np.full_like(a, f.first * g.first), f_size * g.second
        largest_v, largest_z = np.maximum(np.abs(l_v), np.abs(u_v)), np.maximum(np.abs(l_z), np.abs(u_z))
        missed = 16 * CURVE_ERROR * (1 + f_size) * (1 + g_size) * (1 + largest_v + largest_z)
        size = np.abs(a) * largest_v + np.abs(b) * largest_z + 2 * np.abs(quad) * largest_v**2
        missed = missed + charge(size, CURVE_LINES)
        # Middles are rounded, so the half sides are made longer by 4 u |v|.
        grain_v, grain_z = charge(largest_v, CURVE_SIDES), charge(largest_z, CURVE_SIDES)
        half = (u_v - l_v) / 2 + grain_v, (u_z - l_z) / 2 + grain_z
        close = NEAR * _curvature(seconds, *half) + 4 * missed
        answer, best = np.full(len(a), np.inf), np.full(len(a), np.inf)
        of, v, z, h, k = np.arange(len(a)), (l_v + u_v) / 2, (l_z + u_z) / 2, *half
        for division in range(DIVISIONS + 1):
            look_at_clock()
            f_v, g_z = f.value(v), g.value(z)
            middle = sign * f_v * g_z - (a[of] + quad[of] * v) * v - b[of] * z
            fall_v = np.abs(sign * f.derivative(v, f_v) * g_z - a[of] - 2 * quad[of] * v) * h
            fall_z = np.abs(sign * f_v * g.derivative(z, g_z) - b[of]) * k
            bound = (
                middle
                - fall_v
                - fall_z
                - _curvature((seconds[0][of], seconds[1][of], seconds[2][of]), h, k)
                - missed[of]
            )
            np.minimum.at(best, of, middle)
            done = (bound >= best[of] - close[of]) | (division == DIVISIONS)
            np.minimum.at(answer, of[done], bound[done])
            left = ~done
            if not left.any():
                break
            of, v, z, h, k, fall_v, fall_z = (part[left] for part in (of, v, z, h, k, fall_v, fall_z))
            along_v = (
                fall_v + seconds[0][of] * h * h + seconds[1][of] * h * k
                >= fall_z + seconds[2][of] * k * k + seconds[1][of] * h * k
            )
            step_v, step_z = np.where(along_v, h / 2, 0.0), np.where(along_v, 0.0, k / 2)
            h, k = h - step_v + grain_v[of], k - step_z + grain_z[of]
            of, h, k = np.tile(of, 2), np.tile(h, 2), np.tile(k, 2)
            v, z = np.concatenate([v - step_v, v + step_v]), np.concatenate([z - step_z, z + step_z])
        return answer.reshape(shape)


def _curvature(seconds: tuple[Array, Array, Array], h: Array, k: Array) -> Array:
    """The second-order term (s_vv h^2 + 2 s_vz h k + s_zz k^2) / 2, made larger by the factor 1 + 2e-7."""
    cost: Array = (seconds[0] * h * h + 2 * seconds[1] * h * k + seconds[2] * k * k) * 0.5000001
    return cost


@dataclass(frozen=True)
class PiecewiseLinear:
    """A continuous function, linear between its kinks: slope factors[0] before the first kink, factors[i]
    after the i-th; its value at the first kink is `value_there`.
    """

    kinks: tuple[float, ...]
    factors: tuple[float, ...]
    value_there: float
    arguments: int = 1

    @property
    def curves(self) -> tuple[ProductFunction | PiecewiseLinear, ...]:
        return (self,)

    def value(self, *v: Array) -> Array:
        x, first = v[0], self.kinks[0]
        result = self.value_there + np.where(x < first, self.factors[0], self.factors[1]) * (x - first)
        for kink, before, after in zip(self.kinks[1:], self.factors[1:], self.factors[2:]):
            result = result + (after - before) * np.maximum(x - kink, 0.0)
        return result

    def _extremes(self, sign: float, slope: Array, lower: Array, upper: Array) -> Array:
        """The minimum of sign * value - slope v over [lower, upper], rounded down. The function is linear
        between kinks, so an end of the interval or a kink attains the minimum.
        """
        points = [lower, upper, *(np.clip(kink, lower, upper) for kink in self.kinks)]
        least: Array = np.stack([sign * self.value(point) - slope * point for point in points]).min(0)
        steep = np.abs(slope) + sum(abs(factor) for factor in self.factors) * 2
        kinks = abs(self.value_there) + sum(abs(kink) for kink in self.kinks)
        size = (np.maximum(np.abs(lower), np.abs(upper)) + kinks) * (1 + steep)
        return least - charge(size, KINKS, len(self.kinks))

    def range(self, lower: Point, upper: Point) -> tuple[Array, Array]:
        level = np.zeros_like(lower[0])
        least, most = (
            self._extremes(1.0, level, lower[0], upper[0]),
            -self._extremes(-1.0, level, lower[0], upper[0]),
        )
        return least, most

    def slopes(self, lower: Point, upper: Point) -> tuple[Point, Point]:
        """Slopes, at the middle of the interval, of the convex envelope (below) and of the concave envelope
        (above): of all chords between an end or kink left of the middle and one right of it, the lowest and
        the highest at the middle.
        """
        low, high = lower[0], upper[0]
        middle, points = low / 2 + high / 2, [low, *(np.clip(kink, low, high) for kink in self.kinks), high]
        there = np.select([middle < kink for kink in self.kinks], self.factors[:-1], self.factors[-1])
        lines = [(there, self.value(middle))]
        for first, last in itertools.combinations(points, 2):
            slope = chord_slope(self.value(first), self.value(last), first, last, there)
            spans = (first < middle) & (middle < last)
            lines.append((slope, np.where(spans, self.value(first) + slope * (middle - first), np.nan)))
        slopes, heights = np.stack([line[0] for line in lines]), np.stack([line[1] for line in lines])
        chosen = np.nanargmin(heights, 0), np.nanargmax(heights, 0)
        below, above = (np.take_along_axis(slopes, which[None], 0)[0] for which in chosen)
        return (below,), (above,)

    def least(self, sign: float, slopes: Point, lower: Point, upper: Point) -> Array:
        return self._extremes(sign, slopes[0], lower[0], upper[0])


RELU = PiecewiseLinear((0.0,), (0.0, 1.0), 0.0)


def chord_slope(f_low: Array, f_high: Array, low: Array, high: Array, otherwise: Array) -> Array:
    """The slope of the chord over [low, high]; `otherwise` where the interval is too narrow to divide by its
    width.
    """
    wide = high - low > 1e-9 * (1 + np.abs(low) + np.abs(high))
    return np.where(wide, (f_high - f_low) / np.where(wide, high - low, 1.0), otherwise)


def _below(curve: SmoothFunction, lower: Array, upper: Array) -> Array:
    """The slope, at the middle of [lower, upper], of the convex envelope of an s-shaped curve that is odd up
    to a constant, with its inflection point at zero. The envelope follows the curve up to the point whose
    tangent meets the curve at `upper`.
    """
    f_upper = curve.value(upper)
    start, end = np.minimum(lower, 0.0), np.minimum(upper, 0.0)
    for _ in range(30):
        point = (start + end) / 2
        f_point = curve.value(point)
        before = f_point + curve.derivative(point, f_point) * (upper - point) < f_upper
        start, end = np.where(before, point, start), np.where(before, end, point)
    point = np.where(lower >= 0, lower, (start + end) / 2)
    f_point, middle = curve.value(point), (lower + upper) / 2
    tangent = curve.derivative(point, f_point)
    return np.where(
        middle < point,
        curve.derivative(middle, curve.value(middle)),
        chord_slope(f_point, f_upper, point, upper, tangent),
    )
