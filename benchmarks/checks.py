"""Cost of comparing the graph with the model: CPU seconds of whole `hf.radius` calls.

The network is read again for each call.

python -m benchmarks.checks

To compare two versions, run it in turn with PYTHONPATH at the src folder of each.
"""

import time
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

import holdfast as hf


class Reader(nn.Module):
    def __init__(self, kind: type[nn.RNNBase]) -> None:
        super().__init__()
        self.layer, self.head = kind(8, 32, batch_first=True), nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        answer: Tensor = self.head(self.layer(x)[0][:, -1])
        return answer


def cases() -> Iterator[tuple[str, nn.Module, tuple[int, ...], int, dict[str, Any]]]:
    torch.manual_seed(0)
    yield "LSTM, 8 frames x 32, maximum norm, 32 inputs", Reader(nn.LSTM), (8, 8), 32, {"frames": "all"}
    yield "GRU, 8 frames x 32, norm 2, 32 inputs", Reader(nn.GRU), (8, 8), 32, {"frames": "all", "norm": 2}
    layers = (
        nn.Conv2d(1, 8, 3, 2),
        nn.ReLU(inplace=True),
        nn.Conv2d(8, 8, 3, 2),
        nn.ReLU(inplace=True),
        nn.Flatten(),
        nn.Linear(72, 10),
    )
    yield "CNN with ReLUs in place, 1 x 16 x 16, 64 inputs", nn.Sequential(*layers), (1, 16, 16), 64, {}


def main(repeats: int = 2) -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    print("| network | CPU s | mean radius |\n|---|---|---|")
    for name, module, shape, count, options in cases():
        x, spent, mean = torch.rand(count, *shape, generator=torch.Generator().manual_seed(1)), [], 0.0
        for _ in range(repeats):
            net = hf.Network.from_torch(module.eval(), domain=(0, 1))
            labels, began = net(x).argmax(1), time.process_time()
            found = hf.radius(net, x, labels, **options)
            spent.append(time.process_time() - began)
            mean = sum(bracket.lower.value for bracket in found) / count
        print(f"| {name} | {min(spent):.2f} | {mean:.6g} |", flush=True)


if __name__ == "__main__":
    main()
