"""DeepQuant's Table 6 as printed: the metric Q of five images, its mean and the accuracy of six designs.

python -m benchmarks.lipschitz table6 --queries 2000

Maximum norm, d = 0.1; the score is the margin of the class among the logits. Each cell is Q by TP-MADS. The
last columns are the means of random search with as many queries and of holdfast's search. A search finds
only a lower bound of Q, and where random search finds as much, the printed numbers say little. The designs are
those of the paper's Figure 9 at a quarter of the width (`benchmarks.lipschitz design`).
"""

import argparse
import math
from pathlib import Path

import torch

import holdfast as hf
from benchmarks.certify.table import Table
from benchmarks.lipschitz.design import NETWORKS
from benchmarks.lipschitz.metric import steepest, worth
from benchmarks.lipschitz.norms import mnist_network, random_search
from holdfast.problem import Problem
from holdfast.property import Robustness
from holdfast.region import Ball
from holdfast.result import Key

# The paper's Table 6: mean of its five images, test accuracy in per cent.
PAPER = {
    "DNN-1": (60.63, 97.75),
    "DNN-2": (32.16, 97.95),
    "DNN-3": (83.97, 98.38),
    "DNN-4": (53.73, 99.06),
    "DNN-5": (59.52, 99.16),
    "DNN-6": (77.48, 99.41),
}


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--images", type=int, default=5)
    parser.add_argument("--queries", type=int, default=2000)
    parser.add_argument("--radius", type=float, default=0.1)
    parser.add_argument("--train", type=int, default=10000, help="training images")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--out", type=Path, help="folder where the table is written")


def main(chosen: argparse.Namespace) -> None:
    images = [f"Img-{i + 1}" for i in range(chosen.images)]
    last = ["mean", "accuracy", "random: mean", "holdfast: mean", "paper: mean, accuracy"]
    table = Table(["network", *images, *last], chosen.out, "table6")
    for name in NETWORKS:
        module, x, y = mnist_network(name, chosen.data, chosen.train, chosen.epochs)
        net = hf.Network.from_torch(module, domain=(0, 1))
        said = torch.cat([net(part).argmax(1) for part in x.split(1000)])
        some = x[: chosen.images]
        ball = Ball(some, torch.full((len(some),), chosen.radius, dtype=torch.float64), math.inf, net.domain)
        keys = tuple(Key(i) for i in range(len(some)))
        problem = Problem(net, ball, Robustness(said[: len(some)]), "steepness", keys)
        mesh = worth(problem, steepest(problem, chosen.queries, "mesh").points)
        random = worth(problem, random_search(problem, chosen.queries))
        ours = worth(problem, steepest(problem, chosen.queries, None).points)
        accuracy = float((said == y).double().mean())
        mean, published = PAPER[name]
        table.add(
            name,
            *mesh.tolist(),
            float(mesh.mean()),
            f"{accuracy:.2%}",
            float(random.mean()),
            float(ours.mean()),
            f"{mean}, {published} %",
        )
