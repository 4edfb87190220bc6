"""DeepQuant's Figures 5 and 6: the metric Q in three norms by TP-MADS, random search and other searches.

python -m benchmarks.lipschitz norms --network acasxu --images 10 --queries 2000 --random 500000
python -m benchmarks.lipschitz norms --network mnist --images 10 --queries 20000 --random 1000000

Each search gets the same number of queries (evaluations of the network at one point) for each input, random
search also --random of them. All slopes are recomputed in float64 at the points found. "share" is the mean of
Q / (the largest Q that any search of the table found); "wins" counts the inputs on which the search finds more
than random search with as many queries.

mnist: norms 1, 2 and infinity with the paper's d = 250, 8 and 0.3. The score is the margin of the class among
the probabilities (the paper's confidence interval) or among the logits.

acasxu: network 1_1, inputs drawn uniformly from [-0.4, 0.4]^5 in the network's own units; the score is the
distance of the lowest output, ACAS Xu's advisory, to the next one. The paper does not state d; here d = 0.02 in
the maximum norm, 0.03 in norm 2 and 0.05 in norm 1. The paper's exact value comes from DeepGO, which is not
available here. In its place: a proved upper bound of Q (`Shells`, for --proofs inputs), and "nested", DeepGO's
nested optimisation after its paper (Ruan, Huang, Kwiatkowska, IJCAI 2018), written here: one-dimensional
Lipschitz optimisation in the first coordinate, whose function values are minima over the other coordinates,
found in the same way. Its Lipschitz constants are estimates, so its results are not certified.
"""

import argparse
import itertools
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import holdfast as hf
from benchmarks.certify.data import shared
from benchmarks.certify.table import Table
from benchmarks.charts import draw_bars, new_figure, save
from benchmarks.hamming.nets import mnist, trained
from benchmarks.lipschitz.design import NETWORKS
from benchmarks.lipschitz.metric import Probability, steepest, worth
from holdfast.lipschitz.metric_bound import Shells
from holdfast.lipschitz.ratio import ROUNDING_ULPS
from holdfast.problem import Problem
from holdfast.property import Robustness
from holdfast.property.base import LinearProperty
from holdfast.random_streams import RandomStreams
from holdfast.region import Ball
from holdfast.result import Key
from holdfast.solver import solve

PORTION = 500  # Random points of each input that are evaluated at once.
RADII = {
    "mnist": {math.inf: 0.3, 1.0: 250.0, 2.0: 8.0},  # Figure 6
    "acasxu": {math.inf: 0.02, 1.0: 0.05, 2.0: 0.03},  # chosen by hand
}
# DeepGO's search: the estimated Lipschitz constant is this multiple of the largest slope seen (chosen by hand).
LIPSCHITZ_FACTOR = 1.5


@dataclass(frozen=True, eq=False)
class Advisory(LinearProperty):
    """The label's output is below every other output: ACAS Xu chooses the smallest one."""

    label: Tensor

    def score(self, outputs: Tensor) -> Tensor:
        return Robustness(self.label).score(-outputs)

    def rows(self, outputs: int) -> tuple[Tensor, Tensor]:
        rows, offset = Robustness(self.label).rows(outputs)
        return -rows, offset

    def check(self, batch: int, outputs: int) -> None:
        Robustness(self.label).check(batch, outputs)


@dataclass(frozen=True)
class Search:
    """One search: `points` maps a problem and a number of queries to the best points (batch, *shape)."""

    name: str
    queries: int
    points: Callable[[Problem, int], Tensor]


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--network", choices=list(RADII), default="mnist")
    parser.add_argument("--images", type=int, default=10, help="inputs")
    parser.add_argument("--queries", type=int, default=2000, help="queries of each search for an input")
    parser.add_argument("--random", type=int, default=20000, help="queries of the larger random search")
    parser.add_argument("--scores", nargs="+", choices=("probabilities", "logits"), default=["probabilities"])
    parser.add_argument(
        "--nested", type=int, default=6, help="acasxu: evaluations in each dimension; 0: none"
    )
    parser.add_argument("--proofs", type=int, default=0, help="inputs for which Q is bounded from above")
    parser.add_argument("--seconds", type=float, default=20.0, help="limit of each proof")
    parser.add_argument("--train", type=int, default=10000, help="mnist: training images")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--out", type=Path, help="folder for the table and the figure")


def main(chosen: argparse.Namespace) -> None:
    columns = ["network", "score", "norm", "d", "search", "queries", "mean Q", "share", "wins", "CPU-s/input"]
    table = Table(columns, chosen.out, f"norms-{chosen.network}")
    scores = chosen.scores if chosen.network == "mnist" else ["advisory"]
    bars: dict[str, dict[str, list[float]]] = {}
    for score in scores:
        for p, d in RADII[chosen.network].items():
            problem = problem_of(chosen, score, p, d)
            found = compared(table, [chosen.network, score, f"{p:g}", d], problem, searches(chosen, problem))
            bars[f"{score}, norm {p:g}"] = found
            if chosen.proofs:
                proved(table, [chosen.network, score, f"{p:g}", d], problem, chosen, found)
    if chosen.out:
        draw(bars, chosen.out / f"norms-{chosen.network}")


def problem_of(chosen: argparse.Namespace, score: str, p: float, d: float) -> Problem:
    net, x = acasxu(chosen) if chosen.network == "acasxu" else digits_of(chosen)
    outputs = net(x)
    if score == "advisory":
        prop: Any = Advisory(outputs.argmin(1))
    else:
        prop = (Probability if score == "probabilities" else Robustness)(outputs.argmax(1))
    ball = Ball(x, torch.full((len(x),), d, dtype=torch.float64), p, net.domain)
    return Problem(net, ball, prop, "steepness", tuple(Key(i) for i in range(len(x))))


def acasxu(chosen: argparse.Namespace) -> tuple[hf.Network, Tensor]:
    file = shared("acasxu", chosen.data) / "onnx" / "ACASXU_run2a_1_1_batch_2000.onnx.gz"
    net = hf.Network.from_onnx(file)
    assert net.shape is not None
    generator = torch.Generator().manual_seed(0)
    x = 0.8 * torch.rand(chosen.images, 5, generator=generator) - 0.4
    return net, x.reshape(chosen.images, *[size or 1 for size in net.shape])


def digits_of(chosen: argparse.Namespace) -> tuple[hf.Network, Tensor]:
    """A network with batch norm, and the first test images that it classifies correctly."""
    module, x, y = mnist_network("DNN-4", chosen.data, chosen.train, chosen.epochs)
    net = hf.Network.from_torch(module, domain=(0, 1))
    right = (net(x[: 4 * chosen.images]).argmax(1) == y[: 4 * chosen.images]).nonzero()[:, 0]
    return net, x[right[: chosen.images]]


def mnist_network(name: str, data: Path, train: int, epochs: int) -> tuple[nn.Module, Tensor, Tensor]:
    """One of the six designs trained on the first `train` images; test images and labels."""
    x_train, y_train, x, y = mnist(data)
    key = f"mnist_{name.lower()}_{train}_{epochs}"
    return trained(key, NETWORKS[name], x_train[:train], y_train[:train], epochs=epochs), x, y


def searches(chosen: argparse.Namespace, problem: Problem) -> list[Search]:
    made = [
        Search("TP-MADS", chosen.queries, lambda p, q: steepest(p, q, "mesh").points),
        Search("random", chosen.queries, random_search),
        Search("holdfast", chosen.queries, lambda p, q: steepest(p, q, None).points),
        Search("random", chosen.random, random_search),
    ]
    if chosen.network == "acasxu" and chosen.nested:
        made.append(Search("nested", chosen.nested**5, lambda p, q: nested_search(p, chosen.nested)))
    return made


def score_noise(problem: Problem) -> Tensor:
    """(batch,) float64: the assumed rounding error of a change of the score, as in holdfast's own searches.

    Without it a point very near the input has a large slope that is only rounding.
    """
    outputs = problem.network(problem.region.centre)
    return ROUNDING_ULPS * torch.finfo(outputs.dtype).eps * outputs.abs().amax(-1).double()


def random_search(problem: Problem, queries: int) -> Tensor:
    """The best of `queries` uniform points of the ball for each input."""
    best = problem.region.centre
    largest = torch.zeros(len(problem), dtype=torch.float64)
    base = problem.score(problem.region.centre).double()
    rows, noise = torch.arange(len(problem)), score_noise(problem)
    for part, start in enumerate(range(0, queries, PORTION)):
        points = problem.region.sample(
            min(PORTION, queries - start), RandomStreams.of(range(len(problem)), part)
        )
        change = ((problem.score(points).double() - base).abs() - noise).clamp_min(0)
        ratio = (change / problem.family.distance(points)).nan_to_num(nan=0.0)
        top = ratio.max(0)
        better = top.values > largest
        largest = torch.where(better, top.values, largest)
        shape = (-1, *(1 for _ in problem.region.shape))
        best = torch.where(better.reshape(shape), points[top.indices, rows], best)
    return best


def nested_search(problem: Problem, evaluations: int) -> Tensor:
    """DeepGO's nested Lipschitz optimisation of the slope over the unit box of each ball."""
    points = []
    for row in range(len(problem)):
        one = problem.take(torch.tensor([row]))
        box = one.region.box_map()
        base, noise = float(one.score(one.region.centre)), float(score_noise(one))
        best, kept = 0.0, one.region.centre

        def lines(
            fixed: list[float],
            last: Tensor,
            box: Any = box,
            one: Problem = one,
            base: float = base,
            noise: float = noise,
        ) -> Tensor:
            """Minus the slopes at the points with these first coordinates and every last one."""
            nonlocal best, kept
            t = torch.cat([torch.tensor([fixed]).expand(len(last), -1), last[:, None]], 1).double()
            x = box.point(t[:, None])
            change = ((one.score(x).double()[:, 0] - base).abs() - noise).clamp_min(0)
            distance = one.family.distance(x)[:, 0].double()
            ratio = torch.where(distance > 1e-4, change / distance.clamp_min(1e-12), 0.0)
            if float(ratio.max()) > best:
                best, kept = float(ratio.max()), x[int(ratio.argmax())]
            return -ratio

        minimise_nested(lines, box.low.shape[-1], evaluations)
        points.append(kept.reshape(one.region.centre.shape))
    return torch.cat(points)


def minimise_nested(
    evaluate: Callable[[list[float], Tensor], Tensor],
    dimensions: int,
    evaluations: int,
    fixed: tuple[float, ...] = (),
) -> float:
    """Minimise over the remaining coordinates of [0, 1]^dimensions; returns the smallest value seen.

    The innermost coordinate is evaluated on an even grid (one batch). Every other one is chosen where the
    lower bound of the Piyavskii-Shubert method is smallest, with an estimated Lipschitz constant.
    """
    if len(fixed) == dimensions - 1:
        return float(evaluate(list(fixed), torch.linspace(0, 1, evaluations)).min())
    known: dict[float, float] = {}
    for place in (0.0, 1.0):
        known[place] = minimise_nested(evaluate, dimensions, evaluations, (*fixed, place))
    while len(known) < evaluations:
        at = sorted(known)
        slopes = [abs(known[b] - known[a]) / (b - a) for a, b in itertools.pairwise(at)]
        constant = LIPSCHITZ_FACTOR * max(max(slopes), 1e-9)
        bounds = []
        for a, b in itertools.pairwise(at):
            low = (known[a] + known[b]) / 2 - constant * (b - a) / 2
            middle = (a + b) / 2 + (known[a] - known[b]) / (2 * constant)
            bounds.append((low, middle))
        _, place = min(bounds)
        if place in known:
            break
        known[place] = minimise_nested(evaluate, dimensions, evaluations, (*fixed, place))
    return min(known.values())


def compared(
    table: Table, about: list[object], problem: Problem, made: list[Search]
) -> dict[str, list[float]]:
    """Add a row for each search; returns the Q of every input by search."""
    runs = []
    for search in made:
        began = time.process_time()
        points = search.points(problem, search.queries)
        runs.append((worth(problem, points), (time.process_time() - began) / len(problem)))
    most = torch.stack([ratio for ratio, _ in runs]).amax(0)
    equal = next(
        ratio
        for search, (ratio, _) in zip(made, runs, strict=True)
        if search.name == "random" and search.queries == made[0].queries
    )
    found: dict[str, list[float]] = {}
    for search, (ratio, seconds) in zip(made, runs, strict=True):
        share = (ratio / most).nan_to_num(nan=1.0)
        wins = f"{int((ratio > equal).sum())} of {len(problem)}"
        is_baseline = search.name == "random" and search.queries == made[0].queries
        table.add(
            *about,
            search.name,
            search.queries,
            float(ratio.mean()),
            float(share.mean()),
            None if is_baseline else wins,
            seconds,
        )
        found[f"{search.name}, {search.queries:,}"] = ratio.tolist()
    return found


def proved(
    table: Table,
    about: list[object],
    problem: Problem,
    chosen: argparse.Namespace,
    found: dict[str, list[float]],
) -> None:
    """Add a row with the proved upper bound of Q for the first inputs; its share is the mean of the largest Q
    found on them, divided by the bound.
    """
    some = problem.take(torch.arange(min(chosen.proofs, len(problem))))
    began = time.process_time()
    records = solve([some], [Shells()], hf.Stop(seconds=chosen.seconds * len(some)))
    upper = torch.tensor([record.bracket.upper.value for record in records], dtype=torch.float64)
    spent = (time.process_time() - began) / len(some)
    best = torch.tensor(list(found.values()), dtype=torch.float64).amax(0)[: len(some)]
    if bool((best > upper).any()):
        raise SystemExit("a search found a larger Q than the proved upper bound. The proof is wrong.")
    name = f"proved upper bound, {len(some)} inputs (largest found on them: {float(best.mean()):.4g})"
    table.add(*about, name, None, float(upper.mean()), float((best / upper).mean()), None, spent)


def draw(bars: dict[str, dict[str, list[float]]], file: Path) -> None:
    made = new_figure(4.2 * min(3, len(bars)), 3.2 * math.ceil(len(bars) / 3))
    if made is None:
        return
    axes = made.subplots(math.ceil(len(bars) / 3), min(3, len(bars)), squeeze=False).flatten()
    for where, (title, found) in zip(axes, bars.items(), strict=False):
        count = len(next(iter(found.values())))
        draw_bars(where, [str(i + 1) for i in range(count)], found)
        # Inputs differ by orders of magnitude, so the axis is logarithmic.
        where.set(title=title, xlabel="input", ylabel="Q found (log scale)", yscale="log")
        shown = [value for values in found.values() for value in values if 0 < value < math.inf]
        if shown:
            where.set_ylim(min(shown) / 2, max(shown) * (max(shown) / min(shown)) ** 0.5 * 2)
    save(made, file)
