"""DeepQuant's Figures 8, 10 (a) and 11: images that the searches find, and the falling KL divergence.

python -m benchmarks.lipschitz examples --out DIR

Figure 8: the points where Q is attained by TP-MADS, for three norms and for d = 0.1, 0.15, ..., 0.4 in the
maximum norm. Q itself cannot fall when d grows; a search may find less in a larger ball, so the table also
gives the largest Q found up to each d. Figures 10 (a) and 11: an uncertainty example at d = --radius: KL
(uniform || probabilities) along the search, the images, and bars of the probabilities.
"""

import argparse
import math
from pathlib import Path

import torch
from torch import Tensor

import holdfast as hf
from benchmarks.certify.table import Table
from benchmarks.charts import COLOURS, new_figure, save
from benchmarks.lipschitz.metric import steepest, worth
from benchmarks.lipschitz.norms import RADII, mnist_network
from holdfast.attacks.mesh import Mesh
from holdfast.attacks.pgd import PGD
from holdfast.problem import Problem
from holdfast.property import Robustness, Uncertainty
from holdfast.region import Ball
from holdfast.result import Key

SIZES = tuple(0.1 + 0.05 * step for step in range(7))  # d of Figure 8 (b)
BUDGETS = (25, 100, 400, 1600)  # Queries of TP-MADS at the images of Figure 11.


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--image", type=int, default=0, help="index of the test image")
    parser.add_argument("--queries", type=int, default=2000)
    parser.add_argument("--radius", type=float, default=0.4, help="d of the uncertainty example")
    parser.add_argument("--train", type=int, default=10000, help="training images")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--out", type=Path, help="folder for tables and figures")


def main(chosen: argparse.Namespace) -> None:
    module, x, _ = mnist_network("DNN-4", chosen.data, chosen.train, chosen.epochs)
    net = hf.Network.from_torch(module, domain=(0, 1))
    image = x[chosen.image : chosen.image + 1]
    table = Table(
        ["norm", "d", "Q, TP-MADS", "largest up to d", "score found", "distance"], chosen.out, "found"
    )
    shown: list[tuple[str, Tensor]] = [("input", image[0, 0])]
    for p, d in RADII["mnist"].items():
        found = steepest_point(net, image, p, d, chosen.queries)
        table.add(f"{p:g}", d, found.ratio, None, found.score, found.distance)
        shown.append((f"norm {p:g}, d {d:g}", found.point[0]))
    most = 0.0
    for d in SIZES:
        found = steepest_point(net, image, math.inf, d, chosen.queries)
        most = max(most, found.ratio)
        table.add("inf", round(d, 2), found.ratio, most, found.score, found.distance)
        shown.append((f"d {d:.2f}", found.point[0]))
    path = uncertainty_path(net, image, chosen.radius)
    paths = Table(["search", "queries", "KL", "largest probability", "class"], chosen.out, "uncertainty")
    for step in path:
        top = step.probabilities.max(0)
        paths.add(step.search, step.queries, step.divergence, float(top.values), int(top.indices))
    if chosen.out:
        draw_images(shown, chosen.out / "found")
        draw_path(path, chosen.out / "uncertainty")


class Found:
    """A point at which Q was found, the score there and its distance."""

    def __init__(self, problem: Problem, points: Tensor) -> None:
        self.point = points[0]
        self.ratio = float(worth(problem, points)[0])
        self.score = float(problem.score(points)[0])
        self.distance = float(problem.family.distance(points)[0])


def steepest_point(net: hf.Network, image: Tensor, p: float, d: float, queries: int) -> Found:
    ball = Ball(image, torch.tensor([d], dtype=torch.float64), p, net.domain)
    problem = Problem(net, ball, Robustness(net(image).argmax(1)), "steepness", (Key(0),))
    return Found(problem, steepest(problem, queries, "mesh").points)


class PathStep:
    """One image on the way to an uncertainty example."""

    def __init__(self, net: hf.Network, search: str, queries: int, image: Tensor) -> None:
        outputs = net(image).double()
        self.search, self.queries, self.image = search, queries, image[0, 0]
        self.probabilities = outputs.softmax(1)[0]
        self.divergence = float(Uncertainty().score(outputs)[0])


def uncertainty_path(net: hf.Network, image: Tensor, radius: float) -> list[PathStep]:
    """The input, the best points of TP-MADS after each budget (never worse than before), and PGD's."""
    ball = Ball(image, torch.tensor([radius], dtype=torch.float64), math.inf, net.domain)
    prop = Uncertainty.around(net(image))
    path = [PathStep(net, "input", 0, image)]
    for queries in BUDGETS:
        step = _worst(net, ball, prop, Mesh(rounds=1, restarts=1, queries=queries), "TP-MADS", queries)
        path.append(step if step.divergence < path[-1].divergence else _repeated(path[-1], queries))
    path.append(_worst(net, ball, prop, PGD(), "PGD", 0))
    return path


def _worst(
    net: hf.Network,
    ball: Ball,
    prop: Uncertainty,
    method: hf.Method,
    search: str,
    queries: int,  # type: ignore[type-arg]
) -> PathStep:
    (bracket,) = hf.worst(net, ball, prop, methods=[method])
    witness = bracket.upper.evidence.witness
    assert witness is not None
    return PathStep(net, search, queries, witness[None])


def _repeated(step: PathStep, queries: int) -> PathStep:
    same = PathStep.__new__(PathStep)
    same.__dict__.update(step.__dict__)
    same.queries = queries
    return same


def draw_images(shown: list[tuple[str, Tensor]], file: Path) -> None:
    made = new_figure(1.25 * len(shown), 1.6)
    if made is None:
        return
    for axes, (title, image) in zip(made.subplots(1, len(shown)), shown, strict=True):
        axes.imshow(image, cmap="gray", vmin=0, vmax=1)
        axes.set_title(title, fontsize=7)
        axes.axis("off")
    save(made, file)


def draw_path(path: list[PathStep], file: Path) -> None:
    made = new_figure(1.7 * len(path), 3.2)
    if made is None:
        return
    rows = made.subplots(2, len(path))
    for place, step in enumerate(path):
        upper, lower = rows[0][place], rows[1][place]
        upper.imshow(step.image, cmap="gray", vmin=0, vmax=1)
        queries = f", {step.queries} queries" if step.queries else ""
        upper.set_title(f"{step.search}{queries}\nKL {step.divergence:.2f}", fontsize=8)
        upper.axis("off")
        lower.bar(range(len(step.probabilities)), step.probabilities, color=COLOURS[0])
        lower.set(ylim=(0, 1), xticks=range(len(step.probabilities)))
        lower.tick_params(labelsize=6)
        lower.spines[["top", "right"]].set_visible(False)
    save(made, file)
