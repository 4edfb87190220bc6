"""Bounds of derivatives: every rule against dense points, whole gradients against autograd, kinks and jumps included."""

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from holdfast.bounding.crown import propagate
from holdfast.bounding.gradient import gradient_bounds
from holdfast.bounding.graph import graph as graphs
from holdfast.bounding.graph.graph import Graph, Relaxed, build
from holdfast.bounding.node_bounds import Boxes
from holdfast.bounding.relax import (
    Abs,
    Clip,
    Elu,
    Erf,
    Exp,
    Gelu,
    GeluTanh,
    Hardswish,
    LeakyRelu,
    Log,
    Mish,
    Power,
    Product,
    Reciprocal,
    Relaxation,
    Relu,
    Rsqrt,
    Sigmoid,
    SigmoidTanh,
    SigmoidTimes,
    Silu,
    Softplus,
    Sqrt,
    Step,
    Tanh,
)
from holdfast.errors import UnsupportedLayer
from holdfast.network import Network
from holdfast.random_streams import RandomStreams
from holdfast.region import Ball, Region

FUNCTIONS: list[tuple[Relaxation, float, float]] = [  # and where it is asked
    (Relu(), -4, 4), (LeakyRelu(0.2), -4, 4), (Abs(), -4, 4), (Clip(-1.0, 0.5), -4, 4), (Step(), -4, 4), (Hardswish(), -6, 6),
    (Elu(0.5), -6, 3), (Elu(2.0), -6, 3), (Tanh(), -6, 6), (Sigmoid(), -9, 9), (Erf(), -4, 4), (Softplus(1.0, math.inf), -9, 9),
    (Softplus(2.0, 3.0), -4, 4), (Exp(), -9, 9), (Log(), 0.01, 9), (Sqrt(), 0.01, 9), (Rsqrt(), 0.1, 9), (Reciprocal(), -4, 4),
    (Power(2), -3, 3), (Power(3), -3, 3), (Power(5), -2, 2), (Silu(), -9, 9), (Gelu(), -6, 6), (GeluTanh(), -6, 6), (Mish(), -9, 9),
    (Product(), -3, 3), (SigmoidTimes(), -5, 5), (SigmoidTanh(), -5, 5),
]  # fmt: skip
TWO = (Product, SigmoidTimes, SigmoidTanh)
BENT = (
    Relu,
    LeakyRelu,
    Abs,
    Clip,
    Step,
    Hardswish,
    Elu,
    Softplus,
)  # with a kink or a jump: ranges need not be attained near it


def ranges(f: Relaxation, lower: list[Tensor], upper: list[Tensor]) -> list[tuple[Tensor, Tensor]]:
    found = f.derivative_range(tuple(lower), tuple(upper))
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("f", "low", "high"), FUNCTIONS, ids=lambda v: repr(v) if isinstance(v, float | int) else type(v).__name__
)
@given(seed=st.integers(0, 10_000), width=st.sampled_from([0.0, 1e-6, 0.1, 1.0, 3.0]))
def test_derivatives_stay_in_their_range(
    f: Relaxation, low: float, high: float, seed: int, width: float
) -> None:
    generator = torch.Generator().manual_seed(seed)
    count = 2 if isinstance(f, TWO) else 1

    def drawn(*shape: int) -> Tensor:
        return torch.rand(shape, generator=generator, dtype=torch.float64)

    lower = [low + (high - low) * drawn(8) for _ in range(count)]
    upper = [torch.minimum(a + width * drawn(8), torch.tensor(high, dtype=torch.float64)) for a in lower]
    shares = [torch.cat([torch.zeros(1, 8), torch.ones(1, 8), drawn(400, 8)]).double() for _ in range(count)]
    points = [
        (a + (b - a) * s).clamp(a, b).requires_grad_() for a, b, s in zip(lower, upper, shares, strict=True)
    ]
    slopes = torch.autograd.grad(f.function(*points).sum(), points)
    for (least, most), slope, (a, b) in zip(
        ranges(f, lower, upper), slopes, zip(lower, upper, strict=True), strict=True
    ):
        assert (least <= most).all()
        assert (slope >= least - 1e-13).all()
        assert (slope <= most + 1e-13).all()
        if count == 1 and not isinstance(f, BENT):  # tight: the ends are met
            open_ = least.isfinite() & most.isfinite() & (b - a < 0.2)
            room = 0.02 * (most - least) + 1e-9 * (1 + most.abs())
            assert (slope.amax(0) >= most - room)[open_].all()
            assert (slope.amin(0) <= least + room)[open_].all()


@pytest.mark.parametrize(
    ("f", "low", "high"), FUNCTIONS, ids=lambda v: repr(v) if isinstance(v, float | int) else type(v).__name__
)
@given(seed=st.integers(0, 10_000))
def test_no_step_is_steeper_than_the_range(f: Relaxation, low: float, high: float, seed: int) -> None:
    """Jumps and kinks have no derivative to ask for; differences show them."""
    if isinstance(f, TWO):
        return
    generator = torch.Generator().manual_seed(seed)
    a, b = (low + (high - low) * torch.rand((2, 64), generator=generator, dtype=torch.float64)).sort(0).values
    ((least, most),) = ranges(f, [a], [b])
    change, width = f.function(b) - f.function(a), b - a
    size = 1e-12 * (1 + f.function(b).abs() + f.function(a).abs())
    assert (change <= most * width + size)[most.isfinite()].all()
    assert (change >= least * width - size)[least.isfinite()].all()


def test_relu_on_one_side_is_exact() -> None:
    ((low, high),) = ranges(Relu(), [torch.tensor([0.0, -2.0, -1.0])], [torch.tensor([1.0, 0.0, 1.0])])
    assert low.tolist() == [1, 0, 0]
    assert high.tolist() == [1, 0, 1]


# ---------------------------------------------------------------- whole networks


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.inner, self.last = nn.Linear(5, 8), nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.first(x))
        h = h + torch.relu(self.inner(h))
        return self.last(torch.cat([h[:, 4:], h[:, :4] * torch.sigmoid(h[:, 2:6])], dim=1))


class Recurrent(nn.Module):
    def __init__(self, kind: type[nn.RNNBase]) -> None:
        super().__init__()
        self.cell, self.last = kind(4, 6, batch_first=True), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.cell(x)[0][:, -1])


NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "relu": (
        lambda: nn.Sequential(nn.Linear(5, 9), nn.ReLU(), nn.Linear(9, 7), nn.ReLU(), nn.Linear(7, 3)),
        (5,),
    ),
    "smooth": (
        lambda: nn.Sequential(
            nn.Linear(5, 9), nn.Sigmoid(), nn.Linear(9, 7), nn.Softplus(), nn.Linear(7, 3), nn.Softmax(-1)
        ),
        (5,),
    ),
    "gelu": (
        lambda: nn.Sequential(nn.Linear(5, 9), nn.GELU(), nn.Linear(9, 7), nn.SiLU(), nn.Linear(7, 3)),
        (5,),
    ),
    "pooled": (
        lambda: nn.Sequential(
            nn.Conv2d(1, 3, 3, padding=1),
            nn.LeakyReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(3, 2, 2),
            nn.ELU(),
            nn.Flatten(),
            nn.Linear(2, 3),
        ),
        (1, 4, 4),
    ),
    "residual": (Residual, (5,)),
    "lstm": (lambda: Recurrent(nn.LSTM), (3, 4)),
    "gru": (lambda: Recurrent(nn.GRU), (3, 4)),
}


def network(name: str) -> tuple[nn.Module, Network, Tensor]:
    build_module, shape = NETWORKS[name]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        module = build_module().double().eval()
        x = torch.randn((4, *shape), dtype=torch.float64)
    return module, Network.from_torch(module), x


def bounds(graph: Graph, region: Region, rows: Tensor, spread: float = 0.0) -> tuple[Tensor, Tensor]:
    return gradient_bounds(graph, propagate(graph, region), rows - spread, rows + spread)


def gradients(module: nn.Module, x: Tensor, rows: Tensor) -> Tensor:
    """x (..., batch, *shape), rows (batch, rows, outputs) -> (rows, ..., batch, *shape)."""
    points = x.detach().clone().requires_grad_()
    shape = points.shape
    outputs = module(points.reshape(-1, *shape[2:])).reshape(*shape[:2], -1)
    return torch.stack(
        [
            torch.autograd.grad((outputs * rows[:, r]).sum(), points, retain_graph=True)[0]
            for r in range(rows.shape[1])
        ]
    )


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize(("radius", "p"), [(0.0, math.inf), (0.05, math.inf), (0.5, 2), (1.0, math.inf)])
def test_gradients_of_samples_lie_within_the_bounds(name: str, radius: float, p: float) -> None:
    module, net, x = network(name)
    graph = build(net, x)
    region = Ball(x, torch.full((4,), radius), p)
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn((4, 2, graph.output.size), generator=generator, dtype=torch.float64)
    lower, upper = bounds(graph, region, rows)
    found = (
        gradients(module, region.sample(100, RandomStreams.of(range(len(region)), 0)), rows)
        .transpose(0, 1)
        .transpose(1, 2)
    )  # (samples, batch, rows, *shape)
    slack = 1e-12 * (1 + found.abs())
    assert (found >= lower - slack).all()
    assert (found <= upper + slack).all()
    assert lower.isfinite().all()
    if radius == 0:
        assert torch.allclose(lower, found[0], atol=1e-9)
        assert torch.allclose(upper, found[0], atol=1e-9)


@pytest.mark.parametrize("name", ["relu", "pooled", "residual"])
def test_maps_without_a_matrix_give_the_same_bounds(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    _, net, x = network(name)
    region = Ball(x, torch.full((4,), 0.3), math.inf)
    rows = torch.eye(3, dtype=torch.float64).expand(4, -1, -1)
    known = bounds(build(net, x), region, rows, 0.1)
    monkeypatch.setattr(graphs, "LARGEST_MATRIX", 0)
    graph = build(net, x)
    assert all(node.rows(torch.arange(1)) is None for node in graph.nodes if isinstance(node, graphs.Affine))
    for a, b in zip(known, bounds(graph, region, rows, 0.1), strict=True):
        assert torch.allclose(a, b, atol=1e-9)


def test_rows_may_be_intervals() -> None:
    module, net, x = network("residual")
    graph, region = build(net, x), Ball(x, torch.full((4,), 0.2), math.inf)
    generator = torch.Generator().manual_seed(1)
    rows = torch.randn((4, 1, 3), generator=generator, dtype=torch.float64)
    lower, upper = bounds(graph, region, rows, 0.3)
    points = region.sample(40, RandomStreams.of(range(len(region)), 1))
    for _ in range(20):
        inside = rows + 0.6 * (torch.rand(rows.shape, generator=generator, dtype=torch.float64).round() - 0.5)
        found = gradients(module, points, inside).transpose(0, 1).transpose(1, 2)
        assert (found >= lower - 1e-12).all()
        assert (found <= upper + 1e-12).all()


def test_nothing_is_lost_where_no_relu_changes_sides() -> None:
    _, net, x = network("relu")
    graph = build(net, x)
    rows = torch.eye(3, dtype=torch.float64).expand(4, -1, -1)
    region = Ball(x, torch.full((4,), 1e-4), math.inf)
    boxes: Boxes = propagate(graph, region)
    stable = all(
        bool(((boxes.lower[s] >= 0) | (boxes.upper[s] <= 0)).all())
        for n in graph.nodes
        if isinstance(n, Relaxed)
        for s in n.inputs
    )
    assert stable
    lower, upper = gradient_bounds(graph, boxes, rows, rows)
    assert torch.allclose(lower, upper, atol=1e-12)


def test_a_jump_has_no_bound() -> None:
    class Jump(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.where(x > 0, x + 1, x)

    net, x = Network.from_torch(Jump().eval()), torch.tensor([[0.05, 3.0]], dtype=torch.float64)
    lower, upper = bounds(
        build(net, x), Ball(x, torch.tensor([0.1]), math.inf), torch.eye(2, dtype=torch.float64)[None]
    )
    assert upper[0, 0, 0].isinf()
    assert upper[0, 1, 1] == pytest.approx(1)
    assert lower[0, 1, 1] == pytest.approx(1)


def test_a_function_without_a_derivative_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Mish, "derivative_range", Relaxation.derivative_range)
    net = Network.from_torch(nn.Sequential(nn.Linear(2, 2), nn.Mish()).double().eval())
    x = torch.ones((1, 2), dtype=torch.float64)
    with pytest.raises(UnsupportedLayer, match="derivative of Mish"):
        bounds(build(net, x), Ball(x, torch.zeros(1), 2), torch.eye(2, dtype=torch.float64)[None])
