"""ConvSmall on MNIST, several images in one call: subproblems per second, certified pixels, upper bounds.

python -m benchmarks.hamming gpu --device cuda --data DATA
python -m benchmarks.hamming gpu --device cpu --count 2 --searches 4 --seconds 5

`--seconds` is for each image, so a batch of 8 images has eight times as much.
"""

import argparse
from dataclasses import replace
from itertools import pairwise

import torch

import holdfast as hf
from benchmarks.certify.table import Table
from benchmarks.hamming.measure import Counted, Spent, options, question, search, wake
from benchmarks.hamming.nets import Case, case
from holdfast.execution.scheduler import InMemorySink
from holdfast.hamming.greedy import Greedy


def arguments(parser: argparse.ArgumentParser) -> None:
    options(parser, count=16, seconds=60, device="cuda")
    parser.add_argument("--network", choices=("digits", "mnist"), default="mnist")
    parser.add_argument("--searches", type=int, default=1000, help="images for the upper bounds")
    parser.add_argument(
        "--together", type=int, nargs="+", default=[1, 8], help="images certified in one call"
    )
    parser.add_argument(
        "--nodes",
        type=int,
        nargs="+",
        default=[256, 1024],
        help="subproblems in one step; on a GPU sixteen times as many",
    )


def main(chosen: argparse.Namespace) -> None:
    asked = case(chosen.network, chosen.data, chosen.device)
    wake(asked)
    upper_ends(asked, chosen)
    proofs(asked, chosen)


def upper_ends(asked: Case, chosen: argparse.Namespace) -> None:
    found = search(asked, *asked.right(chosen.searches), Greedy())
    table = Table(
        ["images", "found", "mean changed", "median", "s/image", "s in all"],
        chosen.out,
        "hamming-gpu-search",
    )
    table.add(len(found.changed), *found.cells(), found.seconds)


def proofs(asked: Case, chosen: argparse.Namespace) -> None:
    """Find the setting with the most subproblems per second in short runs; then run that one for the whole
    time.
    """
    table = Table(
        ["images at once", "subproblems/step", "s", "subproblems", "subproblems/s", "GiB"],
        chosen.out,
        "hamming-gpu-speed",
    )
    x, y = asked.right(chosen.count)
    known = hf.solve([question(asked, x, y)], [Greedy()])
    best = (0.0, 1, chosen.nodes[0])
    for together in chosen.together:
        for nodes in chosen.nodes:
            together = min(together, len(x))
            _, spent, looked = _proved(
                asked, x[:together], y[:together], known[:together], nodes, min(10.0, chosen.seconds)
            )
            memory = torch.cuda.max_memory_allocated() / 2**30 if asked.net.device.type == "cuda" else None
            table.add(together, nodes, spent, looked, looked / max(spent, 1e-9), memory)
            best = max(best, (looked / max(spent, 1e-9), together, nodes))
    _, together, nodes = best
    reached(asked, chosen, known, together, nodes)


def reached(
    asked: Case, chosen: argparse.Namespace, known: list[hf.Record], together: int, nodes: int
) -> None:
    x, y = asked.right(chosen.count)
    table = Table(
        ["images", "lower bounds", "upper bounds", "closed", "s", "subproblems/s"],
        chosen.out,
        "hamming-gpu-proofs",
    )
    brackets: list[hf.Bracket] = []
    edges = [*range(0, len(x), together), len(x)]
    for first, last in pairwise(edges):
        seconds = chosen.seconds * (last - first)
        records, spent, looked = _proved(
            asked, x[first:last], y[first:last], known[first:last], nodes, seconds
        )
        some = [r.bracket for r in records]
        brackets += some
        lower, upper = (
            " ".join(f"{v:g}" for v in values)
            for values in ([b.lower.value for b in some], [b.upper.value for b in some])
        )
        table.add(
            f"{first} to {last - 1}",
            lower,
            upper,
            sum(b.closed for b in some),
            spent,
            looked / max(spent, 1e-9),
        )
    counts = ", ".join(f"t >= {t}: {sum(b.lower.value >= t for b in brackets)}" for t in range(1, 9))
    whole = hf.result.overall(brackets)
    table.say(
        f"{len(brackets)} images, {chosen.seconds:g} s for each, {together} at once, {nodes} "
        f"subproblems/step. Certified {counts}. "
        f"{whole.closed} closed; mean d_m between {whole.lower:.2f} and {whole.upper:.2f}."
    )


def _proved(
    asked: Case, x: torch.Tensor, y: torch.Tensor, known: list[hf.Record], nodes: int, seconds: float
) -> tuple[list[hf.Record], float, int]:  # fmt: skip
    """Certify images after a search. Returns the records, seconds of the proof's steps, and subproblems."""
    before = Spent(Counted.spent.nodes, Counted.spent.seconds)
    problem = question(asked, x, y)
    begun = {
        key: replace(record, key=key, question=digest)
        for key, digest, record in zip(problem.keys, problem.digests(), known, strict=True)
    }  # fmt: skip
    records = hf.solve(
        [problem],
        [Counted(nodes_at_once=nodes)],
        hf.Stop(seconds=seconds),
        batch=len(x),
        store=InMemorySink(records=begun),
    )
    return records, Counted.spent.seconds - before.seconds, Counted.spent.nodes - before.nodes
