"""All mutations: sets of tokens, typos, noise on frames, a user's function."""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from holdfast.errors import BadInput
from holdfast.monitor import stored_settings
from holdfast.monitor.mutation.choices import ChoiceTable, ElementChoices, Mutation
from holdfast.monitor.mutation.groups import Groups
from holdfast.monitor.mutation.typos import Typos, misspellings

__all__ = [
    "ChoiceTable",
    "ElementChoices",
    "Groups",
    "Mutation",
    "Noise",
    "Own",
    "Typos",
    "misspellings",
    "restore",
]

SMALLEST_DRAW = 1e-300  # Smallest uniform draw: keeps its logarithm finite.


@dataclass(frozen=True)
class Noise(Mutation):
    """A frame becomes a uniform point of the lp ball around it, clipped to `low` and `high`."""

    radius: float
    norm: float = 2.0
    low: float | None = None
    high: float | None = None
    finite: ClassVar[bool] = False
    kind: ClassVar[str] = "noise"

    def __post_init__(self) -> None:
        if not (self.radius >= 0 and math.isfinite(self.radius)) or self.norm not in (1, 2, math.inf):
            raise BadInput(
                f"noise of radius {self.radius} in norm {self.norm}: the radius must be finite and >= 0, the "
                "norm 1, 2 or inf."
            )

    def choices(self, element: Any) -> ElementChoices:
        raise BadInput(
            "noise has infinitely many values; it can be sampled (mode='sampled'), not enumerated."
        )

    def sample(self, element: Any, count: int, generator: torch.Generator) -> Tensor:
        """Draw uniformly from the lp ball (Barthe et al. 2005).

        With |g_i|^p ~ Gamma(1/p) and e ~ Exp(1), g / (sum |g_i|^p + e)^(1/p) is uniform in the ball. |g_i|^p
        is exponential for p = 1, and half the square of a normal variable for p = 2.
        """
        centre = torch.as_tensor(element)
        if not centre.is_floating_point():
            raise BadInput(
                "noise needs frames of numbers, got integers; for token ids give sets (Groups) or Typos."
            )
        shape = (count, *centre.shape)
        if math.isinf(self.norm):
            step = 2 * torch.rand(shape, generator=generator, dtype=torch.float64) - 1
        else:
            normal = torch.randn(shape, generator=generator, dtype=torch.float64)
            power = (
                normal.square() / 2
                if self.norm == 2
                else -torch.rand(shape, generator=generator, dtype=torch.float64)
                .clamp_min(SMALLEST_DRAW)
                .log()
            )
            extra = (
                -torch.rand(count, generator=generator, dtype=torch.float64).clamp_min(SMALLEST_DRAW).log()
            )
            size = power.reshape(count, -1).sum(1) + extra
            step = normal.sign() * (power / size.reshape(-1, *(1 for _ in centre.shape))) ** (1 / self.norm)
        moved = centre + (self.radius * step).to(centre.dtype)
        return moved.clamp(self.low, self.high) if self.low is not None or self.high is not None else moved

    def settings(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "radius": self.radius,
            "p": self.norm if math.isfinite(self.norm) else "inf",
            "low": self.low,
            "high": self.high,
        }


@dataclass(frozen=True)
class Own(Mutation):
    """A user's function: element -> [(value, probability), ...], the element itself included."""

    function: Callable[[Any], Iterable[tuple[Any, float]]]
    kind: ClassVar[str] = "own"

    def choices(self, element: Any) -> ElementChoices:
        # The function may modify its argument.
        pairs = list(self.function(element.clone() if isinstance(element, Tensor) else element))
        return ElementChoices.of(
            element, [value for value, _ in pairs], [probability for _, probability in pairs]
        )

    def settings(self) -> dict[str, Any]:
        raise BadInput(
            "a mutation from your own function cannot be saved: write its sets with Groups.of_sets, or fit "
            "again."
        )


def restore(settings: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Mutation:
    """Build a mutation from its settings and tensors.

    TypeError, ValueError or KeyError if they are invalid.
    """
    given = {key: value for key, value in settings.items() if key != "kind"}
    match settings.get("kind"):
        case "groups":
            return Groups(
                stored_settings.checked_table(
                    ChoiceTable(tensors["start"], tensors["values"], tensors["probability"])
                )
            )
        case "typos":
            kinds = {
                "vocabulary": (list,),
                "unknown": (int, type(None)),
                "kinds": (list,),
                "characters": (bool,),
            }
            return Typos(**stored_settings.check_types(given, kinds))
        case "noise":
            end = (*stored_settings.NUMBER, type(None))
            checked = stored_settings.check_types(
                {**given, "p": float(given["p"])},
                {"radius": stored_settings.NUMBER, "p": (float,), "low": end, "high": end},
            )
            return Noise(checked["radius"], checked["p"], checked["low"], checked["high"])
    raise BadInput(f"there is no mutation {settings.get('kind')!r}; was this written by a newer version?")
