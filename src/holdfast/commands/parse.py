"""Parse the values of options."""

import math
import re
from typing import TYPE_CHECKING, Any, Literal, get_args

from holdfast.errors import BadInput
from holdfast.formatting import suggest

if TYPE_CHECKING:
    from holdfast.property import Rule
    from holdfast.reading.data import Data
    from holdfast.region.units import Unit

Order = Literal["input", "fragility"]  # Orders of the table of results.


def numbers(text: str | None, what: str) -> list[float] | None:
    """'0.5' or '0.49,0.48,0.45' -> the numbers."""
    if text is None:
        return None
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise BadInput(f"{what} {text!r}: expected a number, or several with commas between.") from None


def whole_numbers(text: str | None, what: str) -> list[int] | None:
    """'3' or '1,28,28' -> the numbers."""
    if text is None:
        return None
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise BadInput(f"{what} {text!r}: expected a whole number, or several with commas between.") from None


def sizes(text: str | None) -> list[int] | None:
    """'1,28,28' -> the shape of an input."""
    found = whole_numbers(text, "shape")
    if found is not None and min(found) < 1:
        raise BadInput(f"shape {text!r}: every size must be at least 1, as in 1,28,28.")
    return found


def pair(text: str | None) -> tuple[float, float] | None:
    """'0,1' -> the domain."""
    found = numbers(text, "domain")
    if found is not None and len(found) != 2:
        raise BadInput(f"domain {text!r}: expected its lowest and highest value, as in 0,1.")
    return None if found is None else (found[0], found[1])


def frames_option(text: str | None) -> Literal["all", "each"] | list[int] | None:
    if text == "all":
        return "all"
    if text == "each":
        return "each"
    try:
        return whole_numbers(text, "frames")
    except BadInput:
        raise BadInput(f"frames {text!r}: use all, each, or frame numbers as in 0,3.") from None


def norm_option(text: str) -> float:
    try:
        value = (
            math.inf if text.lower() in ("inf", "linf", "infinity") else float(text.lower().removeprefix("l"))
        )
    except ValueError:
        raise BadInput(f"norm {text!r}: use 0, 1, 2, inf or any p >= 1.") from None
    if value != 0 and not value >= 1:
        raise BadInput(
            f"norm {text!r}: a norm needs p >= 1, or 0 to count changed pixels, frames or features."
        )
    return value


def targets_option(text: str | None, data: "Data") -> Literal["runner-up"] | list[int] | None:
    """--targets: one class for all inputs, or one for each, by number or name."""
    if text is None or text == "runner-up":
        return None if text is None else "runner-up"
    names = {name: str(k) for k, name in enumerate(data.classes or ())}
    try:
        found = whole_numbers(",".join(names.get(part.strip(), part) for part in text.split(",")), "targets")
    except BadInput:
        raise BadInput(
            f"targets {text!r}: use runner-up, a class for all inputs, or one for each as in 3,3,7."
        ) from None
    assert found is not None
    if len(found) == 1:
        return found * len(data.x)
    return data.chosen(found) if data.places is not None and len(found) > len(data.x) else found


def values_option(text: str | None) -> list[float] | None:
    """'0,0.5,1', or '0:255' for whole numbers -> the values that a changed number may take."""
    if text is not None and text.count(":") == 1:
        try:
            low, high = (int(part) for part in text.split(":"))
        except ValueError:
            raise BadInput(
                f"values {text!r}: use whole numbers as in 0:255, or a list as in 0,0.5,1."
            ) from None
        return [float(value) for value in range(low, high + 1)]
    return numbers(text, "values")


def rule_option(
    within: str | None, threshold: float | None, outputs: str | None, quantiles: str | None
) -> "Rule | None":
    """The property in place of the class: --within or --threshold, else None."""
    from holdfast.property import Threshold, Within  # Here because it imports torch.
    from holdfast.property.band import read_outputs

    if within is not None and threshold is not None:
        raise BadInput(
            "--within is for forecasts, --threshold for outputs that are yes or no; give one of them."
        )
    counting, levels = read_outputs(outputs), numbers(quantiles, "quantiles")
    if within is not None:
        return Within(within, counting, levels)
    if counting is not None:
        raise BadInput("--outputs names the outputs that must stay near the forecast: it needs --within.")
    if levels is not None:
        raise BadInput("--quantiles describes a forecast: it needs --within.")
    return None if threshold is None else Threshold(threshold)


def bytes_option(text: str | None) -> int | None:
    """'2G' or '500M' -> bytes."""
    if text is None:
        return None
    found = re.fullmatch(r"([0-9.]+) *([KMGT]?)(i?B)?", text.strip(), re.IGNORECASE)
    try:
        value = float(found[1]) * 1024 ** " KMGT".index(found[2].upper() or " ") if found else 0.0
    except ValueError:
        value = 0.0
    if not value >= 1:
        raise BadInput(f"memory {text!r}: give a size, as in 2G or 500M.")
    return int(value)


def one_of(text: str, what: str, words: Any) -> Any:
    """The text if it is one of the words of a Literal; else BadInput, before the model is read."""
    if text not in get_args(words):
        raise BadInput(
            f"{what} {text!r} is unknown; there are {', '.join(get_args(words))}.{suggest(text, get_args(words))}"
        )
    return text


def check_order(sort: str, at: float | None) -> None:
    """Raise BadInput unless --sort and --at can be shown."""
    one_of(sort, "sort", Order)
    if at is not None and not 0 <= at < math.inf:
        raise BadInput(f"at {at}: the radius must be a number, not below 0.")


def unit_option(text: str | None) -> "Unit | None":
    from holdfast.region.units import Unit  # Here because it imports torch.

    return None if text is None else one_of(text, "unit", Unit)
