"""DeepQuant's Figure 7 (a): how hard is it to turn an image of each class into label 1? CIFAR-10.

python -m benchmarks.lipschitz targeted --each 5 --queries 2000

For each class X the table gives means over --each correctly classified images: the metric Q of the score
z_X - z_1 by TP-MADS, by random search with as many queries, and by holdfast's search; the estimate s / Q of
the safe radius, at most d; and the distance to label 1 itself, certified and attacked (empty where the time was
too short). A large Q means that the score can fall fast; the paper reads its values the same way. Maximum norm.
"""

import argparse
import math
from pathlib import Path

import torch

import holdfast as hf
from benchmarks.certify.table import Table
from benchmarks.charts import draw_bars, new_figure, save
from benchmarks.hamming.nets import cifar, cifar_cnn, shifted, trained
from benchmarks.lipschitz.metric import steepest, worth
from benchmarks.lipschitz.norms import random_search
from holdfast.problem import Problem
from holdfast.property import Targeted
from holdfast.region import Ball
from holdfast.result import Key

NAMES = ("plane", "car", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--each", type=int, default=5, help="images of each class")
    parser.add_argument("--queries", type=int, default=2000)
    parser.add_argument("--radius", type=float, default=0.1, help="d, maximum norm")
    parser.add_argument("--target", type=int, choices=range(10), default=1)
    parser.add_argument("--epochs", type=int, default=14)
    parser.add_argument("--seconds", type=float, default=5.0, help="limit of the radius of an image")
    parser.add_argument("--out", type=Path, help="folder for the table and the figure")


def main(chosen: argparse.Namespace) -> None:
    x_train, y_train, x, y = cifar(chosen.data)
    name = "cifar_cnn" if chosen.epochs == 14 else f"cifar_cnn_{chosen.epochs}"
    module = trained(name, cifar_cnn, x_train, y_train, epochs=chosen.epochs, augment=shifted)
    net = hf.Network.from_torch(module, domain=(0, 1))
    said = net(x).argmax(1)
    columns = ["class", "images", "Q, TP-MADS", "Q, random", "Q, holdfast", "s / Q, TP-MADS"]
    table = Table([*columns, "radius proved", "radius found"], chosen.out, "targeted")
    bars: dict[str, list[float]] = {"TP-MADS": [], "random": [], "holdfast": []}
    groups = []
    for label in range(10):
        rows = ((y == label) & (said == label)).nonzero()[:, 0][: chosen.each]
        if label == chosen.target or not len(rows):
            continue
        labels = torch.full((len(rows),), label)
        targets = torch.full((len(rows),), chosen.target)
        ball = Ball(
            x[rows], torch.full((len(rows),), chosen.radius, dtype=torch.float64), math.inf, net.domain
        )
        keys = tuple(Key(int(i)) for i in rows)
        problem = Problem(net, ball, Targeted(labels, targets), "steepness", keys)
        points = {
            "TP-MADS": steepest(problem, chosen.queries, "mesh").points,
            "random": random_search(problem, chosen.queries),
            "holdfast": steepest(problem, chosen.queries, None).points,
        }
        ratios = {name: worth(problem, found) for name, found in points.items()}
        score = problem.score(problem.region.centre).double()
        radii = hf.radius(net, x[rows], labels, targets=targets, seconds=chosen.seconds * len(rows))
        ends = [[b.lower.value, b.upper.value] for b in radii]
        lower, upper = torch.tensor(ends, dtype=torch.float64).mean(0).tolist()
        mesh = ratios["TP-MADS"]
        table.add(
            f"{label} {NAMES[label]}",
            len(rows),
            *(float(r.mean()) for r in ratios.values()),
            float((score / mesh.clamp_min(1e-12)).clamp_max(chosen.radius).mean()),
            lower if lower > 0 else None,
            upper if math.isfinite(upper) else None,
        )
        groups.append(f"L{label}-L{chosen.target}")
        for search, ratio in ratios.items():
            bars[search].append(float(ratio.mean()))
    accuracy = float((said == y).double().mean())
    table.say(
        f"Accuracy {accuracy:.1%} on {len(x)} test images; d = {chosen.radius:g}, {chosen.queries} queries."
    )
    made = new_figure(7, 3.2) if chosen.out else None
    if made is not None:
        axes = made.subplots()
        draw_bars(axes, groups, bars)
        axes.set(ylabel="Q found", title=f"Targeted at class {chosen.target}")
        save(made, chosen.out / "targeted")
