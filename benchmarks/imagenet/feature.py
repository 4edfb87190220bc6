"""DeepQuant, section 6.2.3 (Fig. 7b): the robustness of networks over one feature, a square of 50 x 50 pixels.

python -m benchmarks.imagenet feature --networks efficientnet alexnet --radius 0.1 --queries 300 --seconds 30

Every number of the square moves by at most the radius (maximum norm). Q is the largest change of the score over the
distance that was found, as in the paper; worst is the lowest score found in the ball, radius the nearest counterexample.
The score is the probability of the class above all others. Everything here is found by search, nothing is proved.

"CPU-s of a query" is the time of one forward pass of one photograph; "seconds" is how long the call took, of the budget
that --seconds gives it.
"""

import argparse
import math
import time

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
    parser.add_argument("--queries", type=int, default=300, help="queries that the search for Q may spend")
    parser.add_argument(
        "--seconds", type=float, default=30, help="budget of the three questions about a photograph"
    )


def main(chosen: argparse.Namespace) -> None:
    x = photographs(chosen.count)
    patch = torch.zeros(x.shape[1:], dtype=torch.bool)
    first = (SIZE - FEATURE) // 2
    patch[:, first : first + FEATURE, first : first + FEATURE] = True
    table = Table(
        [
            "network",
            "weights",
            "photograph",
            "score",
            "worst",
            "Q",
            "radius",
            "queries",
            "CPU-s of a query",
            "CPU-s",
            "seconds",
        ],
        chosen.out,
        "feature",
    )
    for name in chosen.networks:
        net, held = network(name, chosen.weights, chosen.device)
        for row in range(len(x)):
            began = cpu_seconds()
            net(x[row : row + 1])
            query = cpu_seconds() - began
            began, clock = cpu_seconds(), time.monotonic()
            [risk] = hf.risk(
                net, x[row : row + 1], "confidence", patch=patch, radius=chosen.radius, tier="search",
                queries=chosen.queries, seconds=chosen.seconds, progress=False,
            )  # fmt: skip
            assert risk.metric is not None
            assert risk.radius is not None
            table.add(
                name, held, row, risk.score, describe_found(risk.worst.upper.value),
                describe_found(risk.metric.lower.value or math.inf), describe_found(risk.radius.upper.value), risk.queries, query, cpu_seconds() - began, time.monotonic() - clock,
            )  # fmt: skip


def describe_found(value: float) -> str:
    """The value that a search found; an infinite one means that it found nothing in its budget."""
    return f"{value:.4g}" if math.isfinite(value) else "nothing found"
