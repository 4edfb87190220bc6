"""DeepQuant's Figure 3: calls of the network by TP-MADS with and without batches of all images.

python -m benchmarks.lipschitz batched --images 1 10 100 --queries 500

"With tensors" all images and --block points of each search share one call of the network; "without" every
point is a call of its own. The number of points is the same. Calls are counted where the search queries the
score. The single calls are measured for --alone images and multiplied, since each image has the same number.
CPU seconds of one core; the paper's factor of 25 is of a GPU.
"""

import argparse
import math
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

import holdfast as hf
from benchmarks.certify.table import Table
from benchmarks.charts import draw_lines, new_figure, save
from holdfast.attacks.mads import begin_search, minimise
from holdfast.datasets import digits
from holdfast.datasets.digits_networks import digits_cnn
from holdfast.problem import Problem
from holdfast.property import Robustness
from holdfast.random_streams import RandomStreams
from holdfast.region import Ball
from holdfast.region.unit_box import BoxMap
from holdfast.result import Key


@dataclass
class Calls:
    """Number of calls of the network, and of the points that they evaluate."""

    calls: int = 0
    points: int = 0

    def count(self, points: Tensor) -> None:
        """Count one call for points (..., n)."""
        self.calls += 1
        self.points += points[..., 0].numel()


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--images", nargs="+", type=int, default=[1, 10, 100])
    parser.add_argument("--queries", type=int, default=500, help="points of each image")
    parser.add_argument("--block", type=int, default=16, help="points of a search in one call")
    parser.add_argument("--alone", type=int, default=2, help="images that are measured point by point")
    parser.add_argument("--radius", type=float, default=0.3)
    parser.add_argument("--out", type=Path, help="folder for the table and the figure")


def main(chosen: argparse.Namespace) -> None:
    net = hf.Network.from_torch(digits_cnn(), domain=(0, 1))
    x = digits("test").x[: max(*chosen.images, chosen.alone)]
    label = net(x).argmax(1)
    table = Table(
        ["images", "points", "calls with", "calls without", "ratio", "CPU-s with", "CPU-s without", "ratio "],
        chosen.out,
        "batched",
    )
    single = searched(net, x[: chosen.alone], label, chosen, 1, one_by_one=True)
    calls_each, seconds_each = single[0].calls / chosen.alone, single[1] / chosen.alone
    lines: dict[str, list[float]] = {"with tensors": [], "without": []}
    for count in chosen.images:
        counted, seconds = searched(net, x[:count], label, chosen, chosen.block)
        without = round(calls_each * count)
        table.add(
            count,
            counted.points,
            counted.calls,
            without,
            without / counted.calls,
            seconds,
            seconds_each * count,
            seconds_each * count / seconds,
        )
        lines["with tensors"].append(float(counted.calls))
        lines["without"].append(float(without))
    made = new_figure(5, 3.4) if chosen.out else None
    if made is not None:
        axes = made.subplots()
        draw_lines(axes, chosen.images, lines)
        axes.set(xscale="log", yscale="log", xlabel="images", ylabel="calls of the network")
        save(made, chosen.out / "batched")


def searched(
    net: hf.Network,
    x: Tensor,
    label: Tensor,
    chosen: argparse.Namespace,
    block: int,
    *,
    one_by_one: bool = False,
) -> tuple[Calls, float]:
    """Minimise the margin of all images by TP-MADS; returns the calls and the CPU seconds."""
    parts = [x[i : i + 1] for i in range(len(x))] if one_by_one else [x]
    counted, began = Calls(), time.process_time()
    for number, part in enumerate(parts):
        radius = torch.full((len(part),), chosen.radius, dtype=torch.float64)
        first = number if one_by_one else 0
        keys = tuple(Key(first + i) for i in range(len(part)))
        prop = Robustness(label[first : first + len(part)])
        problem = Problem(net, Ball(part, radius, math.inf, net.domain), prop, "worst", keys)
        box = problem.region.box_map()

        def objective(t: Tensor, problem: Problem = problem, box: BoxMap = box) -> Tensor:
            counted.count(t)
            return problem.score(box.point(t)).double()

        streams = RandomStreams.of(problem.keys, 0, part.device)
        minimise(objective, begin_search(box.place(part), streams), chosen.queries, block)
    return counted, time.process_time() - began
