"""What the checker computes, against high precision and dense sampling."""

import itertools
import math

import mpmath
import numpy as np
import pytest

from holdfast_check.arithmetic import (
    CONVEX_ERROR,
    CURVE_ERROR,
    ERF_ERROR,
    UNIT,
    erf,
    exponential,
    gamma,
    logarithm,
    normal_distribution,
    sigmoid,
    tanh,
)
from holdfast_check.convex import CONVEX, SMALLEST_POSITIVE, TORCH_SOFTPLUS, ConvexFunction
from holdfast_check.errors import NoBounds
from holdfast_check.functions import CURVES, RELU, PiecewiseLinear, ProductFunction
from holdfast_check.region import CheckedRegion, inside
from holdfast_check.steps import ElementFunction

DRAW = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def _drawn_anew() -> None:
    """Every test draws the same numbers, whichever ran before it."""
    DRAW.bit_generator.state = np.random.default_rng(7).bit_generator.state


POINTS = np.concatenate(
    [
        DRAW.uniform(-45, 45, 400),
        DRAW.normal(0, 1, 400),
        10.0 ** DRAW.uniform(-20, 0, 100),
        [0.0, -0.0, 40.0, -40.0, 800.0],
    ]
)


def test_the_exponential_and_what_is_made_of_it_against_80_digits() -> None:
    with mpmath.workdps(80):
        for v in POINTS.tolist():
            x = mpmath.mpf(v)
            if abs(v) <= 700:
                assert (
                    abs(mpmath.mpf(float(exponential(np.array(v)))) / mpmath.exp(x) - 1)
                    < mpmath.mpf(2) ** -49
                )
            assert abs(mpmath.mpf(float(sigmoid(np.array(v)))) - 1 / (1 + mpmath.exp(-x))) < CURVE_ERROR
            assert abs(mpmath.mpf(float(tanh(np.array(v)))) - mpmath.tanh(x)) < CURVE_ERROR


def test_the_bounds_of_curvature_hold() -> None:
    with mpmath.workdps(80):
        assert 1 / (6 * mpmath.sqrt(3)) < mpmath.mpf("0.0963")
        assert 4 / (3 * mpmath.sqrt(3)) < mpmath.mpf("0.7699")


def _gelu_by_tanh(x: mpmath.mpf) -> mpmath.mpf:
    return x * (1 + mpmath.tanh(mpmath.sqrt(2 / mpmath.pi) * (x + mpmath.mpf(0.044715) * x**3))) / 2


def _elu(x: mpmath.mpf) -> mpmath.mpf:
    return mpmath.expm1(x) if x < 0 else x


TRUE = {
    "erf": mpmath.erf,
    "silu": lambda x: x / (1 + mpmath.exp(-x)),
    "gelu": lambda x: x * mpmath.ncdf(x),
    "gelu by tanh": _gelu_by_tanh,
    "exp": mpmath.exp,
    "reciprocal": lambda x: 1 / x,
    "rsqrt": lambda x: 1 / mpmath.sqrt(x),
    "square": lambda x: x * x,
    "softplus": lambda x: mpmath.log1p(mpmath.exp(x)),
    "softplus of torch": lambda x: x if x > 20 else mpmath.log1p(mpmath.exp(x)),
    "elu": _elu,
    "log": mpmath.log,
    "sqrt": mpmath.sqrt,
}

TRUE_SLOPE = {
    "exp": mpmath.exp,
    "reciprocal": lambda x: -1 / x**2,
    "rsqrt": lambda x: -1 / (2 * x * mpmath.sqrt(x)),
    "square": lambda x: 2 * x,
    "softplus": lambda x: 1 / (1 + mpmath.exp(-x)),
    "softplus of torch": lambda x: 1 / (1 + mpmath.exp(-x)),
    "elu": lambda x: mpmath.exp(x) if x < 0 else mpmath.mpf(1),
    "log": lambda x: 1 / x,
    "sqrt": lambda x: 1 / (2 * mpmath.sqrt(x)),
}


@pytest.mark.parametrize("name", ["erf", "silu", "gelu", "gelu by tanh"])
def test_smooth_functions_their_derivatives_and_curvatures_against_80_digits(name: str) -> None:
    curve, true = CURVES[name], TRUE[name]
    points = np.concatenate([DRAW.uniform(-8, 8, 60), DRAW.uniform(-60, 60, 10), [0.0, 1e-12, 6.1, -9.3]])
    value = curve.value(points)
    slope = curve.derivative(points, value)
    with mpmath.workdps(80):
        for at, f, d in zip(points.tolist(), value.tolist(), slope.tolist(), strict=True):
            x, size = mpmath.mpf(at), 2.0**-44 * (1 + abs(at))
            assert abs(mpmath.mpf(f) - true(x)) < size
            assert abs(mpmath.mpf(d) - mpmath.diff(true, x)) < size
            assert abs(mpmath.diff(true, x, 2)) < curve.second
            assert abs(mpmath.diff(true, x)) < curve.first
        steep = max(abs(mpmath.diff(true, x, 2)) for x in mpmath.linspace(-4, 4, 161))
        assert 0.9 * curve.second < steep < curve.second
        for v in DRAW.uniform(-7, 7, 60).tolist():
            assert abs(mpmath.mpf(float(erf(np.array(v)))) - mpmath.erf(v)) < ERF_ERROR
            assert abs(mpmath.mpf(float(normal_distribution(np.array(v)))) - mpmath.ncdf(v)) < ERF_ERROR


@pytest.mark.parametrize("name", CONVEX)
def test_convex_functions_and_their_derivatives_against_80_digits(name: str) -> None:
    shape, true = CONVEX[name], TRUE[name]
    points = np.concatenate([DRAW.uniform(-40, 40, 40), 10.0 ** DRAW.uniform(-50, 2.3, 40), [19.9, 20.1]])
    points = np.clip(points, shape.first, shape.last)
    with mpmath.workdps(80):
        for v in points.tolist():
            x, f, d = (
                mpmath.mpf(float(part(np.array(v)))) for part in (float, shape.value, shape.derivative)
            )
            assert abs(f - true(x)) <= CONVEX_ERROR * (abs(f) + shape.value_error)
            assert abs(d - TRUE_SLOPE[name](x)) <= CONVEX_ERROR * (abs(d) + shape.slope_error)
    assert math.log1p(math.exp(-20.0)) < TORCH_SOFTPLUS * CONVEX_ERROR


def test_an_interval_outside_of_the_domain_has_no_bounds() -> None:
    zero = (np.zeros(1),)
    for name, low, high in (
        ("log", 0.0, 1.0),
        ("reciprocal", -1.0, 1.0),
        ("sqrt", -1e-9, 1.0),
        ("exp", 0.0, 800.0),
    ):
        with pytest.raises(NoBounds, match=name):
            ConvexFunction(name).least(1.0, zero, (np.array([low]),), (np.array([high]),))
    assert np.isnan(logarithm(np.array([-1.0, 0.0, np.inf, np.nan]))).all()
    assert SMALLEST_POSITIVE > 1e-200


@pytest.mark.parametrize("name", CONVEX)
def test_no_line_crosses_a_convex_function_at_any_scale(name: str) -> None:
    """In exact arithmetic, for intervals from a point to the whole domain, and slopes of any size."""
    many, shape, true = 30, CONVEX[name], TRUE[name]
    lower = np.clip(
        DRAW.choice([-1.0, 1.0], many) * 10.0 ** DRAW.uniform(-8, 1.5, many), max(shape.first, -30), 30
    )
    lower = np.maximum(lower, 1e-8) if np.isfinite(shape.first) else lower
    upper = np.minimum(lower + 10.0 ** DRAW.uniform(-12, 1.5, many), shape.last)
    slope = DRAW.normal(0, 1, many) * 10.0 ** DRAW.uniform(-3, 3, many)
    function = ConvexFunction(name)
    for sign in (1.0, -1.0):
        usual = function.slopes((lower,), (upper,))[0 if sign > 0 else 1][0] * sign
        for a in (slope, usual):
            least = function.least(sign, (a,), (lower,), (upper,))
            with mpmath.workdps(60):
                for row in range(many):
                    low, high = mpmath.mpf(float(lower[row])), mpmath.mpf(float(upper[row]))
                    points = [low + (high - low) * k / 16 for k in range(17)]
                    real = min(sign * true(x) - mpmath.mpf(float(a[row])) * x for x in points)
                    assert mpmath.mpf(float(least[row])) <= real, (name, sign, row)


def test_gamma_pays_for_sums() -> None:
    assert gamma(10) >= 10 * UNIT / (1 - 10 * UNIT)
    with pytest.raises(OverflowError):
        gamma(2**50)


FUNCTIONS = [
    ProductFunction("sigmoid"), ProductFunction("tanh"), ProductFunction("sigmoid", "tanh"),
    ProductFunction("sigmoid", "identity"), ProductFunction("identity", "identity"), RELU,
    PiecewiseLinear((0.0,), (-1.0, 1.0), 0.0), PiecewiseLinear((-0.5, 1.0), (0.0, 1.0, 0.0), -0.5),
    PiecewiseLinear((1.0,), (1.0, 0.0), 1.0), ProductFunction("silu"), ProductFunction("gelu"),
    ProductFunction("gelu by tanh"), ProductFunction("erf"), ProductFunction("silu", "tanh"),
    ConvexFunction("exp"), ConvexFunction("square"), ConvexFunction("softplus"), ConvexFunction("elu"),
]  # fmt: skip


@pytest.mark.parametrize("function", FUNCTIONS, ids=str)
@pytest.mark.parametrize("width", [1e-9, 0.3, 6.0])
def test_no_plane_crosses_its_function(function: ElementFunction, width: float) -> None:
    """Whatever the slopes; and with the usual ones the plane all but touches."""
    many = 40
    lower = tuple(DRAW.uniform(-4, 4, many) for _ in range(function.arguments))
    upper = tuple(low + DRAW.uniform(0, width, many) for low in lower)
    usual = function.slopes(lower, upper)
    tilted = tuple(tuple(s + DRAW.normal(0, 0.3, many) for s in side) for side in usual)
    steps = np.linspace(0, 1, 41)
    low, high = function.range(lower, upper)
    for slopes, touches in ((usual, True), (tilted, False)):
        below = function.least(1.0, slopes[0], lower, upper)
        above = -function.least(-1.0, tuple(-s for s in slopes[1]), lower, upper)
        nearest = np.full(many, np.inf), np.full(many, np.inf)
        for share in itertools.product(steps, repeat=function.arguments):
            point = tuple(low + t * (high - low) for t, low, high in zip(share, lower, upper, strict=True))
            value = function.value(*point)
            assert (value >= low - 1e-13).all()
            assert (value <= high + 1e-13).all()
            planes = (sum(s * v for s, v in zip(side, point, strict=True)) for side in slopes)
            for distance, gap in zip(
                nearest, (value - next(planes) - below, next(planes) + above - value), strict=True
            ):
                assert (gap >= -1e-14).all()
                np.minimum(distance, gap, out=distance)
        for distance in nearest if touches else ():
            assert (distance <= 0.002 * width * width + 1e-10).all()


@pytest.mark.parametrize("norm", [1.0, 2.0, math.inf])
@pytest.mark.parametrize("groups", [1, 3])
@pytest.mark.parametrize("narrow", [False, True])
def test_no_point_of_a_region_is_below_its_minimum(norm: float, groups: int, narrow: bool) -> None:
    n, radius, draw = 6, 0.7, np.random.default_rng([groups, int(narrow), int(min(norm, 3))])
    centre, shares = draw.normal(0, 1, n), draw.uniform(0.2, 1, groups)
    ends = (
        (centre - draw.uniform(0.05, 0.6, n), centre + draw.uniform(0.05, 0.6, n))
        if narrow
        else (np.full(n, -9.0), np.full(n, 9.0))
    )
    region = CheckedRegion.ball(centre, radius, norm, shares, *ends)
    rows = draw.normal(0, 1, (1, 4, n))
    least = region.minimum(rows)[0]
    best = np.full(4, np.inf)
    for _ in range(3000):
        step = draw.laplace(0, 1, (groups, n // groups)) ** draw.choice([1, 3])
        step *= radius * shares[:, None] * (1 - 1e-12) / np.linalg.norm(step, norm, axis=1, keepdims=True)
        point = np.clip(centre + step.ravel(), *ends)
        if inside(point, centre, radius, norm, shares, *ends):
            best = np.minimum(best, rows[0] @ point)
    assert (best >= least).all()
    assert (best - least < 0.35 * np.abs(least - rows[0] @ centre)).all()


def test_whether_a_point_is_inside_is_decided_without_rounding() -> None:
    wide = np.full(2, -9.0), np.full(2, 9.0)
    centre, one = np.array([0.1, 0.2]), np.ones(1)
    at = centre + 0.3
    radius = max(abs(float(a) - float(b)) for a, b in zip(at, centre, strict=True))
    assert not inside(at, centre, math.nextafter(0.3, 0), math.inf, one, *wide)
    assert inside(at, centre, math.nextafter(radius, 1), math.inf, one, *wide)
    assert inside(np.array([3.0, 4.0]), np.zeros(2), 5.0, 2.0, one, *wide)
    assert not inside(np.array([3.0, math.nextafter(4.0, 5)]), np.zeros(2), 5.0, 2.0, one, *wide)
    assert not inside(np.array([9.5, 0.0]), np.zeros(2), 20.0, 2.0, one, *wide)
