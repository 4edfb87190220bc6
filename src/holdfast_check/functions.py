"""Functions between two planes. For any slopes, the intercept is found here, by dividing the box until nothing is left to find.

A function is f(v) g(z) with f and g from `CURVES`, or made of straight pieces. Slopes are free: with a bad one the plane is only far
from its function. So a proof may bring slopes, and where it brings none those of `slopes` are taken; neither is trusted.
"""

import itertools
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from holdfast_check.arithmetic import CURVE_ERROR, TINY, UNIT, Array, sigmoid, tanh

Point = tuple[Array, ...]  # one for each argument
DIVISIONS = 24  # of a box, each along one of its sides
NEAR = (
    2.0**-14
)  # of what curvature could cost over the whole box: closer than this to the smallest value is close enough


@dataclass(frozen=True)
class RisingFunction:
    """A function that rises, and its derivative, made of the argument and the value; bounds of the sizes of the value (none: as large as
    the argument), of the first and of the second derivative."""

    value: Callable[[Array], Array]
    derivative: Callable[[Array], Array]  # of the value
    size: float | None
    first: float
    second: float

    def largest(self, lower: Array, upper: Array) -> Array:
        return (
            np.maximum(np.abs(lower), np.abs(upper)) if self.size is None else np.full_like(lower, self.size)
        )


# sigmoid'' = s (1 - s) (1 - 2 s) <= 1 / (6 sqrt 3) = 0.0962..., tanh'' = -2 t (1 - t^2), at most 4 / (3 sqrt 3) = 0.7698...
CURVES = {
    "one": RisingFunction(np.ones_like, np.zeros_like, 1.0, 0.0, 0.0),
    "identity": RisingFunction(lambda v: v, np.ones_like, None, 1.0, 0.0),
    "sigmoid": RisingFunction(sigmoid, lambda s: s * (1.0 - s), 1.0, 0.25, 0.0963),
    "tanh": RisingFunction(tanh, lambda t: 1.0 - t * t, 1.0, 1.0, 0.7699),
}


@dataclass(frozen=True)
class ProductFunction:
    """f(v) g(z); a function of v alone has g = one. Like `PiecewiseLinear` it has a value, a range (the smallest and
    the largest value on a box, rounded outwards), slopes (of the planes below and above, where a proof brings none), and the least of
    sign * value - slopes . v."""

    f: str
    g: str = "one"

    @property
    def arguments(self) -> int:
        return 1 if self.g == "one" else 2

    @property
    def curves(self) -> "tuple[ProductFunction | PiecewiseLinear, ...]":
        """Its factors, one for each argument."""
        return (ProductFunction(self.f), ProductFunction(self.g))[: self.arguments]

    def _two(self, v: Point) -> tuple[Array, Array]:
        return (v[0], v[1]) if self.arguments == 2 else (v[0], np.zeros_like(v[0]))

    def value(self, *v: Array) -> Array:
        v_0, z = self._two(v)
        return CURVES[self.f].value(v_0) * CURVES[self.g].value(z)

    def range(self, lower: Point, upper: Point) -> tuple[Array, Array]:
        """Both curves rise, so each lies between its values at the ends, and a product of two intervals between those of their ends."""
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
        if self.arguments == 1:
            return (_below(CURVES[self.f], lower[0], upper[0]),), (
                _below(CURVES[self.f], -upper[0], -lower[0]),
            )
        chords, middles = [], []
        for curve, low, high in zip((CURVES[self.f], CURVES[self.g]), lower, upper, strict=True):
            f_low, f_high = curve.value(low), curve.value(high)
            chords.append(_chord(f_low, f_high, low, high, curve.derivative(f_low)))
            middles.append((f_low + f_high) / 2)
        both = chords[0] * middles[1], chords[1] * middles[0]
        return both, both

    def least(
        self, sign: float, slopes: Point, lower: Point, upper: Point, bend: Array | float = 0.0
    ) -> Array:
        """Let F(v, z) = sign f(v) g(z) - a v - b z - bend v^2. Around the middle of a box with half sides h and k, by Taylor's theorem,

            F >= F(middle) - |F_v| h - |F_z| k - ((|f''| |g| + 2 |bend|) h^2 + 2 |f'| |g'| h k + |f| |g''| k^2) / 2,

        with the largest sizes over the whole box. Boxes are halved until each is known to lie above the smallest value met so far, or
        not to go below it by more than NEAR times what curvature costs over the whole box.
        """
        f, g = CURVES[self.f], CURVES[self.g]
        parts = np.broadcast_arrays(*self._two(slopes), *self._two(lower), *self._two(upper), bend)
        shape, (a, b, l_v, l_z, u_v, u_z, bent) = parts[0].shape, (part.reshape(-1) for part in parts)
        f_size, g_size = 1.000001 * f.largest(l_v, u_v), 1.000001 * g.largest(l_z, u_z)
        bends = f.second * g_size + 2 * np.abs(bent), np.full_like(a, f.first * g.first), f_size * g.second
        largest_v, largest_z = np.maximum(np.abs(l_v), np.abs(u_v)), np.maximum(np.abs(l_z), np.abs(u_z))
        missed = 16 * CURVE_ERROR * (1 + f_size) * (1 + g_size) * (1 + largest_v + largest_z)
        missed = (
            missed
            + 16 * UNIT * (np.abs(a) * largest_v + np.abs(b) * largest_z + 2 * np.abs(bent) * largest_v**2)
            + TINY
        )
        grain_v, grain_z = (
            4 * UNIT * largest_v,
            4 * UNIT * largest_z,
        )  # middles are rounded, so sides are a little longer than they must be
        half = (u_v - l_v) / 2 + grain_v, (u_z - l_z) / 2 + grain_z
        close = NEAR * _curvature(bends, *half) + 4 * missed
        answer, best = np.full(len(a), np.inf), np.full(len(a), np.inf)
        of, v, z, h, k = np.arange(len(a)), (l_v + u_v) / 2, (l_z + u_z) / 2, *half
        for division in range(DIVISIONS + 1):
            f_v, g_z = f.value(v), g.value(z)
            middle = sign * f_v * g_z - (a[of] + bent[of] * v) * v - b[of] * z
            fall_v = np.abs(sign * f.derivative(f_v) * g_z - a[of] - 2 * bent[of] * v) * h
            fall_z = np.abs(sign * f_v * g.derivative(g_z) - b[of]) * k
            bound = (
                middle
                - fall_v
                - fall_z
                - _curvature((bends[0][of], bends[1][of], bends[2][of]), h, k)
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
                fall_v + bends[0][of] * h * h + bends[1][of] * h * k
                >= fall_z + bends[2][of] * k * k + bends[1][of] * h * k
            )
            step_v, step_z = np.where(along_v, h / 2, 0.0), np.where(along_v, 0.0, k / 2)
            h, k = h - step_v + grain_v[of], k - step_z + grain_z[of]
            of, h, k = np.tile(of, 2), np.tile(h, 2), np.tile(k, 2)
            v, z = np.concatenate([v - step_v, v + step_v]), np.concatenate([z - step_z, z + step_z])
        return answer.reshape(shape)


def _curvature(bends: tuple[Array, Array, Array], h: Array, k: Array) -> Array:
    cost: Array = (bends[0] * h * h + 2 * bends[1] * h * k + bends[2] * k * k) * 0.5000001
    return cost


@dataclass(frozen=True)
class PiecewiseLinear:
    """Straight between its kinks: factors[0] v before the first, then continuous with factors[i]; at the first kink it is `value_there`."""

    kinks: tuple[float, ...]
    factors: tuple[float, ...]
    value_there: float
    arguments: int = 1

    @property
    def curves(self) -> "tuple[ProductFunction | PiecewiseLinear, ...]":
        return (self,)

    def value(self, *v: Array) -> Array:
        x, first = v[0], self.kinks[0]
        result = self.value_there + np.where(x < first, self.factors[0], self.factors[1]) * (x - first)
        for kink, before, after in zip(self.kinks[1:], self.factors[1:], self.factors[2:], strict=False):
            result = result + (after - before) * np.maximum(x - kink, 0.0)
        return result

    def _extremes(self, sign: float, slope: Array, lower: Array, upper: Array) -> Array:
        """Between kinks sign * value - slope v is a line, so it is smallest at an end or at a kink; rounded down."""
        points = [lower, upper, *(np.clip(kink, lower, upper) for kink in self.kinks)]
        least: Array = np.stack([sign * self.value(point) - slope * point for point in points]).min(0)
        steep = np.abs(slope) + sum(abs(factor) for factor in self.factors) * 2
        kinks = abs(self.value_there) + sum(abs(kink) for kink in self.kinks)
        return least - 32 * UNIT * ((np.maximum(np.abs(lower), np.abs(upper)) + kinks) * (1 + steep)) - TINY

    def range(self, lower: Point, upper: Point) -> tuple[Array, Array]:
        level = np.zeros_like(lower[0])
        least, most = (
            self._extremes(1.0, level, lower[0], upper[0]),
            -self._extremes(-1.0, level, lower[0], upper[0]),
        )
        return least, most

    def slopes(self, lower: Point, upper: Point) -> tuple[Point, Point]:
        """Those of the largest convex function below and of the smallest concave one above, at the middle of the box: of all lines from an
        end or a kink before it to one behind it, the lowest and the highest there."""
        low, high = lower[0], upper[0]
        middle, points = low / 2 + high / 2, [low, *(np.clip(kink, low, high) for kink in self.kinks), high]
        there = np.select([middle < kink for kink in self.kinks], self.factors[:-1], self.factors[-1])
        lines = [(there, self.value(middle))]
        for first, last in itertools.combinations(points, 2):
            slope = _chord(self.value(first), self.value(last), first, last, there)
            spans = (first < middle) & (middle < last)
            lines.append((slope, np.where(spans, self.value(first) + slope * (middle - first), np.nan)))
        slopes, heights = np.stack([line[0] for line in lines]), np.stack([line[1] for line in lines])
        chosen = np.nanargmin(heights, 0), np.nanargmax(heights, 0)
        below, above = (np.take_along_axis(slopes, which[None], 0)[0] for which in chosen)
        return (below,), (above,)

    def least(self, sign: float, slopes: Point, lower: Point, upper: Point) -> Array:
        return self._extremes(sign, slopes[0], lower[0], upper[0])


RELU = PiecewiseLinear((0.0,), (0.0, 1.0), 0.0)


def _chord(f_low: Array, f_high: Array, low: Array, high: Array, otherwise: Array) -> Array:
    wide = high - low > 1e-9 * (1 + np.abs(low) + np.abs(high))
    return np.where(wide, (f_high - f_low) / np.where(wide, high - low, 1.0), otherwise)


def _below(curve: RisingFunction, lower: Array, upper: Array) -> Array:
    """For a curve that is first convex, then concave, with its bend at zero and odd but for a constant: the slope at the middle of the box
    of the largest convex function below it. That follows the curve as far as a point from which the tangent meets the upper bound."""
    f_upper = curve.value(upper)
    start, end = np.minimum(lower, 0.0), np.minimum(upper, 0.0)
    for _ in range(30):
        point = (start + end) / 2
        f_point = curve.value(point)
        before = f_point + curve.derivative(f_point) * (upper - point) < f_upper
        start, end = np.where(before, point, start), np.where(before, end, point)
    point = np.where(lower >= 0, lower, (start + end) / 2)
    f_point, middle = curve.value(point), (lower + upper) / 2
    tangent = curve.derivative(f_point)
    return np.where(
        middle < point, curve.derivative(curve.value(middle)), _chord(f_point, f_upper, point, upper, tangent)
    )
