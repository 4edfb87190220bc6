"""Sums of products, as in attention, and block matrices: the bounds are those of single products, and they hold."""

import pytest
import torch
from bounds_regions import seeded
from bounds_zoo import values
from torch import Tensor, nn

from holdfast.bounding import crown, sums_of_products
from holdfast.bounding.alpha_beta_crown import concatenate_nodes
from holdfast.bounding.branching.branching_rule import choose_branching
from holdfast.bounding.branching.input_split import InputSplit
from holdfast.bounding.branching.nonlinear_split import NonlinearSplit
from holdfast.bounding.branching.relu_split import ActivationSplit
from holdfast.bounding.graph import graph as graphs
from holdfast.bounding.graph import matrix_blocks
from holdfast.bounding.graph.graph import Graph, Relaxed, build
from holdfast.bounding.graph.matrix_blocks import BlockMatrix
from holdfast.bounding.node_bounds import Boxes
from holdfast.bounding.relax import Product
from holdfast.bounding.sums_of_products import SlopeBlocks, find_sums_of_products
from holdfast.network import Network
from holdfast.property import Avoid
from holdfast.random_streams import RandomStreams
from holdfast.region import Ball, Region

TOKENS, HEADS, WIDTH = 5, 2, 3
FULL = torch.tensor([[2.0, -3.0, 0.5], [1.0, 4.0, -1.0]], dtype=torch.float64)


class Attention(nn.Module):
    """One layer of attention with several heads, then a linear layer of all tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.maps = nn.ModuleList(nn.Linear(HEADS * WIDTH, HEADS * WIDTH) for _ in range(3))
        self.last = nn.Linear(TOKENS * HEADS * WIDTH, 2)

    def forward(self, x: Tensor) -> Tensor:
        parts = [m(x).reshape(len(x), TOKENS, HEADS, WIDTH).transpose(1, 2) for m in self.maps]
        scores = torch.softmax(parts[0] @ parts[1].transpose(2, 3), 3)
        found: Tensor = self.last((scores @ parts[2]).transpose(1, 2).flatten(1))
        return found


@pytest.fixture(autouse=True)
def small_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sums_of_products, "MIN_PRODUCTS", 0)
    monkeypatch.setattr(matrix_blocks, "MIN_ELEMENTS", 0)
    monkeypatch.setattr(matrix_blocks, "MIN_SAVING", 1)


def attention() -> tuple[Graph, Region]:
    torch.manual_seed(0)
    x = torch.rand((2, TOKENS, HEADS * WIDTH), generator=seeded(1))
    graph = build(Network.from_torch(Attention().eval()), x)
    return graph, Ball(x.double(), torch.tensor([0.1, 0.3], dtype=torch.float64), torch.inf)


def node_by_node(graph: Graph, region: Region, monkeypatch: pytest.MonkeyPatch) -> Boxes:
    with monkeypatch.context() as patch:
        patch.setattr(crown, "find_sums_of_products", lambda _: {})
        return crown.propagate(graph, region)


def differ(graph: Graph, one: Boxes, other: Boxes) -> bool:
    sides = ((one.lower, other.lower), (one.upper, other.upper))
    pairs = [(mine[node], theirs[node]) for node in graph.nodes for mine, theirs in sides]
    return not all(torch.allclose(a, b, rtol=1e-9, atol=1e-9) for a, b in pairs)


def test_sums_at_once_are_sums_node_by_node(monkeypatch: pytest.MonkeyPatch) -> None:
    graph, region = attention()
    found = find_sums_of_products(graph)
    assert len(found) == 2
    assert all(type(form.products.relaxation) is Product for form in found.values())
    boxes = crown.propagate(graph, region)
    assert not differ(graph, boxes, node_by_node(graph, region, monkeypatch))
    for x in region.sample(40, RandomStreams.of(range(len(region)), 1)):
        for node, value in values(graph, x).items():
            assert bool((boxes.lower[node] <= value.reshape(boxes.lower[node].shape) + 1e-12).all()), (
                node.name
            )
            assert bool((boxes.upper[node] >= value.reshape(boxes.upper[node].shape) - 1e-12).all()), (
                node.name
            )


def test_a_slope_in_the_wrong_place_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The comparison above sees a mutant whose blocks hold the slopes of other products."""
    graph, region = attention()
    fill = SlopeBlocks.fill
    monkeypatch.setattr(SlopeBlocks, "fill", lambda self, slopes: fill(self, slopes.roll(1, 1)))
    assert differ(graph, crown.propagate(graph, region), node_by_node(graph, region, monkeypatch))


class OtherSums(nn.Module):
    """Products that are weighted, that are read twice, and whose factors are no copies."""

    def forward(self, x: Tensor) -> Tensor:
        a, b = (x * 2.0 + 1.0).unsqueeze(2), (x * 3.0 - 1.0).unsqueeze(1)
        outer = a * b
        twice = (x.cumsum(1).unsqueeze(2) * b).relu()
        return torch.cat([(outer * 0.5).sum(2), outer.mean(1), twice.sum(2)], 1)


def test_other_sums_go_node_by_node() -> None:
    graph = build(Network.from_torch(OtherSums().eval()), torch.zeros(1, 4))
    assert any(isinstance(node, Relaxed) and type(node.relaxation) is Product for node in graph.nodes)
    assert find_sums_of_products(graph) == {}


def shuffled(matrix: Tensor) -> Tensor:
    rows, columns = (torch.randperm(n, generator=seeded(n)) for n in matrix.shape)
    return matrix[rows][:, columns]


MATRICES = {
    "last axis": torch.kron(torch.eye(4, dtype=torch.float64), FULL),
    "first axis": torch.kron(FULL, torch.eye(4, dtype=torch.float64)),
    "shuffled": shuffled(torch.block_diag(FULL, 3 * FULL, -FULL)),
    "factors": shuffled(torch.tensor([3.0, -1.0, 2.0, 5.0], dtype=torch.float64).diag()),
    "columns": torch.block_diag(*[FULL[:, :1]] * 4),
    "several shapes": shuffled(torch.block_diag(FULL, FULL.T, FULL[:1], FULL[:, :1])),
    "empty rows and columns": torch.nn.functional.pad(torch.block_diag(FULL, FULL), (2, 1, 1, 2)),
    "holes": torch.block_diag(FULL, FULL) * torch.tensor([1.0, 1, 0, 1, 1, 1], dtype=torch.float64),
}


@pytest.mark.parametrize("name", MATRICES)
@pytest.mark.parametrize("absolute", [False, True])
def test_blocks_give_the_product_with_the_matrix(name: str, absolute: bool) -> None:
    matrix = MATRICES[name]
    blocks = BlockMatrix.of(matrix)
    assert blocks is not None
    assert sum(group.blocks.numel() for group in blocks.groups) < matrix.numel()
    rows = torch.randint(-9, 9, (2, 3, len(matrix)), generator=seeded(0)).double()
    assert torch.equal(blocks.back(rows, absolute=absolute), rows @ (matrix.abs() if absolute else matrix))
    rows.requires_grad_()
    (slope,) = torch.autograd.grad(blocks.back(rows).sum(), rows)
    assert torch.equal(slope, matrix.sum(1).expand_as(rows))


def test_matrices_of_other_forms_stay_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    chain = torch.eye(40, dtype=torch.float64) + torch.eye(40, dtype=torch.float64).roll(1, 0)
    assert BlockMatrix.of(chain) is None
    monkeypatch.setattr(matrix_blocks, "MIN_SAVING", 8)
    assert BlockMatrix.of(torch.ones(30, 30, dtype=torch.float64)) is None


def test_wide_networks_are_split_where_backward_passes_bound_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Attention over many inputs by ranges; ReLUs behind 9 to 16 inputs by signs; fewer inputs by halves."""
    monkeypatch.setattr(graphs, "LARGEST_MATRIX", 0)
    graph, region = attention()
    assert type(choose_branching(graph, region)) is NonlinearSplit
    torch.manual_seed(0)
    found = []
    for inputs in (8, 9):
        x = torch.zeros(1, inputs)
        layers = [nn.Linear(inputs, 20), nn.ReLU(), nn.Linear(20, 20), nn.ReLU(), nn.Linear(20, 2)]
        graph = build(Network.from_torch(nn.Sequential(*layers).eval()), x)
        region = Ball(x.double(), torch.tensor([0.2], dtype=torch.float64), torch.inf)
        found.append(type(choose_branching(graph, region)))
    assert found == [InputSplit, ActivationSplit]
    # its intermediate bounds, which come with forms of the inputs, hold
    rules = Avoid(torch.ones(1, 1, 1, 2, dtype=torch.float64), torch.zeros(1, 1, 1, dtype=torch.float64))
    parts = ActivationSplit().start(graph, region, rules)
    met = [values(graph, x) for x in region.sample(30, RandomStreams.of(range(1), 1))]
    for point in met:
        inside = concatenate_nodes(graph, point)
        assert bool(((parts.lower <= inside + 1e-12) & (inside - 1e-12 <= parts.upper)).all())
