"""POPQORN's experiment II (Figure 5): digits as pen strokes, one point perturbed at a time. Which points
decide the class?

python -m benchmarks.certify strokes --count 3 --points 16

Each digit is a sequence of rows (dx, dy, end of stroke, end of digit). For every point k the table gives the
certified l2 radius of row k with all other rows fixed, from the first point to the last, and the figure draws
the pen path with each point shaded by its radius: the darker, the more sensitive. Longer sequences are
thinned to --points points, with offsets summed up, so that the drawing stays the same.
"""

import argparse
import time
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

import holdfast as hf
from benchmarks.certify.data import shared
from benchmarks.certify.nets import CACHE
from benchmarks.certify.table import Table
from benchmarks.certify.words import Sentence, accuracy, answers, trained

PIXELS_PER_UNIT = (
    28.0  # Offsets are divided by the width of a digit, so that a radius of 1 is the width of the image.
)


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--hidden", type=int, default=32)
    parser.add_argument("--count", type=int, default=3, help="test digits")
    parser.add_argument("--points", type=int, default=24, help="points of a digit at most")
    parser.add_argument("--train", type=int, default=20000, help="training digits")
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument(
        "--nets", type=Path, default=CACHE, help="folder of trained networks; missing ones are trained"
    )
    parser.add_argument("--out", type=Path, help="folder for the table and the figure")


def main(chosen: argparse.Namespace) -> None:
    train = strokes(chosen.data, "train", chosen.points, chosen.train)
    test = strokes(chosen.data, "test", chosen.points, 2000)
    name = f"strokes-lstm-{chosen.hidden}-{chosen.points}-{chosen.train}-{chosen.epochs}.npz"
    module = trained(chosen.nets / name, train, chosen.hidden, 10, chosen.epochs)
    share = accuracy(module, test)
    with torch.no_grad():
        predicted = answers(module, test).argmax(1).tolist()
    digits = [digit for digit, label in zip(test, predicted, strict=True) if digit.label == label][
        : chosen.count
    ]
    net = hf.Network.from_torch(module)
    table = Table(
        ["digit", "points", "accuracy", "most sensitive points", "certified radius of each point", "CPU-s"],
        chosen.out,
        "strokes",
    )
    drawn = []
    for digit in digits:
        began = time.process_time()
        (brackets,) = hf.radius(
            net, digit.x[None], [digit.label], norm=2, frames="each", methods=[hf.certify.Certify()]
        )
        radii = [bracket.lower.value for bracket in brackets]
        order = sorted(range(len(radii)), key=radii.__getitem__)
        table.add(
            digit.label,
            len(radii),
            f"{share:.1%}",
            ", ".join(str(k) for k in order[:3]),
            " ".join(f"{r:.3f}" for r in radii),
            time.process_time() - began,
        )
        drawn.append((digit, radii))
    if chosen.out:
        plot(chosen.out / "strokes.png", drawn)


def strokes(folder: Path, split: str, points: int, count: int) -> list[Sentence]:
    """The first `count` digits of a split, each as x (at most points, 4)."""
    (file,) = shared("mnist_strokes_derived", folder).glob("*.npz")
    with np.load(file, allow_pickle=False) as arrays:
        lengths = arrays[f"len_{split}"][:count].astype(int)
        rows = torch.from_numpy(arrays[f"seq_{split}"][: lengths.sum()]).float()
        labels = arrays[f"y_{split}"][:count].astype(int)
    return [
        Sentence([], thin(x, points), int(label))
        for x, label in zip(rows.split(lengths.tolist()), labels, strict=True)
    ]


def thin(x: Tensor, points: int) -> Tensor:
    """(n, 4) -> (min(n, points), 4): sum the offsets of neighbouring rows, keep the flags if one of them is
    set; scale to the image.
    """
    groups = torch.arange(len(x)) * min(points, len(x)) // len(x)
    count = int(groups[-1]) + 1
    offsets = x.new_zeros(count, 2).index_add_(0, groups, x[:, :2] / PIXELS_PER_UNIT)
    flags = x.new_zeros(count, 2).scatter_reduce(0, groups[:, None].expand(-1, 2), x[:, 2:], "amax")
    return torch.cat([offsets, flags], 1)


def plot(file: Path, drawn: list[tuple[Sentence, list[float]]]) -> None:
    """Write the figure as PNG and SVG: the pen path of each digit, each point shaded by its certified radius."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(
        1, len(drawn), figsize=(3.2 * len(drawn), 3.4), layout="constrained", squeeze=False
    )
    for at, (digit, radii) in zip(axes[0], drawn, strict=True):
        path = digit.x[:, :2].cumsum(0) * PIXELS_PER_UNIT
        pen_up = (digit.x[:-1, 2] > 0).nonzero().flatten() + 1
        for part in path.tensor_split(pen_up.tolist()):
            at.plot(part[:, 0], -part[:, 1], "-", color="#b0b0b0", linewidth=1, zorder=1)
            for start, end in zip(part[:-1].tolist(), part[1:].tolist(), strict=True):
                middle = (start[0] + end[0]) / 2, -(start[1] + end[1]) / 2
                arrow = {"arrowstyle": "->", "color": "#606060", "linewidth": 0.8}
                at.annotate("", xy=middle, xytext=(start[0], -start[1]), arrowprops=arrow)
        points = at.scatter(path[:, 0], -path[:, 1], c=radii, cmap="viridis", norm="log", s=60, zorder=2)
        at.set_title(f"class {digit.label}")
        at.set_aspect("equal")
        at.margins(0.2)
        at.axis("off")
        figure.colorbar(points, ax=at, shrink=0.6, label="certified l2 radius")
    file.parent.mkdir(parents=True, exist_ok=True)
    for suffix in (".png", ".svg"):
        figure.savefig(file.with_suffix(suffix), dpi=150)
    pyplot.close(figure)
