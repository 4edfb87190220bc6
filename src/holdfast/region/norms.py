"""lp norms over the last axis: dual norms, projections onto balls, steepest directions.

The dual of p is the q with 1/p + 1/q = 1, and min over ||d||_p <= r of a . d = -r ||a||_q (Hoelder's
inequality, attained).
"""

import math

import torch
from torch import Tensor

from holdfast.derivations import (
    NORM,
)
from holdfast.random_streams import RandomStreams
from holdfast.rounding import round_up


def norm(v: Tensor, p: float) -> Tensor:
    """Return the p-norm over the last axis, (..., n) -> (...,)."""
    if p == 2 or p == 1 or math.isinf(p):
        length: Tensor = torch.linalg.vector_norm(v, ord=p, dim=-1)
        return length
    # Scaling by the largest element avoids overflow for every p.
    largest = v.abs().amax(-1, keepdim=True).clamp_min(torch.finfo(v.dtype).tiny)
    scaled: Tensor = torch.linalg.vector_norm(v / largest, ord=p, dim=-1)
    return largest.squeeze(-1) * scaled


def norm_above(v: Tensor, p: float) -> Tensor:
    """Upper-bound the p-norm, (..., n) -> (...,) float64: at least the true norm of the float64 numbers v."""
    v = v.double()
    largest = v.abs().amax(-1, keepdim=True)
    # Scaling avoids underflow and overflow of squares.
    scale = torch.where((largest > 0) & largest.isfinite(), largest, 1)
    return round_up(scale.squeeze(-1) * norm(v / scale, p), NORM, v.shape[-1])


def dual(p: float) -> float:
    """Return the dual exponent q with 1/p + 1/q = 1."""
    if p == 1:
        return math.inf
    return 1.0 if math.isinf(p) else p / (p - 1)


def project(v: Tensor, radius: Tensor, p: float) -> Tensor:
    """Map v (..., n) into balls of radius (...,); for p in {1, 2, inf} the Euclidean projection.

    For other p the point is scaled down, which is in the ball but not the nearest point.
    """
    r = radius.unsqueeze(-1).to(v)
    if math.isinf(p):
        return torch.minimum(torch.maximum(v, -r), r)
    if p == 1:
        return _project_l1(v, r)
    length = norm(v, p).unsqueeze(-1)
    return torch.where(length > r, v * (r / length.clamp_min(torch.finfo(v.dtype).tiny)), v)


def _project_l1(v: Tensor, r: Tensor) -> Tensor:
    """Soft thresholding at the level that leaves length r, found by sorting (Duchi et al. 2008)."""
    magnitude = v.abs()
    ordered = magnitude.sort(dim=-1, descending=True).values
    excess = ordered.cumsum(-1) - r
    rank = torch.arange(1, v.shape[-1] + 1, device=v.device, dtype=v.dtype)
    support = (ordered * rank > excess).sum(-1, keepdim=True).clamp_min(1)
    level = excess.gather(-1, support - 1) / support
    shrunk = v.sign() * (magnitude - level).clamp_min(0)
    # If entries are large compared with r, rounding of the level may exceed r; scaling restores the length.
    shrunk = shrunk * (r / norm(shrunk, 1).unsqueeze(-1).clamp_min(torch.finfo(v.dtype).tiny)).clamp_max(1)
    return torch.where(magnitude.sum(-1, keepdim=True) > r, shrunk, v)


def direction(count: int, p: float, chance: RandomStreams, like: Tensor) -> Tensor:
    """Draw (count, *like.shape) points of p-norm 1 over the last axis.

    p = inf: corners of the cube; p = 1: from dense to nearly one-hot vectors; otherwise normalised Gaussians.
    """
    if math.isinf(p):
        return torch.where(chance.uniform(count, like.shape[1:], like) < 0.5, 1.0, -1.0).to(like)
    gauss = chance.normal(count, like.shape[1:], like)
    if p == 1:
        # The exponent ranges from dense vectors to vectors with nearly all their length in one entry.
        power = chance.integers(count, like.shape[1:-1], 1, 16).to(like)[..., None]
        gauss = gauss.sign() * (gauss / gauss.abs().amax(-1, keepdim=True)).abs() ** power
    return gauss / norm(gauss, p).unsqueeze(-1)


def steepest(gradient: Tensor, p: float) -> Tensor:
    """(..., n) -> (..., n): the direction of p-norm at most 1 of steepest descent."""
    if math.isinf(p):
        return -gradient.sign()
    if p == 1:
        first = gradient.abs().argmax(-1, keepdim=True)
        return torch.zeros_like(gradient).scatter(-1, first, -gradient.gather(-1, first).sign())
    if p == 2:
        return -gradient / norm(gradient, 2).unsqueeze(-1).clamp_min(torch.finfo(gradient.dtype).tiny)
    q = dual(p)
    scaled = gradient / gradient.abs().amax(-1, keepdim=True).clamp_min(torch.finfo(gradient.dtype).tiny)
    raised = scaled.sign() * scaled.abs() ** (q - 1)
    return -raised / norm(raised, p).unsqueeze(-1).clamp_min(torch.finfo(gradient.dtype).tiny)
