"""Intervals next to the output, and of a GRU's state as the mean that it is: valid where they are asked, and worth asking."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

import holdfast as hf
from holdfast.api.radius import radius_problems
from holdfast.attacks.descent import descend
from holdfast.bounding import crown
from holdfast.bounding.graph.graph import Affine, Graph, InputNode, Node, Relaxed, build
from holdfast.bounding.graph.problem_graph import rows_of
from holdfast.problem import Problem
from holdfast.property import Robustness
from holdfast.random_streams import RandomStreams
from holdfast.region import Ball, Region
from sizes import combinations

KINDS = {"gru": nn.GRU, "lstm": nn.LSTM, "rnn": nn.RNN}


class Last(nn.Module):
    """Gates that are nearly shut, as training with intervals leaves them: the state is little more than a mean of what was."""

    def __init__(self, kind: str, layers: int = 1) -> None:
        super().__init__()
        self.recurrent, self.head = KINDS[kind](2, 5, layers, batch_first=True), nn.Linear(5, 3)
        with torch.no_grad():
            for name, p in self.recurrent.named_parameters():
                p *= 2.0 if name.startswith("weight_ih") else 0.7

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.recurrent(x)[0][:, -1])
        return logits


def values(graph: Graph, x: Tensor) -> dict[Node, Tensor]:
    """Every node's value at points (many, batch, *shape), in float64: (many, batch, *shape of the node)."""
    known: dict[Node, Tensor] = {}
    lead, x = x.shape[:2], x.flatten(0, 1)
    for node in graph.nodes:
        inputs = [known[source] for source in node.inputs]
        if isinstance(node, InputNode):
            known[node] = x.double().reshape(len(x), *node.shape)
        elif isinstance(node, Affine):
            known[node] = node.forward([v.flatten(1) for v in inputs]).reshape(len(x), *node.shape)
        else:
            assert isinstance(node, Relaxed)
            known[node] = node.relaxation.function(*inputs)
    return {node: value.unflatten(0, lead) for node, value in known.items()}


def asked(kind: str, reach: float, layers: int = 1) -> tuple[hf.Network, Graph, Region, Problem, Tensor]:
    torch.manual_seed(4)
    net = hf.Network.from_torch(Last(kind, layers).eval())
    x = torch.randn(3, 7, 2)
    region = Ball(x, torch.full((3,), reach, dtype=torch.float64))
    problem = Problem(net, region, Robustness(net(x).argmax(-1)), "worst")
    return net, build(net, x), region, problem, x


def points(problem: Problem, region: Region, x: Tensor, reach: float) -> Tensor:
    """(many, batch, *shape): at random, at corners, and where a search goes."""
    found = [
        region.sample(300, RandomStreams.of(range(len(x)), 0)),
        x + reach * (2.0 * torch.randint(0, 2, (300, *x.shape)) - 1),
    ]
    for k in range(3):
        towards = replace(problem, property=Robustness(torch.full((len(x),), k)))
        found.append(descend(towards, region.sample(4, RandomStreams.of(range(len(x)), k)), 12)[0])
    return torch.cat([part.to(x) for part in found])


@pytest.mark.parametrize(("reach", "layers"), combinations([0.05, 0.5, 3.0], [1, 2]))
def test_no_state_leaves_its_mean_and_no_margin_its_bound(reach: float, layers: int) -> None:
    _, graph, region, problem, x = asked("gru", reach, layers)
    assert len(graph.blends) >= 6 * layers
    boxes = crown.propagate(graph, region)
    rows, offset = rows_of(problem, graph)
    least = crown.lower_bound(graph, boxes, rows, offset)
    known = values(graph, points(problem, region, x, reach))
    for node in graph.blends:
        assert (known[node] >= boxes.lower[node] - 1e-12).all()
        assert (known[node] <= boxes.upper[node] + 1e-12).all()
    assert ((rows @ known[graph.output].reshape(-1, 3, 3, 1)).squeeze(-1) + offset >= least - 1e-12).all()


@pytest.mark.parametrize("kind", KINDS)
def test_both_ways_are_valid_and_the_better_is_taken(kind: str) -> None:
    better = []
    for reach in (0.1, 1.0):
        _, graph, region, problem, x = asked(kind, reach)
        boxes = crown.propagate(graph, region)
        rows, offset = rows_of(problem, graph)
        walked = crown.linear_bound(graph, boxes, rows).minimum(region) + offset
        least = crown.lower_bound(graph, boxes, rows, offset)
        assert (least >= walked - 1e-12).all()
        better.append(bool((least > walked + 1e-3).any()))
        said = values(graph, points(problem, region, x, reach))[graph.output]
        assert ((rows @ said.reshape(-1, 3, 3, 1)).squeeze(-1) + offset >= least - 1e-12).all()
    assert better[-1] or kind == "rnn"  # far out planes have lost more than intervals


def test_the_mean_is_tighter_than_its_parts() -> None:
    _, graph, region, _, _ = asked("gru", 1.0)
    with_it = crown.intervals(graph, region)
    last = max(graph.blends, key=lambda node: node.place)
    graph.blends.clear()
    without = crown.intervals(graph, region)
    width = (
        (with_it.upper[last] - with_it.lower[last]).mean(),
        (without.upper[last] - without.lower[last]).mean(),
    )
    assert width[0] < 0.8 * width[1]


def test_a_constant_state_is_met_exactly() -> None:
    """With gates wide open the state stays what it was: its mean is a point, whatever the input does."""
    module = Last("gru")
    with torch.no_grad():
        module.recurrent.bias_ih_l0[5:10] = 60.0  # type: ignore[index, operator]
    net = hf.Network.from_torch(module.eval())
    x = torch.randn(2, 7, 2)
    region = Ball(x, torch.full((2,), 1.0, dtype=torch.float64))
    problem = Problem(net, region, Robustness(net(x).argmax(-1)), "worst")
    graph = build(net, x)
    rows, offset = rows_of(problem, graph)
    least = crown.lower_bound(graph, crown.propagate(graph, region), rows, offset)
    exact = (rows @ net(x).double()[..., None]).squeeze(-1) + offset
    assert torch.allclose(least, exact, atol=1e-5)


@pytest.mark.parametrize("frames", [[0, 1], [6]])
def test_where_only_some_frames_move(frames: list[int]) -> None:
    net, graph, _, _, x = asked("gru", 0.5)
    label = net(x).argmax(-1)
    (asking,) = radius_problems(net, x, label, frames=frames)
    region = asking.family.at(0.5)
    problem = replace(asking, region=region, goal="worst")
    rows, offset = rows_of(problem, graph)
    least = crown.lower_bound(graph, crown.propagate(graph, region), rows, offset)
    said = values(graph, region.sample(300, RandomStreams.of(range(3), 0)))[graph.output]
    assert ((rows @ said.reshape(-1, 3, 3, 1)).squeeze(-1) + offset >= least - 1e-12).all()
    assert least.isfinite().all()


def test_a_score_that_falls_steeply_and_then_no_more_is_proved_all_the_way() -> None:
    """1 + 10 relu(x) against 0: at x = 0.05 it falls as if it would vanish at 0.15 from there, and never does. The search must not give up
    beyond twice of that, and planes below a ReLU alone prove less than its interval."""
    module = nn.Sequential(nn.Linear(1, 1), nn.ReLU(), nn.Linear(1, 2))
    with torch.no_grad():
        for layer, weight, bias in ((module[0], [[1.0]], [0.0]), (module[2], [[10.0], [0.0]], [1.0, 0.0])):
            layer.weight.copy_(torch.tensor(weight))  # type: ignore[operator, union-attr]
            layer.bias.copy_(torch.tensor(bias))  # type: ignore[operator, union-attr]
    net = hf.Network.from_torch(module.eval(), domain=(-1, 1))
    (found,) = hf.radius(net, torch.tensor([[0.05]]), torch.tensor([0]), methods=[hf.certify.Certify()])
    assert found.lower.value >= 1.0
