"""Linear specifications: margin(y) = min over rows r of (A_r . y + b_r)."""

from dataclasses import dataclass

import torch
from torch import Tensor

from holdfast.errors import BadInput
from holdfast.property.base import LinearProperty


@dataclass(frozen=True, eq=False)
class Linear(LinearProperty):
    """Every row . outputs + offset is positive: score = the smallest of them."""

    matrix: Tensor  # (batch, rows, outputs)
    offset: Tensor  # (batch, rows)

    @staticmethod
    def of(row: list[float] | Tensor, offset: float = 0.0, *, batch: int = 1) -> "Linear":
        """Build a single condition row . outputs + offset > 0 for a whole batch."""
        matrix = torch.as_tensor(row, dtype=torch.float64).reshape(1, 1, -1)
        return Linear(
            matrix.expand(batch, -1, -1).clone(), torch.full((batch, 1), float(offset), dtype=torch.float64)
        )

    def score(self, outputs: Tensor) -> Tensor:
        values = torch.einsum("bro,...bo->...br", self.matrix.to(outputs), outputs)
        return (values + self.offset.to(outputs)).amin(-1)

    def rows(self, outputs: int) -> tuple[Tensor, Tensor]:
        return self.matrix.double(), self.offset.double()

    def check(self, batch: int, outputs: int) -> None:
        if (
            self.matrix.dim() != 3
            or self.matrix.shape[0] != batch
            or self.matrix.shape[2] != outputs
            or self.matrix.shape[1] == 0
        ):
            raise BadInput(
                f"linear property: the matrix has shape {tuple(self.matrix.shape)}, "
                f"expected ({batch}, rows, {outputs}) for this batch and network, with at least one row."
            )
        if self.offset.shape != self.matrix.shape[:2]:
            raise BadInput(
                f"linear property: the offset has shape {tuple(self.offset.shape)}, "
                f"expected {tuple(self.matrix.shape[:2])}."
            )
        if not bool(self.matrix.isfinite().all() and self.offset.isfinite().all()):
            raise BadInput("linear property: a coefficient or offset is NaN or infinite.")
