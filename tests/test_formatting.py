"""What is shown of a bound still holds, and says no more than the last digit less than the bound itself."""

import ast
import math
import re
from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from holdfast.formatting import (
    DIGITS,
    MOST_DIGITS,
    exact_text,
    format_bounds,
    format_lower,
    format_nearest,
    format_range,
    format_upper,
    round_bounds,
)
from holdfast.result import Bound, Bracket, Evidence

SOURCE = Path(__file__).resolve().parents[1] / "src" / "holdfast"
FINITE = st.floats(allow_nan=False, allow_infinity=False)
NEAR = (
    st.tuples(FINITE, st.floats(0, 1e-3))
    .map(lambda pair: (pair[0], pair[0] + abs(pair[0]) * pair[1]))
    .filter(lambda p: p[1] < math.inf)
)
PAIRS = st.one_of(st.tuples(FINITE, FINITE).map(sorted), NEAR)
SHORT = st.tuples(st.integers(-9999, 9999), st.integers(-300, 300)).map(lambda p: float(f"{p[0]}e{p[1]}"))


def unit(shown: str) -> Decimal:
    """Of the last digit that is shown."""
    number = Decimal(shown)
    return Decimal(1).scaleb(int(number.as_tuple().exponent))


@settings(max_examples=500)
@given(FINITE)
@example(1.0000000001)
@example(0.19999999)
@example(-0.0)
@example(5e-324)
@example(2.2250738585072014e-308)
@example(1e308)
@example(1.7976931348623157e308)
@example(-1.7976931348623157e308)
@example(0.30000000000000004)
@example(9.9999999)
@example(99999.5)
def test_a_bound_is_rounded_outwards_by_less_than_its_last_digit(value: float) -> None:
    exact, low, high = Decimal(repr(value)), Decimal(format_lower(value)), Decimal(format_upper(value))
    assert low <= exact <= high
    assert float(low) <= value <= float(high)
    assert exact - low < unit(format_lower(value))
    assert high - exact < unit(format_upper(value))
    assert len(low.normalize().as_tuple().digits) <= MOST_DIGITS
    assert abs(Decimal(format_nearest(value)) - exact) <= unit(format_nearest(value)) / 2


@settings(max_examples=500)
@given(SHORT)
def test_a_decimal_of_few_digits_stays_as_it_is(value: float) -> None:
    assert (
        Decimal(format_lower(value))
        == Decimal(format_upper(value))
        == Decimal(format_nearest(value))
        == Decimal(repr(value))
    )
    assert format_bounds(value, value) == (format_nearest(value), format_nearest(value))


@settings(max_examples=500)
@given(PAIRS)
@example((0.19999999, 0.20000001))
@example((1.0, 1.0000000001))
@example((-1e308, 1e308))
@example((0.0, 5e-324))
def test_the_bounds_of_a_bracket_are_rounded_outwards_and_equal_only_where_they_are(
    pair: tuple[float, float],
) -> None:
    lower, upper = pair
    low, high = format_bounds(lower, upper)
    if lower == upper:
        assert low == high
        return
    assert low != high
    assert Decimal(high) >= Decimal(repr(upper))
    assert low == ">0" or Decimal(low) <= Decimal(repr(lower))
    if low != ">0":  # what is shown between them is not only the rounding, as far as MOST_DIGITS reach
        widest = max(abs(Decimal(repr(end))) for end in pair)
        gap = Decimal(repr(upper)) - Decimal(repr(lower))
        least = Decimal(10) * widest.scaleb(-MOST_DIGITS)
        assert Decimal(high) - Decimal(low) <= 3 * max(gap, least) + 2 * widest.scaleb(1 - DIGITS) * (
            gap > widest.scaleb(1 - DIGITS)
        )


@settings(max_examples=500)
@given(FINITE)
def test_equal_bounds_are_one_number(value: float) -> None:
    assert format_bounds(value, value) == (format_nearest(value), format_nearest(value))
    assert format_range(value, value) == format_nearest(value)


@settings(max_examples=500)
@given(PAIRS)
def test_a_positive_bound_that_is_too_small_to_show_is_above_zero(pair: tuple[float, float]) -> None:
    assert format_bounds(*pair) == round_bounds(*pair) or (
        0 < pair[0] < 1e-300 and format_bounds(*pair) == (">0", round_bounds(*pair)[1])
    )


def test_numbers_that_were_misleading() -> None:
    assert (
        format_upper(1.0000000001) == "1.0000000001"
    )  # not 1.001, which no radius on the domain [0, 1] can be
    assert format_bounds(0.5, 1.0000000001) == ("0.5", "1.0000000001")
    assert format_bounds(0.19999999, 0.20000001) == ("0.19999999", "0.20000001")  # not 0.1999 and 0.2001
    assert format_bounds(0.2, 0.2) == ("0.2", "0.2")
    assert (format_upper(1e308), format_lower(-1e308), format_upper(1.7976931348623157e308)) == (
        "1e+308",
        "-1e+308",
        "1.798e+308",
    )
    assert (format_lower(1.2347e-320), format_upper(5e-324)) == ("1.234e-320", "5e-324")


@pytest.mark.parametrize(
    ("value", "shown"), [(math.inf, "∞"), (-math.inf, "−∞"), (math.nan, "–"), (-0.0, "0"), (0.0, "0")]
)
def test_what_has_no_digits(value: float, shown: str) -> None:
    assert (format_lower(value), format_upper(value), format_nearest(value)) == (shown, shown, shown)


@settings(max_examples=500)
@given(FINITE, st.floats(allow_nan=False))
def test_a_bracket_as_text_holds(lower: float, other: float) -> None:
    low, high = sorted((lower, other))
    proof, witness = Evidence("proved", "Certify"), Evidence("witnessed", "PGD")
    told = str(Bracket(Bound(low, proof), Bound(high, witness)))
    shown = re.findall(r"-?(?:inf|\d[-+.e\d]*)", told)
    if low != high:
        assert float(shown[0]) <= low <= high <= float(shown[-1])


@settings(max_examples=500)
@given(FINITE, FINITE)
def test_different_numbers_have_different_exact_texts(one: float, other: float) -> None:
    assert float(exact_text(one)) == one
    assert one == other or exact_text(one) != exact_text(other)


def test_no_view_formats_a_bound_by_itself() -> None:
    """Bounds go through holdfast.formatting: '{bracket.lower.value:.4g}' rounds a proof up."""
    wrong = []
    for path in sorted(SOURCE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FormattedValue) and node.format_spec is not None:
                text = ast.unparse(node.value)
                if re.search(
                    r"\.(lower|upper)(\.value)?$|^(lower|upper|proved|shown)$|\.(ratio|gap|mean_lower|mean_upper)$",
                    text,
                ):
                    wrong.append(f"{path.name}:{node.lineno}: {text}")
    assert wrong == []
