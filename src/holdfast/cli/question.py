"""What a command was asked, as plain data: it is stored with the run, so that `resume` asks the very same thing."""

import math
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

from holdfast.errors import BadInput

if TYPE_CHECKING:
    from holdfast.api import Tier


@dataclass(frozen=True)
class ModelQuestion:
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


@dataclass(frozen=True)
class RadiusQuestion:
    """A whole `holdfast radius` command."""

    network: ModelQuestion
    data: str
    scale: float = 1.0
    limit: int | None = None
    norm: float = math.inf
    frames: str | None = None
    targets: str | None = None
    substitutes: str | None = None
    tier: "Tier" = "fast"
    methods: str | None = None
    seconds: float | None = None
    queries: int | None = None
    gap: float = 0.0
    seed: int = 0
    batch: int = 128

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "norm": str(self.norm)}

    @staticmethod
    def from_json(stored: dict[str, Any]) -> "RadiusQuestion":
        network = ModelQuestion(**{**stored["network"], "constants": tuple(stored["network"]["constants"])})
        return RadiusQuestion(**{**stored, "network": network, "norm": float(stored["norm"])})


def numbers(text: str | None, what: str) -> list[float] | None:
    """'0.5' or '0.49,0.48,0.45' -> the numbers."""
    if text is None:
        return None
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise BadInput(f"{what} {text!r}: expected a number, or several with commas between.") from None


def whole_numbers(text: str | None, what: str) -> list[int] | None:
    found = numbers(text, what)
    if found is not None and any(value != int(value) for value in found):
        raise BadInput(f"{what} {text!r}: expected whole numbers.")
    return None if found is None else [int(value) for value in found]


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
    return whole_numbers(text, "frames (all, each, or numbers)")


def norm_option(text: str) -> float:
    try:
        value = math.inf if text.lower() in ("inf", "linf", "infinity") else float(text.lower().removeprefix("l"))
    except ValueError:
        raise BadInput(f"norm {text!r}: use 0, 1, 2, inf or any p >= 1.") from None
    if value != 0 and not value >= 1:
        raise BadInput(f"norm {text!r}: a norm needs p >= 1, or 0 to count changed pixels, frames or features.")
    return value


def tier_option(text: str) -> "Tier":
    tiers: dict[str, Tier] = {"fast": "fast", "search": "search"}
    if text not in tiers:
        raise BadInput(f"tier {text!r} is unknown; there are {', '.join(tiers)}.")
    return tiers[text]
