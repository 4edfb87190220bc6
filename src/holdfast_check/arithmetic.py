"""What float64 may miss, and the exponential made of additions and multiplications alone.

Every number is a float64, rounded to nearest. A sum of n products in any order misses at most gamma(n) times the sum of their sizes
(Higham, Accuracy and Stability of Numerical Algorithms, 3.1), where nothing underflows. A product that does is wrong by less than 2^-1074.
No number that it is multiplied with afterwards is above LARGEST, so 1e20 of them together are wrong by less than TINY.
"""

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
UNIT = 2.0**-53
TINY = 1e-200
LARGEST = 1e100  # no number in a proof or a model is larger: nothing overflows before it is seen
CURVE_ERROR = 2.0**-46  # sigmoid and tanh, as computed here, are nearer than this to the truth
LOG2_HIGH = float.fromhex(
    "0x1.62E42FEFA0000p-1"
)  # the first 37 binary places of log 2: multiples of it up to 2^15 are exact
LOG2_LOW = float.fromhex("0x1.cf79abc9e3b3ap-40")  # the rest, to 53 places of its own


def gamma(terms: int) -> float:
    """A bound, four terms too large, of the relative error of a sum of so many products."""
    n = (terms + 4) * UNIT
    if n > 1e-3:
        raise OverflowError("more terms than float64 can add up and still say something")
    return n / (1 - n)


def down(value: Array) -> Array:
    return np.nextafter(value, -np.inf)


def up(value: Array) -> Array:
    return np.nextafter(value, np.inf)


def exponential(v: Array) -> Array:
    """exp(v) for |v| <= 700, its relative error below 2^-49.

    v = k log 2 + r with |r| < 0.35. k LOG2_HIGH is exact and so is its difference from v (they are close to each other); what is left
    of r is wrong by less than 2^-53 in all, which exp makes a relative error of that size. The series of exp(r) up to r^17 / 17! leaves
    out less than 2^-76; Horner's rule rounds terms that shrink by a third at every step, fewer than 4 units of the result.
    """
    k = np.rint(v * 1.4426950408889634)
    r = (v - k * LOG2_HIGH) - k * LOG2_LOW
    series = np.ones_like(r)
    for n in range(17, 0, -1):
        series = 1.0 + series * (r / n)
    result: Array = np.ldexp(series, k.astype(np.int64))
    return result


def sigmoid(v: Array) -> Array:
    """1 / (1 + exp(-v)), its error below 2^-46: exp misses 2^-49 of itself, and the quotient changes by no more than a quarter of the
    relative change of exp; two further roundings. Beyond 40, where v is cut off, it is nearer than 1e-17 to 0 or 1."""
    return 1.0 / (1.0 + exponential(-np.clip(v, -40.0, 40.0)))


def tanh(v: Array) -> Array:
    """2 sigmoid(2 v) - 1, its error below 2^-46."""
    return 2.0 * sigmoid(2.0 * np.clip(v, -30.0, 30.0)) - 1.0
