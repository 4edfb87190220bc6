"""Options as people write them, and what they mean."""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, cast, get_args

from holdfast.errors import BadInput

if TYPE_CHECKING:
    from holdfast.api.methods import Mode, Tier
    from holdfast.certify import Arithmetic
    from holdfast.region.units import Unit


@dataclass(frozen=True)
class ModelOptions:
    """How to read the model. Paths are as given; everything else is a number, a word or a list of them."""

    model: str
    trust: bool = False
    domain: str | None = None
    mean: str | None = None
    std: str | None = None
    shape: str | None = None
    time_first: bool = False
    pool: str | None = None
    vocabulary: str | None = None
    device: str = "cpu"
    black_box: bool = False
    unbatched: bool = False
    constants: tuple[str, ...] = ()


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
        value = math.inf if text.lower() in ("inf", "linf", "infinity") else float(text.lower().removeprefix("l"))
    except ValueError:
        raise BadInput(f"norm {text!r}: use 0, 1, 2, inf or any p >= 1.") from None
    if value != 0 and not value >= 1:
        raise BadInput(f"norm {text!r}: a norm needs p >= 1, or 0 to count changed pixels, frames or features.")
    return value


def targets_option(text: str | None, count: int) -> Literal["runner-up"] | list[int] | None:
    """One class for all of `count` inputs, or one for each."""
    if text == "runner-up":
        return "runner-up"
    try:
        found = whole_numbers(text, "targets")
    except BadInput:
        raise BadInput(f"targets {text!r}: use runner-up, a class for all inputs, or one for each as in 3,3,7.") from None
    return found * count if found is not None and len(found) == 1 else found


def values_option(text: str | None) -> list[float] | None:
    """'0,0.5,1' or '0:255', all whole numbers from one to the other -> the values that a changed number may take."""
    if text is not None and text.count(":") == 1:
        try:
            low, high = (int(part) for part in text.split(":"))
        except ValueError:
            raise BadInput(f"values {text!r}: use whole numbers as in 0:255, or a list as in 0,0.5,1.") from None
        return [float(value) for value in range(low, high + 1)]
    return numbers(text, "values")


def one_of(text: str, what: str, known: tuple[str, ...]) -> str:
    if text not in known:
        raise BadInput(f"{what} {text!r} is unknown; there are {', '.join(known)}.")
    return text


def unit_option(text: str | None) -> "Unit | None":
    from holdfast.region.units import Unit

    return None if text is None else cast("Unit", one_of(text, "unit", get_args(Unit)))


def mode_option(text: str) -> "Mode":
    from holdfast.api.methods import Mode

    return cast("Mode", one_of(text, "mode", get_args(Mode)))


def tier_option(text: str) -> "Tier":
    from holdfast.api.methods import Tier  # here: torch takes its time

    return cast("Tier", one_of(text, "tier", get_args(Tier)))


def arithmetic_option(text: str) -> "Arithmetic":
    from holdfast.certify import Arithmetic

    return cast("Arithmetic", one_of(text, "arithmetic", get_args(Arithmetic)))
