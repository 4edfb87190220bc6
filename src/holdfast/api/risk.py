"""hf.risk: what can go wrong near an input, how fast, and how far away; every estimate with its certified other side.

DeepQuant's quantities for a property s, which is positive where all is well, over a region around x:

- the worst score, the smallest s over the region: proved from below, witnessed from above;
- the metric Q, the largest |s(x') - s(x)| / distance(x', x): witnessed from below, proved from above;
- the radius, how far the region may grow before s can fail: proved from below, witnessed from above.

The paper takes s(x) / Q for a safe radius; but a search finds less than Q, so what it divides by is too small and the radius too large.
It is kept as an estimate, by that name.
"""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from holdfast.api.methods import Tier, default_methods
from holdfast.attacks.mesh import Mesh
from holdfast.bounding.graph.of_problem import ASSUMPTIONS, CHECKS
from holdfast.certify import Certify
from holdfast.errors import BadInput, UnsupportedLayer
from holdfast.lipschitz.metric import FEWEST, Step, search_metric
from holdfast.lipschitz.metric_bound import metric_bound
from holdfast.method import Method
from holdfast.network import Network
from holdfast.network.scored import scored
from holdfast.problem import Problem
from holdfast.property import (
    BoundedProperty,
    Confidence,
    Custom,
    Linear,
    LinearProperty,
    Property,
    Reach,
    Robustness,
    Tie,
    Uncertainty,
)
from holdfast.property.base import check_labels, least_likely, next_likely
from holdfast.property.probability import are_probabilities
from holdfast.region import Ball, Family, Frames, Patch, Region, Words
from holdfast.result import Bound, Bracket, Evidence, Key, by_definition, contradiction
from holdfast.solver import Stop, replay, solve

Question = Literal["robustness", "confidence", "runner-up", "targeted", "least", "uncertainty", "tie", "reach"]
QUESTIONS: tuple[str, ...] = get_args(Question)
PAPER = "the paper's s(x) / Q with the Q that was found; a search finds less than Q, so this may be too large"


@dataclass(frozen=True, eq=False)
class Risk:
    """One input."""

    score: float  # of the input itself
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
    property: Property | Question | Callable[[Tensor], Tensor],
    *,
    norm: float = math.inf,
    radius: float | Tensor | None = None,
    region: Region | None = None,
    patch: Tensor | None = None,
    shares: Sequence[float] | Tensor | None = None,
    y: Tensor | Sequence[int] | None = None,
    targets: Tensor | Sequence[int] | int | None = None,
    epsilon: float = 0.0,
    toward: Tensor | None = None,
    softmax: bool = True,
    queries: int = 2000,
    tier: Tier = "fast",
    stop: Stop | None = None,
    seed: int = 0,
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
    shares    for inputs that are lists of features: feature k moves by at most radius * shares[k], so that the radius is in units of
              what is usual for each;
    region    any other region, for example a Box.
    softmax   False where the network's outputs are probabilities already, or where its plain outputs are meant.
    queries   for each input, spent on the search for Q.
    """
    asked = _asked(net, x, norm, radius, region, patch, shares)
    labels = _labels(net, asked, y)
    net, prop = _property(net, asked, property, labels, targets, epsilon, toward, softmax)
    if queries < FEWEST:
        raise BadInput(f"queries: the search for Q needs at least {FEWEST} for each input, got {queries}.")
    problem = Problem(net, asked, prop, "worst", tuple(Key(i) for i in range(len(asked))))
    problem.check()
    began, before = time.monotonic(), net.queries
    share = stop or Stop()
    share = replace(share, seconds=None if share.seconds is None else share.seconds / 2)
    scores = prop.score(net(problem.region.centre)).double().tolist()
    notes: list[str] = []
    worst = _solved(problem, tier, share, seed, notes)
    radii = metrics = path = None
    if isinstance(asked, Family):
        radii = _solved(replace(problem, goal="radius"), tier, share, seed, notes)
        metrics, path = _metric(problem, queries, seed, notes)
        worst, radii = _heard(problem, worst, [radii, metrics]), _heard(replace(problem, goal="radius"), radii, [worst, metrics])
    asked_each, seconds = (net.queries - before) // len(problem), (time.monotonic() - began) / len(problem)
    found = []
    for row, score in enumerate(scores):
        far = None if radii is None else radii[row]
        example = _example(worst[row] if far is None else far, far is not None)
        metric, steps = (None, ()) if metrics is None or path is None else (metrics[row], path[row])
        found.append(Risk(score, worst[row], metric, far, example, steps, asked_each, seconds, tuple(dict.fromkeys(notes))))
    return found


def _asked(
    net: Network, x: Tensor, norm: float, radius: float | Tensor | None, region: Region | None, patch: Tensor | None,
    shares: Sequence[float] | Tensor | None,
) -> Region:  # fmt: skip
    """The region around each input."""
    said = [name for name, value in (("region", region), ("patch", patch), ("shares", shares)) if value is not None]
    if len(said) > 1:
        raise BadInput(f"{said[0]} and {said[1]} both say where the input may move; give one.")
    if region is not None:
        if radius is not None:
            raise BadInput("the region says its size itself; leave the radius out.")
        return region
    rows = torch.as_tensor(x)
    centre = net.exactly(rows) if rows.is_floating_point() else net.embed(rows)
    if radius is None and patch is None:
        raise BadInput("how far may the input move? Give a radius (--radius), or a region.")
    size = torch.as_tensor(math.inf if radius is None else radius, dtype=torch.float64)
    if not bool((size > 0).all()):
        raise BadInput(f"radius {radius}: the ball is empty or holds the input alone; give a positive number.")
    if patch is not None:
        if not math.isinf(norm):
            raise BadInput("a patch is measured in the maximum norm: leave the norm out.")
        mask = torch.as_tensor(patch)
        if mask.shape not in (centre.shape, centre.shape[1:]):
            raise BadInput(f"patch: the mask has shape {tuple(mask.shape)}, expected {tuple(centre.shape[1:])}: a flag for each feature.")
        if not bool(mask.any()):
            raise BadInput("patch: no feature of the mask may move, or the square lies outside the images.")
        free = Patch(centre, size, mask.expand(centre.shape).to(net.device), net.domain)
        whole = torch.minimum(free.radius, free.limit())
        if bool(whole.isinf().any()):
            raise BadInput("patch: the domain has no end, so a patch without a radius could be anything; give a radius or a domain.")
        return free.at(whole)
    if shares is None:
        return Ball(centre, size, norm, net.domain)
    each = torch.as_tensor(shares, dtype=torch.float64)
    if centre.dim() != 2 or each.shape != centre.shape[1:]:
        raise BadInput(
            f"shares: one number for each feature of inputs that are lists of features; got {tuple(each.shape)} for inputs of shape "
            f"{tuple(centre.shape[1:])}."
        )
    if not math.isinf(norm):
        raise BadInput("with shares every feature moves by its own part: that is a box, measured in the maximum norm; leave the norm out.")
    return Frames(centre, size, norm, net.domain, mask=each.to(net.device).expand(centre.shape))


def _labels(net: Network, region: Region, y: Tensor | Sequence[int] | None) -> Tensor:
    if y is None:
        return net(region.centre).argmax(-1)
    labels = torch.as_tensor(y)
    if labels.is_floating_point() or labels.dim() != 1:
        raise BadInput(f"y must hold one class for each input, got {labels.dtype} of shape {tuple(labels.shape)}.")
    return labels.long().to(net.device)


def _property(
    net: Network, region: Region, given: Property | Question | Callable[[Tensor], Tensor], label: Tensor,
    targets: Tensor | Sequence[int] | int | None, epsilon: float, toward: Tensor | None, softmax: bool,
) -> tuple[Network, Property]:  # fmt: skip
    """The property, and the network it speaks of: a function of the outputs becomes part of the network, so that it can be proved."""
    if isinstance(given, Property):
        return net, given
    if callable(given):
        own = Custom(given)
        own.check(len(region), net.outputs_for(region.centre))
        whole = scored(net, given, region.centre)
        return (net, own) if whole is None else (whole, Linear.of([1.0], batch=len(region)))
    if given not in QUESTIONS:
        raise BadInput(f"property {given!r} is unknown; there are {', '.join(QUESTIONS)}, a Property, or your own function of the outputs.")
    outputs = net(region.centre)
    if softmax and given != "robustness" and bool(are_probabilities(outputs).all()):
        raise BadInput("the network's outputs are probabilities already: say softmax=False (--outputs).")
    aim = None if targets is None else torch.as_tensor(targets, device=net.device).expand(len(region)).long()
    if aim is None and given in ("targeted", "reach"):
        raise BadInput(f"property {given!r} speaks of a class: name it (targets=, --target).")
    if aim is not None and given not in ("targeted", "reach"):
        raise BadInput(f"targets have no meaning for property {given!r}; use targeted or reach.")
    if toward is not None and given != "uncertainty":
        raise BadInput(f"toward has no meaning for property {given!r}; it is a distribution for uncertainty.")
    made: dict[str, Callable[[], Property]] = {
        "robustness": lambda: Robustness(label),
        "confidence": lambda: Confidence(label, None, epsilon, softmax),
        "runner-up": lambda: Confidence(label, next_likely(outputs, label), epsilon, softmax),
        "targeted": lambda: Confidence(label, aim, epsilon, softmax),
        "least": lambda: Confidence(label, least_likely(outputs, label), epsilon, softmax),
        "uncertainty": lambda: Uncertainty.around(outputs, None if toward is None else toward.expand(outputs.shape), epsilon),
        "tie": lambda: Tie(label, epsilon, softmax),
        "reach": lambda: Reach.rise(outputs, label if aim is None else aim, epsilon, softmax),
    }
    for what, classes in (("label", label), ("target", aim)):
        if classes is not None:
            check_labels(classes, len(region), outputs.shape[-1], what)
    return net, made[given]()


def _solved(problem: Problem, tier: Tier, stop: Stop, seed: int, notes: list[str]) -> list[Bracket]:
    methods: list[Method[Any]] = default_methods(problem.network, problem.goal, tier)
    methods += [Mesh()] if problem.network.differentiable else []  # a black box has it already
    if not isinstance(problem.property, LinearProperty):
        methods.append(Certify())  # closed-form planes are what can prove a curved property, whatever the tier
    records = solve([problem], methods, stop, seed=seed)
    notes += [f"not used, {reason}" for record in records for reason in record.skipped]
    return [record.bracket for record in records]


def _metric(problem: Problem, queries: int, seed: int, notes: list[str]) -> tuple[list[Bracket], tuple[tuple[Step, ...], ...]]:
    """Q from both sides."""
    found = search_metric(problem, queries=queries, seed=seed)
    upper = torch.full_like(found.ratio, torch.inf)
    if isinstance(problem.property, BoundedProperty):
        try:
            upper = metric_bound(problem)
        except UnsupportedLayer as error:
            notes.append(f"no proved end of Q: {error}")
    shown = Evidence("witnessed", "search for Q", {"queries": queries}, seed, dtype=str(problem.network.dtype))
    proof = Evidence("proved", "slopes and shells", dtype="torch.float64", assumptions=ASSUMPTIONS, checks=CHECKS)
    brackets = []
    for row, (ratio, most) in enumerate(zip(found.ratio.tolist(), upper.tolist(), strict=True)):
        low = by_definition(0.0) if ratio == 0 else Bound(ratio, replace(shown, witness=found.point[row].cpu()))
        high = Bound(most, proof) if math.isfinite(most) else by_definition(math.inf)
        if low.value > high.value:
            raise contradiction(low, high, f"input {row}")
        brackets.append(Bracket(low, high))
    return brackets, found.path


def _heard(problem: Problem, brackets: list[Bracket], others: Sequence[list[Bracket]]) -> list[Bracket]:
    """The same inputs answer other questions too: what they were witnesses of there is replayed here, and may contradict what is proved.

    Only a property that fails is a witness of a radius, and only a point of the region one of a worst score; `replay` knows.
    """
    if isinstance(problem.region, Words):
        return brackets
    twin, better = problem.network.double(problem.region.centre), list(brackets)
    for other in others:
        shown = [next((end.evidence for end in (b.lower, b.upper) if end.evidence.witness is not None), None) for b in other]
        points = problem.region.centre.clone()
        for row, evidence in enumerate(shown):
            if evidence is not None and evidence.witness is not None:
                points[row] = evidence.witness.to(points)
        values = replay(problem, points, twin)[0].tolist()
        for row, (evidence, value) in enumerate(zip(shown, values, strict=True)):
            if evidence is None or not value < better[row].upper.value:
                continue
            upper = Bound(value, evidence)
            if better[row].lower.value > value:
                raise contradiction(better[row].lower, upper, f"input {row}")
            better[row] = better[row].tightened(upper=upper)
    return better


def _example(bracket: Bracket, radius: bool) -> Tensor | None:
    """An input at which the property fails."""
    failing = math.isfinite(bracket.upper.value) if radius else bracket.upper.value <= 0
    return bracket.upper.evidence.witness if failing else None
