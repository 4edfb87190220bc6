"""Multipliers of range constraints: beta-CROWN for ranges with arbitrary bounds (GenBaB).

Statement. In a subproblem, low <= z <= high for a pre-activation z. So for every number t of either sign

    row . output  >=  row . output + t z - max(t low, t high)    at every point of the subproblem,

and the right side has bounds like any sum of nodes. Every t is sound; a few are tried by gradient ascent, and
every bound is evaluated in float64 with all rounding errors included. Without multipliers, narrower ranges
improve the linear relaxations, but the linear bounds are still minimised over points of the region outside of
the subproblem.

References: Wang et al. (beta-CROWN, 2021), for signs; Shi et al., "Neural network verification with
branch-and-bound for general nonlinearities" (GenBaB, 2024).

Assumption: a node has bounds over the whole subproblem, also where z is outside of its range.
"""

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from holdfast import time_limit
from holdfast.bounding.coefficient_training import CoefficientAscent
from holdfast.bounding.graph.graph import Node
from holdfast.derivations import (
    RANGE_MULTIPLIERS,
)
from holdfast.rounding import TINY, add_rounding_down, charge

# The settings of the ascent were chosen by hand.
NUM_STEPS = 12  # Adam steps.
LEARNING_RATE = 0.5  # Adam's first learning rate, which decreases linearly to zero.

# Lower bounds (n, rows) of the sum of rows (n, rows, size) . node over some nodes plus an offset (n, rows).
Least = Callable[[Mapping[Node, Tensor], Tensor], Tensor]


def optimise_multipliers(
    least: Least,
    rows: Mapping[Node, Tensor],
    offset: Tensor,
    nodes: Sequence[Node],
    low: Tensor,
    high: Tensor,
    free: Tensor,
) -> Tensor:
    """The best bounds (n, rows) of the rows that some multipliers prove.

    Args:
        least: the bounding method.
        nodes: the pre-activations with constraints.
        low, high: (n, elements of the nodes), their ranges.
        free: (n, elements of the nodes) bool, the elements that may have a multiplier.
    """
    with torch.no_grad():
        first = least(rows, offset)
    best = torch.nan_to_num(first, -torch.inf, -torch.inf, -torch.inf)
    # Over the range, a multiplier of this size changes the row by as much as its bound is below zero.
    unit = torch.where(free[:, None], best.abs()[..., None] / (high - low).clamp_min(TINY)[:, None], 0)
    unit = torch.nan_to_num(unit, 0.0, 0.0, 0.0)
    ascent = CoefficientAscent([torch.zeros_like(unit)], betas=(0.9, 0.99))
    for step in range(NUM_STEPS):
        if time_limit.has_expired():
            break
        (tried,) = ascent.values
        with torch.enable_grad():
            times = tried * unit
            most = torch.where(times == 0, 0, torch.maximum(times * low[:, None], times * high[:, None]))
            taken = most.sum(-1) + charge(most.abs().sum(-1), RANGE_MULTIPLIERS, most.shape[-1])
            total = add_rounding_down(offset, -taken)
            parts = times.split([node.size for node in nodes], dim=-1)
            now = least({**rows, **dict(zip(nodes, parts, strict=True))}, total)
            (gradient,) = torch.autograd.grad(now.sum(), [tried])
        best = torch.fmax(best, torch.nan_to_num(now.detach(), -torch.inf, -torch.inf, -torch.inf))
        ascent.step([gradient], LEARNING_RATE * (1 - step / NUM_STEPS))
    return best
