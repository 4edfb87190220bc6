"""How soon does a large network have its first upper bound of the radius?

python -m benchmarks.imagenet first --networks efficientnet resnet50

The baseline is one gradient at the input, and the sign step (FGSM) halved until the class stays. Ours is hf.radius with
all its checks of the model and its default methods, stopped by a number of queries. Times are CPU-seconds.
"""

import argparse

import torch

import holdfast as hf
from benchmarks.certify.table import Table
from benchmarks.imagenet.nets import add_arguments, cpu_seconds, network, photographs
from benchmarks.imagenet.pixels import Watch
from holdfast.property import Robustness


def arguments(parser: argparse.ArgumentParser) -> None:
    add_arguments(parser)
    parser.add_argument("--queries", type=int, default=20, help="queries after which no new step begins")


def main(chosen: argparse.Namespace) -> None:
    x = photographs(chosen.count)
    table = Table(
        [
            "network",
            "photograph",
            "FGSM and halving",
            "CPU-s",
            "ours, first",
            "CPU-s",
            "ours, all queries",
            "CPU-s",
        ],
        chosen.out,
        "first",
    )
    for name in chosen.networks:
        net, _ = network(name, chosen.weights, chosen.device)
        for row in range(len(x)):
            image = x[row : row + 1]
            label = net(image).argmax(1)
            began = cpu_seconds()
            plain = _halve(net, image, label)
            seconds = cpu_seconds() - began
            watch, firsts = Watch(), list[float]()

            def note(report: object, watch: Watch = watch, firsts: list[float] = firsts) -> None:
                watch(report)
                firsts += [watch.best] if watch.best < float("inf") and not firsts else []

            [found] = hf.radius(net, image, label, stop=hf.Stop(queries=chosen.queries), progress=note)
            table.add(
                name, row, _short(plain), seconds, _short(firsts[0] if firsts else None), watch.first,
                _short(found.upper.value), cpu_seconds() - watch.began,
            )  # fmt: skip


def _halve(net: hf.Network, x: torch.Tensor, label: torch.Tensor) -> float | None:
    """The smallest radius 1, 1/2, 1/4, ... before the first at which the step along the sign keeps the class."""
    _, slope = net.score_and_gradient(x, Robustness(label).score)
    radius, best = 1.0, None
    while bool(net((x - radius * slope.sign()).clamp(0, 1)).argmax(1) != label):
        best, radius = radius, radius / 2
    return best


def _short(radius: float | None) -> str | None:
    return None if radius is None else f"{radius:.3g}"
