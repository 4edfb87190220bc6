"""Mesh search: directions and budgets as MADS wants them, minima that are known, and points that stay where they may be."""

import math
from dataclasses import fields, replace

import pytest
import torch
from torch import Tensor, nn

import holdfast as hf
import truth
from holdfast.attacks.mads import (
    POLL_OVER_MESH,
    Mads,
    begin_search,
    columns,
    integer_direction,
    minimise,
    propose_points,
    quasi_random,
    update_state,
)
from holdfast.attacks.mesh import Mesh, descend_mesh
from holdfast.errors import BadInput
from holdfast.problem import Problem
from holdfast.property import Linear
from holdfast.random_streams import RandomStreams
from holdfast.region import Ball, Box, Domain, Frames, Patch, Region
from holdfast.region.unit_box import Radial
from holdfast.result import Key
from holdfast.solver import solve

# ---- the minimiser


@pytest.mark.parametrize("n", [1, 2, 5, 64, 784, 3072])
def test_directions_are_whole_numbers_and_orthogonal(n: int) -> None:
    q = integer_direction(quasi_random(torch.rand(3, n, dtype=torch.float64), torch.tensor([1, 7, 1000])))
    length = q.square().sum(-1)
    assert bool((q == q.round()).all())
    assert bool((length > 0).all() and (length <= POLL_OVER_MESH).all())
    some = torch.randperm(n)[: min(n, 40)].expand(3, -1)
    found = columns(q, some)
    eye = torch.eye(some.shape[1], dtype=torch.float64)
    assert torch.equal(
        found @ found.transpose(1, 2), length.square()[:, None, None] * eye
    )  # whole numbers: exactly orthogonal


def test_a_poll_is_a_positive_basis_on_the_mesh() -> None:
    """All 2n directions of a whole poll: every half space holds some, and all are whole steps of the mesh."""
    n = 6
    state = begin_search(torch.full((4, n), 0.5), RandomStreams.of(range(4), 3))
    state = update_state(
        state, state.point[None], torch.zeros(1, 4)
    )  # the start is known; what follows fails
    points = propose_points(state, 5)
    state = update_state(state, points, torch.ones(5, 4))
    assert bool((state.asked == 0).all())
    state = replace(state, poll=torch.full((4,), 0.25, dtype=torch.float64))
    asked = []
    for _ in range(3):
        points = propose_points(state, 4)
        asked.append(points)
        state = update_state(state, points, torch.ones(4, 4))
    assert bool((state.poll == 0.125).all())
    steps = (torch.cat(asked) - 0.5) / (0.25 / POLL_OVER_MESH)
    assert torch.equal(steps, steps.round())
    assert bool((steps.norm(dim=-1) <= POLL_OVER_MESH).all())
    for row in steps.unbind(1):
        assert torch.linalg.matrix_rank(row) == n
        assert torch.equal(row.sum(0), torch.zeros(n, dtype=torch.float64))  # each with its negative
        towards = torch.randn(200, n, dtype=torch.float64)
        assert bool(((towards @ row.T).amax(1) > 0).all())


FUNCTIONS = {
    "smooth": lambda t, goal: (t - goal).square().sum(-1),
    "corner": lambda t, goal: t.sum(-1),
    "maximum": lambda t, goal: (t - goal).abs().amax(-1) + (t - goal).abs().sum(-1),
    "steps": lambda t, goal: ((t - goal).abs() * 1000).floor().sum(-1) / 1000,
}


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("n", [1, 4])
def test_minima_are_found(name: str, n: int) -> None:
    goal = torch.rand(20, n, dtype=torch.float64)
    found = minimise(
        lambda t: FUNCTIONS[name](t, goal),
        begin_search(torch.full((20, n), 0.5), RandomStreams.of(range(20), 0)),
        2000,
    )
    assert float(found.least.max()) < 1e-2  # all of them go down to zero
    assert torch.equal(FUNCTIONS[name](found.best, goal), found.least)


def test_a_collapsed_mesh_begins_elsewhere_and_finds_the_deeper_valley() -> None:
    """A wide valley at 0.1 and a deeper, narrower one at 0.8; the search begins in the wide one."""

    def valleys(t: Tensor) -> Tensor:
        return torch.minimum((t - 0.1).abs().sum(-1), 10 * (t - 0.8).abs().sum(-1) - 0.5)

    found = minimise(
        valleys, begin_search(torch.full((10, 1), 0.1), RandomStreams.of(range(10), 0)), 2400, block=4
    )
    assert bool((found.restarts > 0).all())
    assert float((found.least - -0.5).max()) < 1e-3


def test_nan_is_never_a_success() -> None:
    found = minimise(
        lambda t: torch.where(t[..., 0] < 0.5, torch.nan, t[..., 0]),
        begin_search(torch.full((5, 2), 0.9), RandomStreams.of(range(5), 0)),
        400,
    )
    assert bool((found.least >= 0.5).all())
    assert float(found.least.max()) < 0.501


@pytest.mark.parametrize("budget", [1, 2, 15, 16, 17, 333])
def test_the_budget_is_exact(budget: int) -> None:
    asked = []

    def objective(t: Tensor) -> Tensor:
        asked.append(t.shape[:2])
        return t.sum(-1)

    found = minimise(objective, begin_search(torch.rand(3, 7), RandomStreams.of(range(3), 0)), budget)
    assert sum(count for count, _ in asked) == found.queries == budget
    assert {rows for _, rows in asked} == {3}


def saved_and_back(state: Mads) -> Mads:
    """Through plain numbers, as a file would hold it."""
    copied = {f.name: getattr(state, f.name) for f in fields(state)}
    return Mads(
        **{key: value.clone() if isinstance(value, Tensor) else value for key, value in copied.items()}
    )


def test_a_saved_search_goes_on_bit_for_bit() -> None:
    goal = torch.rand(6, 9, dtype=torch.float64)

    def objective(t: Tensor) -> Tensor:
        return (t - goal).abs().sum(-1)

    halfway = minimise(objective, begin_search(torch.rand(6, 9), RandomStreams.of(range(6), 5)), 300)
    saved = saved_and_back(halfway)
    through = minimise(objective, halfway, 900)
    torch.manual_seed(99)
    again = minimise(objective, saved, 900)
    for f in fields(Mads):
        one, other = getattr(through, f.name), getattr(again, f.name)
        assert torch.equal(one, other) if isinstance(one, Tensor) else one == other, f.name
    other = minimise(objective, begin_search(torch.rand(6, 9), RandomStreams.of(range(6), 6)), 900)
    assert not torch.equal(other.best, again.best)


def test_starts_outside_the_box_are_refused() -> None:
    with pytest.raises(BadInput, match="between 0 and 1"):
        begin_search(torch.full((2, 3), 1.5), RandomStreams.of(range(2), 0))


# ---- charts


def region(kind: str, p: float = 2.0) -> Region:
    centre = torch.rand(4, 3, 5)
    centre[0, 0] = 0.0  # at an end of the domain
    radius = torch.tensor([0.3, 0.1, 0.0, 2.0], dtype=torch.float64)
    mask = torch.rand(4, 3, 5) < 0.5
    unit = Domain.of((0, 1))
    made: dict[str, Region] = {
        "ball": Ball(centre, radius, p, unit),
        "frames": Frames(centre, radius, p, unit, mask=torch.tensor([[1.0, 0.5, 0.0]]).expand(4, 3)),
        "patch": Patch(centre, radius, mask, unit),
        "box": Box(centre, centre - 0.2, centre + torch.rand(4, 3, 5)),
    }
    return made[kind]


@pytest.mark.parametrize(
    ("kind", "p"),
    [("ball", 1), ("ball", 2), ("ball", 3), ("ball", math.inf), ("frames", 2), ("patch", 2), ("box", 2)],
)
def test_charts_lead_into_the_region_and_back(kind: str, p: float) -> None:
    asked = region(kind, p)
    box = asked.box_map()
    assert isinstance(box, Radial) == (kind in ("ball", "frames") and not math.isinf(p))
    points = box.point(torch.rand(50, 4, 15, dtype=torch.float64))
    assert bool(asked.contains(points).all())
    inside = asked.sample(30, RandomStreams.of(range(len(asked)), 0))
    again = box.point(box.place(inside))
    assert float((again - inside).abs().max()) < 1e-5


def test_the_radial_chart_reaches_the_surface() -> None:
    asked = Ball(torch.zeros(1, 6), torch.tensor([0.7], dtype=torch.float64), 1)
    corners = asked.box_map().point(torch.eye(6, dtype=torch.float64).mul(0.5).add(0.5)[:, None])
    assert torch.allclose(asked.distance(corners), torch.tensor(0.7, dtype=torch.float64), rtol=1e-5)


# ---- the method


def linear_problem(region: Region, goal: str = "worst") -> Problem:
    n = region.centre[0].numel()
    model = nn.Sequential(nn.Flatten(), nn.Linear(n, 1))
    net = hf.Network.from_torch(model.eval())
    return Problem(
        net, region, Linear.of([1.0], batch=len(region)), goal, tuple(Key(i) for i in range(len(region)))
    )


def slopes_of(problem: Problem) -> Tensor:
    layer = next(m for m in problem.network.module.modules() if isinstance(m, nn.Linear))
    return layer.weight.detach().double().flatten()


@pytest.mark.parametrize("form", ["radial", "lagrangian"])
@pytest.mark.parametrize("p", [1, 2, math.inf])
def test_the_least_of_a_linear_function_over_a_ball(p: float, form: str) -> None:
    ball = Ball(torch.rand(3, 4), torch.full((3,), 0.5, dtype=torch.float64), p)
    problem = linear_problem(ball)
    found = solve([problem], [Mesh(rounds=3, queries=500, form=form)])
    exact = problem.score(ball.centre).double() - 0.5 * truth.length(slopes_of(problem), truth.dual(p))
    uppers = torch.tensor([record.bracket.upper.value for record in found], dtype=torch.float64)
    drop = problem.score(ball.centre).double() - exact
    assert bool((uppers >= exact - 1e-6).all())
    assert bool(((uppers - exact) / drop < (0.05 if form == "radial" else 0.2)).all())


@pytest.mark.parametrize("kind", ["ball", "frames", "patch", "box"])
def test_points_stay_in_every_kind_of_region(kind: str) -> None:
    problem = linear_problem(region(kind))
    start = problem.region.sample(2, RandomStreams.of(range(len(problem.region)), 0))
    points, scores = descend_mesh(problem, start, 100, 16, RandomStreams.of(problem.keys, 0))
    assert bool(problem.region.contains(points).all())
    assert torch.allclose(problem.score(points).double(), scores)
    assert bool((scores <= problem.score(start).double() + 1e-6).all())


@pytest.mark.parametrize("restarts", [1, 3])
@pytest.mark.parametrize("form", ["radial", "lagrangian"])
def test_the_queries_of_a_step_are_those_of_the_settings(restarts: int, form: str) -> None:
    problem = linear_problem(Ball(torch.rand(3, 4), torch.full((3,), 0.5, dtype=torch.float64), 2))
    method = Mesh(queries=77, restarts=restarts, form=form)
    state = method.start(problem, 0)
    before = problem.network.queries
    method.step(problem, state)
    assert problem.network.queries - before == 77 * restarts * 3


def test_radius_of_a_black_box() -> None:
    """A tie of two linear outputs: the distance is known, and the network is only a function."""
    weight = torch.tensor([[1.0, -2.0, 0.5], [-1.0, 1.0, 1.0]])
    net = hf.Network.from_callable(lambda x: x @ weight.T.numpy())
    x = torch.tensor([[0.9, -0.3, 0.2], [0.5, -0.6, -0.1]])
    y = (x @ weight.T).argmax(1)
    exact = ((x @ weight.T).gather(1, y[:, None]) - (x @ weight.T).gather(1, 1 - y[:, None])).flatten() / (
        weight[0] - weight[1]
    ).norm()
    brackets = hf.radius(net, x, y, norm=2, methods=[Mesh(queries=128)])
    for bracket, distance in zip(brackets, exact.tolist(), strict=True):
        assert distance * (1 - 1e-5) <= bracket.upper.value <= distance * 1.1
        assert bracket.lower.value == 0


def test_the_same_seed_gives_the_same_answer() -> None:
    problem = linear_problem(region("ball"))
    one, two, other = (
        [r.bracket.upper.value for r in solve([problem], [Mesh(rounds=2, queries=60)], seed=s)]
        for s in (1, 1, 2)
    )
    assert one == two != other


def test_an_endless_region_is_refused_in_words() -> None:
    endless = Ball(torch.zeros(1, 2), torch.tensor([torch.inf], dtype=torch.float64), 2)
    assert "bounded" in (Mesh().obstacle(linear_problem(endless)) or "")
    assert Mesh().obstacle(linear_problem(region("box"))) is None


@pytest.mark.parametrize("options", [{"queries": 0}, {"block": 0}, {"form": "square"}, {"rounds": 0}])
def test_settings_that_mean_nothing_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(BadInput):
        Mesh(**options)  # type: ignore[arg-type]
