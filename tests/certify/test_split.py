"""Branch and bound as a tier: never above the exact answer, near it where that can be had, and honest where nothing can be cut."""

import itertools
import math
import time
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import linprog, minimize
from torch import Tensor, nn

import holdfast as hf
from holdfast import time_limit
from holdfast.bounding.branching.branching_rule import choose_branching
from holdfast.bounding.branching.input_split import InputSplit
from holdfast.bounding.branching.nonlinear_split import NonlinearSplit
from holdfast.bounding.branching.relu_split import ActivationSplit
from holdfast.bounding.graph.graph import build
from holdfast.random_streams import RandomStreams
from holdfast.region import Ball, Box, Frames, Sparse
from holdfast.result import Key
from sizes import every, some

INPUTS = 17  # more than are halved
MADE = {4: (3, 3), 5: (4, 2)}  # activations by seed, few enough to go through all their patterns
# One attack is enough to contradict a bound that is too high; the full suite tries three.
ATTACKS = every(
    [hf.attacks.PGD(rounds=3), hf.attacks.CarliniWagner(rounds=2), hf.attacks.Corners(rounds=2)], 3
)


@cache
def perceptron(seed: int) -> tuple[nn.Sequential, hf.Network, Tensor, Tensor]:
    """Outputs apart by so much that some activations must turn before the class does. Shared, so that it is traced once."""
    torch.manual_seed(seed)
    first, second = MADE[seed]
    model = nn.Sequential(
        nn.Linear(INPUTS, first), nn.ReLU(), nn.Linear(first, second), nn.ReLU(), nn.Linear(second, 2)
    ).eval()
    with torch.no_grad():
        for layer in (model[0], model[2], model[4]):
            layer.bias.mul_(0.3)
    net, x = hf.Network.from_torch(model, domain=(0, 1)), torch.rand(2, INPUTS).round(decimals=1)
    return model, net, x, net(x).argmax(1)


def pieces(model: nn.Sequential, label: int) -> Any:
    """For every pattern of signs: conditions g x + h <= 0 that it asks of x, and the margin a x + c with it."""
    weights = [
        (layer.weight.detach().double().numpy(), layer.bias.detach().double().numpy())
        for layer in (model[0], model[2], model[4])
    ]
    (w1, b1), (w2, b2), (w3, b3) = weights
    row = (w3[label] - w3[1 - label], b3[label] - b3[1 - label])
    for first in itertools.product([0.0, 1.0], repeat=len(b1)):
        s1 = torch.tensor(first).numpy()
        m2, c2 = w2 @ (s1[:, None] * w1), w2 @ (s1 * b1) + b2
        for second in itertools.product([0.0, 1.0], repeat=len(b2)):
            s2 = torch.tensor(second).numpy()
            g = torch.cat(
                [torch.tensor((1 - 2 * s1)[:, None] * w1), torch.tensor((1 - 2 * s2)[:, None] * m2)]
            ).numpy()
            h = torch.cat([torch.tensor((1 - 2 * s1) * b1), torch.tensor((1 - 2 * s2) * c2)]).numpy()
            yield g, h, row[0] @ (s2[:, None] * m2), float(row[0] @ (s2 * c2) + row[1])


def exact_radius(model: nn.Sequential, x: Tensor, label: int, p: float) -> float:
    """The smallest distance, inside [0, 1], at which the margin of some pattern is not positive."""
    centre, best = x.double().numpy(), math.inf
    for g, h, a, c in pieces(model, label):
        left, right = [*g, a], [*-h, -c]
        best = min(best, _nearest(centre, np.array(left), np.array(right), p))
    return best


def _nearest(centre: Any, left: Any, right: Any, p: float) -> float:
    """min |x - centre|_p with left x <= right in [0, 1]; infinite where there is no such x."""
    n, box = len(centre), [(0, 1)] * len(centre)
    eye = torch.eye(n).numpy()
    if p == 2:  # from the nearest point of another norm, which tells whether there is one
        first = linprog([0.0] * n, A_ub=left, b_ub=right, bounds=box)
        if first.status != 0:
            return math.inf
        inside = {"type": "ineq", "fun": lambda v: right - left @ v, "jac": lambda v: -left}
        found = minimize(
            lambda v: (v - centre) @ (v - centre), first.x, jac=lambda v: 2 * (v - centre), bounds=box, constraints=[inside],
            method="SLSQP", options={"maxiter": 1000, "ftol": 1e-14},
        )  # fmt: skip
        return math.sqrt(found.fun) if found.success else math.inf
    count = 1 if math.isinf(p) else n  # one length, or one for each feature
    each = torch.ones(n, 1).numpy() if count == 1 else eye
    rows = torch.cat([torch.tensor(s * eye) for s in (1.0, -1.0)]).numpy()
    a = torch.cat(
        [
            torch.cat([torch.tensor(left), torch.zeros(len(left), count)], dim=1),
            torch.cat([torch.tensor(rows), -torch.tensor(each).repeat(2, 1)], dim=1),
        ]
    ).numpy()
    b = torch.cat([torch.tensor(right), torch.tensor(centre), -torch.tensor(centre)]).numpy()
    found = linprog([0.0] * n + [1.0] * count, A_ub=a, b_ub=b, bounds=[*box, *[(0, None)] * count])
    return float(found.fun) if found.status == 0 else math.inf


@pytest.mark.parametrize(("seed", "p"), some([(4, 1), (4, math.inf)], [(4, math.inf)]))
def test_radii_by_signs_end_just_below_the_exact_one(p: float, seed: int) -> None:
    model, net, x, y = perceptron(seed)
    assert isinstance(
        choose_branching(build(net, x), Ball(x, torch.ones(2, dtype=torch.float64), p, net.domain)),
        ActivationSplit,
    )
    fast = hf.radius(net, x, y, norm=p, methods=[hf.certify.Certify()])
    method = hf.certify.Split(steps=2, finest=0.02)
    brackets = hf.radius(net, x, y, norm=p, methods=[*ATTACKS, method])  # raises where a witness lies inside
    for row, (bracket, first) in enumerate(zip(brackets, fast, strict=True)):
        truth = exact_radius(model, x[row], int(y[row]), p)
        assert bracket.lower.value <= truth * (1 + 1e-6)
        assert bracket.lower.value >= 0.95 * truth
        assert bracket.lower.value >= first.lower.value


@pytest.mark.parametrize(
    ("p", "family"),
    some(
        [(1, {"frames": "all"}), (2, {}), (math.inf, {}), (math.inf, {"frames": "all"})],
        [(1, {"frames": "all"}), (math.inf, {})],
    ),
)
@pytest.mark.usefixtures("cpu_clock")
def test_no_point_of_what_is_proved_changes_the_class(p: float, family: dict[str, Any]) -> None:
    """A network that is not closed: the largest radius proved, and points all over it and on its edge."""
    torch.manual_seed(5)
    model = nn.Sequential(
        nn.Flatten(), nn.Linear(20, 8), nn.ReLU(), nn.Linear(8, 6), nn.LeakyReLU(0.1), nn.Linear(6, 4)
    ).eval()
    net, x = hf.Network.from_torch(model, domain=(0, 1)), torch.rand(2, 5, 4)
    y = net(x).argmax(1)
    first = hf.radius(
        net, x, y, norm=p, methods=[hf.certify.Certify()], **family
    )  # traces the network, outside of the time below
    method, stop = hf.certify.Split(boxes=8, steps=2, finest=0.04), hf.Stop(seconds=5)
    proved = hf.radius(net, x, y, norm=p, methods=[*ATTACKS, method], stop=stop, **family)
    radius = torch.tensor([b.lower.value for b in proved], dtype=torch.float64)
    assert sum(b.lower.value for b in proved) > 1.02 * sum(b.lower.value for b in first)
    region = (Frames if family else Ball)(x, radius, p, net.domain)
    points = torch.cat(
        [
            region.sample(500, RandomStreams.of(range(len(region)), 0)),
            region.vertex(torch.randn(500, *x.shape)),
        ]
    )
    assert bool((net(points.flatten(0, 1)).argmax(1).reshape(-1, 2) == y).all())


def exact_least(model: nn.Sequential, box: Box, row: int, label: int) -> float:
    best, ends = math.inf, [*zip(box.lower[row].tolist(), box.upper[row].tolist(), strict=True)]
    for g, h, a, c in pieces(model, label):
        found = linprog(a, A_ub=g, b_ub=-h, bounds=ends)
        best = min(best, found.fun + c) if found.status == 0 else best
    return best


def test_the_worst_score_is_raised_to_the_exact_one() -> None:
    model, net, x, y = perceptron(5)
    box = Box.between(x.double() - 0.3, x.double() + 0.3)
    fast = hf.worst(net, box, hf.Robustness(y), methods=[hf.certify.Certify()])
    brackets = hf.worst(
        net, box, hf.Robustness(y), methods=[hf.attacks.PGD(), hf.certify.Split(steps=2, finest=0.05)]
    )
    for row, (bracket, first) in enumerate(zip(brackets, fast, strict=True)):
        truth = exact_least(model, box, row, int(y[row]))
        size = abs(truth) + abs(first.lower.value - truth)
        assert first.lower.value - 1e-9 <= bracket.lower.value <= truth + 1e-9 * size
        assert bracket.lower.value >= truth - 0.05 * size


@pytest.mark.parametrize("p", some([1, 2], [2]))
def test_the_worst_score_over_a_ball_is_never_above_a_point(p: float) -> None:
    _, net, x, y = perceptron(5)
    region = Ball(x, torch.full((2,), 1.0 if p == 1 else 0.6, dtype=torch.float64), p, net.domain)
    fast = hf.worst(net, region, hf.Robustness(y), methods=[hf.certify.Certify()])
    split = hf.worst(
        net, region, hf.Robustness(y), methods=[hf.attacks.PGD(), hf.certify.Split(steps=2, finest=0.2)]
    )
    points = torch.cat(
        [
            region.sample(3000, RandomStreams.of(range(len(region)), 1)),
            region.vertex(torch.randn(500, *x.shape)),
        ]
    )
    scores = hf.Robustness(y).score(net(points.flatten(0, 1)).reshape(-1, 2, 2)).amin(0)
    for first, bracket, met in zip(fast, split, scores.tolist(), strict=True):
        assert first.lower.value <= bracket.lower.value <= met + 1e-6
    assert sum(b.lower.value - f.lower.value for b, f in zip(split, fast, strict=True)) > 0


def test_halves_of_inputs_raise_a_worst_score_too() -> None:
    torch.manual_seed(0)
    net = hf.Network.from_torch(nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2)).eval())
    x = torch.randn(2, 4)
    y, box = net(x).argmax(1), Box.between(x.double() - 0.5, x.double() + 0.5)
    tight = hf.worst(net, box, hf.Robustness(y), methods=[hf.attacks.PGD(), hf.certify.Tighten(steps=2)])
    split = hf.worst(
        net, box, hf.Robustness(y), methods=[hf.attacks.PGD(), hf.certify.Split(steps=2, finest=0.05)]
    )
    for first, bracket in zip(tight, split, strict=True):
        assert bracket.lower.value <= bracket.upper.value
        assert bracket.gap < 0.5 * first.gap


def test_one_rule_chooses_the_cut() -> None:
    relu = build(
        hf.Network.from_torch(nn.Sequential(nn.Linear(20, 4), nn.ReLU(), nn.Linear(4, 2)).eval()),
        torch.zeros(1, 20),
    )
    tanh = build(
        hf.Network.from_torch(nn.Sequential(nn.Linear(20, 4), nn.Tanh(), nn.Linear(4, 2)).eval()),
        torch.zeros(1, 20),
    )
    centre, one = torch.zeros(1, 20), torch.ones(1, dtype=torch.float64)
    few = Box.between(centre, centre + (torch.arange(20) < 3))
    assert isinstance(choose_branching(relu, few), InputSplit)
    assert isinstance(choose_branching(relu, Ball(centre, one)), ActivationSplit)
    assert isinstance(choose_branching(relu, Ball(centre, one, 2)), ActivationSplit)
    assert isinstance(choose_branching(tanh, few), InputSplit)
    assert isinstance(choose_branching(tanh, Ball(centre, one)), InputSplit)
    assert isinstance(choose_branching(tanh, Ball(centre, one), models=True), NonlinearSplit)
    assert isinstance(choose_branching(tanh, Ball(centre, one, 2)), NonlinearSplit)


class Gated(nn.Module):
    def __init__(self, cell: type[nn.RNNBase]) -> None:
        super().__init__()
        self.cell, self.head = cell(6, 3, batch_first=True), nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.head(self.cell(x)[0][:, -1])
        return scores


def smooth(kind: str) -> tuple[hf.Network, Tensor, Tensor]:
    """18 inputs, more than are halved by themselves."""
    torch.manual_seed(6)
    tanh = nn.Sequential(
        nn.Flatten(), nn.Linear(18, 6), nn.Tanh(), nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 2)
    )
    module = tanh if kind == "tanh" else Gated({"lstm": nn.LSTM, "gru": nn.GRU}[kind])
    with torch.no_grad():
        for weight in module.parameters():
            weight.mul_(2)
    net, x = hf.Network.from_torch(module.eval()), torch.randn(2, 3, 6)
    return net, x, net(x).argmax(1)


@pytest.mark.parametrize(
    ("kind", "p"),
    some([("tanh", 1), ("tanh", 2), ("tanh", math.inf), ("lstm", 2)], [("tanh", 1), ("tanh", math.inf)]),
)
def test_smooth_functions_are_cut_in_every_norm_and_no_point_is_below(kind: str, p: float) -> None:
    """Witnesses would contradict a radius, and points of the region a score, that is too large; and neither is worse than tight."""
    net, x, y = smooth(kind)
    tight = hf.radius(net, x, y, norm=p, methods=[*ATTACKS, hf.certify.Tighten(steps=4)])
    split = hf.radius(net, x, y, norm=p, methods=[*ATTACKS, hf.certify.Split(boxes=16, steps=4, finest=0.02)])
    for first, bracket in zip(tight, split, strict=True):
        assert first.lower.value * (1 - 1e-9) <= bracket.lower.value <= bracket.upper.value
    if p == math.inf:
        assert sum(b.lower.value for b in split) > 1.01 * sum(b.lower.value for b in tight)
    region = Ball(x, torch.tensor([1.1 * b.lower.value for b in tight], dtype=torch.float64), p)
    before = hf.worst(net, region, hf.Robustness(y), methods=[*ATTACKS[:1], hf.certify.Tighten(steps=4)])
    after = hf.worst(
        net, region, hf.Robustness(y), methods=[*ATTACKS[:1], hf.certify.Split(boxes=16, steps=4, finest=0.1)]
    )
    points = torch.cat(
        [
            region.sample(2000, RandomStreams.of(range(len(region)), 1)),
            region.vertex(torch.randn(500, *x.shape)),
        ]
    )
    scores = hf.Robustness(y).score(net(points.flatten(0, 1)).reshape(-1, 2, 2)).amin(0)
    for first, bracket, met in zip(before, after, scores.tolist(), strict=True):
        assert first.lower.value - 1e-9 <= bracket.lower.value <= met + 1e-6


def test_counts_of_changes_are_not_cut_and_the_record_says_so() -> None:
    torch.manual_seed(0)
    net = hf.Network.from_torch(
        nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2)).eval(), domain=(-3, 3)
    )
    x = torch.randn(1, 6).clamp(-3, 3)
    region = Sparse(x, torch.zeros(1, dtype=torch.float64), net.domain)
    [record] = hf.solve(
        [hf.Problem(net, region, hf.Robustness(net(x).argmax(1)), "radius", (Key(0),))],
        [hf.certify.Split(steps=2)],
    )
    assert [reason for reason in record.skipped if reason.startswith("Split: nothing is split")]


@pytest.mark.parametrize("p", some([2, math.inf], [math.inf]))
def test_time_for_nothing_and_time_for_everything_end_alike_where_ranges_are_cut(p: float) -> None:
    net, x, y = smooth("tanh")
    problem = hf.Problem(
        net, Ball(x, torch.zeros(2, dtype=torch.float64), p), hf.Robustness(y), "radius", (Key(0), Key(1))
    )
    method, upper = (
        hf.certify.Split(boxes=16, steps=4, finest=0.02),
        torch.full((2,), math.inf, dtype=torch.float64),
    )
    ends = []
    for often in (1, 2):  # every step has time, or every other
        state, turn, low = method.start(problem, 0), 0, torch.zeros(2, dtype=torch.float64)
        while state is not None:
            assert turn < 400
            with time_limit.within(math.inf if turn % often == 0 else time.monotonic()):
                state, claims = method.step(problem, method.update_bounds(problem, state, low, upper))
            found = (
                low if claims.proved is None else claims.proved
            )  # a step that a signal ended claims nothing
            assert bool((found >= low).all())
            low, turn = found, turn + 1
        ends.append(low)
    torch.testing.assert_close(*ends, rtol=0.02, atol=0)


@pytest.mark.parametrize("goal", ["radius", "worst"])
def test_the_clock_ends_a_step_and_nothing_is_claimed_that_is_not_proved(goal: Any) -> None:
    """Time for nothing, then for everything."""
    model, net, x, y = perceptron(5)
    region = Ball(
        x, torch.full((2,), 0.0 if goal == "radius" else 0.2, dtype=torch.float64), math.inf, net.domain
    )
    problem = hf.Problem(net, region, hf.Robustness(y), goal, (Key(0), Key(1)))
    method = hf.certify.Split(steps=2, finest=0.05)
    upper = torch.tensor(
        [exact_radius(model, x[i], int(y[i]), math.inf) for i in range(2)], dtype=torch.float64
    )
    if goal == "worst":
        box = Box.between(*region.enclosing_box())
        upper = torch.tensor([exact_least(model, box, i, int(y[i])) for i in range(2)], dtype=torch.float64)
    state, turn, low = method.start(problem, 0), 0, torch.full((2,), -math.inf, dtype=torch.float64)
    while state is not None and turn < 400:
        with time_limit.within(0.0 if turn % 2 else math.inf):
            state, claims = method.step(problem, method.update_bounds(problem, state, low, upper))
        turn += 1
        if claims.proved is None:  # it was cut off
            assert turn % 2 == 0
            continue
        assert bool((claims.proved <= upper + 1e-9).all())
        assert bool((claims.proved >= low).all())
        low = claims.proved
    assert state is None
    assert bool((low > -math.inf).all())
