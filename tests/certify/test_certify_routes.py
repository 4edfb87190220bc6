"""However a network arrives, its bounds are the same: torch module, exported program, ONNX file."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import holdfast as hf
import truth
from holdfast.certify.certify import proved_score
from sizes import some


class Reader(nn.Module):
    def __init__(self, kind: type[nn.RNNBase]) -> None:
        super().__init__()
        self.layer, self.head = kind(3, 5, batch_first=True), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        answer: Tensor = self.head(self.layer(x)[0][:, -1])
        return answer


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "mlp": (lambda: nn.Sequential(nn.Linear(6, 10), nn.ReLU(), nn.Linear(10, 8), nn.Tanh(), nn.Linear(8, 3)), (6,)),
    "cnn": (
        lambda: nn.Sequential(
            nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.LeakyReLU(0.1), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(36, 3)
        ),
        (1, 6, 6),
    ),
    "lstm": (lambda: Reader(nn.LSTM), (4, 3)),
    "gru": (lambda: Reader(nn.GRU), (4, 3)),
}  # fmt: skip


@pytest.mark.parametrize("name", some(MODELS, ["cnn", "gru"]))
def test_three_routes_give_one_bound(name: str, tmp_path: Path) -> None:
    pytest.importorskip("onnxscript")
    make, shape = MODELS[name]
    torch.manual_seed(4)
    model = make().eval()
    example = torch.rand((2, *shape))
    networks = truth.three_routes(model, example, tmp_path)
    y = networks[0](example).argmax(-1)
    scores, planes = [], []
    for net in networks:
        assert net.differentiable
        region = hf.Ball(example, torch.tensor([0.02, 0.1], dtype=torch.float64), 2)
        problem = hf.Problem(net, region, hf.Robustness(y), "worst", (hf.result.Key(0), hf.result.Key(1)))
        assert hf.certify.Certify().obstacle(problem) is None
        scores.append(proved_score(problem))
        planes.append(vars(hf.bounds(net, region)))
    for other in scores[1:]:
        torch.testing.assert_close(other, scores[0], rtol=1e-6, atol=1e-6)
    for found in planes[1:]:
        torch.testing.assert_close(found, planes[0], rtol=1e-5, atol=1e-5)
