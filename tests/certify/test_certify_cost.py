"""What a radius takes is measured, within the time that is given for it."""

import time

import pytest
import torch
from torch import nn

import holdfast as hf
from holdfast.certify.cost import costs
from holdfast.problem import Problem
from holdfast.property import Linear
from holdfast.region import Ball


def asked(function: nn.Module) -> Problem:
    torch.manual_seed(0)
    net = hf.Network.from_torch(
        nn.Sequential(nn.Linear(4, 8), function, nn.Linear(8, 2)).eval(), domain=(0, 1)
    )
    x = torch.full((1, 4), 0.5)
    row = [1.0, -1.0] if int(net(x).argmax()) == 0 else [-1.0, 1.0]
    return Problem(
        net, Ball(x, torch.zeros(1, dtype=torch.float64), torch.inf, net.domain), Linear.of(row), "radius"
    )


@pytest.mark.parametrize("function", [nn.ReLU(), nn.Tanh()])
def test_tight_takes_longer_than_fast_and_what_training_needs_is_counted(function: nn.Module) -> None:
    fast, tight = costs(asked(function), limit=60)
    assert (fast.tier, tight.tier) == ("fast", "tight")
    assert fast.seconds is not None
    assert tight.seconds is not None
    assert 0 < fast.seconds < tight.seconds
    assert 0 < fast.memory <= tight.memory


def test_without_time_nothing_is_foretold() -> None:
    problem = asked(nn.Tanh())
    began = time.monotonic()
    assert [cost.seconds for cost in costs(problem, limit=0.0)] == [None, None]
    assert time.monotonic() - began < 30  # of which tracing takes most
