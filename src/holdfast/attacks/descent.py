"""Downhill on the property's score inside a region, and back towards the input: the inner loops of the attacks."""

from functools import partial

import torch
from torch import Tensor

from holdfast import time_limit
from holdfast.problem import Problem
from holdfast.region import Region
from holdfast.region.base import Counted


def descend(problem: Problem, start: Tensor, steps: int) -> tuple[Tensor, Tensor]:
    """start (..., batch, *shape) in the region -> the lowest points met by the end or the deadline, and their scores (..., batch)."""
    region = problem.region
    x, best = start, start.clone()
    lowest = torch.full(
        start.shape[: start.dim() - len(region.shape)], torch.inf, dtype=start.dtype, device=start.device
    )
    # Sets of words or of pixels have no small steps; there each step jumps to the best point of the linear model.
    leaping = isinstance(region, Counted)
    for step in range(steps + 1):
        found = time_limit.in_time(partial(problem.score_and_gradient, x), None)
        if found is None:
            break
        score, gradient = found
        better = score < lowest
        lowest = torch.where(better, score, lowest)
        best = torch.where(widen(better, region), x, best)
        if time_limit.has_expired():
            break
        if step < steps:
            target = region.vertex(gradient)
            pace = 0.5 * (1 - step / steps) + 0.02
            x = target if leaping else region.project(x + pace * (target - region.centre))
    return best, lowest


def shrink(
    problem: Problem, x: Tensor, fails: Tensor, grid: int = 9, rounds: int = 2
) -> tuple[Tensor, Tensor]:
    """Witnesses (batch, *shape), fails (batch,) -> closer witnesses and their distances (batch,), infinite where none fails.

    Each is projected onto smaller regions of the family, `grid` sizes at once; the smallest that still fails is kept. After the deadline
    they stay what they are.
    """
    family = problem.family
    distance = torch.where(fails, family.distance(x), torch.inf)
    low = torch.zeros_like(distance)
    for _ in range(rounds):
        if time_limit.has_expired():
            break
        high = torch.where(distance.isfinite(), distance, 1.0)
        radii = family.evenly(low, high, grid)
        tiled = problem.tile_radii(radii)
        pulled = tiled.region.project(x.repeat(grid, *(1 for _ in family.shape)))
        scores = tiled.score(pulled).reshape(grid, -1)
        pulled = pulled.reshape(grid, *x.shape)
        away = torch.where(~(scores > 0) & distance.isfinite(), family.distance(pulled), torch.inf)
        x, distance = nearest(family, torch.cat([x[None], pulled]), torch.cat([distance[None], away]))
        # The largest size below the new witness that did not fail bounds the next, finer grid.
        low = torch.where(away.isinf() & (radii < distance), radii, low).amax(0)
    return x, distance


def nearest(region: Region, points: Tensor, distance: Tensor) -> tuple[Tensor, Tensor]:
    """points (k, batch, *shape), distance (k, batch) -> for each row the point with the smallest distance, and that distance."""
    least, index = distance.min(0)
    chosen = points.gather(0, widen(index, region)[None].expand(1, *points.shape[1:])).squeeze(0)
    return chosen, least


def widen(flags: Tensor, region: Region) -> Tensor:
    """(..., batch) -> (..., batch, 1, ..., 1), to stand against points of the region."""
    return flags[(..., *(None for _ in region.shape))]
