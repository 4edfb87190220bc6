"""Forecasts stay near what they are at the input."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from holdfast.errors import BadInput
from holdfast.property.base import LinearProperty
from holdfast.property.rule import Rule


@dataclass(frozen=True, eq=False)
class Band(LinearProperty):
    """lower < output < upper, for every output that counts: score = the smallest distance to an end, negative outside.

    The ends are numbers, written down once; whoever proves or attacks a band knows nothing of where they came from.
    """

    lower: Tensor  # (batch, those that count) float64
    upper: Tensor  # (batch, those that count) float64
    outputs: tuple[int, ...]  # those that count

    def score(self, outputs: Tensor) -> Tensor:
        values = outputs[
            ..., list(self.outputs)
        ].double()  # a narrow band is lost in float32, what is left of it is not
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
                f"band: the ends have shapes {tuple(self.lower.shape)} and {tuple(self.upper.shape)}, expected "
                f"{(batch, len(self.outputs))}: one for each input and each output that counts."
            )
        if not bool(self.lower.isfinite().all() and self.upper.isfinite().all()):
            raise BadInput("band: an end is NaN or infinite.")
        if not bool((self.lower < self.upper).all()):
            row = int((~(self.lower < self.upper)).any(1).nonzero()[0, 0])
            raise BadInput(
                f"band: of input {row} a lower end is not below its upper end, so no output could be inside."
            )


@dataclass(frozen=True)
class Within(Rule):
    """Every output stays within a band around the network's own forecast at the unmoved input.

    by       how wide: "10%" of the forecast's absolute value, or a number in the output's own units; several, one for each output that
             counts. The band reaches so far to both sides.
    outputs  those that count, by number; all where nothing is said.
    """

    by: str | float | Sequence[str | float]
    outputs: Sequence[int] | int | None = None

    def __post_init__(self) -> None:
        self._widths()  # a wrong one is told before the network is asked

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
                f"within: {len(widths)} widths for {len(counting)} outputs; give one for all, or one for each."
            )
        forecast = outputs.detach()[:, list(counting)].double()
        if not bool(forecast.isfinite().all()):
            row = int((~forecast.isfinite()).any(1).nonzero()[0, 0])
            raise BadInput(
                f"within: the network forecasts no number for input {row}, so there is nothing to stay near to."
            )
        share, width = (forecast.new_tensor(part) for part in zip(*widths, strict=True))
        nothing = (share > 0) & (forecast == 0)
        if bool(nothing.any()):
            row, place = nothing.nonzero()[0].tolist()
            raise BadInput(
                f"within {self.told}: the network forecasts 0 for input {row} (output {counting[place]}), and a share of 0 is no band. Say "
                f"how far it may go in the output's own units, as in within 0.5."
            )
        away = share * forecast.abs() + width
        return Band(forecast - away, forecast + away, counting)

    @property
    def told(self) -> str:
        """'10%', '0.5' or '0.5,2'."""
        return ",".join(map(str, [self.by] if isinstance(self.by, str | int | float) else self.by))

    def _widths(self) -> list[tuple[float, float]]:
        """For each output, or for all: the share of its forecast, and how much besides; one of them is zero."""
        found = []
        for part in self.told.split(","):
            text = part.strip()
            try:
                size = float(text.removesuffix("%"))
            except ValueError:
                size = 0.0
            if not 0 < size < torch.inf:
                raise BadInput(
                    f"within {self.told!r}: say how far outputs may go from the forecast: 10%, a number above 0, or one for each output."
                )
            found.append((size / 100, 0.0) if text.endswith("%") else (0.0, size))
        return found


def check_outputs(counting: Sequence[int], outputs: int) -> None:
    """Raise unless these are outputs that the network has, each once."""
    wrong = [k for k in counting if not 0 <= k < outputs]
    if wrong or not counting or len(set(counting)) < len(counting):
        what = f"output {wrong[0]} does not exist" if wrong else "name at least one output, and none twice"
        raise BadInput(
            f"outputs {', '.join(map(str, counting)) or 'without any'}: {what}; the network has outputs 0 to {outputs - 1}."
        )
