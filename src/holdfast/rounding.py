"""How much a computed sum may differ from the true one, so that a proof survives floating point.

For n products accumulated in any order in arithmetic with unit roundoff u, |fl(sum) - sum| <= gamma(n) * sum |terms| with
gamma(n) = n u / (1 - n u) (Higham, Accuracy and Stability of Numerical Algorithms, section 3.1). Underflow adds at most
one smallest normal number per operation, which `TINY` covers with room to spare.
"""

import torch

TINY = 1e-290  # above any accumulation of float64 underflows met here, below any number that matters
UNDERFLOW = 1e-30  # above any accumulation of float32 underflows, flushed to zero or not


def gamma(terms: int, dtype: torch.dtype = torch.float64) -> float:
    """The relative error of a sum of `terms` products; a few terms are added for the operations around the sum."""
    unit = torch.finfo(dtype).eps / 2
    n = (terms + 4) * unit
    assert n < 0.5, "too many terms for this arithmetic"
    return n / (1 - n)
