"""Planes against the functions they bound, in eighty digits: never across, and as close as the box allows."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import mpmath
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from mpmath import mp, mpf

from holdfast.bounds import relax
from holdfast.bounds.relax import (
    Elu,
    LeakyRelu,
    Planes,
    Product,
    Relaxation,
    Relu,
    Sigmoid,
    SigmoidTanh,
    SigmoidTimes,
    Tanh,
    planes,
    value_range,
)  # fmt: skip
from holdfast.bounds.relax.base import intercept

mp.dps = 80
Numbers = tuple[float, ...]
Exact = Callable[..., mpf]


# ---------------------------------------------------------------- the truth: functions, and where f - slope . v can be smallest


def sigmoid(v: mpf) -> mpf:
    return 1 / (1 + mp.exp(-v))


def steep_tanh(slope: mpf) -> list[mpf]:
    """Where tanh' = slope."""
    if not 0 < slope < 1:
        return []
    root = mp.atanh(mp.sqrt(1 - slope))
    return [root, -root]


def steep_sigmoid(slope: mpf) -> list[mpf]:
    return [2 * root for root in steep_tanh(4 * slope)]


@dataclass(frozen=True)
class Truth:
    """A relaxation, its function in high precision, and the inner points at which f - slope . v may be stationary."""

    relaxation: Relaxation
    function: Exact
    stationary: Callable[[Numbers, Numbers, Numbers], list[tuple[mpf, ...]]]

    def extremes(self, lower: Numbers, upper: Numbers, slope: Numbers) -> tuple[mpf, mpf]:
        """The smallest and largest f(v) - slope . v over a finite box, exactly."""
        ends = [(mpf(low), mpf(high)) for low, high in zip(lower, upper, strict=True)]
        points = list(corners(lower, upper)) + [
            p for p in self.stationary(lower, upper, slope) if all(a <= v <= b for v, (a, b) in zip(p, ends, strict=True))
        ]
        values = [self.gap(p, slope) for p in points]
        return min(values), max(values)

    def gap(self, point: tuple[mpf, ...], slope: Numbers) -> mpf:
        return self.function(*point) - mp.fsum(mpf(s) * v for s, v in zip(slope, point, strict=True))


def corners(lower: Numbers, upper: Numbers) -> Iterator[tuple[mpf, ...]]:
    if len(lower) == 1:
        yield from ((mpf(lower[0]),), (mpf(upper[0]),))
    else:
        yield from ((mpf(v), mpf(z)) for v in (lower[0], upper[0]) for z in (lower[1], upper[1]))


def bent(negative: float) -> Exact:
    return lambda v: v if v > 0 else mpf(negative) * v


def elu(alpha: float) -> Exact:
    return lambda v: v if v > 0 else mpf(alpha) * mp.expm1(v)


def elu_stationary(alpha: float) -> Callable[[Numbers, Numbers, Numbers], list[tuple[mpf, ...]]]:
    return lambda lower, upper, slope: [(mpf(0),), *([(mp.log(mpf(slope[0]) / mpf(alpha)),)] if slope[0] > 0 else [])]


def sigmoid_times_stationary(lower: Numbers, upper: Numbers, slope: Numbers) -> list[tuple[mpf, ...]]:
    a, b = map(mpf, slope)
    edges = [(v, mpf(z)) for z in (lower[1], upper[1]) if z != 0 for v in steep_sigmoid(a / mpf(z))]
    # Inside, z sigmoid'(v) = a and sigmoid(v) = b. It is a saddle, but the truth does not have to know that.
    inside = [(mp.log(b / (1 - b)), a / (b * (1 - b)))] if 0 < b < 1 else []
    return edges + inside


def sigmoid_tanh_stationary(lower: Numbers, upper: Numbers, slope: Numbers) -> list[tuple[mpf, ...]]:
    a, b = map(mpf, slope)
    points = [(v, mpf(z)) for z in (lower[1], upper[1]) if z != 0 for v in steep_sigmoid(a / mp.tanh(mpf(z)))]
    points += [(mpf(v), z) for v in (lower[0], upper[0]) for z in steep_tanh(b / sigmoid(mpf(v)))]
    if a == 0:
        return points + ([(mp.log(b / (1 - b)), mpf(0))] if 0 < b < 1 else [])
    # s (1 - s) t = a and s (1 - t^2) = b: the quartic s (1 - s)^2 (s - b) = a^2.
    try:
        roots = mp.polyroots([1, -2 - b, 1 + 2 * b, -b, -a * a], maxsteps=200, extraprec=400)
    except mpmath.libmp.NoConvergence:  # all but double roots; the grid has to do
        return points
    for root in roots:
        s = mp.re(root)
        if abs(mp.im(root)) < mpf(10) ** -30 and 0 < s < 1 and abs(t := a / (s * (1 - s))) < 1:
            points.append((mp.log(s / (1 - s)), mp.atanh(t)))
    return points


def kink(lower: Numbers, upper: Numbers, slope: Numbers) -> list[tuple[mpf, ...]]:
    return [(mpf(0),)]


def none(lower: Numbers, upper: Numbers, slope: Numbers) -> list[tuple[mpf, ...]]:
    return [(mpf(slope[1]), mpf(slope[0]))]


TRUTHS = {
    "relu": Truth(Relu(), bent(0.0), kink),
    **{f"leaky{s}": Truth(LeakyRelu(s), bent(s), kink) for s in (0.0, 0.01, 0.5, 1.0)},
    **{f"elu{a}": Truth(Elu(a), elu(a), elu_stationary(a)) for a in (1.0, 0.5)},
    "tanh": Truth(Tanh(), mp.tanh, lambda lower, upper, slope: [(v,) for v in steep_tanh(mpf(slope[0]))]),
    "sigmoid": Truth(Sigmoid(), sigmoid, lambda lower, upper, slope: [(v,) for v in steep_sigmoid(mpf(slope[0]))]),
    "product": Truth(Product(), lambda v, z: v * z, none),
    "sigmoid times": Truth(SigmoidTimes(), lambda v, z: sigmoid(v) * z, sigmoid_times_stationary),
    "sigmoid tanh": Truth(SigmoidTanh(), lambda v, z: sigmoid(v) * mp.tanh(z), sigmoid_tanh_stationary),
}
ARGUMENTS = {name: 2 if name in ("product", "sigmoid times", "sigmoid tanh") else 1 for name in TRUTHS}
every = pytest.mark.parametrize("name", list(TRUTHS))


def test_no_relaxation_is_without_a_truth() -> None:
    def below(kind: type) -> set[type]:
        return {kind}.union(*(below(child) for child in kind.__subclasses__() if child.__module__.startswith("holdfast.")))

    assert below(Relaxation) - {Relaxation} == {type(t.relaxation) for t in TRUTHS.values()}
    offered = {value for name in relax.__all__ if isinstance(value := getattr(relax, name), type)} - {Planes, Relaxation}
    assert offered == {type(t.relaxation) for t in TRUTHS.values()}


# ---------------------------------------------------------------- boxes and slopes of every kind


@st.composite
def intervals(draw: st.DrawFn) -> tuple[float, float]:
    kind = draw(st.sampled_from(["point", "tiny", "ordinary", "huge", "denormal", "crossing", "saturated", "at zero", "uneven"]))
    centre = draw(st.floats(-6, 6))
    if kind == "point":
        return centre, centre
    if kind == "tiny":
        return centre, centre + draw(st.sampled_from([1e-12, 1e-15, 1e-9]))
    if kind == "huge":
        width = draw(st.sampled_from([1e3, 1e6, 1e9]))
        return centre - width * draw(st.floats(0, 1)), centre + width
    if kind == "denormal":
        ends = draw(st.tuples(*[st.sampled_from([0.0, 5e-324, -5e-324, 1e-310, -1e-310, 2.3e-308])] * 2))
        return min(ends), max(ends)
    if kind == "crossing":
        return -draw(st.floats(0, 5)), draw(st.floats(0, 5))
    if kind == "saturated":
        start = draw(st.sampled_from([15.0, 19.0, 25.0, 40.0, 300.0, 720.0, 1e5])) * draw(st.sampled_from([-1, 1]))
        return start, start + draw(st.sampled_from([0.0, 1e-9, 0.5, 10.0]))
    if kind == "at zero":
        return (0.0, draw(st.floats(0, 4))) if draw(st.booleans()) else (-draw(st.floats(0, 4)), 0.0)
    if kind == "uneven":
        return -draw(st.sampled_from([1e-9, 0.1, 30.0])), draw(st.sampled_from([1e-9, 0.1, 30.0]))
    return centre, centre + draw(st.floats(0, 4))


slope_numbers = st.one_of(
    st.floats(-1.5, 1.5),
    st.floats(-0.3, 0.3),
    st.floats(-1, 1).map(lambda e: 10 ** (-20 * abs(e)) * math.copysign(1, e)),
    st.sampled_from([0.0, 0.25, 1.0, -1.0, 0.5, 1 - 2.0**-53, 1 + 2.0**-52, 2.0**-54, 1e-17, 1e-300, 5e-324, 1e6, -1e6]),
)


def tensors(values: Numbers) -> tuple[torch.Tensor, ...]:
    return tuple(torch.tensor([v], dtype=torch.float64) for v in values)


def scale(truth: Truth, lower: Numbers, upper: Numbers, slope: Numbers) -> float:
    """How large the numbers are that the intercept is made of."""
    sizes = [max(abs(a), abs(b)) for a, b in zip(lower, upper, strict=True)]
    f = max(abs(truth.function(*p)) for p in corners(lower, upper))
    if isinstance(truth.relaxation, SigmoidTimes):
        f = sizes[1]
    elif isinstance(truth.relaxation, Tanh | Sigmoid | SigmoidTanh):
        f = 1
    return float(f) + sum(abs(s) * v for s, v in zip(slope, sizes, strict=True))


def grid(lower: Numbers, upper: Numbers, steps: int) -> Iterator[tuple[mpf, ...]]:
    axes = [[min(mpf(a) + (mpf(b) - mpf(a)) * k / steps, mpf(b)) for k in range(steps + 1)] for a, b in zip(lower, upper, strict=True)]
    yield from ((v,) for v in axes[0]) if len(axes) == 1 else ((v, z) for v in axes[0] for z in axes[1])


def check(truth: Truth, lower: Numbers, upper: Numbers, slope: Numbers, below: float, above: float) -> None:
    """below and above are intercepts for this slope: right in exact arithmetic, and no further out than rounding asks."""
    least, most = truth.extremes(lower, upper, slope)
    assert mpf(below) <= least
    assert mpf(above) >= most
    room = 1e-13 * scale(truth, lower, upper, slope) + 1e-290
    assert least - mpf(below) <= room
    assert mpf(above) - most <= room
    for point in grid(lower, upper, 24 if len(lower) == 1 else 5):
        assert mpf(below) <= truth.gap(point, slope) <= mpf(above)


@every
@settings(max_examples=100)
@given(data=st.data())
def test_any_slope_has_the_exact_intercept(name: str, data: st.DataObject) -> None:
    truth, count = TRUTHS[name], ARGUMENTS[name]
    ends = [data.draw(intervals()) for _ in range(count)]
    lower, upper = tuple(e[0] for e in ends), tuple(e[1] for e in ends)
    slope = tuple(data.draw(slope_numbers) for _ in range(count))
    below, above = intercept(truth.relaxation, tensors(lower), tensors(upper), tensors(slope))
    check(truth, lower, upper, slope, float(below), float(above))


@every
@settings(max_examples=70)
@given(data=st.data())
def test_own_planes_and_ranges_enclose(name: str, data: st.DataObject) -> None:
    truth, count = TRUTHS[name], ARGUMENTS[name]
    ends = [data.draw(intervals()) for _ in range(count)]
    lower, upper = tuple(e[0] for e in ends), tuple(e[1] for e in ends)
    found = planes(truth.relaxation, tensors(lower), tensors(upper))
    low, high = tuple(float(s) for s in found.lower), tuple(float(s) for s in found.upper)
    assert mpf(float(found.lower_offset)) <= truth.extremes(lower, upper, low)[0]
    assert mpf(float(found.upper_offset)) >= truth.extremes(lower, upper, high)[1]
    below, above = value_range(truth.relaxation, tensors(lower), tensors(upper))
    check(truth, lower, upper, (0.0,) * count, float(below), float(above))


@settings(max_examples=100)
@given(
    s=st.floats(0.5, 1, exclude_max=True), t=st.floats(-1, 1, exclude_min=True, exclude_max=True), wide=st.floats(1e-3, 6),
    tall=st.floats(1e-3, 6), nudge=st.sampled_from([0.0, 1e-16, -1e-15, 1e-9]),
)  # fmt: skip
def test_the_inner_extreme_of_sigmoid_tanh_is_found(s: float, t: float, wide: float, tall: float, nudge: float) -> None:
    """Slopes for which the gradient vanishes at a chosen point inside the box, down to where both factors saturate."""
    truth = TRUTHS["sigmoid tanh"]
    slope = (s * (1 - s) * t + nudge, s * (1 - t * t))
    v, z = math.log(s / (1 - s)), math.atanh(t)
    lower, upper = (v - wide, z - tall), (v + wide, z + tall)
    below, above = intercept(truth.relaxation, tensors(lower), tensors(upper), tensors(slope))
    check(truth, lower, upper, slope, float(below), float(above))


@pytest.mark.parametrize("name", ["tanh", "sigmoid", "sigmoid tanh"])
def test_slopes_below_one_unit_have_roots_far_out(name: str) -> None:
    """Where 1 - slope rounds to one the true root lies beyond any that can be computed."""
    truth, count = TRUTHS[name], ARGUMENTS[name]
    for exponent in range(-24, -8):
        for sign in (1, -1):
            slope = (sign * 10.0**exponent,) * count
            for lower, upper in (((-50.0,) * count, (50.0,) * count), ((17.0,) * count, (45.0,) * count)):
                below, above = intercept(truth.relaxation, tensors(lower), tensors(upper), tensors(slope))
                check(truth, lower, upper, slope, float(below), float(above))


# ---------------------------------------------------------------- numbers that are none


FAR = (-math.inf, -1e12, -1e3, -40.0, -1.0, 0.0, 1.0, 40.0, 1e3, 1e12, math.inf)


@every
@settings(max_examples=60)
@given(data=st.data())
def test_an_infinite_box_never_gives_a_wrong_finite_plane(name: str, data: st.DataObject) -> None:
    truth, count = TRUTHS[name], ARGUMENTS[name]
    ends = [sorted(data.draw(st.tuples(st.sampled_from(FAR), st.sampled_from(FAR)))) for _ in range(count)]
    lower, upper = tuple(e[0] for e in ends), tuple(e[1] for e in ends)
    chosen = tuple(data.draw(slope_numbers) for _ in range(count))
    own = planes(truth.relaxation, tensors(lower), tensors(upper))
    offers = [(chosen, *intercept(truth.relaxation, tensors(lower), tensors(upper), tensors(chosen)))]
    offers += [((0.0,) * count, *value_range(truth.relaxation, tensors(lower), tensors(upper)))]
    offers += [(tuple(float(s) for s in own.lower), own.lower_offset, torch.tensor([math.inf]))]
    offers += [(tuple(float(s) for s in own.upper), torch.tensor([-math.inf]), own.upper_offset)]
    inner = [[v for v in FAR if math.isfinite(v) and a <= v <= b] for a, b in ends]
    points = [(v,) for v in inner[0]] if count == 1 else [(v, z) for v in inner[0] for z in inner[1]]
    for slope, below, above in offers:
        assert all(math.isfinite(s) for s in slope)
        for point in points:
            value = truth.gap(tuple(map(mpf, point)), slope)
            assert math.isnan(float(below)) or mpf(float(below)) <= value
            assert math.isnan(float(above)) or mpf(float(above)) >= value


@every
def test_a_box_that_is_no_number_gives_no_number(name: str) -> None:
    truth, count = TRUTHS[name], ARGUMENTS[name]
    for lower, upper in ((math.nan, 1.0), (0.0, math.nan), (math.nan, math.nan)):
        for end in value_range(truth.relaxation, tensors((lower,) * count), tensors((upper,) * count)):
            assert not bool(end.isfinite().any())


@every
def test_batches_are_element_by_element(name: str) -> None:
    truth, count = TRUTHS[name], ARGUMENTS[name]
    generator = torch.Generator().manual_seed(1)
    lower = tuple(torch.randn((3, 4), generator=generator, dtype=torch.float64) for _ in range(count))
    upper = tuple(low + torch.rand((3, 4), generator=generator, dtype=torch.float64) for low in lower)
    whole = planes(truth.relaxation, lower, upper)
    one = planes(truth.relaxation, tuple(low[1:2, 2] for low in lower), tuple(up[1:2, 2] for up in upper))
    for a, b in zip((*whole.lower, whole.lower_offset, whole.upper_offset), (*one.lower, one.lower_offset, one.upper_offset), strict=True):
        assert float(a[1, 2]) == pytest.approx(float(b[0]), abs=1e-14)
