"""ConvSmall on MNIST: changed pixels by every search, then certified numbers of pixels.

python -m benchmarks.hamming mnist --count 50 --seconds 60
"""

import argparse
import statistics

import torch

from benchmarks.certify.table import Table
from benchmarks.hamming.measure import (
    FOUND,
    Proof,
    beside,
    draw_attacks,
    listed,
    options,
    peer_options,
    prove,
    search,
    wake,
)
from benchmarks.hamming.nets import Case, case
from benchmarks.hamming.peers import OWN
from holdfast.hamming.greedy import Greedy
from holdfast.hamming.grid import Grid


def arguments(parser: argparse.ArgumentParser) -> None:
    options(parser, count=50, seconds=60)
    parser.add_argument("--proofs", type=int, help="images to certify; default: all")
    parser.add_argument(
        "--part",
        metavar="I/N",
        default="0/1",
        help="certify only every N-th of these, from the I-th: for N parallel processes",
    )
    peer_options(parser, [*OWN, "sigma-zero", "VFGA", "FMN-L0", "Brendel-Bethge L0", "Pointwise"])


def main(chosen: argparse.Namespace) -> None:
    asked = case("mnist", chosen.data, chosen.device)
    x, y = asked.right(chosen.count)
    table = Table(["changed pixels by", *FOUND], chosen.out, "hamming-mnist")
    wake(asked)
    found = {
        "Greedy": search(asked, x, y, Greedy()),
        "Grid, t = 1, margin": search(asked, x, y, Grid(t=1)),
        "Grid, t = 1, confidence": search(asked, x, y, Grid(t=1, rule="confidence")),
    }
    for name, result in found.items():
        table.add(name, *result.cells())
    found |= beside(table, asked, x, y, chosen.peers)
    if chosen.out:
        draw_attacks(found, chosen.out / "hamming-mnist")
    table.say(f"Accuracy {asked.accuracy:.2%}.")
    first, step = (int(number) for number in chosen.part.split("/"))
    some = slice(first, chosen.proofs, step)
    if len(x[some]):
        proved(asked, x[some], y[some], chosen)


def proved(asked: Case, x: torch.Tensor, y: torch.Tensor, chosen: argparse.Namespace) -> None:
    """Certified images at each t, and the time that took."""
    proofs: list[Proof] = []
    for image, label in zip(x, y, strict=True):
        proofs.append(prove(asked, image, label, chosen.seconds))
        listed(proofs, chosen.out, "hamming-mnist-brackets")
    columns = ["t", "proved", "known to fail", "median s to prove", "most", "median nodes"]
    table = Table(columns, chosen.out, "hamming-mnist-proved")
    for t in range(1, max([rise[0] for p in proofs for rise in p.rises], default=0) + 2):
        rises = [rise for p in proofs for rise in p.rises if rise[0] == t]
        times, nodes = [r[1] for r in rises], [r[2] for r in rises]
        table.add(
            t,
            f"{len(rises)} of {len(proofs)}",
            sum(p.bracket.upper.value < t for p in proofs),
            *(
                [statistics.median(times), max(times), int(statistics.median(nodes))]
                if rises
                else [None, None, None]
            ),
        )
    nodes, seconds = sum(p.nodes for p in proofs), sum(p.proofs for p in proofs)
    closed = sum(p.bracket.closed for p in proofs)
    lower, upper = (
        statistics.mean(v)
        for v in ([p.bracket.lower.value for p in proofs], [p.bracket.upper.value for p in proofs])
    )
    table.say(
        f"{closed} of {len(proofs)} images closed within {chosen.seconds:g} s; mean d_m between "
        f"{lower:.2f} and {upper:.2f}. "
        f"{nodes} subproblems, {nodes / max(seconds, 1e-9):.0f} per second."
    )
