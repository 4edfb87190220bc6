"""The printed rules are those that decide at run time."""

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
    assert cnn["norm 0 (changed units)"] == ("windows of a layer chain", "budgets of changes")
    assert cnn["verify, reach; more move"][1] == cnn["tier split"][1] == "ReLU splitting"
    lstm = rule(hf.Network.from_torch(digits_networks.digits_lstm(), domain=(0, 1)), torch.rand(1, 8, 8))
    assert re.fullmatch(
        r"quadratic models with optimised coefficients \(\d+ MiB an input\)", lstm["tier tight"][0]
    )
    assert re.fullmatch(
        re.escape(PLANES) + r"; intermediate bounds: affine forms with \d+ noise symbols and backward passes",
        lstm["radius, worst; tier fast"][0],
    )
    assert lstm["norm 0 (changed units)"][0] == PLANES
    assert lstm["verify, reach; more move"] == (FORMS, "input splitting")
    assert lstm["tier split"][1] == RANGES


def test_few_inputs_are_halved_and_counts_need_ends() -> None:
    found = rule(
        hf.Network.from_torch(nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)).eval()),
        torch.rand(1, 3),
    )
    assert "norm 0 (changed units)" not in found
    assert (
        found["tier tight"][0]
        == f"{SLOPES}, then {TOGETHER}, then quadratic models with optimised coefficients (514 KiB an input)"
    )
    assert found["verify, reach; any move"] == (FORMS, "input splitting")
    smooth = rule(
        hf.Network.from_torch(nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).eval()),
        torch.rand(1, 3),
    )
    assert smooth["verify, reach; any move"] == (TAYLOR, "input splitting")
    wide = rule(
        hf.Network.from_torch(nn.Sequential(nn.Linear(9, 4), nn.Tanh(), nn.Linear(4, 2)).eval()),
        torch.rand(1, 9),
    )
    assert wide["verify, reach; up to 6 inputs move"] == (TAYLOR, "input splitting")
    assert wide["verify, reach; more move"] == (FORMS, "input splitting")


def test_nothing_is_promised_of_a_black_box() -> None:
    assert bounders(hf.Network.from_callable(lambda x: x, domain=(0, 1)), torch.rand(1, 3)) == []
