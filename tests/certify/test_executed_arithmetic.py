"""Proofs about the network as it runs in float32: its own outputs never fall below them, however little room there is."""

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

import holdfast as hf
from holdfast.bounding.crown import lower_bound, propagate
from holdfast.bounding.graph.graph import build
from holdfast.bounding.relax import Mish
from holdfast.problem import Problem
from holdfast.random_streams import RandomStreams
from holdfast.region import Ball
from holdfast.result import Key
from sizes import combinations


class Reader(nn.Module):
    def __init__(self, kind: type[nn.RNNBase]) -> None:
        super().__init__()
        self.layer, self.head = kind(4, 16, batch_first=True), nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.layer(x)[0][:, -1])
        return out


def mlp() -> nn.Module:
    return nn.Sequential(
        nn.Flatten(), nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 3)
    )


def conv() -> nn.Module:
    return nn.Sequential(
        nn.Unflatten(1, (1, 5)),
        nn.Conv2d(1, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32, 3),
    )


class Chorus(nn.Module):
    """Many functions of the same few numbers, side by side."""

    def __init__(self, *functions: Callable[[Tensor], Tensor], bounded: bool = False) -> None:
        super().__init__()
        self.functions, self.bounded = functions, bounded
        self.first, self.head = nn.Linear(20, 12), nn.Linear(12 * len(functions), 3)

    def forward(self, x: Tensor) -> Tensor:
        v = self.first(x.flatten(1))
        v = torch.tanh(v) if self.bounded else v
        out: Tensor = self.head(torch.cat([f(v) for f in self.functions], 1))
        return out


def smooth() -> nn.Module:
    names = (
        nn.GELU,
        nn.SiLU,
        nn.Mish,
        nn.Softplus,
        nn.ELU,
        nn.SELU,
        nn.LogSigmoid,
        nn.Hardswish,
        nn.Hardsigmoid,
        nn.ReLU6,
        nn.Softshrink,
    )
    settings = (
        nn.GELU("tanh"),
        nn.Softplus(0.7, 10.0),
        nn.ELU(0.3),
        nn.CELU(0.6),
        nn.Hardtanh(-0.3, 0.7),
        nn.LeakyReLU(0.3),
        nn.PReLU(),
    )
    return Chorus(
        *(kind() for kind in names),
        *settings,
        torch.erf,
        torch.abs,
        lambda v: v * torch.sigmoid(v),
        lambda v: v.clamp_min(0.1),
    )


def with_a_domain() -> nn.Module:
    return Chorus(
        torch.exp, torch.expm1, lambda v: torch.log(v + 1.5), lambda v: torch.log1p(v / 2), lambda v: torch.sqrt(v + 1.2), lambda v: v**3,
        lambda v: torch.rsqrt(v + 1.5), lambda v: 1 / (v + 1.3), lambda v: v / (2 - v), torch.square, lambda v: v**5, lambda v: v * v * v,
        lambda v: torch.logaddexp(v, -v), bounded=True,
    )  # fmt: skip


NETS = {
    "mlp": mlp, "conv": conv, "rnn": lambda: Reader(nn.RNN), "lstm": lambda: Reader(nn.LSTM), "gru": lambda: Reader(nn.GRU),
    "smooth": smooth, "with a domain": with_a_domain,
}  # fmt: skip


@pytest.mark.parametrize(("name", "gain"), combinations(list(NETS), [1.0, 30.0]))
def test_float32_outputs_never_fall_below(name: str, gain: float) -> None:
    """At radius zero the bound is the real value less the rounding, so float32 has no room but what is proved for it."""
    torch.manual_seed(0)
    model = NETS[name]().eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(gain)
    net = hf.Network.from_torch(model)
    x = torch.randn(64, 5, 4) * 3
    graph = build(net, x)
    rows = torch.cat([torch.eye(3), -torch.eye(3)]).double().expand(64, 6, 3)
    none = torch.zeros(64, 6, dtype=torch.float64)
    for radius in (0.0, 1e-4):
        region = Ball(x, torch.full((64,), radius), math.inf)
        real = lower_bound(graph, propagate(graph, region), rows, none)
        executed = lower_bound(graph, propagate(graph, region, torch.float32), rows, none)
        points = torch.cat(
            [
                region.sample(20, RandomStreams.of(range(len(region)), 1)),
                region.vertex(torch.randn(20, 64, 5, 4)),
            ]
        )
        outputs = net(points.flatten(0, 1)).double().reshape(40, 64, 3)
        assert (executed <= torch.cat([outputs, -outputs], -1)).all()
        assert (executed <= real).all()
        assert (real - executed <= 1e-3 * gain**3 * (1 + real.abs())).all()
        if (
            radius == 0
        ):  # or the test could not fail: in real arithmetic the bound lies above some float32 output
            assert (real > torch.cat([outputs, -outputs], -1).amin(0)).any()


@pytest.mark.parametrize(
    ("model", "share"),
    [
        (mlp, 0.99),
        (lambda: Reader(nn.LSTM), 0.5),
    ],  # the affine forms of recurrent layers know real arithmetic only
)
def test_a_radius_can_be_proved_for_the_network_as_it_runs(
    model: Callable[[], nn.Module], share: float
) -> None:
    torch.manual_seed(1)
    net = hf.Network.from_torch(model().eval())
    x = torch.randn(6, 5, 4)
    y = net(x).argmax(1)
    real = hf.radius(net, x, y, methods=[hf.certify.Certify()])
    executed = hf.radius(net, x, y, methods=[hf.certify.Certify(arithmetic="executed")])
    for a, b in zip(real, executed, strict=True):
        assert share * a.lower.value < b.lower.value <= a.lower.value
        assert b.lower.evidence.dtype == "torch.float32"
        assert "as its graph says" in b.lower.evidence.assumptions[0]


class LogSumExp(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x - torch.logsumexp(x, -1, keepdim=True)


def test_what_is_not_known_as_executed_is_named() -> None:
    x = torch.randn(2, 5, 4)
    problem = Problem(
        hf.Network.from_torch(nn.Sequential(mlp(), nn.Softmax(-1)).eval()),
        Ball(x, 0.1),
        hf.Robustness(torch.tensor([0, 1])),
        "radius",
        (Key(0), Key(1)),
    )
    assert hf.certify.Certify().obstacle(problem) is None
    assert "as executed is not bounded" in (hf.certify.Certify(arithmetic="executed").obstacle(problem) or "")
    # Torch has kernels of its own for these, whose sums are not those of the nodes that stand for them.
    for inner in (nn.LayerNorm(3), nn.LogSoftmax(-1), nn.RMSNorm(3, eps=1e-6), LogSumExp()):
        fused = replace(
            problem, network=hf.Network.from_torch(nn.Sequential(mlp(), inner, nn.Linear(3, 3)).eval())
        )
        assert "as executed is not bounded" in (
            hf.certify.Certify(arithmetic="executed").obstacle(fused) or ""
        )
    known = replace(problem, network=hf.Network.from_torch(nn.Sequential(smooth(), nn.Tanh()).eval()))
    assert hf.certify.Certify(arithmetic="executed").obstacle(known) is None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Mish, "measured", False)
        assert "rounding of Mish as executed is not bounded" in (
            hf.certify.Certify(arithmetic="executed").obstacle(known) or ""
        )
    normed = Problem(
        hf.Network.from_torch(nn.utils.parametrizations.weight_norm(nn.Linear(4, 3)).eval()),
        Ball(x[:, 0], 0.1),
        hf.Robustness(torch.tensor([0, 1])),
        "radius",
        (Key(0), Key(1)),
    )
    assert "computes a constant from weights" in (
        hf.certify.Certify(arithmetic="executed").obstacle(normed) or ""
    )


def test_what_may_overflow_as_executed_is_not_proved() -> None:
    """In real arithmetic the class is plain; in float32 the hidden sum is infinite, and their difference no number."""
    model = nn.Sequential(nn.Linear(1, 2), nn.Linear(2, 2))
    with torch.no_grad():
        for weight, values in zip(
            model.parameters(),
            ([[3e38], [3e38]], [0.0, 0.0], [[1.0, -1.0], [0.0, 0.0]], [1.0, 0.0]),
            strict=True,
        ):
            weight.copy_(torch.tensor(values))
    net, x = hf.Network.from_torch(model.eval()), torch.tensor([[2.0]])
    graph, region = build(net, x), Ball(x, 1e-3, 2)
    rows, none = torch.tensor([[[1.0, -1.0]]], dtype=torch.float64), torch.zeros(1, 1, dtype=torch.float64)
    assert net(x).isnan().any()
    assert not (lower_bound(graph, propagate(graph, region, torch.float32), rows, none) > 0).any()


def test_kernels_that_round_more_are_found_and_refused_by_name() -> None:
    net = hf.Network.from_torch(conv().eval())
    region = Ball(torch.zeros(1, 5, 4), torch.full((1,), 0.1, dtype=torch.float64))
    problem = Problem(net, region, hf.Robustness(torch.tensor([0])), "worst", (Key(0),))
    method = hf.certify.Certify(arithmetic="executed")
    usual = method.obstacle(problem)
    assert usual is None or "NNPACK" not in usual
    with torch.backends.mkldnn.flags(enabled=False):
        if torch.backends.nnpack.is_available():
            assert "NNPACK" in str(method.obstacle(problem))
            with torch.backends.nnpack.flags(enabled=False):
                assert method.obstacle(problem) == usual
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("medium")
        assert "set_float32_matmul_precision" in str(method.obstacle(problem))
    finally:
        torch.set_float32_matmul_precision(before)


@pytest.mark.parametrize(
    "function",
    [nn.Tanh(), nn.Sigmoid(), nn.GELU(), nn.Softplus(), nn.SiLU(), nn.ELU()],
    ids=lambda f: type(f).__name__,
)
def test_intervals_of_a_function_contain_its_executed_values(function: nn.Module) -> None:
    """At a point no relaxation leaves room, and nodes that stay still meet their intervals: only the error of the
    function itself covers what float32 makes of it.
    """
    x = 2 * torch.randn(50, 64, generator=torch.Generator().manual_seed(0))
    net = hf.Network.from_torch(nn.Sequential(function).eval())
    graph, region = build(net, x[:1]), Ball(x, 0.0)
    boxes, value = propagate(graph, region, torch.float32), net(x).double()
    node = graph.nodes[-1]
    assert bool((boxes.lower[node].flatten(1) <= value).all())
    assert bool((value <= boxes.upper[node].flatten(1)).all())
    rows = torch.eye(64, dtype=torch.float64).expand(50, 64, 64)
    none = torch.zeros(50, 64, dtype=torch.float64)
    for sign in (1, -1):
        assert bool((lower_bound(graph, boxes, sign * rows, none) <= sign * value).all())
    real = propagate(graph, region)
    low, high = (ends[node].flatten(1) for ends in (real.lower, real.upper))
    assert bool(((value < low) | (value > high)).any()), "the error is larger than the rounding of the bounds"


def linear(weight: list[list[float]], bias: list[float]) -> nn.Linear:
    layer = nn.Linear(len(weight[0]), len(bias))
    with torch.no_grad():
        layer.weight.copy_(torch.tensor(weight))
        layer.bias.copy_(torch.tensor(bias))
    return layer


def cancelling(size: float) -> nn.Module:
    """size x + 1 - size x against 1/2: in real arithmetic the first class, in float32 it depends on the order."""
    first = linear([[size], [0.0], [-size]], [0.0, 1.0, 0.0])
    # A third output makes the difference small beside the largest one, so that rounding may explain it.
    return nn.Sequential(first, linear([[1.0, 1.0, 1.0], [0.0, 0.0, 0.0], [-1.0, 0.0, 0.0]], [0.0, 0.5, 0.0]))


class OtherInBatches(nn.Module):
    def __init__(self, many: int) -> None:
        super().__init__()
        self.layer, self.many = linear([[1.0], [0.0]], [1.0, 0.0]), many

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layer(x)
        return -out if x.shape[0] >= self.many else out


class OtherInFloat64(nn.Module):
    """Robust in float64, and in no other type."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = linear([[1.0], [0.0]], [1.0, 0.0])

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layer(x)
        return out if x.dtype == torch.float64 else out - 1.7 * torch.relu(x)


ENVIRONMENTS: dict[str, Callable[[], nn.Module]] = {
    "order of summation, 1e8": lambda: cancelling(1e8),
    "order of summation, 1e12": lambda: cancelling(1e12),
    "batches of fifty": lambda: OtherInBatches(50),
    "batches of a thousand": lambda: OtherInBatches(1000),
}


@pytest.mark.parametrize("name", list(ENVIRONMENTS))
def test_networks_that_detect_their_environment_are_not_proved_as_executed(name: str) -> None:
    """As in "No Soundness in the Real World" (arXiv 2506.01054)."""
    x, label = torch.tensor([[0.7]]), torch.tensor([0])
    net = hf.Network.from_torch(ENVIRONMENTS[name]().eval())
    (worst,) = hf.worst(
        net,
        Ball(x, 0.1),
        hf.Robustness(label),
        methods=[hf.certify.Certify(arithmetic="executed")],
        progress=False,
    )
    assert not worst.lower.value > 0


def test_a_network_that_detects_float64_is_proved_as_it_runs_in_float32() -> None:
    module = OtherInFloat64().eval()
    (worst,) = hf.worst(
        hf.Network.from_torch(module),
        Ball(torch.tensor([[0.7]]), 0.1),
        hf.Robustness(torch.tensor([0])),
        methods=[hf.certify.Certify(arithmetic="executed")],
        progress=False,
    )
    outputs = module(torch.linspace(0.6, 0.8, 1001)[:, None])
    assert worst.lower.value <= (outputs[:, 0] - outputs[:, 1]).min()
