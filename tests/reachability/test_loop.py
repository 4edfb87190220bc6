"""hf.Loop: answers about loops, attacked by sampled trajectories; violations, budgets and wrong arguments."""

import math
from pathlib import Path
from typing import Any

import loops
import pytest
import torch
from torch import Tensor, nn

import holdfast as hf
from holdfast.errors import BadInput, UnsupportedLayer
from holdfast.reachability import flow, search


def feedback(period: float = 0.25, steps: int = 8, **more: Any) -> hf.Loop:
    """A pendulum under a ReLU network."""
    return hf.Loop(loops.relu_controller(2, 1), loops.pendulum, period=period, steps=steps, **more)


WIDE = "0 <= x1 <= 1 and -0.5 <= x2 <= 0.5"
START = "0.4 <= x1 <= 0.6 and -0.1 <= x2 <= 0.1"


def test_the_tube_of_a_pendulum_contains_all_sampled_trajectories() -> None:
    loop = feedback()
    answer = loop.stay(START, "-2 <= x1 <= 2")
    assert answer.verdict == "proved"
    assert answer.margin is not None
    assert answer.margin <= answer.sampled_margin
    assert loops.attack(loop, answer) == 0
    ratio = answer.width_ratio
    assert ratio is not None
    assert bool((ratio >= 1 - 1e-6).all())
    assert float(ratio.max()) < 3


def test_the_attack_finds_trajectories_outside_of_a_false_tube(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the controller's band and the remainder, the tube is no enclosure, and the attack says so."""
    loop = feedback()
    honest = loop.stay(START, "-2 <= x1 <= 2")
    control = flow.Enclosure.control

    def without_band(self: flow.Enclosure, x: Any) -> Any:
        z = control(self, x)
        generators = z.generators.clone()
        generators[:, x.symbols :] = 0
        return type(z)(z.centre, generators, z.error)

    monkeypatch.setattr(flow.Enclosure, "control", without_band)
    monkeypatch.setattr(flow.FlowStep, "rest", lambda self, time: (torch.zeros_like(self.disturbed),) * 2)
    faulty = loop.stay(START, "-2 <= x1 <= 2")
    assert loops.attack(loop, honest) == 0
    assert loops.attack(loop, faulty) > 0


def test_splitting_narrows_the_tube_and_keeps_it_sound() -> None:
    loop = feedback(steps=4)
    coarse = loop.stay(WIDE, "-3 <= x1 <= 3")
    fine = loop.stay(WIDE, "-3 <= x1 <= 3", width_ratio=1.08)
    assert fine.verdict == "proved"
    assert fine.boxes > coarse.boxes
    assert fine.width_ratio is not None
    assert float(fine.width_ratio.max()) <= 1.08 + 1e-6
    assert loops.attack(loop, fine) == 0


def test_a_harmonic_oscillator_keeps_its_width() -> None:
    """Turning boxes grow by exp(steps) when each step takes a box (wrapping); affine forms turn with them."""
    period, steps = 2 * math.pi / 16, 16  # A turn.
    loop = hf.Loop(loops.linear_controller([0.0, 0.0]), loops.oscillator, period=period, steps=steps)
    answer = loop.stay("0.9 <= x1 <= 1.1 and -0.1 <= x2 <= 0.1", "-1.2 <= x1 <= 1.2 and -1.2 <= x2 <= 1.2")
    assert answer.verdict == "proved"
    assert answer.ends is not None
    width = answer.ends[-1, :, 1] - answer.ends[-1, :, 0]
    assert bool((width < 0.2 * 1.02).all())
    assert bool((width >= 0.2 * (1 - 1e-6)).all())
    for k in range(steps + 1):
        turned = torch.tensor(
            [[math.cos(k * period), math.sin(k * period)], [-math.sin(k * period), math.cos(k * period)]]
        ).double()
        corners = torch.cartesian_prod(*torch.tensor([[0.9, 1.1], [-0.1, 0.1]], dtype=torch.float64))
        states = corners @ turned.mT
        assert bool(
            (states >= answer.ends[k, :, 0] - 1e-6).all() and (states <= answer.ends[k, :, 1] + 1e-6).all()
        )


def test_a_linear_loop_matches_the_matrix_exponential() -> None:
    """x' = A x + B u, u = K x held: x(t + T) = (exp(A T) + int_0^T exp(A s) ds B K) x(t)."""
    a = torch.tensor([[0.0, 1.0], [-1.0, -0.5]], dtype=torch.float64)
    b = torch.tensor([[0.0], [1.0]], dtype=torch.float64)
    k = torch.tensor([[-0.75, -0.5]], dtype=torch.float64)
    period, steps = 0.25, 16
    loop = hf.Loop(
        loops.linear_controller(k[0].tolist()), lambda x, u: x @ a.mT + u @ b.mT, period=period, steps=steps
    )
    answer = loop.stay(([0.9, -0.1], [1.1, 0.1]), "x1 <= 2")
    joined = torch.zeros(3, 3, dtype=torch.float64)
    joined[:2, :2], joined[:2, 2:] = a, b
    held = torch.linalg.matrix_exp(joined * period)
    turn = held[:2, :2] + held[:2, 2:] @ k
    x = torch.cartesian_prod(*torch.tensor([[0.9, 1.1], [-0.1, 0.1]], dtype=torch.float64))
    assert answer.ends is not None
    for j in range(steps + 1):
        exact = torch.stack([x.amin(0), x.amax(0)], -1)
        assert bool((answer.ends[j, :, 0] <= exact[:, 0] + 1e-12).all())
        assert bool((answer.ends[j, :, 1] >= exact[:, 1] - 1e-12).all())
        assert bool((answer.ends[j] - exact).abs().max() < 1e-2)
        x = x @ turn.mT


def test_a_violation_is_a_trajectory_that_violates() -> None:
    loop = feedback()
    answer = loop.stay(START, "x1 <= 0.3", between=(0.5, 1))
    assert answer.verdict == "violated"
    assert answer.witness is not None
    assert answer.trajectory is not None
    lower, upper = answer.start
    assert bool(((answer.witness >= lower) & (answer.witness <= upper)).all())
    replayed = loop.model(answer.states).simulate(answer.witness[None], loop.steps)[0]
    torch.testing.assert_close(replayed, answer.trajectory)
    moments = torch.linspace(0, 2, len(replayed))
    assert float(replayed[(moments >= 0.5 - 1e-9) & (moments <= 1 + 1e-9), 0].max()) > 0.3


def test_a_violation_needs_a_rigorous_enclosure(monkeypatch: pytest.MonkeyPatch) -> None:
    """A simulation that is wrong by 0.01 crosses the limit; the true solution does not, and nothing is claimed."""
    loop = feedback(steps=4)
    highest = loop.stay(START, "x1 <= 9").sampled_ends[0, 1]
    right = flow.Enclosure.flow
    simulate = type(loop.model(("x1", "x2"))).simulate
    monkeypatch.setattr(
        type(loop.model(("x1", "x2"))), "simulate", lambda self, *given: simulate(self, *given) + 0.01
    )
    answer = loop.reach(START, f"x1 <= {float(highest) + 0.002}", at=1.0, max_boxes=1)
    assert answer.verdict in ("open", "proved")
    assert answer.witness is None
    assert answer.sampled_margin < 0
    assert flow.Enclosure.flow is right


@pytest.mark.parametrize("discrete", [False, True])
def test_reach_and_avoid(discrete: bool) -> None:
    """A state that decays towards zero: by a known time it is below a half, never above its start."""
    plant = (lambda x, u: 0.5 * x + 0 * u) if discrete else (lambda x, u: -x + 0 * u)
    loop = hf.Loop(loops.linear_controller([0.0]), plant, period=0.5, steps=6, discrete=discrete)
    start = "0.9 <= x1 <= 1"
    answers = {
        "reached": loop.reach(start, "x1 <= 0.5", by=1.5),
        "reached at": loop.reach(start, "x1 <= 0.5", at=1.5),
        "not yet": loop.reach(start, "x1 <= 0.01", by=1.5),
        "avoided": loop.avoid(start, "x1 >= 1.1"),
        "met": loop.avoid(start, "x1 <= 0.3"),
        "later": loop.avoid(start, "x1 <= 0.3", between=(0, 0.5)),
    }
    found = {name: answer.verdict for name, answer in answers.items()}
    assert found == {
        "reached": "proved",
        "reached at": "proved",
        "not yet": "violated",
        "avoided": "proved",
        "met": "violated",
        "later": "proved",
    }
    for answer in answers.values():
        assert loops.attack(loop, answer, count=200) == 0


def test_the_time_between_two_periods_counts() -> None:
    """x1 = sin(t) is 0 at the multiples of pi and 1 between: the ends of the periods alone would miss it."""
    loop = hf.Loop(loops.linear_controller([0.0, 0.0]), loops.oscillator, period=math.pi, steps=1, order=4)
    assert loop.stay("x1 == 0 and x2 == 1", "x1 <= 0.99").verdict == "violated"
    assert loop.stay("x1 == 0 and x2 == 1", "x1 <= 1.05").verdict == "proved"


def test_a_solution_that_explodes_is_open() -> None:
    """x' = x^2 from 1.2 to 1.3 has no solution up to time 1, so nothing is proved, and nothing after it is shown."""
    loop = hf.Loop(loops.linear_controller([0.0]), lambda x, u: x * x + 0 * u, period=1.0, steps=1)
    answer = loop.stay("1.2 <= x1 <= 1.3", "x1 >= 0", max_boxes=1)
    assert answer.verdict == "open"
    assert answer.margin is None
    assert answer.ends is not None
    assert bool(answer.ends[-1].isnan().all())
    assert answer.width_ratio is None


def test_a_long_period_is_divided() -> None:
    """Picard's operator has no box for a whole period of 2; shorter steps have."""
    loop = hf.Loop(loops.linear_controller([-0.25]), lambda x, u: x * (1 - x) + u, period=2.0, steps=2)
    answer = loop.stay("0.4 <= x1 <= 0.6", "-3 <= x1 <= 3", max_boxes=64)
    assert answer.verdict == "proved"
    assert loops.attack(loop, answer) == 0


def test_budgets_hold() -> None:
    loop = feedback()
    answer = loop.stay(START, "x1 <= 0.6000001", seconds=1e-3)
    assert answer.verdict in ("open", "violated")
    assert answer.boxes <= 1
    answer = loop.stay(START, "-0.9 <= x1 <= 0.62", max_boxes=3, between=(0.25, 2))
    assert answer.boxes <= 3


def test_disturbances_widen_the_tube_and_are_contained() -> None:
    quiet, noisy = (feedback(disturbance=most) for most in (None, [0.0, 0.05]))
    one, other = (loop.stay(START, "-2 <= x1 <= 2") for loop in (quiet, noisy))
    assert one.ends is not None
    assert other.ends is not None
    assert bool((other.ends[-1, :, 1] > one.ends[-1, :, 1]).all())
    for sign in (-0.05, 0.05):
        pushed = hf.Loop(
            loops.relu_controller(2, 1),
            lambda x, u, sign=sign: loops.pendulum(x, u) + torch.tensor([0.0, sign], dtype=torch.float64),
            period=0.25,
            steps=8,
        )
        assert loops.attack(pushed, other) == 0
        assert loops.attack(pushed, one) > 0


def test_a_search_continues_where_it_stopped(tmp_path: Path) -> None:
    loop = feedback(steps=4)
    asked: dict[str, Any] = {"start": WIDE, "inside": "-3 <= x1 <= 3", "width_ratio": 1.08}
    part = loop.stay(**asked, max_boxes=1, folder=tmp_path)
    assert part.width_ratio is not None
    assert float(part.width_ratio.max()) > 1.08
    again = loop.stay(**asked, folder=tmp_path)
    assert part.boxes == 1 < again.boxes
    assert again.verdict == "proved"
    assert again.width_ratio is not None
    assert float(again.width_ratio.max()) <= 1.08 + 1e-6
    assert loops.attack(loop, again, count=300) == 0
    with pytest.raises(BadInput, match="another question"):
        feedback(steps=3).stay(**asked, folder=tmp_path)
    with pytest.raises(BadInput, match="another question"):
        hf.Loop(loops.relu_controller(2, 1, seed=1), loops.pendulum, period=0.25, steps=4).stay(
            **asked, folder=tmp_path
        )


def test_the_same_seed_gives_the_same_answer() -> None:
    one, other = (feedback(steps=2).stay(START, "x1 <= 9", seed=3) for _ in range(2))
    assert one.sampled_margin == other.sampled_margin
    assert one.ends is not None
    assert other.ends is not None
    assert torch.equal(one.ends, other.ends)


def test_onnx_controllers_and_inputs(tmp_path: Path) -> None:
    """A file whose input has another rank, and a function from states to what the controller reads."""
    inner = loops.relu_controller(3, 1).float()
    module = nn.Sequential(nn.Flatten(), inner)
    file = tmp_path / "controller.onnx"
    torch.onnx.export(module, (torch.zeros(1, 1, 3),), str(file), dynamo=False, input_names=["x"])

    def inputs(x: Tensor) -> Tensor:
        return torch.stack([x[..., 0], x[..., 1], x[..., 0] - 0.5 * x[..., 1]], -1)

    loop = hf.Loop(
        file,
        loops.pendulum,
        period=0.25,
        steps=4,
        inputs=inputs,
        states=["angle", "rate"],
        units=["rad", "rad/s"],
    )
    answer = loop.stay("0.4 <= angle <= 0.6 and rate == 0", "-2 <= angle <= 2 and rate <= 5")
    assert answer.verdict == "proved"
    assert loops.attack(loop, answer, count=300) == 0
    page = answer.save_page(tmp_path / "page.html").read_text(encoding="utf-8")
    assert "angle [rad]" in page
    assert "Proved: every trajectory satisfies" in page
    assert "proved margin" in page
    assert page.count("<svg") == 2
    assert "://" not in page.replace("http://www.w3.org", "")


def test_a_page_without_bounds_says_so(tmp_path: Path) -> None:
    answer = feedback().stay(START, "-2 <= x1 <= 2", seconds=1e-9)
    assert answer.verdict == "open"
    page = answer.save_page(tmp_path / "page.html").read_text(encoding="utf-8")
    assert "not computed" in page or "No bounds were computed" in page
    assert "proved margin" not in page


WRONG: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "period": ({"period": 0}, {}, "period"),
    "negative period": ({"period": -1.0}, {}, "period"),
    "steps": ({"steps": 0}, {}, "steps"),
    "order": ({"order": 7}, {}, "order"),
    "plant": ({"plant": 3}, {}, "plant"),
    "a plant with too few states": ({"plant": lambda x, u: x[..., :1]}, {}, r"plant.*\(1, 1\)"),
    "a plant without a batch axis": (
        {"plant": lambda x, u: torch.stack([x[0, 0], x[0, 1]])[None]},
        {},
        "plant.*two states",
    ),
    "more controls than there are": ({"plant": lambda x, u: x * u[..., 3:4] + u[..., 3]}, {}, "plant"),
    "a controller of other inputs": ({"controller": loops.relu_controller(3, 1)}, {}, "controller.*inputs="),
    "a plant with a kink": ({"plant": lambda x, u: torch.relu(x) + u}, {}, "relu.*discrete=True"),
    "start of another size": ({}, {"start": ([0.0], [1.0])}, "(?s)controller|plant"),
    "start in disorder": ({}, {"start": "1 <= x1 <= 0 and x2 == 0"}, "start: x1"),
    "start without an upper bound": ({}, {"start": "x1 >= 0 and x2 == 0"}, "start: x1"),
    "an unknown state": ({}, {"inside": "x3 <= 1"}, "x3.*x1, x2"),
    "a product": ({}, {"inside": "x1 * x2 <= 1"}, "not linear"),
    "no comparison": ({}, {"inside": "x1"}, "no comparison"),
    "a strict comparison": ({}, {"inside": "x1 < 1"}, "use <="),
    "a call": ({}, {"inside": "abs(x1) <= 1"}, "not linear"),
    "a condition on nothing": ({}, {"inside": "1 <= 2"}, "nothing about a state"),
    "a window beyond the end": ({}, {"between": (0, 99)}, "window"),
    "a negative time": ({}, {"between": (-1, 1)}, "time"),
    "seconds": ({}, {"seconds": -1}, "seconds"),
    "a ratio below one": ({}, {"width_ratio": 0.5}, "width_ratio"),
    "disturbances": ({"disturbance": [1.0]}, {}, "disturbance"),
    "units": ({"units": ["m"]}, {}, "units"),
    "names": ({"states": ["a b", "c"]}, {}, "states"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_arguments_are_named_before_work_starts(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    of_loop, of_question, message = WRONG[name]
    monkeypatch.setattr(search.Runner, "run", lambda *_, **__: pytest.fail("work started"))
    given: dict[str, Any] = {
        "controller": loops.relu_controller(2, 1), "plant": loops.pendulum, "period": 0.25, "steps": 4, **of_loop
    }  # fmt: skip
    with pytest.raises((BadInput, UnsupportedLayer), match=message):
        hf.Loop(given.pop("controller"), given.pop("plant"), **given).stay(
            **{"start": START, "inside": "x1 <= 9", **of_question}
        )
