"""Cost of the paper's grid, of the search and of the proof against the number n of pixels and t of changes.

python -m benchmarks.hamming cost --sides 4 6 8 12 16 20 28 --count 5 --seconds 30

The inputs are MNIST digits, downscaled, with a small CNN for each size. The grid of two values needs sum over
k <= t of C(n, k) 2^k queries for an image, less those that change nothing, until a set changes the class. A
grid with more queries than --points is counted, not run. Exponents are slopes of lines fitted to the
logarithms.
"""

import argparse
import math
import statistics
from pathlib import Path

import numpy as np
import torch
from torch import nn

import holdfast as hf
from benchmarks.certify.table import Table
from benchmarks.charts import new_figure, save
from benchmarks.hamming.measure import now, options, prove, question, wake
from benchmarks.hamming.nets import Case, mnist, trained
from holdfast.hamming.greedy import Greedy
from holdfast.hamming.grid import Grid


def network(side: int) -> nn.Module:
    kept = -(-side // 2)
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(8 * kept * kept, 32),
        nn.ReLU(),
        nn.Linear(32, 10),
    )


def shrunk(side: int, folder: Path, device: str) -> Case:
    x_train, y_train, x, y = mnist(folder)
    x_train, x = (nn.functional.adaptive_avg_pool2d(images, side) for images in (x_train[:20000], x))
    module = trained(f"mnist_{side}", lambda: network(side), x_train, y_train[:20000], epochs=3)
    return Case(hf.Network.from_torch(module, domain=(0, 1), device=device), x_train, x, y, module)


def exponent(sizes: list[int], values: list[float]) -> float:
    slope, _ = np.polyfit(np.log(sizes), np.log(values), 1)
    return float(slope)


def grid_points(units: int, t: int) -> int:
    return sum(math.comb(units, k) * 2**k for k in range(1, t + 1))


def arguments(parser: argparse.ArgumentParser) -> None:
    options(parser, count=5, seconds=30)
    parser.add_argument("--sides", nargs="+", type=int, default=[4, 6, 8, 12, 16, 20, 28])
    parser.add_argument("--most", type=int, default=3, help="largest number of changes to certify")
    parser.add_argument(
        "--points", type=int, default=300_000, help="limit of the grid's queries for one image"
    )
    parser.add_argument("--plot", type=Path, help="an .svg or .png file")


def main(chosen: argparse.Namespace) -> None:
    levels = range(1, chosen.most + 1)
    columns = [
        "side",
        "n",
        "accuracy",
        *(f"grid t={t}: queries" for t in levels),
        "grid: queries made",
        "s",
        "search: queries",
        "s",
    ]
    table = Table(
        [*columns, *(f"proof t={t}: images, subproblems, s" for t in levels)], chosen.out, "hamming-cost"
    )
    measured: dict[str, dict[int, float]] = {}
    for side in chosen.sides:
        asked, units = shrunk(side, chosen.data, chosen.device), side * side
        x, y = asked.right(chosen.count)
        wake(asked)
        fits = [t for t in (1, 2) if t == 1 or grid_points(units, t) <= chosen.points]
        asked_grid, seconds_grid = _spent(asked, x, y, Grid(t=max(fits)))
        greedy = _spent(asked, x, y, Greedy())
        proofs = [
            prove(asked, image, label, chosen.seconds, most=chosen.most)
            for image, label in zip(x, y, strict=True)
        ]
        cells: list[str | None] = []
        for t in levels:
            rises = [rise for p in proofs for rise in p.rises if rise[0] == t]
            if rises:
                seconds, nodes = (
                    statistics.median(r[1] for r in rises),
                    statistics.median(r[2] for r in rises),
                )
                measured.setdefault(f"subproblems, t = {t}", {})[units] = max(nodes, 1)
                measured.setdefault(f"proof s, t = {t}", {})[units] = seconds
                cells.append(f"{len(rises)}, {nodes:.0f}, {seconds:.2f}")
            else:
                cells.append(None)
            measured.setdefault(f"grid queries, t = {t}", {})[units] = grid_points(units, t)
        measured.setdefault("search queries", {})[units] = greedy[0]
        counted = [grid_points(units, t) for t in levels]
        table.add(
            side,
            units,
            f"{asked.accuracy:.1%}",
            *counted,
            f"{asked_grid:.0f} (t <= {max(fits)})",
            seconds_grid,
            *greedy,
            *cells,
        )
    fitted = {name: exponent(list(v), list(v.values())) for name, v in measured.items() if len(v) > 1}
    table.say(
        "Fitted exponents of n: "
        + ", ".join(f"{name} {value:.2f}" for name, value in sorted(fitted.items()))
        + "."
    )
    if chosen.plot:
        plot(chosen.plot, measured, fitted)


def _spent(asked: Case, x: torch.Tensor, y: torch.Tensor, method: hf.Method) -> tuple[float, float]:  # type: ignore[type-arg]
    """Queries and seconds for one image."""
    before, began = asked.net.queries, now(asked)
    hf.solve([question(asked, x, y)], [method])
    return (asked.net.queries - before) / len(x), (now(asked) - began) / len(x)


def plot(file: Path, measured: dict[str, dict[int, float]], fitted: dict[str, float]) -> None:
    made = new_figure(8, 3.6)
    if made is None:
        return
    left, right = made.subplots(1, 2)
    units = list(measured["search queries"])
    for name in sorted(fitted):
        where = right if " s," in name else left
        style = "--" if name.startswith("grid") else "o-"
        where.loglog(
            list(measured[name]),
            list(measured[name].values()),
            style,
            label=f"{name}: $n^{{{fitted[name]:.2f}}}$",
        )
    for where, what in ((left, "queries or subproblems"), (right, "seconds")):
        where.set(xlabel="pixels n (log scale)", ylabel=f"{what} per image (log scale)")
        where.set_xticks(units, [str(n) for n in units])
        where.tick_params(axis="x", which="minor", bottom=False, labelbottom=False)
        if where.lines:
            where.legend(frameon=False, fontsize=7)
    file.parent.mkdir(parents=True, exist_ok=True)
    save(made, file)
