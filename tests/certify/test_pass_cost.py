"""Proofs that cannot finish in the budget are not begun, and the record says so. The clock and the rate are the test's."""

import math

import pytest
import torch
from torch import Tensor, nn

import holdfast as hf
import truth
from holdfast.attacks import PGD
from holdfast.bounding import pass_cost
from holdfast.certify import Certify, Split, Tighten
from holdfast.method import Method
from holdfast.network.network import Network
from holdfast.problem import Problem
from holdfast.property import Robustness
from holdfast.region import Ball

SIDE = 128
CLASSES = 5


class Image(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(
            nn.Conv2d(1, 4, 3, 2, padding=1),
            nn.ReLU(),
            nn.AvgPool2d(8),
            nn.Flatten(),
            nn.Linear(4 * 64, CLASSES),
        )

    def forward(self, x: Tensor) -> Tensor:
        answer: Tensor = self.layers(x)
        return answer


# Of a forward pass: 3 x 3 numbers for each of 64 x 64 positions and 4 channels, and the last layer.
PRODUCTS = 9 * 64 * 64 * 4 + 4 * 64 * CLASSES
ROWS = CLASSES - 1  # The class against each other one.
MOST = 1000.0  # Seconds of the budget.


def problem(side: int = SIDE) -> Problem:
    network = Network.from_torch(Image().eval(), domain=(0, 1))
    x = torch.rand(2, 1, side, side, generator=torch.Generator().manual_seed(1))
    return truth.radius_problem(network, Ball(x, torch.zeros(2), math.inf, (0, 1)), network(x).argmax(1))


@pytest.fixture
def slow_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pass takes twice the budget."""
    rate = pass_cost.SAFE_SHARE * PRODUCTS * ROWS / (2 * MOST)
    monkeypatch.setattr(pass_cost, "product_rate", lambda: rate)


def test_products_of_a_forward_pass_are_counted() -> None:
    assert pass_cost.forward_products(problem()) == PRODUCTS


def test_the_prediction_is_the_rows_times_the_products(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pass_cost, "product_rate", lambda: 1e6)
    assert pass_cost.least_pass_seconds(problem()) == pass_cost.SAFE_SHARE * PRODUCTS * ROWS / 1e6


def test_the_rate_of_this_machine_is_a_number() -> None:
    assert 1e3 < pass_cost.product_rate() < math.inf
    assert pass_cost.product_rate() == pass_cost.product_rate()  # measured once


@pytest.mark.usefixtures("slow_machine", "still_clock")
@pytest.mark.parametrize("method", [Certify(), Tighten(), Split()])
def test_a_proof_that_takes_longer_than_the_budget_is_not_begun(method: Method[object]) -> None:
    one = problem()
    found = hf.solve([one], [PGD(rounds=1, steps=1, radii=1), method], hf.Stop(seconds=MOST))
    for record in found:
        assert record.bracket.lower.value == 0
        assert math.isfinite(record.bracket.upper.value)
        assert any(
            reason.startswith(f"{method.name}: not begun: its first result takes at least 2000")
            for reason in record.skipped
        )
        assert record.status == "stopped"  # with more time, a resumed run begins it
    assert not one.network._programs  # it was not even traced


@pytest.mark.usefixtures("slow_machine")
def test_without_a_deadline_every_proof_is_begun() -> None:
    for record in hf.solve([problem()], [Certify(rounds=2)]):
        assert record.bracket.lower.value > 0


@pytest.mark.usefixtures("slow_machine", "still_clock")
def test_with_time_enough_every_proof_is_begun() -> None:
    for record in hf.solve([problem()], [Certify(rounds=2)], hf.Stop(seconds=4 * MOST)):
        assert record.bracket.lower.value > 0
        assert not any("not begun" in reason for reason in record.skipped)


@pytest.mark.usefixtures("still_clock")
def test_nothing_is_predicted_for_small_inputs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pass_cost, "product_rate", lambda: 1e-9)
    known = truth.linear(0)
    network = known.network((0, 1))
    one = truth.radius_problem(network, Ball(known.x, torch.zeros(4), math.inf, (0, 1)), known.y)
    assert pass_cost.least_pass_seconds(one) == 0
    score = Problem(network, Ball(known.x, torch.zeros(4), math.inf, (0, 1)), Robustness(known.y), "worst")
    assert pass_cost.least_pass_seconds(score) == 0
