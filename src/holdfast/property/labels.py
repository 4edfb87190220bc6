"""Binary outputs with thresholds: a binary classifier, or multi-label classification."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from holdfast.errors import BadInput
from holdfast.property.base import LinearProperty
from holdfast.property.rule import Rule


@dataclass(frozen=True, eq=False)
class Labels(LinearProperty):
    """Every output stays on its side of its threshold, above iff the label is wanted.

    score = min over outputs of the signed distance to the threshold, negative if an output is on the wrong
    side.
    """

    wanted: Tensor  # (batch, outputs) bool
    threshold: Tensor  # (batch, outputs) float64

    def score(self, outputs: Tensor) -> Tensor:
        above = outputs.double() - self.threshold
        return torch.where(self.wanted, above, -above).amin(-1).to(outputs)

    def rows(self, outputs: int) -> tuple[Tensor, Tensor]:
        side = 2 * self.wanted.double() - 1
        return torch.diag_embed(side), -side * self.threshold.double()

    def says(self, outputs: Tensor, classes: Sequence[str] | None = None) -> str:
        return f"the network answers {', '.join(f'{v:.6g}' for v in outputs.tolist())}"

    def check(self, batch: int, outputs: int) -> None:
        for what, part in (("labels", self.wanted), ("thresholds", self.threshold)):
            if tuple(part.shape) != (batch, outputs):
                raise BadInput(
                    f"{what} have shape {tuple(part.shape)}, expected {(batch, outputs)}: one for each "
                    "input and output."
                )
        if self.wanted.dtype != torch.bool:
            raise BadInput(f"wanted labels must be booleans, got {self.wanted.dtype}.")
        if not bool(self.threshold.isfinite().all()):
            raise BadInput("a threshold is NaN or infinite.")


@dataclass(frozen=True)
class Threshold(Rule):
    """Every output is positive above its threshold, else negative, and no answer changes.

    at: 0 for logits, 0.5 for probabilities; or a list, one for each output.

    The data's y is 0 or 1 for each input, or for each input and output; without it the network's own answers
    must not change.
    """

    at: float | Sequence[float] = 0.0

    def around(self, outputs: Tensor, y: Any = None) -> Labels:
        try:
            at = torch.as_tensor(self.at, dtype=torch.float64, device=outputs.device)
        except (TypeError, ValueError, RuntimeError) as error:
            raise BadInput(
                f"threshold: expected a number, or one for each output, got {self.at!r}."
            ) from error
        if at.dim() > 1 or at.numel() not in (1, outputs.shape[-1]):
            raise BadInput(
                f"threshold: {at.numel()} numbers for {outputs.shape[-1]} outputs; give one for all, or one "
                "for each."
            )
        at = at.expand(outputs.shape).clone()
        return Labels(outputs.double() > at if y is None else self._wanted_labels(y, outputs), at)

    def _wanted_labels(self, y: Any, outputs: Tensor) -> Tensor:
        try:
            given = torch.as_tensor(y, device=outputs.device)
        except (TypeError, ValueError, RuntimeError) as error:
            raise BadInput(f"labels must be 0 or 1, for each input and output ({error}).") from error
        given = given[:, None] if given.dim() == 1 and outputs.shape[-1] == 1 else given
        if given.shape != outputs.shape:
            raise BadInput(
                f"labels have shape {tuple(given.shape)}, expected {tuple(outputs.shape)}: with a threshold "
                "every output "
                f"has its own label, 0 or 1."
            )
        wrong = ~((given == 0) | (given == 1))
        if bool(wrong.any()):
            row, place = wrong.nonzero()[0].tolist()
            raise BadInput(
                f"label {given[row, place].item():g} of input {row} is neither 0 nor 1, as a threshold needs."
            )
        return given == 1
