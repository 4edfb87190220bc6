"""Walks that keep coefficients in windows must find what dense rows find, and both must hold."""

import functools
from collections.abc import Callable

import pytest
import torch
from bounds_zoo import values
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import holdfast as hf
from holdfast.bounding import crown, crown_patches
from holdfast.bounding.graph import graph as graphs
from holdfast.bounding.graph.graph import Affine, Graph, Node, Relaxed, build
from holdfast.bounding.graph.kernel import convolution
from holdfast.bounding.graph.node import is_image
from holdfast.bounding.node_bounds import Boxes
from holdfast.random_streams import RandomStreams
from holdfast.region import Region
from sizes import combinations

CHANNELS, HIGH, WIDE = 2, 7, 9
BATCH = 3


class Block(nn.Module):
    """Two ways to one sum, each with a stride of its own on its way."""

    def __init__(self, read: int, made: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Sequential(
            nn.Conv2d(read, made, 3, 1, 1), nn.ReLU(), nn.Conv2d(made, made, 3, stride, 1)
        )
        self.short = nn.Conv2d(read, made, 1, stride) if stride > 1 or read != made else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.first(x) + self.short(x))


class Turned(nn.Module):
    """Moves places about, so that windows end there."""

    def forward(self, x: Tensor) -> Tensor:
        return x.transpose(-1, -2).roll(1, -1)


class Gated(nn.Module):
    """A function of two images."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Conv2d(CHANNELS, 3, 3, padding=1), nn.Conv2d(CHANNELS, 3, 5, padding=2)

    def forward(self, x: Tensor) -> Tensor:
        return self.left(x) * torch.tanh(self.right(x))


def normed(channels: int) -> nn.Module:
    norm = nn.BatchNorm2d(channels)
    for tensor in (norm.weight, norm.bias, norm.running_mean, norm.running_var):
        assert tensor is not None
        nn.init.uniform_(tensor, 0.5, 1.5)
    return norm


def with_head(*layers: nn.Module) -> nn.Module:
    body = nn.Sequential(*layers, nn.Flatten())
    with torch.no_grad():
        size = body.eval()(torch.zeros(1, CHANNELS, HIGH, WIDE)).shape[1]
    return nn.Sequential(*body, nn.Linear(size, 4), nn.ReLU(), nn.Linear(4, 3))


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "chain": lambda: with_head(nn.Conv2d(2, 3, 3), nn.ReLU(), nn.Conv2d(3, 4, 2), nn.ReLU(), nn.Conv2d(4, 2, 3), nn.ReLU()),
    "padded": lambda: with_head(*(f for _ in range(3) for f in (nn.Conv2d(2, 2, 3, padding=1), nn.LeakyReLU(0.2)))),
    "strided": lambda: with_head(
        nn.Conv2d(2, 3, (3, 2), (2, 3), (1, 0)), nn.ReLU(), nn.Conv2d(3, 3, 3, (1, 2), 2), nn.ReLU(), nn.Conv2d(3, 2, 2), nn.ReLU(),
    ),
    "dilated": lambda: with_head(nn.Conv2d(2, 3, 3, 1, (2, 1), (2, 1)), nn.ReLU(), nn.Conv2d(3, 2, 2, 2, 3, 3), nn.ReLU()),
    "grouped": lambda: with_head(
        nn.Conv2d(2, 4, 3, 1, 1, groups=2), nn.ReLU(), nn.Conv2d(4, 4, 3, 2, 1, groups=4), nn.ReLU(), nn.Conv2d(4, 6, 1, groups=2),
        nn.ReLU(),
    ),
    "pooled": lambda: with_head(
        nn.Conv2d(2, 3, 3, 1, 1), normed(3), nn.ReLU(), nn.AvgPool2d(3, 2, 1), nn.Conv2d(3, 3, 3, 1, 1), nn.Tanh(), nn.AvgPool2d(2),
        nn.Sigmoid(),
    ),
    "residual": lambda: with_head(nn.Conv2d(2, 3, 3, 1, 1), nn.ReLU(), Block(3, 3, 1), Block(3, 4, 2), Block(4, 4, 1)),
    "turned": lambda: with_head(
        nn.Conv2d(2, 3, 3, 1, 1), nn.ReLU(), Turned(), nn.Conv2d(3, 3, 3, 1, 1), nn.ReLU(), nn.Conv2d(3, 3, 3, 2, 1), nn.ReLU(),
    ),
    "gated": lambda: with_head(Gated(), nn.Conv2d(3, 2, 3, 2, 1), nn.ReLU(), nn.Conv2d(2, 2, 2), nn.ReLU()),
}  # fmt: skip


@pytest.fixture(autouse=True)
def _whatever_they_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows wherever they can go, and no matrices."""
    monkeypatch.setattr(crown_patches, "MIN_DENSE_NUMBERS", 0)
    monkeypatch.setattr(crown_patches, "MIN_SAVING_FACTOR", 0)
    monkeypatch.setattr(graphs, "LARGEST_MATRIX", 0)


@functools.cache
def network(name: str) -> tuple[hf.Network, Graph, Tensor]:
    torch.manual_seed(0)
    net = hf.Network.from_torch(NETWORKS[name]().double().eval())
    x = torch.rand(BATCH, CHANNELS, HIGH, WIDE, dtype=torch.float64)
    return net, build(net, x), x


def regions(x: Tensor) -> dict[str, Region]:
    """Where everything moves, where some pixels do, where one input stays still; over boxes and over balls."""
    some = torch.tensor([0.05, 0.0, 0.1], dtype=torch.float64)
    return {
        "box": hf.region.Ball(x, some + 0.02),
        "still": hf.region.Ball(x, some),
        "ball": hf.region.Ball(x, 4 * some + 0.1, 2.0),
        "patch": hf.region.Patch(x, 5 * some, hf.region.Patch.square(x, top=5, left=2, size=3).mask),
    }


def dense(graph: Graph, region: Region, executed: torch.dtype | None = None) -> Boxes:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(crown, "route", lambda *_: None)
        return crown.propagate(graph, region, executed)


def every_element(self: crown.IntermediateRefinement, node: Node) -> Tensor:
    """Both ends of all that moves, of use or not."""
    moving = self.boxes.moving[node]
    return (self.boxes.upper[node] > self.boxes.lower[node])[moving].flatten(1)


@pytest.mark.parametrize(("name", "kind"), combinations(list(NETWORKS), ["box", "still", "ball", "patch"]))
def test_windows_find_what_dense_rows_find(name: str, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    net, graph, x = network(name)
    region = regions(x)[kind]
    for name_of_choice in ("_elements_to_refine", "_elements_that_matter"):
        monkeypatch.setattr(crown.IntermediateRefinement, name_of_choice, every_element)
    found, expected = crown.propagate(graph, region), dense(graph, region)
    for node in graph.nodes:
        for a, b in ((found.lower[node], expected.lower[node]), (found.upper[node], expected.upper[node])):
            torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)
    rows, offset = hf.Robustness(net(x).argmax(1)).rows(3)
    torch.testing.assert_close(
        crown.lower_bound(graph, found, rows, offset), crown.lower_bound(graph, expected, rows, offset)
    )


@pytest.mark.parametrize("executed", [None, torch.float32])
@pytest.mark.parametrize("kind", ["box", "ball"])
@pytest.mark.parametrize("name", NETWORKS)
def test_every_value_lies_within(name: str, kind: str, executed: torch.dtype | None) -> None:
    """Random points, corners, and the points that each of some elements makes small and large."""
    _, graph, x = network(name)
    region = regions(x)[kind]
    boxes = crown.propagate(graph, region, executed)
    points = [*region.sample(30, RandomStreams.of(range(len(region)), 1))]
    at = region.centre.clone().requires_grad_()
    found = values(graph, at)
    for node in [node for node in graph.nodes if is_image(node) and isinstance(node, Affine)][-3:]:
        for element in range(0, node.size, max(1, node.size // 5)):
            (slope,) = torch.autograd.grad(found[node].flatten(1)[:, element].sum(), at, retain_graph=True)
            points += [region.vertex(slope), region.vertex(-slope)]
    for node, value in values(graph, torch.cat(points)).items():
        value = value.reshape(len(points), BATCH, *node.shape)
        assert bool((boxes.lower[node] <= value + 1e-12).all()), node.name
        assert bool((value - 1e-12 <= boxes.upper[node]).all()), node.name


PADDED_MAPS: dict[str, Callable[[int], list[nn.Module]]] = {
    "conv after conv": lambda n: [nn.Conv2d(n, 3, 3, 1, 1), nn.Conv2d(3, 3, 3, 1, 1)],
    "pool after conv": lambda n: [nn.Conv2d(n, 3, 3, 1, 1), nn.AvgPool2d(3, 1, 1)],
    "conv after pool": lambda n: [nn.AvgPool2d(3, 1, 1), nn.Conv2d(n, 3, 3, 1, 1)],
}


@pytest.mark.parametrize("maps", PADDED_MAPS)
def test_coefficients_on_padding_are_not_passed_on(maps: str) -> None:
    """Two padded maps in a row: the bounds are the values at the worst corners, and none is above its value."""
    torch.manual_seed(0)
    net = hf.Network.from_torch(with_head(*PADDED_MAPS[maps](CHANNELS), nn.ReLU()).double().eval())
    x = torch.rand(1, CHANNELS, HIGH, WIDE, dtype=torch.float64)
    graph, region = build(net, x), hf.region.Ball(x, 0.3)
    [read] = [n.inputs[0] for n in graph.nodes if isinstance(n, Relaxed) and is_image(n.inputs[0])]
    boxes = crown.propagate(graph, region)
    way = crown_patches.route(graph, boxes, read)
    assert way is not None
    assert not way.rest
    at = region.centre.clone().requires_grad_()
    value = values(graph, at)[read].flatten()
    compared = 0
    for element in range(0, read.size, 5):
        (slope,) = torch.autograd.grad(value[element], at, retain_graph=True)
        for sign, bounds in ((1, boxes.lower), (-1, boxes.upper)):
            worst = values(graph, region.vertex(sign * slope))[read].flatten()[element].item()
            bound = bounds[read].flatten()[element].item()
            assert sign * bound <= sign * worst + 1e-12
            compared += abs(bound - worst) <= 1e-9
    assert compared


@pytest.mark.parametrize("name", ["chain", "padded", "grouped", "residual"])
def test_signs_that_are_decided_need_no_more(name: str) -> None:
    """Where one end decides a sign the other one is not looked for, and the planes are the same."""
    net, graph, x = network(name)
    region = hf.region.Ball(x, 0.05)
    rows, offset = hf.Robustness(net(x).argmax(1)).rows(3)
    found, expected = (
        crown.lower_bound(graph, boxes, rows, offset)
        for boxes in (crown.propagate(graph, region), dense(graph, region))
    )
    assert bool((expected > 0).any())
    assert bool((found >= expected - 0.002 * expected.abs()).all())


@pytest.mark.parametrize("name", NETWORKS)
def test_a_kernel_goes_back_like_its_map(name: str) -> None:
    _, graph, _ = network(name)
    for node in graph.nodes:
        if not isinstance(node, Affine) or node.kernel is None:
            continue
        (source,) = node.inputs
        rows = torch.randn(4, node.size, dtype=torch.float64)
        at = torch.zeros(4, *source.shape, dtype=torch.float64)
        _, pulled = torch.func.vjp(torch.func.vmap(node._function), at)  # type: ignore[attr-defined]
        (expected,) = pulled(rows.reshape(4, *node.shape))
        (found,), (single,) = node.back(rows), node.back(rows.float())
        torch.testing.assert_close(found, expected.flatten(1), rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(single.double(), found, rtol=1e-4, atol=1e-4)
        assert single.dtype == torch.float32


@pytest.mark.parametrize(
    "layer",
    [nn.Conv2d(4, 6, 3, 1, 1), nn.Conv2d(4, 6, 3, 2, 1), nn.Conv2d(4, 4, 3, 1, 2, 2, 4), nn.AvgPool2d(2)],
)
def test_maps_with_sparse_matrices_go_back_by_their_kernels(
    monkeypatch: pytest.MonkeyPatch, layer: nn.Module
) -> None:
    """Stored matrices of convolutions are mostly zero: the kernel does the same with fewer products."""
    monkeypatch.undo()
    module = nn.Sequential(layer, nn.ReLU(), nn.Flatten(), nn.LazyLinear(2)).double().eval()
    x = torch.rand(1, 4, 16, 16, dtype=torch.float64)
    module(x)
    graph = build(hf.Network.from_torch(module), x)
    node = next(node for node in graph.nodes if isinstance(node, Affine) and node.kernel is not None)
    matrix = node.part(0, torch.eye(node.inputs[0].size, dtype=torch.float64)).t()
    rows = torch.randn(5, node.size, dtype=torch.float64)
    assert node._kernel_is_cheaper  # type: ignore[attr-defined]
    for absolute in (False, True):
        (found,) = node.back(rows, absolute=absolute)
        torch.testing.assert_close(
            found, rows @ (matrix.abs() if absolute else matrix), rtol=1e-12, atol=1e-12
        )
    (single,) = node.back(rows.float())
    assert single.dtype == torch.float32
    torch.testing.assert_close(single.double(), rows @ matrix, rtol=1e-4, atol=1e-4)


def test_windows_are_taken_where_they_are_smaller(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    torch.manual_seed(0)
    module = nn.Sequential(
        nn.Conv2d(3, 8, 3, 1, 1),
        nn.ReLU(),
        Block(8, 8, 1),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, 10),
    )
    x = torch.rand(1, 3, 32, 32)
    graph = build(hf.Network.from_torch(module.eval()), x)
    boxes = crown.propagate(graph, hf.region.Ball(x, 0.001))
    read = [node.inputs[0] for node in graph.nodes if isinstance(node, Relaxed)]
    for node in read:
        way = crown_patches.route(graph, boxes, node)
        assert way is not None
        assert way.until == 1
        assert not way.rest
        assert way.widest < node.size // 8


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 5)), min_size=1, max_size=40), st.integers(1, 12))
@settings(max_examples=30, deadline=None)
def test_bunches_hold_every_element_once(elements: list[tuple[int, int]], at_once: int) -> None:
    owner, place = torch.tensor(elements).t()
    seen = list[int]()
    for rows, there in crown_patches.group_by_position(owner, place, at_once):
        assert rows.numel() <= at_once
        assert bool(there[:, 0].all())
        seen += rows[there].tolist()
        for of in (owner, place):
            assert bool(((of[rows] == of[rows[:, :1]]) | ~there).all())
    assert sorted(seen) == list(range(len(elements)))


def test_a_kernel_that_is_not_the_derivative_of_its_map_is_not_used() -> None:
    weight = torch.randn(3, 2, 3, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    wrong = weight.clone()
    wrong[1, 1, 2, 0] += 1e-6

    def kept(described: Tensor, padding: int = 1) -> bool:
        graph = Graph()
        entry = graph.add_entry((1, 2, 6, 6))
        node = graph.affine(
            "convolution",
            [entry],
            lambda v: torch.nn.functional.conv2d(v, weight, padding=1),
            lambda m: torch.nn.functional.conv2d(m, weight.abs(), padding=1),
            kernel=convolution(described, [1, 1], [padding, padding], [1, 1], 1),
        )
        assert isinstance(node, Affine)
        return node.kernel is not None

    assert kept(weight)
    assert not kept(wrong)
    assert not kept(weight, padding=0)
    assert not kept(weight[:, :1])
