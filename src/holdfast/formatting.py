"""Numbers and names as people read them, the same in every view: terminal, page, card, messages.

Let v be a number, d a count of significant digits and u the unit of the last of them.

    at_least(v)  a decimal s with v - u < s <= v, for a lower bound
    at_most(v)   a decimal s with v <= s < v + u, for an upper bound
    about(v)     the decimal nearest to v, for a number that bounds nothing
    exact_text(v)  the shortest decimal that reads back as v, for questions, files and messages

A number that has at most d digits is shown as it is. Equal bounds are one number, shown once and to the
nearest.

More than d digits are shown, up to MOST_DIGITS, in two cases, because the rounding alone would otherwise be
what the reader sees: where v is a hair beyond a shorter decimal (1.0000000001 is not "1.001"), and where two
bounds lie closer together than u (0.19999999 and 0.20000001 are not "0.1999" and "0.2001").
"""

import difflib
import math
from collections.abc import Sequence
from decimal import ROUND_CEILING, ROUND_FLOOR, ROUND_HALF_EVEN, Context, Decimal

from holdfast.foreign_text import UNSAFE

DIGITS = 4  # Significant digits of a number in a view; chosen by hand.
MOST_DIGITS = 12  # Significant digits at most, where fewer would show the rounding; chosen by hand.
# Units of the last digit: a number that is closer than this to a shorter decimal is shown with more digits.
# Chosen by hand.
HAIR = Decimal("0.1")
LEAST_SHOWN = 1e-300  # A smaller positive bound is shown as ">0": it only states the sign. Chosen by hand.
SIMILARITY = 0.5  # Of difflib, from which a name is proposed for a misspelled one; chosen by hand.
LONG = 120  # Characters of a name, a class or a word; chosen by hand.


def format_lower(value: float, digits: int = DIGITS) -> str:
    """A lower bound as text, rounded down, so that the shown bound holds."""
    return _outward(value, ROUND_FLOOR, digits)


def format_upper(value: float, digits: int = DIGITS) -> str:
    """An upper bound as text, rounded up."""
    return _outward(value, ROUND_CEILING, digits)


def format_nearest(value: float, digits: int = DIGITS) -> str:
    """A number that is no bound as text, rounded to nearest."""
    return _special(value) or _decimal_text(
        _round_decimal(Decimal(repr(float(value))), ROUND_HALF_EVEN, digits), digits
    )


def exact_text(value: float) -> str:
    """The shortest decimal that reads back as this number, so that different numbers have different texts."""
    short_text = f"{value:g}"
    return short_text if float(short_text) == value else repr(float(value))


def format_bounds(lower: float, upper: float, digits: int = DIGITS) -> tuple[str, str]:
    """Like `round_bounds`; a lower bound that only states a positive sign is shown as ">0"."""
    low, high = round_bounds(lower, upper, digits)
    return ">0" if lower != upper and 0 < lower < LEAST_SHOWN else low, high


def round_bounds(lower: float, upper: float, digits: int = DIGITS) -> tuple[str, str]:
    """Both bounds of a bracket as text: rounded outwards; equal bounds are shown as the same number."""
    if lower == upper:
        return (format_nearest(lower, digits),) * 2
    first, second = (_digits_for(value, lower, upper, digits) for value in (lower, upper))
    return format_lower(lower, first), format_upper(upper, second)


def format_range(lower: float, upper: float, digits: int = DIGITS) -> str:
    low, high = format_bounds(lower, upper, digits)
    return low if lower == upper else f"{low} to {high}"


def format_percent(share: float) -> str:
    """A share in per cent with four digits; only 1 is shown as 100 %, and only 0 as 0 %."""
    return "–" if math.isnan(share) else f"{percent_digits(share)} %"


def percent_digits(share: float) -> str:
    if math.isnan(share):
        return "–"
    return "<0.01" if 0 < share < 1e-4 else ">99.99" if 1 - 1e-4 < share < 1 else f"{100 * share:.4g}"


def shorten(text: object, most: int = LONG) -> str:
    """Text capped at `most` characters, without terminal control characters."""
    words = UNSAFE.sub("\N{REPLACEMENT CHARACTER}", str(text))
    return words if len(words) <= most else f"{words[:most]}…"


def capitalise(words: str) -> str:
    """The text with its first letter in upper case."""
    return words[:1].upper() + words[1:]


def norm_name(norm: object) -> str:
    return (
        "L∞"
        if str(norm) in ("inf", "Infinity")
        else f"L{norm:g}"
        if isinstance(norm, int | float)
        else f"L{norm}"
    )


def _outward(value: float, rounding: str, digits: int) -> str:
    """Round in one direction, with more digits where the number lies barely beyond a shorter decimal."""
    special = _special(value)
    if special:
        return special
    exact = Decimal(repr(float(value)))
    found, nearest = (_round_decimal(exact, direction, digits) for direction in (rounding, ROUND_HALF_EVEN))
    unit = Decimal(1).scaleb(exact.adjusted() - digits + 1)
    distance = _difference(exact, nearest)
    if found == nearest or distance >= HAIR * unit:
        return _decimal_text(found, digits)
    while digits < MOST_DIGITS and _difference(exact, found) > distance:
        digits += 1
        found = _round_decimal(exact, rounding, digits)
    return _decimal_text(found, digits)


def _digits_for(value: float, lower: float, upper: float, digits: int) -> int:
    """The number of digits for which a unit of the last one is at most the distance of the bounds."""
    if value == 0 or not (math.isfinite(lower) and math.isfinite(upper)):
        return digits
    gap = _difference(Decimal(repr(float(upper))), Decimal(repr(float(lower))))
    needed = Decimal(repr(float(value))).adjusted() - gap.adjusted() + 1
    return max(digits, min(needed, MOST_DIGITS))


def _difference(one: Decimal, other: Decimal) -> Decimal:
    """|one - other|, exact to 50 digits."""
    return abs(Context(prec=50).subtract(one, other))


def _round_decimal(number: Decimal, rounding: str, digits: int) -> Decimal:
    return Context(prec=digits, rounding=rounding).plus(number)


def _special(value: float) -> str:
    """The text of NaN, infinity or zero; empty for other numbers."""
    if math.isnan(value):
        return "–"
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    return "0" if value == 0 else ""


def _decimal_text(number: Decimal, digits: int) -> str:
    """The number as '%g' formats it, without the conversion to float, which could round the wrong way or
    overflow.
    """
    number = number.normalize()
    exponent = number.adjusted()
    if -5 < exponent < digits:
        return f"{number:f}"
    return f"{number.scaleb(-exponent):f}e{exponent:+03d}"


def suggest(value: object, names: Sequence[object]) -> str:
    """Return ' Did you mean ...?' where one of the names is close to the value, else nothing."""
    near = difflib.get_close_matches(str(value).lower(), [str(one) for one in names], 1, SIMILARITY)
    return f" Did you mean {near[0]!r}?" if near else ""
