"""Radius bounds of 100 digits, against the counterexamples of every search and against the estimate s / Q.

python -m benchmarks.lipschitz radius --out benchmarks/.cache/results

The lower bound is certified, the upper bound is the distance of a counterexample (hf.radius with --tier and
--seconds). Every other search then looks for a closer counterexample by itself: a lower bound above its
distance would be false. The table also gives DeepQuant's radius from a Lipschitz estimate: s(x) / Q, with Q
the steepest slope that coordinate search finds in 2,000 queries. A Q that is too small makes this radius too
large.
"""

import argparse
import math
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from itertools import pairwise
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn

import holdfast as hf
from benchmarks.certify.table import Table
from holdfast.api.methods import Tier
from holdfast.datasets import digits
from holdfast.datasets.digits_networks import digits_cnn
from holdfast.method import Method
from holdfast.property import Robustness
from holdfast.random_streams import RandomStreams
from holdfast.region import Ball

# The norm, and the radius of the ball in which Q is searched.
NORMS = {"inf": (math.inf, 0.3), "2": (2.0, 1.5)}
QUERIES = 2000
COLUMNS = [
    "network",
    "norm",
    "tier",
    "median lower",
    "median upper",
    "median upper / lower",
    "s each",
    "other searches",
    "best counterexample, median",
    "lower bounds above a counterexample",
    "s / Q above a counterexample, logits",
    "probabilities",
]


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--first", type=int, default=0, help="index of the first image")
    parser.add_argument("--tier", choices=["fast", "tight", "split"], default="fast")
    parser.add_argument(
        "--seconds", type=float, help="wall-clock limit for each image; default: until the methods are done"
    )
    parser.add_argument("--processes", type=int, default=1, help="parallel images, for tiers tight and split")
    parser.add_argument("--networks", nargs="+", choices=list(NETWORKS), default=list(NETWORKS))
    parser.add_argument("--norms", nargs="+", choices=list(NORMS), default=list(NORMS))
    parser.add_argument("--out", type=Path, help="folder where the table is written")


def main(chosen: argparse.Namespace) -> None:
    data = digits("test")
    table = Table(COLUMNS, chosen.out, "radius")
    for name in chosen.networks:
        net = _network(name)
        right = (
            (net(data.x).argmax(1) == data.y).nonzero().flatten()[chosen.first : chosen.first + chosen.count]
        )
        x, y = data.x[right], data.y[right]
        for norm in chosen.norms:
            found = (
                _fast(net, x, y, NORMS[norm][0])
                if chosen.tier == "fast"
                else _one_by_one(name, right.tolist(), norm, chosen)
            )
            table.add(name, norm, chosen.tier, *_measured(net, x, y, *NORMS[norm], *found))
    table.say(
        f"{chosen.count} correctly classified test images from {chosen.first} on, in their order. "
        f"{QUERIES} queries for each Q."
    )


@cache
def _network(name: str) -> hf.Network:
    return hf.Network.from_torch(NETWORKS[name]().eval(), domain=(0, 1))


def _fast(net: hf.Network, x: Tensor, y: Tensor, norm: float) -> tuple[Tensor, float]:
    """Lower and upper bounds (inputs, 2) of tier fast, and CPU seconds for each input."""
    began = time.process_time()
    brackets = hf.radius(net, x, y, norm=norm)
    seconds = (time.process_time() - began) / len(x)
    return torch.tensor([(b.lower.value, b.upper.value) for b in brackets], dtype=torch.float64), seconds


def _one_by_one(name: str, images: list[int], norm: str, chosen: argparse.Namespace) -> tuple[Tensor, float]:
    """Bounds (inputs, 2) with a separate call and budget for each image, in one process or in several."""
    jobs = [(name, image, norm, chosen.tier, chosen.seconds) for image in images]
    if chosen.processes > 1:
        with ProcessPoolExecutor(chosen.processes, mp_context=get_context("spawn")) as pool:
            found = torch.tensor(list(pool.map(_one, jobs)), dtype=torch.float64)
    else:
        found = torch.tensor([_one(job) for job in jobs], dtype=torch.float64)
    return found[:, :2], float(found[:, 2].mean())


def _one(job: tuple[str, int, str, Tier, float | None]) -> tuple[float, float, float]:
    name, image, norm, tier, seconds = job
    torch.set_num_threads(1)
    net, data, began = _network(name), digits("test"), time.process_time()
    x, y = data.x[image : image + 1], data.y[image : image + 1]
    [bracket] = hf.radius(net, x, y, norm=NORMS[norm][0], tier=tier, stop=hf.Stop(seconds=seconds))
    return bracket.lower.value, bracket.upper.value, time.process_time() - began


def _measured(
    net: hf.Network, x: Tensor, y: Tensor, norm: float, ball: float, ends: Tensor, seconds: float
) -> list[object]:
    lower, upper = ends.unbind(1)
    others = searches()
    found = torch.stack([_witnessed(net, x, y, norm, method) for method in others])
    closest = torch.minimum(found.amin(0), upper)
    estimates = [_estimate(net, x, y, norm, ball, view) for view in (lambda z: z, lambda z: z.softmax(-1))]
    return [
        float(lower.median()),
        float(upper.median()),
        median((upper / lower.clamp_min(1e-12)).tolist()),
        seconds,
        ", ".join(type(method).__name__ for method in others),
        float(closest.median()),
        int((lower > closest).sum()),
        *(f"{int((estimate > closest).sum())} of {len(x)}" for estimate in estimates),
    ]


def searches() -> list[Method[Any]]:
    """All attacks, with larger budgets than their defaults."""
    from holdfast.attacks.mesh import Mesh

    return [hf.attacks.PGD(restarts=4, steps=25), hf.attacks.CarliniWagner(), hf.attacks.Corners(), Mesh()]


def _witnessed(net: hf.Network, x: Tensor, y: Tensor, norm: float, method: Method[Any]) -> Tensor:
    """Distances (inputs,) of the closest counterexamples by this search alone."""
    return torch.tensor(
        [b.upper.value for b in hf.radius(net, x, y, norm=norm, methods=[method], seed=1)],
        dtype=torch.float64,
    )


def _estimate(
    net: hf.Network, x: Tensor, y: Tensor, norm: float, ball: float, view: Callable[[Tensor], Tensor]
) -> Tensor:
    """The estimate (inputs,) s(x) / Q, at most the radius in which Q was searched."""
    region = Ball(x, torch.full((len(x),), ball), norm, net.domain)
    prop = Robustness(y)

    def score(points: Tensor) -> Tensor:
        return prop.score(view(net(points.flatten(0, 1)).double()).unflatten(0, points.shape[:2]))

    at_centre = score(x[None])[0]
    return (at_centre / _steepest(region, score, at_centre)).clamp(max=ball)


def _steepest(region: Ball, score: Callable[[Tensor], Tensor], at_centre: Tensor) -> Tensor:
    """The largest |s(x') - s(x)| / ||x' - x|| (inputs,) by coordinate search, which halves its step if no
    point is better.
    """
    point = region.sample(1, RandomStreams.of(range(len(region)), 0))
    size = region.centre[0].numel()
    moves = torch.cat([torch.eye(size), -torch.eye(size)]).reshape(2 * size, 1, *region.shape)
    step = torch.full((len(region),), float(region.radius[0]))

    def ratio(points: Tensor) -> Tensor:
        away = region.length((points - region.centre).double())
        return torch.where(away > 1e-4, (score(points) - at_centre).abs() / away.clamp_min(1e-4), 0)

    best = ratio(point)[0]
    for _ in range(QUERIES // (2 * size)):
        tried = region.project(point + region.per_row(step) * moves)
        value, which = ratio(tried).max(0)
        better = value > best
        point = torch.where(region.per_row(better), tried[which, torch.arange(len(region))], point[0])[None]
        best, step = torch.where(better, value, best), torch.where(better, step, step / 2)
    return best


def perceptron(sizes: Sequence[int] = (64, 32, 32, 10), epochs: int = 60) -> nn.Module:
    """A small dense network, trained in a few seconds."""
    torch.manual_seed(0)
    layers = [part for a, b in pairwise(sizes) for part in (nn.Linear(a, b), nn.ReLU())]
    model, data = nn.Sequential(nn.Flatten(), *layers[:-1]), digits("train")
    optimiser = torch.optim.Adam(model.parameters(), 3e-3, weight_decay=1e-4)
    for _ in range(epochs):
        for some in torch.randperm(len(data.x)).split(64):
            optimiser.zero_grad()
            nn.functional.cross_entropy(model(data.x[some]), data.y[some]).backward()
            optimiser.step()
    return model


NETWORKS: dict[str, Callable[[], nn.Module]] = {"dense": perceptron, "cnn": digits_cnn}
