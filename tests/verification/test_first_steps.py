"""The first steps of `verify`: a short search, a first bound after one pass, and then the queue of subproblems."""

import math
from itertools import pairwise

import pytest
import torch
from torch import nn

import holdfast as hf
from holdfast.bounding.branching.relu_split import ActivationSplit
from holdfast.problem import Problem
from holdfast.verification.branch_and_bound import EARLY_SPLITS, BranchAndBound
from holdfast.verification.search import Scatter
from holdfast.verification.specification import problem_of
from holdfast.verification.vnnlib import parse


def convolution(seed: int = 0) -> hf.Network:
    torch.manual_seed(seed)
    layers = nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Conv2d(2, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(12, 2)
    return hf.Network.from_torch(nn.Sequential(*layers).eval(), shape=(1, 6, 6))


def above(net: hf.Network, share: float) -> Problem:
    """Inputs in [0, 0.5]; forbidden is a first output above its largest sampled value times a factor."""
    inputs = math.prod(net.shape or ())  # type: ignore[arg-type]
    highest = float(net(0.5 * torch.rand(500, *net.shape))[:, 0].max())  # type: ignore[misc]
    lines = [
        f"(declare-const X_{k} Real)(assert (>= X_{k} 0.0))(assert (<= X_{k} 0.5))" for k in range(inputs)
    ]
    lines += ["(declare-const Y_0 Real)", "(declare-const Y_1 Real)", f"(assert (>= Y_0 {highest + share}))"]
    return problem_of(net, parse("\n".join(lines)))


def test_the_first_bound_comes_before_the_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    problem, method, made = above(convolution(), 0.02), BranchAndBound(), []
    start = ActivationSplit.start
    monkeypatch.setattr(
        ActivationSplit, "start", lambda self, *given: (made.append(self), start(self, *given))[1]
    )
    state, claims = method.step(problem, method.start(problem, 0))
    assert not made
    assert claims.proved is not None
    assert math.isfinite(float(claims.proved[0]))
    assert state is not None
    first = float(claims.proved[0])
    state, claims = method.step(problem, state)
    assert made == [EARLY_SPLITS]  # a network with convolutions is split at once
    assert claims.proved is not None
    assert float(claims.proved[0]) >= first


def test_a_fully_connected_network_refines_its_bounds_first(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(20, 12), nn.ReLU(), nn.Linear(12, 2)).eval()
    problem, made = above(hf.Network.from_torch(model, shape=(20,)), 0.1), list[ActivationSplit]()
    start = ActivationSplit.start
    monkeypatch.setattr(
        ActivationSplit, "start", lambda self, *given: (made.append(self), start(self, *given))[1]
    )
    state, _ = BranchAndBound().step(problem, BranchAndBound().start(problem, 0))
    if state is not None:
        BranchAndBound().step(problem, state)
    assert made in ([ActivationSplit()], [])


def test_the_first_search_is_short_and_later_ones_grow() -> None:
    problem, method = above(convolution(2), 5.0), Scatter()
    state, counts = method.start(problem, 0), []
    assert method.is_opening(state)
    while state is not None:
        before = problem.network.queries
        state, claims = method.step(problem, state)
        counts.append(problem.network.queries - before)
        assert claims.witness is not None
        assert bool(problem.region.contains(claims.witness).all())
        assert state is None or not method.is_opening(state)
    assert len(counts) == 4
    assert all(later > 2 * earlier for earlier, later in pairwise(counts))
    assert counts[0] < counts[-1] / 30


def test_a_search_for_a_value_has_all_rounds_before_the_proofs() -> None:
    problem, method = above(convolution(2), 5.0), Scatter.closely(1)
    state, rounds = method.start(problem, 0), 0
    while state is not None:
        assert method.is_opening(state)
        state, _ = method.step(problem, state)
        rounds += 1
    assert rounds == 3
