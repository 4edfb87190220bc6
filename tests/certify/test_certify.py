"""Certified radii against closed forms, against attacks, and against each other."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import holdfast as hf
import truth
from holdfast import time_limit
from holdfast.attacks.descent import descend
from holdfast.bounding import crown
from holdfast.bounding.graph.problem_graph import ASSUMPTIONS
from holdfast.bounding.relax import LinearBounds, Relaxation
from holdfast.bounding.relax import base as relaxations
from holdfast.certify import Certify, certify
from holdfast.certify.certify import (
    NO_PASS_ENDED,
    NO_RADIUS_CERTIFIED,
    SEARCH_STATE_KEY,
    KnownBounds,
    RadiusSearch,
    _narrow,
    _next_radius_of_long_network,
    proved_score,
)
from holdfast.datasets.digits import digits
from holdfast.datasets.digits_networks import digits_cnn, digits_gru, digits_lstm
from holdfast.problem import Problem
from holdfast.random_streams import RandomStreams
from holdfast.region import Ball, Box, Family, Frames, Patch, Sparse
from sizes import FULL

INF = math.inf


def zero(x: Tensor) -> Tensor:
    return torch.zeros(len(x), dtype=torch.float64)


def proved(problem: Problem, **settings: int) -> Tensor:
    return torch.tensor(
        [r.bracket.lower.value for r in hf.solve([problem], [Certify(**{"close": 0.0, **settings})])],
        dtype=torch.float64,
    )


# ---------------------------------------------------------------- closed forms


@pytest.mark.parametrize("p", [1, 1.5, 2, 3, INF])
def test_a_linear_network_is_certified_to_its_boundary(p: float) -> None:
    known = truth.linear(2, batch=6)
    problem = truth.radius_problem(known.network(), Ball(known.x, zero(known.x), p), known.y)
    found, answer = proved(problem, rounds=12), known.radius(p)
    assert (found <= answer).all()
    assert (found >= answer * (1 - 1e-6)).all()


@pytest.mark.parametrize("p", [1, 2, INF])
def test_frames_of_a_linear_network_are_certified_to_the_boundary(p: float) -> None:
    known = truth.linear(3, shape=(4, 3), batch=5)
    mask = torch.rand((5, 4), generator=torch.Generator().manual_seed(0)) < 0.5
    mask[:, 0] = True
    problem = truth.radius_problem(known.network(), Frames(known.x, zero(known.x), p, mask=mask), known.y)
    found, answer = proved(problem, rounds=20), known.radius_of_frames(p, mask)
    assert (found <= answer).all()
    assert (found >= answer * (1 - 1e-6)).all()


def test_a_patch_of_a_linear_network_is_certified_to_the_boundary() -> None:
    known = truth.linear(4, shape=(1, 4, 4), batch=5)
    mask = torch.zeros(known.x.shape, dtype=torch.bool)
    mask[..., 1:3, 1:4] = True
    problem = truth.radius_problem(known.network(), Patch(known.x, zero(known.x), mask), known.y)
    found, answer = proved(problem, rounds=14), known.radius_of_patch(mask)
    assert (found <= answer).all()
    assert (found >= answer * (1 - 1e-5)).all()


@pytest.mark.parametrize("axes", [(), (0,)])
def test_changed_units_of_a_linear_network_are_counted_exactly(axes: tuple[int, ...]) -> None:
    known = truth.linear(5, shape=(2, 3, 3), batch=6)
    net = known.network((0.0, 1.0))
    problem = truth.radius_problem(net, Sparse(known.x, zero(known.x), net.domain, axes=axes), known.y)
    assert (proved(problem, rounds=8) == known.changed_units((0.0, 1.0), axes)).all()


def test_a_class_that_nothing_can_change_has_no_radius() -> None:
    """The search tries whole numbers around the limit; proved there, the class holds at every radius."""
    layer = nn.Linear(4, 2)
    with torch.no_grad():
        layer.weight.mul_(1e-3)
        layer.bias.copy_(torch.tensor([5.0, 0.0]))
    net = hf.Network.from_torch(layer.eval(), domain=(0, 1))
    for rounds in range(1, 8):
        [bracket] = hf.radius(net, torch.full((1, 4), 0.5), [0], norm=0, methods=[Certify(rounds=rounds)])
        assert bracket.lower.value < 4 or bracket.closed
    assert bracket.lower.value == bracket.upper.value == INF
    assert "no change that is allowed breaks it" in bracket.note


@pytest.mark.parametrize("awake", [True, False])
@pytest.mark.parametrize("p", [1, 2, INF])
def test_one_relu_is_certified_below_its_closed_form(awake: bool, p: float) -> None:
    known = truth.one_relu(awake=awake)
    problem = truth.radius_problem(
        hf.Network.from_torch(known.model), Ball(known.x, zero(known.x), p), torch.tensor([0])
    )
    [found] = proved(problem, rounds=12).tolist()
    assert 0 < found <= known.radius(p)
    # The plane above a ReLU meets it at its upper end, which is where the class changes: nothing is lost.
    assert found >= known.radius(p) * (1 - 1e-4)


@pytest.mark.parametrize("seed", range(6))
def test_piecewise_linear_networks_are_certified_below_their_nearest_zero(seed: int) -> None:
    known = truth.piecewise(seed)
    net = hf.Network.from_torch(known.model)
    [found] = proved(truth.radius_problem(net, Ball(known.x, zero(known.x)), known.y)).tolist()
    assert 0 < found <= known.radius(-1e3, 1e3)
    row = [-1.0, 1.0] if int(known.y[0]) else [1.0, -1.0]
    for low, high in ((-2.0, 2.0), (float(known.x[0, 0]), float(known.x[0, 0])), (0.1, 0.4)):
        region = Box.between(torch.tensor([[low]]), torch.tensor([[high]]))
        [bracket] = hf.worst(net, region, hf.property.Linear.of(row), methods=[Certify()])
        assert (
            bracket.lower.value <= known.worst(float(region.lower[0, 0]), float(region.upper[0, 0])) + 1e-12
        )
        assert bracket.lower.value > -INF


def test_words_are_certified_below_the_enumeration() -> None:
    for seed in range(4):
        known = truth.sentences(seed)
        brackets = hf.radius(
            known.network(), known.tokens, known.y, substitutes=known.substitutes, methods=[Certify(rounds=6)]
        )
        for bracket, answer in zip(brackets, known.radius(), strict=True):
            assert bracket.lower.value <= answer


def test_the_worst_score_is_below_a_dense_grid() -> None:
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 8), nn.Sigmoid(), nn.Linear(8, 1)).eval()
    low, high = torch.tensor([-0.3, 0.2]), torch.tensor([0.4, 0.5])
    [bracket] = hf.worst(
        hf.Network.from_torch(model),
        Box.between(low[None], high[None]),
        hf.property.Linear.of([1.0], -0.25),
        methods=[Certify()],
    )
    axes = [
        torch.linspace(float(a), float(b), 101, dtype=torch.float64) for a, b in zip(low, high, strict=True)
    ]
    with torch.no_grad():
        grid = float(model.double()(torch.cartesian_prod(*axes)).min()) - 0.25
    assert grid - 0.1 <= bracket.lower.value <= grid


# ---------------------------------------------------------------- attacked


@dataclass(frozen=True)
class Trained:
    model: nn.Module
    x: Tensor
    y: Tensor


def trained(name: str, count: int = 2) -> Trained:
    """The stored networks; the recurrent ones read the four middle rows, and the class is what they say."""
    data = digits("test")
    model = {"cnn": digits_cnn, "lstm": digits_lstm, "gru": digits_gru}[name]()
    x = data.x[:count] if name == "cnn" else data.x[:count, 0, 2:6]
    with torch.no_grad():
        return Trained(model, x, model(x).argmax(-1))


def unbroken(problem: Problem, radius: Tensor) -> None:
    """No attack in float64 at the certified radius finds a score of zero or less."""
    twin = problem.network.double(problem.region.centre)
    assert twin is not None
    at = Problem(twin, problem.family.at(radius), problem.property, "worst", problem.keys)
    region = at.family
    region = type(region)(**{**region.__dict__, "centre": region.centre.double()})
    at = Problem(twin, region, problem.property, "worst", problem.keys)
    start = torch.cat([region.sample(6, RandomStreams.of(range(len(region)), 1)), region.centre[None]])
    points, scores = descend(at, start, 15)
    assert region.contains(points).all()
    assert (scores > 0).all()
    assert (proved_score(at) <= scores.amin(0)).all()
    corners = region.sample(200, RandomStreams.of(range(len(region)), 2))
    assert (at.score(corners) > 0).all()
    for method in (hf.attacks.PGD(rounds=1, steps=15), hf.attacks.Corners(rounds=1)):
        for record in hf.solve([at], [method]):
            assert record.bracket.upper.value > 0


@pytest.mark.parametrize(("name", "norm"), [("cnn", INF), ("lstm", 1), ("lstm", 2), ("gru", INF), ("gru", 1)])
def test_no_certificate_of_a_trained_network_breaks(name: str, norm: float) -> None:
    known = trained(name, 1 if name == "cnn" else 2)
    net = hf.Network.from_torch(known.model, domain=(0, 1))
    problem = truth.radius_problem(net, Ball(known.x, zero(known.x), norm, net.domain), known.y)
    radius = proved(problem, rounds=3)
    assert (radius > 0).all()
    unbroken(problem, radius)


def test_brackets_of_all_methods_together_never_cross() -> None:
    """Certificates below, every attack above: a Contradiction would be raised here."""
    known = trained("gru")
    net = hf.Network.from_torch(known.model, domain=(0, 1))
    methods = [
        Certify(rounds=3),
        hf.attacks.PGD(rounds=3),
        hf.attacks.CarliniWagner(rounds=2),
        hf.attacks.Corners(rounds=3),
    ]
    for norm, frames in ((2, "all"), (INF, [1, 3])):
        for bracket in hf.radius(net, known.x, known.y, norm=norm, frames=frames, methods=methods):  # type: ignore[call-overload]
            assert 0 < bracket.lower.value <= bracket.upper.value
            assert bracket.lower.evidence.method == "Certify"
            assert bracket.lower.evidence.assumptions == ASSUMPTIONS


def test_random_networks_keep_their_certificates() -> None:
    makers: list[tuple[Callable[[], nn.Module], tuple[int, ...]]] = [
        (
            lambda: nn.Sequential(
                nn.Linear(5, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 3)
            ),
            (5,),
        ),
        (
            lambda: nn.Sequential(
                nn.Linear(5, 16), nn.Tanh(), nn.Linear(16, 16), nn.Sigmoid(), nn.Linear(16, 3)
            ),
            (5,),
        ),
        (
            lambda: nn.Sequential(
                nn.Conv2d(1, 4, 3), nn.ELU(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(4, 3)
            ),
            (1, 4, 4),
        ),
    ]
    for seed, (make, shape) in enumerate(makers):
        torch.manual_seed(seed)
        model = make().eval()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(2)
        x = torch.rand((8, *shape))
        net = hf.Network.from_torch(model, domain=(0, 1))
        y = net(x).argmax(-1)
        families: list[Family] = [Ball(x, zero(x), p, net.domain) for p in (1, 2, INF)]
        families += [
            Frames(x, zero(x), 2, net.domain),
            Patch(x, zero(x), torch.rand(x.shape) < 0.5, net.domain),
        ]
        families += [Sparse(x, zero(x), net.domain)]
        for family in families if FULL else families[seed % 2 :: 2]:
            problem = truth.radius_problem(net, family, y)
            radius = proved(problem)
            assert isinstance(family, Sparse) or (radius > 0).all()
            unbroken(problem, radius)


# ---------------------------------------------------------------- against each other


def test_a_target_is_at_least_as_far_as_any_other_class() -> None:
    known = trained("lstm")
    net = hf.Network.from_torch(known.model, domain=(0, 1))
    region = Ball(known.x, torch.full((2,), 0.02, dtype=torch.float64), INF, net.domain)
    keys = tuple(hf.result.Key(i) for i in range(2))
    whole = proved_score(Problem(net, region, hf.Robustness(known.y), "worst", keys))
    each = torch.stack(
        [
            proved_score(
                Problem(net, region, hf.property.Targeted(known.y, (known.y + k) % 10), "worst", keys)
            )
            for k in range(1, 10)
        ]
    )
    torch.testing.assert_close(each.amin(0), whole, rtol=1e-9, atol=1e-9)
    untargeted = proved(truth.radius_problem(net, region.at(0.0), known.y), rounds=3)
    found = hf.radius(net, known.x, known.y, targets=(known.y + 1) % 10, methods=[Certify(rounds=3)])
    # Both end on a grid of their own, at most this far below what could be proved.
    assert all(b.lower.value >= u * 0.9 for b, u in zip(found, untargeted.tolist(), strict=True))


@pytest.mark.parametrize(("norm", "radius"), [(2, 0.03), (INF, 0.01)])
def test_more_frames_never_give_a_higher_score(norm: float, radius: float) -> None:
    """Where the bounds mean something; slopes follow the boxes, so far beyond that they need not be monotone."""
    known = trained("gru")
    net = hf.Network.from_torch(known.model, domain=(0, 1))
    masks = torch.tril(torch.ones(4, 4)).bool()
    keys = tuple(hf.result.Key(i) for i in range(2))
    scores = []
    for mask in masks:
        region = Frames(
            known.x, torch.full((2,), radius, dtype=torch.float64), norm, net.domain, mask=mask.expand(2, 4)
        )
        scores.append(proved_score(Problem(net, region, hf.Robustness(known.y), "worst", keys)))
    found = torch.stack(scores)
    assert (found[1:] <= found[:-1] + 1e-6).all()
    assert (found[0] > found[-1]).all()


def test_each_frame_is_at_least_as_far_as_all() -> None:
    known = trained("lstm")
    net = hf.Network.from_torch(known.model, domain=(0, 1))
    whole = hf.radius(net, known.x, known.y, norm=2, frames="all", methods=[Certify(rounds=3)])
    each = hf.radius(net, known.x, known.y, norm=2, frames="each", methods=[Certify(rounds=3)])
    for one, many in zip(whole, each, strict=True):
        assert len(many) == 4
        assert all(b.lower.value >= one.lower.value * 0.9 for b in many)


def test_a_radius_in_float32_claims_no_more_than_was_proved() -> None:
    """The family's own radius may be coarser than the search; what is claimed is what was asked."""
    known = truth.linear(8, batch=16)
    family = Ball(known.x, torch.zeros(16), 2)
    found = proved(truth.radius_problem(known.network(), family, known.y), rounds=12)
    assert (found == found.float().double()).all()
    assert (found <= known.radius(2)).all()


@pytest.mark.parametrize(
    "last",
    [nn.Softmax(-1), nn.LogSoftmax(1), nn.Sequential(nn.Unflatten(1, (1, 3)), nn.Softmax(2), nn.Flatten())],
)
def test_a_last_softmax_keeps_the_order_and_so_the_radius(last: nn.Module) -> None:
    known = truth.linear(6, batch=5)
    with_softmax = hf.Network.from_torch(nn.Sequential(known.model, last).eval())
    family = Ball(known.x, zero(known.x), 2)
    problem = truth.radius_problem(with_softmax, family, known.y)
    found, answer = proved(problem, rounds=12), known.radius(2)
    assert (found <= answer).all()
    assert (found >= answer * (1 - 1e-6)).all()
    # The value of a probability is another matter: there the softmax counts.
    for asked in (hf.property.Linear.of([1.0, 0.0, 0.0], batch=5), hf.Robustness(known.y)):
        worst = Problem(with_softmax, family.at(0.1), asked, "worst", problem.keys)
        lowest = worst.score(worst.region.sample(200, RandomStreams.of(range(len(worst.region)), 0))).amin(0)
        least = torch.tensor([r.bracket.lower.value for r in hf.solve([worst], [Certify()])])
        assert least.isfinite().all()
        assert (least <= lowest).all()


@pytest.mark.parametrize(
    "tail",
    [
        lambda z: z.softmax(-1) * torch.tensor([1.0, 5.0, 1.0]),
        lambda z: z.reshape(-1, 3, 1).softmax(2).flatten(1),
    ],
)
def test_a_softmax_that_is_not_the_last_word_is_not_left_out(tail: Callable[[Tensor], Tensor]) -> None:
    known = truth.linear(6, batch=2)

    class Tailed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = known.model

        def forward(self, x: Tensor) -> Tensor:
            return tail(self.body(x))

    problem = truth.radius_problem(
        hf.Network.from_torch(Tailed().eval()), Ball(known.x, zero(known.x), 2), known.y
    )
    found = proved(problem)
    inside = problem.tile_radii(found[None] * (1 - 1e-6))
    assert (inside.score(inside.region.sample(500, RandomStreams.of(range(len(inside.region)), 0))) > 0)[
        :, found > 0
    ].all()


# ---------------------------------------------------------------- what it cannot do


def test_obstacles_are_told() -> None:
    known = truth.linear(0)
    box = hf.Network.from_callable(lambda x: known.model(torch.from_numpy(x)).detach().numpy())
    problem = truth.radius_problem(box, Ball(known.x, zero(known.x)), known.y)
    assert "black box" in (Certify().obstacle(problem) or "")
    custom = Problem(
        known.network(), problem.region, hf.property.Custom(lambda z: z[:, 0]), "radius", problem.keys
    )
    assert "linear rows" in (Certify().obstacle(custom) or "")
    [record, *_] = hf.solve([problem], [Certify()])
    assert record.skipped[0].startswith("Certify: ")
    assert record.bracket.lower.value == 0
    assert Certify().obstacle(truth.radius_problem(known.network(), problem.family, known.y)) is None


def test_an_input_that_is_wrong_already_has_radius_zero() -> None:
    known = truth.linear(1)
    wrong = (known.y + 1) % 3
    for bracket in hf.radius(known.network(), known.x, wrong, methods=[Certify()]):
        assert (bracket.lower.value, bracket.upper.value) == (0.0, 0.0)


# ---------------------------------------------------------------- the alarm works


def too_high(relaxation: Relaxation, lower: Any, upper: Any) -> LinearBounds:
    """Planes with intercepts moved inwards: a mistake of the kind that POPQORN shipped."""
    found = relaxations.planes(relaxation, lower, upper)
    gap = 0.35
    return LinearBounds(found.lower, found.lower_offset + gap, found.upper, found.upper_offset - gap)


@pytest.mark.parametrize("activation", [nn.Tanh(), nn.ReLU(), nn.Sigmoid()], ids=lambda a: type(a).__name__)
def test_a_wrong_relaxation_is_caught_by_the_attack(
    activation: nn.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 12), activation, nn.Linear(12, 2)).eval()
    with torch.no_grad():
        model[2].weight.mul_(3)
    net = hf.Network.from_torch(model, domain=(-1, 1))
    x = torch.rand(6, 4) - 0.5
    y = net(x).argmax(-1)
    methods = [Certify(rounds=6), hf.attacks.PGD()]
    assert all(b.lower.value <= b.upper.value for b in hf.radius(net, x, y, norm=2, methods=methods))
    monkeypatch.setattr(crown, "planes", too_high)
    with pytest.raises(hf.Contradiction, match="Certify says at least"):
        hf.radius(net, x, y, norm=2, methods=methods)


def test_the_search_finds_the_end_of_bounds_that_are_lost_suddenly() -> None:
    """A score that hardly changes up to a radius of 0.7 to 1.3 of the first one tried, and is -30 beyond."""
    first, linear = torch.full((5,), 8.0).double(), torch.full((5,), 20.0).double()
    end = torch.tensor([0.13, 0.7, 1.3, 2.9, 9.0]).double()
    none, unknown = torch.zeros(5).double(), torch.full((5,), torch.nan).double()

    def score(r: Tensor) -> Tensor:
        curve = first * (1 - r / linear) - 0.02 * first * (r / end).square() / (1 - r / end)
        return torch.where(r < end, curve.clamp_min(-30), -30.0)

    known = KnownBounds(none - torch.inf, {})
    state = RadiusSearch(none, 2 * linear, first, unknown, first, linear, none, none, known, unknown, unknown)
    for _ in range(10):
        radius = _next_radius_of_long_network(state, torch.ones(5).double(), 0.01)
        assert ((radius > state.low) & (radius <= state.high)).all()
        state = _narrow(state, radius, score(radius), torch.zeros(5, dtype=torch.bool))
    assert (score(state.low) > 0).all()
    assert (score(1.03 * state.low) < 0).all()


def test_a_search_stored_by_an_earlier_version_is_resumed() -> None:
    """It stored six columns; a row of NaN had not been stored."""
    none, unknown = torch.zeros(2).double(), torch.full((2,), torch.nan).double()
    known = KnownBounds(none - torch.inf, {})
    state = RadiusSearch(none, none + 9, none, unknown, none + 8, none + 5, none, none, known, none, none)
    stored = torch.stack([torch.arange(1.0, 7.0).double(), unknown[0].expand(6)])
    found = Certify().resume_state(None, state, {SEARCH_STATE_KEY: stored})  # type: ignore[arg-type]
    assert found.low.tolist() == [1, 0]
    assert found.high.tolist() == [2, 9]
    assert found.round.tolist() == [6, 0]
    assert found.before.isnan().tolist() == [True, False]
    again = Certify().resume_state(None, state, {SEARCH_STATE_KEY: found.resumable_state()})  # type: ignore[arg-type]
    assert torch.equal(again.resumable_state().nan_to_num(-1), found.resumable_state().nan_to_num(-1))


def test_a_search_without_time_for_one_radius_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty cell without a reason would leave a user to guess whether more time helps."""
    data = digits("test")
    net = hf.Network.from_torch(digits_cnn(), domain=(0, 1))
    region = Ball(data.x[:1], zero(data.x[:1]), INF, (0, 1))
    problem = Problem(net, region, hf.Robustness(data.y[:1]), "radius")
    method = Certify()
    state = method.start(problem, 0)
    with monkeypatch.context() as patch, time_limit.within(0.0):
        # What a network too large for the time returns: nothing for the row, and no intermediate bounds.
        patch.setattr(certify, "_score_with_bounds", lambda *_: (torch.full((1,), math.nan).double(), {}))
        after, claims = method.step(problem, state)
    assert claims.fallback == NO_PASS_ENDED
    assert after is not None
    failed = replace(state, round=torch.ones_like(state.round))
    assert method.explain_interruption(failed) == NO_RADIUS_CERTIFIED
    assert method.explain_interruption(replace(failed, low=failed.linear)) == ""
    _, claims = method.step(problem, after)
    assert not claims.fallback
    assert claims.proved is not None
    assert (claims.proved > 0).all()
