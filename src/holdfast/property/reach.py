"""Reachability of a probability: margin(z) = tau - f_c(z), f = softmax(z) or z.

Class c stays below the level tau.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from holdfast.derivations import (
    FEW_OPERATIONS,
    PROBABILITY_THRESHOLD,
)
from holdfast.errors import BadInput
from holdfast.property.base import (
    BoundedProperty,
    check_labels,
    differences,
    propagate_unknown,
    select_output,
)
from holdfast.property.confidence import check_classes
from holdfast.property.probability import drop_label, insert_label, probabilities, probabilities_or_outputs
from holdfast.rounding import TINY, charge, round_down, round_up


@dataclass(frozen=True, eq=False)
class Reach(BoundedProperty):
    """margin = tau - f_label; inputs at which the class reaches tau violate it (DeepQuant's reachability).

    f is softmax(outputs), or with softmax=False the outputs themselves.
    """

    label: Tensor  # (batch,) int64
    tau: Tensor  # (batch,) float
    softmax: bool = True

    @staticmethod
    def rise(outputs: Tensor, label: Tensor, epsilon: float, softmax: bool = True) -> "Reach":
        """From outputs at the inputs (batch, outputs): the class must not rise by epsilon."""
        return Reach(
            label,
            select_output(probabilities_or_outputs(outputs.double(), softmax), label) + epsilon,
            softmax,
        )

    def score(self, outputs: Tensor) -> Tensor:
        return self.tau.to(outputs) - select_output(
            probabilities_or_outputs(outputs, self.softmax), self.label
        )

    def rows(self, outputs: int) -> tuple[Tensor, Tensor]:
        """Return z_k - z_label for every other class k; for softmax=False, tau - z_label."""
        if self.softmax:
            rows = -differences(self.label, outputs)
            return rows, rows.new_zeros(rows.shape[:2])
        rows = -torch.eye(outputs, dtype=torch.float64, device=self.label.device)[self.label][:, None]
        return rows, self.tau.double()[:, None]

    def least(self, values: Tensor) -> Tensor:
        """p_label = 1 / (1 + sum of exp(z_k - z_label)) decreases with every row."""
        if not self.softmax:
            return values[:, 0]
        return propagate_unknown(self._left(values, 1), values)

    def most(self, lower: Tensor, upper: Tensor) -> Tensor:
        return self._left(upper, -1) if self.softmax else upper[:, 0]

    def _left(self, values: Tensor, side: int) -> Tensor:
        tau, p = self.tau.double(), 1 / (1 + torch.exp(values).sum(1))
        return tau - p - side * charge(p + tau.abs(), PROBABILITY_THRESHOLD, values.shape[1])

    def slopes(self, lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
        """The derivative of p_label in z_k - z_label is -p_label p_k, and p_label p_k <= 1/4."""
        if not self.softmax:
            one = torch.ones_like(lower)[:, None]
            return one, one
        ends = probabilities(insert_label(self.label, lower), insert_label(self.label, upper))
        low, high = (select_output(p, self.label)[:, None] * drop_label(self.label, p) for p in ends)
        least, most = round_down(low, FEW_OPERATIONS), round_up(high, FEW_OPERATIONS) + TINY
        return least[:, None], most.clamp_max(0.25)[:, None]

    def check(self, batch: int, outputs: int) -> None:
        if self.softmax:
            check_classes(outputs)
        check_labels(self.label, batch, outputs, "label")
        if tuple(self.tau.shape) != (batch,):
            raise BadInput(
                f"tau has shape {tuple(self.tau.shape)}, expected ({batch},): one level for each input."
            )
        if not bool(self.tau.isfinite().all()):
            raise BadInput("a level tau is NaN or infinite.")
