"""What holds of every network that can be attacked and not proved."""

import re
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import holdfast as hf
from holdfast.bounding.graph.graph import build
from holdfast.errors import UnsupportedLayer

# What a message about a layer must not quote.
INTERNALS = ("__", "torch.ops", "PackedParams", "object at")


def perceptron() -> nn.Sequential:
    """The first input against the second, behind a ReLU."""
    module = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2)).eval()
    with torch.no_grad():
        for layer in (module[0], module[2]):
            layer.weight.copy_(torch.eye(2) + 0.01)
            layer.bias.zero_()
    return module


def check_that_attacks_answer(net: hf.Network, x: Tensor, reason: str, file: Path) -> None:
    """Assert that radius, worst and verify prove nothing about the network, with the reason, and still find what
    attacks find: in a batch of one, the class of `perceptron` changes at 1/4.
    """
    y = net(x).argmax(1)
    with pytest.raises(UnsupportedLayer, match=reason) as refused:
        build(net, x)
    assert "attacks still work" in str(refused.value)
    assert not any(word in str(refused.value) for word in INTERNALS)
    radii = hf.radius(net, x, y, progress=False)
    (bracket,) = radii
    assert bracket.lower.value == 0
    assert re.search(reason.removeprefix("^"), str(bracket)), "the bracket does not say why"
    found = hf.worst(net, hf.Ball(x, 0.01, domain=(0, 1)), hf.Robustness(y), progress=False)
    assert found[0].lower.value == -float("inf")
    assert 0 < found[0].upper.value < 1
    assert "1 is unknown" in str(found)
    if x.dim() > 2:  # no perceptron
        return
    assert 0.2 < bracket.upper.value < 0.4
    (witness,) = radii.witnesses
    outputs = net(witness[None])[0]
    assert outputs[1] >= outputs[0]
    names = [f"(declare-const {kind}_{k} Real)" for kind in "XY" for k in (0, 1)]
    sides = [f"(assert ({s} X_{k} {v}))" for k in (0, 1) for s, v in ((">=", 0.4), ("<=", 0.6))]
    for question, answers in (("Y_0 5.0", ("unknown", "timeout")), ("Y_0 Y_1", ("sat",))):
        file.write_text("\n".join([*names, *sides, f"(assert (>= {question}))"]))
        verification = hf.verify(net, file, seconds=10, progress=False)
        assert verification.answer in answers
        assert not any(word in str(verification) for word in INTERNALS)
