"""Flows, affine sets and Picard boxes against exact solutions, and the faults that these tests must catch."""

import math
from fractions import Fraction

import loops
import pytest
import torch
from torch import Tensor

from holdfast.bounding import zonotope
from holdfast.random_streams import RandomStreams
from holdfast.reachability import affine_sets, flow
from holdfast.reachability.affine_sets import AffineSet, reduce_order, weighted_sum
from holdfast.reachability.flow import TUBE_PARTS, Enclosure, FlowStep, upper_bounds
from holdfast.reachability.model import LoopModel, Plant


def enclosure(
    plant: Plant, states: int, *, order: int = 3, discrete: bool = False, disturbance: float = 0.0
) -> Enclosure:
    from holdfast.network import Network

    controller = Network.from_torch(loops.linear_controller([0.0] * states), shape=(states,))
    names = tuple(f"x{i + 1}" for i in range(states))
    model = LoopModel(
        controller,
        plant,
        names,
        1.0,
        None,
        discrete,
        torch.full((states,), disturbance, dtype=torch.float64),
        order,
    )
    one = torch.ones(states, dtype=torch.float64)
    return model.enclosure((0.25 * one, 0.5 * one))


def boxes(*ends: tuple[float, float], states: int = 1) -> AffineSet:
    low, high = (
        torch.tensor(side, dtype=torch.float64)[:, None].expand(-1, states)
        for side in zip(*ends, strict=True)
    )
    return AffineSet.box(low, high)


def exact_logistic(x: Tensor, t: float) -> Tensor:
    return 1 / (1 + (1 / x - 1) * math.exp(-t))


def contains(whole: AffineSet, values: Tensor, tolerance: float = 0.0) -> bool:
    low, high = whole.enclosing_box()
    return bool(((values >= low - tolerance) & (values <= high + tolerance)).all())


@pytest.mark.parametrize("order", [2, 3, 4])
def test_the_flow_of_the_logistic_equation_contains_the_exact_solutions(order: int) -> None:
    """At the end, at the times between, and in the tube between these."""
    enclosed = enclosure(loops.logistic, 1, order=order)
    start = boxes((0.25, 0.5), (0.3, 0.3), (0.9, 1.1))
    step, valid = enclosed.flow(enclosed.control(start), 0.5)
    assert bool(valid.all())
    points = torch.linspace(0, 1, 101, dtype=torch.float64)[:, None, None]
    low, high = start.enclosing_box()
    x = low + points * (high - low)
    assert all(contains(step.end(), exact_logistic(one, 0.5), 1e-15) for one in x)
    rows = torch.tensor([[1.0], [-1.0]], dtype=torch.float64)
    at, between = step.row_bounds(rows)
    for i in range(TUBE_PARTS):
        for s in torch.linspace(0, 1, 11).tolist():
            values = exact_logistic(x, 0.5 * (i + s) / TUBE_PARTS)
            assert bool(
                (values <= between[:, i, :1] + 1e-15).all() and (-values <= between[:, i, 1:] + 1e-15).all()
            )
        values = exact_logistic(x, 0.5 * i / TUBE_PARTS)
        assert bool((values <= at[:, i, :1] + 1e-15).all() and (-values <= at[:, i, 1:] + 1e-15).all())
    width = step.end().radius[1]
    assert float(width) < {2: 1e-2, 3: 2e-3, 4: 5e-4}[order], (
        "a point start has the remainder alone as its width"
    )


def test_without_the_remainder_the_exact_solution_is_outside() -> None:
    """The fault of taking the polynomial for the solution: the enclosure of a point is then wrong."""
    enclosed = enclosure(loops.logistic, 1, order=2)
    start = boxes((0.3, 0.3))
    step, _ = enclosed.flow(enclosed.control(start), 0.5)
    value = exact_logistic(torch.tensor([[0.3]], dtype=torch.float64), 0.5)
    assert contains(step.end(), value)
    assert not contains(step.at(0.5), value, 1e-6)


def test_without_the_curvature_the_tube_misses_the_trajectory(monkeypatch: pytest.MonkeyPatch) -> None:
    """The oscillator from (0, 1) reaches its largest x1 between two times of the grid."""
    enclosed = enclosure(loops.oscillator, 2, order=4)
    start = AffineSet.box(*(torch.tensor([[math.sin(1.3), math.cos(1.3)]], dtype=torch.float64),) * 2)
    step, valid = enclosed.flow(enclosed.control(start), 0.75)
    assert bool(valid.all())
    rows = torch.tensor([[1.0, 0.0]], dtype=torch.float64)
    top = (
        math.pi / 2 - 1.3
    )  # The time at which x1 = sin(1.3 + t) is 1, inside the second quarter of the step.
    assert 0.75 / TUBE_PARTS < top < 1.5 / TUBE_PARTS
    at, between = step.row_bounds(rows)
    assert float(between[0, 1]) >= 1
    assert float(torch.maximum(at[0, 1], at[0, 2])) < 1 - 1e-3, "the two ends alone do not bound the tube"


def exact_iterate(steps: int) -> Fraction:
    x = Fraction(0.3)
    for _ in range(steps):
        x = Fraction(0.7) * x + Fraction(0.1)
    return x


def iterated(steps: int) -> AffineSet:
    enclosed = enclosure(lambda x, u: 0.7 * x + 0.1 + 0 * u, 1, discrete=True)
    found = boxes((0.3, 0.3))
    for _ in range(steps):
        found = enclosed.discrete(enclosed.control(found))
    return found


def excludes(found: AffineSet, value: Fraction) -> bool:
    (low,), (high,) = (end[0].tolist() for end in found.enclosing_box())
    return not Fraction(low) <= value <= Fraction(high)


def test_rounding_of_a_discrete_loop_is_covered_and_missed_without_charges(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """0.7 x + 0.1 in exact fractions; the plain float64 iterates differ from them."""
    counts = (1, 5, 20)
    assert not any(excludes(iterated(steps), exact_iterate(steps)) for steps in counts)
    for module in (affine_sets, flow, zonotope):
        if hasattr(module, "charge"):
            monkeypatch.setattr(module, "charge", lambda size, *_: torch.zeros_like(size))
        monkeypatch.setattr(module, "round_up", lambda value, *_: value)
    assert any(excludes(iterated(steps), exact_iterate(steps)) for steps in counts)


def test_a_blow_up_has_no_box() -> None:
    """x' = x^2 from 1.2 has no solution beyond 1 / 1.2; from 0.5 it has."""
    enclosed = enclosure(lambda x, u: x * x + 0 * u, 1)
    for start, length, possible in (
        ((1.2, 1.2), 0.9, False),
        ((0.5, 0.5), 0.25, True),
        ((0.4, 1.2), 0.9, False),
    ):
        (low, high), valid = enclosed.picard(
            boxes(start).enclosing_box(), (torch.zeros(1, 1).double(),) * 2, length
        )
        assert bool(valid) == possible
    assert float(low) <= 0.4
    assert float(high) >= 1.2


def test_the_image_of_a_picard_box_is_inside_it() -> None:
    """X + [0, h] f(B) is a subset of B, by an evaluation that shares no code with the package."""
    enclosed = enclosure(loops.pendulum, 2)
    start = boxes((0.2, 0.9), (-3.0, 3.0), states=2)
    low, high = start.enclosing_box()
    zero = torch.zeros(2, 1, dtype=torch.float64)
    (below, above), valid = enclosed.picard((low, high), (zero, zero), 0.25)
    assert bool(valid.all())
    share = torch.rand(5000, 1, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    inside = below + share * (above - below)
    rate = loops.pendulum(inside, torch.zeros(5000, 2, 1, dtype=torch.float64))
    assert bool(
        (low + 0.25 * rate.clamp_max(0) >= below).all() and (high + 0.25 * rate.clamp_min(0) <= above).all()
    )


def test_a_disturbance_at_its_bound_stays_inside() -> None:
    """x' = -x + w with w = +-W has the solution x0 exp(-t) +- W (1 - exp(-t)), the furthest of all w(t)."""
    for most in (0.0, 0.125):
        enclosed = enclosure(lambda x, u: -x + 0 * u, 1, disturbance=most)
        start = boxes((0.25, 0.5))
        step, valid = enclosed.flow(enclosed.control(start), 0.5)
        assert bool(valid.all())
        low, high = step.end().enclosing_box()
        decay = math.exp(-0.5)
        furthest = 0.125 * (1 - decay)
        assert (float(low) <= 0.25 * decay - furthest and float(high) >= 0.5 * decay + furthest) == (most > 0)
        assert float(high - low) < 0.25 * decay + 2 * most + 5e-3


@pytest.mark.parametrize("kept", [0, 2])
def test_order_reduction_keeps_every_point(kept: int) -> None:
    generator = torch.Generator().manual_seed(3)
    whole = AffineSet(
        *(torch.randn(shape, generator=generator).double() for shape in ((2, 3), (2, 40, 3))),
        torch.zeros(2, 3).double(),
    )
    small = reduce_order(whole, 12, kept)
    assert small.symbols == 12
    assert torch.equal(small.generators[:, :kept], whole.generators[:, :kept])
    rows = torch.randn(500, 3, generator=generator).double()
    assert bool((upper_bounds(small, rows) >= upper_bounds(whole, rows) - 1e-12).all())
    points = whole.sample(8, RandomStreams.of(range(2), 0, whole.centre.device))
    assert bool(small.contains(points).all())
    assert not bool(small.contains(points + 100).any())
    assert bool(small.contains(small.project(points + 100)).all())


def test_a_weighted_sum_keeps_dependence() -> None:
    whole = boxes((0.0, 1.0), states=2)
    apart = weighted_sum([whole, whole], [1.0, -1.0])
    assert float(apart.radius.max()) < 1e-12


def test_controller_bounds_hold_at_every_point_of_a_thin_set() -> None:
    """CROWN over a zonotope: (x, g(x)) is inside the joint form, which a box around the set would widen."""
    from holdfast.network import Network

    net = Network.from_torch(loops.relu_controller(2, 2), shape=(2,))
    model = LoopModel(
        net, lambda x, u: x + u, ("x1", "x2"), 1.0, None, True, torch.zeros(2, dtype=torch.float64), 3
    )
    enclosed = model.enclosure((torch.zeros(2).double(), torch.ones(2).double()))
    thin = AffineSet(
        torch.tensor([[0.5, 0.5]]).double(),
        torch.tensor([[[0.4, 0.4], [0.01, -0.01]]]).double(),
        torch.zeros(1, 2).double(),
    )
    joint = enclosed.control(thin)
    noise = 2 * torch.rand(3000, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(1)) - 1
    x = thin.centre + noise @ thin.generators[0]
    z = torch.cat([x, model.controlled(x)], 1)
    rows = torch.randn(200, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    assert bool((z @ rows.mT <= upper_bounds(joint, rows) + 1e-9).all())
    box = enclosed.control(AffineSet.box(*thin.enclosing_box()))
    assert bool((joint.radius[:, 2:] < box.radius[:, 2:]).all())


def test_steps_hold_for_some_rows_of_a_batch() -> None:
    enclosed = enclosure(loops.logistic, 1)
    start = boxes((0.25, 0.5), (0.9, 1.1))
    step, _ = enclosed.flow(enclosed.control(start), 0.25)
    one = step.take(torch.tensor([False, True]))
    assert isinstance(one, FlowStep)
    torch.testing.assert_close(one.end().centre, step.end().centre[1:])
