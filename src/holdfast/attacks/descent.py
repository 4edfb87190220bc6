"""The inner loops of the attacks: descend on the specification's score inside a region, and pull a
counterexample back towards the input.
"""

from contextlib import nullcontext
from functools import partial

import torch
from torch import Tensor

from holdfast import time_limit
from holdfast.attacks.step_gradients import StepGradients
from holdfast.problem import Problem
from holdfast.region import Region


def descend(problem: Problem, start: Tensor, steps: int) -> tuple[Tensor, Tensor]:
    """Run projected gradient descent from start (..., batch, *shape), which lies in the region.

    Returns the lowest-scoring points visited before the end or the deadline, and their scores (..., batch). Where the
    gradient is zero at all points of the start, the descent follows an estimated one (`step_gradients`).
    """
    region = problem.region
    x, best = start, start.clone()
    lowest = torch.full(
        start.shape[: start.dim() - len(region.shape)], torch.inf, dtype=start.dtype, device=start.device
    )
    # Sets of words or pixels have no small steps, so each step jumps to the best point of the linearised
    # score.
    leaping, estimated = region.counted, False
    for step in range(steps + 1):
        found = time_limit.in_time(partial(_score_and_gradient, problem, x, estimated), None)
        if found is None:
            break
        score, gradient = found
        if step == 0 and steps and not bool(gradient.any()):
            estimated = True
            found = time_limit.in_time(partial(_score_and_gradient, problem, x, estimated), None)
            gradient = gradient if found is None else found[1]
        better = score < lowest
        lowest = torch.where(better, score, lowest)
        best = torch.where(broadcast_rows(better, region), x, best)
        if time_limit.has_expired():
            break
        if step < steps:
            target = region.vertex(gradient)
            pace = 0.5 * (1 - step / steps) + 0.02
            x = target if leaping else region.project(x + pace * (target - region.centre))
    return best, lowest


def _score_and_gradient(problem: Problem, x: Tensor, estimated: bool) -> tuple[Tensor, Tensor]:
    with StepGradients() if estimated else nullcontext():
        return problem.score_and_gradient(x)


def pull_closer(
    problem: Problem, x: Tensor, fails: Tensor, grid: int = 9, rounds: int = 2
) -> tuple[Tensor, Tensor]:
    """Pull counterexamples x (batch, *shape) closer to the input; `fails` (batch,) marks the rows that have
    one.

    Returns the closer counterexamples and their distances (batch,), infinite in rows without one. Each point
    is projected onto smaller regions of the family, `grid` sizes in one batch, and the smallest size that
    still fails is kept. After the deadline the points are returned unchanged.
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
        x, distance = select_nearest(family, torch.cat([x[None], pulled]), torch.cat([distance[None], away]))
        # The largest size below the new counterexample that did not fail is the lower limit of the next,
        # finer grid.
        low = torch.where(away.isinf() & (radii < distance), radii, low).amax(0)
    return x, distance


def select_nearest(region: Region, points: Tensor, distance: Tensor) -> tuple[Tensor, Tensor]:
    """Select for each row the point with the smallest distance; return these points and their distances.

    Args:
        points: (k, batch, *shape).
        distance: (k, batch); any value to minimise, such as a score.
    """
    least, index = distance.min(0)
    chosen = points.gather(0, broadcast_rows(index, region)[None].expand(1, *points.shape[1:])).squeeze(0)
    return chosen, least


def broadcast_rows(flags: Tensor, region: Region) -> Tensor:
    """Reshape (..., batch) to (..., batch, 1, ..., 1), so that it broadcasts against points of the region."""
    return flags[(..., *(None for _ in region.shape))]
