"""MNIST as rows: an LSTM of 32 units over 7 or 14 frames, radius 0.01 and 0.05, maximum norm.

python -m benchmarks.harden rows --frames 7 14 --radius 0.01 0.05 --seconds 25 --device cuda --out OUT

PROVER's network of this size (standard training) is certified for 84 to 92 % of images at 0.01, by PROVER and
by GenBaB; `benchmarks.certify prover` measures that network. Here all networks are trained from new weights
for the same time. The hardened ones of 14 frames start from weights that keep intervals narrow. 5,000 of the
training images are validation data.
"""

import argparse

import torch
from torch import Tensor, nn

from benchmarks.certify.data import mnist_frames
from benchmarks.harden.measure import Split, options, shuffled, side_by_side, table
from holdfast.hardening import Recipe

# If all frames are perturbed from the beginning, or in larger steps, training on fourteen frames ends in a
# constant class.
LONG = Recipe(
    "intervals", begin="afresh", batch=128, weight=1.0, share=0.8, rate=2e-3, horizon=True, warm=(0.02, 0.8)
)


class Rows(nn.Module):
    """(batch, frames, 784 / frames) -> (batch, 10)."""

    def __init__(self, frames: int, hidden: int = 32) -> None:
        super().__init__()
        self.lstm, self.linear = nn.LSTM(784 // frames, hidden, batch_first=True), nn.Linear(hidden, 10)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.linear(self.lstm(x)[0][:, -1])
        return logits


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--frames", nargs="+", type=int, default=[7, 14])
    parser.add_argument("--radius", nargs="+", type=float, default=[0.01, 0.05])
    parser.add_argument("--train", type=int, help="number of training images; default: all")
    options(parser, seconds=25)


def main(chosen: argparse.Namespace) -> None:
    rows = table(chosen, "rows")
    for frames in chosen.frames:
        (x, y), (x_test, y_test) = (mnist_frames(frames, split, chosen.data) for split in ("train", "test"))
        order = torch.randperm(len(x_test), generator=torch.Generator().manual_seed(1000))
        most = len(x) if chosen.train is None else chosen.train
        train, held = shuffled((x[:most] + 1) / 2, y[:most], min(5000, most // 5))
        split = Split(train, held, ((x_test[order] + 1) / 2, y_test[order]))
        for radius in chosen.radius:
            recipes = {
                "standard": Recipe("standard", batch=128),
                "pgd": Recipe("pgd", batch=128, attack=5),
                "hardened": Recipe("intervals", batch=128, weight=1.0, share=0.8) if frames <= 7 else LONG,
            }
            side_by_side(
                rows, chosen, f"MNIST lstm {frames} x 32", lambda f=frames: Rows(f), split, radius, recipes
            )
