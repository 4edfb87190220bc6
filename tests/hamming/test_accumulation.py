"""The first search for few changed units of large inputs, on networks whose smallest set is known."""

import pytest
import torch
from torch import Tensor, nn

import holdfast as hf
from holdfast.hamming import accumulation
from holdfast.hamming.accumulation import accumulate_units, start_accumulation
from holdfast.region.unit_choices import TriedValues

SIDE = 128  # Pixels per side: the smallest power of two whose images count as large.
NEEDED = 200  # Pixels that have to change.


class Scored(nn.Module):
    """Two outputs; the first one leads by a margin that pixels of weight 1 lower to zero after NEEDED of them."""

    def __init__(self, misleading: bool) -> None:
        super().__init__()
        weight = torch.full((SIDE * SIDE,), 0.01)
        weight[torch.randperm(SIDE * SIDE, generator=torch.Generator().manual_seed(5))[: 2 * NEEDED]] = 1.0
        self.register_buffer("weight", weight)
        self.misleading = misleading

    def forward(self, x: Tensor) -> Tensor:
        flat = x.flatten(1)
        lost = flat @ self.weight
        if self.misleading:
            # The first ten percent of the pixels look best at the input, and together lower the score by 1 at most.
            some = flat[:, : SIDE * SIDE // 10].sum(1)
            lost = lost + (1 - torch.exp(-5 * some))
        return torch.stack([NEEDED - 0.5 - lost, torch.zeros_like(lost)], 1)


def run(module: nn.Module) -> tuple[int, int]:
    """The size of the smallest failing set, and the number of queries."""
    net = hf.Network.from_torch(module.eval(), domain=(0, 1))
    x = torch.zeros(1, 1, SIDE, SIDE)
    [problem] = hf.api.radius.radius_problems(net, x, torch.tensor([0]), norm=0, unit="pixel")
    table = problem.region.unit_choices(TriedValues(2), torch.Generator().manual_seed(0))
    state = start_accumulation(table, torch.tensor([True]))
    best, witness = torch.tensor([torch.inf]), table.centre
    net.queries = 0
    while bool(state.open.any()):
        state, found = accumulate_units(problem, table, state, best, witness)
        if found is not None:
            size = float((found.x != table.centre[0]).any(-1).sum())
            assert size < float(best)
            assert float(problem.score(table.as_inputs(found.x[None]))) <= 0
            best, witness = torch.tensor([size]), found.x[None]
    return int(best), net.queries


@pytest.mark.parametrize("misleading", [False, True])
def test_sets_shrink_to_nearly_the_smallest_one_within_few_queries(misleading: bool) -> None:
    size, queries = run(Scored(misleading))
    assert NEEDED - 1 <= size <= NEEDED / accumulation.SHRINK + 1
    assert queries < 500
