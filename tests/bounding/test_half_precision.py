"""Networks in half precision: attacks answer, and no rounding to half is proved away."""

import pytest
import torch
from tests.unproved_networks import check_that_attacks_answer, perceptron
from torch import Tensor, nn

import holdfast as hf
from holdfast.bounding.graph import graph as graphs
from holdfast.errors import UnsupportedLayer
from holdfast.result import Bracket


class Autocast(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = perceptron()

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out: Tensor = self.inner(x)
        return out


NETWORKS = {
    "bfloat16": (lambda: perceptron().bfloat16(), r"^0: computes in torch\.bfloat16.*nothing is proved"),
    "float16": (lambda: perceptron().half(), r"^0: computes in torch\.float16.*nothing is proved"),
    "autocast": (lambda: Autocast().eval(), r"rounds to torch\.bfloat16.*nothing is proved"),
}


@pytest.mark.parametrize("name", list(NETWORKS))
def test_attacks_answer_and_proofs_name_the_layer(name: str, tmp_path) -> None:
    make, reason = NETWORKS[name]
    net = hf.Network.from_torch(make(), domain=(0, 1))
    x = torch.tensor([[0.75, 0.25]]).to(net.dtype)
    check_that_attacks_answer(net, x, reason, tmp_path / "spec.vnnlib")


class Shifted(nn.Module):
    """x + shift - shift against 1/4, beside an output that makes 1/4 small."""

    def __init__(self, shift: float, dtype: torch.dtype) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(1, 1, dtype=dtype), nn.Linear(1, 3, dtype=dtype)
        with torch.no_grad():
            self.first.weight.fill_(1)
            self.first.bias.fill_(shift)
            self.last.weight.copy_(torch.tensor([[1.0], [0.0], [0.0]]))
            self.last.bias.copy_(torch.tensor([-shift, 0.25, -128.0]))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.last(self.first(x))
        return out


HALVES = {"float16": (2048.0, torch.float16), "bfloat16": (256.0, torch.bfloat16)}


def distance_to_another_class(module: nn.Module, dtype: torch.dtype, centre: float) -> float:
    """The least distance at which the class changes, over all numbers of the type."""
    numbers = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(dtype)[:, None]
    numbers = numbers[(numbers.float().abs() < 8).all(1)]
    changed = module(numbers).argmax(1) != module(torch.tensor([[centre]], dtype=dtype)).argmax(1)
    return float((numbers[changed].double() - centre).abs().min())


def half_brackets(name: str) -> tuple[Bracket, Bracket]:
    shift, dtype = HALVES[name]
    net = hf.Network.from_torch(Shifted(shift, dtype).eval())
    x = torch.tensor([[1.5]], dtype=dtype)
    y = torch.tensor([0])
    (radius,) = hf.radius(net, x, y, progress=False)
    (worst,) = hf.worst(net, hf.Ball(x, 1.0), hf.Robustness(y), progress=False)
    return radius, worst


@pytest.mark.parametrize("name", list(HALVES))
def test_rounding_to_half_that_changes_the_class_is_never_proved_away(name: str) -> None:
    """In real arithmetic the class lasts to 1/4; in half, numbers below 1 vanish in the sum."""
    shift, dtype = HALVES[name]
    truth = distance_to_another_class(Shifted(shift, dtype), dtype, 1.5)
    assert truth == pytest.approx(0.5, abs=0.02)
    radius, worst = half_brackets(name)
    assert radius.lower.value == 0
    # Inputs are rounded to the network's type, so the class of 1 begins half a step of bfloat16 away from it.
    assert truth - 2**-8 - 1e-6 <= radius.upper.value < 0.6
    assert worst.lower.value == -float("inf")
    assert worst.upper.value <= 0


@pytest.mark.parametrize("name", list(HALVES))
def test_proofs_of_half_modules_in_real_arithmetic_would_be_wrong(name: str, monkeypatch) -> None:
    monkeypatch.setattr(graphs, "is_coarse", lambda kind: False)
    shift, dtype = HALVES[name]
    net = hf.Network.from_torch(Shifted(shift, dtype).eval())
    x = torch.tensor([[1.5]], dtype=dtype)
    (radius,) = hf.radius(net, x, torch.tensor([0]), methods=[hf.certify.Certify()], progress=False)
    assert radius.lower.value > 0.52


def test_half_layers_between_float_layers_are_refused() -> None:
    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.outer, self.inner = nn.Linear(1, 3), Shifted(2048, torch.float16)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.outer(self.inner(x.half())[:, :1].float())
            return out

    net = hf.Network.from_torch(Mixed().eval())
    with pytest.raises(UnsupportedLayer, match=r"float16"):
        graphs.build(net, torch.ones(2, 1))


def test_constants_that_are_computed_in_half_are_refused() -> None:
    class Scaled(nn.Module):
        factor: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(1, 2)
            self.register_buffer("factor", torch.tensor(1.2, dtype=torch.float16))

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.layer(x) * (self.factor * self.factor).float()
            return out

    net = hf.Network.from_torch(Scaled().eval())
    with pytest.raises(UnsupportedLayer, match=r"computes in torch\.float16"):
        graphs.build(net, torch.ones(2, 1))
