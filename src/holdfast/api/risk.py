"""`hf.risk`: DeepQuant's risks near an input, each with a certified bound on the other side.

For a score s, which is positive where the property holds, over a region around x:

- the worst score: min of s over the region. Lower bound proved, upper bound from a counterexample.
- the metric Q: max of |s(x') - s(x)| / distance(x', x). Lower bound from a concrete x', upper bound proved.
- the radius: how far the region may grow before s can fail. Lower bound proved, upper bound from a
  counterexample.

Theorem 1 of the paper: with Q = Q(s, x, d, p), the maximum over the ball of radius d, s is positive within
min(s(x) / Q, d). A search finds at most Q, so the quotient may be too large: min(s(x) / Q, d) with the Q that
was found is an estimate and not proved. If a counterexample lies closer, the estimate is refuted: it is
withdrawn, and shown only as the wrong result of the formula.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, get_args

from torch import Tensor

from holdfast.api.argument_names import explain_arguments
from holdfast.api.arguments import (
    DomainOption,
    MethodsOption,
    ModelLike,
    StopOption,
    as_network,
    check_choice,
    check_classes,
    check_flag,
    check_inputs,
    check_methods,
    check_norm,
    check_number,
    check_region,
    check_search,
    check_stop,
    check_whole,
)
from holdfast.api.methods import Tier, score_methods
from holdfast.api.perturbation import NormOption, Perturbation, SharesOption
from holdfast.api.progress import ProgressOption, check_progress, progress_display
from holdfast.api.radius import Inputs, LabelsOption, TargetsOption, check_targets
from holdfast.api.region_questions import PropertyOption, check_property_name, property_of
from holdfast.api.requests import region_request
from holdfast.api.results import AnswerList, RiskList
from holdfast.attacks import Mesh
from holdfast.errors import BadInput
from holdfast.formatting import format_nearest, format_upper
from holdfast.lipschitz.metric import MetricStep, Steepest, path_of, searched_radius
from holdfast.lipschitz.metric_bound import Shells
from holdfast.method import Method
from holdfast.network import Network
from holdfast.problem import Goal, Problem
from holdfast.property import Property
from holdfast.region import Region
from holdfast.request import describe_numbers
from holdfast.result import Bound, Bracket, Key, Record
from holdfast.solver import Sink, solve

PAPER = (
    "the paper's s(x) / Q with the Q that was found, at most the radius in which Q was searched (Theorem "
    "1); a search "
    "finds at most Q, so this may be too large"
)
# s(x) / Q agrees with an attacked radius up to this relative difference, the error of the search for Q.
AGREE = 1e-3
PARTS: tuple[Goal, ...] = ("worst", "radius", "steepness")


@dataclass(frozen=True, eq=False)
class Risk:
    """The risks of one input, as a view of its records."""

    score: float  # of the input itself; NaN where the time ran out first
    worst: Bracket  # the smallest score over the region
    metric: Bracket | None  # Q; None where the region has no distance (a Box)
    radius: Bracket | None  # how far the region may grow; None for a Box
    example: Tensor | None  # the nearest input that was found at which the property fails
    path: tuple[MetricStep, ...]  # points on the way to the largest ratio, with the queries spent
    queries: int
    seconds: float
    notes: tuple[str, ...] = ()  # methods that were not applicable, and why
    searched: float | None = None  # the radius d of the ball in which Q was searched; None where unknown

    @property
    def estimate(self) -> Bound | None:
        """min(s(x) / Q, d) with the Q that was found (Theorem 1), at most the attacked radius; not
        guaranteed.

        None where a counterexample refutes it (see `refuted_estimate`), where the score is not positive, and
        where no Q was found.
        """
        found = self._by_theorem
        if found is None or self.refuted_estimate is not None:
            return None
        return replace(found, value=min(found.value, self._nearest))

    @property
    def refuted_estimate(self) -> float | None:
        """The result of the paper's formula where a counterexample lies closer, so that it is wrong; else
        None.
        """
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
        """The smallest distance at which a counterexample was found."""
        return math.inf if self.radius is None else self.radius.upper.value


@explain_arguments(
    "Give the property, then radius= and the others by name.",
    target="The class is targets=, with property='targeted'.",
)
def risk(
    net: ModelLike,
    x: Inputs,
    property: PropertyOption,
    *,
    norm: NormOption = math.inf,
    radius: float | Tensor | None = None,
    domain: DomainOption = None,
    region: Region | None = None,
    patch: Tensor | None = None,
    shares: SharesOption = None,
    drift: bool = False,
    y: LabelsOption = None,
    targets: TargetsOption = None,
    margin: float | None = None,
    epsilon: float | None = None,
    toward: Tensor | None = None,
    softmax: bool = True,
    queries: int = 2000,
    tier: Tier = "fast",
    methods: MethodsOption = None,
    stop: StopOption = None,
    seconds: float | None = None,
    seed: int = 0,
    store: Sink | None = None,
    progress: ProgressOption = None,
) -> RiskList:
    """Bracket the risks near each input.

    These are the worst score, the radius at which the score fails, and the Lipschitz metric Q.

    Args:
        net: a torch module in evaluation mode, the path of an .onnx file, a fitted estimator, or a
            hf.Network.
        x: (batch, *shape), the inputs; for a network that reads tokens their ids, or a list of texts.
        property: a Property; your own torch function of the outputs (n, outputs) -> (n,), positive where all
            is well; or one of "robustness": the output of the class above all others. "confidence": the
            probability of the class above all others by more than `margin`. "runner-up", "targeted" and
            "least": above that of the second class at x, of `targets`, of the least likely class (the paper's
            cases 1 to 3). "uncertainty": the divergence KL(q || probabilities) above `margin`, with q uniform
            or `toward`. "tie": the two largest probabilities apart by more than `margin`. "reach": the
            probability of class `targets` less than `margin` above its value at x.
        norm: how distances are measured: 1, 2, math.inf (or "inf") or any p >= 1.
        radius: the perturbation radius of the ball around each input, clipped to the domain.
        domain: the lowest and highest value of an input, as in (0, 1). A hf.Network has its own.
        region: any other region in place of the ball, such as a hf.Box.
        patch: a bool mask of the features that may change, each by at most the radius; without a radius they
            take any value of the domain.
        shares: feature k moves by at most radius * shares[k].
        drift: for windows (frames, features): one offset a feature, the same in every frame, of at most the
            radius (times its share).
        y: the classes, as numbers or names. Default: the predicted ones.
        targets: the class that "targeted" and "reach" are about, for all inputs or one for each.
        margin: by how much the score must be above zero.
        epsilon: the old name of `margin`.
        toward: the distribution from which uncertainty is measured.
        softmax: False where the outputs are probabilities already, or where plain outputs are meant.
        queries: model queries for each input that the search for Q may spend.
        tier: how hard to prove, as for `hf.radius`.
        methods: what to run instead of the defaults, as instances or names, for the parts that they fit. A mesh
            method searches for Q too: "mesh" is TP-MADS, "mesh-lagrangian" DeepQuant's Algorithm 2.
        stop: when to stop: a hf.Stop, or a number of seconds for the whole call.
        seconds: the same as a number for `stop`.
        seed: decides every random number.
        store: keeps every record while it is made.
        progress: None: a bar in a terminal or notebook. False: nothing. A function: it is called with every
            report.

    Returns:
        A list with one hf.api.Risk for each input, in order; it prints as a table.
    """
    check_search(seed, store)
    check_progress(progress)
    check_flag("softmax", softmax)
    check_whole("queries", queries, at_least=1)
    check_choice("tier", tier, get_args(Tier))
    limit, named = check_stop(stop, seconds), check_methods(methods)
    moves = Perturbation(norm=check_norm(norm), radius=radius, patch=patch, shares=shares, drift=drift)
    if moves.norm == 0:
        raise BadInput(
            "norm 0 counts changed units, and risk measures distances: use a norm p >= 1. "
            "hf.radius(norm=0) counts."
        )
    if margin is not None and epsilon is not None:
        raise BadInput("margin and epsilon are the same argument: leave epsilon, the old name, out.")
    if epsilon is not None and all(given is None for given in (radius, region, patch)):
        raise BadInput(
            "epsilon is the old name of margin: by how much the property must hold. How far the input may "
            "move is radius=0.05, or a region."
        )
    name, value = ("epsilon", epsilon) if margin is None else ("margin", margin)
    above = 0.0 if value is None else check_number(name, value)
    check_property_name(property)
    if radius is not None and not isinstance(radius, Tensor):
        check_number("radius", radius)
    network = as_network(net, domain=domain, x=x)
    if region is None:
        x = check_inputs(network, x)
        asked = moves.region_around(network, x)
    elif (radius, patch, shares, drift) != (None, None, None, False):
        raise BadInput(
            "region says where inputs may be and how far: leave radius, patch, shares and drift out."
        )
    else:
        asked = check_region(region, "hf.risk")
    labels = check_classes(network, y, len(asked))
    aims = None if targets is None else check_targets(network, targets, len(asked))
    if isinstance(aims, str):
        raise BadInput("targets='runner-up' is a property here: property='runner-up'.")
    used, prop = property_of(
        network, asked, property, y=labels, targets=aims, epsilon=above, toward=toward, softmax=softmax
    )
    problems, chosen = risk_problems(used, asked, prop), risk_methods(tier, queries)
    if named is not None:
        for problem in problems:
            problem.check()
        if all(method.unfit(problem) is not None for method in named for problem in problems):
            reasons = " ".join(f"{method.name}: {method.unfit(problems[0])}" for method in named)
            raise BadInput(f"methods: none of them can answer this. {reasons}")
        chosen = methods_by_part(named, queries, chosen)
    with progress_display(progress, "risk") as report:
        records = solve(problems, chosen, limit, seed=seed, store=store, progress=report)
    extra = {"epsilon": above or None, "targets": describe_numbers(targets), "softmax": softmax}
    request = region_request(asked, property, **extra)
    return RiskList(risks_of(records), AnswerList(used, tuple(problems), tuple(records), "risk", request))


def risk_problems(net: Network, region: Region, property: Property) -> list[Problem]:
    """Return a problem for each part. A Box has no radius and no distances, so only its worst score is
    bounded.
    """
    parts = PARTS if region.grows else PARTS[:1]
    return [
        Problem(net, region, property, part, tuple(Key(i, part=part) for i in range(len(region))))
        for part in parts
    ]


def risk_methods(tier: Tier = "fast", queries: int = 2000) -> Callable[[Problem], list[Method[Any]]]:
    """Return the methods of each part. Tier "search" proves nothing, the steepness included."""
    steep: list[Method[Any]] = [Steepest(queries)] if tier == "search" else [Steepest(queries), Shells()]

    def chosen(problem: Problem) -> list[Method[Any]]:
        return steep if problem.goal == "steepness" else score_methods(problem, tier)

    return chosen


def methods_by_part(
    named: Sequence[Method[Any]], queries: int, default: Callable[[Problem], list[Method[Any]]]
) -> Callable[[Problem], list[Method[Any]]]:
    """Choose the named methods for each part of the request, and the default ones for a part that none fits.

    A mesh method also searches for Q, with `queries` queries, which the search for Q with its usual settings takes too.
    """
    known = [Steepest(queries) if method == Steepest() else method for method in named]
    if any(isinstance(method, Mesh) for method in named):
        known.append(Steepest(queries, searches="mesh"))

    def chosen(problem: Problem) -> list[Method[Any]]:
        fitting = [method for method in known if method.unfit(problem) is None]
        return fitting or default(problem)

    return chosen


def risks_of(records: Sequence[Record]) -> list[Risk]:
    """Group the records of a run by input."""
    parts: dict[int, dict[str, Record]] = {}
    for record in records:
        parts.setdefault(record.key.index, {})[record.key.part] = record
    return [_risk(found) for _, found in sorted(parts.items()) if "worst" in found]


def estimate_text(found: Risk) -> str:
    """Return the estimate as text, or what refutes it; empty where there is none."""
    if found.refuted_estimate is not None and found.radius is not None:
        return f"{format_nearest(found.refuted_estimate)}, refuted: fails at {format_upper(found.radius.upper.value)}"
    return "" if found.estimate is None else format_nearest(found.estimate.value)


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
