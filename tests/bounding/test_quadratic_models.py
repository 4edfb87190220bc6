"""Second-order bounds: whatever their free coefficients are, no point of the region escapes them."""

import functools
import math

import pytest
import torch
from bounds_regions import KINDS, hostile, regions, seeded
from bounds_zoo import RECURRENT, ZOO, every_place, network, values
from hypothesis import given, settings
from hypothesis import strategies as st
from mpmath import mp, mpf
from torch import Tensor

from holdfast.bounding.crown import propagate
from holdfast.bounding.graph.graph import build
from holdfast.bounding.quadratic_algebra import QuadraticModel, VariableBall, apply_curve
from holdfast.bounding.quadratic_models import ParabolaCoefficients, Quadratic
from holdfast.bounding.quadratic_part import Curvature, Stored
from holdfast.bounding.relax import LeakyRelu, Relu, Sigmoid, Tanh
from holdfast.bounding.relax.base import Curve
from holdfast.bounding.relax.parabola import deviation, parabola
from holdfast.region import Region
from holdfast.region.norms import dual
from sizes import combinations

TANH = Tanh().curves()[0]
CURVES: dict[str, Curve] = {
    "tanh": TANH, "sigmoid": Sigmoid().curves()[0], "relu": Relu().curves()[0], "leaky relu": LeakyRelu(0.2).curves()[0],
}  # fmt: skip
EXACT = {
    "tanh": mp.tanh,
    "sigmoid": lambda x: 1 / (1 + mp.exp(-x)),
    "relu": lambda x: max(x, mpf(0)),
    "leaky relu": lambda x: x if x > 0 else mpf(LeakyRelu(0.2).negative_slope) * x,
}


@functools.cache
def view_of(name: str) -> Quadratic:
    return Quadratic(build(network(name)[1], torch.zeros(1, *ZOO[name].shape)))


def bends(view: Quadratic, batch: int, scale: float, seed: int) -> ParabolaCoefficients:
    g = seeded(seed)
    return {
        key: torch.randn(zero.shape, generator=g, dtype=torch.float64) * scale
        for key, zero in view.zero_coefficients(batch, torch.float64).items()
    }


def contained(view: Quadratic, region: Region, seed: int) -> tuple[Tensor, Tensor]:
    """Assert that no point escapes; returns the bounds with the first coefficients and the smallest values met, (batch, rows)."""
    outputs, g = view.graph.output.size, seeded(seed)
    rows = torch.cat(
        [torch.eye(outputs), -torch.eye(outputs), torch.randn((2, outputs), generator=g)]
    ).double()
    rows = rows.expand(len(region), *rows.shape).contiguous()
    offset = torch.randn(rows.shape[:2], generator=g, dtype=torch.float64)
    points = hostile(view.graph, region, rows, seed)
    met = values(view.graph, points.flatten(0, 1))[view.graph.output].reshape(len(points), len(region), -1)
    score = (torch.einsum("bro,nbo->nbr", rows, met) + offset).amin(0)
    boxes = propagate(view.graph, region)
    for scale in (0.0, 0.02, 0.5):
        free = bends(view, len(region), scale, seed)
        for known in (None,) if scale == 0.02 else (None, boxes):
            bound = view.least(region, rows, offset, free, known)
            assert not (bound > score).any()  # no number is no claim
            if scale == 0 and known is None:
                first = bound
    return first, score


def test_recurrent_and_smooth_networks_have_models() -> None:
    for word in ("rnn", "lstm", "gru", "tanh", "relu"):
        assert any(view_of(name).obstacle is None for name in ZOO if word in name)


@every_place
def test_no_point_escapes_a_model(place: int) -> None:
    name = list(ZOO)[place]
    if view_of(name).obstacle is not None:
        return
    offered = regions(ZOO[name].shape, place)
    for kind in range(1 if name in RECURRENT else 2):
        region = offered.get(KINDS[(place * 3 + kind * 7) % len(KINDS)])
        if region is not None:
            contained(view_of(name), region, place)


@pytest.mark.parametrize(("name", "kind"), combinations(["tanh", "lstm"], KINDS))
def test_no_point_of_any_region_escapes_a_model(name: str, kind: str) -> None:
    region = regions(ZOO[name].shape, 7).get(kind)
    if region is None:
        return
    bound, met = contained(view_of(name), region, 3)
    if kind == "point":
        torch.testing.assert_close(bound, met, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("p", [1.0, 2.0, math.inf])
@pytest.mark.parametrize(
    "named", [0.0, 0.1, 3.0]
)  # remainders: none, smaller and larger than what the inputs move
def test_what_is_known_of_a_square_holds_its_values(p: float, named: float) -> None:
    """The quadratic part of a curve's value, without looking at its coefficients, over points that reach far to both sides."""
    g = seeded(3)

    def some(*shape: int, scale: float = 1.0) -> Tensor:
        return torch.randn(shape, generator=g, dtype=torch.float64) * scale

    n, d, m = 5, 3, 2
    Q, C = some(1, n, d, d, scale=0.2), some(1, n, d, m, scale=0.1)
    bent, ball = (
        Curvature(((None, Stored(Q + Q.mT, C)),)),
        VariableBall(dual(p), torch.zeros(d, dtype=torch.long)),
    )
    y = QuadraticModel(
        some(1, n),
        some(1, n, d),
        some(1, n, m, scale=named),
        bent,
        some(1, n).abs() * 0.01,
        torch.full((1, n), 9.0),
        torch.arange(d),
        ball,
    )
    found = apply_curve(TANH, y, *y.range(), some(2, 1, n, scale=0.5))
    assert found.curvature is not None
    form, parts = found.curvature.store_slabs(), found.parts
    v = some(4000, d)
    v = v / v.abs().amax(1, keepdim=True) if math.isinf(p) else v / v.norm(p, dim=1, keepdim=True)
    v, r = v * torch.rand((4000, 1), generator=g) ** 0.2, some(4000, m).sign()
    values = torch.einsum("kd,nde,ke->kn", v, form.Q[0], v) / 2 + torch.einsum(
        "kd,ndm,km->kn", v, form.C[0], r
    )
    away = (values - parts.middle).abs().amax(0)
    assert (away <= parts.width).all()
    assert (parts.width <= 4 * away).all()  # and is not worth nothing


ends = st.one_of(st.floats(-30, 30), st.floats(-1e-3, 1e-3), st.sampled_from([0.0, 1.0, -1.0, 1e-300, 700.0]))
coefficients = st.one_of(st.floats(-3, 3), st.sampled_from([0.0, 1e-9, -0.5, 1e3]))


@pytest.mark.parametrize("name", list(CURVES))
@settings(max_examples=80, deadline=None)
@given(a=ends, b=ends, at=ends, slope=coefficients, bend=coefficients)
def test_no_curve_strays_further(name: str, a: float, b: float, at: float, slope: float, bend: float) -> None:
    low, high = min(a, b), max(a, b)
    box = [torch.tensor([v], dtype=torch.float64) for v in (slope, bend, low, high, at)]
    least, most = (float(end) for end in deviation(CURVES[name], *box))
    for k in range(41):
        x = mpf(low) + (mpf(high) - mpf(low)) * k / 40
        value = EXACT[name](x) - mpf(slope) * (x - at) - mpf(bend) * (x - at) ** 2
        assert least <= value <= most


@pytest.mark.parametrize("name", list(CURVES))
def test_the_first_parabola_leaves_little(name: str) -> None:
    """On a narrow interval it is off to the third order for what is smooth, and never worse than the function's own range."""
    low = torch.linspace(-3, 3, 61, dtype=torch.float64)
    for width in (0.01, 0.1, 1.0):
        slope, bend = parabola(CURVES[name], low, low + width, low + width / 2)
        least, most = deviation(CURVES[name], slope, bend, low, low + width, low + width / 2)
        assert (
            most - least <= (0.1 * width**3 if name in ("tanh", "sigmoid") else 0.3 * width) + 1e-12
        ).all()


@pytest.mark.parametrize("ends", [(-math.inf, 0.0), (0.0, math.inf), (math.nan, 1.0), (-1e308, 1e308)])
def test_what_is_not_a_number_proves_nothing(ends: tuple[float, float]) -> None:
    low, high = (torch.tensor([end], dtype=torch.float64) for end in ends)
    slope, bend = parabola(TANH, low, high, torch.zeros(1, dtype=torch.float64))
    least, most = deviation(TANH, slope, bend, low, high, torch.zeros(1, dtype=torch.float64))
    assert not (least > -1).any()
    assert not (most < 1).any()
