"""Layers that are compositions: the same by every route, as tight as what they are made of allows, and silent where they have no values."""

import math
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from bounds_regions import hostile, regions
from bounds_zoo import GROUPS, ZOO, Encoder, Specimen, Wrapped, network, values
from torch import Tensor, nn
from torch.nn import functional as F

import holdfast as hf
import truth
from holdfast.bounding.crown import lower_bound, propagate
from holdfast.bounding.graph import graph as graphs
from holdfast.bounding.graph.graph import Graph, Relaxed, build
from holdfast.bounding.relax import Clip, Exp, Power, Silu
from holdfast.random_streams import RandomStreams
from holdfast.region import Ball, Region


def bounds(graph: Graph, region: Region) -> Tensor:
    """(batch, 2 outputs): below the outputs, below their negatives."""
    outputs = graph.output.size
    rows = (
        torch.cat([torch.eye(outputs), -torch.eye(outputs)]).double().expand(len(region), -1, -1).contiguous()
    )
    return lower_bound(graph, propagate(graph, region), rows, rows.new_zeros(rows.shape[:2]))


def ball(shape: tuple[int, ...], radius: float, p: float = 2, seed: int = 0) -> Ball:
    x = torch.rand((2, *shape), generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * 2 - 1
    return Ball(x, torch.full((2,), radius, dtype=torch.float64), p)


def graph_of(*functions: Callable[[Tensor], Tensor]) -> Graph:
    torch.manual_seed(0)
    return build(hf.Network.from_torch(Wrapped(*functions).eval()), torch.zeros(1, 4))


# ---------------------------------------------------------------- three routes


ACTIVATIONS = [
    nn.Softplus(), nn.GELU(), nn.GELU("tanh"), nn.SiLU(), nn.Mish(), nn.SELU(), nn.CELU(1.3), nn.Hardswish(), nn.Hardsigmoid(), nn.PReLU(),
    nn.ReLU6(), nn.Softsign(), nn.LayerNorm(6), nn.GroupNorm(2, 6), nn.Softmax(-1),
]  # fmt: skip


class Side(nn.Module):
    """Every activation beside the others, so that one file tests them all."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.kinds, self.last = (
            nn.Linear(4, 6),
            nn.ModuleList(ACTIVATIONS),
            nn.Linear(6 * len(ACTIVATIONS), 3),
        )

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        answer: Tensor = self.last(torch.cat([kind(h) for kind in self.kinds], 1))
        return answer


ROUTES = {
    "activations": Specimen(Side, (4,)),
    "encoder": Specimen(lambda: Encoder(norm_first=True), (3, 3)),
    "instance norm": Specimen(
        lambda: nn.Sequential(
            nn.Conv1d(2, 4, 2), nn.InstanceNorm1d(4, affine=True), nn.SiLU(), nn.Flatten(), nn.Linear(12, 3)
        ),
        (2, 4),
    ),
}


@pytest.mark.parametrize("name", list(ROUTES))
def test_three_routes_give_one_bound(name: str, tmp_path: Path) -> None:
    pytest.importorskip("onnxscript")
    torch.manual_seed(4)
    model, shape = ROUTES[name].make().eval(), ROUTES[name].shape
    example = torch.rand((2, *shape))
    networks = truth.three_routes(model, example, tmp_path)
    region = ball(shape, 0.05)
    first, *others = (bounds(build(net, example), region) for net in networks)
    assert first.isfinite().all()
    for other in others:
        torch.testing.assert_close(other, first, rtol=1e-5, atol=1e-5)  # ONNX keeps some constants in float32


def test_a_program_in_core_operators_is_bounded_too(tmp_path: Path) -> None:
    """torch can take a program apart before it is saved; what was one function may then be several, with looser bounds."""
    torch.manual_seed(4)
    model, example = Side().eval(), torch.rand(2, 4)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.export.export(
            model, (example,), dynamic_shapes=({0: torch.export.Dim.DYNAMIC},)
        ).run_decompositions()
        torch.export.save(program, tmp_path / "core.pt2")
    whole, apart = (
        build(n, example)
        for n in (hf.Network.from_torch(model), hf.Network.from_export(tmp_path / "core.pt2", trust=True))
    )
    region = ball((4,), 0.05)
    found = bounds(apart, region)
    out = values(whole, region.sample(500, RandomStreams.of(range(len(region)), 0)).flatten(0, 1))[
        whole.output
    ].reshape(500, 2, -1)
    assert (found <= torch.cat([out, -out], -1)).all()
    torch.testing.assert_close(found, bounds(whole, region), rtol=0, atol=0.01)


# ---------------------------------------------------------------- the ways through the engine


@pytest.mark.parametrize(
    "name",
    [
        "softmax",
        "norms",
        "matrix products",
        "choices",
        "maxima",
        "hard",
        "largest",
        "encoder",
        "one minus a gate",
        "masks",
        "stairs",
    ],
)
def test_without_matrices_no_point_escapes_either(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every affine map by its function, as in networks too large for matrices."""
    _, net = network(name)
    region = regions(ZOO[name].shape, 3)["ball 2"]
    whole = bounds(build(net, torch.zeros(1, *ZOO[name].shape)), region)
    monkeypatch.setattr(graphs, "LARGEST_MATRIX", 0)
    graph = build(net, torch.zeros(1, *ZOO[name].shape))
    found = bounds(graph, region)
    if name != "one minus a gate":  # which is recognised by its matrix
        torch.testing.assert_close(found, whole, rtol=1e-6, atol=1e-6)
    rows = torch.eye(graph.output.size, dtype=torch.float64).expand(2, -1, -1)
    points = hostile(graph, region, rows, 0)
    out = values(graph, points.flatten(0, 1))[graph.output].reshape(len(points), 2, -1)
    assert (found <= torch.cat([out, -out], -1)).all()


# ---------------------------------------------------------------- recognised, and as tight as the whole


def relaxations(graph: Graph) -> list[type]:
    return [type(node.relaxation) for node in graph.nodes if isinstance(node, Relaxed)]


def test_what_is_written_out_is_bounded_as_one_function() -> None:
    region = ball((4,), 0.3)
    for written, whole in (
        (lambda h: h * torch.sigmoid(h), F.silu),
        (lambda h: h * h, torch.square),
        (lambda h: h.square().mean(1, keepdim=True) + 0 * h, lambda h: (h**2).mean(1, keepdim=True) + 0 * h),
        (lambda h: torch.log(torch.exp(h[:, :3]) * 1.0), lambda h: torch.log(h[:, :3].exp())),
        (
            lambda h: (1 - torch.sigmoid(h)) * torch.tanh(h + 1),
            lambda h: torch.sigmoid(-h) * torch.tanh(h + 1),
        ),
        (lambda h: (1.0 - torch.sigmoid(h)) * (h - 2.0), lambda h: (h - 2.0) * torch.sigmoid(-h)),
        (lambda h: h - h.logsumexp(1, keepdim=True), lambda h: h.log_softmax(1)),
        (
            lambda h: torch.einsum("bij,bjk->bik", h.reshape(-1, 2, 3), h.reshape(-1, 3, 2)),
            lambda h: h.reshape(-1, 2, 3) @ h.reshape(-1, 3, 2),
        ),
    ):
        one, other = (bounds(graph_of(lambda h, f=f: f(h).flatten(1)), region) for f in (written, whole))  # type: ignore[misc]
        torch.testing.assert_close(one, other, rtol=1e-8, atol=1e-8)
    assert Silu in relaxations(graph_of(lambda h: torch.sigmoid(h) * h))
    assert Power in relaxations(graph_of(lambda h: h * h))


class Looped(nn.Module):
    """A GRU by hand, with the weights of torch's and in the form in which it is bounded."""

    def __init__(self, layer: nn.GRU) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        h = x.new_zeros(x.shape[0], self.layer.hidden_size)
        for t in range(x.shape[1]):
            own = F.linear(x[:, t], self.layer.weight_ih_l0, self.layer.bias_ih_l0).chunk(3, 1)
            recalled = F.linear(h, self.layer.weight_hh_l0, self.layer.bias_hh_l0).chunk(3, 1)
            r, z = torch.sigmoid(own[0] + recalled[0]), torch.sigmoid(own[1] + recalled[1])
            n = torch.tanh(own[2] + r * recalled[2])
            h = (1 - z) * n if t == 0 else n + z * (h - n)
        return h


def test_a_gru_by_hand_is_bounded_like_torchs() -> None:
    torch.manual_seed(0)
    layer = nn.GRU(3, 4, batch_first=True)
    whole, looped = (
        build(hf.Network.from_torch(m.eval(), **o), torch.zeros(1, 3, 3))
        for m, o in ((layer, {"pool": "last"}), (Looped(layer), {}))
    )
    for radius in (0.0, 0.1, 0.5):
        region = ball((3, 3), radius)
        torch.testing.assert_close(bounds(looped, region), bounds(whole, region), rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("radius", [0.0, 0.1, 10.0, 1e4])
def test_softmax_and_norms_stay_in_their_range(radius: float) -> None:
    graph = graph_of(
        lambda h: h.softmax(1),
        lambda h: F.layer_norm(h, (6,)),
        lambda h: h.reshape(-1, 2, 3).softmax(1).flatten(1),
    )
    boxes = propagate(graph, ball((4,), radius, math.inf))
    seen = 0
    for node in graph.nodes:
        if isinstance(node, Relaxed) and isinstance(node.relaxation, Exp):
            assert ((boxes.lower[node] >= -1e-6) & (boxes.upper[node] <= 1 + 1e-6)).all()
            seen += 1
        if (
            isinstance(node, Relaxed)
            and isinstance(node.relaxation, Clip)
            and math.isfinite(node.relaxation.low)
        ):
            assert ((boxes.lower[node] >= -2.237) & (boxes.upper[node] <= 2.237)).all()  # sqrt(6 - 1)
            seen += 1
    assert seen == 3


def test_the_probabilities_of_a_small_region_are_tight() -> None:
    """At a hundredth, the bounds of a softmax are within a hundredth of what samples show."""
    graph = graph_of(lambda h: (4 * h).softmax(1))
    region = ball((4,), 0.01)
    out = values(graph, region.sample(500, RandomStreams.of(range(len(region)), 0)).flatten(0, 1))[
        graph.output
    ].reshape(500, 2, -1)
    lost = torch.cat([out, -out], -1).amin(0) - bounds(graph, region)
    assert (lost >= 0).all()
    assert float(lost.max()) <= 0.01 * float((out.amax(0) - out.amin(0)).max()) + 1e-3


# ---------------------------------------------------------------- no values, no proof


@pytest.mark.parametrize(
    "function",
    [
        torch.reciprocal, lambda h: 1 / h, lambda h: h / h.flip(1), torch.log, torch.sqrt, torch.rsqrt, lambda h: h**-0.5, lambda h: h**-1,
        lambda h: h.abs().log(), lambda h: (h - 1e9).sqrt(), lambda h: torch.exp(1e6 * h), lambda h: h / (h * 0),
        lambda h: h**0.75, lambda h: h.log().relu(), lambda h: h.log().exp(), lambda h: (1 / h).square(), lambda h: h.log().sin(),
    ],
)  # fmt: skip
def test_where_a_function_has_no_values_nothing_is_proved(function: Callable[[Tensor], Tensor]) -> None:
    graph = graph_of(function)
    found = bounds(graph, ball((4,), 30.0))
    assert not (found.isfinite() & (found > -1e30)).any()
    boxes = propagate(graph, ball((4,), 30.0))
    for node in graph.nodes:
        assert not bool(boxes.lower[node].isnan().any() or boxes.upper[node].isnan().any())


def test_a_pole_far_enough_away_does_no_harm() -> None:
    torch.manual_seed(0)
    model = Wrapped(lambda h: 1 / (h + 5.0)).double().eval()
    net = hf.Network.from_torch(model)
    x = torch.rand(4, 4, dtype=torch.float64)
    found = hf.radius(net, x, net(x).argmax(1), norm=math.inf, methods=[hf.certify.Certify(rounds=4)])
    with torch.no_grad():
        reach = ((model.first(x) + 5).abs().amin(1) / model.first.weight.abs().sum(1).max()).tolist()
    for bracket, far in zip(found, reach, strict=True):
        assert bracket.lower.value > 0
        assert bracket.lower.value < 40 * far


# ---------------------------------------------------------------- still refused, by name


REFUSED: dict[str, tuple[Callable[[Tensor], Tensor], str]] = {
    "falling softplus": (lambda h: F.softplus(h, -1.0), "softplus with beta -1"),
    "falling elu": (lambda h: F.elu(h, -1.0), "ELU is bounded for positive alpha"),
    "power of two": (lambda h: h.abs() ** h, "exponent is not a constant"),
    "attention that sees nothing": (
        lambda h: F.scaled_dot_product_attention(*[h.reshape(-1, 3, 2)] * 3, attn_mask=torch.eye(3).bool() & False).flatten(1),
        "in some row everything is masked",
    ),
    "softmax of nothing": (lambda h: h.masked_fill(torch.ones(6).bool(), -1e9).softmax(1), "in some row everything is masked"),
    "minus infinity let go": (lambda h: h.masked_fill(torch.arange(6) > 3, -torch.inf).tanh(), "tanh: minus infinity in some places"),
    "masked by the input": (lambda h: h.masked_fill(h > 0, -torch.inf).softmax(1), "mask that depends on the input"),
    "attention masked by the input": (
        lambda h: F.scaled_dot_product_attention(*[h.reshape(-1, 3, 2)] * 3, attn_mask=h.reshape(-1, 3, 2)[:, :, :1] > 0).flatten(1),
        "mask that depends on the input",
    ),
    "where the largest is": (lambda h: h.max(1, keepdim=True)[1].to(h.dtype), "which element is the largest"),
    "largest of the batch": (lambda h: h / h.max(), "goes over the inputs of a batch"),
    "powers of a negative number": (lambda h: (-2.0) ** h, "only those of a positive number"),
    "norm of order three": (lambda h: h.norm(3, 1, keepdim=True), "a norm of order 3"),
    "and of numbers": (lambda h: torch.logical_and(h, h).to(h.dtype), "truth values only"),
    "einsum of three": (lambda h: torch.einsum("bi,bi,bi->bi", h, h + 1, h + 2), "einsum"),
    "einsum of a diagonal": (lambda h: torch.einsum("bii,bi->bi", h.reshape(-1, 1, 6).expand(-1, 6, 6), h), "einsum"),
    "rms norm without eps": (lambda h: F.rms_norm(h, (6,)), "RMS norm without an eps"),
    "vectors": (lambda h: (h.flatten() @ h.flatten()).reshape(1, 1).expand(h.shape[0], 1), "product with a vector|no bound"),
    "or": (lambda h: ((h > 0) + (h < 1)).to(h.dtype), "means 'or'"),
    "or of parts": (lambda h: ((h > 0)[:, :3] + (h.reshape(-1, 2, 3) < 1)[:, 1]).to(h.dtype), "means 'or'"),
    "or of ands": (lambda h: ((h > 0) * (h < 2) + (h < -1)).to(h.dtype), "means 'or'"),
    "chosen by the input": (lambda h: h.gather(1, (h > 0).to(torch.int64)), "choice of elements"),
    "hard shrink": (F.hardshrink, "hardshrink"),
}  # fmt: skip


@pytest.mark.parametrize("name", list(REFUSED))
def test_what_has_no_bound_is_refused_by_name(name: str) -> None:
    function, message = REFUSED[name]
    with pytest.raises(hf.errors.UnsupportedLayer, match=message):
        graph_of(function)


def test_no_group_of_the_zoo_is_forgotten() -> None:
    """The groups that these layers came with are part of the zoo, where every region and the graph's own values are tried on them."""
    for name in (
        "softplus",
        "gated by itself",
        "elu kin",
        "hard",
        "powers",
        "exp and log",
        "divisions",
        "maxima",
        "choices",
        "softmax",
        "norms",
    ):
        assert name in GROUPS
        assert name in ZOO
