"""The matrix of abilities: no hole by accident, and every ability that is claimed holds on boxes of all kinds, in eighty digits."""

import inspect
import itertools
import math
from collections.abc import Callable, Iterator

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from mpmath import mp, mpf
from test_relax import ARGUMENTS, GATED, SINGLE, TRUTHS, Numbers, bends, boxes, slope_numbers, tensors
from torch import Tensor

from holdfast.bounding.graph.compose import LOG_SUM
from holdfast.bounding.relax import Clip, Relaxation, Softplus, Step, abilities
from holdfast.bounding.relax.abilities import ABILITIES, EVERY, table
from holdfast.bounding.relax.parabola import SmoothCurve, deviation, interpolate_parabola, parabola
from holdfast.bounding.relax.selfgated import SelfGated
from sizes import count

mp.dps = 80


@pytest.fixture(autouse=True, scope="module")
def eighty_digits() -> Iterator[None]:
    with mp.workdps(80):  # other modules work with fewer
        yield


every = pytest.mark.parametrize("name", list(TRUTHS))
single = pytest.mark.parametrize("name", SINGLE)


# ---------------------------------------------------------------- the matrix


def test_no_ability_is_missing_by_accident() -> None:
    rows = abilities()
    print("\n" + table(rows))
    accidents = [
        (type(row.function).__name__, ability)
        for row in rows
        for ability, why in row.lacks.items()
        if not why
    ]
    assert not accidents, f"give them the ability, or say in `unknown` why not: {accidents}"
    for row in rows:
        assert set(row.lacks) <= set(ABILITIES)
        others = [r for r in rows if type(r.function) is type(row.function)]
        stale = {a for a in row.function.unknown if not any(a in r.lacks for r in others)}
        assert not stale, f"{type(row.function).__name__} says it lacks {stale} and does not"


def test_every_function_is_in_the_matrix() -> None:
    def below(kind: type) -> set[type]:
        return {kind}.union(
            *(below(child) for child in kind.__subclasses__() if child.__module__.startswith("holdfast."))
        )

    assert {type(f) for f in EVERY} == {kind for kind in below(Relaxation) if not inspect.isabstract(kind)}


def test_what_nobody_gave_is_unknown_and_not_wrong() -> None:
    class Own(Relaxation):
        def function(self, *v: Tensor) -> Tensor:
            return v[0]

        def candidates(
            self, lower: tuple[Tensor, ...], upper: tuple[Tensor, ...], slope: tuple[Tensor, ...]
        ) -> list[tuple[Tensor, ...]]:
            return [lower, upper]

        def slopes(
            self, lower: tuple[Tensor, ...], upper: tuple[Tensor, ...]
        ) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
            return lower, upper

    [row] = abilities([Own()])
    assert row.lacks == {"derivative": None, "parabola": None, "sign split": None, "as executed": None}
    assert "no reason declared" in table([row])


# ---------------------------------------------------------------- derivatives: no step is steeper


def places(low: float, high: float, count: int = 6) -> list[mpf]:
    """Points of an interval, some of them very close together."""
    a, b = mpf(low), mpf(high)
    found = {a, b}
    for k in range(1, count):
        at = a + (b - a) * k / count
        found |= {at, min(at + (b - a) * mpf(10) ** -12, b)}
    return sorted(found)


def lines(lower: Numbers, upper: Numbers) -> Iterator[tuple[int, list[tuple[mpf, ...]]]]:
    """For each argument points that differ in it alone."""
    if len(lower) == 1:
        yield 0, [(v,) for v in places(lower[0], upper[0])]
        return
    for place, (a, b) in enumerate(zip(lower, upper, strict=True)):
        for other in places(lower[1 - place], upper[1 - place], 2):
            yield place, [(v, other) if place == 0 else (other, v) for v in places(a, b, 4)]


@every
@settings(max_examples=count(15, full=40))
@given(data=st.data())
def test_no_step_is_steeper_than_the_derivative(name: str, data: st.DataObject) -> None:
    truth = TRUTHS[name]
    lower, upper = data.draw(boxes(name))
    found = truth.relaxation.derivative_range(tensors(lower), tensors(upper))
    assert found is not None
    assert len(found) == ARGUMENTS[name] == truth.relaxation.arguments
    ranges = [(float(low), float(high)) for low, high in found]
    assert all(low <= high for low, high in ranges)
    if not truth.defined(lower[0], upper[0]):
        assert ranges == [(-math.inf, math.inf)]
        return
    for place, points in lines(lower, upper):
        low, high = ranges[place]
        for before, after in itertools.pairwise(points):
            values = truth.function(*before), truth.function(*after)
            change, width = values[1] - values[0], after[place] - before[place]
            digits = mpf(10) ** -70 * (abs(values[0]) + abs(values[1]))  # of the truth
            assert low == -math.inf or change >= mpf(low) * width - digits
            assert high == math.inf or change <= mpf(high) * width + digits


@pytest.mark.parametrize("kind", list(GATED))
def test_derivatives_of_gated_functions_are_met(kind: type[SelfGated]) -> None:
    """Exact in eighty digits at the bends, and no wider than rounding asks."""
    low, high = (torch.tensor([end], dtype=torch.float64) for end in (-9.0, 9.0))
    ((least, most),) = kind().derivative_range((low,), (high,))
    smallest, largest = (GATED[kind][1](bend) for bend in bends(kind))
    assert mpf(float(least)) <= smallest <= mpf(float(least)) + mpf("1e-12")
    assert mpf(float(most)) >= largest >= mpf(float(most)) - mpf("1e-12")


@every
def test_a_derivative_on_a_box_that_is_no_number_claims_little(name: str) -> None:
    """It may know what holds everywhere (a ReLU's is 0 or 1), but never less."""
    f = TRUTHS[name].relaxation
    whole = f.derivative_range(*(tensors((end,) * f.arguments) for end in (-math.inf, math.inf)))
    found = f.derivative_range(*(tensors((math.nan,) * f.arguments) for _ in range(2)))
    assert whole is not None
    assert found is not None
    for (low, high), (least, most) in zip(found, whole, strict=True):
        assert not bool(low > least)
        assert not bool(high < most)


# ---------------------------------------------------------------- parabolas


@single
@settings(max_examples=count(15, full=40))
@given(data=st.data())
def test_no_point_strays_further_from_a_parabola(name: str, data: st.DataObject) -> None:
    truth = TRUTHS[name]
    (lower,), (upper,) = data.draw(boxes(name))
    curves = truth.relaxation.curves()
    assert curves is not None
    (curve,) = curves
    assert curve is not None
    at = data.draw(st.sampled_from([lower, upper, lower / 2 + upper / 2, lower - 1]))
    ends = [torch.tensor([v], dtype=torch.float64) for v in (lower, upper, at)]
    slope, bend = parabola(curve, *ends)
    if data.draw(st.booleans()):
        slope, bend = (torch.tensor([data.draw(slope_numbers)], dtype=torch.float64) for _ in range(2))
    least, most = (float(end) for end in deviation(curve, slope, bend, *ends))
    if not truth.defined(lower, upper):
        assert not math.isfinite(least)
        assert not math.isfinite(most)
        return
    values = [
        truth.function(v) - mpf(float(slope)) * (v - at) - mpf(float(bend)) * (v - at) ** 2
        for v in places(lower, upper, 24)
    ]
    values += [
        f - mpf(float(slope)) * (v - at) - mpf(float(bend)) * (v - at) ** 2
        for v, f in truth.limits(lower, upper)
    ]
    if not math.isnan(least):
        assert mpf(least) <= min(values)
    if not math.isnan(most):
        assert mpf(most) >= max(values)


@single
@settings(max_examples=count(15, full=40))
@given(data=st.data())
def test_no_point_strays_further_from_the_interpolating_parabola(name: str, data: st.DataObject) -> None:
    truth = TRUTHS[name]
    (lower,), (upper,) = data.draw(boxes(name))
    (curve,) = truth.relaxation.curves() or ()
    if not isinstance(curve, SmoothCurve) or curve.given is not None:
        return
    at, radius = lower / 2 + upper / 2, (upper / 2 - lower / 2) * (1 + 1e-15)
    value, slope, bend, stray = (
        float(t)
        for t in interpolate_parabola(curve, *(torch.tensor([v], dtype=torch.float64) for v in (at, radius)))
    )
    if not truth.defined(lower, upper):
        assert not math.isfinite(stray)
        return
    if math.isfinite(stray):
        for v in places(lower, upper, 24):
            away = v - mpf(at)
            if abs(away) <= mpf(radius):
                assert abs(truth.function(v) - (mpf(value) + mpf(slope) * away + mpf(bend) * away**2)) <= mpf(
                    stray
                )


@pytest.mark.parametrize(
    "name",
    [
        name
        for name in SINGLE
        if not name.startswith(
            (
                "relu",
                "abs",
                "leaky",
                "clip",
                "step",
                "sign",
                "floor",
                "ceil",
                "round",
                "unsure",
                "integer range",
                "softplus that",
            )
        )
    ],
)
def test_the_first_parabola_follows_the_curve(name: str) -> None:
    """Off to the third order on narrow intervals away from kinks, so that the ability is worth having."""
    (curve,) = TRUTHS[name].relaxation.curves() or ()
    assert curve is not None
    low = torch.linspace(0.6, 2.6, 41, dtype=torch.float64)
    for width in (0.01, 0.1):
        slope, bend = parabola(curve, low, low + width, low + width / 2)
        least, most = deviation(curve, slope, bend, low, low + width, low + width / 2)
        assert (most - least <= 6 * width**3 + 1e-10).all()


@pytest.mark.parametrize("kind", list(GATED))
def test_no_third_derivative_is_larger(kind: type[SelfGated]) -> None:
    """On a fine grid, with room for what lies between: the fourth is below 5, and far out all of them vanish."""
    with mp.workdps(40):
        most = max(abs(mp.diff(GATED[kind][1], mpf(k) / 64, 2)) for k in range(-64 * 7, 64 * 7))
    assert most <= kind.third * (
        1 if kind.__name__ in ("Silu", "Gelu") else 0.9
    )  # of the first two it is known in closed form
    for v in torch.linspace(-7, 7, 57, dtype=torch.float64):
        exact = mp.diff(GATED[kind][1], mpf(float(v)))
        assert abs(float(kind().second(v)) - exact) <= 1e-14


# ---------------------------------------------------------------- sides


@every
@given(data=st.data())
def test_sides_are_lines(name: str, data: st.DataObject) -> None:
    truth = TRUTHS[name]
    sides = truth.relaxation.sides()
    if sides is None:
        return
    lower, upper = data.draw(boxes(name))
    for v in places(lower[0], upper[0]):
        slope = sides.below if v <= sides.at else sides.above
        assert truth.function(v) == mpf(sides.value) + mpf(slope) * (v - mpf(sides.at))


def test_a_clip_with_one_end_has_two_sides() -> None:
    assert Clip(-1.0, 1.0).sides() is None
    assert Clip().sides() is None
    for clip in (Clip(low=0.3), Clip(high=-2.0)):
        sides = clip.sides()
        assert sides is not None
        for v in torch.linspace(-5, 5, 41, dtype=torch.float64):
            line = sides.value + (sides.below if v <= sides.at else sides.above) * (v - sides.at)
            assert float(clip.function(v)) == pytest.approx(float(line))


# ---------------------------------------------------------------- as executed

Kernel = Callable[..., Tensor]


def kernels(name: str) -> list[Kernel]:
    """What torch runs where this relaxation stands in a graph."""
    f = TRUTHS[name].relaxation
    if isinstance(f, Softplus):
        return [lambda v: F.softplus(v, f.beta, f.threshold)]
    for start, found in {
        "relu": [torch.relu], "abs": [torch.abs], "leaky": [lambda v: F.leaky_relu(v, vars(f)["negative_slope"])],
        "clip": [lambda v: v.clamp(vars(f)["low"], vars(f)["high"])], "elu": [lambda v: F.elu(v, vars(f)["alpha"])],
        "hardswish": [F.hardswish], "step": [lambda v: (v >= 0).to(v)], "sign": [torch.sign], "tanh": [torch.tanh],
        "floor": [torch.floor], "ceil": [torch.ceil], "round": [torch.round], "unsure": [lambda v: v], "integer range": [lambda v: v],
        "sine": [torch.sin], "cosine": [torch.cos], "atan": [torch.atan],
        "sigmoid tanh": [lambda v, z: torch.sigmoid(v) * torch.tanh(z), lambda v, z: (1 - torch.sigmoid(-v)) * torch.tanh(z)],
        "sigmoid times": [
            lambda v, z: torch.sigmoid(v) * z, lambda v, z: (1 - torch.sigmoid(-v)) * z, lambda v, z: F.glu(torch.stack([z, v]), 0)[0],
        ],
        "sigmoid": [torch.sigmoid, lambda v: 1 - torch.sigmoid(-v)], "erf": [torch.erf], "silu": [F.silu, lambda v: v * torch.sigmoid(v)],
        "gelutanh": [lambda v: F.gelu(v, approximate="tanh")], "gelu": [F.gelu], "mish": [F.mish, lambda v: v * torch.tanh(F.softplus(v))],
        "power": [lambda v: v ** vars(f)["exponent"], lambda v: torch.pow(v, torch.tensor(float(vars(f)["exponent"])))],
        "exp": [torch.exp], "log": [torch.log], "sqrt": [torch.sqrt, lambda v: v**0.5],
        "rsqrt": [torch.rsqrt, lambda v: v**-0.5, lambda v: 1 / v.sqrt()],
        "reciprocal": [torch.reciprocal, lambda v: 1 / v, lambda v: v**-1], "product": [torch.mul],
        "change": [lambda v, z: torch.relu(v + z) - torch.relu(v)],
    }.items():  # fmt: skip
        if name.startswith(start):
            return found
    raise AssertionError(f"no kernel is known for {name}")


def numbers(dtype: torch.dtype, count: int, seed: int) -> Tensor:
    """Of all sizes, most of them ordinary; the neighbours of places where something happens; the ends."""
    g = torch.Generator().manual_seed(seed)
    usual = torch.randn(count, generator=g, dtype=torch.float64) * 6
    sizes = (
        10.0 ** (torch.rand(count, generator=g, dtype=torch.float64) * 76 - 38)
        * torch.randn(count, generator=g, dtype=torch.float64).sign()
    )
    near = torch.tensor(
        [0.0, 0.3, 0.5, 1.0, 3.0, 7.0, 20.0, 80.0, 88.0, 88.7, 100.0, 104.0], dtype=torch.float64
    )
    near = torch.cat([near, -near])[:, None] * (
        1 + torch.arange(-40, 41, dtype=torch.float64) * torch.finfo(dtype).eps
    )
    return torch.cat([usual, sizes, near.flatten()]).to(dtype).double()


def exceeds(
    f: Relaxation, kernel: Kernel, points: tuple[Tensor, ...], dtype: torch.dtype, exact: Tensor
) -> Tensor:
    """By how much torch's own answer is further away than the error that is claimed for the point alone."""
    error = f.executed_error(points, points, dtype)
    assert error is not None
    far = (kernel(*(p.to(dtype) for p in points)).double() - exact).abs()
    # What has no value has no error, and where f itself is infinite nothing else is claimed.
    return torch.where(exact.isfinite() & ~error.isinf(), far.nan_to_num(math.inf) - error, -1.0)


@every
@pytest.mark.parametrize("stride", [1, 3])
def test_float32_kernels_stay_within_their_error(name: str, stride: int) -> None:
    f = TRUTHS[name].relaxation
    points = tuple(numbers(torch.float32, 200_000, seed + stride) for seed in range(f.arguments))
    if f.arguments == 2:
        points = (
            points[0],
            points[1][torch.randperm(len(points[1]), generator=torch.Generator().manual_seed(5))],
        )
    exact = f.function(*points)
    for kernel in kernels(name):
        over = exceeds(
            f,
            lambda *v, k=kernel: k(*(p.repeat_interleave(stride)[::stride] for p in v)),
            points,
            torch.float32,
            exact,
        )
        worst = int(over.argmax())
        assert float(over.max()) <= 0, f"{name} at {[float(p[worst]) for p in points]}"
    known = f.executed_error(points, points, torch.float32)
    assert known is not None
    ordinary = torch.stack([(p.abs() < 20) & (p.abs() > 1e-3) for p in points]).all(0) & exact.isfinite()
    size = 1 + exact.abs() + torch.stack(points).abs().sum(0)
    assert (known < 3e-6 * size)[ordinary].all() or name == "softplus that drops"


def test_log_sigmoid_and_logaddexp_stay_within_the_error_of_softplus() -> None:
    points = (numbers(torch.float32, 200_000, 3),)
    for kernel in (lambda v: -F.logsigmoid(-v), lambda v: torch.logaddexp(v, torch.zeros_like(v))):
        assert float(exceeds(LOG_SUM, kernel, points, torch.float32, LOG_SUM.function(*points)).max()) <= 0


@every
def test_float64_kernels_stay_within_their_error(name: str) -> None:
    truth = TRUTHS[name]
    f = truth.relaxation
    points = tuple(numbers(torch.float64, 120, 7 + seed)[::6] for seed in range(f.arguments))
    inside = [truth.defined(float(v), float(v)) and abs(float(v)) < 1e3 for v in points[0]]
    points = tuple(p[torch.tensor(inside)] for p in points)
    claimed = f.executed_error(points, points, torch.float64)
    assert claimed is not None
    for kernel in kernels(name):
        answers = kernel(*points)
        for k in range(len(points[0])):
            exact = truth.function(*(mpf(float(p[k])) for p in points))
            if math.isfinite(float(claimed[k])) and not (isinstance(f, Step) and points[0][k] == 0):
                assert abs(mpf(float(answers[k])) - exact) <= mpf(float(claimed[k])), (
                    name,
                    [float(p[k]) for p in points],
                )


@every
@given(data=st.data())
def test_the_error_of_a_box_is_that_of_all_its_points(name: str, data: st.DataObject) -> None:
    f = TRUTHS[name].relaxation
    lower, upper = data.draw(boxes(name))
    for dtype in (torch.float32, torch.float64):
        whole = f.executed_error(tensors(lower), tensors(upper), dtype)
        assert whole is not None
        assert float(whole) >= 0
        for share in (0.0, 0.3, 0.99, 1.0):
            point = tuple(
                torch.tensor([min(max(a + share * (b - a), a), b)], dtype=torch.float64)
                for a, b in zip(lower, upper, strict=True)
            )
            alone = f.executed_error(point, point, dtype)
            assert alone is not None
            assert float(alone) <= float(whole) * (1 + 1e-12)


def test_what_may_overflow_has_no_error_bound() -> None:
    long = torch.tensor([90.0], dtype=torch.float64)
    assert not F.softplus(long.float(), threshold=1e3).isfinite()
    assert Softplus(1.0, 1e3).executed_error((long,), (long,), torch.float32).isinf()
    assert Softplus(1.0, 1e3, stable=True).executed_error((long,), (long,), torch.float32).isfinite()
    for name, v in (
        ("exp", 88.0),
        ("power 3", 1e13),
        ("reciprocal", 1e-38),
        ("product", 1e20),
        ("hardswish", 3e37),
        ("log", 1e-39),
    ):
        f = TRUTHS[name].relaxation
        box = tensors((v,) * f.arguments)
        error = f.executed_error(box, box, torch.float32)
        assert error is not None
        assert float(error) == math.inf
