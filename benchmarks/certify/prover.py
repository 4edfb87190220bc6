"""PROVER's experiment (Ryou et al. 2021): LSTM classifiers of MNIST, every pixel perturbed by up to a radius.

python -m benchmarks.certify prover --device cuda --frames 7 4
python -m benchmarks.certify prover --frames 7 --count 2 --steps 0          the CPU seconds of one pass

How many of 100 images are certified? Networks and images are PROVER's: the first correctly classified images
in the order of a seeded permutation, pixels in [0, 1], all other classes. Every tier runs on the images that
the tiers before it left open. A PGD attack with restarts counts the images that cannot be certified, and
looks for a counterexample in every certified ball.
"""

import argparse
import time
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

import holdfast as hf
from benchmarks.certify.data import mnist_frames, shared
from benchmarks.certify.table import Table
from holdfast.region import Ball


class Lstm(nn.Module):
    def __init__(self, file: Path, frames: int, hidden: int = 32) -> None:
        super().__init__()
        self.lstm, self.linear = nn.LSTM(784 // frames, hidden, batch_first=True), nn.Linear(hidden, 10)
        self.load_state_dict(load_file(file))

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.linear(self.lstm(x)[0][:, -1])
        return found


def images(module: nn.Module, frames: int, count: int, folder: Path) -> tuple[Tensor, Tensor]:
    x, y = mnist_frames(frames, "test", folder)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(1000))[: 4 * count]
    x, y = (x[order] + 1) / 2, y[order]
    with torch.no_grad():
        right = module(x).argmax(1) == y
    return x[right][:count], y[right][:count]


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--frames", nargs="+", type=int, default=[7, 4], choices=[4, 7])
    parser.add_argument(
        "--radius", nargs="+", type=float, default=[0.01], help="one row of the table for each"
    )
    parser.add_argument("--count", type=int, default=100, help="images")
    parser.add_argument(
        "--steps", type=int, default=40, help="steps that train the relaxation's coefficients; 0: none"
    )
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, help="folder where the table is written")


def main(chosen: argparse.Namespace) -> None:
    table = Table(
        [
            "frames",
            "radius",
            "images",
            "not attacked",
            "linear bounds (tier fast)",
            "s",
            "quadratic models",
            "s",
            "trained",
            "s",
        ],
        chosen.out,
        "prover",
    )
    for frames in chosen.frames:
        module = Lstm(
            shared("prover", chosen.data) / f"mnist_{frames:02}f_032h_1l.safetensors", frames
        ).eval()
        x, y = (t.to(chosen.device) for t in images(module, frames, chosen.count, chosen.data))
        net = hf.Network.from_torch(module, domain=(0, 1), device=chosen.device)

        for radius in chosen.radius:

            def worst(
                rows: Tensor,
                method: hf.Method[object],
                net: hf.Network = net,
                x: Tensor = x,
                y: Tensor = y,
                radius: float = radius,
            ) -> tuple[Tensor, Tensor, float]:
                region = Ball(
                    x[rows],
                    torch.full((len(rows),), radius, dtype=torch.float64, device=x.device),
                    torch.inf,
                    net.domain,
                )
                began = time.process_time() if x.device.type == "cpu" else time.perf_counter()
                problem = hf.Problem(
                    net,
                    region,
                    hf.Robustness(y[rows]),
                    "worst",
                    tuple(hf.result.Key(k) for k in rows.tolist()),
                )
                found = [record.bracket for record in hf.solve([problem], [method], batch=len(rows))]
                seconds = (time.process_time() if x.device.type == "cpu" else time.perf_counter()) - began
                ends = torch.tensor([(b.lower.value, b.upper.value) for b in found], device=x.device)
                return ends[:, 0] > 0, ends[:, 1] <= 0, seconds / max(1, len(rows))

            every = torch.arange(len(x), device=x.device)
            for method in (hf.certify.Certify(), hf.certify.Tighten(steps=0)):
                worst(every[:1], method)  # Trace the network and warm up the device; not timed.
            _, broken, _ = worst(every, hf.attacks.PGD())
            proved, row = torch.zeros_like(broken), [frames, radius, len(x), int((~broken).sum())]
            for method in (
                hf.certify.Certify(),
                hf.certify.Tighten(steps=0),
                *([hf.certify.Tighten(steps=chosen.steps)] if chosen.steps else []),
            ):
                left, seconds = every[~proved & ~broken], 0.0
                if len(left):
                    proved[left], _, seconds = worst(left, method)
                row += [int(proved.sum()), seconds]
            if bool((proved & broken).any()):
                raise SystemExit("an attack succeeds inside a proved ball. The proof is wrong.")
            table.add(*row, *([] if chosen.steps else [None, None]))
