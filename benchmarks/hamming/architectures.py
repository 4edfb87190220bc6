"""DeepTRE's Fig. 10: seven digit networks of different architecture; accuracy against robustness.

python -m benchmarks.hamming architectures --count 50 --seconds 10
"""

import argparse
import math
import statistics
from collections.abc import Callable

from torch import nn

import holdfast as hf
from benchmarks.certify.table import Table
from benchmarks.hamming.measure import now, options, prove, wake
from benchmarks.hamming.nets import Case, trained
from holdfast.datasets import digits


def dense(*widths: int, act: Callable[[], nn.Module] = nn.ReLU) -> nn.Module:
    layers: list[nn.Module] = [nn.Flatten()]
    for before, after in zip((64, *widths), widths, strict=False):
        layers += [nn.Linear(before, after), act()]
    return nn.Sequential(*layers, nn.Linear(widths[-1] if widths else 64, 10))


def convolutional(*channels: int, act: Callable[[], nn.Module] = nn.ReLU) -> nn.Module:
    layers: list[nn.Module] = []
    for before, after in zip((1, *channels), channels, strict=False):
        layers += [nn.Conv2d(before, after, 3, padding=1), act()]
    return nn.Sequential(*layers, nn.AvgPool2d(2), nn.Flatten(), nn.Linear(16 * channels[-1], 10))


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "dense 32": lambda: dense(32),
    "dense 128": lambda: dense(128),
    "dense 64-64-64": lambda: dense(64, 64, 64),
    "dense 64-64 tanh": lambda: dense(64, 64, act=nn.Tanh),
    "conv 8": lambda: convolutional(8),
    "conv 16-16": lambda: convolutional(16, 16),
    "conv 8-8-8 sigmoid": lambda: convolutional(8, 8, 8, act=nn.Sigmoid),
}


def arguments(parser: argparse.ArgumentParser) -> None:
    options(parser, count=50, seconds=10)


def main(chosen: argparse.Namespace) -> None:
    train, test = digits("train"), digits("test")
    columns = [
        "network",
        "parameters",
        "accuracy",
        "mean lower",
        "mean upper",
        "centre",
        "radius",
        "closed",
        "s/image",
    ]
    table = Table(columns, chosen.out, "hamming-architectures")
    points = []
    for name, build in NETWORKS.items():
        module = trained(f"digits_{name.replace(' ', '_')}", build, train.x, train.y, epochs=60, batch=64)
        asked = Case(
            hf.Network.from_torch(module, domain=(0, 1), device=chosen.device),
            train.x,
            test.x,
            test.y,
            module,
        )
        wake(asked)
        began = now(asked)
        images = zip(*asked.right(chosen.count), strict=True)
        whole = hf.result.overall(
            prove(asked, image, label, chosen.seconds).bracket for image, label in images
        )
        spent, size = (now(asked) - began) / chosen.count, sum(p.numel() for p in module.parameters())
        points.append((asked.accuracy, whole.centre))
        ends = [whole.lower, whole.upper, whole.centre, whole.radius]
        table.add(name, size, f"{asked.accuracy:.1%}", *ends, f"{whole.closed} of {whole.count}", spent)
    finite = [point for point in points if math.isfinite(point[1])]
    if len(finite) > 2:
        correlation = statistics.correlation(*zip(*finite, strict=True))
        table.say(f"Correlation of accuracy and mean centre over {len(finite)} networks: {correlation:.2f}.")
