"""Rounding-error bounds of float64 (round to nearest), and exp, sigmoid and tanh from additions,
multiplications and divisions alone.

Statement: a sum of n products, added up in any order, satisfies

    |fl(sum) - sum| <= gamma(n) * (sum of absolute values of the products),
    gamma(n) = n u / (1 - n u),   u = 2^-53,

if nothing underflows (Higham, Accuracy and Stability of Numerical Algorithms, 2nd edition 2002, Lemma 3.1 and
section 3.1).

Underflow: a product that underflows is wrong by less than 2^-1074. Later factors do not exceed LARGEST =
1e100, so 1e20 such errors add up to less than 1e20 * 2^-1074 * 1e100 < 1e-203 < TINY.
"""

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
UNIT = 2.0**-53  # The unit roundoff u of float64.
TINY = 1e-200  # Absolute error bound for all underflows together; the module's docstring derives it.
# The largest absolute value accepted in a proof or a model (chosen by hand), so that overflow is detected
# before a result is used.
LARGEST = 1e100
CURVE_ERROR = 2.0**-46  # The absolute error of `sigmoid` and `tanh` below; their docstrings derive it.
# log 2 = LOG2_HIGH + LOG2_LOW. LOG2_HIGH holds the first 37 binary digits of log 2, so k * LOG2_HIGH is exact
# for integers |k| <= 2^15.
LOG2_HIGH = float.fromhex("0x1.62E42FEFA0000p-1")
LOG2_LOW = float.fromhex("0x1.cf79abc9e3b3ap-40")  # log 2 - LOG2_HIGH, rounded to 53 binary digits.


def gamma(terms: int) -> float:
    """gamma(terms + 4): a bound of the relative error of a sum of `terms` products and of up to four further
    operations.
    """
    n = (terms + 4) * UNIT
    if n > 1e-3:
        raise OverflowError("more terms than float64 can add up and still say something")
    return n / (1 - n)


def down(value: Array) -> Array:
    """The next float64 below each value."""
    return np.nextafter(value, -np.inf)


def up(value: Array) -> Array:
    """The next float64 above each value."""
    return np.nextafter(value, np.inf)


def exponential(v: Array) -> Array:
    """exp(v) for |v| <= 700, with a relative error below 2^-49.

    Argument reduction: v = k log 2 + r with |r| < 0.35. The product k LOG2_HIGH is exact, and so is its
    difference from v (Sterbenz: the two are close to each other). The remaining operations change r by less
    than 2^-53 in all, hence exp(r) by that relative error.

    Series: the Taylor series of exp(r) up to r^17 / 17! leaves out less than 2^-76. Horner's rule rounds
    terms that shrink by at least a factor of three per step, which costs fewer than 4 units roundoff of the
    result.
    """
    k = np.rint(v * 1.4426950408889634)
    r = (v - k * LOG2_HIGH) - k * LOG2_LOW
    series = np.ones_like(r)
    for n in range(17, 0, -1):
        series = 1.0 + series * (r / n)
    result: Array = np.ldexp(series, k.astype(np.int64))
    return result


def sigmoid(v: Array) -> Array:
    """1 / (1 + exp(-v)), with an absolute error below 2^-46.

    The relative error of exp is 2^-49, the quotient changes by at most a quarter of it, and two operations
    round. For |v| > 40 the argument is clipped, which costs less than 1e-17 (sigmoid is then that close to 0
    or 1).
    """
    return 1.0 / (1.0 + exponential(-np.clip(v, -40.0, 40.0)))


def tanh(v: Array) -> Array:
    """2 sigmoid(2 v) - 1, with an absolute error below 2^-46."""
    return 2.0 * sigmoid(2.0 * np.clip(v, -30.0, 30.0)) - 1.0
