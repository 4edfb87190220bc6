"""hf.risk: what can go wrong near an input, how fast, and how far away; every estimate with its certified other side.

DeepQuant's quantities for a property s, which is positive where all is well, over a region around x:

- the worst score, the smallest s over the region: proved from below, witnessed from above;
- the metric Q, the largest |s(x') - s(x)| / distance(x', x): witnessed from below, proved from above;
- the radius, how far the region may grow before s can fail: proved from below, witnessed from above.

The paper takes s(x) / Q for a safe radius; but a search finds less than Q, so what it divides by is too small and the radius too large.
It is kept as an estimate, by that name.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from holdfast.api.asking import PropertyOption, property_of, region_of
from holdfast.api.methods import Tier, score_methods
from holdfast.errors import BadInput
from holdfast.lipschitz.metric import Steepest, Step, path_of
from holdfast.lipschitz.metric_bound import Shells
from holdfast.method import Method
from holdfast.network import Network
from holdfast.problem import Goal, Problem
from holdfast.property import Property
from holdfast.region import Family, Region
from holdfast.result import Bound, Bracket, Key, Record
from holdfast.solver import Progress, Sink, Stop, solve

PAPER = "the paper's s(x) / Q with the Q that was found; a search finds less than Q, so this may be too large"
PARTS: tuple[Goal, ...] = ("worst", "radius", "steepness")


@dataclass(frozen=True, eq=False)
class Risk:
    """One input: a view of its records."""

    score: float  # of the input itself; NaN where it was not asked in time
    worst: Bracket  # the smallest score over the region
    metric: Bracket | None  # Q; None where the region has no distance (a Box)
    radius: Bracket | None  # how far the region may grow; None for a Box, which does not
    example: Tensor | None  # where the property fails, the nearest that was found: an adversarial, uncertain or reaching input
    path: tuple[Step, ...]  # points on the way to the largest ratio, with the queries asked by then
    queries: int
    seconds: float
    notes: tuple[str, ...] = ()  # what could not be done, and why

    @property
    def estimate(self) -> Bound | None:
        """s(x) / Q with the Q that was found: no guarantee."""
        if self.metric is None or not self.metric.lower.value > 0 or not self.score > 0:
            return None
        evidence = replace(self.metric.lower.evidence, kind="estimated", assumptions=(PAPER,), witness=None)
        return Bound(self.score / self.metric.lower.value, evidence)


def risk(
    net: Network,
    x: Tensor,
    property: PropertyOption,
    *,
    norm: float = math.inf,
    radius: float | Tensor | None = None,
    region: Region | None = None,
    patch: Tensor | None = None,
    shares: Sequence[float] | Tensor | None = None,
    drift: bool = False,
    y: Tensor | Sequence[int] | None = None,
    targets: Tensor | Sequence[int] | int | None = None,
    epsilon: float = 0.0,
    toward: Tensor | None = None,
    softmax: bool = True,
    queries: int = 2000,
    tier: Tier = "fast",
    stop: Stop | None = None,
    seed: int = 0,
    store: Sink | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> list[Risk]:
    """What can go wrong near each input? One answer for each, in their order.

    property  a Property; your own function of the outputs (n, outputs) -> (n,), positive where all is well, in torch; or one of
              "robustness"   the class's output above all others;
              "confidence"   its probability above all others by more than epsilon ("runner-up", "targeted", "least": above that of the
                             next likely class at x, of `targets`, of the least likely class: the paper's cases 1 to 3);
              "uncertainty"  the distance KL(q || probabilities) above epsilon, q uniform or `toward`;
              "tie"          the two largest probabilities apart by more than epsilon;
              "reach"        the probability of class `targets` less than epsilon above what it is at x.
    y         the classes; if not said, those that the network says.
    norm, radius   the ball around each input, clipped to the domain; or instead of a norm
    patch     a bool mask: only these features move, by at most the radius; without one they take any value of the domain;
    shares    feature k moves by at most radius * shares[k], so that the radius is a share of what is usual for each;
    drift     for windows (frames, features): one offset a feature, the same in every frame, of at most the radius (times its share);
    region    any other region, for example a Box.
    softmax   False where the network's outputs are probabilities already, or where its plain outputs are meant.
    queries   for each input, spent on the search for Q.
    """
    if region is None:
        asked = region_of(net, x, norm=norm, radius=radius, patch=patch, shares=shares, drift=drift)
    elif (radius, patch, shares, drift) != (None, None, None, False):
        raise BadInput("the region says itself where the input may move, and how far: leave radius, patch, shares and drift out.")
    else:
        asked = region
    net, prop = property_of(net, asked, property, y=y, targets=targets, epsilon=epsilon, toward=toward, softmax=softmax)
    methods = risk_methods(tier, queries)
    return risks_of(solve(risk_problems(net, asked, prop), methods, stop, seed=seed, store=store, progress=progress))


def risk_problems(net: Network, region: Region, property: Property) -> list[Problem]:
    """The parts of the question: a Box does not grow and has no distances, so only its worst score is asked for."""
    parts = PARTS if isinstance(region, Family) else PARTS[:1]
    return [Problem(net, region, property, part, tuple(Key(i, part=part) for i in range(len(region)))) for part in parts]


def risk_methods(tier: Tier = "fast", queries: int = 2000) -> Callable[[Problem], list[Method[Any]]]:
    """For each part its own; tier "search" proves nothing, so it prepares no bound of the steepness either."""
    steep: list[Method[Any]] = [Steepest(queries)] if tier == "search" else [Steepest(queries), Shells()]

    def chosen(problem: Problem) -> list[Method[Any]]:
        return steep if problem.goal == "steepness" else score_methods(problem, tier)

    return chosen


def risks_of(records: Sequence[Record]) -> list[Risk]:
    """The records of a run, input by input."""
    parts: dict[int, dict[str, Record]] = {}
    for record in records:
        parts.setdefault(record.key.index, {})[record.key.part] = record
    return [_risk(found) for _, found in sorted(parts.items()) if "worst" in found]


def _risk(found: dict[str, Record]) -> Risk:
    worst, radius, steep = found["worst"], found.get("radius"), found.get("steepness")
    score = worst.aside.get("score")
    nearest = (worst if radius is None else radius).bracket.upper
    failing = nearest.value <= 0 if radius is None else math.isfinite(nearest.value)
    return Risk(
        score=math.nan if score is None else float(score),
        worst=worst.bracket,
        metric=None if steep is None else steep.bracket,
        radius=None if radius is None else radius.bracket,
        example=nearest.evidence.witness if failing else None,
        path=() if steep is None else path_of(steep.aside),
        queries=sum(r.queries for r in found.values()),
        seconds=sum(r.seconds for r in found.values()),
        notes=tuple(dict.fromkeys(reason for r in found.values() for reason in r.skipped)),
    )
