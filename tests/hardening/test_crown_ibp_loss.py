"""CROWN-IBP for the loss: the walked margins hold all over the box, are worth their price, and have the right gradients."""

import pytest
import torch
from test_training_intervals import MODELS, SLACK, Sequenced
from torch import Tensor, nn

import holdfast as hf
from holdfast.attacks.descent import descend
from holdfast.bounding import crown
from holdfast.bounding.graph.problem_graph import graph_of, rows_of
from holdfast.errors import UnsupportedLayer
from holdfast.hardening.backward import TapedWalk
from holdfast.hardening.intervals import Traced
from holdfast.hardening.training import TrainedModule, prepare_training
from holdfast.problem import Problem
from holdfast.property import Robustness
from holdfast.random_streams import RandomStreams
from holdfast.region import Ball

OTHERWISE = {
    "attention",
    "residual",
}  # a softmax and a maximum are met by their intervals: no gain is promised


def traced(module: nn.Module, x: Tensor) -> tuple[hf.Network, TrainedModule, Traced]:
    net = hf.Network.from_torch(module.eval())
    live = prepare_training(net, (), words=False)
    return net, live, Traced(live.net, x, live.module)


@pytest.mark.parametrize("name", MODELS)
def test_no_point_of_the_box_has_a_smaller_margin(name: str) -> None:
    torch.manual_seed(1)
    make, shape = MODELS[name]
    x, reach, batch = torch.randn(4, *shape), 0.1, 4
    net, _, known = traced(make(), x)
    label = net(x).argmax(-1)
    least = TapedWalk(known, x).margins(x - reach, x + reach, label).detach()
    region = Ball(x, torch.full((batch,), reach, dtype=torch.float64))
    corners = x + reach * (2.0 * torch.randint(0, 2, (200, *x.shape)) - 1)
    points = torch.cat(
        [
            region.sample(200, RandomStreams.of(range(batch), 0)), corners,
            *(descend(Problem(net, region, Robustness(torch.full_like(label, k)), "worst"), x[None], 10)[0] for k in range(4)),
            descend(Problem(net, region, Robustness(label), "worst"), x[None], 10)[0],
        ]
    )  # fmt: skip
    answers = net(points.flatten(0, 1)).reshape(len(points), batch, -1)
    answers = answers.log() if name == "ends in softmax" else answers
    own = answers.gather(-1, label.expand(len(points), -1)[..., None])
    assert (own - answers >= least - SLACK).all()
    by_intervals = known.margins(x - reach, x + reach, label).detach()
    if name not in OTHERWISE:
        assert least.mean() > by_intervals.mean() + 0.005
    better = torch.maximum(least, by_intervals)
    assert (better >= by_intervals).all()


@pytest.mark.parametrize("name", ["mlp", "rnn relu", "lstm", "gru", "gru both ways", "lstm states"])
def test_a_point_has_its_own_margin(name: str) -> None:
    torch.manual_seed(2)
    make, shape = MODELS[name]
    x = torch.randn(3, *shape)
    net, _, known = traced(make(), x)
    label = torch.tensor([0, 2, 1])
    said = net(x)
    assert torch.allclose(
        TapedWalk(known, x).margins(x, x, label).detach(), said.gather(1, label[:, None]) - said, atol=SLACK
    )


def test_of_one_hidden_layer_of_relus_it_is_what_the_engine_proves() -> None:
    """Intervals are exact in front of the first activations, so both walks begin alike."""
    torch.manual_seed(0)
    x = torch.randn(5, 6)
    net, _, known = traced(nn.Sequential(nn.Linear(6, 9), nn.ReLU(), nn.Linear(9, 4)), x)
    label = net(x).argmax(-1)
    region = Ball(x, torch.full((5,), 0.2, dtype=torch.float64))
    problem = Problem(net, region, Robustness(label), "worst")
    graph = graph_of(problem)
    rows, offset = rows_of(problem, graph)
    proved = crown.lower_bound(graph, crown.propagate(graph, region), rows, offset)
    found = TapedWalk(known, x).margins(x - 0.2, x + 0.2, label).detach().double()
    others = found[torch.arange(4) != label[:, None]].reshape(5, 3)
    assert torch.allclose(others.sort(1).values, proved.sort(1).values, atol=1e-5)


def _relus() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 8), nn.LeakyReLU(), nn.Linear(8, 4))


@pytest.mark.parametrize("name", ["relus", "rnn", "rnn relu", "lstm", "gru"])
def test_gradients_are_those_of_finite_differences(name: str) -> None:
    torch.manual_seed(3)
    make, shape = (_relus, (6,)) if name == "relus" else MODELS[name]
    x = torch.randn(2, *shape, dtype=torch.float64)
    net = hf.Network.from_torch(make().double().eval())
    live = prepare_training(net, (), words=False)
    walk = TapedWalk(Traced(live.net, x, live.module), x)
    label = torch.tensor([1, 3])

    def value() -> Tensor:
        return walk.margins(x - 0.05, x + 0.05, label).sum()

    value().backward()  # type: ignore[no-untyped-call]
    for p in live.trained:
        assert p.grad is not None
        way = torch.randn(p.shape, dtype=p.dtype, generator=torch.Generator().manual_seed(0))
        ends = []
        for step in (1e-6, -1e-6):
            with torch.no_grad():
                p += step * way
            ends.append(float(value().detach()))
            with torch.no_grad():
                p -= step * way
        slope, along = (ends[0] - ends[1]) / 2e-6, float((p.grad * way).sum())
        assert along == pytest.approx(slope, rel=1e-3, abs=1e-5)


class Merged(nn.Module):
    """Puts inputs and frames along one axis."""

    def __init__(self) -> None:
        super().__init__()
        self.each, self.head = nn.Linear(3, 2), nn.Linear(12, 4)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(torch.relu(self.each(x.reshape(-1, 3))).reshape(-1, 12))
        return logits


def test_where_inputs_share_an_axis_the_layer_is_named() -> None:
    x = torch.randn(3, 6, 3)
    _, _, known = traced(Merged(), x)
    with pytest.raises(UnsupportedLayer, match="merges the batch axis"):
        TapedWalk(known, x)


def test_weights_are_read_as_they_are_now() -> None:
    torch.manual_seed(0)
    x = torch.randn(3, 6, 3)
    _, live, known = traced(Sequenced(nn.LSTM), x)
    walk, label = TapedWalk(known, x), torch.tensor([0, 1, 2])
    before = walk.margins(x, x, label).detach()
    with torch.no_grad():
        live.module.model.head.bias[0] += 1  # type: ignore[union-attr, index, operator]
    assert torch.allclose(walk.margins(x, x, label).detach()[0, 1:], before[0, 1:] + 1, atol=1e-5)
