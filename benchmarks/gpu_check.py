"""Compare bounds between CPU and GPU; needs a GPU: python -m benchmarks.gpu_check"""

import time

import torch
from torch import nn

import holdfast as hf


class Reader(nn.Module):
    """(batch, 8, 8) -> (batch, 10): an untrained recurrent classifier."""

    def __init__(self, cell: type[nn.RNNBase]) -> None:
        super().__init__()
        self.cell, self.head = cell(8, 32, batch_first=True), nn.Linear(32, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        answer: torch.Tensor = self.head(self.cell(x)[0][:, -1]) * 10
        return answer


def main() -> None:
    where = [torch.device("cpu"), *([torch.device("cuda")] if torch.cuda.is_available() else [])]
    torch.manual_seed(1)
    image = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 10))
    torch.manual_seed(0)
    models = {"lstm": Reader(nn.LSTM), "gru": Reader(nn.GRU), "rnn": Reader(nn.RNN), "cnn": image}
    for name, model in models.items():
        x = torch.rand(50, *((1, 8, 8) if name == "cnn" else (8, 8)))
        for norm in (2.0, torch.inf):
            answers = []
            for device in where:
                net = hf.Network.from_torch(model.eval(), domain=(0, 1), device=device)
                y = net(x).argmax(1).cpu()
                hf.radius(net, x[:2], y[:2], norm=norm)  # warm up
                began = time.perf_counter()
                brackets = hf.radius(net, x, y, norm=norm)
                seconds = time.perf_counter() - began
                lower, upper = (
                    torch.tensor([end(b) for b in brackets]).mean()
                    for end in (lambda b: b.lower.value, lambda b: b.upper.value)
                )
                answers.append((float(lower), float(upper), seconds))
            print(
                f"{name:5} norm {norm:<4}",
                *(
                    f"{d.type}: [{lo:.5f}, {up:.5f}] {s:.2f} s"
                    for d, (lo, up, s) in zip(where, answers, strict=True)
                ),
            )


if __name__ == "__main__":
    main()
