"""ReLUs that are bounded together: any numbers are sound, trained ones are worth more than planes."""

import math
from dataclasses import replace

import pytest
import torch
from bounds_regions import hostile, seeded
from bounds_zoo import values
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import holdfast as hf
from holdfast.bounding.block_sparse import split_into_blocks
from holdfast.bounding.crown import lower_bound, propagate
from holdfast.bounding.graph.graph import Graph, build
from holdfast.bounding.joint_relu import Memory, build_relaxation, obstacle, smallest_row_bounds
from holdfast.bounding.node_bounds import Boxes
from holdfast.bounding.sdp_dual import (
    DualVariables,
    JointReluRelaxation,
    _bound,
    _crown_multipliers,
    _maximum_of_parabola,
    least,
    prove_rows,
)
from holdfast.region import Ball, Frames, Region


class Skipping(nn.Module):
    """A leaky convolution beside a plain one, and a sum of early and late signals."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.last = (
            nn.Conv2d(1, 4, 3, padding=1),
            nn.Conv2d(4, 4, 3, padding=1),
            nn.Linear(64, 3),
        )

    def forward(self, x: Tensor) -> Tensor:
        early = nn.functional.leaky_relu(self.one(x), 0.1)
        out: Tensor = self.last((early + nn.functional.relu(self.two(early))).flatten(1))
        return out


def conv() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 6, 3, padding=1), nn.ReLU(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(24, 3)
    )  # fmt: skip


def deep() -> nn.Module:
    return nn.Sequential(
        nn.Flatten(), nn.Linear(16, 12), nn.ReLU(), nn.Linear(12, 10), nn.ReLU(), nn.Linear(10, 8), nn.ReLU(), nn.Linear(8, 3)
    )  # fmt: skip


NETWORKS = {"conv": conv, "deep": deep, "skipping": Skipping}


def graph_of(name: str, seed: int = 0) -> Graph:
    torch.manual_seed(seed)
    return build(hf.Network.from_torch(NETWORKS[name]().eval()), torch.zeros(1, 1, 4, 4))


def ball(p: float, radius: float, seed: int = 0) -> Ball:
    return Ball(torch.rand((1, 1, 4, 4), generator=seeded(seed)), radius, p, (0, 1))


def asked(graph: Graph, region: Region) -> tuple[Boxes, JointReluRelaxation, Tensor]:
    boxes, rows = propagate(graph, region), torch.cat([torch.eye(3), -torch.eye(3)]).double()
    found = build_relaxation(graph, boxes, rows, torch.zeros(6, dtype=torch.float64))
    assert found is not None
    return boxes, found, rows


def met(graph: Graph, region: Region, rows: Tensor) -> Tensor:
    """-> (rows,): the least that hostile points see of each row."""
    points = hostile(graph, region, rows[None], 0)
    score: Tensor = (values(graph, points.flatten(0, 1))[graph.output].flatten(1) @ rows.T).amin(0)
    return score


@pytest.mark.parametrize("name", list(NETWORKS))
@pytest.mark.parametrize(("p", "radius"), [(2.0, 0.8), (math.inf, 0.2)])
def test_training_wins_over_planes_and_no_point_is_below(name: str, p: float, radius: float) -> None:
    graph, region = graph_of(name), ball(p, radius)
    boxes, question, rows = asked(graph, region)
    assert obstacle(graph, region) is None
    planes = lower_bound(graph, boxes, rows[None], torch.zeros((1, 6), dtype=torch.float64))[0]
    found, _ = least(question, steps=60, sign=False)
    truth = met(graph, region, rows)
    assert (found <= truth).all()
    gap, before = (truth - found).mean(), (truth - planes).mean()
    share = 1.1 if name == "deep" else 0.6  # few neurons in a chain: planes lose little there
    assert gap < share * before


@given(seed=st.integers(0, 10**6), p=st.sampled_from([2.0, math.inf]), wild=st.sampled_from([0.01, 0.1, 1.0]))
def test_any_numbers_are_sound(seed: int, p: float, wild: float) -> None:
    """What training never chooses, too: signs and sizes at random, made convex enough to say anything."""
    graph, region = graph_of(list(NETWORKS)[seed % 3], seed % 5), ball(p, 0.3, seed)
    _, question, rows = asked(graph, region)
    begun, units, _ = _crown_multipliers(question)
    g = seeded(seed)
    numbers = DualVariables(
        *(v + wild * torch.randn(v.shape, generator=g, dtype=torch.float64) for v in begun.values())
    )
    numbers = replace(numbers, wall=numbers.wall.abs(), limit=numbers.limit.abs(), pull=numbers.pull.abs())
    for _ in range(80):
        found = prove_rows(question, numbers.times(units))
        if found.isfinite().all():
            break
        numbers = numbers.make_more_convex(found.isinf(), 1.3, question.ahead)
    assert found.isfinite().all()
    assert (found <= met(graph, region, rows)).all()


def test_a_slope_below_zero_that_float32_does_not_hold_is_not_rounded_to_it() -> None:
    """0.9 in float32 is smaller by 2e-8: times signals of a thousand that is far more than what is paid for rounding."""
    first, last = nn.Linear(2, 3), nn.Linear(3, 1)
    with torch.no_grad():
        first.weight.copy_(torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, -1.0]]))
        first.bias.copy_(torch.tensor([-1000.0, -1000.0, 0.0]))
        last.weight.copy_(torch.tensor([[1.0, 1.0, 0.1]]))
        last.bias.fill_(2000.0)
    model, x = (
        nn.Sequential(first, nn.LeakyReLU(0.9), last).double().eval(),
        torch.full((1, 2), 0.5, dtype=torch.float64),
    )
    rows, offset = torch.ones((1, 1, 1), dtype=torch.float64), torch.zeros((1, 1), dtype=torch.float64)
    found = smallest_row_bounds(
        build(hf.Network.from_torch(model), x),
        Ball(x, 0.25, math.inf, (0, 1)),
        rows,
        offset,
        sign=False,
        steps=40,
    )
    corners = torch.cartesian_prod(*[torch.tensor([0.25, 0.75], dtype=torch.float64)] * 2)
    with torch.no_grad():
        assert model(corners).min() - 1e-6 <= float(found) <= model(corners).min()


def test_groups_of_features_have_balls_of_their_own() -> None:
    graph = build(
        hf.Network.from_torch(
            nn.Sequential(nn.Flatten(), nn.Linear(12, 8), nn.ReLU(), nn.Linear(8, 3)).eval()
        ),
        torch.zeros(1, 3, 4),
    )
    region = Frames(
        torch.rand((1, 3, 4), generator=seeded(1)),
        torch.tensor([0.5]),
        2,
        (-1, 1),
        mask=torch.tensor([[True, False, True]]),
    )
    _, question, rows = asked(graph, region)
    assert question.ball is not None
    assert question.inputs == 8
    found, _ = least(question, steps=40, sign=False)
    assert (found <= met(graph, region, rows)).all()


@given(s=st.floats(-5, 5), b=st.floats(-5, 5), low=st.floats(-3, 3), width=st.floats(0, 3))
def test_nothing_is_above_a_top_and_the_top_is_reached(s: float, b: float, low: float, width: float) -> None:
    curve, slope, ends = (
        torch.tensor(s).double(),
        torch.tensor(b).double(),
        torch.tensor([low, low + width]).double(),
    )
    top, place = _maximum_of_parabola(curve, slope, *ends)
    z = torch.cat(
        [ends[0] + (ends[1] - ends[0]) * torch.linspace(0, 1, 2001, dtype=torch.float64), ends]
    ).clamp(*ends)
    truth = (curve * z * z + slope * z).max()
    assert truth <= top <= truth + 1e-4
    assert ends[0] <= place <= ends[1]


def test_gradients_are_those_of_the_bound() -> None:
    """Against differences, in float64, of the bound and the barrier."""
    _, question, _ = asked(graph_of("skipping"), ball(2, 0.4))
    question = question.rows(torch.tensor([0]))
    begun, units, _ = _crown_multipliers(question)
    # Not where training begins: there the peaks of two sides are equal.
    begun = DualVariables(
        *(v + 0.1 * torch.rand(v.shape, generator=seeded(9), dtype=torch.float64) for v in begun.values())
    )
    numbers = begun.times(units).make_more_convex(torch.tensor([True]), 3.0, question.ahead)
    value, slopes = _bound(question, numbers, torch.zeros(1, dtype=torch.float64))
    assert value.isfinite().all()
    for k, (numbers_k, slope) in enumerate(zip(numbers.values(), slopes.values(), strict=True)):
        way = torch.randn(numbers_k.shape, generator=seeded(k), dtype=torch.float64)
        step = 1e-6 * float(numbers_k.abs().mean())
        sides = []
        for sign in (1, -1):
            moved = [v + sign * step * way if j == k else v for j, v in enumerate(numbers.values())]
            sides.append(
                float(_bound(question, DualVariables(*moved), torch.zeros(1, dtype=torch.float64))[0])
            )
        assert (sides[0] - sides[1]) / (2 * step) == pytest.approx(
            float((slope * way).sum()), rel=2e-2, abs=1e-6
        )


def test_bundles_say_what_the_whole_matrix_says() -> None:
    """Of a convolution, whose places read windows, and of rows without order."""
    g = seeded(0)
    windows = torch.block_diag(*(torch.randn(3, 5, generator=g, dtype=torch.float64) for _ in range(6)))
    loose = torch.randn(10, 30, generator=g, dtype=torch.float64) * (torch.rand(10, 30, generator=g) < 0.4)
    matrix, own = torch.cat([windows, loose]), torch.arange(28) % 30
    weight, square = (
        torch.randn(2, 28, generator=g, dtype=torch.float64),
        torch.randn(2, 30, 30, generator=g, dtype=torch.float64),
    )
    made = split_into_blocks(matrix, own, [(0, 18), (18, 18), (18, 28)])
    assert len(made) == 2
    assert made[0].values.shape == (6, 3, 5)
    total, apart = torch.zeros(2, 30, 30, dtype=torch.float64), torch.zeros(2, 30, 30, dtype=torch.float64)
    found, beside = torch.zeros(2, 29, dtype=torch.float64), torch.zeros(2, 29, dtype=torch.float64)
    for bundle in made:
        bundle.add_squares(weight, total)
        bundle.add_cross_products(weight, apart)
        bundle.quadratic_forms(square, found)
        bundle.cross_products(square, beside)
    unit = torch.eye(30, dtype=torch.float64)[own]
    torch.testing.assert_close(total, (matrix.T * weight[:, None]) @ matrix)
    torch.testing.assert_close(
        apart, (unit.T * weight[:, None]) @ matrix + (matrix.T * weight[:, None]) @ unit
    )
    torch.testing.assert_close(found[:, :-1], torch.einsum("nd,bde,ne->bn", matrix, square, matrix))
    torch.testing.assert_close(beside[:, :-1], torch.einsum("nd,bde,ne->bn", matrix, square, unit))


def test_the_sign_of_a_score_ends_the_training_and_what_is_too_large_says_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    graph = graph_of("conv")
    rows, region = torch.eye(3).double()[None], ball(2, 0.3)
    low = smallest_row_bounds(graph, region, rows, torch.full((1, 3), 5.0).double(), sign=False)
    assert 0 < float(low) <= float((met(graph, region, rows[0]) + 5).min())
    assert float(smallest_row_bounds(graph, region, rows, -low[:, None].expand(1, 3) + 4.9, sign=True)) <= 0
    monkeypatch.setattr("holdfast.bounding.joint_relu.MAX_CPU_VARIABLES", 3)
    assert smallest_row_bounds(graph, region, rows, torch.zeros((1, 3)).double(), sign=True).isinf().all()
    assert "Euclidean" in str(obstacle(graph, ball(1, 0.3)))
    smooth = build(hf.Network.from_torch(nn.Sequential(nn.Linear(2, 2), nn.Tanh()).eval()), torch.zeros(1, 2))
    assert "either side of zero" in str(obstacle(smooth, region))


def test_without_time_rows_that_were_not_trained_count_as_planes_know_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    graph, region, rows = graph_of("conv"), ball(2, 0.8), torch.eye(3).double()[None]
    planes = lower_bound(graph, propagate(graph, region), rows, torch.zeros((1, 3), dtype=torch.float64))
    offset = (
        torch.tensor([[0.0, 0.001, 0.002]], dtype=torch.float64) - planes
    )  # planes know nearly the same of all rows
    over: list[bool] = []

    def last(*asked: object, **options: object) -> object:
        found = least(*asked, **options)  # type: ignore[arg-type]
        over.append(True)
        return found

    monkeypatch.setattr("holdfast.bounding.joint_relu.least", last)
    monkeypatch.setattr("holdfast.time_limit.has_expired", lambda: bool(over))
    assert 0 < float(smallest_row_bounds(graph, region, rows, offset, sign=False)) < 0.0011
    over.clear()
    assert math.isnan(float(smallest_row_bounds(graph, region, rows, offset - 0.01, sign=True)))


@pytest.mark.parametrize("p", [2.0, math.inf])
def test_numbers_of_another_radius_are_gone_on_with_and_no_row_is_forgotten(p: float) -> None:
    graph, rows, memory = graph_of("conv"), torch.eye(3).double()[None], Memory()
    offset = torch.tensor([[0.2, 0.9, 0.4]], dtype=torch.float64)  # rows that fail at different radii

    def proved_at(radius: float, steps: int, known: Memory | None) -> bool:
        region = ball(p, radius)
        held = (
            float(
                smallest_row_bounds(
                    graph, region, rows, offset, sign=True, memory=known, inputs=[7], steps=steps
                )
            )
            > 0
        )
        assert not held or float((met(graph, region, rows[0]) + offset[0]).min()) > 0
        return held

    radii = [(2.0 if p == 2 else 0.5) * 0.93**k for k in range(24)]
    proved = [proved_at(radius, 60, memory) for radius in radii]
    assert not proved[0]
    assert proved[-1]
    assert {key[0] for key in memory} == {7}
    first = proved.index(True)
    again = radii[first] * 1.01  # numbers from above and from below are known there
    assert proved_at(again, 60, memory) >= proved_at(again, 25, None)
    # A row that failed before is looked at first; that planes prove it now says nothing of the others.
    row = next(key[1] for key in memory if not key[2])
    lifted = offset.clone()
    lifted[0, row] = 50.0
    worst = torch.where(
        torch.arange(3) == row, torch.inf, (met(graph, ball(p, radii[0]), rows[0]) + lifted[0])
    ).min()
    found = smallest_row_bounds(
        graph, ball(p, radii[0]), rows, lifted, sign=True, memory=dict(memory), inputs=[7], steps=20
    )
    assert float(found) <= float(worst)
