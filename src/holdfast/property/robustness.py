"""Classification robustness: margin(z) = z_c - max over j != c of z_j, or z_c - z_t for a target class t."""

from dataclasses import dataclass

import torch
from torch import Tensor

from holdfast.errors import BadInput
from holdfast.property.base import (
    LinearProperty,
    OneOutput,
    check_labels,
    differences,
    margin_to_others,
    select_output,
)


@dataclass(frozen=True, eq=False)
class Robustness(LinearProperty):
    """The label's output is strictly above every other: margin = z_label - max over j != label of z_j."""

    label: Tensor  # (batch,) int64

    def score(self, outputs: Tensor) -> Tensor:
        return margin_to_others(outputs, self.label)

    def rows(self, outputs: int) -> tuple[Tensor, Tensor]:
        rows = differences(self.label, outputs)
        return rows, rows.new_zeros(rows.shape[:2])

    def check(self, batch: int, outputs: int) -> None:
        if outputs < 2:
            raise OneOutput()
        check_labels(self.label, batch, outputs, "label")


@dataclass(frozen=True, eq=False)
class Targeted(LinearProperty):
    """The label's output is strictly above the target's: margin = z_label - z_target."""

    label: Tensor  # (batch,) int64
    target: Tensor  # (batch,) int64

    def score(self, outputs: Tensor) -> Tensor:
        return select_output(outputs, self.label) - select_output(outputs, self.target)

    def rows(self, outputs: int) -> tuple[Tensor, Tensor]:
        identity = torch.eye(outputs, dtype=torch.float64, device=self.label.device)
        rows = (identity[self.label] - identity[self.target])[:, None, :]
        return rows, rows.new_zeros(rows.shape[:2])

    def check(self, batch: int, outputs: int) -> None:
        check_labels(self.label, batch, outputs, "label")
        check_labels(self.target, batch, outputs, "target")
        same = self.label == self.target
        if bool(same.any()):
            row = int(same.nonzero()[0, 0])
            raise BadInput(
                f"target {int(self.target[row])} of input {row} is its own label; choose a different class."
            )
