"""What is known of ranges, put into a bound by multipliers: beta-CROWN (Wang et al. 2021) for ranges with any ends (GenBaB).

Over a part, low <= x <= high for an argument x. So for every number t, of either sign,

    row . output  >=  row . output + t x - max(t low, t high)   at every point of the part,

and the right side has bounds like any sum of nodes. Every t is sound; a few are tried, up the gradient, and each bound is one in float64
whose roundings are paid for. Narrower ranges alone bring the planes of a function closer together, but these are still minimised over the
whole region, and so at points that the part does not hold.
"""

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from holdfast import time_limit
from holdfast.bounding.coefficient_training import CoefficientAscent
from holdfast.bounding.graph.graph import Node
from holdfast.rounding import TINY, gamma

STEPS, PACE = 12, 0.5

# Rows (n, rows, size) of some nodes and an offset (n, rows) -> (n, rows): their sum is nowhere below.
Least = Callable[[Mapping[Node, Tensor], Tensor], Tensor]


def raise_bounds(
    least: Least,
    rows: Mapping[Node, Tensor],
    offset: Tensor,
    nodes: Sequence[Node],
    low: Tensor,
    high: Tensor,
    free: Tensor,
) -> Tensor:
    """The best bound of the rows (n, rows) that some multipliers give. low, high and free, (n, elements of the nodes): the ranges of these
    nodes, and bool: which elements may have a multiplier."""
    with torch.no_grad():
        first = least(rows, offset)
    best = torch.nan_to_num(first, -torch.inf, -torch.inf, -torch.inf)
    # A multiplier of this size moves the bound by as much as it is off, from one end of the range to the other.
    unit = torch.where(free[:, None], best.abs()[..., None] / (high - low).clamp_min(TINY)[:, None], 0)
    unit = torch.nan_to_num(unit, 0.0, 0.0, 0.0)
    ascent = CoefficientAscent([torch.zeros_like(unit)], betas=(0.9, 0.99))
    for step in range(STEPS):
        if time_limit.has_expired():
            break
        (tried,) = ascent.values
        with torch.enable_grad():
            times = tried * unit
            most = torch.where(times == 0, 0, torch.maximum(times * low[:, None], times * high[:, None]))
            taken = most.sum(-1) + 4 * gamma(most.shape[-1] + 1) * most.abs().sum(-1) + TINY
            total = offset - taken - 4 * gamma(1) * (offset.abs() + taken.abs())
            parts = times.split([node.size for node in nodes], dim=-1)
            now = least({**rows, **dict(zip(nodes, parts, strict=True))}, total)
            (gradient,) = torch.autograd.grad(now.sum(), [tried])
        best = torch.fmax(best, torch.nan_to_num(now.detach(), -torch.inf, -torch.inf, -torch.inf))
        ascent.step([gradient], PACE * (1 - step / STEPS))
    return best
