"""What the checker computes, against high precision and dense sampling."""

import itertools
import math

import mpmath
import numpy as np
import pytest

from holdfast_check.arithmetic import CURVE_ERROR, UNIT, exponential, gamma, sigmoid, tanh
from holdfast_check.functions import RELU, PiecewiseLinear, ProductFunction
from holdfast_check.region import CheckedRegion, inside

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


def test_gamma_pays_for_sums() -> None:
    assert gamma(10) >= 10 * UNIT / (1 - 10 * UNIT)
    with pytest.raises(OverflowError):
        gamma(2**50)


FUNCTIONS = [
    ProductFunction("sigmoid"), ProductFunction("tanh"), ProductFunction("sigmoid", "tanh"),
    ProductFunction("sigmoid", "identity"), ProductFunction("identity", "identity"), RELU,
    PiecewiseLinear((0.0,), (-1.0, 1.0), 0.0), PiecewiseLinear((-0.5, 1.0), (0.0, 1.0, 0.0), -0.5),
    PiecewiseLinear((1.0,), (1.0, 0.0), 1.0),
]  # fmt: skip


@pytest.mark.parametrize("function", FUNCTIONS, ids=str)
@pytest.mark.parametrize("width", [1e-9, 0.3, 6.0])
def test_no_plane_crosses_its_function(function: ProductFunction | PiecewiseLinear, width: float) -> None:
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
