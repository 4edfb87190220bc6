"""The paper's way to balls that are no boxes: mesh search on an augmented Lagrangian over the box around the ball (its Algorithm 2).

The merit is w(x) - multiplier * shift * log(shift - c(x)) with c(x) = ||x - centre|| / radius - 1 <= 0 inside. (The paper prints
log(shift + c), which rewards leaving the ball.) A feasible answer updates the multiplier, an infeasible one tightens the shift.
"""

import torch
from torch import Tensor

from holdfast.attacks.descent import nearest
from holdfast.attacks.mads import begin, minimise
from holdfast.attacks.unit_box import Chart
from holdfast.problem import Problem
from holdfast.random_streams import Chance
from holdfast.region.normed import NormFamily

SUBPROBLEMS = 4
FIRST_SHIFT = 0.5
TIGHTER = 0.1
FEASIBLE = 1e-3  # the share of the radius by which an answer may stand out


def descend_lagrangian(
    problem: Problem, start: Tensor, queries: int, block: int, chance: Chance
) -> tuple[Tensor, Tensor]:
    """start (restarts, batch, *shape) in the region -> the lowest points of the region met, and their scores (restarts, batch)."""
    region, lead = problem.region, start.shape[:2]
    assert isinstance(region, NormFamily)
    box = Chart(region, *(region.flatten(end) for end in region.enclosing_box()))
    radius = region.radius.double().clamp_min(torch.finfo(torch.float64).tiny)

    def constraint(x: Tensor) -> Tensor:
        return region.length(x.double() - region.centre.double()) / radius - 1

    best, lowest = start, problem.score(start).double()
    left = queries - 1
    multiplier, shift = lowest.abs().clamp_min(1e-6), torch.full_like(lowest, FIRST_SHIFT)
    for place in range(SUBPROBLEMS):
        share = left // (SUBPROBLEMS - place)
        if share < 2:
            continue
        left -= share

        def merit(t: Tensor, multiplier: Tensor = multiplier, shift: Tensor = shift) -> Tensor:
            x = box.corner(t.unflatten(1, lead))
            room = shift - constraint(x)
            value = problem.score(x).double() - multiplier * shift * room.clamp_min(1e-300).log()
            return torch.where(room > 0, value, torch.inf).flatten(1)

        state = minimise(
            merit, begin(box.place(best).flatten(0, 1), chance.apart(place).tile(lead[0])), share - 1, block
        )
        found = box.corner(state.best.unflatten(0, lead))
        inside = region.project(found)
        best, lowest = nearest(
            region, torch.stack([best, inside]), torch.stack([lowest, problem.score(inside).double()])
        )
        out = constraint(found)
        settled = out <= FEASIBLE
        multiplier = torch.where(settled, multiplier * shift / (shift - out), multiplier)
        shift = torch.where(settled, shift, shift * TIGHTER)
    return best, lowest
