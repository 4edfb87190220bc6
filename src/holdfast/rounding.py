"""Rounding-error bounds, so that a certificate computed in floating point holds in real arithmetic.

Statement: a sum of n products, accumulated in any order in arithmetic with unit roundoff u, satisfies

    |fl(sum) - sum| <= gamma(n) * (sum of absolute values of the products),   gamma(n) = n u / (1 - n u),

if nothing underflows (Higham, Accuracy and Stability of Numerical Algorithms, 2nd edition 2002, Lemma 3.1 and
section 3.1).

Every charge of the engine is computed by `charge`, `round_up` or `round_down` from a `Derivation`: how many
errors of which size it covers, and the section of docs/rounding.md that shows it. `holdfast.derivations` lists
them all. No other module computes with gamma.

Underflow: a float64 product that underflows is wrong by at most 2^-1022 = 2.3e-308 (flushed to zero or not).
A backward pass multiplies such a coefficient by a value of the network. Values above LARGEST = 1e90 count as
unbounded, so 1e17 such products together cost less than 1e17 * 2.3e-308 * 1e90 < TINY = 1e-200.
"""

import math

import torch
from torch import Tensor

from holdfast.derivations import (
    BOX_CENTRE,
    BOX_RADIUS,
    LENGTH,
    ROOT,
    SQUARED_MATRIX,
    SUM_OF_TWO,
    Derivation,
)

# Absolute error bound for all float64 underflows of one bound; the module's docstring derives it.
TINY = 1e-200
# Absolute error bound for all float32 underflows (1.2e-38 each, flushed to zero or not) of one sum of fewer
# than 8e7 terms.
UNDERFLOW = 1e-30
# The largest absolute value of a node with finite bounds (chosen by hand). Larger values would amplify the
# underflow of a coefficient beyond TINY, so they count as unbounded.
LARGEST = 1e90


def gamma(terms: int, dtype: torch.dtype = torch.float64) -> float:
    """gamma(terms + 4): a bound of the relative error of a sum of `terms` products and of up to four further
    operations.
    """
    unit = torch.finfo(dtype).eps / 2
    n = (terms + 4) * unit
    assert n < 0.5, "too many terms for this arithmetic"
    return n / (1 - n)


def charge_rate(derivation: Derivation, terms: int = 0, dtype: torch.dtype = torch.float64) -> float:
    """The relative error that is charged: factor gamma*(terms + spare + 4)."""
    return derivation.factor * gamma(terms + derivation.spare, dtype)


def charge(
    size: Tensor, derivation: Derivation, terms: int = 0, dtype: torch.dtype = torch.float64
) -> Tensor:
    """An upper bound of the rounding error of a computation, as `derivation` shows.

    Args:
        size: the sum of the absolute values of everything that is added up.
        terms: the number of terms of the longest sum.
        dtype: the arithmetic of the computation whose error is bounded.
    """
    missed = charge_rate(derivation, terms, dtype) * size
    return missed + TINY if derivation.underflow else missed


def round_up(value: Tensor, derivation: Derivation, terms: int = 0) -> Tensor:
    """At least the exact value of a computed sum of nonnegative terms."""
    return value * (1 + charge_rate(derivation, terms))


def round_down(value: Tensor, derivation: Derivation, terms: int = 0) -> Tensor:
    """At most the exact value of a computed sum of nonnegative terms."""
    return value * (1 - charge_rate(derivation, terms))


def add_rounding_down(bound: Tensor, offset: Tensor) -> Tensor:
    """At most bound + offset."""
    total = bound + offset
    return total - charge(bound.abs() + offset.abs(), SUM_OF_TWO)


def centre_and_radius(lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
    """centre, radius: every x with lower <= x <= upper is within the radius of the centre."""
    largest = torch.maximum(lower.abs(), upper.abs())
    radius = round_up(upper / 2 - lower / 2, BOX_RADIUS) + charge(largest, BOX_CENTRE)
    return lower / 2 + upper / 2, radius


def length(vectors: Tensor, axis: int = -1) -> Tensor:
    """Upper bounds of the Euclidean lengths of vectors along an axis. Components that underflow when squared
    are together shorter than 1e-150.
    """
    norm: Tensor = torch.linalg.vector_norm(vectors, dim=axis)
    return round_up(norm, LENGTH, vectors.shape[axis]) + 1e-150


def spectral_norm(matrix: Tensor, squarings: int = 6) -> float:
    """An upper bound of the spectral norm of a matrix M, usually too large by a few percent at most.

    For a symmetric matrix B, |B|_2 = sqrt(|B B|_2), and |B|_2 <= |B|_F. So the bound squares A_0 = M'M
    repeatedly, A_{k+1} = A_k A_k, bounds the last matrix by its Frobenius norm, and takes roots on the way
    back. Before each root it adds the rounding error of the product, gamma(n) |A_k|_F^2, which bounds the
    spectral norm of the error.
    """
    count, size = max(matrix.shape), float(length(matrix.flatten()))
    if not size < math.inf:
        return math.inf
    scale = 2.0 ** min(1023, math.ceil(math.log2(size)))  # The largest power of two is 2^1023.
    power, missed = matrix / scale, []  # Exact but for underflow, which TINY covers.
    for k in range(squarings + 1):
        missed.append(charge_rate(SQUARED_MATRIX, count) * float(length(power.flatten())) ** 2 + TINY)
        power = power.mT @ power if k or matrix.shape[0] >= matrix.shape[1] else power @ power.mT
        power = power / 2 + power.mT / 2
    bound = float(length(power.flatten()))
    for lost in reversed(missed):
        bound = (bound + lost) ** 0.5 * (1 + charge_rate(ROOT))
    return bound * scale
