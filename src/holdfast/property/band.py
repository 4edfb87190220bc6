"""Output bands for regression: margin(y) = min over k of min(y_k - lower_k, upper_k - y_k)."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from holdfast.errors import BadInput
from holdfast.property.base import LinearProperty
from holdfast.property.rule import Rule

# A forecast is near zero if it is smaller than this share of the median over all inputs (chosen by hand).
NEAR_ZERO = 0.05


@dataclass(frozen=True, eq=False)
class Band(LinearProperty):
    """lower < output < upper for the selected outputs: score = smallest distance to a bound.

    The bounds are fixed numbers; proofs and attacks do not know how they were chosen.
    """

    lower: Tensor  # (batch, selected outputs) float64
    upper: Tensor  # (batch, selected outputs) float64
    outputs: tuple[int, ...]  # numbers of the selected outputs

    def score(self, outputs: Tensor) -> Tensor:
        # In float32 a narrow band could round to nothing; its margin can still be represented.
        values = outputs[..., list(self.outputs)].double()
        return torch.minimum(values - self.lower, self.upper - values).amin(-1).to(outputs)

    def rows(self, outputs: int) -> tuple[Tensor, Tensor]:
        each = torch.eye(outputs, dtype=torch.float64, device=self.lower.device)[list(self.outputs)]
        matrix = torch.cat([each, -each]).expand(len(self.lower), -1, -1)
        return matrix, torch.cat([-self.lower.double(), self.upper.double()], dim=1)

    def says(self, outputs: Tensor, classes: Sequence[str] | None = None) -> str:
        return f"the network forecasts {', '.join(f'{v:.6g}' for v in outputs[list(self.outputs)].tolist())}"

    def check(self, batch: int, outputs: int) -> None:
        check_outputs(self.outputs, outputs)
        if self.lower.shape != (batch, len(self.outputs)) or self.upper.shape != self.lower.shape:
            raise BadInput(
                f"band: the bounds have shapes {tuple(self.lower.shape)} and {tuple(self.upper.shape)}, "
                "expected "
                f"{(batch, len(self.outputs))}: one for each input and each selected output."
            )
        if not bool(self.lower.isfinite().all() and self.upper.isfinite().all()):
            raise BadInput("band: a bound is NaN or infinite.")
        if not bool((self.lower < self.upper).all()):
            row = int((~(self.lower < self.upper)).any(1).nonzero()[0, 0])
            raise BadInput(
                f"band: of input {row} a lower bound is not below its upper bound, so no output could be "
                "inside."
            )


@dataclass(frozen=True)
class Within(Rule):
    """Every selected output stays in a band around the network's own forecast at the unperturbed input.

    Attributes:
        by: half-width of the band: "10%" of the forecast's absolute value, or a number in the output's units;
            or a list, one for each selected output.
        outputs: numbers of the selected outputs (default: all).
    """

    by: str | float | Sequence[str | float]
    outputs: Sequence[int] | int | None = None

    def __post_init__(self) -> None:
        self._widths()  # reject wrong values before the network is evaluated

    def around(self, outputs: Tensor, y: Any = None) -> Band:
        given = (
            range(outputs.shape[-1])
            if self.outputs is None
            else [self.outputs]
            if isinstance(self.outputs, int)
            else self.outputs
        )
        counting, widths = tuple(int(k) for k in given), self._widths()
        check_outputs(counting, outputs.shape[-1])
        if len(widths) not in (1, len(counting)):
            raise BadInput(
                f"within: {len(widths)} widths for {len(counting)} outputs; give one for all, or one for "
                "each."
            )
        forecast = outputs.detach()[:, list(counting)].double()
        if not bool(forecast.isfinite().all()):
            row = int((~forecast.isfinite()).any(1).nonzero()[0, 0])
            raise BadInput(
                f"within: the network's forecast for input {row} is NaN or infinite, so it has no band."
            )
        share, width = (forecast.new_tensor(part) for part in zip(*widths, strict=True))
        nothing = (share > 0) & (forecast == 0)
        if bool(nothing.any()):
            row, place = nothing.nonzero()[0].tolist()
            raise BadInput(
                f"within {self.label}: the network forecasts 0 for input {row} (output {counting[place]}), "
                "and a "
                f"percentage of 0 is an empty band. Give a width in the output's own units, as in within 0.5."
            )
        self._warn_near_zero(forecast, share, counting)
        away = share * forecast.abs() + width
        return Band(forecast - away, forecast + away, counting)

    def _warn_near_zero(self, forecast: Tensor, share: Tensor, counting: Sequence[int]) -> None:
        """Warn where a percentage is of a forecast that is close to zero, compared with those of other inputs."""
        usual = forecast.abs().median(0).values
        small = (share > 0) & (forecast.abs() < NEAR_ZERO * usual)
        if bool(small.any()):
            row, place = small.nonzero()[0].tolist()
            warnings.warn(
                f"within {self.label}: the forecast of input {row} (output {counting[place]}) is "
                f"{float(forecast[row, place]):.3g}, near zero compared with the others' {float(usual[place]):.3g}, so its "
                f"band is narrow, and its radius small ({int(small.sum())} such in all). A width in the output's own "
                "units, as in within 0.5, has no such effect.",
                stacklevel=2,
            )

    @property
    def label(self) -> str:
        """The widths as text: '10%', '0.5' or '0.5,2'."""
        return ",".join(map(str, [self.by] if isinstance(self.by, str | int | float) else self.by))

    def _widths(self) -> list[tuple[float, float]]:
        """Parse the widths: for each output, or for all, (relative, absolute), one of which is zero."""
        found = []
        for part in self.label.split(","):
            text = part.strip()
            try:
                size = float(text.removesuffix("%"))
            except ValueError:
                size = 0.0
            if not 0 < size < torch.inf:
                raise BadInput(
                    f"within {self.label!r}: expected a width around the forecast: 10%, a number above 0, or "
                    "one for each "
                    "output."
                )
            found.append((size / 100, 0.0) if text.endswith("%") else (0.0, size))
        return found


def check_outputs(counting: Sequence[int], outputs: int) -> None:
    """Raise BadInput unless these are distinct outputs of the network."""
    wrong = [k for k in counting if not 0 <= k < outputs]
    if wrong or not counting or len(set(counting)) < len(counting):
        what = f"output {wrong[0]} does not exist" if wrong else "name at least one output, and none twice"
        raise BadInput(
            f"outputs {', '.join(map(str, counting)) or '(none)'}: {what}; the network has outputs 0 to "
            f"{outputs - 1}."
        )
