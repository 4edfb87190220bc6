"""The tiers above fast: never below it, never above an attack, and worth their time."""

import io
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from torch import Tensor, nn

import holdfast as hf
from clocks import TestClock
from holdfast import memory_budget, time_limit
from holdfast.api.radius import default_methods, radius_problems
from holdfast.certify.phase import Phase
from holdfast.certify.quadratic_training import CoefficientTraining, InitialCoefficients, quadratic_of
from holdfast.certify.tight_tier import TIME_ENDED_EARLY, TightState
from holdfast.method import Claims
from holdfast.question import Question
from holdfast.random_streams import RandomStreams
from holdfast.region import Ball, Box, Frames
from holdfast.report.page import render
from holdfast.report.table import table
from holdfast.result import Bracket, Key
from sizes import FULL, count, every, full_only, some

# One attack is enough to contradict a bound that is too high; the full suite tries three.
ATTACKS = every(
    [hf.attacks.PGD(rounds=3), hf.attacks.CarliniWagner(rounds=2), hf.attacks.Corners(rounds=2)], 3
)
# Radii that each phase of tier tight tries: one that succeeds and one that fails pass through all of its code.
FEW_RADII: dict[str, Any] = {} if FULL else {"trials": 2, "first": 2, "radii": 2}
CELLS = {"rnn": nn.RNN, "lstm": nn.LSTM, "gru": nn.GRU}


class Reader(nn.Module):
    def __init__(self, kind: type[nn.RNNBase], hidden: int = 4, **options: Any) -> None:
        super().__init__()
        self.layer = kind(3, hidden, batch_first=True, **options)
        self.head = nn.Linear(hidden * (2 if options.get("bidirectional") else 1), 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.layer(x)[0][:, -1])
        return out


class Wide(Reader):
    def __init__(self) -> None:
        super().__init__(nn.LSTM, 3)
        self.layer = nn.LSTM(90, 3, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x / 30)


def asked(
    model: nn.Module, shape: tuple[int, ...], count: int = 3, seed: int = 0
) -> tuple[hf.Network, Tensor, Tensor]:
    torch.manual_seed(seed)
    for weight in model.parameters():
        nn.init.uniform_(weight, -0.9, 0.9)
    net = hf.Network.from_torch(model.eval())
    x = torch.rand(count, *shape)
    return net, x, net(x).argmax(1)


def lower(brackets: Sequence[Bracket]) -> Tensor:
    return torch.tensor([b.lower.value for b in brackets], dtype=torch.float64)


@pytest.mark.parametrize(
    ("cell", "norm"),
    some(
        [*((cell, math.inf) for cell in CELLS), ("rnn", 1), ("lstm", 2)],
        [("rnn", 1), ("gru", math.inf), ("lstm", 2)],
    ),
)
def test_tight_is_above_fast_and_below_every_attack(cell: str, norm: float) -> None:
    net, x, y = asked(Reader(CELLS[cell], 3), (2, 3), count=2)
    fast = lower(hf.radius(net, x, y, norm=norm, frames="all", methods=[hf.certify.Certify()]))
    # Contradiction is raised where a witness lies inside what is proved.
    brackets = hf.radius(
        net, x, y, norm=norm, frames="all", methods=[hf.certify.Tighten(steps=10, **FEW_RADII), *ATTACKS]
    )
    tight, upper = lower(brackets), torch.tensor([b.upper.value for b in brackets], dtype=torch.float64)
    assert (tight >= fast * (1 - 1e-9)).all()
    assert (tight / fast).mean() > (1.02 if math.isinf(norm) else 0.999)
    assert (tight <= upper).all()


@pytest.mark.parametrize("cell", every(["rnn", "lstm"], 2))
def test_split_is_above_tight_and_no_point_breaks_it(cell: str) -> None:
    net, x, y = asked(Reader(CELLS[cell], 3), (2, 3), count=2)
    tight = lower(hf.radius(net, x, y, frames="all", methods=[hf.certify.Tighten(steps=8, **FEW_RADII)]))
    split = lower(hf.radius(net, x, y, frames="all", methods=[hf.certify.Split(boxes=16, steps=4), *ATTACKS]))
    assert (split >= tight).all()
    assert (split / tight).mean() > 1.01
    region = Frames(x, split, math.inf)
    points = torch.cat(
        [
            region.sample(400, RandomStreams.of(range(len(region)), 0)),
            region.vertex(torch.randn(400, *x.shape)),
        ]
    )
    assert (net(points.flatten(0, 1)).argmax(1).reshape(-1, 2) == y).all()


@pytest.mark.parametrize(
    "model",
    [
        nn.Sequential(
            nn.Flatten(), nn.Linear(6, 10), nn.ReLU(), nn.Linear(10, 8), nn.ReLU(), nn.Linear(8, 3)
        ),
        nn.Sequential(nn.Flatten(), nn.Linear(6, 10), nn.Sigmoid(), nn.Linear(10, 3)),
        pytest.param(Reader(nn.GRU, 2, num_layers=2, bidirectional=True), marks=full_only),
        nn.Sequential(nn.Flatten(), nn.Linear(6, 3)),
        nn.Sequential(nn.Flatten(), nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 3)),
    ],
    ids=["relu", "sigmoid", "two layers both ways", "linear", "no model"],
)
def test_tiers_answer_every_network(model: nn.Module) -> None:
    net, x, y = asked(model, (2, 3), count=1)
    fast = lower(hf.radius(net, x, y, methods=[hf.certify.Certify()]))
    split = lower(hf.radius(net, x, y, methods=[hf.certify.Split(boxes=3, steps=2), *ATTACKS]))
    assert (split >= fast * (1 - 1e-9)).all()
    for frame in (1,):  # only one frame moves: the models hold its inputs alone
        one = lower(
            hf.radius(net, x, y, frames=frame, methods=[hf.certify.Tighten(steps=2, **FEW_RADII), *ATTACKS])
        )
        assert (one >= fast * (1 - 1e-9)).all()


def test_a_score_over_a_region_is_tightened_too() -> None:
    net, x, y = asked(Reader(nn.RNN), (4, 3))
    for region in every((Ball(x, 0.05, 2), Box.between(x.double() - 0.05, x.double() + 0.05)), 2):
        fast = lower(hf.worst(net, region, hf.Robustness(y), methods=[hf.certify.Certify()]))
        tight = hf.worst(
            net,
            region,
            hf.Robustness(y),
            methods=[hf.certify.Tighten(steps=20, block=10, **FEW_RADII), hf.attacks.PGD()],
        )
        assert (lower(tight) >= fast).all()
        assert (lower(tight) > fast).any()
        assert all(b.lower.value <= b.upper.value for b in tight)


def test_rows_with_different_frames_are_trained_apart() -> None:
    net, x, y = asked(Reader(nn.RNN, 2), (3, 3), count=1)
    each = hf.radius(net, x, y, frames="each", methods=[hf.certify.Tighten(steps=5, **FEW_RADII), *ATTACKS])
    for frame in (0, 2):
        alone = hf.radius(net, x, y, frames=frame, methods=[hf.certify.Tighten(steps=5, **FEW_RADII)])
        torch.testing.assert_close(lower([row[frame] for row in each]), lower(alone), rtol=0.02, atol=0)


def test_tiers_are_chosen_by_name(still_clock: TestClock, monkeypatch: pytest.MonkeyPatch) -> None:
    net, x, y = asked(Reader(nn.RNN), (3, 3), count=1)
    assert [m.name for m in default_methods(net, "radius", "tight")][-1] == "Tighten"
    step = hf.certify.Split.step

    def step_in_a_second(*arguments: Any) -> Any:
        still_clock.advance(1.0)
        return step(*arguments)

    monkeypatch.setattr(hf.certify.Split, "step", step_in_a_second)
    [bracket] = hf.radius(net, x, y, tier="split", stop=hf.Stop(seconds=6))
    assert bracket.lower.evidence.method in ("Split", "Tighten")
    with pytest.raises(hf.errors.BadInput, match="tier 'fast'"):
        hf.radius(net, x, y, tier="tight", arithmetic="executed")
    with pytest.raises(hf.errors.BadInput, match="arithmetic 'float'"):
        hf.radius(net, x, y, arithmetic="float")  # type: ignore[call-overload]
    assert hf.radius(net, x, y, arithmetic="executed")[0].lower.evidence.dtype == "torch.float32"


@pytest.mark.parametrize(
    ("method", "steps", "reason"),
    [
        (hf.certify.Tighten(), 0, "the budget ended before it began"),
        (hf.certify.Tighten(), 1, TIME_ENDED_EARLY),
        (hf.certify.Split(), 1, TIME_ENDED_EARLY),
        (hf.certify.Tighten(), None, "first bounds by second-order models were complete"),
    ],
)
def test_a_record_says_what_the_time_was_too_short_for(
    method: hf.Method[Any],
    steps: int | None,
    reason: str,
    still_clock: TestClock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The time ends after `steps` steps (None: after the first phase), before the next one."""
    done = []

    @dataclass(frozen=True)
    class UsesUpTime(hf.attacks.PGD):
        def step(self, problem: hf.Problem, state: Any) -> Any:
            if len(done) >= (10**9 if steps is None else steps):
                still_clock.advance(100.0)
            return state, Claims()

    kind, step = type(method), type(method).step

    def counted(own: Any, problem: hf.Problem, state: Any) -> Any:
        after, claims = step(own, problem, state)
        done.append(after)
        if steps is None and isinstance(after.phase, InitialCoefficients):
            still_clock.advance(100.0)
        return after, claims

    monkeypatch.setattr(kind, "step", counted)
    net, x, y = asked(Reader(nn.LSTM), (3, 3), count=1)
    [bracket] = hf.radius(net, x, y, methods=[UsesUpTime(), method], stop=hf.Stop(seconds=50))
    assert reason in bracket.note
    assert (bracket.lower.value > 0) == (steps != 0)


def test_a_wrong_model_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Were the deviation of a curve computed as zero, proofs would reach beyond an attack, and that is an error."""
    from holdfast.bounding import quadratic_algebra as quadratic

    net, x, y = asked(Reader(nn.RNN), (4, 3))
    monkeypatch.setattr(
        quadratic,
        "deviation",
        lambda curve, slope, bend, lower, upper, at: (curve.function(at), curve.function(at)),
    )
    problem = hf.Problem(
        net, Frames(x, torch.zeros(3), math.inf), hf.Robustness(y), "radius", tuple(Key(i) for i in range(3))
    )
    assert quadratic_of(problem).obstacle is None
    with pytest.raises(hf.Contradiction):
        hf.solve([problem], [*ATTACKS, hf.certify.Tighten(steps=60, block=10, push=0.02, **FEW_RADII)])


def test_many_inputs_are_no_reason_to_do_nothing() -> None:
    net, x, y = asked(Wide(), (4, 90), count=1, seed=1)
    [fast] = hf.radius(net, x, y, frames="all", methods=[hf.certify.Certify()])
    [tight] = hf.radius(net, x, y, frames="all", methods=[hf.certify.Tighten(steps=0), *ATTACKS])
    assert fast.lower.value < tight.lower.value <= tight.upper.value


@pytest.mark.parametrize("room", [2**10, 2**24 + 2**22], ids=["for nothing", "for no training"])
def test_what_memory_does_not_hold_is_said(room: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.bounding.quadratic_models.free_bytes", lambda device: room)
    monkeypatch.setattr("holdfast.certify.tight_tier.free_bytes", lambda device: room)
    monkeypatch.setattr("holdfast.certify.quadratic_training.free_bytes", lambda device: room)
    net, x, y = asked(Wide(), (4, 90), count=1)
    [record] = hf.solve([question(net, x, y)], [hf.certify.Tighten(steps=2, **FEW_RADII)])
    [said] = record.skipped
    assert "KiB" in said or "MiB" in said
    assert "used instead" in said
    assert ("without training" in said) == (room > 2**20)
    assert record.bracket.note == said


def steepen(module: nn.Module) -> None:
    """So that some change of the input breaks the network."""
    with torch.no_grad():
        for part in module.parameters():
            part.mul_(3)


class Mixed(nn.Sequential):
    """A ReLU, which trained linear bounds are for, and a tanh, which second-order models are for."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        super().__init__(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3))
        steepen(self)


def mixed(count: int = 1, kind: Callable[[], nn.Module] = Mixed) -> hf.Problem:
    net = hf.Network.from_torch(kind().eval(), domain=(0, 1))
    x = torch.rand(count, 6, generator=torch.Generator().manual_seed(1))
    [problem] = radius_problems(net, x, net(x).argmax(-1))
    return problem


@pytest.mark.parametrize(
    "method",
    [hf.certify.Tighten(steps=1, **FEW_RADII), hf.certify.Split(steps=1, boxes=4)],
    ids=["tighten", "split"],
)
def test_a_stage_that_lacks_memory_is_named_in_the_record(method: Any) -> None:
    """Linear bounds were handed out as finished, as if the second-order models had been used."""
    problem = mixed()
    with memory_budget.within(2**18):
        [short] = hf.solve([problem], [method], hf.Stop(queries=3000))
    [said] = [reason for reason in short.skipped if "left out" in reason]
    assert "second-order models were left out (one input needs" in said
    assert "256 KiB may be used); trained linear bounds were used instead" in said
    assert said in short.bracket.note
    assert said in str(short.explained)
    [whole] = hf.solve([problem], [method], hf.Stop(queries=3000))  # the limit is not remembered
    assert not any("left out" in reason for reason in whole.skipped)
    assert "left out" not in whole.bracket.note


def test_linear_bounds_that_are_trained_beyond_the_limit_are_named() -> None:
    with memory_budget.within(2**13):
        [record] = hf.solve([mixed()], [hf.certify.Tighten(steps=1, **FEW_RADII)])
    assert "trained linear bounds take" in record.bracket.note
    assert "8 KiB may be used: they were trained row by row" in record.bracket.note


def test_relus_that_are_too_many_to_be_bounded_together_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.bounding.joint_relu.MAX_CPU_VARIABLES", 1)

    class Plain(nn.Sequential):
        def __init__(self) -> None:
            torch.manual_seed(0)
            super().__init__(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 12), nn.ReLU(), nn.Linear(12, 3))
            steepen(self)

    [record] = hf.solve([mixed(kind=Plain)], [hf.certify.Tighten(steps=1, **FEW_RADII)])
    said = (
        "the joint ReLU relaxation was left out at some radii (more variables than 1); trained linear bounds were "
        "used instead"
    )
    assert said in record.bracket.note


def test_terminal_and_page_name_what_was_left_out(tmp_path: Path) -> None:
    problem = mixed()
    with hf.Store.create(tmp_path / "run", Question()) as store:
        with memory_budget.within(2**18):
            hf.solve([problem], [hf.certify.Tighten(steps=1, **FEW_RADII)], store=store)
        page, console = render(store), Console(width=300, record=True, file=io.StringIO())
        console.print(table(store))
        kept = store.records()
    assert (
        page.count("second-order models were left out") >= 2
    )  # beside the input, and among the limits of the run
    assert "second-order models were left out" in console.export_text()
    assert "second-order models were left out" in kept[0].bracket.note


def test_training_that_takes_long_is_left_to_graphics_cards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.certify.quadratic_training.MAX_CPU_NUMBERS", 0)
    net, x, y = asked(Reader(nn.RNN), (3, 3), count=1)
    fast = hf.solve([question(net, x, y)], [hf.certify.Certify()])[0].bracket.lower.value
    [record] = hf.solve([question(net, x, y)], [hf.certify.Tighten(**FEW_RADII)])
    assert "without training, which would take about" in record.skipped[0]
    assert record.bracket.lower.value > fast


def test_a_tier_that_can_do_no_more_says_so() -> None:
    net, x, y = asked(nn.Sequential(nn.Flatten(), nn.Linear(12, 3)), (4, 3), count=1)
    [record] = hf.solve([question(net, x, y)], [hf.certify.Tighten(**FEW_RADII)])
    assert record.skipped == (
        "Tighten: tier tight proves no more than tier fast here: the network is linear: linear bounds are exact",
    )


def small_conv() -> nn.Module:
    layers = (
        nn.Conv2d(1, 3, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(3, 3, 3),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(12, 3),
    )
    return nn.Sequential(*layers)


def without_models(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.bounding.quadratic_models.free_bytes", lambda device: 1)


@pytest.mark.parametrize("norm", some([1, 2, math.inf], [1, math.inf]))
def test_trained_planes_win_where_there_are_no_models(norm: float, monkeypatch: pytest.MonkeyPatch) -> None:
    without_models(monkeypatch)
    net, x, y = asked(small_conv(), (1, 4, 4), count=count(2, full=4))
    fast = lower(hf.radius(net, x, y, norm=norm, methods=[hf.certify.Certify()]))
    brackets = hf.radius(net, x, y, norm=norm, methods=[hf.certify.Tighten(**FEW_RADII), *ATTACKS])
    tight, upper = lower(brackets), torch.tensor([b.upper.value for b in brackets], dtype=torch.float64)
    assert (tight >= fast).all()
    assert (tight / fast).mean() > 1.01
    assert (tight <= upper).all()
    region = Ball(x, tight, norm)
    points = torch.cat(
        [
            region.sample(400, RandomStreams.of(range(len(region)), 0)),
            region.vertex(torch.randn(400, *x.shape)),
        ]
    )
    assert (net(points.flatten(0, 1)).argmax(1).reshape(-1, len(x)) == y).all()


def test_trained_planes_that_win_nothing_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where every sign is decided planes are exact, and training has nothing to choose."""
    without_models(monkeypatch)
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 3), nn.ReLU(), nn.Linear(3, 3))
    torch.nn.init.constant_(model[1].bias, 100.0)  # type: ignore[arg-type]
    net, x, y = asked(model, (4, 3), count=2)
    problem = hf.Problem(net, Ball(x, 0.1, 2), hf.Robustness(y), "worst")
    records = hf.solve([problem], [hf.certify.Tighten(**FEW_RADII)])
    [skipped] = {record.skipped for record in records}
    assert skipped[0] == (
        "Tighten: trained linear bounds and the joint ReLU relaxation prove no more than tier fast"
    )
    assert "second-order models were left out (one input needs" in skipped[1]


def test_trained_planes_never_prove_more_than_the_exact_radius(monkeypatch: pytest.MonkeyPatch) -> None:
    """In one dimension every bend is known: f(x) = 1 - relu(x) - relu(x - 1) vanishes at 1 in one direction only."""
    without_models(monkeypatch)
    model = nn.Sequential(nn.Linear(1, 2), nn.ReLU(), nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2))
    values = [
        [[1.0], [1.0]],
        [0.0, -1.0],
        [[1.0, 1.0], [1.0, -1.0]],
        [0.5, 0.5],
        [[-1.0, 0.0], [0.0, 0.0]],
        [1.5, 0.0],
    ]
    for weight, value in zip(model.parameters(), values, strict=True):
        weight.data = torch.tensor(value)
    net = hf.Network.from_torch(model.eval())
    for start in (0.0, 0.25, -1.0):
        [bracket] = hf.radius(
            net, torch.tensor([[start]]), torch.tensor([0]), methods=[hf.certify.Tighten(**FEW_RADII)]
        )
        assert 0.8 * (1 - start) < bracket.lower.value <= 1 - start


def test_a_score_is_raised_by_trained_planes(monkeypatch: pytest.MonkeyPatch) -> None:
    without_models(monkeypatch)
    net, x, y = asked(small_conv(), (1, 4, 4))
    for region in every((Ball(x, 0.3, 2), Box.between(x.double() - 0.1, x.double() + 0.1)), 2):
        fast = lower(hf.worst(net, region, hf.Robustness(y), methods=[hf.certify.Certify()]))
        tight = hf.worst(
            net, region, hf.Robustness(y), methods=[hf.certify.Tighten(**FEW_RADII), hf.attacks.PGD()]
        )
        assert (lower(tight) >= fast).all()
        assert (lower(tight) > fast + 0.01).any()
        assert all(b.lower.value <= b.upper.value for b in tight)


@pytest.mark.parametrize("goal", ["radius", "worst"])
def test_trained_planes_and_the_clock(goal: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps without time prove nothing and lose nothing."""
    without_models(monkeypatch)
    net, x, y = asked(small_conv(), (1, 4, 4), count=2)
    region = Ball(x, 0.0 if goal == "radius" else 0.2, math.inf)
    problem, method = (
        hf.Problem(net, region, hf.Robustness(y), goal),
        hf.certify.Tighten(steps=2, **FEW_RADII),
    )
    usual, _ = proved(problem, method, torch.full((2,), -math.inf, dtype=torch.float64))
    state, claims, turn = method.start(problem, 0), None, 0
    while state is not None:
        with time_limit.within(0.0 if turn % 2 else math.inf):
            state, claims = method.step(problem, state)
        turn += 1
    assert claims is not None
    torch.testing.assert_close(claims.proved, usual, rtol=1e-3, atol=0)


def test_planes_and_models_together_are_the_better_of_both(monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Sequential(
        nn.Flatten(), nn.Linear(12, 10), nn.ReLU(), nn.Linear(10, 8), nn.ReLU(), nn.Linear(8, 3)
    )
    net, x, y = asked(model, (4, 3), count=3)
    both = lower(hf.radius(net, x, y, methods=[hf.certify.Tighten(steps=4, **FEW_RADII), *ATTACKS]))
    monkeypatch.setattr("holdfast.certify.tight_tier.relu_like_functions", lambda graph: [])
    models = lower(hf.radius(net, x, y, methods=[hf.certify.Tighten(steps=4, **FEW_RADII)]))
    assert (both >= 0.98 * models).all()


METHODS = [
    hf.certify.Certify(),
    hf.certify.Tighten(steps=6, block=3, **FEW_RADII),
    hf.certify.Split(boxes=4, steps=2),
]


def question(net: hf.Network, x: Tensor, y: Tensor) -> hf.Problem:
    return hf.Problem(
        net,
        Frames(x, torch.zeros(len(x)), math.inf),
        hf.Robustness(y),
        "radius",
        tuple(Key(i) for i in range(len(x))),
    )


def proved(problem: hf.Problem, method: Any, known: Tensor) -> tuple[Tensor, int]:
    """What the method proves when it is told before every step that this much is known, and how many steps it takes."""
    state, claims, steps = method.start(problem, 0), None, 0
    while state is not None:
        state, claims = method.step(
            problem, method.update_bounds(problem, state, known, torch.full_like(known, math.inf))
        )
        steps += 1
    assert claims is not None
    return claims.proved, steps


@pytest.mark.parametrize("method", METHODS, ids=lambda m: m.name)
def test_a_search_goes_on_from_what_is_proved(method: Any) -> None:
    net, x, y = asked(Reader(nn.RNN, 3), (2, 3), count=2)
    problem = question(net, x, y)
    alone, _ = proved(problem, method, torch.zeros(2, dtype=torch.float64))
    below, _ = proved(problem, method, alone * 0.9)
    assert (below >= alone * 0.97).all()
    again, steps = proved(problem, method, alone)
    assert (again >= alone).all()
    held = torch.cat(
        [
            Frames(x, again, math.inf).sample(300, RandomStreams.of(range(len(x)), 0)),
            Frames(x, again, math.inf).vertex(torch.randn(300, *x.shape)),
        ]
    )
    assert (net(held.flatten(0, 1)).argmax(1).reshape(-1, 2) == y).all()
    mixed, _ = proved(
        problem, method, torch.tensor([math.inf, 0.0], dtype=torch.float64)
    )  # one row is closed already
    assert mixed[1] >= alone[1] * 0.97
    assert steps < 100


def test_a_proof_in_real_arithmetic_is_none_of_the_network_as_executed() -> None:
    net, x, y = asked(Reader(nn.RNN), (3, 3), count=2)
    problem, method = question(net, x, y), hf.certify.Certify(arithmetic="executed")
    known = torch.full((2,), 5.0, dtype=torch.float64)
    assert torch.equal(proved(problem, method, known)[0], proved(problem, method, torch.zeros_like(known))[0])


@pytest.mark.parametrize("method", METHODS[1:], ids=lambda m: m.name)
def test_a_step_that_the_clock_ends_claims_only_what_was_proved(method: Any) -> None:
    """Time for nothing, then for everything: the state goes on as if nothing had happened."""
    net, x, y = asked(Reader(nn.RNN, 3), (2, 3), count=2)
    problem = question(net, x, y)
    usual, _ = proved(problem, method, torch.zeros(2, dtype=torch.float64))
    state, low, turn = method.start(problem, 0), torch.zeros(2, dtype=torch.float64), 0
    while state is not None:
        with time_limit.within(time.monotonic() if turn % 2 else math.inf):
            state, claims = method.step(problem, state)
        found = low if claims.proved is None else claims.proved  # a step that a signal ended claims nothing
        assert (found >= low).all()
        assert not turn % 2 or (found <= usual * 1.001).all()
        low, turn = found, turn + 1
    torch.testing.assert_close(low, usual, rtol=1e-3, atol=0)


def test_training_taken_up_again_is_the_same_training() -> None:
    """The state holds the moments of Adam: two blocks of three steps equal one of six, and a step changes no earlier state."""
    net, x, y = asked(Reader(nn.RNN, 3), (2, 3), count=2)
    problem = question(net, x, y)
    found = []
    for block in (3, 6):
        method = hf.certify.Tighten(steps=6, block=block, **FEW_RADII)
        state = method.start(problem, 0)
        while not isinstance(state.phase, CoefficientTraining):
            state, _ = method.advance(problem, state)
        phase = state.phase
        before = {key: value.clone() for key, value in phase.coefficients.items()}
        after = phase.train_block(problem, state.low)
        assert all(torch.equal(before[key], value) for key, value in phase.coefficients.items())
        if block == 3:
            once, twice = (after.train_block(problem, state.low) for _ in range(2))
            assert all(
                torch.equal(once.coefficients[key], value) for key, value in twice.coefficients.items()
            )
            after = once
        found.append(after)
    for key, value in found[0].coefficients.items():
        torch.testing.assert_close(value, found[1].coefficients[key])


def phases_of(problem: hf.Problem, method: hf.certify.Tighten) -> list[str]:
    """The names of the phases that the method passes through, each once."""
    state: TightState | None = method.start(problem, 0)
    seen: list[Phase] = []
    while state is not None:
        if state.phase is not None:
            seen.append(state.phase)
        state, _ = method.step(problem, state)
    return list(dict.fromkeys(type(phase).__name__ for phase in seen))


def test_the_phases_follow_the_activations_of_the_network() -> None:
    """ReLUs get trained slopes and the joint relaxation, tanh gets quadratic models, and a mixture gets both kinds it allows."""
    relu = mixed(kind=lambda: nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)))
    tanh = mixed(kind=lambda: nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)))
    method, quadratic = (
        hf.certify.Tighten(steps=1, **FEW_RADII),
        ["InitialCoefficients", "CoefficientTraining"],
    )
    joint = ["TrainedLinearBounds", "JointRelaxation"]
    assert phases_of(tanh, method) == ["ClosedFormBounds", *quadratic]
    assert phases_of(relu, method)[:3] == ["ClosedFormBounds", *joint]
    assert phases_of(mixed(), method) == ["ClosedFormBounds", "TrainedLinearBounds", *quadratic]
    # With `few`, networks with few pre-activations skip the joint relaxation.
    assert "JointRelaxation" not in phases_of(relu, hf.certify.Tighten(steps=1, few=8, **FEW_RADII))


def test_every_phase_can_be_ended_early() -> None:
    """`begin_next_phase` visits the same phases without finishing any of them, which estimates of cost rely on."""
    problem, method = mixed(), hf.certify.Tighten(steps=1, **FEW_RADII)
    state, names = method.start(problem, 0), []
    for _ in range(6):
        names.append(type(state.phase).__name__)
        state = method.begin_next_phase(problem, state)
    assert list(dict.fromkeys(names)) == phases_of(problem, method)
    assert names[-1] == "CoefficientTraining"
