"""Windows whose sensors drift: one offset a feature in every frame, against closed forms and all offsets of a grid."""

import math
from functools import cache

import pytest
import torch
from torch import Tensor, nn

import holdfast as hf
from holdfast.bounding.drift_parameters import reformulate_in_offsets
from holdfast.certify import Certify, Split, Tighten
from holdfast.errors import BadInput
from holdfast.problem import Problem
from holdfast.property import Band
from holdfast.region import Drift

FRAMES, FEATURES = 4, 2


class Forecast(nn.Module):
    def __init__(self, hidden: int = 3) -> None:
        super().__init__()
        self.read = nn.GRU(FEATURES, hidden, batch_first=True)
        self.say = nn.Linear(hidden, 1)

    def forward(self, x: Tensor) -> Tensor:
        answer: Tensor = self.say(self.read(x)[0][:, -1])
        return answer


@cache
def forecast() -> tuple[hf.Network, Tensor]:
    torch.manual_seed(3)
    net = hf.Network.from_torch(Forecast().eval(), domain=(-2, 2))
    return net, torch.randn(2, FRAMES, FEATURES).clamp(-1.9, 1.9)


def drifted(x: Tensor, most: Tensor, count: int = 41) -> Tensor:
    """(count^2, frames, features): a window with all offsets of a grid, each feature by at most its own."""
    steps = torch.linspace(-1, 1, count, dtype=torch.float64)
    return (x.double() + (torch.cartesian_prod(steps, steps) * most)[:, None, :]).clamp(-2, 2).float()


@pytest.mark.parametrize(("norm", "dual"), [(math.inf, 1.0), (2.0, 2.0), (1.0, math.inf)])
def test_a_linear_forecast_is_in_closed_form(norm: float, dual: float) -> None:
    layer = nn.Linear(FRAMES * FEATURES, 1).eval()
    net = hf.Network.from_torch(nn.Sequential(nn.Flatten(), layer).eval())
    x, shares = torch.ones(1, FRAMES, FEATURES), torch.tensor([1.0, 3.0])
    steep = (layer.weight.detach().reshape(FRAMES, FEATURES).sum(0) * shares).norm(dual)
    [bracket] = hf.radius(
        net,
        x,
        property=hf.Within(0.5),
        norm=norm,
        drift=True,
        shares=shares,
        methods=[hf.attacks.PGD(), hf.attacks.Corners(), Certify()],
    )
    assert bracket.lower.value == pytest.approx(0.5 / float(steep), rel=0.01)
    assert bracket.lower.value <= 0.5 / float(steep) * (1 + 1e-6)
    assert bracket.upper.value == pytest.approx(0.5 / float(steep), rel=0.05)


@pytest.mark.parametrize(
    "method", [Certify(), Tighten(steps=2), Split(boxes=16, steps=2, finest=0.1)], ids=lambda m: m.name
)
def test_no_offset_of_a_grid_breaks_what_is_proved(method: hf.Method) -> None:  # type: ignore[type-arg]
    net, x = forecast()
    x = x[:1]
    at, shares = net(x).double(), torch.tensor([1.0, 2.0])
    brackets = hf.radius(
        net, x, property=hf.Within(0.1), drift=True, shares=shares, methods=[hf.attacks.PGD(), method]
    )
    for row, bracket in enumerate(brackets):
        assert bracket.lower.value > 0.4 * bracket.upper.value  # of whole windows much less is proved
        inside = net(drifted(x[row], shares.double() * bracket.lower.value * (1 - 1e-6))).double()
        assert ((inside - at[row]).abs() < 0.1).all()
        outside = net(drifted(x[row], shares.double() * bracket.upper.value * 1.05)).double()
        assert ((outside - at[row]).abs() >= 0.1).any()


def test_a_witness_is_a_drift_and_fails_rounded_and_exact() -> None:
    net, x = forecast()
    for row, bracket in enumerate(
        hf.radius(net, x, property=hf.Within(0.1), drift=True, methods=[hf.attacks.PGD()])
    ):
        witness = bracket.upper.evidence.witness
        assert witness is not None
        away = witness.double() - x[row].double()
        assert float(away.abs().max()) <= bracket.upper.value
        assert float((away - away.mean(0)).abs().max()) < 1e-6
        assert "exact drift" in bracket.upper.evidence.assumptions[0]
        region = Drift(x[row : row + 1], bracket.upper.value, math.inf, net.domain)
        rounded, exact = region.stand_ins(witness[None])
        assert torch.equal(rounded, witness[None].double())
        offset = (exact - x[row].double())[0]
        assert float((offset - offset[0]).abs().max()) < 1e-15
        twin = net.double(x)
        assert twin is not None
        for window in (rounded, exact):
            assert float((twin(window) - net(x[row : row + 1]).double()).abs()) >= 0.1


def test_the_domain_ends_a_drift() -> None:
    """A window that nearly touches the domain may not drift further on that side, so that nothing breaks it."""
    net = hf.Network.from_torch(nn.Sequential(nn.Flatten(), nn.Linear(4, 1)).eval(), domain=(0, 1))
    x = torch.tensor([[[0.0, 1.0], [1.0, 0.0]]])  # both features have a frame at either end
    region = Drift(x, torch.tensor([5.0]), math.inf, net.domain)
    assert float(region.limit()) < 1e-5
    assert torch.equal(region.project(x + 0.3), x)
    [bracket] = hf.radius(net, x, property=hf.Within(0.01), drift=True, methods=[hf.attacks.PGD(), Certify()])
    assert math.isinf(bracket.lower.value)


def test_the_view_by_offsets_is_the_same_question() -> None:
    net, x = forecast()
    at = net(x).double()
    region = Drift(
        x,
        torch.full((2,), 0.3, dtype=torch.float64),
        math.inf,
        net.domain,
        shares=torch.tensor([[1.0, 2.0]] * 2),
    )
    problem = Problem(net, region, Band(at - 0.1, at + 0.1, (0,)), "worst")
    seen = reformulate_in_offsets(problem)
    offsets = torch.tensor([[0.1, -0.5], [0.29, 0.59]])
    z = seen.region.centre.clone()
    z[:, :FEATURES] = offsets
    assert seen.region.contains(z).all()
    assert torch.allclose(seen.score(z), problem.score(x + offsets[:, None]), atol=1e-6)
    z[:, -1] += 1e-3  # the window itself does not move
    assert not seen.region.contains(z).any()
    assert reformulate_in_offsets(seen) is seen


def test_features_move_by_their_shares() -> None:
    layer = nn.Linear(3, 1).eval()
    net, x = hf.Network.from_torch(layer), torch.ones(1, 3)
    steep = float((layer.weight.detach().abs() * torch.tensor([1.0, 0.0, 10.0])).sum())
    [bracket] = hf.radius(
        net, x, property=hf.Within(0.5), shares=[1, 0, 10], methods=[hf.attacks.PGD(), Certify()]
    )
    assert bracket.lower.value == pytest.approx(0.5 / steep, rel=0.01)
    witness = bracket.upper.evidence.witness
    assert witness is not None
    assert float(witness[1]) == 1.0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"drift": True, "frames": "all"}, "leave frames"),
        ({"drift": True, "norm": 0}, "needs a norm p >= 1"),
        (
            {"drift": True, "shares": [1.0, 2.0, 3.0]},
            r"so \(2\) or \(4, 2\) for inputs of shape \(4, 2\); got \(3,\)",
        ),
        ({"drift": True, "shares": [1.0, -2.0]}, "must be 0 or between"),
        ({"shares": [1.0, 2.0], "norm": 2}, "leave the norm out"),
        ({"shares": ["a", "b"]}, "shares must be numbers"),
    ],
)
def test_what_is_no_drift_is_refused_in_words(options: dict[str, object], message: str) -> None:
    net, x = forecast()
    with pytest.raises(BadInput, match=message):
        hf.radius(net, x, property=hf.Within(0.1), **options)  # type: ignore[call-overload]
