"""Time per input against the size of the network: python -m benchmarks.sizes [--seconds 60] [NAME ...]

CPU seconds of `hf.radius` in the maximum norm for one input, tracing included, for each tier: search (attacks
alone), fast, tight. The first three networks ship with holdfast, trained on digits; the others have torch's
initial weights. A cell that hit the wall-clock limit is marked; its bounds by then are valid.
"""

import argparse
import math
import time
from collections.abc import Callable
from typing import Literal, get_args

import torch
from torch import Tensor, nn

import holdfast as hf
from holdfast.datasets import digits
from holdfast.datasets.digits_networks import digits_cnn, digits_lstm

Tier = Literal["search", "fast", "tight"]


class Residual(nn.Module):
    """A residual network of three blocks for colour images of 32 x 32 pixels."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, width, 3, 2, 1), nn.BatchNorm2d(width), nn.ReLU())
        self.blocks = nn.ModuleList(
            nn.Sequential(
                nn.Conv2d(width, width, 3, 1, 1),
                nn.BatchNorm2d(width),
                nn.ReLU(),
                nn.Conv2d(width, width, 3, 1, 1),
            )
            for _ in range(3)
        )
        self.head = nn.Linear(width * 16, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = torch.relu(block(x) + x)
        answer: Tensor = self.head(nn.functional.avg_pool2d(x, 4).flatten(1))
        return answer


class Rows(nn.Module):
    """An LSTM over the rows of an image."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.lstm, self.head = nn.LSTM(width, hidden, batch_first=True), nn.Linear(hidden, 10)

    def forward(self, x: Tensor) -> Tensor:
        answer: Tensor = self.head(self.lstm(x)[0][:, -1])
        return answer


def perceptron() -> nn.Module:
    return nn.Sequential(
        nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)
    )


NETWORKS: dict[str, tuple[str, Callable[[], nn.Module], tuple[int, ...]]] = {
    "mlp": ("perceptron, 64 inputs, 2 x 64 ReLU", perceptron, (1, 8, 8)),
    "cnn": ("convolutional, 8 x 8 digits (shipped)", digits_cnn, (1, 8, 8)),
    "lstm": ("LSTM, 8 frames of 8, 32 hidden (shipped)", digits_lstm, (8, 8)),
    "lstm784": ("LSTM, 28 frames of 28, 64 hidden", lambda: Rows(28, 64), (28, 28)),
    "residual": ("residual, 3 x 32 x 32, 3 blocks of 16 channels", Residual, (3, 32, 32)),
}


def cell(net: hf.Network, x: Tensor, tier: Tier, seconds: float) -> tuple[str, hf.Bracket]:
    began, wall = time.process_time(), time.monotonic()
    [found] = hf.radius(net, x, net(x).argmax(-1), tier=tier, stop=hf.Stop(seconds=seconds))
    spent, waited = time.process_time() - began, time.monotonic() - wall
    return f"{spent:.1f}{' (limit)' if waited > 0.9 * seconds else ''}", found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"networks, of {', '.join(NETWORKS)}; default: all"
    )
    parser.add_argument("--seconds", type=float, default=60.0, help="wall-clock limit of a cell")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    print(
        "| network | parameters | search, s | upper bound | fast, s | proved | tight, s | proved |\n"
        + "| --- " * 8
        + "|"
    )
    for name in chosen.names or NETWORKS:
        torch.manual_seed(0)
        title, make, shape = NETWORKS[name]
        module = make().eval()
        x = digits("test").x[:1].reshape(1, *shape) if math.prod(shape) == 64 else torch.rand(1, *shape)
        cells = [title, f"{sum(p.numel() for p in module.parameters()):,}"]
        for tier in get_args(Tier):
            spent, found = cell(hf.Network.from_torch(module, domain=(0, 1)), x, tier, chosen.seconds)
            end = found.upper.value if tier == "search" else found.lower.value
            cells += [spent, f"{end:.3g}" if 0 < end < math.inf else "nothing"]
        print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
