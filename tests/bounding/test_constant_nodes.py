"""Nodes before the first frame that moves: their bounds hold, are found once, and serve every radius."""

from functools import partial

import pytest
import torch
from bounds_regions import seeded
from torch import Tensor, nn

from holdfast.bounding import constant_nodes, crown, first_bounds
from holdfast.bounding.constant_nodes import find_constant_nodes
from holdfast.bounding.first_bounds import plan_forms, propagate_first
from holdfast.bounding.graph.equivalence_check import values
from holdfast.bounding.graph.graph import Graph, build
from holdfast.network import Network
from holdfast.region import Box

FRAMES = 9


class Cells(nn.Module):
    """Two recurrent layers and a linear layer; the first frame is read again at the end."""

    def __init__(self, cell: type[nn.RNNBase]) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.cells = cell(3, 5, 2, batch_first=True)  # type: ignore[arg-type]
        self.last = nn.Linear(8, 2)
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.mul_(1.5)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.last(torch.cat([self.cells(x)[0][:, -1], torch.tanh(x[:, 0])], 1))
        return found


def moving_frames(places: list[int], radius: float) -> Box:
    """A box for each place, in which that frame alone moves; every second row has another centre."""
    centre = torch.randn((2, FRAMES, 3), generator=seeded(2)).double()[torch.arange(len(places)) % 2]
    width = torch.zeros_like(centre)
    width[range(len(places)), places] = radius
    return Box(centre, centre - width, centre + width)


@pytest.fixture(params=[nn.LSTM, nn.GRU, nn.RNN])
def network(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> tuple[nn.Module, Graph]:
    monkeypatch.setattr(first_bounds, "WALK_SHARE", 0.0)
    model = Cells(request.param).eval()
    return model.double(), build(Network.from_torch(Cells(request.param).eval()), torch.zeros(1, FRAMES, 3))


def count_calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of centres of every call that bounds constant nodes."""
    calls: list[int] = []
    own = first_bounds._bound_centres

    def counted(graph: Graph, order: list[object], most: int, centre: Tensor) -> object:
        calls.append(len(centre))
        return own(graph, order, most, centre)  # type: ignore[arg-type]

    monkeypatch.setattr(first_bounds, "_bound_centres", counted)
    return calls


def test_attacks_stay_above_bounds_that_use_known_constants(
    network: tuple[nn.Module, Graph], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, graph = network
    calls = count_calls(monkeypatch)
    rows = torch.cat([torch.eye(2), -torch.eye(2)]).double().expand(4, -1, -1)
    for radius in (0.3, 0.05):
        region = moving_frames([6, 6, 8, 7], radius)
        boxes = propagate_first(graph, region)
        found = crown.lower_bound(graph, boxes, rows, torch.zeros(4, 4, dtype=torch.float64))
        x = region.lower + torch.rand((60, *region.shape), generator=seeded(1)).double()[:, None] * (
            region.upper - region.lower
        )
        for _ in range(6):
            x = x.detach().requires_grad_()
            scores = torch.einsum("brk,nbk->nbr", rows, model(x.flatten(0, 1)).reshape(60, 4, 2))
            assert (scores >= found).all()
            # Each sample pursues one of the four rows.
            (steep,) = torch.autograd.grad(torch.stack([scores[k::4, :, k].sum() for k in range(4)]).sum(), x)
            x = x - 0.4 * (region.upper - region.lower) * steep.sign()
            x = torch.minimum(torch.maximum(x, region.lower), region.upper)
    assert calls == [2]  # Two centres, for both radii.


def test_bounds_of_constant_nodes_hold_their_values(network: tuple[nn.Module, Graph]) -> None:
    _, graph = network
    plan, region = plan_forms(graph), moving_frames([7, 8], 1.0)
    assert plan is not None
    bound = partial(first_bounds._bound_centres, graph, plan.order, 50)
    constant = find_constant_nodes(graph, region, plan.order, bound)
    assert constant is not None
    kept = set(graph.nodes)
    points = [region.lower, region.upper, region.centre]
    found = [values(graph, point, kept=kept) for point in points]
    for node in graph.nodes:
        seen = torch.stack([value[node].double() for value in found])
        if node in constant.nodes:
            assert (seen == seen[0]).all()
        if node in constant.bounds:
            lower, upper = constant.bounds[node]
            assert ((lower <= seen) & (seen <= upper)).all()
            assert (upper - lower).max() < 1e-9
    varying = [node for node in graph.nodes if node not in constant.nodes]
    assert all((node is graph.entry) or any(s not in constant.nodes for s in node.inputs) for node in varying)


def test_few_constant_nodes_are_bounded_as_before(
    network: tuple[nn.Module, Graph], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, graph = network
    calls = count_calls(monkeypatch)
    propagate_first(graph, moving_frames([0, 8], 0.1))
    assert calls == []


def test_the_memory_of_known_constants_is_bounded(
    network: tuple[nn.Module, Graph], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, graph = network
    calls = count_calls(monkeypatch)
    monkeypatch.setattr(constant_nodes, "MAX_VALUES", 2 * sum(node.size for node in graph.nodes))
    region = moving_frames([8, 8], 0.1)
    for _ in range(2):
        propagate_first(graph, region)
    assert len(constant_nodes._known[graph]) == 1
    assert calls == [2, 1]
