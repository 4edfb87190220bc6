"""Networks that are no classifiers: forecasts in their band, single scores and several labels, against grids and closed forms."""

import math
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import holdfast as hf
from holdfast.certify import Certify, Split, Tighten
from holdfast.errors import BadInput
from holdfast.property import Band, Labels
from holdfast.result import Bracket

QUICK = (hf.attacks.PGD(), hf.certify.Certify())


def linear(weights: list[list[float]], bias: list[float]) -> hf.Network:
    layer = nn.Linear(len(weights[0]), len(weights)).eval()
    with torch.no_grad():
        layer.weight.copy_(torch.tensor(weights))
        layer.bias.copy_(torch.tensor(bias))
    return hf.Network.from_torch(layer)


def small(outputs: int, *, seed: int = 0, last: nn.Module | None = None) -> hf.Network:
    torch.manual_seed(seed)
    parts = [nn.Linear(2, 6), nn.Tanh(), nn.Linear(6, outputs), *([] if last is None else [last])]
    return hf.Network.from_torch(nn.Sequential(*parts).eval(), domain=(-1, 1))


def grid(x: Tensor, radius: float, count: int = 201) -> Tensor:
    """(count^2, 2): the square around a point of the plane, inside the domain."""
    steps = torch.linspace(-radius, radius, count, dtype=torch.float64)
    return (x.double() + torch.cartesian_prod(steps, steps)).clamp(-1, 1).float()


def breaks_at(net: hf.Network, x: Tensor, lower: Tensor, upper: Tensor, bracket: Bracket) -> None:
    """By brute force: nothing breaks what is proved, and the witness breaks it."""
    inside = net(grid(x, bracket.lower.value * (1 - 1e-6))).double()
    assert bracket.lower.value > 0
    assert ((inside > lower) & (inside < upper)).all()
    witness = bracket.upper.evidence.witness
    assert witness is not None
    assert float((witness.double() - x.double()).abs().max()) <= bracket.upper.value
    there = net(witness[None])[0].double()
    assert not ((there > lower) & (there < upper)).all()


@pytest.mark.parametrize("norm", [2.0, math.inf])
def test_the_radius_of_a_linear_forecast_is_in_closed_form(norm: float) -> None:
    net, x = linear([[3.0, -4.0], [1.0, 1.0]], [10.0, -2.0]), torch.tensor([[1.0, 2.0], [0.0, 0.5]])
    dual = {1.0: math.inf, 2.0: 2.0, math.inf: 1.0}[norm]
    steep = [float(torch.tensor(row).norm(dual)) for row in ([3.0, -4.0], [1.0, 1.0])]
    for width, truth in (
        ("10%", [min(0.1 * 5 / steep[0], 0.1 * 1 / steep[1]), min(0.1 * 8 / steep[0], 0.1 * 1.5 / steep[1])]),
        (0.5, [min(0.5 / s for s in steep)] * 2),
        ([2.0, "20%"], [min(2 / steep[0], 0.2 * 1 / steep[1]), min(2 / steep[0], 0.2 * 1.5 / steep[1])]),
    ):
        for bracket, exact in zip(
            hf.radius(net, x, property=hf.Within(width), norm=norm, methods=QUICK), truth, strict=True
        ):
            assert bracket.lower.value <= exact * (1 + 1e-6)
            assert bracket.upper.value >= exact * (1 - 1e-6)
            assert bracket.upper.value - bracket.lower.value < 0.03 * exact


@pytest.mark.parametrize(
    "method", [Certify(), Tighten(steps=5), Split(boxes=64, steps=5, finest=0.05)], ids=lambda m: m.name
)
def test_bands_hold_against_a_grid(method: hf.Method) -> None:  # type: ignore[type-arg]
    net, x = small(2), torch.tensor([[0.2, -0.4], [-0.7, 0.1]])
    at = net(x).double()
    brackets = hf.radius(net, x, property=hf.Within("15%"), methods=[hf.attacks.PGD(), method])
    for row, bracket in enumerate(brackets):
        away = 0.15 * at[row].abs()
        breaks_at(net, x[row], at[row] - away, at[row] + away, bracket)


def test_only_the_outputs_that_count_must_stay() -> None:
    net, x = linear([[1.0, 0.0], [100.0, 0.0]], [1.0, 1.0]), torch.zeros(1, 2)
    [bracket] = hf.radius(net, x, property=hf.Within(0.5, outputs=0), methods=QUICK)
    assert bracket.lower.value == pytest.approx(0.5, rel=0.03)
    [both] = hf.radius(net, x, property=hf.Within([0.5, 1], outputs=[0, 1]), methods=QUICK)
    assert both.upper.value == pytest.approx(0.01, rel=0.03)


def test_the_worst_room_left_in_a_band_is_proved_and_met() -> None:
    net, x = small(1), torch.tensor([[0.2, -0.4]])
    [bracket] = hf.worst(net, hf.Ball(x, torch.tensor([0.1]), math.inf, net.domain), hf.Within(0.5))
    at = float(net(x))
    truth = float((0.5 - (net(grid(x[0], 0.1)).double() - at).abs()).min())
    assert bracket.lower.value <= truth + 1e-6
    assert bracket.upper.value >= truth - 1e-3
    assert bracket.upper.value - bracket.lower.value < 0.1
    [risk] = hf.risk(net, x, hf.Within(0.5), radius=0.1, queries=50)
    assert risk.worst.lower.value == pytest.approx(bracket.lower.value, abs=1e-6)
    assert risk.score == pytest.approx(0.5)


def test_windows_of_different_lengths_are_named_by_their_place_in_the_data() -> None:
    class Mean(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.mean(1)

    net = hf.Network.from_torch(Mean().eval())
    x = [torch.ones(3, 1), torch.ones(2, 1), torch.tensor([[1.0], [-1.0]])]
    with pytest.raises(BadInput, match=r"forecasts 0 for input 2 \(output 0\).*0\.5"):
        hf.radius(net, x, property=hf.Within("10%"))
    brackets = hf.radius(net, x[:2], property=hf.Within("10%"), methods=QUICK)
    assert [b.lower.value for b in brackets] == pytest.approx([0.1, 0.1], rel=0.03)


@pytest.mark.parametrize(("threshold", "last"), [(0.0, None), (0.5, nn.Sigmoid())])
def test_a_single_score_keeps_its_side_of_the_threshold(threshold: float, last: nn.Module | None) -> None:
    net, x = small(1, seed=3, last=last), torch.tensor([[0.2, -0.4], [-0.7, 0.1], [0.9, 0.9]])
    says = (net(x)[:, 0] > threshold).long()
    wrong = says.clone()
    wrong[1] = 1 - wrong[1]
    brackets = hf.radius(net, x, wrong, property=hf.Threshold(threshold), methods=QUICK)
    assert brackets[1].upper.value == 0
    assert "the network answers" in brackets[1].note
    for row in (0, 2):
        low, high = (threshold, math.inf) if says[row] else (-math.inf, threshold)
        if math.isfinite(brackets[row].upper.value):
            breaks_at(net, x[row], torch.tensor([low]).double(), torch.tensor([high]).double(), brackets[row])
    own = hf.radius(net, x, property=hf.Threshold(threshold), methods=QUICK)
    assert own[1].lower.value > 0
    assert [own[k].lower.value for k in (0, 2)] == pytest.approx([brackets[k].lower.value for k in (0, 2)])


def test_of_several_labels_the_whole_set_must_stay() -> None:
    net, x = small(3, seed=5), torch.tensor([[0.2, -0.4], [-0.7, 0.1]])
    says = net(x) > 0.1
    for row, bracket in enumerate(
        hf.radius(net, x, says.long(), property=hf.Threshold([0.1, 0.1, 0.1]), methods=QUICK)
    ):
        low, high = (
            torch.where(says[row], 0.1, -torch.inf).double(),
            torch.where(says[row], torch.inf, 0.1).double(),
        )
        breaks_at(net, x[row], low, high, bracket)


def test_bands_narrower_than_float32_are_no_failure_at_the_input() -> None:
    band = hf.Within(1e-9).around(torch.tensor([[1000.0]]))
    assert isinstance(band, Band)
    assert float(band.score(torch.tensor([[1000.0]]))) == pytest.approx(1e-9, rel=1e-3)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (lambda: hf.Within("ten"), "10%, a number above 0"),
        (lambda: hf.Within(0), "10%, a number above 0"),
        (lambda: hf.Within("nan%"), "10%, a number above 0"),
        (lambda: hf.Within([1, -1]), "10%, a number above 0"),
        (lambda: hf.Within([1, 2, 3]).around(torch.ones(1, 2)), "3 widths for 2 outputs"),
        (lambda: hf.Within(1, outputs=[2]).around(torch.ones(1, 2)), "output 2 does not exist"),
        (lambda: hf.Within(1, outputs=[0, 0]).around(torch.ones(1, 2)), "none twice"),
        (lambda: hf.Within(1, outputs=[]).around(torch.ones(1, 2)), "at least one output"),
        (lambda: hf.Within(1).around(torch.tensor([[1.0], [math.nan]])), "forecast for input 1 is NaN"),
        (lambda: hf.Threshold([0, 1]).around(torch.ones(1, 3)), "2 numbers for 3 outputs"),
        (lambda: hf.Threshold(0).around(torch.ones(2, 1), [0, 2]), "label 2 of input 1 is neither 0 nor 1"),
        (
            lambda: hf.Threshold(0).around(torch.ones(2, 3), [0, 1]),
            r"labels have shape \(2,\), expected \(2, 3\)",
        ),
        (lambda: hf.radius(small(2), torch.zeros(1, 2)), "needs labels"),
        (
            lambda: hf.radius(small(2), torch.zeros(1, 2), property=hf.Within(1), targets=[0]),
            "targets are classes",
        ),
    ],
)
def test_what_is_no_band_and_no_label_is_refused_in_words(given: object, message: str) -> None:
    assert callable(given)
    with pytest.raises(BadInput, match=message):
        given()


def test_a_network_of_one_output_says_what_to_ask_of_it() -> None:
    x = torch.tensor([[0.2, -0.4]])
    with pytest.raises(BadInput, match=r"1 output.*--within 10%.*--threshold 0.*as probabilities do"):
        hf.radius(small(1, last=nn.Sigmoid()), x, [1])
    with pytest.raises(BadInput, match="it is not a probability"):
        hf.radius(linear([[1.0, 1.0]], [7.0]), x, [3])
    with pytest.raises(BadInput, match=r"labels must be integers, got torch.float32.*--within 10%"):
        hf.radius(linear([[1.0, 1.0]], [7.0]), x, torch.tensor([3.5]))
    with pytest.raises(BadInput, match=r"1 output.*--within 10%"):
        hf.risk(small(1), x, "confidence", radius=0.1)


def test_labels_are_kept_row_by_row() -> None:
    made = hf.Threshold(0).around(torch.tensor([[1.0], [-1.0]]))
    assert isinstance(made, Labels)
    assert made.score(torch.tensor([[2.0], [2.0]])).tolist() == [2.0, -2.0]


def test_a_percentage_of_a_forecast_near_zero_is_warned_about() -> None:
    """Its band is so narrow that the radius says nothing about the model."""
    forecasts = torch.tensor([[1.0], [0.01], [-2.0], [1.5]])
    with pytest.warns(UserWarning, match=r"input 1 \(output 0\) is 0.01, near zero"):
        hf.Within("10%").around(forecasts)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        hf.Within(0.5).around(forecasts)
        hf.Within("10%").around(forecasts[[0, 2, 3]])


LEVELS = [0.1, 0.5, 0.9]


@pytest.mark.parametrize(
    ("outputs", "chosen"),
    [
        (None, [0, 1, 2, 3, 4, 5]),
        ("median", [1, 4]),
        (0.9, [2, 5]),
        ([0.1, 0.9], [0, 2, 3, 5]),
        ([1, 3], [1, 3]),
    ],
)
def test_a_quantile_is_chosen_by_its_level(outputs: Any, chosen: list[int]) -> None:
    """Two forecasts with three quantiles each: the same as with the numbers of the outputs."""
    net, x = small(6), torch.tensor([[0.1, 0.2]])
    rule = hf.Within(0.3, outputs=outputs, quantiles=LEVELS)
    assert rule.selected(6) == tuple(chosen)
    [named] = hf.radius(net, x, property=rule, methods=QUICK)
    [numbered] = hf.radius(net, x, property=hf.Within(0.3, outputs=chosen), methods=QUICK)
    assert named.lower.value == numbered.lower.value > 0
    forecast = net(x)[0, chosen].double()
    inside = net(grid(x, named.lower.value * (1 - 1e-6), 41)).double()[:, chosen]
    assert bool(((inside - forecast).abs() < 0.3).all())


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"outputs": "median"}, "known only with the levels"),
        ({"outputs": 0.5}, "known only with the levels"),
        ({"outputs": "mean"}, "'median', or levels"),
        ({"outputs": True}, "'median', or levels"),
        ({"outputs": {"a": 1}}, "'median', or levels"),
        ({"outputs": 0.3, "quantiles": LEVELS}, "0.3 is not among them"),
        ({"outputs": [0.1, 0.1], "quantiles": LEVELS}, "stands there twice"),
        ({"outputs": "median", "quantiles": [0.1, 0.9]}, "0.5 is not among them"),
        ({"quantiles": [10, 50, 90]}, "levels between 0 and 1"),
        ({"quantiles": [0.5, 0.5]}, "distinct levels"),
        ({"quantiles": [float("nan")]}, "levels between 0 and 1"),
        ({"quantiles": []}, "levels between 0 and 1"),
        ({"quantiles": 0.5}, "levels between 0 and 1"),
        ({"quantiles": [0.1, 0.3, 0.5, 0.9]}, "6 outputs, which is no multiple"),
    ],
)
def test_wrong_quantiles_are_refused_in_words(options: dict[str, Any], words: str) -> None:
    with pytest.raises(BadInput, match=words):
        hf.radius(small(6), torch.zeros(1, 2), property=hf.Within(1, **options))
