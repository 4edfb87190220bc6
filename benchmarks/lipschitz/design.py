"""DeepQuant's design study (Table 6, Fig. 10b): six MNIST networks by certified radius and by uncertainty.

python -m benchmarks.lipschitz design --count 20 --plot docs/lipschitz-design.png
"""

import argparse
import json
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

import holdfast as hf
from benchmarks.certify.table import Table
from benchmarks.charts import save
from benchmarks.hamming.nets import Case, mnist, trained

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SIZES = (
    0.0,
    0.01,
    0.02,
    0.03,
    0.05,
    0.075,
    0.1,
    0.15,
    0.2,
    0.3,
    0.4,
    0.5,
)  # Radii of the ball in the maximum norm.


def stack(*layers: nn.Module, features: int, hidden: int = 0) -> nn.Module:
    top = (
        [nn.Linear(features, hidden), nn.ReLU(), nn.Linear(hidden, 10)]
        if hidden
        else [nn.Linear(features, 10)]
    )
    return nn.Sequential(*layers, nn.Flatten(), *top)


def conv(before: int, after: int, stride: int = 2, norm: bool = False) -> nn.Module:
    layers: list[nn.Module] = [nn.Conv2d(before, after, 3, stride=stride, padding=1)]
    return nn.Sequential(*layers, *([nn.BatchNorm2d(after)] if norm else []), nn.ReLU())


# The paper's Fig. 9 names convolutions of 32, 64 and 128 channels, batch norm and dense layers; ours are a
# quarter as wide, with strides.
NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "DNN-1": lambda: stack(conv(1, 8), features=8 * 14 * 14),
    "DNN-2": lambda: stack(conv(1, 8, norm=True), features=8 * 14 * 14),
    "DNN-3": lambda: stack(conv(1, 8), conv(8, 16), features=16 * 7 * 7),
    "DNN-4": lambda: stack(conv(1, 8, norm=True), conv(8, 16, norm=True), features=16 * 7 * 7, hidden=64),
    "DNN-5": lambda: stack(
        conv(1, 8, norm=True), conv(8, 16, norm=True), conv(16, 32, norm=True), features=32 * 16, hidden=64
    ),
    "DNN-6": lambda: stack(
        conv(1, 8, norm=True),
        conv(8, 16, norm=True),
        conv(16, 16, 1, norm=True),
        conv(16, 32, norm=True),
        features=32 * 16,
        hidden=128,
    ),
}


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--count", type=int, default=20, help="images that every network classifies correctly"
    )
    parser.add_argument("--train", type=int, default=60000, help="training images")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, default=None, help="folder where the table is written")
    parser.add_argument(
        "--curves",
        type=Path,
        default=None,
        help="a .json file with the numbers of the figure; if it exists, the figure is drawn from it",
    )
    parser.add_argument(
        "--plot", type=Path, default=None, help="file for a figure of uncertainty against the radius"
    )


def main(chosen: argparse.Namespace) -> None:
    known = chosen.curves is not None and chosen.curves.exists()
    curves = json.loads(chosen.curves.read_text()) if known else measured(chosen)
    if chosen.curves is not None and not known:
        chosen.curves.write_text(json.dumps(curves))
    if chosen.plot is not None:
        save(draw(curves), chosen.plot)


def measured(chosen: argparse.Namespace) -> dict[str, tuple[list[float], list[float]]]:
    x_train, y_train, x, y = mnist(chosen.data)
    cases = {}
    for name, build in NETWORKS.items():
        whole = chosen.train >= len(x_train) and chosen.epochs == 4
        key = f"mnist_{name.lower()}" + ("" if whole else f"_{chosen.train}_{chosen.epochs}")
        seen = slice(chosen.train)
        module = trained(key, build, x_train[seen], y_train[seen], epochs=chosen.epochs)
        cases[name] = Case(
            hf.Network.from_torch(module, domain=(0, 1), device=chosen.device), x_train, x, y, module
        )
    easy = torch.stack([case.net(x.to(chosen.device)).argmax(1).cpu() == y for case in cases.values()]).all(0)
    rows = easy.nonzero().flatten()[: chosen.count]
    images, labels = x[rows], y[rows]
    columns = [
        "network",
        "accuracy",
        "radius proved",
        "radius witnessed",
        "KL at 0.05 proved",
        "KL at 0.05 found",
        "KL at 0.15 found",
        "s/image",
    ]
    table = Table(columns, chosen.out, "lipschitz-design")
    curves = {}
    for name, case in cases.items():
        began = time.monotonic()
        radii = hf.radius(case.net, images, labels)
        proved, found = uncertainty(case.net, images)
        ends = [
            sum(b.lower.value for b in radii) / len(radii),
            sum(b.upper.value for b in radii) / len(radii),
        ]
        near, further = SIZES.index(0.05), SIZES.index(0.15)
        spent = (time.monotonic() - began) / len(images)
        table.add(
            name,
            f"{case.accuracy:.2%}",
            *ends,
            float(proved[near]),
            float(found[near]),
            float(found[further]),
            spent,
        )
        curves[name] = proved.tolist(), found.tolist()
    return curves


def uncertainty(net: hf.Network, images: Tensor) -> tuple[Tensor, Tensor]:
    """Mean over images of the smallest KL divergence from uniform in the ball: (sizes,) lower bounds, and
    upper bounds.
    """
    centre = images.repeat(len(SIZES), 1, 1, 1).to(net.device)
    size = torch.tensor(SIZES, dtype=torch.float64, device=net.device).repeat_interleave(len(images))
    ball = hf.Ball(centre, size, math.inf, net.domain)
    brackets = hf.worst(net, ball, hf.property.Uncertainty.around(net(centre)))
    ends = torch.tensor([[b.lower.value, b.upper.value] for b in brackets], dtype=torch.float64).reshape(
        len(SIZES), len(images), 2
    )
    proved, found = ends.unbind(2)
    # The balls are nested. A point of a ball lies in all larger ones; a lower bound for a ball holds for all
    # smaller ones.
    return proved.flip(0).cummax(0).values.flip(0).mean(1), found.cummin(0).values.mean(1)


def draw(curves: dict[str, tuple[list[float], list[float]]]) -> "Figure":
    from matplotlib.figure import Figure  # matplotlib is optional.

    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    for place, (name, (proved, found)) in enumerate(curves.items()):
        colour = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00")[place]
        axes.plot(SIZES, found, color=colour, marker="o", markersize=3, label=name)
        axes.plot(SIZES, proved, color=colour, linestyle="--", linewidth=1)
    axes.set_xlabel("radius of the ball, maximum norm")
    axes.set_ylabel("smallest KL(uniform || probabilities)")
    axes.set_title("Uncertainty against radius: found (solid), certified lower bound (dashed)", fontsize=10)
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False, fontsize=8)
    return figure
