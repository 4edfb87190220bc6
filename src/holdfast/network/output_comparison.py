"""Comparison of model outputs up to rounding."""

import torch
from torch import Tensor

# Largest relative difference that is still attributed to rounding inside a network (chosen by hand). The
# first holds for float32 and float64 outputs, the second for outputs of lower precision (float16, bfloat16).
TOLERANCE = 1e-3
TOLERANCE_LOW_PRECISION = 5e-2
# Default of `alike`: allowed difference in units of machine epsilon times the largest output (chosen by
# hand).
ROUNDING_UNITS = 64


def alike(a: Tensor, b: Tensor, units: float = ROUNDING_UNITS) -> bool:
    """Whether two outputs differ by at most `units` machine epsilons of the largest finite entry of b.

    NaN equals NaN.
    """
    if a.shape != b.shape:
        return False
    p, q = a.double(), b.double()
    size = torch.where(q.isfinite(), q, 0).abs().amax() if a.numel() else 0.0
    return bool(((p - q).abs() <= units * torch.finfo(a.dtype).eps * size).logical_or(_equal(p, q)).all())


def same_by_rounding(own: Tensor, other: Tensor, size: Tensor | float = 0.0) -> bool:
    """Whether two outputs of one model differ by no more than rounding inside a network explains.

    An output near zero may be the difference of inner values as large as the largest output, so it may differ by their
    rounding.

    Args:
        own: outputs in the model's own arithmetic.
        other: outputs for the same inputs in float64, or computed with another batch size.
        size: magnitude of the outputs for other inputs; the tolerance is relative to at least this, for
            outputs near zero.
    """
    coarse = TOLERANCE if own.dtype in (torch.float32, torch.float64) else TOLERANCE_LOW_PRECISION
    a, b = own.double(), other.double()
    if a.shape != b.shape:
        return False
    largest = torch.where(b.isfinite(), b, 0).abs().amax() if b.numel() else 0.0
    eps = torch.finfo(own.dtype).eps if own.is_floating_point() else 0.0
    inner = min(ROUNDING_UNITS * eps, coarse / 10) * largest
    near = (a - b).abs() <= coarse * torch.clamp(b.abs(), min=size) + coarse / 10 + inner
    return bool(near.logical_or(_equal(a, b)).all())


def _equal(a: Tensor, b: Tensor) -> Tensor:
    """Elementwise equality in which NaN equals NaN."""
    return (a == b) | (a.isnan() & b.isnan())
