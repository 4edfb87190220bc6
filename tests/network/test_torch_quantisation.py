"""Modules quantised by torch: attacks answer, nothing is proved, and the layer is named."""

from collections.abc import Callable

import pytest
import torch
from tests.unproved_networks import check_that_attacks_answer, perceptron
from torch import Tensor, nn

import holdfast as hf

quantization = pytest.importorskip("torch.ao.quantization", reason="torch has no torch.ao.quantization")
if "fbgemm" not in torch.backends.quantized.supported_engines:
    pytest.skip("torch has no kernels of 8-bit integers here", allow_module_level=True)
quantize_fx = pytest.importorskip("torch.ao.quantization.quantize_fx", reason="torch has no FX quantisation")


class Reader(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.LSTM(2, 3, batch_first=True), nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.layer(x)[0][:, -1])
        return out


def dynamic_perceptron() -> nn.Module:
    found: nn.Module = quantization.quantize_dynamic(perceptron(), {nn.Linear}, dtype=torch.qint8)
    return found


def dynamic_lstm() -> nn.Module:
    torch.manual_seed(0)
    found: nn.Module = quantization.quantize_dynamic(Reader().eval(), {nn.Linear, nn.LSTM}, dtype=torch.qint8)
    return found


def observed() -> nn.Module:
    example = torch.rand(50, 2, generator=torch.Generator().manual_seed(0))
    mapping = quantization.get_default_qconfig_mapping("fbgemm")
    prepared: nn.Module = quantize_fx.prepare_fx(perceptron(), mapping, (example,))
    prepared(example)
    return prepared


def static_perceptron() -> nn.Module:
    found: nn.Module = quantize_fx.convert_fx(observed())
    return found


def reference_perceptron() -> nn.Module:
    """The same in float32, with calls that round tensors and weights to the grid."""
    found: nn.Module = quantize_fx.convert_to_reference_fx(observed())
    return found


QUANTISED: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "dynamic linear": (dynamic_perceptron, r"^0 \(Linear\): .*torch\.ao\.quantization.*nothing is proved"),
    "dynamic LSTM": (dynamic_lstm, r"^layer \(LSTM\): .*torch\.ao\.quantization"),
    "static": (static_perceptron, r"^0 \(LinearReLU\): .*torch\.ao\.quantization"),
    "reference": (reference_perceptron, r"^quantize_per_tensor.*torch\.ao\.quantization"),
}


@pytest.mark.filterwarnings("ignore")  # torch announces the end of torch.ao.quantization
@pytest.mark.parametrize("name", list(QUANTISED))
def test_attacks_answer_and_proofs_name_the_layer(name: str, tmp_path) -> None:
    make, reason = QUANTISED[name]
    net = hf.Network.from_torch(make(), domain=(0, 1))
    x = torch.tensor([[0.75, 0.25]])
    x = x[:, None].repeat(1, 3, 1) if name == "dynamic LSTM" else x
    check_that_attacks_answer(net, x, reason, tmp_path / "spec.vnnlib")


@pytest.mark.filterwarnings("ignore")
def test_dynamic_quantisation_is_measured_in_batches_of_one() -> None:
    module = dynamic_lstm()
    net = hf.Network.from_torch(module)
    x = torch.randn(6, 4, 2, generator=torch.Generator().manual_seed(1)) * torch.arange(1, 7)[:, None, None]
    alone = torch.cat([module(row[None]) for row in x])
    assert torch.equal(net(x), alone)
    assert not torch.equal(module(x), alone), "the batch makes no difference here"
    assert any("dynamic quantisation" in note for note in net.notes)
