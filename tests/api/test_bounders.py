"""The printed rule says what happens: the same decisions as when questions are put."""

import re

import torch
from torch import nn

import holdfast as hf
from holdfast.api.bounders import FORMS, PLANES, RANGES, SLOPES, TAYLOR, TOGETHER, bounders
from holdfast.datasets import digits_networks


def rule(net: hf.Network, x: torch.Tensor) -> dict[str, tuple[str, str]]:
    return {choice.question: (choice.bounds, choice.cut) for choice in bounders(net, x)}


def test_a_convolution_and_a_recurrent_network() -> None:
    cnn = rule(hf.Network.from_torch(digits_networks.digits_cnn(), domain=(0, 1)), torch.rand(1, 1, 8, 8))
    assert cnn["radius, worst; tier fast"] == (PLANES, "")
    assert cnn["tier tight"][0].startswith(f"{SLOPES}, then {TOGETHER}")
    assert cnn["norm 0 (changed units)"] == ("windows of a chain of layers", "budgets of changes")
    assert cnn["verify, reach; more move"][1] == cnn["tier split"][1] == "signs of ReLUs"
    lstm = rule(hf.Network.from_torch(digits_networks.digits_lstm(), domain=(0, 1)), torch.rand(1, 8, 8))
    assert re.fullmatch(
        r"second-order models with trained coefficients \(\d+ MiB an input\)", lstm["tier tight"][0]
    )
    assert lstm["norm 0 (changed units)"][0] == PLANES
    assert lstm["verify, reach; more move"] == (FORMS, "inputs in halves")
    assert lstm["tier split"][1] == RANGES


def test_few_inputs_are_halved_and_counts_need_ends() -> None:
    found = rule(
        hf.Network.from_torch(nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)).eval()),
        torch.rand(1, 3),
    )
    assert "norm 0 (changed units)" not in found
    assert (
        found["tier tight"][0]
        == f"{SLOPES}, then {TOGETHER}, then second-order models with trained coefficients (514 KiB an input)"
    )
    assert found["verify, reach; any move"] == (FORMS, "inputs in halves")
    smooth = rule(
        hf.Network.from_torch(nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).eval()),
        torch.rand(1, 3),
    )
    assert smooth["verify, reach; any move"] == (TAYLOR, "inputs in halves")
    wide = rule(
        hf.Network.from_torch(nn.Sequential(nn.Linear(9, 4), nn.Tanh(), nn.Linear(4, 2)).eval()),
        torch.rand(1, 9),
    )
    assert wide["verify, reach; up to 6 inputs move"] == (TAYLOR, "inputs in halves")
    assert wide["verify, reach; more move"] == (FORMS, "inputs in halves")


def test_nothing_is_promised_of_a_black_box() -> None:
    assert bounders(hf.Network.from_callable(lambda x: x, domain=(0, 1)), torch.rand(1, 3)) == []
