"""Descent on networks whose gradient is zero nearly everywhere: binarised, quantised, saturated."""

import pytest
import torch
from torch import Tensor, nn

from holdfast.attacks.descent import descend
from holdfast.attacks.step_gradients import StepGradients
from holdfast.network import Network
from holdfast.problem import Problem
from holdfast.property import Avoid
from holdfast.region import Box


class Stepped(nn.Module):
    """Two linear layers of signs around a step function."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.kind = kind
        self.first, self.last = nn.Linear(40, 60), nn.Linear(60, 2, bias=False)
        with torch.no_grad():
            self.first.weight.copy_(self.first.weight.sign())
            self.last.weight.copy_(torch.stack([torch.ones(60), -torch.ones(60)]))

    def forward(self, x: Tensor) -> Tensor:
        z = self.first(x)
        if self.kind == "softmax":
            outputs: Tensor = torch.softmax(100 * self.last(z.relu() + 1), dim=1)
            return outputs
        stepped: Tensor = (
            torch.sign(z) if self.kind == "sign" else z.round() if self.kind == "round" else z.floor()
        )
        return self.last(stepped)  # type: ignore[no-any-return]


def stepped_problem(kind: str, half: float) -> Problem:
    """Is the first output larger than the second?"""
    torch.manual_seed(4)
    model = Stepped(kind).eval()
    centre = model.first.weight.detach().sum(0, keepdim=True).sign() * 0.3
    net = Network.from_torch(model, shape=(40,))
    rules = Avoid(torch.tensor([[[[1.0, -1.0]]]]), torch.zeros(1, 1, 1))
    return Problem(net, Box.between(centre - half, centre + half), rules, "worst")


@pytest.mark.parametrize(("kind", "half"), [("sign", 1.0), ("round", 1.0), ("floor", 1.0)])
def test_descent_follows_estimated_gradients_of_steps(kind: str, half: float) -> None:
    problem = stepped_problem(kind, half)
    start = problem.region.centre[None]
    before, gradient = problem.score_and_gradient(start)
    assert not bool(gradient.any())
    assert float(before) > 0
    found, score = descend(problem, start, 20)
    assert float(score) < 0
    assert bool(problem.region.contains(found[0]).all())
    assert torch.equal(problem.score(found), score)  # the score is the network's own


def test_descent_leaves_a_saturated_softmax() -> None:
    problem = stepped_problem("softmax", 1.0)
    start = problem.region.centre[None]
    before, gradient = problem.score_and_gradient(start)
    assert float(before) == 1.0
    assert not bool(gradient.any())
    with StepGradients():
        assert bool(problem.score_and_gradient(start)[1].any())


def test_values_within_the_context_are_those_outside() -> None:
    x = torch.linspace(-3, 3, 31, requires_grad=True)
    for function in (torch.sign, torch.round, torch.floor, lambda z: z.softmax(0), Tensor.sign, torch.exp):
        plain = function(x)
        with StepGradients():
            assert torch.equal(function(x), plain)
    with StepGradients():
        assert torch.equal(torch.autograd.grad(torch.round(x).sum(), x)[0], torch.ones(31))
        assert torch.equal(torch.autograd.grad(torch.exp(x).sum(), x)[0], torch.exp(x).detach())
