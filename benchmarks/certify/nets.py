"""Frame-wise recurrent classifiers, trained with a fixed seed and stored as plain arrays.

python -m benchmarks.certify train --device cuda --out DIR      every MNIST network of Table 5
python -m benchmarks.certify train --only lstm-4x32             one of them, on the CPU
"""

import argparse
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from benchmarks.certify.data import ROOT, SHARED, digit_frames, mnist_frames
from benchmarks.certify.table import Table

CACHE = ROOT / "benchmarks" / ".cache"
CELLS: dict[str, Callable[..., nn.RNNBase]] = {"rnn": nn.RNN, "lstm": nn.LSTM, "gru": nn.GRU}
PIXELS = {"mnist": 784, "digits": 64}


class Reader(nn.Module):
    """(batch, frames, pixels) -> (batch, classes): a recurrent layer, then a linear one on its last state."""

    def __init__(self, cell: str, inputs: int, hidden: int, classes: int = 10) -> None:
        super().__init__()
        self.cell, self.head = CELLS[cell](inputs, hidden, batch_first=True), nn.Linear(hidden, classes)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.cell(x)[0][:, -1])
        return logits


@dataclass(frozen=True)
class Recipe:
    """Architecture and training settings of a network."""

    cell: str
    frames: int
    hidden: int
    data: str = "mnist"
    epochs: int = 20
    batch: int = 256
    rate: float = 3e-3
    seed: int = 0

    def __str__(self) -> str:
        return f"{self.cell}-{self.frames}x{self.hidden}"

    def module(self) -> Reader:
        return Reader(self.cell, PIXELS[self.data] // self.frames, self.hidden)

    def file(self, folder: Path) -> Path:
        return folder / f"{self.data}-{self}.npz"

    def inputs(self, split: str, folder: Path = SHARED) -> tuple[Tensor, Tensor]:
        return (
            digit_frames(self.frames, split)
            if self.data == "digits"
            else mnist_frames(self.frames, split, folder)
        )


TABLE5 = tuple(
    Recipe(cell, frames, hidden)
    for cell in CELLS
    for frames in (4, 7, 14)
    for hidden in (32, 64, 128)
    if cell == "rnn" or hidden == 32 or (cell, frames) == ("lstm", 4)
)


def recipe(name: str) -> Recipe:
    """The recipe of the MNIST network with a name such as 'lstm-4x64'."""
    found = re.fullmatch(r"(rnn|lstm|gru)-(\d+)x(\d+)", name)
    if not found or PIXELS["mnist"] % int(found[2]):
        raise SystemExit(
            f"{name!r} is not a network: write cell-FRAMESxHIDDEN, such as lstm-4x64; the frames must "
            "divide 784."
        )
    return Recipe(found[1], int(found[2]), int(found[3]))


def train(wanted: Recipe, device: str = "cpu", folder: Path = SHARED) -> Reader:
    """Train by cosine-annealed Adam, with one seed for weights and order and all data on the device."""
    x, y = (t.to(device) for t in wanted.inputs("train", folder))
    with torch.random.fork_rng():
        torch.manual_seed(wanted.seed)
        module = wanted.module().to(device).train()
        steps = wanted.epochs * (len(x) // wanted.batch)
        optimiser = torch.optim.Adam(module.parameters(), lr=wanted.rate, fused=device != "cpu")
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, max_lr=wanted.rate, total_steps=steps + 1)
        for _ in range(wanted.epochs):
            order = torch.randperm(len(x)).to(device)
            for chosen in order[: len(x) // wanted.batch * wanted.batch].split(wanted.batch):
                optimiser.zero_grad(set_to_none=True)
                cross_entropy(module(x[chosen]), y[chosen]).backward()
                nn.utils.clip_grad_norm_(module.parameters(), 1.0)
                optimiser.step()
                schedule.step()
    return module.cpu().eval()


@torch.no_grad()
def accuracy(module: nn.Module, x: Tensor, y: Tensor) -> float:
    return float((module(x).argmax(1) == y).double().mean())


def save(module: nn.Module, file: Path) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    np.savez(file, **{key.replace(".", "/"): value.numpy() for key, value in module.state_dict().items()})


def load(module: Reader, file: Path) -> Reader:
    with np.load(file, allow_pickle=False) as arrays:
        module.load_state_dict({key.replace("/", "."): torch.from_numpy(arrays[key]) for key in arrays.files})
    return module.eval()


def trained(wanted: Recipe, nets: Path = CACHE, device: str = "cpu", folder: Path = SHARED) -> Reader:
    """The network from the cache, or trained now and stored there. On the CPU, in evaluation mode."""
    file = wanted.file(nets)
    if not file.exists():
        save(train(wanted, device, folder), file)
    return load(wanted.module(), file)


def correct(module: nn.Module, x: Tensor, y: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """The first `count` correctly classified inputs: x, y, and the runner-up class."""
    with torch.no_grad():
        ranked = torch.cat([module(part) for part in x.split(1000)]).topk(2).indices
    right = (ranked[:, 0] == y).nonzero().flatten()[:count]
    return x[right], y[right], ranked[right, 1]


# ---------------------------------------------------------------- command


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--only", nargs="+", metavar="NET", help="such as lstm-4x64; default: all of Table 5")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, default=CACHE, help="folder for the .npz files")
    parser.add_argument("--epochs", type=int, help="training epochs; default: the recipe's")


def main(chosen: argparse.Namespace) -> None:
    table = Table(["network", "test accuracy", "seconds"], chosen.out, "training")
    for wanted in [recipe(name) for name in chosen.only] if chosen.only else TABLE5:
        wanted = replace(wanted, epochs=chosen.epochs) if chosen.epochs else wanted
        began = time.perf_counter()
        module = train(wanted, chosen.device, chosen.data)
        save(module, wanted.file(chosen.out))
        table.add(
            str(wanted), accuracy(module, *wanted.inputs("test", chosen.data)), time.perf_counter() - began
        )
