"""Elements of the engine and of the checker are matched by their values, whatever their order."""

from pathlib import Path

import numpy as np
import torch
from torch import nn

from holdfast.certificates.matching import MatchedActivations, match_columns
from holdfast.certificates.model_file import model_for
from holdfast.network import Network
from holdfast.problem import Problem
from holdfast.property import Robustness
from holdfast.region import Ball


def test_columns_match_whatever_their_order_and_rounding() -> None:
    draw = np.random.default_rng(0)
    engine = draw.normal(size=(5, 40))
    order = draw.permutation(40)
    noisy = engine[:, order] * (1 + 1e-12 * draw.normal(size=(5, 40)))
    assert match_columns(engine, noisy).tolist() == order.tolist()


def test_equal_columns_match_in_order_and_strange_ones_do_not() -> None:
    engine = np.array([[0.0, 1.0, 0.0, 2.0], [5.0, 1.0, 5.0, 2.0]])
    checker = np.array([[2.0, 0.0, 0.0, 0.0, 3.0], [2.0, 5.0, 5.0, 5.0, 2.0]])
    assert match_columns(engine, checker).tolist() == [3, 0, 2, 2, -1]


class TwoBranches(nn.Module):
    """Two hidden layers side by side, of the same size and read in either order."""

    def __init__(self, swapped: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.left, self.right, self.last = nn.Linear(3, 4), nn.Linear(3, 4), nn.Linear(4, 2)
        self.swapped = swapped

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.swapped:
            right, left = torch.relu(self.right(x)), torch.relu(self.left(x))
        else:
            left, right = torch.relu(self.left(x)), torch.relu(self.right(x))
        out: torch.Tensor = self.last(left - right)
        return out


def test_a_program_with_another_order_of_layers_has_the_same_match(tmp_path: Path) -> None:
    x = torch.zeros(1, 3)
    found = []
    for swapped in (False, True):
        net = Network.from_torch(TwoBranches(False).eval())
        twin = Network.from_torch(TwoBranches(swapped).eval())
        (tmp_path / str(swapped)).mkdir()
        problem = Problem(net, Ball(x, torch.ones(1)), Robustness(torch.tensor([0])), "radius")
        other = Problem(twin, Ball(x, torch.ones(1)), Robustness(torch.tensor([0])), "radius")
        program = model_for(other, tmp_path / str(swapped), None)[1].program
        match = MatchedActivations.of(problem, program)
        assert match is not None
        values = program.values(np.ones((1, 3)))
        found.append([values[step][0, element] for step, element in match.elements.tolist()])
    assert np.allclose(found[0], found[1], rtol=0, atol=1e-12)
    assert len(set(found[0])) == 8
