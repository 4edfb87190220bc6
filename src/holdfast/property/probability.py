"""Probabilities p = softmax(outputs) and their differences, bounded by bounds of differences of outputs; roundings are charged.

exp and expm1 are taken to be right to a few units, as everywhere here. All sums are of terms of one sign, so a relative error of
gamma(classes + 1024) covers each quotient, with the rounding of exponents down to -800, where exp is zero.
"""

import torch
from torch import Tensor

from holdfast.rounding import TINY, gamma

LARGEST = (
    1e280  # beyond it a sum need not be known: (1 + LARGEST) exp(d) neither overflows nor loses its place
)
SMALLEST = 1e-280  # far above what underflows


def share(outputs: Tensor, softmax: bool) -> Tensor:
    """What a property speaks of: the probabilities, or the outputs themselves."""
    return outputs.softmax(-1) if softmax else outputs


def are_probabilities(outputs: Tensor) -> Tensor:
    """(..., classes) -> (...): whether they are probabilities as they stand."""
    return (outputs >= 0).all(-1) & ((outputs.sum(-1) - 1).abs() < 1e-3)


def least_leads(lower: Tensor, upper: Tensor) -> Tensor:
    """(batch, others) twice, bounds of d_k = z_c - z_k -> (batch, others): p_c - p_k is at least this.

    With t_k = exp(-d_k), p_c - p_j = (1 - t_j) / (1 + t_j + T) where T is the sum of the other t_k. Its derivative in t_j has the sign of
    -(1 + t_j + T) - (1 - t_j) = -(2 + T) < 0: it always rises with d_j, so d_j belongs at its lower bound. In T it falls
    where t_j < 1 and rises where t_j > 1. So the minimum over the box has all d at their lower bounds where the lower bound of d_j is
    positive, and the other d_k at their upper bounds where it is negative; both are attained, so no bound from these intervals is better.
    """
    found = _leads(lower, upper, LARGEST)
    return found - gamma(lower.shape[1] + 1024) * found.abs() - TINY


def most_leads(lower: Tensor, upper: Tensor) -> Tensor:
    """The same from above: all ends exchanged."""
    found = _leads(upper, lower, torch.inf)
    return found + gamma(lower.shape[1] + 1024) * found.abs() + TINY


def _leads(main: Tensor, other: Tensor, cap: float) -> Tensor:
    """p_c - p_j with all d at `main` where d_j is positive there; else with d_j there and the rest at `other`.

    Where d_j is negative: (exp(d_j) - 1) / ((1 + T) exp(d_j) + 1). A T that is cut off at a cap lowers the lead, which is allowed from
    below only; from above an infinite T leaves it at zero, and so does an infinite T times an exp(d_j) that underflows.
    """
    ahead = -torch.expm1(-main.clamp_min(0)) / (1 + torch.exp(-main).sum(1, keepdim=True))
    rest, below = _without_own(torch.exp(-other)).clamp_max(cap), main.clamp_max(0)
    behind = (torch.expm1(below) / ((1 + rest) * torch.exp(below) + 1)).nan_to_num(0.0)
    return torch.where(main >= 0, ahead, torch.where(main.isnan() | rest.isnan(), torch.nan, behind))


def probabilities(lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
    """(batch, classes) twice, bounds of numbers v -> bounds of softmax(v), each (batch, classes).

    p_k = 1 / (1 + (sum of the other exp(v_i)) / exp(v_k)) rises with v_k and falls with every other v_i. Only differences of v count, so
    all are taken relative to a base above every lower bound. Exponentials that are nearly as small as what underflows are left
    out or made larger, whichever is safe. What is NaN says nothing: 0 and 1.
    """
    base = (lower / 2 + upper / 2).amax(1, keepdim=True)
    small, large = torch.exp(lower - base), torch.exp(upper - base)
    error = gamma(lower.shape[1] + 1024)
    least = (1 - error) / (1 + _without_own(large) / small)
    most = (1 + error) / (1 + _without_own(small) / large.clamp_min(SMALLEST))
    return torch.where(small > SMALLEST, least.nan_to_num(0.0), 0), most.nan_to_num(1.0).clamp_max(1)


def _without_own(terms: Tensor) -> Tensor:
    """(batch, n) -> (batch, n): the sum of all the other terms; added up from both sides, since nothing may cancel."""
    before = torch.nn.functional.pad(terms.cumsum(1)[:, :-1], (1, 0))
    after = torch.nn.functional.pad(terms.flip(1).cumsum(1)[:, :-1], (1, 0)).flip(1)
    return before + after


def among(label: Tensor, values: Tensor, own: float = 0.0) -> Tensor:
    """(batch, classes - 1) over the others -> (batch, classes), with `own` at the label's place."""
    classes = torch.arange(values.shape[1] + 1, device=values.device)
    mine = label[:, None]
    spread = values.gather(1, (classes - (classes > mine).long()).clamp_max(values.shape[1] - 1))
    return torch.where(classes == mine, own, spread)


def others(label: Tensor, values: Tensor) -> Tensor:
    """(batch, classes) -> (batch, classes - 1): without the label's own."""
    classes = torch.arange(values.shape[1], device=values.device)
    return values[classes != label[:, None]].reshape(len(values), -1)
