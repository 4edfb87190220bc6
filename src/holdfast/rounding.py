"""How much a computed sum may differ from the true one, so that a proof survives floating point.

For n products accumulated in any order in arithmetic with unit roundoff u, |fl(sum) - sum| <= gamma(n) * sum |terms| with
gamma(n) = n u / (1 - n u) (Higham, Accuracy and Stability of Numerical Algorithms, section 3.1). Underflow adds at most
one smallest normal number per operation, which `TINY` covers with room to spare.
"""

import math

import torch
from torch import Tensor

TINY = 1e-290  # above any accumulation of float64 underflows met here, below any number that matters
UNDERFLOW = 1e-30  # above any accumulation of float32 underflows, flushed to zero or not


def gamma(terms: int, dtype: torch.dtype = torch.float64) -> float:
    """The relative error of a sum of `terms` products; a few terms are added for the operations around the sum."""
    unit = torch.finfo(dtype).eps / 2
    n = (terms + 4) * unit
    assert n < 0.5, "too many terms for this arithmetic"
    return n / (1 - n)


def length(vectors: Tensor, axis: int = -1) -> Tensor:
    """The Euclidean lengths of vectors along an axis, from above. What underflows when it is squared is shorter than 1e-150 in all."""
    norm: Tensor = torch.linalg.vector_norm(vectors, dim=axis)
    return norm * (1 + 4 * gamma(vectors.shape[axis])) + 1e-150


def spectral_norm(matrix: Tensor, squarings: int = 6) -> float:
    """The largest factor by which a matrix makes a vector longer, from above: too large by a few percent at most.

    Of a symmetric matrix B the norm is the root of the norm of B B, and no norm is above Frobenius'. So M'M is squared again and again; on
    the way back through the roots, what every product may have missed is added: gamma(n) times the square of Frobenius' norm.
    """
    count, size = max(matrix.shape), float(length(matrix.flatten()))
    if not size < math.inf:
        return math.inf
    scale = 2.0 ** min(1023, math.ceil(math.log2(size)))  # the largest power there is
    power, missed = matrix / scale, []  # exact but for underflow, which TINY pays for
    for k in range(squarings + 1):
        missed.append(4 * gamma(count) * float(length(power.flatten())) ** 2 + TINY)
        power = power.mT @ power if k or matrix.shape[0] >= matrix.shape[1] else power @ power.mT
        power = power / 2 + power.mT / 2
    bound = float(length(power.flatten()))
    for lost in reversed(missed):
        bound = (bound + lost) ** 0.5 * (1 + 8 * gamma(1))
    return bound * scale
