"""Mesh search in balls that are no boxes: DeepQuant's augmented Lagrangian (its Algorithm 2) over the
bounding box of the ball.

The search minimises over the box

    merit(x) = score(x) - multiplier * shift * log(shift - c(x)),   c(x) = ||x - centre||_p / radius - 1,

where c(x) <= 0 holds exactly inside the ball. (The paper prints log(shift + c), which rewards leaving the
ball.) If the minimiser is feasible the multiplier is updated, otherwise the shift is reduced.

Reference: P. Xu, W. Ruan, X. Huang, Quantifying safety risks of deep neural networks.
"""

import torch
from torch import Tensor

from holdfast.attacks.descent import select_nearest
from holdfast.attacks.mads import begin_search, minimise
from holdfast.problem import Problem
from holdfast.random_streams import RandomStreams
from holdfast.region.unit_box import BoxMap

SUBPROBLEMS = 4  # Number of augmented Lagrangian subproblems that share the query budget (chosen by hand).
# Shift of the logarithm in the first subproblem, in units of the constraint c (chosen by hand).
FIRST_SHIFT = 0.5
# Factor by which the shift is multiplied after an infeasible minimiser (chosen by hand).
SHIFT_REDUCTION = 0.1
# A minimiser counts as feasible if c is at most this: it may leave the ball by 0.1 % of the radius (chosen by
# hand).
FEASIBILITY_TOLERANCE = 1e-3


def descend_lagrangian(
    problem: Problem, start: Tensor, queries: int, block: int, chance: RandomStreams
) -> tuple[Tensor, Tensor]:
    """Minimise the score from start (restarts, batch, *shape), which lies in the region.

    Returns the lowest-scoring points of the region found, and their scores (restarts, batch).
    """
    region, lead = problem.family.as_norm_family(), start.shape[:2]
    assert region is not None
    box = BoxMap(region, *(region.flatten(end) for end in region.enclosing_box()))
    radius = region.radius.double().clamp_min(torch.finfo(torch.float64).tiny)

    def constraint(x: Tensor) -> Tensor:
        return region.length(x.double() - region.centre.double()) / radius - 1

    best, lowest = start, problem.score(start).double()
    left = queries - 1
    multiplier, shift = lowest.abs().clamp_min(1e-6), torch.full_like(lowest, FIRST_SHIFT)
    for index in range(SUBPROBLEMS):
        share = left // (SUBPROBLEMS - index)
        if share < 2:
            continue
        left -= share

        def merit(t: Tensor, multiplier: Tensor = multiplier, shift: Tensor = shift) -> Tensor:
            x = box.corner(t.unflatten(1, lead))
            slack = shift - constraint(x)
            value = problem.score(x).double() - multiplier * shift * slack.clamp_min(1e-300).log()
            return torch.where(slack > 0, value, torch.inf).flatten(1)

        state = minimise(
            merit,
            begin_search(box.place(best).flatten(0, 1), chance.substream(index).tile(lead[0])),
            share - 1,
            block,
        )
        found = box.corner(state.best.unflatten(0, lead))
        inside = region.project(found)
        best, lowest = select_nearest(
            region, torch.stack([best, inside]), torch.stack([lowest, problem.score(inside).double()])
        )
        violation = constraint(found)
        feasible = violation <= FEASIBILITY_TOLERANCE
        multiplier = torch.where(feasible, multiplier * shift / (shift - violation), multiplier)
        shift = torch.where(feasible, shift, shift * SHIFT_REDUCTION)
    return best, lowest
