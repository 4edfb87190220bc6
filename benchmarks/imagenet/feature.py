"""DeepQuant, section 6.2.3 (Fig. 7b): the robustness of networks over one feature, a square of 50 x 50 pixels.

python -m benchmarks.imagenet feature --networks efficientnet alexnet --radius 0.1 --queries 300

Every number of the square moves by at most the radius (maximum norm). Q is the largest change of the score over the
distance that was found, as in the paper; worst is the lowest score found in the ball, radius the nearest counterexample.
The score is the probability of the class above all others. Everything here is found by search, nothing is proved.
"""

import argparse

import torch

import holdfast as hf
from benchmarks.certify.table import Table
from benchmarks.imagenet.nets import SIZE, add_arguments, cpu_seconds, network, photographs

FEATURE = 50  # Pixels per side of the square, as in the paper.


def arguments(parser: argparse.ArgumentParser) -> None:
    add_arguments(parser)
    parser.add_argument(
        "--radius", type=float, default=0.1, help="how far each number of the square may move"
    )
    parser.add_argument("--queries", type=int, default=300, help="queries for each of the three questions")


def main(chosen: argparse.Namespace) -> None:
    x = photographs(chosen.count)
    patch = torch.zeros(x.shape[1:], dtype=torch.bool)
    first = (SIZE - FEATURE) // 2
    patch[:, first : first + FEATURE, first : first + FEATURE] = True
    table = Table(
        ["network", "weights", "photograph", "score", "worst", "Q", "radius", "CPU-s", "queries"],
        chosen.out,
        "feature",
    )
    for name in chosen.networks:
        net, held = network(name, chosen.weights, chosen.device)
        for row in range(len(x)):
            began = cpu_seconds()
            [risk] = hf.risk(
                net, x[row : row + 1], "confidence", patch=patch, radius=chosen.radius, tier="search",
                queries=chosen.queries, stop=hf.Stop(queries=chosen.queries), progress=False,
            )  # fmt: skip
            assert risk.metric is not None
            assert risk.radius is not None
            table.add(
                name, held, row, risk.score, risk.worst.upper.value, risk.metric.lower.value,
                f"{risk.radius.upper.value:.3g}", cpu_seconds() - began, risk.queries,
            )  # fmt: skip
