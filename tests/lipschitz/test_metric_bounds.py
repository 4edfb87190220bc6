"""Certified slopes and metrics: equal to closed forms on linear networks, above every witnessed quotient elsewhere."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import truth
from holdfast.bounding.relax import Mish, Relaxation
from holdfast.datasets.digits import digits
from holdfast.datasets.digits_networks import digits_cnn, digits_gru
from holdfast.errors import BadInput, UnsupportedLayer
from holdfast.lipschitz.metric_bound import Shells, bound_score_and_slope, slope_bound
from holdfast.network import Network
from holdfast.problem import Problem
from holdfast.property import Confidence, Custom, Linear, Property, Reach, Robustness, Tie, Uncertainty
from holdfast.random_streams import RandomStreams
from holdfast.region import Ball, Box, Frames, Patch, Region, Sparse
from holdfast.region.base import Domain
from holdfast.result import Key
from sizes import combinations

INF = math.inf
Asked = Callable[[Tensor], Property]
PROPERTIES: dict[str, Asked] = {
    "robustness": lambda z: Robustness(z.argmax(-1)),
    "all others": lambda z: Confidence(z.argmax(-1), None, 0.1),
    "runner-up": lambda z: Confidence.runner_up(z),
    "least likely output": lambda z: Confidence.least_likely(z, 0.1, softmax=False),
    "uncertainty": lambda z: Uncertainty.around(z, None, 0.1),
    "toward": lambda z: Uncertainty(torch.full_like(z, 1 / z.shape[-1]), 0.1),
    "tie": lambda z: Tie(z.argmax(-1), 0.1),
    "tie of outputs": lambda z: Tie(z.argmax(-1), 0.1, softmax=False),
    "reach": lambda z: Reach.rise(z, z.argmin(-1), 0.1),
    "reach of an output": lambda z: Reach.rise(z, z.argmin(-1), 0.1, softmax=False),
}


def asked(net: Network, region: Region, prop: Property, goal: str = "worst") -> Problem:
    return Problem(net, region, prop, goal, tuple(Key(i) for i in range(len(region))))  # type: ignore[arg-type]


def metric_bound(problem: Problem, **options: Any) -> Tensor:
    """What the method proves when it is left to its end; each of its steps may only better the one before."""
    method, problem = Shells(**options), replace(problem, goal="steepness")
    if (why := method.obstacle(problem)) is not None:
        raise BadInput(why)
    state, best = method.start(problem, 0), torch.full((len(problem),), INF, dtype=torch.float64)
    while state is not None:
        state, claims = method.step(problem, state)
        assert claims.proved is not None
        better = -claims.proved.nan_to_num(-INF, neginf=-INF)
        assert (better <= best).all()
        best = better
    return best


def small(
    seed: int = 0, inner: Callable[[], nn.Module] = nn.ReLU, scale: float = 0.6
) -> tuple[Network, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    model = nn.Sequential(
        nn.Flatten(), nn.Linear(6, 14), inner(), nn.Linear(14, 12), inner(), nn.Linear(12, 4)
    ).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * scale)
    return Network.from_torch(model.eval(), domain=(0, 1)), torch.rand(
        (6, 3, 2), generator=generator, dtype=torch.float64
    )


def witnessed(problem: Problem, rungs: int = 5, steps: int = 6) -> Tensor:
    """(batch,): the largest quotient found: the gradient's dual length, random points, and climbs up and down at many radii.

    The first holds for balls whose centre has room on all sides only, so it is left to those without a domain.
    """
    family, centre = problem.family, problem.region.centre
    assert isinstance(family, Ball | Frames)
    first, best = problem.score(centre).double(), torch.zeros(len(problem), dtype=torch.float64)

    def seen(x: Tensor) -> None:
        nonlocal best
        length = family.length(x - centre).double()
        quotient = (problem.score(x).double() - first).abs() / length
        best = torch.maximum(best, torch.where(length > 1e-7, quotient, 0).reshape(-1, len(problem)).amax(0))

    for rung in range(rungs):
        inner = Problem(
            problem.network,
            family.at(family.radius * 2.0 ** (-rung / 2)),
            problem.property,
            "worst",
            problem.keys,
        )
        seen(inner.region.sample(50, RandomStreams.of(problem.keys, rung)))
        for sign in (1, -1):
            x = centre
            for step in range(steps):
                target = inner.region.vertex(sign * inner.score_and_gradient(x)[1])
                x = inner.region.project(target if step < steps // 2 else x + 0.3 * (target - x))
                seen(x)
    return best


# ---------------------------------------------------------------- closed forms


@pytest.mark.parametrize("p", [1, 2, INF])
def test_a_linear_network_has_the_dual_norm_of_its_row(p: float) -> None:
    known = truth.linear(1, shape=(2, 3))
    weight = next(m for m in known.model.modules() if isinstance(m, nn.Linear)).weight.detach().double()
    row = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)
    answer = truth.length(row @ weight, truth.dual(p))
    prop = Linear.of(row, 0.3, batch=len(known.x))
    for region in (Ball(known.x, torch.full((4,), 0.5), p), Ball(known.x, torch.full((4,), 1e-3), p)):
        problem = asked(known.network(), region, prop)
        for bound in (slope_bound(problem), metric_bound(problem)):
            assert (bound >= answer).all()
            assert torch.allclose(bound, answer.expand(4), rtol=1e-6)


@pytest.mark.parametrize("p", [1, 2, INF])
def test_frames_patches_and_boxes_have_their_own_length(p: float) -> None:
    known = truth.linear(3, shape=(4, 3))
    weight = next(m for m in known.model.modules() if isinstance(m, nn.Linear)).weight.detach().double()
    row = (weight[0] - weight[1]).reshape(4, 3)
    prop = Linear.of([1.0, -1.0, 0.0], batch=4)
    mask = torch.tensor([[True, False, True, True]]).expand(4, -1)
    each = truth.length(row, truth.dual(p))
    found = metric_bound(asked(known.network(), Frames(known.x, torch.full((4,), 0.2), p, mask=mask), prop))
    assert torch.allclose(found, (each * mask).sum(-1), rtol=1e-6)
    patch = Patch.square(known.x[:, None], top=0, left=1, size=2, domain=Domain.of((0, 1)))
    flat = nn.Sequential(nn.Flatten(), *list(known.model.children())[1:])
    found = metric_bound(asked(Network.from_torch(flat.eval()), patch, prop))
    assert torch.allclose(found, row[:2, 1:].abs().sum().expand(4), rtol=1e-6)
    wide = torch.zeros_like(known.x)
    wide[:, 1] = 0.5  # only the second frame moves
    found = slope_bound(asked(known.network(), Box(known.x, known.x - wide, known.x + wide), prop), norm=p)
    assert torch.allclose(found, truth.length(row[1], truth.dual(p)).expand(4), rtol=1e-6)


def test_the_metric_of_two_classes_is_the_slope_of_tanh() -> None:
    """p_0 - p_1 = tanh(d / 2) along one number: the largest quotient over |r| <= 1 is known by a fine grid."""
    layer = nn.Linear(1, 2).double()
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[3.0], [-3.0]]))
        layer.bias.copy_(torch.tensor([2.0, 0.0]))
    x = torch.tensor([[0.0]], dtype=torch.float64)
    problem = asked(
        Network.from_torch(layer.eval()), Ball(x, torch.ones(1), INF), Confidence(torch.tensor([0]))
    )
    r = torch.linspace(-1, 1, 20001, dtype=torch.float64)
    r = r[r != 0]
    answer = ((torch.tanh(1 + 3 * r) - math.tanh(1)) / r).abs().max()
    coarse, fine = metric_bound(problem), metric_bound(problem, shells=100, ratio=1.05)
    assert answer <= fine <= coarse
    assert fine <= answer * 1.05
    assert coarse <= answer * 1.4
    assert slope_bound(problem) >= 3 * (1 - 1e-12)  # tanh'(0), which is in the region


def test_a_row_counts_unless_another_is_always_below_it() -> None:
    """Over [0, 1], x < 5 - 4.9 x at first and the other way round at last; 7 - 5 x is never the smallest."""
    layer = nn.Linear(1, 1).double()
    with torch.no_grad():
        layer.weight.fill_(1.0)
        layer.bias.zero_()
    rows = Linear(
        torch.tensor([[[1.0], [-4.9], [-5.0]]], dtype=torch.float64),
        torch.tensor([[0.0, 5.0, 7.0]], dtype=torch.float64),
    )
    x = torch.tensor([[0.5]], dtype=torch.float64)
    for radius, answer in ((0.5, 4.9), (0.3, 1.0)):
        problem = asked(
            Network.from_torch(layer.eval()), Ball(x, torch.tensor([radius], dtype=torch.float64), INF), rows
        )
        assert float(slope_bound(problem)) == pytest.approx(answer, rel=1e-9)


# ---------------------------------------------------------------- never below a witness


@pytest.mark.parametrize(
    ("name", "case"),
    combinations(
        list(PROPERTIES),
        [(nn.ReLU, [(2, 0.3), (INF, 0.02)]), (nn.Tanh, [(1, 1.0)]), (nn.Sigmoid, [(INF, 0.3)])],
    ),
)
def test_no_quotient_exceeds_the_metric(
    name: str, case: tuple[Callable[[], nn.Module], list[tuple[float, float]]]
) -> None:
    inner, balls = case
    net, x = small(4, inner)
    prop = PROPERTIES[name](net(x))
    for p, radius in balls:
        problem = asked(net, Ball(x, torch.full((6,), radius), p, net.domain), prop)
        bound, steep, found = metric_bound(problem), slope_bound(problem), witnessed(problem)
        assert bound.isfinite().all()
        assert (bound <= steep * (1 + 1e-9)).all()
        assert (found <= bound * (1 + 1e-9) + 1e-9).all()


@pytest.mark.parametrize("name", PROPERTIES)
def test_gradients_inside_never_exceed_the_slope(name: str) -> None:
    net, x = small(7)
    problem = asked(net, Ball(x, torch.full((6,), 0.2), 2), PROPERTIES[name](net(x)))
    points = problem.region.sample(300, RandomStreams.of(range(len(problem.region)), 0))
    gradient = problem.score_and_gradient(points)[1].flatten(2)
    assert (torch.linalg.vector_norm(gradient, dim=-1) <= slope_bound(problem) * (1 + 1e-12)).all()
    seen, scores = bound_score_and_slope(problem), problem.score(points)
    assert (scores >= seen.least - 1e-12).all()
    assert (scores <= seen.most + 1e-12).all()


def test_frames_of_a_network_hold_too() -> None:
    net, x = small(5, nn.Tanh)
    mask = torch.tensor([[True, False, True]]).expand(6, -1)
    problem = asked(
        net, Frames(x, torch.full((6,), 0.3), 2, net.domain, mask=mask), Confidence(net(x).argmax(-1))
    )
    assert (witnessed(problem) <= metric_bound(problem)).all()


@pytest.mark.parametrize(("model", "count"), [(digits_cnn, 1), (digits_gru, 1)])
@pytest.mark.parametrize("softmax", [True, False])
def test_digits_are_never_steeper_than_proved(
    model: Callable[[], nn.Module], count: int, softmax: bool
) -> None:
    """In float64: float32 rounding over a tiny distance is a quotient of its own."""
    x = digits("test").x[:count].double()
    x = x if model is digits_cnn else x.flatten(1, 2)
    net = Network.from_torch(model().double().eval(), domain=(0, 1))
    problem = asked(
        net,
        Ball(x, torch.full((count,), 0.1), INF, net.domain),
        Confidence.runner_up(net(x), softmax=softmax),
    )
    bound, found = metric_bound(problem, shells=4, ratio=1.6), witnessed(problem, rungs=3)
    assert bound.isfinite().all()
    assert (found <= bound).all()


def test_an_mlp_is_bounded_closely() -> None:
    """On a network of the paper's kind, the proved metric of the outputs is near the witnessed one."""
    net, x = small(9, scale=0.4)
    problem = asked(net, Ball(x, torch.full((6,), 0.1), INF), Confidence.runner_up(net(x), softmax=False))
    assert ((metric_bound(problem) / witnessed(problem)).median() < 1.5).all()


def test_a_last_softmax_is_part_of_the_score() -> None:
    """For the radius of a class it is left out; its slope is not that of the outputs before it."""
    layer = nn.Linear(2, 2).double()
    with torch.no_grad():
        layer.weight.copy_(torch.eye(2) * 5)
        layer.bias.zero_()
    x = torch.tensor([[0.5, 0.0]], dtype=torch.float64)
    net = Network.from_torch(nn.Sequential(layer, nn.Softmax(-1)).eval())
    problem = asked(net, Ball(x, torch.tensor([0.01]), INF), Robustness(torch.tensor([0])), "radius")
    slope = 5 * (1 - math.tanh(1.25) ** 2)
    assert float(slope_bound(problem)) == pytest.approx(slope, rel=0.5)
    assert float(slope_bound(problem)) >= slope


# ---------------------------------------------------------------- what is refused


def test_what_has_no_slope_is_refused_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    net, x = small()
    label = net(x).argmax(-1)
    with pytest.raises(BadInput, match="not for Custom"):
        slope_bound(asked(net, Ball(x, torch.ones(6), 2), Custom(lambda z: z[:, 0])))
    with pytest.raises(BadInput, match=r"convex regions .* not on a Sparse"):
        slope_bound(asked(net, Sparse(x, torch.ones(6), domain=net.domain), Robustness(label)))
    with pytest.raises(BadInput, match="not for a Box"):
        metric_bound(asked(net, Box.between(x, x + 1), Robustness(label)))
    with pytest.raises(BadInput, match="infinite ball in an unbounded domain"):
        metric_bound(asked(net, Ball(x, torch.full((6,), INF), 2), Robustness(label)))
    with pytest.raises(BadInput, match="shells must be at least 1"):
        metric_bound(asked(net, Ball(x, torch.ones(6), 2), Robustness(label)), shells=0)
    odd, y = small(0, nn.Mish)
    assert slope_bound(asked(odd, Ball(y, torch.ones(6), 2), Robustness(label))).isfinite().all()
    monkeypatch.setattr(Mish, "derivative_range", Relaxation.derivative_range)
    with pytest.raises(UnsupportedLayer, match="derivative of Mish"):
        slope_bound(asked(odd, Ball(y, torch.ones(6), 2), Robustness(label)))


def test_an_infinite_ball_ends_with_the_domain_and_an_empty_one_has_no_quotient() -> None:
    net, x = small()
    prop = Robustness(net(x).argmax(-1))
    whole, ends = (
        metric_bound(asked(net, Ball(x, torch.full((6,), r), INF, net.domain), prop)) for r in (INF, 1.0)
    )
    assert whole.isfinite().all()
    assert (whole <= ends * 1.5).all()
    assert metric_bound(asked(net, Ball(x, torch.zeros(6), INF, net.domain), prop)).tolist() == [0] * 6
