"""Cuts of ranges: children cover their parent, and no point of a part is below its bound, with and without second-order models."""

import math
from functools import cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import holdfast as hf
from holdfast import batch, time_limit
from holdfast.bounding.branching.nonlinear_split import NonlinearSplit, RangeSubproblems, _cut_once
from holdfast.bounding.branching.preactivation_score import preactivations_of, split_points
from holdfast.bounding.branching.subproblem_queue import PolytopeQuestion
from holdfast.bounding.graph.graph import Affine, Graph, InputNode, Relaxed, build
from holdfast.bounding.quadratic_models import Quadratic
from holdfast.property import Avoid
from holdfast.random_streams import RandomStreams
from holdfast.region import Ball, Region
from sizes import combinations

INPUTS = 6


class Cell(nn.Module):
    def __init__(self, cell: type[nn.RNNBase]) -> None:
        super().__init__()
        self.cell, self.head = cell(3, 3, batch_first=True), nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.head(self.cell(x.unflatten(1, (2, 3)))[0][:, -1])
        return scores


@cache
def asked(kind: str) -> tuple[Graph, Tensor]:
    torch.manual_seed(7)
    tanh = nn.Sequential(nn.Linear(INPUTS, 5), nn.Tanh(), nn.Linear(5, 4), nn.Sigmoid(), nn.Linear(4, 2))
    module = tanh if kind == "tanh" else Cell({"lstm": nn.LSTM, "gru": nn.GRU}[kind])
    with torch.no_grad():
        for weight in module.parameters():
            weight.mul_(2.5)
    x = torch.randn(2, INPUTS)
    return build(hf.Network.from_torch(module.eval()), x), x


def values(graph: Graph, x: Tensor) -> dict[object, Tensor]:
    """Every node at points x (n, inputs), in float64."""
    found: dict[object, Tensor] = {}
    for node in graph.nodes:
        if isinstance(node, InputNode):
            found[node] = x
        elif isinstance(node, Affine):
            found[node] = node.forward([found[s] for s in node.inputs])
        else:
            assert isinstance(node, Relaxed)
            found[node] = node.relaxation.function(*(found[s] for s in node.inputs))
    return found


def question(graph: Graph, x: Tensor, p: float, radius: float) -> PolytopeQuestion:
    region = Ball(x, torch.full((len(x),), radius, dtype=torch.float64), p)
    matrix = torch.tensor([[[1.0, -1.0], [-1.0, 2.0]]], dtype=torch.float64).expand(len(x), -1, -1)
    return PolytopeQuestion(
        graph, region, Avoid.failing(matrix, torch.full(matrix.shape[:2], -0.5, dtype=torch.float64))
    )


def rule(graph: Graph, models: bool) -> NonlinearSplit:
    if not models:
        return NonlinearSplit()
    view = Quadratic(graph)
    coefficients = {
        key: 0.3 * torch.randn_like(value) for key, value in view.zero_coefficients(2, torch.float32).items()
    }  # any coefficients are sound
    return NonlinearSplit(view=view, coefficients=coefficients)


def inside(asked: PolytopeQuestion, parts: RangeSubproblems, x: Tensor, task: Tensor) -> Tensor:
    """x (points, inputs), each of a task -> (points, parts) bool: which parts hold it."""
    met = values(asked.graph, x)
    held = torch.cat([met[node] for node in preactivations_of(asked.graph)], dim=1)[:, None]
    slack = 1e-12 * (1 + held.abs())
    fits = ((held >= parts.low - slack) & (held <= parts.high + slack)).all(-1)
    fits &= ((x[:, None] >= parts.lower) & (x[:, None] <= parts.upper)).all(-1)
    return fits & (task[:, None] == parts.task)


def points(region: Region, count: int, seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.cat(
        [
            region.sample(count, RandomStreams.of(range(len(region)), seed)),
            region.vertex(torch.randn(count, *region.centre.shape, generator=generator)),
        ]
    )
    return x.flatten(0, 1).double(), torch.arange(len(region)).repeat(len(x))


@pytest.mark.parametrize(
    ("kind", "p", "models"),
    combinations(["tanh", "lstm", "gru"], [1, 2, math.inf], [False, True], together=2),
)
@settings(max_examples=4, deadline=None)
@given(radius=st.floats(0.05, 1.0), seed=st.integers(0, 2**16))
def test_parts_cover_all_failures_and_no_point_is_below_its_part(
    kind: str, p: float, models: bool, radius: float, seed: int
) -> None:
    graph, x = asked(kind)
    torch.manual_seed(seed)
    ask, cut = question(graph, x, p, radius), rule(graph, models)
    frontier = cut.start(graph, ask.region, ask.rules)
    where, task = points(ask.region, 60, seed)
    where = torch.cat([where, _downhill(ask, where, task)])
    task = torch.cat([task, task])
    score = batch.take(ask.rules, task).score(values(graph, where)[graph.output])
    for _ in range(5):
        if len(frontier) > 64 or not len(frontier):
            break
        frontier, _ = cut.advance(ask, frontier)
        held = inside(ask, frontier, where, task)
        assert bool(held[score <= -1e-9].any(1).all())  # a failure is in some part that waits
        least = torch.where(held, frontier.bound, -torch.inf).amax(1)
        assert bool((score >= least - 1e-9).all())


def _downhill(ask: PolytopeQuestion, x: Tensor, task: Tensor) -> Tensor:
    """A few steps of gradient descent of the score, kept in the region."""
    rules, region = batch.take(ask.rules, task), batch.take(ask.region, task)
    for _ in range(4):
        x = x.detach().requires_grad_()
        (slope,) = torch.autograd.grad(rules.score(values(ask.graph, x)[ask.graph.output]).sum(), x)
        x = region.project(
            x.detach()
            - 0.2 * region.radius[:, None] * slope / slope.norm(dim=1, keepdim=True).clamp_min(1e-9)
        )
    return x.detach()


@given(st.integers(0, 2**16), st.sampled_from([1.0, 2.0, math.inf]))
@settings(max_examples=20, deadline=None)
def test_both_sides_of_a_cut_cover_the_part(seed: int, p: float) -> None:
    graph, x = asked("lstm")
    torch.manual_seed(seed)
    ask, cut = question(graph, x, p, 0.5), NonlinearSplit()
    parts = cut.bound(ask, cut.start(graph, ask.region, ask.rules)).parts
    parts = replace_gain(parts, torch.rand_like(torch.nan_to_num(parts.gain)))
    where, task = points(ask.region, 50, seed)
    for _ in range(3):
        before, (parts, stuck) = parts, _cut_once(ask, parts)
        assert not bool(stuck.any())
        assert torch.equal(inside(ask, before, where, task).any(1), inside(ask, parts, where, task).any(1))
        parts = replace_gain(parts, torch.rand_like(torch.nan_to_num(parts.gain)))


def replace_gain(parts: RangeSubproblems, gain: Tensor) -> RangeSubproblems:
    return batch.take(RangeSubproblems(**{**parts.__dict__, "gain": gain}), torch.arange(len(parts)))


@given(st.floats(-5, 5), st.floats(0, 5))
def test_a_cut_lies_inside_its_range(low: float, width: float) -> None:
    ends = torch.tensor([low], dtype=torch.float64), torch.tensor([low + width], dtype=torch.float64)
    point = split_points(*ends)
    assert bool((ends[0] <= point).all() and (point <= ends[1]).all())
    assert float(point) == 0 or abs(float(point) - low - width / 2) <= 1e-9


@pytest.mark.parametrize("models", [False, True])
def test_what_the_clock_leaves_no_time_for_stays_as_it_was(models: bool) -> None:
    graph, x = asked("gru")
    ask, cut = question(graph, x, 2, 1.0), rule(graph, models)
    frontier, _ = cut.advance(ask, cut.start(graph, ask.region, ask.rules))
    with time_limit.within(0.0):
        after, _ = cut.advance(ask, frontier)
    for before, now in zip(batch.tensors(frontier), batch.tensors(after), strict=True):
        torch.testing.assert_close(
            now[after.depth.argsort(stable=True)], before[frontier.depth.argsort(stable=True)], equal_nan=True
        )
