"""The graph computes what the network computes, and refuses what it cannot."""

import copy
from collections.abc import Callable

import pytest
import torch
from bounds_zoo import HERE, ZOO, Wrapped, network, values
from torch import Tensor, nn
from torch.nn import functional as F

import holdfast as hf
from holdfast.bounding.graph.equivalence_check import value
from holdfast.bounding.graph.graph import build, unsupported_nodes


def agree(model: nn.Module, net: hf.Network, shape: tuple[int, ...]) -> None:
    x = torch.randn((5, *shape), generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    with torch.no_grad():
        wanted = copy.deepcopy(model).double()(x.clone()).flatten(1)
    graph = build(net, x)
    found = values(graph, x)[graph.output].flatten(1)
    assert found.shape == wanted.shape
    assert float((found - wanted).abs().max()) <= 1e-10 * max(1.0, float(wanted.abs().max()))
    for node in graph.nodes:
        assert all(source.place < node.place for source in node.inputs)


@pytest.mark.parametrize("name", HERE)
def test_the_graph_equals_the_module(name: str) -> None:
    model, net = network(name)
    agree(model, net, ZOO[name].shape)
    assert unsupported_nodes(net, torch.zeros(1, *ZOO[name].shape)) == {}


def test_constants_made_inside_join_the_arithmetic() -> None:
    """Without a type of their own they are float32 in the traced program."""
    model = Wrapped(lambda h: h @ torch.eye(6) + torch.arange(6) * 0.25).eval()
    net, x = hf.Network.from_torch(model), torch.randn(3, 4)
    graph = build(net, x)
    torch.testing.assert_close(
        values(graph, x)[graph.output].flatten(1), net(x).double(), rtol=1e-5, atol=1e-5
    )


# ---------------------------------------------------------------- what must be refused


def written_view(h: Tensor) -> Tensor:
    F.relu(h.view(-1, 2, 3), inplace=True)
    return h * 1.0


def read_view(h: Tensor) -> Tensor:
    view = h.view(-1, 2, 3)
    F.relu(h, inplace=True)
    return view.flatten(1)


def written_part(h: Tensor) -> Tensor:
    h.chunk(2, 1)[0].tanh_()
    return h + 0.0


def written_after_dropout(h: Tensor) -> Tensor:
    F.dropout(h, 0.5, training=False).relu_()
    return h + 0.0


REFUSED: dict[str, tuple[Callable[[Tensor], Tensor], str]] = {
    "a window of padding only": (lambda h: F.max_pool1d(h[:, :1].unsqueeze(1), 2, 1, 1, 2).flatten(1).exp() + h, "only padding"),
    "padding with infinity": (lambda h: F.max_pool1d(F.pad(h.unsqueeze(1), (1, 0), value=-torch.inf), 2).flatten(1), "padding with -inf"),
    "short integers": (lambda h: (3 * h).to(torch.int8).to(h.dtype), "torch.int8"),
    "integers by example": (lambda h: (3 * h).to(torch.zeros(1, dtype=torch.int16)).to(h.dtype), "torch.int16"),
    "short integers from truth values": (lambda h: (-(h > 9).to(torch.uint8)).to(h.dtype), "torch.uint8"),
    "multiples of integers from truth values": (
        lambda h: ((h > 9).int() * 2**30 * 4).to(h.dtype), "of integers that depend"),
    "products of integers": (lambda h: (h.long() * h.long()).to(h.dtype), "of integers that depend"),
    "equal numbers": (lambda h: (h == 0.5).to(h.dtype), "equality is bounded for integers"),
    "class of many": (lambda h: h.repeat(1, 20).argmax(1, keepdim=True).to(h.dtype), "2 to 64 values"),
    "truth values": (lambda h: h.bool().to(h.dtype), "truth values|there is no bound"),
    "sorted": (lambda h: h.sort(1)[0], "sort"),
    "half": (lambda h: h.half().float(), "rounds to torch.float16"),
    "bfloat16": (lambda h: h.to(torch.bfloat16).to(torch.float32), "rounds to torch.bfloat16"),
    "noise": (lambda h: h + 1e-9 * torch.randn(6), "random"),
    "noise like": (lambda h: h + 1e-9 * torch.randn_like(h), "randn_like"),
    "leaky relu above one": (lambda h: F.leaky_relu(h, 1.5), "slope 1.5"),
    "leaky relu below zero": (lambda h: F.leaky_relu(h, -0.1), "slope -0.1"),
    "training dropout": (lambda h: F.dropout(h, 0.5, training=True), "dropout in training mode"),
}  # fmt: skip


@pytest.mark.parametrize("name", list(REFUSED))
def test_what_has_no_bound_is_refused_by_name(name: str) -> None:
    function, message = REFUSED[name]
    model = Wrapped(function).eval()
    net = hf.Network.from_torch(model)
    x = torch.randn(2, 4)
    with pytest.raises(hf.errors.UnsupportedLayer, match=message) as caught:
        build(net, x)
    region = hf.Ball(x, torch.zeros(2, dtype=torch.float64))
    problem = hf.Problem(
        net, region, hf.Robustness(torch.tensor([0, 1])), "radius", (hf.result.Key(0), hf.result.Key(1))
    )
    assert hf.certify.Certify().obstacle(problem) == str(caught.value)
    assert next(iter(told(net, x))) == str(caught.value)


def told(net: hf.Network, x: Tensor) -> list[str]:
    """What `holdfast inspect` says of the layers that stop a proof."""
    try:
        return list(unsupported_nodes(net, x).values())
    except hf.errors.UnsupportedLayer as error:
        return [str(error)]


def test_the_table_of_layers_says_what_a_proof_says() -> None:
    """Of an operator by what it is given: constants may go into any, and some forms of one that has a bound have none."""

    def looked_up(h: Tensor) -> Tensor:
        return h + F.embedding(torch.arange(6), torch.eye(6)[:, 0:1]).squeeze(-1)

    def triple(h: Tensor) -> Tensor:
        return torch.einsum("bi,bi,bi->bi", h, 2 * h, h + 1).asin() + torch.einsum(
            "bi,ij->bj", h, torch.eye(6)
        )

    x = torch.randn(2, 4)
    assert told(hf.Network.from_torch(Wrapped(looked_up).eval()), x) == []
    found = unsupported_nodes(hf.Network.from_torch(Wrapped(triple).eval()), x)
    assert list(found) == ["einsum", "asin"]
    assert "einsum 'bi,bi,bi->bi' of several operands" in found["einsum"]


def hidden_view(h: Tensor) -> Tensor:
    turned = torch.einsum("ab->ba", h)
    F.relu(h, inplace=True)
    return turned.t() + 1.0


@pytest.mark.parametrize(
    "function", [written_view, read_view, written_part, written_after_dropout, hidden_view]
)
def test_what_is_overwritten_is_followed_through_every_view(function: Callable[[Tensor], Tensor]) -> None:
    model = Wrapped(function).eval()
    net = hf.Network.from_torch(model)
    x = torch.randn(20, 4, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        wanted = model(x.clone())
    assert torch.allclose(value(build(net, x), x).float(), wanted, atol=1e-6)
    rows = hf.bounds(net, hf.Ball(x, 0.1))
    near = x + 0.1 * torch.randn(20, 4, generator=torch.Generator().manual_seed(1)).clamp(-1, 1)
    with torch.no_grad():
        said = model(near.clone()).double()
    assert bool(((rows.lower - 1e-6 <= said) & (said <= rows.upper + 1e-6)).all())


def test_the_layer_is_named_as_the_user_named_it() -> None:
    class Deep(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.ReLU(), nn.Hardshrink()))

        def forward(self, x: Tensor) -> Tensor:
            answer: Tensor = self.body(x)
            return answer

    with pytest.raises(
        hf.errors.UnsupportedLayer, match=r"body\.1\.1: there is no bound for aten\.hardshrink"
    ):
        build(hf.Network.from_torch(Deep().eval()), torch.zeros(1, 4))


@pytest.mark.parametrize(
    ("layers", "both", "bias"), [(1, False, True), (2, True, True), (2, False, False), (4, False, True)]
)
def test_projections_are_refused_at_any_depth(layers: int, both: bool, bias: bool) -> None:
    layer = nn.LSTM(3, 4, layers, proj_size=2, bidirectional=both, bias=bias, batch_first=True)
    with pytest.raises(hf.errors.UnsupportedLayer, match="projections"):
        build(hf.Network.from_torch(layer.eval(), pool="last"), torch.zeros(1, 3, 3))


def test_constants_may_be_written_in_place() -> None:
    def masked(h: Tensor) -> Tensor:
        mask = torch.ones(6)
        mask[2:4] = -0.5
        return h * mask

    model = Wrapped(masked).eval()
    agree(model, hf.Network.from_torch(model), (4,))


def test_an_output_that_forgets_the_input_is_refused() -> None:
    class Deaf(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.ones(x.shape[0], 2)

    with pytest.raises(hf.errors.UnsupportedLayer):
        build(hf.Network.from_torch(Deaf().eval()), torch.zeros(1, 4))
