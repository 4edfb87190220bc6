"""Cost of tier fast: CPU seconds against the number of frames and of inputs.

python -m benchmarks.certify cost --plot docs/certify-cost.png

Every step of a recurrent network is bounded back to the first, so the cost in m frames is of order m^2; in
the number of inputs it is linear. The network is an untrained LSTM with 8 numbers per frame and 32 hidden
units, all frames perturbed in l2. The exponents are slopes of lines fitted to the logarithms of the larger
half, where the fixed costs of a call do not matter.
"""

import argparse
import math
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn

import holdfast as hf
from benchmarks.certify.nets import Reader
from benchmarks.certify.table import Table
from benchmarks.charts import new_figure, save

PIXELS = 8


def seconds(net: hf.Network, inputs: int, frames: int, repeats: int) -> float:
    """CPU seconds of one core for a whole certification, the least of `repeats`; the network is traced
    before.
    """
    x = torch.rand(inputs, frames, PIXELS, generator=torch.Generator().manual_seed(0))
    y = net(x).argmax(1)
    hf.radius(net, x[:1], y[:1], norm=2, frames="all", methods=[hf.certify.Certify(rounds=1)])
    best = math.inf
    for _ in range(repeats):
        began = time.process_time()
        hf.radius(net, x, y, norm=2, frames="all", methods=[hf.certify.Certify()])
        best = min(best, time.process_time() - began)
    return best


def exponent(sizes: list[int], spent: list[float]) -> float:
    half = len(sizes) // 2
    slope, _ = np.polyfit(np.log(sizes[half:]), np.log(spent[half:]), 1)
    return float(slope)


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--cell", choices=("rnn", "lstm", "gru"), default="lstm")
    parser.add_argument("--hidden", type=int, default=32)
    parser.add_argument("--frames", nargs="+", type=int, default=[2, 4, 8, 16, 32, 64])
    parser.add_argument("--inputs", nargs="+", type=int, default=[8, 16, 32, 64, 128, 256])
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--plot", type=Path, help="an .svg or .png file")
    parser.add_argument("--out", type=Path, help="folder where the table is written")


def main(chosen: argparse.Namespace) -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module: nn.Module = Reader(chosen.cell, PIXELS, chosen.hidden).eval()
    net = hf.Network.from_torch(module)
    table = Table(["against", "size", "CPU-s", "CPU-s / size"], chosen.out, "cost")
    spent: dict[str, list[float]] = {"frames": [], "inputs": []}
    for frames in chosen.frames:
        spent["frames"].append(seconds(net, 4, frames, chosen.repeats))
        table.add("frames", frames, spent["frames"][-1], spent["frames"][-1] / frames)
    for inputs in chosen.inputs:
        spent["inputs"].append(seconds(net, inputs, 4, chosen.repeats))
        table.add("inputs", inputs, spent["inputs"][-1], spent["inputs"][-1] / inputs)
    fitted = {name: exponent(getattr(chosen, name), spent[name]) for name in spent}
    table.say(
        f"Fitted exponents: frames {fitted['frames']:.2f} (4 inputs), inputs {fitted['inputs']:.2f} (4 "
        "frames)."
    )
    if chosen.plot:
        plot(chosen, spent, fitted)


def plot(chosen: argparse.Namespace, spent: dict[str, list[float]], fitted: dict[str, float]) -> None:
    figure = new_figure(8, 3.4)
    if figure is None:
        return
    for axes, name in zip(figure.subplots(1, 2), spent, strict=True):
        sizes, times = getattr(chosen, name), spent[name]
        axes.loglog(sizes, times, "o-", color="#1f4e79")
        fit = [times[-1] * (s / sizes[-1]) ** fitted[name] for s in sizes]
        axes.loglog(sizes, fit, "--", color="#b0b0b0", label=f"size$^{{{fitted[name]:.2f}}}$")
        axes.set_xlabel(f"{name} (log scale)")
        axes.set_ylabel("CPU seconds (log scale)")
        axes.set_xticks(sizes, [str(s) for s in sizes])
        axes.minorticks_off()
        axes.legend(frameon=False)
    figure.suptitle(f"Cost of tier fast, {chosen.cell.upper()} with {chosen.hidden} hidden units")
    save(figure, chosen.plot)
