"""Bounds over regions: no point of the region escapes them, in float64 and, where it can be had, in exact arithmetic."""

import functools
import itertools
import math
from collections.abc import Callable, Iterator
from fractions import Fraction

import pytest
import torch
from bounds_regions import KINDS, ROWS, hostile, regions, seeded
from bounds_zoo import ZOO, every_place, network, values
from hypothesis import given, settings
from hypothesis import strategies as st
from mpmath import mp, mpf
from torch import Tensor, nn

import holdfast as hf
from holdfast.bounding import crown
from holdfast.bounding.crown import lower_bound, propagate
from holdfast.bounding.graph import graph as graphs
from holdfast.bounding.graph.graph import Affine, Graph, Node, Relaxed, build
from holdfast.region import Ball, Domain, Patch, Region

mp.dps = 60


def contained(graph: Graph, region: Region, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Assert that no point escapes any box or bound; returns the bounds and the smallest values met, (batch, rows)."""
    outputs = graph.output.size
    g = seeded(seed)
    rows = torch.cat(
        [torch.eye(outputs), -torch.eye(outputs), torch.randn((2, outputs), generator=g)]
    ).double()
    rows = rows.expand(len(region), *rows.shape).contiguous()
    offset = torch.randn(rows.shape[:2], generator=g, dtype=torch.float64)
    boxes = propagate(graph, region)
    bound = lower_bound(graph, boxes, rows, offset)
    points = hostile(graph, region, rows, seed)
    met = values(graph, points.flatten(0, 1))
    for node in graph.nodes:
        value = met[node].reshape(len(points), len(region), *node.shape)
        assert (boxes.lower[node] <= value).all(), node
        assert (value <= boxes.upper[node]).all(), node
        assert (value.abs() <= boxes.magnitude[node] * (1 + 1e-12)).all(), node
    score = (
        torch.einsum("bro,nbo->nbr", rows, met[graph.output].reshape(len(points), len(region), -1)) + offset
    )
    assert bound.isfinite().all()
    assert (bound <= score).all()
    return bound, score.amin(0)


@every_place
def test_no_point_escapes(place: int) -> None:
    name = list(ZOO)[place]
    _, net = network(name)
    shape = ZOO[name].shape
    graph = build(net, torch.zeros(1, *shape))
    offered = regions(shape, place)
    # Every network meets some kinds, every kind several networks.
    for kind in range(1 if "both ways" in name else 2 if "two layers" in name or "states" in name else 4):
        region = offered.get(KINDS[(place * 3 + kind * 5) % len(KINDS)])
        if region is not None:
            contained(graph, region, seed=place)


@pytest.mark.parametrize("name", ["relu", "lstm", "residual"])
@pytest.mark.parametrize("kind", KINDS)
def test_no_point_of_any_region_escapes(name: str, kind: str) -> None:
    shape = ZOO[name].shape
    region = regions(shape, 5).get(kind)
    if region is None:
        assert shape != (3, 3)
        return
    bound, met = contained(build(network(name)[1], torch.zeros(1, *shape)), region)
    if kind == "point":
        torch.testing.assert_close(bound, met, rtol=1e-10, atol=1e-10)


# ---------------------------------------------------------------- exact arithmetic


def exact(t: Tensor) -> list[Fraction]:
    return [Fraction(v) for v in t.double().flatten().tolist()]


@functools.cache
def relu_network(seed: int, scale: float) -> tuple[nn.Sequential, Graph]:
    g, sizes = seeded(seed), (3, 4, 4, 2)
    layers: list[nn.Module] = []
    for a, b in itertools.pairwise(sizes):
        layer = nn.Linear(a, b)
        with torch.no_grad():
            layer.weight.copy_(torch.randn((b, a), generator=g) * scale)
            layer.bias.copy_(torch.randn(b, generator=g) * scale)
        layers += [layer, nn.ReLU()]
    model = nn.Sequential(*layers[:-1]).eval()
    return model, build(hf.Network.from_torch(model), torch.zeros(1, 3))


def in_fractions(model: nn.Sequential, x: list[Fraction]) -> list[Fraction]:
    for layer in model:
        if isinstance(layer, nn.Linear):
            weight, bias = [exact(row) for row in layer.weight.detach()], exact(layer.bias.detach())
            x = [
                sum((w * v for w, v in zip(row, x, strict=True)), b)
                for row, b in zip(weight, bias, strict=True)
            ]
        else:
            x = [max(v, Fraction(0)) for v in x]
    return x


def extreme_points(centre: list[Fraction], radius: Fraction, p: float) -> Iterator[list[Fraction]]:
    """Points on the surface whose coordinates are rational, for p = 2 by Pythagorean numbers."""
    size = len(centre)
    if math.isinf(p):
        steps: list[tuple[Fraction, ...]] = [
            tuple(radius * s for s in signs) for signs in itertools.product((-1, 1), repeat=size)
        ]
    else:
        steps = [
            tuple(radius * s if i == k else Fraction(0) for i in range(size))
            for k in range(size)
            for s in (-1, 1)
        ]
        if p == 2:
            for a, b, c in ((3, 4, 5), (5, 12, 13), (8, 15, 17), (20, 21, 29)):
                for i, j in itertools.permutations(range(size), 2):
                    for s, t in itertools.product((-1, 1), repeat=2):
                        step = [Fraction(0)] * size
                        step[i], step[j] = radius * Fraction(s * a, c), radius * Fraction(t * b, c)
                        steps.append(tuple(step))
    yield centre
    for step in steps:
        yield [c + d for c, d in zip(centre, step, strict=True)]


@pytest.mark.parametrize("p", [1, 2, math.inf])
@pytest.mark.parametrize("radius", [0.0, 1e-12, 1 / 3, 1.0])
@pytest.mark.parametrize("scale", [1.0, 1e4])
def test_bounds_hold_in_rational_arithmetic(p: float, radius: float, scale: float) -> None:
    for seed in range(4):
        model, graph = relu_network(seed, scale)
        x = torch.randn((1, 3), generator=seeded(seed + 100))
        region = Ball(x, torch.tensor([radius], dtype=torch.float64), p)
        rows = torch.tensor([[[1.0, -1.0], [-1.0, 1.0], [0.3, 0.7]]], dtype=torch.float64)
        bound = lower_bound(graph, propagate(graph, region), rows, torch.zeros(1, 3, dtype=torch.float64))[
            0
        ].tolist()
        least = [None] * 3
        for point in extreme_points(exact(x), Fraction(radius), p):
            out = in_fractions(model, point)
            for k, row in enumerate(rows[0]):
                score = sum(w * z for w, z in zip(exact(row), out, strict=True))
                assert Fraction(bound[k]) <= score
                least[k] = score if least[k] is None else min(least[k], score)  # type: ignore[type-var]
        if radius == 0.0:
            size = max(abs(float(z)) for z in in_fractions(model, exact(x))) + scale**3
            for value, found in zip(least, bound, strict=True):
                assert value is not None
                assert float(value - Fraction(found)) <= 1e-12 * size


@settings(max_examples=25)
@given(
    weights=st.lists(st.floats(-1e8, 1e8, width=32), min_size=6, max_size=6),
    bias=st.lists(st.floats(-1e8, 1e8, width=32), min_size=2, max_size=2),
    centre=st.lists(st.floats(-100, 100, width=32), min_size=3, max_size=3), radius=st.one_of(st.just(0.0), st.floats(0, 10)),
    p=st.sampled_from([1, 2, math.inf]),
)  # fmt: skip
def test_a_linear_network_is_bounded_exactly(
    weights: list[float], bias: list[float], centre: list[float], radius: float, p: float
) -> None:
    """At most the exact minimum, and within rounding of it, however the terms cancel."""
    layer = nn.Linear(3, 2)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor(weights).reshape(2, 3))
        layer.bias.copy_(torch.tensor(bias))
    x = torch.tensor([centre])
    graph = linear_graph(layer)
    region = Ball(x, torch.tensor([radius], dtype=torch.float64), p)
    rows = torch.tensor([[[1.0, -1.0]]], dtype=torch.float64)
    [[bound]] = lower_bound(
        graph, propagate(graph, region), rows, torch.zeros(1, 1, dtype=torch.float64)
    ).tolist()
    slope = [
        a - b for a, b in zip(exact(layer.weight.detach()[0]), exact(layer.weight.detach()[1]), strict=True)
    ]
    value = (
        sum(s * v for s, v in zip(slope, exact(x), strict=True))
        + exact(layer.bias.detach())[0]
        - exact(layer.bias.detach())[1]
    )
    sizes = [mpf(s.numerator) / s.denominator for s in slope]
    fall = {1: max(map(abs, sizes)), math.inf: mp.fsum(map(abs, sizes))}.get(
        p, mp.sqrt(mp.fsum(s * s for s in sizes))
    )
    truth = mpf(value.numerator) / value.denominator - mpf(radius) * fall
    assert mpf(bound) <= truth
    scale = sum(abs(w) * (abs(c) + radius) for w, c in zip(weights, centre * 2, strict=True)) + sum(
        map(abs, bias)
    )
    assert truth - mpf(bound) <= 1e-13 * scale + 1e-190


def linear_graph(layer: nn.Linear) -> Graph:
    graph = Graph()
    weight, bias = layer.weight.detach().double(), layer.bias.detach().double()
    entry = graph.add_entry((1, layer.in_features))
    graph.affine(
        "linear", [entry], lambda v: nn.functional.linear(v, weight, bias),
        lambda m: nn.functional.linear(m, weight.abs(), bias.abs()),
    )  # fmt: skip
    return graph


def test_a_learnt_state_that_cancels_is_paid_for() -> None:
    """The gates' offset is a sum of huge terms that all but cancel: its rounding is theirs, not its own."""
    for kind in (nn.RNN, nn.GRU, nn.LSTM):
        torch.manual_seed(1)
        layer = kind(2, 3, batch_first=True)
        with torch.no_grad():
            layer.weight_hh_l0.mul_(3e7)

        class Begun(nn.Module):
            def __init__(self, layer: nn.RNNBase) -> None:
                super().__init__()
                self.layer = layer
                self.state = nn.Parameter(torch.tensor([1.0, -1.0, 1e-7]).reshape(1, 1, 3))

            def forward(self, x: Tensor) -> Tensor:
                state = self.state.expand(1, x.shape[0], 3).contiguous()
                outputs, _ = self.layer(x, (state, state) if isinstance(self.layer, nn.LSTM) else state)
                answer: Tensor = outputs[:, -1]
                return answer

        graph = build(hf.Network.from_torch(Begun(layer).eval()), torch.zeros(1, 1, 2))
        region = Ball(torch.zeros(1, 1, 2), torch.zeros(1, dtype=torch.float64))
        boxes = propagate(graph, region)
        size = {nn.RNN: 3, nn.GRU: 6, nn.LSTM: 12}[kind]
        gates = next(n for n in graph.nodes if n.size == size and n.place > 1)
        h = exact(torch.tensor([1.0, -1.0, 1e-7]))
        for k in range(size):
            value = sum(w * v for w, v in zip(exact(layer.weight_hh_l0.detach()[k]), h, strict=True))
            value += exact(layer.bias_ih_l0.detach())[k] + exact(layer.bias_hh_l0.detach())[k]
            assert (
                Fraction(float(boxes.lower[gates].flatten()[k]))
                <= value
                <= Fraction(float(boxes.upper[gates].flatten()[k]))
            )


def test_batch_norm_that_cancels_is_paid_for() -> None:
    norm = nn.BatchNorm1d(3)
    assert norm.running_mean is not None
    assert norm.running_var is not None
    with torch.no_grad():
        norm.running_mean.copy_(torch.tensor([1e7, 3e7, -7e7]))
        norm.running_var.copy_(torch.tensor([3.0, 7.0, 11.0]))
        scale = 1 / (norm.running_var.double() + norm.eps).sqrt()
        norm.bias.copy_((norm.running_mean.double() * scale).float())
    x = torch.zeros(1, 3)
    graph = build(hf.Network.from_torch(norm.eval()), x)
    rows = torch.cat([torch.eye(3), -torch.eye(3)]).double()[None]
    bound = lower_bound(
        graph,
        propagate(graph, Ball(x, torch.zeros(1, dtype=torch.float64))),
        rows,
        torch.zeros(1, 6).double(),
    )[0].tolist()
    for k in range(3):
        mean, bias = mpf(float(norm.running_mean[k])), mpf(float(norm.bias[k].detach()))
        truth = bias - mean / mp.sqrt(mpf(float(norm.running_var[k])) + mpf(norm.eps))
        assert mpf(bound[k]) <= truth <= -mpf(bound[3 + k])


def test_a_gated_cell_at_one_point_in_sixty_digits() -> None:
    """At radius zero a bound has nothing to lose but its rounding."""
    for name, cell in (("lstm", lstm_digits), ("gru", gru_digits), ("rnn", rnn_digits)):
        for gain in (1.5, 20.0):
            model, net = network(name, gain=gain)
            x = torch.randn((1, 3, 3), generator=seeded(2))
            graph = build(net, x)
            rows = torch.cat([torch.eye(3), -torch.eye(3)]).double()[None]
            boxes = propagate(graph, Ball(x, torch.zeros(1, dtype=torch.float64)))
            bound = lower_bound(graph, boxes, rows, torch.zeros(1, 6).double())[0].tolist()
            for k, truth in enumerate(cell(model, x[0])):
                assert mpf(bound[k]) <= truth <= -mpf(bound[3 + k])
                assert -mpf(bound[3 + k]) - mpf(bound[k]) <= 1e-9 * gain**2


Digits = list[mpf]


def mix(weight: Tensor, v: Digits, bias: Tensor | None = None) -> Digits:
    start = [mpf(0)] * len(weight) if bias is None else [mpf(b) for b in bias.double().tolist()]
    return [
        s + mp.fsum(mpf(w) * c for w, c in zip(row, v, strict=True))
        for s, row in zip(start, weight.double().tolist(), strict=True)
    ]


def plus(*many: Digits) -> Digits:
    return [mp.fsum(each) for each in zip(*many, strict=True)]


def run(
    model: nn.Module,
    x: Tensor,
    step: Callable[[Digits, Digits, tuple[Digits, Digits]], tuple[Digits, Digits]],
) -> Digits:
    layer = model.layer
    assert isinstance(layer, nn.RNNBase)
    state = ([mpf(0)] * 4, [mpf(0)] * 4)
    for frame in x.double().tolist():
        outer = mix(layer.weight_ih_l0.detach(), [mpf(v) for v in frame], layer.bias_ih_l0.detach())
        inner = mix(layer.weight_hh_l0.detach(), state[0], layer.bias_hh_l0.detach())
        state = step(outer, inner, state)
    head = model.head
    assert isinstance(head, nn.Linear)
    return mix(head.weight.detach(), state[0], head.bias.detach())


def squash(v: mpf) -> mpf:
    return 1 / (1 + mp.exp(-v))


def lstm_digits(model: nn.Module, x: Tensor) -> Digits:
    def step(outer: Digits, inner: Digits, state: tuple[Digits, Digits]) -> tuple[Digits, Digits]:
        gates = plus(outer, inner)
        i, f, g, o = (gates[k * 4 : k * 4 + 4] for k in range(4))
        c = [squash(f[k]) * state[1][k] + squash(i[k]) * mp.tanh(g[k]) for k in range(4)]
        return [squash(o[k]) * mp.tanh(c[k]) for k in range(4)], c

    return run(model, x, step)


def gru_digits(model: nn.Module, x: Tensor) -> Digits:
    def step(outer: Digits, inner: Digits, state: tuple[Digits, Digits]) -> tuple[Digits, Digits]:
        r, z = ([squash(v) for v in plus(outer, inner)[k * 4 : k * 4 + 4]] for k in range(2))
        n = [mp.tanh(outer[8 + k] + r[k] * inner[8 + k]) for k in range(4)]
        return [(1 - z[k]) * n[k] + z[k] * state[0][k] for k in range(4)], state[1]

    return run(model, x, step)


def rnn_digits(model: nn.Module, x: Tensor) -> Digits:
    return run(model, x, lambda outer, inner, state: ([mp.tanh(v) for v in plus(outer, inner)], state[1]))


# ---------------------------------------------------------------- the ways through the crown agree


def bounds_of(name: str, kind: str, largest: int = 2**22) -> Tensor:
    shape = ZOO[name].shape
    graph = build(network(name)[1], torch.zeros(1, *shape))
    rows = torch.eye(graph.output.size, dtype=torch.float64).expand(ROWS, -1, -1).contiguous()
    return lower_bound(graph, propagate(graph, regions(shape, 3)[kind]), rows, rows.new_zeros(rows.shape[:2]))


AGREE = ["relu", "gates", "residual", "lstm", "gru both ways", "clips"]


@pytest.mark.parametrize("name", AGREE)
def test_chunks_change_nothing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = bounds_of(name, "frames 2")
    monkeypatch.setattr(crown, "CPU_TENSOR_VALUES", 40)
    torch.testing.assert_close(bounds_of(name, "frames 2"), whole, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", [*AGREE, "constants", "moves", "pads and means", "strided", "products"])
def test_without_matrices_the_bounds_are_the_same(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = bounds_of(name, "ball 2")
    monkeypatch.setattr(graphs, "LARGEST_MATRIX", 0)
    # A selection is recognised by its matrix; without, gates are refined one by one, with the same result.
    torch.testing.assert_close(bounds_of(name, "ball 2"), whole, rtol=1e-9, atol=1e-9)
    shape = ZOO[name].shape
    contained(build(network(name)[1], torch.zeros(1, *shape)), regions(shape, 3)["ball 2"])


@pytest.mark.parametrize("name", ["relu", "lstm", "residual"])
def test_rows_of_a_batch_do_not_touch(name: str) -> None:
    shape = ZOO[name].shape
    graph = build(network(name)[1], torch.zeros(1, *shape))
    g = seeded(7)
    x = torch.rand((5, *shape), generator=g, dtype=torch.float64)
    radius = torch.tensor([0.0, 0.05, 0.1, 0.3, 5.0], dtype=torch.float64)
    rows = torch.randn((5, 3, graph.output.size), generator=g, dtype=torch.float64)
    offset = torch.randn((5, 3), generator=g, dtype=torch.float64)
    together = lower_bound(graph, propagate(graph, Ball(x, radius, 2)), rows, offset)
    for k in range(5):
        one = slice(k, k + 1)
        alone = lower_bound(graph, propagate(graph, Ball(x[one], radius[one], 2)), rows[one], offset[one])
        torch.testing.assert_close(together[one], alone, rtol=1e-9, atol=1e-9)


def test_larger_regions_have_lower_bounds() -> None:
    graph = build(network("gru")[1], torch.zeros(1, 3, 3))
    x = torch.rand((1, 3, 3), generator=seeded(1), dtype=torch.float64).expand(8, 3, 3)
    radius = torch.tensor([0, 1e-9, 1e-3, 0.01, 0.1, 0.3, 1, 10], dtype=torch.float64)
    rows = torch.eye(3, dtype=torch.float64).expand(8, 3, 3).contiguous()
    bound = lower_bound(
        graph, propagate(graph, Ball(x, radius)), rows, torch.zeros(8, 3, dtype=torch.float64)
    )
    assert (bound[1:] <= bound[:-1] + 1e-9).all()


# ---------------------------------------------------------------- numbers that are none


def test_an_unbounded_region_proves_nothing_about_what_grows() -> None:
    x = torch.zeros(1, 4, dtype=torch.float64)
    for name in ("relu", "leaky relu, elu", "products", "constants"):
        graph = build(network(name)[1], x)
        rows = torch.eye(3, dtype=torch.float64)[None]
        for region in (
            Ball(x, torch.tensor([math.inf]).double()),
            Patch(x, torch.tensor([math.inf]).double(), torch.ones(1, 4).bool()),
        ):
            boxes = propagate(graph, region)
            bound = lower_bound(graph, boxes, rows, torch.zeros(1, 3, dtype=torch.float64))
            far = torch.tensor(
                [[1e3, -1e3, 1e6, 1e9], [-1e9, 1e7, -1e5, 2.0], [1e15, 1e15, 1e15, -1e15]],
                dtype=torch.float64,
            )
            met = values(graph, far)
            score = met[graph.output].flatten(1)
            assert (~bound.isfinite() | (bound <= score)).all()
            for node in graph.nodes:
                assert not bool(boxes.lower[node].isnan().any() or boxes.upper[node].isnan().any())
                assert ((boxes.lower[node] <= met[node]) & (met[node] <= boxes.upper[node])).all()


def test_weights_that_overflow_prove_nothing() -> None:
    layer = nn.Linear(2, 2).double()
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[1e300, 1e300], [-1e300, 1e299]], dtype=torch.float64))
    model = nn.Sequential(layer, nn.ReLU(), copy_of(layer)).eval()
    x = torch.ones(1, 2, dtype=torch.float64)
    graph = build(hf.Network.from_torch(model), x)
    rows = torch.tensor([[[1.0, -1.0], [-1.0, 1.0]]], dtype=torch.float64)
    bound = lower_bound(
        graph,
        propagate(graph, Ball(x, torch.tensor([0.5], dtype=torch.float64))),
        rows,
        torch.zeros(1, 2).double(),
    )
    assert not (bound.isfinite() & (bound > 0)).any()


def copy_of(layer: nn.Linear) -> nn.Linear:
    other = nn.Linear(2, 2).double()
    other.load_state_dict(layer.state_dict())
    return other


def test_float32_and_float64_inputs_mean_the_same_numbers() -> None:
    graph = build(network("lstm")[1], torch.zeros(1, 3, 3))
    x = torch.rand((2, 3, 3), generator=seeded(4))
    rows = torch.eye(3, dtype=torch.float64).expand(2, 3, 3).contiguous()
    none = torch.zeros(2, 3, dtype=torch.float64)
    single, double = (
        Ball(x.to(kind), torch.tensor([0.1, 0.2]).to(kind), 2, Domain.of((0.0, 1.0)))
        for kind in (torch.float32, torch.float64)
    )
    a, b = (lower_bound(graph, propagate(graph, region), rows, none) for region in (single, double))
    torch.testing.assert_close(a, b, rtol=1e-13, atol=1e-13)


class Functions(nn.Module):
    """Functions of functions of pre-activations, which products read."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 6), nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        z = self.first(x)
        found: Tensor = self.last(z.clamp(-0.5, 1.0).exp() * torch.tanh(z.relu()).flip(1))
        return found


def test_a_function_of_one_preactivation_gains_nothing_by_a_pass_of_its_own() -> None:
    """A pass from each function proves no more than its range over the bounds of its pre-activation."""
    torch.manual_seed(0)
    x = torch.zeros(1, 4)
    graph = build(hf.Network.from_torch(Functions().eval()), x)
    region = Ball(x.double(), torch.tensor([0.7], dtype=torch.float64), 2.0)
    (only,) = crown.nodes_to_refine(graph)
    assert isinstance(only, Affine)
    contained(graph, region)
    boxes = propagate(graph, region)
    functions = [node for node in graph.nodes if isinstance(node, Relaxed) and len(node.inputs) == 1]
    assert len(functions) == 4
    for node in functions:
        every = torch.arange(node.size)[None]
        signs = torch.ones(2, 1, node.size, dtype=torch.float64) * torch.tensor([1.0, -1.0])[:, None, None]
        below, above = crown._signed_bounds(graph, boxes, node, every, signs)
        assert bool((below <= boxes.lower[node].flatten(1) + 1e-12).all()), node
        assert bool((-above >= boxes.upper[node].flatten(1) - 1e-12).all()), node


def test_the_bound_nearer_to_zero_comes_first_where_rows_do_not_fit_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Portions of few rows bound no inactive neuron from below; unstable neurons have the same bounds as at once."""
    torch.manual_seed(0)
    layers = [nn.Linear(3, 12), nn.ReLU(), nn.Linear(12, 12), nn.ReLU(), nn.Linear(12, 2)]
    x = torch.zeros(2, 3)
    graph = build(hf.Network.from_torch(nn.Sequential(*layers).eval()), x)
    region = Ball(x.double(), torch.tensor([0.3, 0.9], dtype=torch.float64), 2.0)
    at_once = propagate(graph, region)
    asked = list[int]()
    bounds = crown._signed_bounds
    monkeypatch.setattr(crown, "_rows_at_once", lambda *_: 2)

    def counted(graph: Graph, boxes: crown.Boxes, node: Node, elements: Tensor, signs: Tensor) -> Tensor:
        asked.append(signs.numel())
        return bounds(graph, boxes, node, elements, signs)

    monkeypatch.setattr(crown, "_signed_bounds", counted)
    contained(graph, region)
    found = propagate(graph, region)
    assert asked
    assert max(asked) <= 2 * len(region)
    for node in crown.nodes_to_refine(graph):
        unstable = (at_once.lower[node] < 0) & (at_once.upper[node] > 0)
        assert bool(unstable.any())
        assert torch.equal(unstable, (found.lower[node] < 0) & (found.upper[node] > 0))
        for a, b in ((found.lower, at_once.lower), (found.upper, at_once.upper)):
            torch.testing.assert_close(a[node][unstable], b[node][unstable], rtol=1e-9, atol=1e-9)
