"""Proved counts against everything that could contradict them: all subsets, dense values, attacks, exact arithmetic, another engine."""

import itertools
import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from hamming_truth import (
    UNIT,
    counting,
    deep_cnn,
    everything,
    inputs,
    pixels,
    random_network,
    randomised,
    small_cnn,
    smallest,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from holdfast import batch, time_limit
from holdfast.bounding.graph.graph import build
from holdfast.errors import BadInput
from holdfast.hamming import budget_split
from holdfast.hamming.branch import Branch, BudgetTree
from holdfast.hamming.budget_split import BudgetQuestion, BudgetSplit, Domains, region_of
from holdfast.hamming.greedy import Greedy
from holdfast.hamming.layer_chain import chain_of
from holdfast.network import Network
from holdfast.problem import Problem
from holdfast.property import Custom, Linear, Robustness
from holdfast.random_streams import RandomStreams
from holdfast.region import Ball, Sparse
from holdfast.region.budget import Budget
from holdfast.result import Bracket, Key
from holdfast.solver import Stop, solve
from sizes import count

GRID = torch.linspace(0, 1, 9)


def asked(model: nn.Module, region: Sparse) -> Problem:
    network = Network.from_torch(model, domain=(0, 1))
    return counting(network, region, network(region.centre).argmax(-1))


def brackets(problem: Problem, method: Branch | None = None, stop: Stop | None = None) -> list[Bracket]:
    return [r.bracket for r in solve([problem], [method or Branch()], stop)]


def agrees(model: nn.Module, region: Sparse, values: Tensor = GRID, **options: object) -> None:
    """The brackets are closed, and what they say is what trying everything on a grid says."""
    problem = asked(model, region)
    assert isinstance(problem.property, Robustness)
    truth = smallest(model, region, problem.property.label, values)
    for found, fewest in zip(brackets(problem, Branch(**options)), truth, strict=True):  # type: ignore[arg-type]
        assert found.closed
        assert found.lower.evidence.kind == "proved"
        assert found.lower.value == fewest - 1


# ---------------------------------------------------------------- the whole answer


@pytest.mark.parametrize("seed", range(6))
def test_counts_of_small_networks_are_those_of_trying_everything(seed: int) -> None:
    """Up to four changed numbers, all subsets, nine values for each."""
    agrees(random_network(seed, (5,), sharp=1.0), pixels(inputs(seed, 5, (5,))))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("make", [small_cnn, deep_cnn])  # the latter by sums of effects
def test_counts_of_small_images(make: Callable[[int], nn.Module], seed: int) -> None:
    x = inputs(seed, 4, (1, 4, 4))
    free = torch.zeros(1, 1, 4, 4, dtype=torch.bool)
    free[..., 1:3, 0:3] = True
    model, values = make(seed), torch.linspace(0, 1, 5)
    problem = asked(model, pixels(x, axes=(0,), free=free))
    assert isinstance(problem.property, Robustness)
    truth = [
        fewest_on_grid(model, x[row], int(problem.property.label[row]), free[0, 0], values)
        for row in range(4)
    ]
    for found, fewest in zip(brackets(problem), truth, strict=True):
        assert found.closed
        assert found.lower.value == (fewest - 1)


def fewest_on_grid(
    model: nn.Module, x: Tensor, label: int, free: Tensor, values: Tensor, most: int = 6
) -> float:
    """Over all sets of free pixels, all values of a grid for each of them."""
    places = free.nonzero().tolist()
    for size in range(1, most + 1):
        for chosen in itertools.combinations(places, size):
            points = x.expand(len(values) ** size, *x.shape).clone()
            grid = torch.cartesian_prod(*[values] * size).reshape(len(points), size)
            for k, (i, j) in enumerate(chosen):
                points[:, 0, i, j] = grid[:, k]
            with torch.no_grad():
                if bool((model(points).argmax(-1) != label).any()):
                    return size
    return math.inf


def test_colour_pixels_change_as_one() -> None:
    agrees(
        small_cnn(1, channels=3, side=2), pixels(inputs(1, 3, (3, 2, 2)), axes=(0,)), torch.tensor([0.0, 1.0])
    )


def test_what_is_locked_stays() -> None:
    x = inputs(3, 4, (5,))
    free = torch.tensor([[True, False, True, False, True]])
    model = random_network(3, (5,), sharp=1.0)
    agrees(model, pixels(x, free=free))
    alone = brackets(asked(model, pixels(x)))
    held = brackets(asked(model, pixels(x, free=free)))
    assert all(a.lower.value <= h.lower.value for a, h in zip(alone, held, strict=True))


def test_few_levels_are_decided_exactly() -> None:
    """Between the levels the class may flip as it likes: only they count."""
    levels = torch.tensor([0.0, 0.4, 1.0])
    for seed in range(3):
        agrees(random_network(seed, (4,), sharp=3.0), pixels(inputs(seed, 3, (4,)), levels=levels), levels)


@pytest.mark.usefixtures("cpu_clock")
@pytest.mark.parametrize("cell", [nn.RNN, nn.LSTM])
def test_frames_of_recurrent_networks(cell: type[nn.Module]) -> None:
    """Not a chain: the engine bounds it. A frame of two features is one unit."""

    class Reader(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell, self.head = cell(2, 3, batch_first=True), nn.Linear(3, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.cell(x)[0][:, -1])  # type: ignore[no-any-return]

    model = randomised(Reader(), 4, 1.5)
    x = inputs(4, 3, (3, 2))
    problem = asked(model, pixels(x, axes=(1,)))
    assert chain_of(build(problem.network, x), torch.arange(6).reshape(3, 2)) is None
    assert isinstance(problem.property, Robustness)
    truth = smallest(model, pixels(x, axes=(1,)), problem.property.label, torch.linspace(0, 1, 5))
    for found, fewest in zip(brackets(problem, stop=Stop(seconds=20)), truth, strict=True):
        assert found.lower.value <= fewest - 1 <= found.upper.value
        assert found.lower.value > 0 or found.closed


def test_linear_properties_and_rows_that_are_proved_early() -> None:
    model = random_network(7, (5,), sharp=1.0)
    network = Network.from_torch(model, domain=(0, 1))
    x = inputs(7, 4, (5,))
    rows = torch.tensor([[1.0, -1.0, 0.0], [0.5, 0.5, -1.0]], dtype=torch.float64).expand(4, 2, 3)
    offset = -(rows @ network(x).double()[..., None]).squeeze(-1) + torch.tensor(
        [3.0, 25.0], dtype=torch.float64
    )
    problem = Problem(network, pixels(x), Linear(rows, offset), "radius", tuple(Key(i) for i in range(4)))
    for row, found in enumerate(brackets(problem)):
        points = everything(x[row], GRID)
        score = batch.take(problem.property, torch.tensor([row])).score(network(points)[:, None])[:, 0]
        away = (points != x[row]).sum(1).double()
        assert found.closed
        assert found.lower.value == float(torch.where(score <= 0, away, math.inf).min()) - 1


# ---------------------------------------------------------------- values inside the domain


def bump(width: float, height: float) -> nn.Module:
    """Two numbers; the margin is 1 but for a tent of this width and height under it, around 0.6 of the first; both ends are safe."""
    model = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 2))
    with torch.no_grad():
        model[0].weight.copy_(torch.tensor([[1.0, 0.0], [1.0, 0.0], [1.0, 0.0]]))  # type: ignore[operator]
        model[0].bias.copy_(torch.tensor([-(0.6 - width), -0.6, -(0.6 + width)]))  # type: ignore[operator]
        model[2].weight.copy_(torch.tensor([[0.0, 0.0, 0.0], [1.0, -2.0, 1.0]]) * height / width)  # type: ignore[operator]
        model[2].bias.copy_(torch.tensor([1.0, 0.0]))  # type: ignore[operator]
    return model.eval()


def test_a_flip_at_an_inner_value_is_found() -> None:
    region = pixels(torch.tensor([[0.1, 0.5]]))
    (found,) = brackets(asked(bump(0.05, 1.5), region))
    assert (found.lower.value, found.upper.value) == (0, 0)
    witness = found.upper.evidence.witness
    assert witness is not None
    assert 0.55 < float(witness[0]) < 0.65


def test_a_dent_that_does_not_reach_through_is_proved_by_halving_values() -> None:
    (found,) = brackets(asked(bump(0.05, 0.9), pixels(torch.tensor([[0.1, 0.5]]))))
    assert found.lower.value == math.inf


def test_a_needle_is_never_proved_away() -> None:
    """Too fine for any grid: it is found or the count stays unknown."""
    for finest in (0.3, 2.0**-16):
        (found,) = brackets(
            asked(bump(1e-4, 1.01), pixels(torch.tensor([[0.1, 0.5]]))), Branch(finest=finest)
        )
        assert found.lower.value == 0


def test_a_tie_is_no_proof() -> None:
    (found,) = brackets(asked(bump(0.05, 1.0), pixels(torch.tensor([[0.1, 0.5]]))))
    assert found.lower.value == 0


# ---------------------------------------------------------------- no attack gets below a proof


@pytest.mark.usefixtures("cpu_clock")
def test_no_attack_breaks_what_is_proved() -> None:
    from holdfast.datasets.digits import digits
    from holdfast.datasets.digits_networks import digits_cnn

    data = digits("test")
    network = Network.from_torch(digits_cnn(), domain=(0, 1))
    images = count(6, full=12)
    x, y = data.x[:images], data.y[:images]
    problem = counting(network, Sparse(x, torch.zeros(images), UNIT, axes=(0,)), y)
    found = [r.bracket for r in solve([problem], [Greedy(), Branch()], Stop(seconds=20))]
    assert sum(b.closed for b in found) >= images - 2
    assert any(b.lower.value >= 2 for b in found)
    generator = torch.Generator().manual_seed(0)
    for row, one in enumerate(found):
        proved = int(one.lower.value)
        if proved > 0:
            assert lowest_under_attack(problem.take(torch.tensor([row])), proved, generator) > 0


def lowest_under_attack(
    problem: Problem, count: int, generator: torch.Generator, tries: int = 400, steps: int = 15
) -> float:
    """Random sets of so many pixels; signed gradient steps and random corners inside each."""
    centre = problem.region.centre
    chosen = torch.rand((tries, 64), generator=generator).argsort(1)[:, :count]
    mask = torch.zeros(tries, 64).scatter(1, chosen, 1.0).reshape(tries, 1, *centre.shape[1:])
    x = centre + mask * (torch.rand(mask.shape, generator=generator).round() - centre)
    lowest = math.inf
    for step in range(steps):
        score, slope = problem.score_and_gradient(x)
        lowest = min(lowest, float(score.min()))
        x = (x - mask * slope.sign() * 0.5 / (1 + step)).clamp(0, 1)
    return lowest


# ---------------------------------------------------------------- children cover their parents


def question_of(
    seed: int, axes: tuple[int, ...], shape: tuple[int, ...], levels: Tensor | None = None
) -> tuple[Problem, BudgetQuestion]:
    x = inputs(seed, 2, shape)
    free = (
        torch.rand(
            (2, *(1 if a in axes else n for a, n in enumerate(shape))),
            generator=torch.Generator().manual_seed(seed),
        )
        < 0.9
    )
    free.flatten(1)[:, :3] = True
    problem = asked(random_network(seed, shape), pixels(x, axes=axes, free=free, levels=levels))
    return problem, budget_split.question_of(problem)


def random_domains(question: BudgetQuestion, seed: int, count: int) -> Domains:
    """Domains with any groups and budgets, none of which has more groups than budget."""
    generator = torch.Generator().manual_seed(seed)
    row = torch.randint(0, 2, (6,), generator=generator)
    groups = torch.randint(1, count + 1, (6, 1), generator=generator)
    label = torch.randint(-1, 10**6, (6, len(question.elements)), generator=generator)
    label = torch.where(question.free[row] & (label >= 0), label % groups, -1)
    label[:, :1] = 0
    used = (label[:, None] == torch.arange(count)[:, None]).sum(-1)
    budgets = torch.where(used > 0, 1, 0)
    budgets[:, 0] += torch.randint(0, 9, (6,), generator=generator) % (count + 1 - budgets.sum(1))
    ends = torch.full((6, count, question.elements.shape[1]), math.inf, dtype=torch.float64)
    return Domains(
        row, torch.ones(6, question.rows.shape[1], dtype=torch.bool), torch.randn(6, generator=generator, dtype=torch.float64) * 3,
        group=label.to(torch.int16), budgets=budgets, low=-ends, high=ends, inner=torch.zeros(6, 2, question.inner),
    )  # fmt: skip


@settings(max_examples=25)
@given(seed=st.integers(0, 10_000), which=st.integers(0, 3), count=st.integers(1, 4))
def test_every_point_of_a_domain_lies_in_one_of_its_children(seed: int, which: int, count: int) -> None:
    shape, axes = [((7,), ()), ((1, 3, 3), (0,)), ((2, 2, 2), (0,)), ((3, 2), (1,))][which]
    _, question = question_of(seed % 7, axes, shape)
    generator = torch.Generator().manual_seed(seed)
    nodes = random_domains(question, seed, count)
    for turn in range(6):  # children of children too, down to halves of values
        region = region_of(question, nodes)
        slopes = torch.randn(region.centre.shape, generator=generator, dtype=torch.float64)
        points = torch.cat(
            [region.sample(25, RandomStreams.of(range(len(region)), turn)), region.vertex(slopes)[None]]
        )
        children, stuck = BudgetSplit(1, 1, 2.0**-10).cut(question, nodes, slopes)
        assert not stuck.any()
        inside = region_of(question, children)
        for k in range(len(nodes)):
            mine = (children.task == nodes.task[k]).nonzero().flatten()
            assert inside_any(batch.take(inside, mine), points[:, k])
        assert (children.budgets.sum(1) <= nodes.budgets.sum(1).max()).all()
        nodes = batch.take(children, torch.randperm(len(children), generator=generator)[:6])


def inside_any(regions: Budget, points: Tensor) -> bool:
    """Does each of the points (n, *shape) lie in one of the regions? Their centres may have moved, so by what they say of changes."""
    return bool(regions.contains(points[:, None]).any(1).all())


@pytest.mark.parametrize("seed", range(5))
def test_every_level_lies_in_one_of_the_halves(seed: int) -> None:
    levels = torch.tensor([0.0, 0.3, 0.35, 1.0])
    _, question = question_of(seed, (), (3,), levels)
    ends = torch.full((1, 2, 1), math.inf, dtype=torch.float64)
    nodes = Domains(
        torch.tensor([0]), torch.ones(1, 2, dtype=torch.bool), torch.tensor([-1.0], dtype=torch.float64),
        group=torch.tensor([[0, 1, -1]], dtype=torch.int16), budgets=torch.tensor([[1, 1]]), low=-ends, high=ends,
        inner=torch.zeros(1, 2, 0),
    )  # fmt: skip
    options = [torch.cat([question.x[0, k], levels.float().double()]) for k in range(2)]
    points = torch.cartesian_prod(*options, question.x[0, 2])
    for _ in range(12):
        region = region_of(question, nodes)
        slopes = torch.randn(
            region.centre.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64
        )
        children, stuck = BudgetSplit(1, 1, 2.0**-30).cut(question, nodes, slopes)
        nodes = batch.concatenate([children, batch.take(nodes, stuck)])
        covered = [
            ((p >= r.lower[0]) & (p <= r.upper[0])).all()
            for p in points
            for r in split(region_of(question, nodes))
        ]
        assert torch.stack(covered).reshape(len(points), -1).any(1).all()
    left = region_of(question, nodes)
    assert (left.upper == left.lower)[:, :2].all()  # nothing but levels is left


def split(region: Budget) -> list[Budget]:
    return [batch.take(region, torch.tensor([k])) for k in range(len(region))]


# ---------------------------------------------------------------- the search itself


def stepped(problem: Problem, method: Branch, steps: int) -> list[Tensor]:
    """What is proved after each step."""
    state, found = method.start(problem, 0), []
    for _ in range(steps):
        state, claims = method.step(problem, state)  # type: ignore[arg-type, assignment]
        assert claims.proved is not None
        found.append(claims.proved)
        if state is None:
            break
    return found


def test_an_interrupted_proof_claims_nothing_that_is_not_finished() -> None:
    """One domain at a time: a count is claimed only when the last of its domains is gone."""
    problem = asked(small_cnn(2), pixels(inputs(2, 3, (1, 4, 4)), axes=(0,)))
    truth = torch.tensor([b.lower.value for b in brackets(problem)])
    method, state = Branch(nodes_at_once=1), Branch(nodes_at_once=1).start(problem, 0)
    before = torch.zeros(3, dtype=torch.float64)
    while state is not None:
        open_rows = set(state.frontier.task.tolist())
        count = len(state.frontier)
        state, claims = method.step(problem, state)
        assert claims.proved is not None
        assert (claims.proved <= torch.nan_to_num(truth, posinf=16)).all()
        risen = (claims.proved > before).nonzero().flatten().tolist()
        assert set(risen) <= open_rows
        assert len(risen) <= 1
        assert count >= 1
        before = claims.proved
    assert torch.equal(before, torch.nan_to_num(truth, posinf=16))


def test_a_short_queue_and_single_steps_change_nothing_but_the_order() -> None:
    problem = asked(small_cnn(0), pixels(inputs(0, 3, (1, 4, 4)), axes=(0,)))
    usual = [(b.lower.value, b.upper.value) for b in brackets(problem)]
    for method in (Branch(queue=1), Branch(nodes_at_once=1), Branch(nodes_at_once=7, queue=3)):
        assert [(b.lower.value, b.upper.value) for b in brackets(problem, method)] == usual


def test_little_memory_changes_nothing_but_the_order(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = asked(deep_cnn(3), pixels(inputs(3, 3, (1, 4, 4)), axes=(0,)))
    usual = [(b.lower.value, b.upper.value) for b in brackets(problem)]
    assert any(0 < lower < math.inf for lower, _ in usual)
    for name in ("MAX_REMEMBERED_VALUES", "MAX_QUEUED_LABELS", "MAX_SPLIT_LEVELS"):
        monkeypatch.setattr(budget_split, name, 1)
        assert [(b.lower.value, b.upper.value) for b in brackets(problem)] == usual


def test_the_same_question_is_answered_by_the_same_steps() -> None:
    problem = asked(deep_cnn(1), pixels(inputs(1, 3, (1, 4, 4)), axes=(0,)))
    one, two = (stepped(problem, Branch(nodes_at_once=16), 30) for _ in range(2))
    assert len(one) == len(two)
    assert all(torch.equal(a, b) for a, b in zip(one, two, strict=True))


def test_rows_do_not_disturb_each_other() -> None:
    problem = asked(small_cnn(5), pixels(inputs(5, 4, (1, 4, 4)), axes=(0,)))
    together = [(b.lower.value, b.upper.value) for b in brackets(problem)]
    alone = [
        (b.lower.value, b.upper.value)
        for row in range(4)
        for b in brackets(problem.take(torch.tensor([row])))
    ]
    assert together == alone


def test_what_others_found_ends_the_search() -> None:
    problem = asked(small_cnn(0), pixels(inputs(0, 2, (1, 4, 4)), axes=(0,)))
    method = Branch()
    state = method.update_bounds(
        problem, method.start(problem, 0), torch.zeros(2), torch.tensor([0.0, math.inf])
    )
    assert set(state.frontier.task.tolist()) == {1}
    state = method.update_bounds(problem, state, torch.zeros(2), torch.tensor([0.0, 0.0]))
    over, claims = method.step(problem, state)
    assert over is None
    assert claims.proved is not None
    assert claims.proved.tolist() == [0, 0]


def test_what_others_proved_is_not_proved_again() -> None:
    """Whatever count below the truth is known from elsewhere, the answers are the same; and where all is known, nothing is asked."""
    problem = asked(deep_cnn(3), pixels(inputs(3, 3, (1, 4, 4)), axes=(0,)))
    truth = torch.tensor([b.lower.value for b in brackets(problem)], dtype=torch.float64)
    most, method = torch.full_like(truth, math.inf), Branch()
    for known in (torch.zeros_like(truth), truth - 1, truth):
        state: BudgetTree | None = method.update_bounds(problem, method.start(problem, 0), known, most)
        while state is not None:
            assert (state.safe >= torch.nan_to_num(known, posinf=16)).all()
            state, claims = method.step(problem, state)
        assert claims.proved is not None
        assert torch.equal(claims.proved, torch.nan_to_num(truth, posinf=16))
    state = method.update_bounds(problem, method.start(problem, 0), truth, truth)
    assert len(state.frontier) == 0


def test_a_look_that_the_clock_ends_proves_nothing_and_loses_nothing() -> None:
    problem = asked(deep_cnn(3), pixels(inputs(3, 3, (1, 4, 4)), axes=(0,)))
    truth = torch.nan_to_num(torch.tensor([b.lower.value for b in brackets(problem)]), posinf=16)
    method = Branch(nodes_at_once=8)
    state, claims = method.start(problem, 0), None
    for turn in itertools.count():
        before = state
        with time_limit.within(0.0 if turn % 2 else math.inf):
            state, claims = method.step(problem, before)
        if state is None:
            break
        if turn % 2:  # nothing was looked at, so all of it still waits
            assert torch.equal(state.safe, before.safe)
            assert sorted(state.frontier.task.tolist()) == sorted(before.frontier.task.tolist())
    assert claims.proved is not None
    assert torch.equal(claims.proved, truth.double())


def test_what_it_cannot_do_it_says() -> None:
    model = small_cnn(0)
    x = inputs(0, 2, (1, 4, 4))
    problem = asked(model, pixels(x, axes=(0,)))
    assert Branch().obstacle(problem) is None
    ball = replace(problem, region=Ball(x, torch.zeros(2), 2, UNIT))
    assert "how many units" in str(Branch().obstacle(ball))
    assert "bounds radii, not worst scores" in str(Branch().unfit(replace(problem, goal="worst")))
    custom = replace(problem, property=Custom(lambda z: z[..., 0]))
    assert "linear rows" in str(Branch().obstacle(custom))
    black_box = Network.from_callable(lambda v: model(torch.as_tensor(v)).detach().numpy(), domain=(0, 1))
    assert "black box" in str(Branch().obstacle(replace(problem, network=black_box)))
    for settings_ in ({"nodes_at_once": 0}, {"queue": 0}, {"finest": 0.0}, {"finest": 1.0}):
        with pytest.raises(BadInput, match="Branch"):
            Branch(**settings_)  # type: ignore[arg-type]
