"""Forbidden outputs: a union of polytopes, as in VNN-LIB.

margin(y) = min over polytopes p of max over rows r of (A_pr . y + b_pr). It is positive iff y is in none of
the polytopes { y : A_pr . y + b_pr <= 0 for all r }.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from holdfast.errors import BadInput
from holdfast.property.base import Property, rounding


@dataclass(frozen=True, eq=False)
class Avoid(Property):
    """The outputs are in none of the polytopes {y: all rows . y + offset <= 0}.

    score = min over polytopes of max over rows of row . outputs + offset. Shorter lists of the batch are
    padded by repeating a row or a polytope.
    """

    matrix: Tensor  # (batch, polytopes, rows, outputs)
    offset: Tensor  # (batch, polytopes, rows)

    @staticmethod
    def failing(matrix: Tensor, offset: Tensor) -> "Avoid":
        """All rows (batch, rows, outputs) must be positive: one polytope for each row."""
        return Avoid(matrix[:, :, None], offset[:, :, None])

    def score(self, outputs: Tensor) -> Tensor:
        return self.values(outputs).amax(-1).amin(-1)

    def values(self, outputs: Tensor) -> Tensor:
        """(..., batch, outputs) -> (..., batch, polytopes, rows)."""
        return torch.einsum("bpro,...bo->...bpr", self.matrix.to(outputs), outputs) + self.offset.to(outputs)

    def rounding_error(self, outputs: Tensor, unit: float) -> Tensor:
        return rounding(self.matrix, outputs[..., None, None, :], self.offset, unit).flatten(-2).amax(-1)

    def check(self, batch: int, outputs: int) -> None:
        if (
            self.matrix.dim() != 4
            or len(self.matrix) != batch
            or self.matrix.shape[3] != outputs
            or 0 in self.matrix.shape
        ):
            raise BadInput(
                f"polytopes: the matrix has shape {tuple(self.matrix.shape)}, "
                f"expected ({batch}, polytopes, rows, {outputs}) for this "
                f"batch and network, with at least one row."
            )
        if self.offset.shape != self.matrix.shape[:3]:
            raise BadInput(
                f"polytopes: the offset has shape {tuple(self.offset.shape)}, expected "
                f"{tuple(self.matrix.shape[:3])}."
            )
        if not bool(self.matrix.isfinite().all() and self.offset.isfinite().all()):
            raise BadInput("polytopes: a coefficient or offset is NaN or infinite.")
