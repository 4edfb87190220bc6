"""DeepQuant's metric Q(s, x, d, p): the largest |s(x') - s(x)| / ||x' - x|| over a region, from below, by points that show it."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from holdfast.errors import BadInput
from holdfast.lipschitz.gradient_search import Slopes
from holdfast.lipschitz.mesh_search import MeshRatio
from holdfast.lipschitz.ratio import LANDMARKS, ROUNDING, Tally
from holdfast.lipschitz.ray_search import Rays
from holdfast.network import Network
from holdfast.problem import Problem
from holdfast.property import Property
from holdfast.region import Family

Search = Literal["rays", "slopes", "mesh"]
SHARES = {"rays": 0.5, "slopes": 0.5, "mesh": 0.1}  # of the queries, among the searches that are used
REPLAY = LANDMARKS + 1  # queries at the end: the landmarks and the input once more
FEWEST = 2 * REPLAY  # queries in all


@dataclass(frozen=True, eq=False)
class Step:
    """A better point on the way."""

    queries: int  # asked by then
    ratio: float
    point: Tensor  # (*shape)


@dataclass(frozen=True, eq=False)
class Found:
    """What the search can show, row by row: Q is at least `ratio`, because of `point`. Nothing here bounds Q from above."""

    ratio: Tensor  # (batch,) float64; zero where the score never changed by more than its rounding
    point: Tensor  # (batch, *shape) of the region; the input itself where the ratio is zero
    distance: Tensor  # (batch,) float64: ||point - x||, rounded up
    queries: int  # of each row: every point counts as one, with or without its gradient; the replay at the end too
    path: tuple[tuple[Step, ...], ...]  # for each row the way to its point, at most LANDMARKS steps, the point itself last


def search_metric(
    problem: Problem, *, queries: int, seed: int = 0, methods: Sequence[Search] | None = None, surrogate: Property | None = None
) -> Found:
    """The largest ratio that `queries` queries for each row find, over the problem's region at its radius.

    methods    left out: rays and slopes; where the network or the property has no gradients, rays and mesh.
    surrogate  what to follow where the property itself says nothing, as the logits' margin for a property of saturated probabilities; left
               out, the property of the outputs divided by a temperature.

    The ratios are those of the network in float64 where it has such a twin. Else the rounding of the scores is taken off.
    """
    if not isinstance(problem.region, Family):
        raise BadInput(
            f"a {type(problem.region).__name__} has no distance from its centre, so there is no metric Q; use a Ball or a Patch."
        )
    if queries < FEWEST:
        raise BadInput(f"the search for Q needs at least {FEWEST} queries for each input, got {queries}.")
    network = problem.network
    unknown = [name for name in methods or () if name not in get_args(Search)]
    if unknown:
        raise BadInput(f"unknown search {unknown[0]!r} for Q; there are {', '.join(get_args(Search))}.")
    tally = Tally(problem, queries - REPLAY, surrogate)
    smooth = network.differentiable and _has_slope(problem.property, tally.outputs)
    chosen = methods or (("rays", "slopes") if smooth else ("rays", "mesh"))
    if "slopes" in chosen and not smooth:
        raise BadInput("slopes need gradients, and the network or the property is a black box; use rays and mesh.")
    generator = torch.Generator().manual_seed(seed)
    whole = sum(SHARES[name] for name in chosen)
    for place, name in enumerate(chosen):
        share = tally.left if place == len(chosen) - 1 else min(tally.left, int(tally.budget * SHARES[name] / whole))
        if name == "rays":
            Rays().run(tally, share, generator)
        elif name == "slopes":
            Slopes().run(tally, share, generator)
        else:
            MeshRatio().run(tally, share, generator)
    return _replayed(tally, network.double(problem.region.centre))


def _has_slope(prop: Property, outputs: Tensor) -> bool:
    try:
        with torch.enable_grad():
            return prop.score(outputs.detach().clone().requires_grad_(True)).requires_grad
    except RuntimeError:  # numpy inside refuses tensors that ask for a gradient
        return False


def _replayed(tally: Tally, twin: Network | None) -> Found:
    """Every landmark once more, in float64 where that exists; each row keeps those that still rise."""
    problem, family = tally.problem, tally.problem.family
    points = torch.stack([point for _, _, point in tally.trail])
    outputs = (twin or problem.network)(torch.cat([points, family.centre[None]]).flatten(0, 1))
    scores = problem.property.score(outputs.reshape(len(points) + 1, len(problem), -1)).double()
    rounding = ROUNDING * torch.finfo(outputs.dtype).eps * outputs.abs().reshape(len(points) + 1, len(problem), -1).amax(-1).double()
    change = (scores[:-1] - scores[-1]).abs() - rounding[:-1] - rounding[-1]
    distance = family.distance(points)
    valid = (distance > 0) & (distance <= family.radius)
    ratio = torch.where(valid, change / distance, 0.0).nan_to_num(nan=0.0, posinf=0.0).clamp_min(0)
    best, which = ratio.max(0)
    rows = torch.arange(len(problem), device=which.device)
    point = torch.where((best > 0).reshape(-1, *(1 for _ in family.shape)), points[which, rows], family.centre)
    asked = torch.stack([at for at, _, _ in tally.trail])
    path = tuple(_path(asked[:, row].tolist(), ratio[:, row].tolist(), points[:, row]) for row in range(len(problem)))
    return Found(best, point, torch.where(best > 0, distance[which, rows], 0.0), tally.queries + REPLAY, path)


def _path(asked: list[int], ratio: list[float], points: Tensor) -> tuple[Step, ...]:
    """The landmarks that are better than all before."""
    steps, best = list[Step](), 0.0
    for at, value, point in zip(asked, ratio, points, strict=True):
        if value > best and math.isfinite(value):
            steps.append(Step(at, value, point.detach().cpu().clone()))
            best = value
    return tuple(steps)
