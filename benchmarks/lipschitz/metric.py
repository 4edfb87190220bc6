"""DeepQuant's metric Q on digits: which search finds the steepest slope of a score at equal queries?

python -m benchmarks.lipschitz metric --images 20 --queries 2000

The score is the margin of the class, of the probabilities and of the logits. The region is the maximum-norm
ball, clipped to [0, 1]. Each search has the same number of queries for each image; a gradient counts as one.
The slope at every point found is recomputed in float64. The best known slope is the best of all searches here
and of ours with --best queries. Times are CPU seconds.

Searches that query one point at a time run on the first --alone and --nomad images only. NOMAD (pip install
PyNomadBBO) polls ORTHO 2N sorted by the last success: with 64 inputs its default settings do not finish.
"""

import argparse
import contextlib
import importlib.util
import io
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy import optimize
from torch import Tensor

import holdfast as hf
from benchmarks.certify.table import Table
from holdfast.datasets import digits
from holdfast.datasets.digits_networks import digits_cnn
from holdfast.lipschitz.metric import Steepest
from holdfast.problem import Problem
from holdfast.property import Property, Robustness
from holdfast.random_streams import RandomStreams
from holdfast.region import Ball
from holdfast.result import Key
from holdfast.solver import solve


@dataclass(frozen=True, eq=False)
class Probability(Property):
    """The margin of the class among the probabilities."""

    label: Tensor

    def score(self, outputs: Tensor) -> Tensor:
        return Robustness(self.label).score(outputs.softmax(-1))

    def check(self, batch: int, outputs: int) -> None:
        Robustness(self.label).check(batch, outputs)


@dataclass(frozen=True, eq=False)
class Run:
    points: Tensor  # (images, *shape)
    queries: int  # Queries of each image.
    seconds: float  # CPU seconds of all images


Finder = Callable[[Problem, int], Run]


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--images", type=int, default=20)
    parser.add_argument("--queries", type=int, default=2000)
    parser.add_argument("--radius", type=float, default=0.3)
    parser.add_argument("--best", type=int, default=10000, help="queries of our search for the best known Q")
    parser.add_argument(
        "--alone", type=int, default=6, help="images for scipy's searches, which query one point at a time"
    )
    parser.add_argument(
        "--nomad",
        type=int,
        default=2,
        help="images for NOMAD, which queries one point at a time and is slow itself",
    )


def main(chosen: argparse.Namespace) -> None:
    net = hf.Network.from_torch(digits_cnn(), domain=(0, 1))
    x = digits("test").x[: chosen.images]
    ball = Ball(x, torch.full((len(x),), chosen.radius, dtype=torch.float64), math.inf, net.domain)
    keys, label = tuple(Key(i) for i in range(len(x))), net(x).argmax(1)
    problems = [
        Problem(net, ball, prop, "steepness", keys) for prop in (Probability(label), Robustness(label))
    ]
    found = {
        name: [finder(problem, chosen.queries) for problem in problems]
        for name, finder in finders(chosen.alone).items()
    }
    best = [
        best_known(problem, chosen.best, [runs[place] for runs in found.values()])
        for place, problem in enumerate(problems)
    ]
    table = Table(
        [
            "search",
            "images",
            "probabilities: mean",
            "median",
            "logits: mean",
            "median",
            "s/image",
            "queries/s",
        ]
    )
    for name, runs in found.items():
        _tell(table, name, problems, runs, best)
    if importlib.util.find_spec("PyNomad") is None:
        table.say("NOMAD is not installed (pip install PyNomadBBO).")
    else:  # Last, since it is slow.
        _tell(
            table,
            "NOMAD 4",
            problems,
            [one_by_one(nomad_search, chosen.nomad)(p, chosen.queries) for p in problems],
            best,
        )


def _tell(table: Table, name: str, problems: list[Problem], runs: list[Run], best: list[Tensor]) -> None:
    shares = [
        worth(p, run.points) / most[: len(run.points)]
        for p, run, most in zip(problems, runs, best, strict=True)
    ]
    images = len(runs[0].points)
    seconds = sum(run.seconds for run in runs) / (len(runs) * images)
    numbers = (float(f) for s in shares for f in (s.mean(), s.median()))
    table.add(name, images, *numbers, seconds, round(runs[0].queries / seconds))


def finders(alone: int) -> dict[str, Finder]:
    return {
        "holdfast (rays, slopes)": ours(None),
        "holdfast, black box (rays, mesh)": ours("rays,mesh"),
        "rays": ours("rays"),
        "slopes": ours("slopes"),
        "mesh (TP-MADS)": ours("mesh"),
        "random": random_points,
        "PGD on the ratio": ascent,
        "scipy DIRECT": one_by_one(direct, alone),
        "scipy dual annealing": one_by_one(annealing, alone),
    }


def best_known(problem: Problem, queries: int, runs: list[Run]) -> Tensor:
    known = []
    for run in [steepest(problem, queries, None, seed) for seed in (100, 101)] + runs:
        ratio = worth(problem, run.points)
        known.append(torch.cat([ratio, torch.zeros(len(problem) - len(ratio), dtype=torch.float64)]))
    return torch.stack(known).amax(0)


def worth(problem: Problem, points: Tensor) -> Tensor:
    """Slopes in float64 at points (k, *shape) of the first k images; zero outside the region."""
    part = problem.take(torch.arange(len(points)))
    twin = problem.network.double(points)
    assert twin is not None
    scores = [part.property.score(twin(x)) for x in (points, part.region.centre)]
    ratio = (scores[0] - scores[1]).abs() / part.family.distance(points)
    return torch.where(part.region.contains(points), ratio, 0.0).nan_to_num(nan=0.0)


# ---- our searches, and others that run in batches


def ours(searches: str | None) -> Finder:
    return lambda problem, queries: steepest(problem, queries, searches)


def steepest(problem: Problem, queries: int, searches: str | None, seed: int = 0) -> Run:
    began = time.process_time()
    records = solve([problem], [Steepest(queries, searches)], seed=seed)
    shown = [record.bracket.lower.evidence.witness for record in records]
    points = [
        centre if point is None else point for point, centre in zip(shown, problem.region.centre, strict=True)
    ]
    return Run(torch.stack(points), queries, time.process_time() - began)


def random_points(problem: Problem, queries: int) -> Run:
    began = time.process_time()
    points = problem.region.sample(queries, RandomStreams.of(range(len(problem.region)), 0))
    ratio = (problem.score(points) - problem.score(problem.region.centre)).abs() / problem.family.distance(
        points
    )
    best = points[ratio.nan_to_num(nan=0.0).argmax(0), torch.arange(len(problem))]
    return Run(best, queries, time.process_time() - began)


def ascent(problem: Problem, queries: int, steps: int = 100) -> Run:
    """PGD on the slope: sign steps along its gradient, from random points of the ball."""
    began = time.process_time()
    family, base = problem.family, problem.score(problem.region.centre).double()
    x = family.sample(queries // steps, RandomStreams.of(range(len(family)), 0))
    best, kept = torch.zeros(x.shape[:2], dtype=torch.float64), x
    for step in range(steps):
        score, gradient = problem.score_and_gradient(x)
        change, away = score.double() - base, x - family.centre
        distance = family.distance(x).clamp_min(1e-12)
        ratio = change.abs() / distance
        better = ratio > best
        best, kept = torch.where(better, ratio, best), torch.where(better[..., None, None, None], x, kept)
        length = family.flatten(away).abs()
        furthest = (
            torch.zeros_like(length).scatter(-1, length.argmax(-1, keepdim=True), 1).reshape(x.shape)
            * away.sign()
        )
        uphill = gradient * change.sign()[..., None, None, None] - furthest * ratio[..., None, None, None]
        x = family.project(
            x + uphill.sign().float() * family.radius[0].float() * (0.2 * (1 - step / steps) + 0.005)
        )
    chosen = kept[best.argmax(0), torch.arange(len(problem))]
    return Run(chosen, queries, time.process_time() - began)


# ---- others, one point at a time


Objective = Callable[[Any], float]  # A point of the unit box -> minus the slope.


def one_by_one(search: Callable[[Objective, int, int], None], images: int) -> Finder:
    def run(problem: Problem, queries: int) -> Run:
        rows = range(min(len(problem), images))
        began = time.process_time()
        points = torch.cat([_one(problem.take(torch.tensor([row])), queries, search) for row in rows])
        return Run(points, queries, time.process_time() - began)

    return run


def _one(problem: Problem, queries: int, search: Callable[[Objective, int, int], None]) -> Tensor:
    box, base, centre = (
        problem.region.box_map(),
        float(problem.score(problem.region.centre)),
        problem.region.centre,
    )
    low, width = box.low.numpy()[0], (box.high - box.low).numpy()[0]
    best, kept, asked = 0.0, centre, 0

    def objective(t: Any) -> float:
        nonlocal best, kept, asked
        asked += 1
        if asked > queries:  # Some searches stop a little late.
            return 0.0
        x = torch.from_numpy((low + np.asarray(t) * width).astype(np.float32)).reshape(centre.shape)
        distance = float((x - centre).abs().max())
        ratio = abs(float(problem.score(x)) - base) / distance if distance > 1e-4 else 0.0
        if ratio > best:
            best, kept = ratio, x
        return -ratio

    search(objective, queries, box.low.shape[-1])
    return problem.region.project(kept)


def direct(objective: Objective, queries: int, n: int) -> None:
    optimize.direct(objective, [(0.0, 1.0)] * n, maxfun=queries, maxiter=10**6, vol_tol=0, len_tol=0)


def annealing(objective: Objective, queries: int, n: int) -> None:
    optimize.dual_annealing(objective, [(0.0, 1.0)] * n, maxfun=queries, rng=0)


def nomad_search(objective: Objective, queries: int, n: int) -> None:
    import PyNomad

    def asked(point: Any) -> int:
        point.setBBO(str(objective([point.get_coord(i) for i in range(n)])).encode())
        return 1

    start = np.random.default_rng(0).random(n).tolist()  # The slope is undefined at the input itself.
    options = ["BB_OUTPUT_TYPE OBJ", f"MAX_BB_EVAL {queries}", "DISPLAY_DEGREE 0", "SEED 0"]
    options += ["DIRECTION_TYPE ORTHO 2N", "EVAL_QUEUE_SORT DIR_LAST_SUCCESS"]
    with contextlib.redirect_stdout(io.StringIO()):
        PyNomad.optimize(asked, start, [0.0] * n, [1.0] * n, options)
