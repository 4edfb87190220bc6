"""Large inputs: every one has a first upper bound from few queries, before anything expensive begins."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import holdfast as hf
import truth
from holdfast import memory_budget
from holdfast.attacks import PGD, ladder
from holdfast.batch_solver import BatchWorker
from holdfast.certify import Certify
from holdfast.method import Method
from holdfast.problem import Problem
from holdfast.property import Robustness
from holdfast.region import Ball
from holdfast.solver import solve

# One gradient, the grids of radii, and their largest radius.
LOOK_QUERIES = 2 + ladder.LOOK_ROUNDS * ladder.LOOK_RADII


def large(batch: int = 3, *, classes: int = 3) -> truth.LinearTruth:
    return truth.linear(1, shape=(1, 128, 128), batch=batch, classes=classes, within=(0.3, 0.7))


def asked(known: truth.LinearTruth, p: float = math.inf) -> Problem:
    network = known.network((0, 1))
    region = Ball(known.x, torch.zeros(len(known.x)), p, (0, 1))
    return truth.radius_problem(network, region, known.y)


@pytest.mark.parametrize("p", [2, math.inf])
def test_each_input_is_looked_at_with_one_gradient_and_few_queries(p: float) -> None:
    """On a linear network of two classes the ray of the gradient leads to the nearest counterexample."""
    known = large(classes=2)
    problem, method = asked(known, p), PGD()
    state: Any = method.start(problem, 0)
    for row in range(len(problem)):
        assert method.is_opening(state)
        before = problem.network.queries
        state, claims = method.step(problem, state)
        assert problem.network.queries - before <= LOOK_QUERIES
        assert claims.found is not None
        assert claims.found.tolist() == [other <= row for other in range(len(problem))]
    assert not method.is_opening(state)
    # The second grid has steps of a factor 2 ** (1 / 9).
    for found, least in zip(state.distance.tolist(), known.radius(p).tolist(), strict=True):
        assert least * (1 - 1e-4) <= found <= least * 2 ** (1 / 8)


class Recorded(Certify):
    """Notes when it is examined."""

    def obstacle(self, problem: Problem) -> str | None:
        events.append("graph")
        return "only the order matters here"


class Watched(PGD):
    def step(self, problem: Problem, state: Any) -> Any:
        events.append("look" if self.is_opening(state) else "attack")
        after, claims = super().step(problem, state)
        return (None if events[-1] == "attack" else after), claims


events: list[str] = []


def test_all_inputs_are_looked_at_before_a_graph_is_built() -> None:
    events.clear()
    problem = asked(large())
    solve([problem], [Recorded(), Watched()])
    assert events == ["look", "look", "look", "graph", "attack"]


def test_methods_that_were_not_examined_are_named() -> None:
    problem = asked(large())
    [record, *_] = solve([problem], [PGD(), Certify()], hf.Stop(queries=5))
    assert math.isfinite(record.bracket.upper.value)
    assert any(reason.startswith("Certify: the budget ended") for reason in record.skipped)


def test_the_worst_score_is_looked_at_too() -> None:
    known = large(classes=2)
    network = known.network((0, 1))
    region = Ball(known.x, torch.full((len(known.x),), 0.1), math.inf, (0, 1))
    problem = Problem(network, region, Robustness(known.y), "worst")
    method = PGD()
    state: Any = method.start(problem, 0)
    while method.is_opening(state):
        state, _ = method.step(problem, state)
    slope = problem.score_and_gradient(known.x)[1].abs().flatten(1).sum(1)
    expected = problem.score(known.x) - 0.1 * slope  # the domain is further away than the radius
    assert torch.allclose(state.score.float(), expected, rtol=1e-4)


def test_small_inputs_begin_as_ever() -> None:
    known = truth.linear(0)
    problem, method = asked(known), PGD()
    state = method.start(problem, 0)
    assert not method.is_opening(state)
    after, _ = method.step(problem, state)
    assert after is not None
    assert after.round == 1


batch_sizes: list[int] = []


class Counting(nn.Module):
    """Notes the size of every batch."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.inner = nn.Linear(128 * 128, 3)

    def forward(self, x: Tensor) -> Tensor:
        batch_sizes.append(len(x))
        answer: Tensor = self.inner(x.flatten(1))
        return answer


def test_gradients_of_large_inputs_are_taken_in_few_rows_and_are_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = Counting().eval()
    x = torch.rand(9, 1, 128, 128)
    network = hf.Network.from_torch(model, domain=(0, 1))
    problem = Problem(
        network, Ball(x, torch.ones(9), math.inf, (0, 1)), Robustness(network(x).argmax(1)), "worst"
    )
    points = torch.rand(2, 9, 1, 128, 128)
    whole = problem.score_and_gradient(points)
    batch_sizes.clear()
    most = 2 * memory_budget.ACTIVATION_BYTES_PER_NUMBER * 128 * 128
    monkeypatch.setattr("holdfast.problem.ELEMENTS_PER_CALL", 1)
    with memory_budget.within(most):
        parts = problem.score_and_gradient(points)
    assert max(batch_sizes) == 2
    for one, other in zip(whole, parts, strict=True):
        assert one.shape == other.shape
        assert torch.allclose(one, other, atol=1e-6)


@given(side=st.integers(1, 400), count=st.integers(1, 40))
def test_batches_of_large_inputs_hold_fewer_rows(side: int, count: int) -> None:
    class Nothing(Method[int]):
        def obstacle(self, problem: Problem) -> str | None:
            return None

        def start(self, problem: Problem, seed: int) -> int:
            return 0

        def step(self, problem: Problem, state: int) -> Any:
            raise AssertionError("batches are planned without a step")

    x = torch.zeros(1, 1, side, side).expand(count, -1, -1, -1)
    network = hf.Network.from_torch(nn.Sequential(nn.Flatten(), nn.Linear(side * side, 2)).eval())
    problem = Problem(
        network, Ball(x, torch.zeros(count)), Robustness(torch.zeros(count, dtype=torch.int64)), "radius"
    )
    worker = BatchWorker([problem], [Nothing()], hf.Stop(), 0, hashed=False)
    sizes = [len(unit.keys) for unit in worker.units(set(), None)]
    assert sum(sizes) == count
    assert max(sizes) * side * side <= 2**22
    assert next(len(unit.keys) for unit in worker.units(set(), 5)) == min(5, count)
