"""What the benchmarks of room 2 share: upper ends with their seconds, ours and other people's, and brackets image by image.

Seconds that are reported are CPU seconds of one core, on a graphics card those of the clock on the wall; limits are always the latter.
"""

import argparse
import csv
import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

import holdfast as hf
from benchmarks.certify.table import Table
from benchmarks.hamming.nets import Case
from benchmarks.hamming.peers import PEERS, Peer, peers
from holdfast.api.radius import radius_problems
from holdfast.execution.scheduler import InMemorySink
from holdfast.hamming.branch import Branch, BudgetTree
from holdfast.hamming.greedy import Greedy
from holdfast.problem import Problem
from holdfast.region.units import Unit
from holdfast.replay import replay
from holdfast.result import Record
from holdfast.solver import Progress

SMALLEST = (
    0.0,
    1e-6,
    1e-4,
)  # pixels that a peer moved by less are put back, whichever of these serves it best


@dataclass(frozen=True)
class Found:
    """How many pixels were changed in each image, infinite where nothing was found, and the seconds for all of them."""

    changed: list[float]
    seconds: float

    def cells(self) -> list[object]:
        """How many were found, mean, median, seconds for an image."""
        some = [c for c in self.changed if math.isfinite(c)]
        count = f"{len(some)} of {len(self.changed)}"
        return [
            count,
            *([statistics.mean(some), statistics.median(some)] if some else [None, None]),
            self.seconds / len(self.changed),
        ]


FOUND = ("found", "mean", "median", "s an image")  # CPU seconds, see above


def question(case: Case, x: Tensor, y: Tensor, unit: Unit = "pixel") -> Problem:
    (problem,) = radius_problems(case.net, x, y, norm=0, unit=unit)
    return problem


def wake(case: Case) -> None:
    """What is done once for a network, such as its graph, and what a device does at first belong to no image."""
    problem = question(case, *case.right(1))
    hf.solve([problem], [Greedy()])
    hf.solve([problem], [Branch()], hf.Stop(seconds=0.0))


def search(case: Case, x: Tensor, y: Tensor, method: hf.Method[Any], unit: Unit = "pixel") -> Found:
    """The upper ends by one method alone: one pixel more than is safe."""
    began = now(case)
    records = hf.solve([question(case, x, y, unit)], [method])
    return Found([r.bracket.upper.value + 1 for r in records], now(case) - began)


def ask(case: Case, x: Tensor, y: Tensor, peer: Peer, units: Sequence[Unit] = ("pixel",)) -> list[Found]:
    """What a peer finds, counted in each unit and replayed as our own witnesses are."""
    problems = [question(case, x, y, unit) for unit in units]
    x, y = problems[0].region.centre, y.to(case.net.device)
    peer(case.module, x[:1], y[:1])  # some compile first
    began = now(case)
    answer = peer(case.module, x, y)
    spent = now(case) - began
    moved, twin = (answer - x).abs(), case.net.double(x)
    cleaned = [torch.where(moved > least, answer, x).clamp(0, 1) for least in SMALLEST]
    counts = [
        torch.stack([replay(problem, some, twin).value for some in cleaned]).amin(0) + 1
        for problem in problems
    ]
    return [Found(count.tolist(), spent) for count in counts]


def beside(
    table: Table, case: Case, x: Tensor, y: Tensor, names: Sequence[str], units: Sequence[Unit] = ("pixel",)
) -> None:
    """One row for each peer that is here; for each unit after the first, its mean and median stand at the end."""
    for peer in peers(names):
        label = f"{peer.name} ({peer.library})"
        try:
            first, *others = ask(case, x, y, peer, units)
        except Exception as error:  # a peer that breaks is no reason to lose the others
            table.add(
                label, f"failed: {type(error).__name__} {error}"[:80], *[None] * (len(table.columns) - 2)
            )
            continue
        table.add(label, *first.cells(), *(cell for other in others for cell in other.cells()[1:3]))


def now(case: Case) -> float:
    return clock(case.net)


def clock(net: hf.Network) -> float:
    if net.device.type != "cuda":
        return time.process_time()
    torch.cuda.synchronize(net.device)
    return time.perf_counter()


# ---------------------------------------------------------------- proofs


@dataclass
class Spent:
    nodes: int = 0
    seconds: float = 0.0


@dataclass(frozen=True)
class Counted(Branch):
    """Branch with a clock, and a counter of the domains it looks at."""

    spent: ClassVar[Spent] = Spent()

    def step(self, problem: Problem, state: BudgetTree) -> tuple[BudgetTree | None, hf.method.Claims]:
        began = clock(problem.network)
        after, claims = super().step(problem, state)
        self.spent.seconds += clock(problem.network) - began
        left = min(len(state.frontier), self.at_once(state.safe.device))
        self.spent.nodes += after.frontier.looked - state.frontier.looked if after else left
        return after, claims


@dataclass(frozen=True)
class Proof:
    bracket: hf.Bracket
    seconds: float
    nodes: int
    proofs: float  # seconds of the proofs alone
    rises: list[tuple[int, float, int]]  # t, and the seconds and nodes after which it was proved


def prove(case: Case, x: Tensor, y: Tensor, seconds: float, most: float = math.inf) -> Proof:
    """One image: the search first, then the proof, `seconds` for both; ends early when `most` pixels are proved."""
    problem, deadline = question(case, x[None], y[None]), time.perf_counter() + seconds
    began, before = now(case), Spent(Counted.spent.nodes, Counted.spent.seconds)
    rises: list[tuple[int, float, int]] = []

    def watch(progress: Progress) -> None:
        (record,) = progress.records
        known = rises[-1][0] if rises else 0
        for t in range(known + 1, int(min(record.bracket.lower.value, 10**6)) + 1):
            rises.append((t, now(case) - began, Counted.spent.nodes - before.nodes))
        if known < most <= record.bracket.lower.value:
            raise KeyboardInterrupt

    known = InMemorySink()
    hf.solve([problem], [Greedy()], hf.Stop(seconds=seconds), store=known)
    left = max(0.0, deadline - time.perf_counter())
    (record,) = _quietly(
        lambda: hf.solve([problem], [Counted()], hf.Stop(seconds=left), store=known, progress=watch)
    )
    return Proof(
        record.bracket, now(case) - began, Counted.spent.nodes - before.nodes, Counted.spent.seconds - before.seconds, rises
    )  # fmt: skip


def _quietly(solve: Callable[[], list[Record]]) -> list[Record]:
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it was interrupted
        return solve()


def listed(proofs: Sequence[Proof], out: Path | None, name: str) -> None:
    """Every bracket in a file of its own."""
    if out is None:
        return
    out.mkdir(parents=True, exist_ok=True)
    with (out / f"{name}.csv").open("w", newline="") as file:
        lines = csv.writer(file)
        lines.writerow(["image", "lower", "upper", "seconds", "nodes"])
        lines.writerows(
            [i, p.bracket.lower.value, p.bracket.upper.value, f"{p.seconds:.2f}", p.nodes]
            for i, p in enumerate(proofs)
        )


# ---------------------------------------------------------------- options and plots


def options(parser: argparse.ArgumentParser, *, count: int, seconds: float, device: str = "cpu") -> None:
    parser.add_argument("--count", type=int, default=count, help="inputs that the network gets right")
    parser.add_argument(
        "--seconds", type=float, default=seconds, help="for the bracket of one input, at most"
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), default=device)
    parser.add_argument("--out", type=Path, help="folder for the table and what else is kept")


def peer_options(parser: argparse.ArgumentParser, default: Sequence[str]) -> None:
    parser.add_argument(
        "--peers",
        nargs="*",
        choices=list(PEERS),
        default=list(default),
        metavar="PEER",
        help=", ".join(PEERS),
    )


def figure(width: float, height: float) -> Any:
    """A figure, or None with a word where matplotlib is missing."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        print("no picture: matplotlib is not installed.")
        return None
    return Figure(figsize=(width, height), layout="constrained")
