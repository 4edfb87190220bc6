"""hf.risk: what can go wrong near an input, how fast, and how far away; every estimate with its certified other side.

DeepQuant's quantities for a property s, which is positive where all is well, over a region around x:

- the worst score, the smallest s over the region: proved from below, witnessed from above;
- the metric Q, the largest |s(x') - s(x)| / distance(x', x): witnessed from below, proved from above;
- the radius, how far the region may grow before s can fail: proved from below, witnessed from above.

The paper takes s(x) / Q(s, x, d, p) for a safe radius, where that is at most d (Theorem 1): Q was looked for in the ball of radius d, and
says nothing of points outside it. Where s(x) / Q is larger, all the theorem gives is d itself. A search finds less than Q, so what it
divides by is too small and the radius too large: min(s(x) / Q, d) is kept as an estimate, by that name. Where a witness fails at a
smaller distance, the estimate is refuted: it is withdrawn, and shown only as what the paper's formula says wrongly.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from holdfast.api.methods import Tier, score_methods
from holdfast.api.region_questions import PropertyOption, property_of, region_of
from holdfast.errors import BadInput
from holdfast.formatting import about, at_most
from holdfast.lipschitz.metric import MetricStep, Steepest, path_of, searched_radius
from holdfast.lipschitz.metric_bound import Shells
from holdfast.method import Method
from holdfast.network import Network
from holdfast.problem import Goal, Problem
from holdfast.property import Property
from holdfast.region import Family, Region
from holdfast.result import Bound, Bracket, Key, Record
from holdfast.solver import Progress, Sink, Stop, solve

PAPER = (
    "the paper's s(x) / Q with the Q that was found, at most the radius in which Q was looked for (Theorem 1); a search finds less than Q, "
    "so this may be too large"
)
AGREE = 1e-3  # share of a witnessed radius by which s(x) / Q may be larger and still be the same number: the error of the search for Q
PARTS: tuple[Goal, ...] = ("worst", "radius", "steepness")


@dataclass(frozen=True, eq=False)
class Risk:
    """One input: a view of its records."""

    score: float  # of the input itself; NaN where it was not asked in time
    worst: Bracket  # the smallest score over the region
    metric: Bracket | None  # Q; None where the region has no distance (a Box)
    radius: Bracket | None  # how far the region may grow; None for a Box, which does not
    example: (
        Tensor | None
    )  # where the property fails, the nearest that was found: an adversarial, uncertain or reaching input
    path: tuple[MetricStep, ...]  # points on the way to the largest ratio, with the queries asked by then
    queries: int
    seconds: float
    notes: tuple[str, ...] = ()  # what could not be done, and why
    searched: float | None = (
        None  # the radius d of the ball in which Q was looked for; None where it is not known
    )

    @property
    def estimate(self) -> Bound | None:
        """min(s(x) / Q, d), a safe radius by DeepQuant's Theorem 1 with the Q that was found, never above a witnessed radius: no guarantee.

        None where a witness refutes it (see `refuted_estimate`), where the score is not positive, and where no Q was found.
        """
        found = self._by_theorem
        if found is None or self.refuted_estimate is not None:
            return None
        return replace(found, value=min(found.value, self._nearest))

    @property
    def refuted_estimate(self) -> float | None:
        """What the paper's formula gives, where the score fails nearer than that: a wrong number, to be shown only as one."""
        found = self._by_theorem
        return found.value if found is not None and found.value > self._nearest * (1 + AGREE) else None

    @property
    def _by_theorem(self) -> Bound | None:
        if (
            self.metric is None
            or self.searched is None
            or not self.metric.lower.value > 0
            or not self.score > 0
        ):
            return None
        evidence = replace(self.metric.lower.evidence, kind="estimated", assumptions=(PAPER,), witness=None)
        return Bound(min(self.score / self.metric.lower.value, self.searched), evidence)

    @property
    def _nearest(self) -> float:
        """The smallest distance at which the score is known to fail."""
        return math.inf if self.radius is None else self.radius.upper.value


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
    y         the classes; by default, those that the network says.
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
        raise BadInput(
            "the region says itself where the input may move, and how far: leave radius, patch, shares and drift out."
        )
    else:
        asked = region
    net, prop = property_of(
        net, asked, property, y=y, targets=targets, epsilon=epsilon, toward=toward, softmax=softmax
    )
    methods = risk_methods(tier, queries)
    return risks_of(
        solve(risk_problems(net, asked, prop), methods, stop, seed=seed, store=store, progress=progress)
    )


def risk_problems(net: Network, region: Region, property: Property) -> list[Problem]:
    """The parts of the question: a Box does not grow and has no distances, so only its worst score is asked for."""
    parts = PARTS if isinstance(region, Family) else PARTS[:1]
    return [
        Problem(net, region, property, part, tuple(Key(i, part=part) for i in range(len(region))))
        for part in parts
    ]


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


def estimate_text(found: Risk) -> str:
    """The estimate for people, or what refutes it; nothing where there is none."""
    if found.refuted_estimate is not None and found.radius is not None:
        return f"{about(found.refuted_estimate)}, refuted: fails at {at_most(found.radius.upper.value)}"
    return "" if found.estimate is None else about(found.estimate.value)


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
        searched=None if steep is None else searched_radius(steep.aside),
        notes=tuple(dict.fromkeys(reason for r in found.values() for reason in r.skipped)),
    )
