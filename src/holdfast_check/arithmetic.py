"""Rounding-error bounds of float64 (round to nearest), and exp, sigmoid and tanh from additions,
multiplications and divisions alone.

Statement: a sum of n products, added up in any order, satisfies

    |fl(sum) - sum| <= gamma(n) * (sum of absolute values of the products),
    gamma(n) = n u / (1 - n u),   u = 2^-53,

if nothing underflows (Higham, Accuracy and Stability of Numerical Algorithms, 2nd edition 2002, Lemma 3.1 and
section 3.1).

Underflow: a product that underflows is wrong by less than 2^-1074. Later factors do not exceed LARGEST =
1e100, so 1e20 such errors add up to less than 1e20 * 2^-1074 * 1e100 < 1e-203 < TINY.

Charges: every rounding error of the checker is charged by `charge` or `round_up`, from one of the `Derivation`s
below. docs/rounding.md lists them, and the docstring of the module that uses one derives it.
"""

from typing import Any, NamedTuple

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


class Derivation(NamedTuple):
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
TWO_BOUNDS = Derivation("planes", "a bound plus an offset", 1, 2, 1, 0, 0)
LAST_BOUND = Derivation("planes", "minimum, constant and charge", 1, 4, 1, 4, 0)
INTERCEPTS = Derivation("planes", "sizes of linear bounds", 1, 6, 1, 12, 0)
INTERVAL = Derivation("planes", "middle and half width through a map", 2, 3, 4, 32)
BACKWARD = Derivation("planes", "all sums of a backward pass", 1, 16, 2, 64)
KINKS = Derivation("functions", "a piecewise-linear function less a line", 1, 16, 1, 27, 10**8)
CURVE_LINES = Derivation("functions", "lines and products of a curve", 1, 10, 1, 12, 0)
CURVE_SIDES = Derivation("functions", "middles of cells", 1, 2, 1, 0, 0)
BOX = Derivation("region", "a row at a corner of a box", 1, 2, 1, 8, 10**8)
BALL = Derivation("region", "centre, terms of the dual, what is paid", 3, 16, 4, 64)
BALL_DUAL = Derivation("balls", "sums of the dual value", 6, 8, 16, 32)
EIGENVALUE_DEFICIT = Derivation("balls", "a Cholesky factor's product, and its difference", 2, 4, 4, 16)
EIGENVALUE_BOUND = Derivation("balls", "quadratic part, weights and multipliers", 6, 8, 16, 32)
MODEL_ROUNDS = Derivation("quadratic", "a round of fixing monotone variables", 14, 8, 32)
MODEL_RANGES = Derivation("quadratic", "linear, named and quadratic part", 3, 4, 8)
MODEL_CURVED = Derivation("quadratic", "a parabola or a product", 1, 30, 1, 64, 0)
MODEL_REST = Derivation("quadratic", "the rest of a parabola or a product", 1, 16, 1, 32, 0)
MODEL_SIZE = Derivation("quadratic", "sum of the coefficients' absolute values", 1, 2, 1, 16, 2**28)
MODEL_MAP = Derivation("quadratic", "coefficients through a map", 2, 4, 4)
MODEL_MAP_SUM = Derivation("quadratic", "rest and size through a map", 1, 2, 1, 0, 10**8)
MODEL_ENTRY = Derivation("quadratic", "radius of a box", 1, 2, 1, 0, 0)


def charge_rate(derivation: Derivation, terms: int = 0) -> float:
    """The relative error that is charged: factor gamma*(terms + spare + 4)."""
    if terms > derivation.most_terms:
        raise OverflowError(f"{terms} terms are more than the derivation of this charge allows")
    return derivation.factor * gamma(terms + derivation.spare)


def charge(size: Array, derivation: Derivation, terms: int = 0) -> Array:
    """An upper bound of the rounding error of a computation, as `derivation` shows, underflow included.

    `size` is the sum of the absolute values of everything that is added up, `terms` the number of terms of the
    longest sum.
    """
    missed: Array = charge_rate(derivation, terms) * size + TINY
    return missed


def round_up(value: Array, derivation: Derivation, terms: int = 0) -> Array:
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
