"""Rounding-error bounds of float64 (round to nearest), and exp, sigmoid and tanh from additions,
multiplications and divisions alone.

Statement: a sum of n products, added up in any order, satisfies

    |fl(sum) - sum| <= gamma(n) * (sum of absolute values of the products),
    gamma(n) = n u / (1 - n u),   u = 2^-53,

if nothing underflows (Higham, Accuracy and Stability of Numerical Algorithms, 2nd edition 2002, Lemma 3.1 and
section 3.1).

Underflow: a product that underflows is wrong by less than 2^-1074. Later factors do not exceed LARGEST =
1e100, so 1e20 such errors add up to less than 1e20 * 2^-1074 * 1e100 < 1e-203 < TINY.

Charges: every rounding error of the checker is charged by `charge` or `round_up`, from one of the `ErrorCount`s
below. docs/rounding.md lists them, and the docstring of the module that uses one derives it.

Assumption: IEEE 754 float64, rounded to nearest; NumPy's sums use no lower precision.

Reference: Higham 2002, as above.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

Array = np.ndarray[Any, Any]
UNIT = 2.0**-53  # The unit roundoff u of float64.
TINY = 1e-200  # Absolute error bound for all underflows together; the module's docstring derives it.
# The largest absolute value accepted in a proof or a model (chosen by hand), so that overflow is detected
# before a result is used.
LARGEST = 1e100
CURVE_ERROR = 2.0**-46  # The absolute error of `sigmoid` and `tanh` below; their docstrings derive it.
ERF_ERROR = 2.0**-45  # The absolute error of `erf` below; its docstring derives it.
# The relative error of `logarithm` and of the functions of `convex`, for values above 1; their docstrings derive it.
CONVEX_ERROR = 2.0**-45
# log 2 = LOG2_HIGH + LOG2_LOW. LOG2_HIGH holds the first 37 binary digits of log 2, so k * LOG2_HIGH is exact
# for integers |k| <= 2^15.
LOG2_HIGH = float.fromhex("0x1.62E42FEFA0000p-1")
LOG2_LOW = float.fromhex("0x1.cf79abc9e3b3ap-40")  # log 2 - LOG2_HIGH, rounded to 53 binary digits.
TWO_BY_ROOT_PI = float.fromhex("0x1.20dd750429b6dp+0")  # 2 / sqrt(pi), rounded.
ROOT_HALF = float.fromhex("0x1.6a09e667f3bcdp-1")  # sqrt(1 / 2), rounded.


def gamma(terms: int) -> float:
    """gamma(terms + 4): a bound of the relative error of a sum of `terms` products and of up to four further
    operations.
    """
    n = (terms + 4) * UNIT
    if n > 1e-3:
        raise OverflowError("more terms than float64 can add up and still say something")
    return n / (1 - n)


class ErrorCount(NamedTuple):
    """How many rounding errors a charge covers.

    Statement: in a computation whose longest sum has `terms` terms there are at most `errors` errors, each at
    most gamma*(terms + operations) S, with gamma*(n) = n u / (1 - n u) and S the sum of the absolute values of
    everything that is added up. The charge, factor gamma*(terms + spare + 4) size, is at least their sum, since
    for every terms <= most_terms

        factor gamma*(terms + spare + 4) (1 - lost) (1 - 3 u) >= errors gamma*(terms + operations)

    (tests/test_rounding.py checks this exactly). The computed size is at least (1 - lost) S, with lost = 2^-12
    for a sum of fewer than 2^41 nonnegative terms, and lost = gamma*(terms + 4) for a factor of one.
    """

    module: str  # Where the errors are counted.
    what: str  # What is summed or rounded.
    errors: int
    operations: int  # Roundings in addition to those of the sum of `terms` terms.
    factor: int
    spare: int = 0
    most_terms: int = 10**12


# ---- Charges. The factors were chosen by hand, larger than the errors counted.
TWO_BOUNDS = ErrorCount("planes", "a bound plus an offset", 1, 2, 1, 0, 0)
LAST_BOUND = ErrorCount("planes", "minimum, constant and charge", 1, 4, 1, 4, 0)
INTERCEPTS = ErrorCount("planes", "sizes of linear bounds", 1, 6, 1, 12, 0)
INTERVAL = ErrorCount("planes", "middle and half width through a map", 2, 3, 4, 32)
BACKWARD = ErrorCount("planes", "all sums of a backward pass", 1, 16, 2, 64)
KINKS = ErrorCount("functions", "a piecewise-linear function less a line", 1, 16, 1, 27, 10**8)
CURVE_LINES = ErrorCount("functions", "lines and products of a curve", 1, 10, 1, 12, 0)
CURVE_SIDES = ErrorCount("functions", "middles of cells", 1, 2, 1, 0, 0)
BOX = ErrorCount("region", "a row at a corner of a box", 1, 2, 1, 8, 10**8)
BALL = ErrorCount("region", "centre, terms of the dual, what is paid", 3, 16, 4, 64)
BALL_DUAL = ErrorCount("balls", "sums of the dual value", 6, 8, 16, 32)
EIGENVALUE_DEFICIT = ErrorCount("balls", "a Cholesky factor's product, and its difference", 2, 4, 4, 16)
EIGENVALUE_BOUND = ErrorCount("balls", "quadratic part, weights and multipliers", 6, 8, 16, 32)
ROW_DISTANCE = ErrorCount("trees", "distances divided by scales, and their sum", 1, 6, 2, 8)
TREE_TOTAL = ErrorCount("trees", "values of leaves, base and offset", 2, 6, 4, 8)
UNIT_GAINS = ErrorCount("budget", "row at the centre, of units, gains, and their sum", 4, 8, 8, 16)
MODEL_ROUNDS = ErrorCount("quadratic", "a round of fixing monotone variables", 14, 8, 32)
MODEL_RANGES = ErrorCount("quadratic", "linear, named and quadratic part", 3, 4, 8)
MODEL_CURVED = ErrorCount("quadratic", "a parabola or a product", 1, 30, 1, 64, 0)
MODEL_REST = ErrorCount("quadratic", "the rest of a parabola or a product", 1, 16, 1, 32, 0)
MODEL_SIZE = ErrorCount("quadratic", "sum of the coefficients' absolute values", 1, 2, 1, 16, 2**28)
MODEL_MAP = ErrorCount("quadratic", "coefficients through a map", 2, 4, 4)
MODEL_MAP_SUM = ErrorCount("quadratic", "rest and size through a map", 1, 2, 1, 0, 10**8)
MODEL_ENTRY = ErrorCount("quadratic", "radius of a box", 1, 2, 1, 0, 0)


def charge_rate(derivation: ErrorCount, terms: int = 0) -> float:
    """The relative error that is charged: factor gamma*(terms + spare + 4)."""
    if terms > derivation.most_terms:
        raise OverflowError(f"{terms} terms are more than the derivation of this charge allows")
    return derivation.factor * gamma(terms + derivation.spare)


def charge(size: Array, derivation: ErrorCount, terms: int = 0) -> Array:
    """An upper bound of the rounding error of a computation, as `derivation` shows, underflow included.

    `size` is the sum of the absolute values of everything that is added up, `terms` the number of terms of the
    longest sum.
    """
    missed: Array = charge_rate(derivation, terms) * size + TINY
    return missed


def round_up(value: Array, derivation: ErrorCount, terms: int = 0) -> Array:
    """At least the exact value of a computed sum of nonnegative terms."""
    raised: Array = value * (1 + charge_rate(derivation, terms))
    return raised


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


def erf(v: Array) -> Array:
    """The error function, with an absolute error below 2^-45.

    erf(v) = 2 / sqrt(pi) v exp(-v^2) S with S = sum over k of t_k, t_k = (2 v^2)^k / (1 3 5 ... (2 k + 1)); all
    terms are positive. For |v| > 6 the argument is clipped, which costs less than 1e-16.

    With N = 24 + 3.2 v^2 terms the rest is below 2^-60 S: beyond k = v^2 the terms shrink by 2 v^2 / (2 k + 1). A
    term t_k is rounded 4 k times in Horner's rule, and sum k t_k <= v^2 S, since (2 k + 1) t_k = 2 v^2 t_(k-1). So
    S is wrong by less than 4 36 u, relatively; exp(-v^2) by 36 u (its argument) + 16 u; the factors by 4 u. Less
    than 200 u in all.
    """
    v = np.clip(v, -6.0, 6.0)
    square = v * v
    series = np.ones_like(v)
    for k in range(24 + int(3.2 * float(square.max(initial=0.0))), 0, -1):
        series = 1.0 + series * (2.0 * square) / (2 * k + 1)
    result: Array = TWO_BY_ROOT_PI * v * exponential(-square) * series
    return result


def normal_distribution(v: Array) -> Array:
    """(1 + erf(v / sqrt 2)) / 2, with an absolute error below 2^-45: half that of `erf`, and |erf'(x) x| < 1/2 times
    two roundings of the argument.
    """
    return 0.5 + 0.5 * erf(v * ROOT_HALF)


def logarithm(v: Array) -> Array:
    """log(v) for 1e-200 <= v <= 1e200, within 2^-46 (1 + |log v|); NaN where that was not established.

    numpy proposes y, which is not trusted. log v = y + log(1 + r) with r = v exp(-y) - 1; |log(1 + r) - r| <= r^2
    for |r| <= 1/2, and r is computed within 2^-48.
    """
    with np.errstate(all="ignore"):
        y = np.log(v)
    r = v * exponential(-np.clip(np.nan_to_num(y), -690.0, 690.0)) - 1.0
    result: Array = np.where((np.abs(r) <= 2.0**-30) & (v >= 1e-200) & (v <= 1e200), y + r, np.nan)
    return result
