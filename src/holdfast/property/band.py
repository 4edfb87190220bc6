"""Output bands for regression: margin(y) = min over k of min(y_k - lower_k, upper_k - y_k)."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
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


OutputsOption = Sequence[int | float] | int | float | str | None


@dataclass(frozen=True)
class Within(Rule):
    """Every selected output stays in a band around the network's own forecast at the unperturbed input.

    Attributes:
        by: half-width of the band: "10%" of the forecast's absolute value, or a number in the output's units;
            or a list, one for each selected output.
        outputs: numbers of the selected outputs (default: all). With `quantiles` also "median", or levels such
            as 0.9.
        quantiles: the levels of a network that forecasts quantiles along the last axis of its answer, such as
            [0.1, 0.5, 0.9]; the forecasts of other things lie along the axes before it.
    """

    by: str | float | Sequence[str | float]
    outputs: OutputsOption = None
    quantiles: Sequence[float] | None = None
    spread: Tensor | None = field(default=None, repr=False, compare=False)  # as in `with_spread`

    def __post_init__(self) -> None:
        for name in ("outputs", "quantiles"):
            if hasattr(given := getattr(self, name), "tolist"):  # an array or a tensor
                object.__setattr__(self, name, given.tolist())
        self.widths()  # reject wrong values before the network is evaluated
        _check_quantiles(self.quantiles)
        self._levels()

    def with_spread(self, spread: Tensor | None) -> "Within":
        return replace(self, spread=spread)

    def around(self, outputs: Tensor, y: Any = None) -> Band:
        counting, widths = self.selected(outputs.shape[-1]), self.widths()
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
        self._warn_near_zero(forecast, share, counting, outputs.shape[-1])
        away = share * forecast.abs() + width
        return Band(forecast - away, forecast + away, counting)

    def selected(self, count: int) -> tuple[int, ...]:
        """The numbers of the selected outputs, of `count`; BadInput if one does not exist."""
        if self.quantiles is not None and count % len(self.quantiles):
            raise BadInput(
                f"quantiles: {len(self.quantiles)} levels, and the network has {count} outputs, which is no multiple: "
                "each forecast needs one output for each level, along the last axis."
            )
        found = self.places_up_to(count - 1)
        check_outputs(found, count)
        return found

    def places_up_to(self, last: int) -> tuple[int, ...]:
        """The numbers of the selected outputs, as far as they follow from a network with this last output, or more."""
        levels = self._levels()
        if levels is not None:
            assert self.quantiles is not None
            places = [list(self.quantiles).index(level) for level in levels]
            return tuple(k + place for k in range(0, last + 1, len(self.quantiles)) for place in places)
        if self.outputs is None:
            return tuple(range(last + 1))
        assert not isinstance(self.outputs, str)
        return tuple(int(k) for k in (self.outputs if isinstance(self.outputs, Sequence) else [self.outputs]))

    def _levels(self) -> list[float] | None:
        """The selected levels of quantiles; None if outputs are selected by number, or all are."""
        given = [0.5] if isinstance(self.outputs, str) and self.outputs == "median" else self.outputs
        if given is None:
            return None
        each: list[Any] = (
            [given] if not isinstance(given, Sequence) or isinstance(given, str) else list(given)
        )
        if not isinstance(given, int | float | Sequence) or not all(
            type(one) in (int, float) for one in each
        ):
            raise BadInput(
                f"outputs {self.outputs!r}: give numbers of outputs, 'median', or levels of quantiles such as 0.9."
            )
        if not any(isinstance(one, float) for one in each):
            return None
        levels = [float(level) for level in each]
        if self.quantiles is None:
            raise BadInput(
                f"outputs {self.outputs}: the median, or another quantile, is known only with the levels that the network "
                "forecasts: quantiles=[0.1, 0.5, 0.9] (--quantiles 0.1,0.5,0.9). Else give numbers of outputs."
            )
        strange = next((level for level in levels if level not in self.quantiles), None)
        if strange is not None or len(set(levels)) < len(levels):
            what = "a level stands there twice" if strange is None else f"{strange:g} is not among them"
            raise BadInput(
                f"outputs {self.outputs}: the quantiles are {_listed(self.quantiles)}, and {what}."
            )
        return levels

    def _warn_near_zero(self, forecast: Tensor, share: Tensor, counting: Sequence[int], outputs: int) -> None:
        """Warn where a percentage is of a forecast close to zero, compared with other inputs' or with the targets'
        spread."""
        usual, compared = forecast.abs().median(0).values, "the others'"
        if self.spread is not None and outputs % self.spread.numel() == 0:
            spread = (
                self.spread.reshape(-1).to(forecast).repeat(outputs // self.spread.numel())[list(counting)]
            )
            if bool((spread > usual).any()):
                usual, compared = torch.maximum(usual, spread), "the usual"
        small = (share > 0) & (forecast.abs() < NEAR_ZERO * usual)
        if bool(small.any()):
            row, place = small.nonzero()[0].tolist()
            warnings.warn(
                f"within {self.label}: the forecast of input {row} (output {counting[place]}) is "
                f"{float(forecast[row, place]):.3g}, near zero compared with {compared} {float(usual[place]):.3g}, so its "
                f"band is narrow, and its radius small ({int(small.sum())} such in all). A width in the output's own "
                "units, as in within 0.5, has no such effect.",
                stacklevel=2,
            )

    @property
    def label(self) -> str:
        """The widths as text: '10%', '0.5' or '0.5,2'."""
        several = isinstance(self.by, Sequence) and not isinstance(self.by, str)
        return ",".join(map(str, self.by if several else [self.by]))  # type: ignore[arg-type]

    def widths(self) -> list[tuple[float, float]]:
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


def _check_quantiles(levels: Sequence[float] | None) -> None:
    if levels is None:
        return
    numbers = isinstance(levels, Sequence) and all(isinstance(one, int | float) for one in levels)
    if not numbers or not levels or not all(0 < one < 1 for one in levels) or len(set(levels)) < len(levels):
        raise BadInput(
            f"quantiles: expected distinct levels between 0 and 1, as in [0.1, 0.5, 0.9], got {levels!r}."
        )


def _listed(levels: Sequence[float]) -> str:
    return ", ".join(f"{level:g}" for level in levels)


def read_outputs(text: str | None) -> OutputsOption:
    """Read '0,2', 'median', '0.9' or '[0, 2]', as options and stored runs name outputs."""
    if text is None or text.strip() == "median":
        return None if text is None else "median"
    try:
        parts = [part.strip() for part in text.strip("[] ").split(",")]
        return [float(part) if "." in part else int(part) for part in parts]
    except ValueError:
        raise BadInput(
            f"outputs {text!r}: expected numbers of outputs, as in 0,2, or with --quantiles median or levels, as in 0.9."
        ) from None


def check_outputs(counting: Sequence[int], outputs: int) -> None:
    """Raise BadInput unless these are distinct outputs of the network."""
    wrong = [k for k in counting if not 0 <= k < outputs]
    if wrong or not counting or len(set(counting)) < len(counting):
        what = f"output {wrong[0]} does not exist" if wrong else "name at least one output, and none twice"
        raise BadInput(
            f"outputs {', '.join(map(str, counting)) or '(none)'}: {what}; the network has outputs 0 to "
            f"{outputs - 1}."
        )
