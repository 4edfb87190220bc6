"""Counts of inputs as statements about a population: against exact binomial sums, and said only where they hold."""

from fractions import Fraction
from math import comb

import pytest

from holdfast.errors import BadInput
from holdfast.report.answer_sentence import NAMED
from holdfast.report.gate import Rules
from holdfast.report.population import certified_share_bound, certified_share_interval, population_sentence


def tail(certified: int, count: int, share: float) -> Fraction:
    """P(at least so many of `count` independent draws are certified), exact."""
    p = Fraction(share)
    return sum(
        (comb(count, k) * p**k * (1 - p) ** (count - k) for k in range(certified, count + 1)), Fraction(0)
    )


@pytest.mark.parametrize(("certified", "count"), [(1, 1), (43, 50), (50, 50), (1, 50), (7, 13), (199, 200)])
@pytest.mark.parametrize("confidence", [0.9, 0.95, 0.99])
def test_the_bound_is_where_the_binomial_tail_reaches_the_risk(
    certified: int, count: int, confidence: float
) -> None:
    """At the bound the tail is 1 - confidence; a hair above, seeing so many would be more likely than that."""
    bound = certified_share_bound(certified, count, confidence)
    assert 0 < bound < certified / count
    assert float(tail(certified, count, bound)) == pytest.approx(1 - confidence, rel=1e-6)
    assert tail(certified, count, bound * (1 + 1e-6)) > Fraction(1) - Fraction(confidence)
    low, high = certified_share_interval(certified, count, confidence)
    assert low < bound < high
    if certified < count:
        below = 1 - tail(certified + 1, count, high)
        assert float(below) == pytest.approx((1 - confidence) / 2, rel=1e-6)


def test_nothing_certified_bounds_nothing() -> None:
    assert certified_share_bound(0, 10, 0.95) == 0.0
    assert certified_share_interval(0, 10, 0.95)[0] == 0.0
    assert certified_share_interval(10, 10, 0.95)[1] == 1.0
    for wrong in ((11, 10, 0.95), (1, 0, 0.95), (1, 2, 1.0)):
        with pytest.raises(ValueError, match="confidence"):
            certified_share_bound(*wrong)


def test_the_population_is_named_only_where_the_radius_was_not_chosen_from_the_run() -> None:
    told = population_sentence(43, 50, NAMED, "radius --norm 2")
    assert told.startswith(
        "43 of 50 certified: between 73.2 % and 94.2 % of the population with confidence 95 %"
    )
    assert "drawn independently" in told
    assert population_sentence(43, 50, "the median certified radius, rounded down", "radius") == ""
    assert population_sentence(43, 50, NAMED, "verify") == ""
    assert population_sentence(1, 1, NAMED, "radius") == ""


@pytest.mark.parametrize("confidence", [0.0, 1.0, 1.5, -1.0])
def test_a_confidence_that_is_none_is_refused(confidence: float) -> None:
    with pytest.raises(BadInput, match="--confidence"):
        Rules(at=0.1, min_certified=0.5, confidence=confidence)
    with pytest.raises(BadInput, match="give --min-certified"):
        Rules(at=0.1, max_broken=0.5, confidence=0.9)
