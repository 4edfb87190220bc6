"""Shared code of the changed-pixel benchmarks: upper bounds of our and published attacks, and bounds.

Reported seconds are CPU seconds of one core, on a GPU wall-clock seconds; limits are always wall-clock
seconds.
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
from benchmarks.charts import draw_bars, new_figure, save
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
)  # Pixels that an attack changed by less than this are reset. The best threshold for the attack counts.


@dataclass(frozen=True)
class Found:
    """Changed pixels in each image, infinite where nothing was found, and the seconds for all images."""

    changed: list[float]
    seconds: float

    def cells(self) -> list[object]:
        """Table cells: successes, mean, median, seconds per image."""
        some = [c for c in self.changed if math.isfinite(c)]
        count = f"{len(some)} of {len(self.changed)}"
        return [
            count,
            *([statistics.mean(some), statistics.median(some)] if some else [None, None]),
            self.seconds / len(self.changed),
        ]


FOUND = ("found", "mean", "median", "s/image")  # CPU seconds, see above


def question(case: Case, x: Tensor, y: Tensor, unit: Unit = "pixel") -> Problem:
    (problem,) = radius_problems(case.net, x, y, norm=0, unit=unit)
    return problem


def wake(case: Case) -> None:
    """Warm up: trace the network and initialise the device, so that no image pays for it."""
    problem = question(case, *case.right(1))
    hf.solve([problem], [Greedy()])
    hf.solve([problem], [Branch()], hf.Stop(seconds=0.0))


def search(case: Case, x: Tensor, y: Tensor, method: hf.Method[Any], unit: Unit = "pixel") -> Found:
    """Pixels that one method alone changes to change the class: its upper bound plus one."""
    began = now(case)
    records = hf.solve([question(case, x, y, unit)], [method])
    return Found([r.bracket.upper.value + 1 for r in records], now(case) - began)


def ask(case: Case, x: Tensor, y: Tensor, peer: Peer, units: Sequence[Unit] = ("pixel",)) -> list[Found]:
    """Run a published attack.

    Its adversarial examples are replayed as our counterexamples are, and counted in each unit.
    """
    problems = [question(case, x, y, unit) for unit in units]
    x, y = problems[0].region.centre, y.to(case.net.device)
    peer(case.module, x[:1], y[:1])  # Some attacks compile code at their first call.
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
) -> dict[str, Found]:
    """Add a row for each installed attack; mean and median of the other units are the last columns.

    Returns what each attack found, in the first unit.
    """
    results = {}
    for peer in peers(names):
        label = f"{peer.name} ({peer.library})"
        try:
            first, *others = ask(case, x, y, peer, units)
        except Exception as error:  # One failing package must not lose the others' rows.
            table.add(
                label, f"failed: {type(error).__name__} {error}"[:80], *[None] * (len(table.columns) - 2)
            )
            continue
        table.add(label, *first.cells(), *(cell for other in others for cell in other.cells()[1:3]))
        results[peer.name] = first
    return results


def draw_attacks(found: dict[str, Found], file: Path) -> None:
    """DeepTRE's Figures 5 and 6: mean and standard deviation of changed pixels, and seconds, by attack."""
    made = new_figure(10, 3.4)
    if made is None:
        return
    some = {
        name: [c for c in result.changed if math.isfinite(c)] or [math.nan] for name, result in found.items()
    }
    names = [name.replace(", own", "").replace(" ", "\n") for name in found]
    changed, spent = made.subplots(1, 2)
    spread = [statistics.pstdev(values) for values in some.values()]
    draw_bars(changed, names, {"": [statistics.mean(v) for v in some.values()]}, {"": spread})
    changed.set(ylabel="changed pixels, mean and sd", ylim=(0, None))
    draw_bars(spent, names, {"": [result.seconds / len(result.changed) for result in found.values()]})
    spent.set(ylabel="seconds an image", yscale="log")
    for axes in (changed, spent):
        axes.tick_params(axis="x", labelsize=7)
    save(made, file)


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
    """Branch with a clock and a counter of bounded subproblems."""

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
    proofs: float  # Seconds of the proofs alone.
    rises: list[tuple[int, float, int]]  # t, and the seconds and nodes after which it was certified.


def prove(case: Case, x: Tensor, y: Tensor, seconds: float, most: float = math.inf) -> Proof:
    """Bound one image: search, then proof, `seconds` for both. Ends once `most` pixels are certified."""
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
        record.bracket,
        now(case) - began,
        Counted.spent.nodes - before.nodes,
        Counted.spent.seconds - before.seconds,
        rises,
    )


def _quietly(solve: Callable[[], list[Record]]) -> list[Record]:
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # The warning that it was interrupted.
        return solve()


def listed(proofs: Sequence[Proof], out: Path | None, name: str) -> None:
    """Write the bounds of every image to a file."""
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


# ---------------------------------------------------------------- options


def options(parser: argparse.ArgumentParser, *, count: int, seconds: float, device: str = "cpu") -> None:
    parser.add_argument("--count", type=int, default=count, help="correctly classified inputs")
    parser.add_argument("--seconds", type=float, default=seconds, help="limit for the bounds of one input")
    parser.add_argument("--device", choices=("cpu", "cuda"), default=device)
    parser.add_argument("--out", type=Path, help="folder for the table and other results")


def peer_options(parser: argparse.ArgumentParser, default: Sequence[str]) -> None:
    parser.add_argument(
        "--peers",
        nargs="*",
        choices=list(PEERS),
        default=list(default),
        metavar="PEER",
        help=", ".join(PEERS),
    )
