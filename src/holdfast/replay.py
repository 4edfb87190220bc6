"""Replay of candidate counterexamples: through the user's own model, its float64 copy and every judge.

A judge is a further model that must agree, such as the estimator from which a module was read.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from holdfast.network import Network
from holdfast.problem import Problem
from holdfast.random_streams import RandomStreams
from holdfast.region import Region
from holdfast.result import Bound, Evidence

ROUNDING = 8  # Units in the last place by which a score may be off in a difference quotient; chosen by hand.
SMALLEST = 5e-324  # The smallest positive float64: "positive, by an unknown amount".


class Replayed(NamedTuple):
    """What the candidates show, each (batch,)."""

    value: Tensor  # upper bounds; infinite where the candidate shows nothing
    slack: Tensor  # bound on their rounding error
    executed: Tensor  # scores by the user's own model
    own: Tensor  # upper bounds without the judges

    def bound(self, row: int, evidence: Evidence, problem: Problem) -> Bound:
        own = float(self.executed[row]) if problem.objective.scored else None
        return Bound(float(self.value[row]), evidence, float(self.slack[row]), own)


def replay_adjusted(problem: Problem, x: Tensor, twin: Network | None) -> tuple[Tensor, Replayed]:
    """Replay candidates (batch, *shape); return them, some moved slightly outwards, and what they show.

    A search may end so close to the decision boundary that another arithmetic puts the candidate on the other
    side. Such a candidate is moved a little further from the centre before it is discarded.
    """
    first = replay(problem, x, twin)
    if not problem.bounds_radius:
        return x, first
    values = first.value
    for further in (1e-6, 1e-5, 1e-4, 1e-3):
        lost = values.isinf() & problem.family.distance(x).isfinite()
        if not bool(lost.any()):
            break
        pushed = problem.region.scale_perturbation(x, 1 + further)
        if pushed is None:
            break
        again = replay(problem, pushed, twin).value
        helped = lost & again.isfinite()
        x = torch.where(problem.region.per_row(helped), pushed, x)
        values = torch.where(helped, again, values)
    return x, first._replace(value=values, own=torch.minimum(first.own, values))


def replay(problem: Problem, x: Tensor, twin: Network | None) -> Replayed:
    """Replay candidates (batch, *shape).

    The user's own model and every judge must confirm a candidate, and so must the float64 copy, where there
    is one: proofs are about the network in real arithmetic, and a class that flips by float32 rounding alone
    is no counterexample to them.
    """
    first, *others = (_replay(problem, point, twin) for point in problem.region.stand_ins(x))
    for other in others:
        worst = [torch.maximum(a, b) for a, b in zip(first, other, strict=True)]
        first = Replayed(worst[0], worst[1], first.executed, worst[3])
    return first


class _Outputs(NamedTuple):
    """What the model and its judges answer at candidates; the lists begin with the user's own model."""

    x: Tensor  # (batch, *shape)
    outputs: list[Tensor]  # (batch, outputs) each
    scores: Tensor  # (arithmetics, batch)
    own: int  # the number of these that are not judges
    precise: Network | None  # the copy in float64, if it is another network


def _replay(problem: Problem, x: Tensor, twin: Network | None) -> Replayed:
    required = problem.property
    outputs = [problem.answers(x).double()]
    precise = twin is not None and twin is not problem.network
    if twin is not None and precise:
        outputs.append(problem.answers(x, twin))
    own = len(outputs)
    outputs += [judge(x).double().to(x.device) for judge in problem.judges]
    if problem.evaluate_alone:
        outputs.append(_answer_alone(problem, x, outputs))
    scores = torch.stack([required.score(z).double() for z in outputs])
    shown = _SHOWN[problem.goal]
    return shown(problem, _Outputs(x, outputs, scores, own, twin if precise else None))


def _answer_alone(problem: Problem, x: Tensor, known: Sequence[Tensor]) -> Tensor:
    """What the model answers to rows without other rows, (batch, outputs), where the property may fail.

    Other rows keep the answer that the model gave to all rows together: they are no counterexamples.
    """
    required, answers = problem.property, known[0].clone()
    doubtful = torch.stack([~(required.score(z) > 0) | required.fails(z) for z in known]).any(0)
    for row in doubtful.nonzero().flatten().tolist():
        answers[row] = problem.answers(x[row : row + 1]).double()[0]
    return answers


def _shown_radius(problem: Problem, given: _Outputs) -> Replayed:
    """The radius just below the distance of the candidate, if the property fails in every arithmetic."""
    family = problem.family
    fails = ~(given.scores > 0).any(0)
    found = torch.where(fails, family.below(family.distance(given.x)), torch.inf)
    return Replayed(found, torch.zeros_like(found), given.scores[0], found)


def _shown_score(problem: Problem, given: _Outputs) -> Replayed:
    """The score of the candidate, if it lies in the region."""
    outputs, scores, own, required = given.outputs, given.scores, given.own, problem.property
    unit = torch.finfo(problem.network.dtype if given.precise is None else torch.float64).eps
    slack = torch.nan_to_num(required.rounding_error(outputs[own - 1], unit), torch.inf)
    coarse = math.sqrt(torch.finfo(problem.network.dtype).eps)
    fails = torch.stack([required.fails(z) for z in outputs])
    ends = [_lowest(scores[:many], scores[own - 1], fails[:many], coarse) for many in (len(outputs), own)]
    inside = problem.region.contains(given.x)
    value, alone = (torch.where(inside, end, torch.inf) for end in ends)
    return Replayed(value, slack, scores[0], alone)


def _shown_steepness(problem: Problem, given: _Outputs) -> Replayed:
    """Minus the difference quotient between the candidate and the input."""
    ratio = _ratio(problem, given.x, given.outputs, given.scores, given.precise)
    return Replayed(ratio, torch.zeros_like(ratio), given.scores[0], ratio)


# Problems ask for a largest value as the lowest of the negative (`Problem.lowest`).
_SHOWN = {"radius": _shown_radius, "worst": _shown_score, "steepness": _shown_steepness}


def _lowest(scores: Tensor, best: Tensor, fails: Tensor, coarse: float) -> Tensor:
    """The score that a candidate shows, (batch,).

    Args:
        scores: (arithmetics, batch).
        best: (batch,), the scores of the most precise arithmetic, closest to the real arithmetic of proofs.
        fails: (arithmetics, batch) bool.
        coarse: Relative difference up to which the arithmetics agree.

    The best score counts if the others agree. A score <= 0 counts only if the property fails in all
    arithmetics.
    """
    most = scores.amax(0)
    value = torch.where(most - best > coarse * (1 + best.abs()), most, best)
    held = torch.where(value > 0, value, most.clamp_min(SMALLEST))
    return torch.where(
        scores.isfinite().all(0), torch.where(fails.all(0), value.clamp_max(0), held), torch.inf
    )


def _ratio(
    problem: Problem, x: Tensor, outputs: list[Tensor], scores: Tensor, twin: Network | None
) -> Tensor:
    """-> (batch,): minus |score(x) - score(centre)| / distance, the smallest over all arithmetics, reduced by
    rounding errors.
    """
    centre = problem.region.centre
    before = [problem.answers(centre).double(), *([] if twin is None else [twin(centre)])]
    before += [judge(centre).double().to(x.device) for judge in problem.judges]
    unit = torch.finfo(problem.network.dtype).eps
    noise = torch.stack([ROUNDING * unit * z.abs().amax(-1) for z in before])
    change = (scores - torch.stack([problem.property.score(z).double() for z in before])).abs() - noise
    ratio = (change.clamp_min(0) / problem.family.distance(x)).amin(0)
    return torch.where(problem.region.contains(x) & ratio.isfinite(), -ratio, torch.inf)


SPOT_SAMPLES = 8  # Random points at each radius; chosen by hand.
SPOT_FEATURES = 48  # Features that are moved alone to both of their bounds; chosen by hand.
# Radii of the test points; chosen by hand. Larger ones are useless: estimators refuse numbers beyond float32.
SPOT_RADII = (1.0, 30.0, 1e3, 1e6)


def spot_points(problem: Problem, radius: Tensor | None) -> list[Tensor]:
    """Points of a region at which a proof about it is tested, each (points, batch, *shape).

    They are the inputs themselves, random points, and single features at their bounds, including features
    that the model seems not to read.

    Args:
        radius: (batch,), the proved radius; points are drawn at several radii up to it. None: points of the
            region as it is.
    """
    if radius is None:
        return [_spots(problem, problem.region)]
    family = problem.family
    each = [
        family.at(radius.to(family.radius).clamp_max(limit))
        for limit in SPOT_RADII
        if limit == 1 or bool((radius > limit / 30).any())
    ]
    return [_spots(problem, one) for one in each]


def _spots(problem: Problem, region: Region) -> Tensor:
    chance = RandomStreams.of(problem.keys, 0, region.centre.device)
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
