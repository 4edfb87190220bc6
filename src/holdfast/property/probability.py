"""Bounds on probabilities p = softmax(z) and their differences, from bounds on differences of outputs.

With d_k = z_c - z_k and t_k = exp(-d_k):

    p_c       = 1 / (1 + sum over k of t_k)
    p_c - p_j = (1 - t_j) / (1 + t_j + sum over the other k of t_k)

Rounding: exp and expm1 are assumed correct to a few ulp, as everywhere in this package. All sums have terms
of one sign, so the relative error 2 gamma(classes + 1024) covers each quotient and the rounding of exponents
down to -800, where exp is 0 (docs/rounding.md, Properties).
"""

import torch
from torch import Tensor

from holdfast.derivations import (
    PROBABILITY,
)
from holdfast.rounding import charge, round_down, round_up

# Sums are cut off here (in the safe direction), so that (1 + LARGEST_SUM) exp(d) does not overflow.
LARGEST_SUM = 1e280
# Exponentials below this are not used as denominators: it is far above underflow.
SMALLEST_EXPONENTIAL = 1e-280


def probabilities_or_outputs(outputs: Tensor, softmax: bool) -> Tensor:
    """Return the quantity of the property: the probabilities softmax(outputs), or the outputs themselves."""
    return outputs.softmax(-1) if softmax else outputs


def are_probabilities(outputs: Tensor) -> Tensor:
    """(..., classes) -> (...): whether the outputs are non-negative and sum to 1 (up to 1e-3)."""
    return (outputs >= 0).all(-1) & ((outputs.sum(-1) - 1).abs() < 1e-3)


def least_leads(lower: Tensor, upper: Tensor) -> Tensor:
    """Lower-bound p_c - p_k from bounds of d_k = z_c - z_k: (batch, others) twice -> (batch, others).

    With t_k = exp(-d_k), p_c - p_j = (1 - t_j) / (1 + t_j + T), where T is the sum of the other t_k. The
    derivative in t_j has the sign of -(1 + t_j + T) - (1 - t_j) = -(2 + T) < 0. So the difference increases
    with d_j, and is smallest at the lower bound of d_j. In T it decreases if t_j < 1 and increases if t_j >
    1. So the minimum over the box has all other d_k at their lower bounds if the lower bound of d_j is
    positive, and at their upper bounds if it is negative. Both are attained, so no better bound follows from
    these intervals.
    """
    found = _leads(lower, upper, LARGEST_SUM)
    return found - charge(found.abs(), PROBABILITY, lower.shape[1])


def most_leads(lower: Tensor, upper: Tensor) -> Tensor:
    """Upper-bound p_c - p_k: as `least_leads` with the bounds exchanged."""
    found = _leads(upper, lower, torch.inf)
    return found + charge(found.abs(), PROBABILITY, lower.shape[1])


def _leads(main: Tensor, other: Tensor, cap: float) -> Tensor:
    """Evaluate p_c - p_j with d_j at `main`, and the others at `main` if d_j >= 0 there, else at `other`.

    If d_j < 0 this is (exp(d_j) - 1) / ((1 + T) exp(d_j) + 1). Capping T lowers the result, which is only
    allowed for lower bounds. For upper bounds an infinite T gives 0, and so does an infinite T times an
    exp(d_j) that underflows.
    """
    ahead = -torch.expm1(-main.clamp_min(0)) / (1 + torch.exp(-main).sum(1, keepdim=True))
    rest, below = _without_own(torch.exp(-other)).clamp_max(cap), main.clamp_max(0)
    behind = (torch.expm1(below) / ((1 + rest) * torch.exp(below) + 1)).nan_to_num(0.0)
    return torch.where(main >= 0, ahead, torch.where(main.isnan() | rest.isnan(), torch.nan, behind))


def probabilities(lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
    """Bound softmax(v) from bounds of v: (batch, classes) twice -> (batch, classes) twice.

    p_k = 1 / (1 + (sum of the other exp(v_i)) / exp(v_k)) increases with v_k and decreases with every other
    v_i. Only differences of v matter, so all are taken relative to a base above every lower bound.
    Exponentials near underflow are dropped or enlarged, whichever is sound. NaN gives the trivial bounds 0
    and 1.
    """
    base = (lower / 2 + upper / 2).amax(1, keepdim=True)
    small, large = torch.exp(lower - base), torch.exp(upper - base)
    classes = lower.shape[1]
    least = round_down(1 / (1 + _without_own(large) / small), PROBABILITY, classes)
    most = 1 / (1 + _without_own(small) / large.clamp_min(SMALLEST_EXPONENTIAL))
    most = round_up(most, PROBABILITY, classes)
    return torch.where(small > SMALLEST_EXPONENTIAL, least.nan_to_num(0.0), 0), most.nan_to_num(
        1.0
    ).clamp_max(1)


def _without_own(terms: Tensor) -> Tensor:
    """(batch, n) -> (batch, n): the sum of the other terms, without cancellation."""
    before = torch.nn.functional.pad(terms.cumsum(1)[:, :-1], (1, 0))
    after = torch.nn.functional.pad(terms.flip(1).cumsum(1)[:, :-1], (1, 0)).flip(1)
    return before + after


def insert_label(label: Tensor, values: Tensor, own: float = 0.0) -> Tensor:
    """(batch, classes - 1) over the other classes -> (batch, classes), with `own` for the label."""
    classes = torch.arange(values.shape[1] + 1, device=values.device)
    mine = label[:, None]
    spread = values.gather(1, (classes - (classes > mine).long()).clamp_max(values.shape[1] - 1))
    return torch.where(classes == mine, own, spread)


def drop_label(label: Tensor, values: Tensor) -> Tensor:
    """(batch, classes) -> (batch, classes - 1): drop the label's own entry."""
    classes = torch.arange(values.shape[1], device=values.device)
    return values[classes != label[:, None]].reshape(len(values), -1)
