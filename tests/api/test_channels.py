"""The features of windows have names, units and scales of their own, and each frame a share of the radius."""

import dataclasses
import json
import math
import re
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import holdfast as hf
from holdfast.errors import BadInput

QUICK = (hf.attacks.PGD(), hf.certify.Certify())
SCALES = {"load": 10.0, "temperature": 0.5}
WITHIN = hf.Within(0.2)


class Forecaster(nn.Module):
    """(frames, 2) -> 1, with a bounded slope in each number."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(6, 4), nn.Linear(4, 1)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.last(torch.tanh(self.first(x.flatten(1) * 0.1)))
        return found


X = torch.tensor([[[3.0, 0.5], [4.0, -0.5], [5.0, 0.0]], [[1.0, 1.0], [2.0, 2.0], [3.0, 0.3]]])


def network(**options: Any) -> hf.Network:
    made = {"scales": SCALES, "units": {"load": "MW", "temperature": "°C"}, **options}
    net = hf.Network.from_torch(Forecaster().eval())
    return net.with_columns(hf.Columns.of_channels(["load", "temperature"], **made))


@pytest.mark.parametrize(
    ("options", "shares"),
    [
        ({}, [[1, 1], [1, 1], [1, 1]]),
        ({"frames": "all", "shares": [0, 0.5, 1]}, [[0, 0], [0.5, 0.5], [1, 1]]),
        ({"frames": [2]}, [[0, 0], [0, 0], [1, 1]]),
    ],
)
def test_a_number_moves_by_the_radius_times_the_scale_of_its_channel_and_the_share_of_its_frame(
    options: dict[str, Any], shares: list[list[float]]
) -> None:
    """Every allowed window at the proved radius stays in the band, and the counterexample is an allowed one."""
    net = network()
    sizes = torch.tensor(shares) * torch.tensor([10.0, 0.5])
    plain = hf.Network.from_torch(Forecaster().eval())
    same = hf.radius(plain, X, property=WITHIN, shares=sizes.tolist(), methods=QUICK)
    for x, bracket, other in zip(
        X, hf.radius(net, X, property=WITHIN, methods=QUICK, **options), same, strict=True
    ):
        assert bracket.lower.value == pytest.approx(other.lower.value, rel=1e-6)
        assert 0 < bracket.lower.value <= bracket.upper.value
        corners = torch.sign(torch.randn(2000, 3, 2, generator=torch.Generator().manual_seed(0)))
        inside = net(x + corners * sizes * bracket.lower.value * (1 - 1e-6))
        assert bool(((inside - net(x[None])).abs() < 0.2).all())
        assert bracket.counterexample is not None
        moved = (bracket.counterexample - x).abs()
        assert bool((moved <= sizes * bracket.upper.value * (1 + 1e-5)).all())


def test_a_single_frame_and_a_drift_are_measured_in_the_same_scales() -> None:
    net = network()
    each = hf.radius(net, X[:1], property=WITHIN, frames="each", methods=QUICK)[0]
    alone = [
        hf.radius(net, X[:1], property=WITHIN, frames=[k], methods=QUICK)[0].lower.value for k in range(3)
    ]
    assert [bracket.lower.value for bracket in each] == pytest.approx(alone, rel=1e-6)
    plain = hf.Network.from_torch(Forecaster().eval())
    [drift] = hf.radius(net, X[:1], property=WITHIN, drift=True, methods=QUICK)
    [same] = hf.radius(plain, X[:1], property=WITHIN, drift=True, shares=[10.0, 0.5], methods=QUICK)
    assert drift.lower.value == same.lower.value > 0


def test_frozen_channels_stay_and_channels_keep_their_limits() -> None:
    net = network(frozen=["load"], domain={"temperature": (-0.5, 3.0)})
    [bracket] = hf.radius(net, X[:1], property=hf.Within(0.02), methods=QUICK)
    assert bracket.counterexample is not None
    assert torch.equal(bracket.counterexample[:, 0], X[0, :, 0])
    assert bool((bracket.counterexample[:, 1] >= -0.5).all() & (bracket.counterexample[:, 1] <= 3).all())
    with pytest.raises(
        BadInput, match=r"channel .temperature. has values from -0.5 to 0.5, outside of its limits 0 to 3"
    ):
        hf.radius(network(domain={"temperature": (0.0, 3.0)}), X[:1], property=WITHIN, methods=QUICK)


def test_the_answer_is_in_the_units_of_the_channels() -> None:
    answer = " ".join(str(hf.radius(network(), X, property=WITHIN, methods=QUICK)).split())
    found = re.search(
        r"windows? keeps? .* at most ([\d.]+) MW in load and ([\d.]+) °C in temperature", answer
    )
    assert found is not None, answer
    assert float(found[1]) / 10 == pytest.approx(float(found[2]) / 0.5)
    [region] = [hf.Ball(X[:1], 0.1, math.inf)]  # A region of one's own is not measured in these units.
    assert "per value" in " ".join(str(hf.worst(network(), region, WITHIN)).split())


def test_channels_survive_json() -> None:
    columns = network(frozen=["load"], domain={"temperature": (-1, 2)}).channels
    assert columns is not None
    stored = json.loads(json.dumps(columns.to_json()))
    assert hf.Columns.from_stored(stored).as_channels() == dataclasses.replace(
        columns, order=columns.features
    )


def of(names: Any, **options: Any) -> hf.Columns:
    return hf.Columns.of_channels(names, **options)


def ask(net: hf.Network, **options: Any) -> Any:
    return hf.radius(net, X, property=WITHIN, methods=QUICK, **options)


TWO = ["a", "b"]
PLAIN = hf.Network.from_torch(Forecaster().eval())


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: of(TWO, scales=[1]), "1 numbers for 2"),
        (lambda: of(TWO, scales={"c": 1}), "no column 'c'"),
        (lambda: of(TWO, scales=[1, math.nan]), "must be positive, got nan"),
        (lambda: of(TWO, scales=[1, 0]), "must be positive"),
        (lambda: of(TWO, scales=["x", 1]), "must be numbers"),
        (lambda: of(TWO, scales=3), "3 is not one number for each"),
        (lambda: of(TWO, units={"c": "m"}), "no channel 'c'"),
        (lambda: of(TWO, units="m"), "not one unit for each"),
        (lambda: of(TWO, domain={"a": 3}), "lowest and highest"),
        (lambda: of(TWO, domain={"a": (3, 1)}), "above its largest"),
        (lambda: of(["a", "a"]), "occurs twice"),
        (lambda: of([]), "there are none"),
        (lambda: of(5), "names of the features"),
        (lambda: hf.Columns.from_json({"a": {"step": 1}}).as_channels(), "numbers without steps"),
        (lambda: ask(network(), norm=2), "maximum norm"),
        (lambda: ask(network(), norm=0), "norm 0 counts"),
        (lambda: ask(network(), shares=[1, 2]), "leave shares out"),
        (lambda: ask(network(), frames="all", shares=[1, 2]), "covers 2 frames"),
        (lambda: ask(PLAIN.with_columns(of(["a", "b", "c"]))), "3 channels"),
        (lambda: ask(PLAIN.with_columns(of(TWO, frozen=TWO))), "every channel is frozen"),
        (lambda: ask(PLAIN.with_columns(hf.Columns.named(TWO, scales=[1, 2]))), "of_channels"),
        (
            lambda: hf.Network.from_torch(Forecaster().eval(), shape=(3, 2)).with_columns(of(["a"])),
            "1 channels",
        ),
    ],
)
def test_wrong_channels_are_refused_in_words(call: Any, words: str) -> None:
    with pytest.raises(BadInput, match=words):
        call()
