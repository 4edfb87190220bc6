"""What a candidate witnesses: it is replayed through the user's own model, its float64 twin and every judge before it counts."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from holdfast.network import Network
from holdfast.problem import Problem
from holdfast.random_streams import Chance
from holdfast.region import Drift, Family, Region
from holdfast.region.normed import NormFamily
from holdfast.result import Bound, Evidence

ROUNDING = 8  # units in the last place that the score of an input may be off
SMALLEST = 5e-324  # above zero: a score that is positive, nobody knows how much


class Replayed(NamedTuple):
    """What candidates witness, each (batch,)."""

    value: Tensor  # the upper bounds; infinite where they witness nothing
    slack: Tensor  # how far these may be off by rounding
    executed: Tensor  # the scores as the user's own model gives them
    own: Tensor  # the upper bounds where no judge is asked

    def bound(self, row: int, evidence: Evidence, problem: Problem) -> Bound:
        own = float(self.executed[row]) if problem.goal == "worst" else None
        return Bound(float(self.value[row]), evidence, float(self.slack[row]), own)


def firm(problem: Problem, x: Tensor, twin: Network | None) -> tuple[Tensor, Replayed]:
    """Candidates (batch, *shape), and what they witness.

    A search ends so close to the boundary that another arithmetic may see it on the other side. Such a candidate is pushed on a
    little before it is given up.
    """
    said = replay(problem, x, twin)
    if problem.goal != "radius" or not isinstance(problem.region, NormFamily | Drift):
        return x, said
    values = said.value
    for further in (1e-6, 1e-5, 1e-4, 1e-3):
        lost = values.isinf() & problem.family.distance(x).isfinite()
        if not bool(lost.any()):
            break
        pushed = problem.region.further(x, 1 + further)
        again = replay(problem, pushed, twin).value
        helped = lost & again.isfinite()
        x = torch.where(problem.region.per_row(helped), pushed, x)
        values = torch.where(helped, again, values)
    return x, said._replace(value=values, own=torch.minimum(said.own, values))


def replay(problem: Problem, x: Tensor, twin: Network | None) -> Replayed:
    """(batch, *shape) candidates, replayed.

    The user's own model has the word, and so has every judge. Where it has a float64 twin, that must agree too: proofs speak of the
    network in real arithmetic, and a class that flips only by float32 rounding is no counterexample to them.
    """
    first, *others = (_replay(problem, point, twin) for point in problem.region.stand_ins(x))
    for other in others:
        worst = [torch.maximum(a, b) for a, b in zip(first, other, strict=True)]
        first = Replayed(worst[0], worst[1], first.executed, worst[3])
    return first


def _replay(problem: Problem, x: Tensor, twin: Network | None) -> Replayed:
    region, required = problem.region, problem.property
    outputs = [problem.answers(x).double()]
    precise = twin is not None and twin is not problem.network
    if twin is not None and precise:
        outputs.append(problem.answers(x, twin))
    own = len(outputs)
    outputs += [judge(x).double().to(x.device) for judge in problem.judges]
    scores = torch.stack([required.score(z).double() for z in outputs])
    if problem.goal == "steepness":
        ratio = _ratio(problem, x, outputs, scores, twin if precise else None)
        return Replayed(ratio, torch.zeros_like(ratio), scores[0], ratio)
    if problem.goal == "worst":
        unit = torch.finfo(torch.float64 if precise else problem.network.dtype).eps
        slack = torch.nan_to_num(required.rounding_error(outputs[own - 1], unit), torch.inf)
        coarse = math.sqrt(torch.finfo(problem.network.dtype).eps)
        fails = torch.stack([required.fails(z) for z in outputs])
        ends = [_lowest(scores[:many], scores[own - 1], fails[:many], coarse) for many in (len(outputs), own)]
        inside = region.contains(x)
        return Replayed(
            torch.where(inside, ends[0], torch.inf), slack, scores[0], torch.where(inside, ends[1], torch.inf)
        )
    family = problem.family
    found = torch.where(~(scores > 0).any(0), family.below(family.distance(x)), torch.inf)
    return Replayed(found, torch.zeros_like(found), scores[0], found)


def _lowest(scores: Tensor, best: Tensor, fails: Tensor, coarse: float) -> Tensor:
    """(arithmetics, batch), (batch,) of the best one, (arithmetics, batch) -> (batch,): proofs speak of real arithmetic, to which the best
    one comes nearest. But a score that only it gives was not met by the others, and what is not positive must be so in all of them."""
    most = scores.amax(0)
    value = torch.where(most - best > coarse * (1 + best.abs()), most, best)
    held = torch.where(value > 0, value, most.clamp_min(SMALLEST))
    return torch.where(
        scores.isfinite().all(0), torch.where(fails.all(0), value.clamp_max(0), held), torch.inf
    )


def _ratio(
    problem: Problem, x: Tensor, outputs: list[Tensor], scores: Tensor, twin: Network | None
) -> Tensor:
    """-> (batch,): minus the change of the score over the distance, the smallest of all arithmetics, less what rounding may add to it."""
    centre = problem.region.centre
    before = [problem.answers(centre).double(), *([] if twin is None else [twin(centre)])]
    before += [judge(centre).double().to(x.device) for judge in problem.judges]
    unit = torch.finfo(problem.network.dtype).eps
    noise = torch.stack([ROUNDING * unit * z.abs().amax(-1) for z in before])
    change = (scores - torch.stack([problem.property.score(z).double() for z in before])).abs() - noise
    ratio = (change.clamp_min(0) / problem.family.distance(x)).amin(0)
    return torch.where(problem.region.contains(x) & ratio.isfinite(), -ratio, torch.inf)


SPOT_SAMPLES = 8  # members drawn at random at each radius
SPOT_FEATURES = 48  # features that are moved to both of their ends alone
SPOT_RADII = (1.0, 30.0, 1e3, 1e6)  # none further: estimators refuse numbers that float32 cannot hold


def spot_points(problem: Problem, radius: Tensor | None) -> list[Tensor]:
    """Members of a region at which a proof about all of it is put to the test, each (points, batch, *shape).

    The inputs themselves, members drawn at random, and single features at their ends: also those that the model is thought not to read.

    radius: (batch,) of the members, which are drawn at several radii up to it; None for a region that does not grow.
    """
    region = problem.region
    if radius is None or not isinstance(region, Family):
        return [_spots(problem, region)]
    each = [
        region.at(radius.to(region.radius).clamp_max(limit))
        for limit in SPOT_RADII
        if limit == 1 or bool((radius > limit / 30).any())
    ]
    return [_spots(problem, one) for one in each]


def _spots(problem: Problem, region: Region) -> Tensor:
    chance = Chance.of(problem.keys, 0, region.centre.device)
    drawn = region.sample(SPOT_SAMPLES, chance)
    lower, upper = (
        region.flatten(end.clamp(-SPOT_RADII[-1], SPOT_RADII[-1])) for end in region.enclosing_box()
    )
    flat = region.flatten(region.centre)
    moved = []
    for feature in range(0, flat.shape[-1], max(1, flat.shape[-1] // SPOT_FEATURES)):
        for end in (lower, upper):
            point = flat.clone()
            point[:, feature] = end[:, feature].to(flat)
            moved.append(point.reshape(region.centre.shape))
    return torch.cat([region.centre[None], drawn, region.project(torch.stack(moved))])
