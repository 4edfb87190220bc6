"""Moves and sums pass coefficients back without charging for rounding, where nothing meets. A graph made to break that."""

import pytest
import torch
from torch import Tensor, nn

import holdfast as hf
from holdfast.bounding.crown import lower_bound, propagate
from holdfast.bounding.graph.graph import Affine, build
from holdfast.random_streams import RandomStreams


class Tangled(nn.Module):
    """One value read by moves, by a sum and by a map; elements repeated; a sum of overlapping moves."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Linear(6, 6), nn.Linear(12, 6), nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.first(x))
        back, twice = h.flip(1), h[:, [0, 0, 1, 2, 3, 3]]
        z = torch.sigmoid(self.second(torch.cat([h + back, twice], 1))) + h + h[:, 1:].repeat(1, 2)[:, :6]
        answer: Tensor = self.last(z * torch.tanh(back) + z) - self.last(h)
        return answer


@pytest.mark.parametrize("seed", range(3))
def test_bounds_hold_where_moves_overlap(seed: int) -> None:
    torch.manual_seed(seed)
    net = hf.Network.from_torch(Tangled().double().eval())
    x = torch.randn(8, 6, dtype=torch.float64)
    graph, prop = build(net, x), hf.Robustness(net(x).argmax(1))
    for p in (1.0, 2.0, torch.inf):
        for radius in (0.0, 1e-6, 0.1, 1.0, 10.0):
            region = hf.Ball(x, radius, p)
            bound = lower_bound(graph, propagate(graph, region), *prop.rows(4)).amin(1)
            points = region.sample(64, RandomStreams.of(range(len(region)), seed))
            scores = prop.score(net(points.flatten(0, 1)).reshape(64, 8, 4))
            assert (bound <= scores.amin(0)).all()
            if radius == 0:
                assert torch.allclose(bound, prop.score(net(x)), rtol=1e-9, atol=1e-11)


def test_only_moves_that_meet_nothing_go_free() -> None:
    graph = build(hf.Network.from_torch(Tangled().double().eval()), torch.zeros(1, 6, dtype=torch.float64))
    for node in graph.exact:
        assert isinstance(node, Affine)
        if node.copies:
            numbers = torch.arange(sum(source.size for source in node.inputs))
            origin = node.forward(numbers.split([source.size for source in node.inputs]))
            assert len(origin.unique()) == len(origin)
        else:
            assert node.sums
        for source in node.inputs:
            readers = [r for r in graph.nodes if source in r.inputs]
            moves = [r for r in readers if isinstance(r, Affine) and r.moves]
            taken = [int(i) for r in moves for i in r.forward([torch.arange(source.size)])]
            assert readers == [node] or len(taken) == len(set(taken)) == sum(r.size for r in readers)
