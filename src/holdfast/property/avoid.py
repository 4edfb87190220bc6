"""What must never come out: a list of polytopes, as VNN-LIB writes them."""

from dataclasses import dataclass

import torch
from torch import Tensor

from holdfast.errors import BadInput
from holdfast.property.base import Property, rounding


@dataclass(frozen=True, eq=False)
class Avoid(Property):
    """The outputs stay out of every polytope {y: all rows . y + offset <= 0}.

    score = the smallest over the polytopes of the largest over its rows of row . outputs + offset. A list that is shorter
    than others of the batch repeats a row or a polytope, which changes nothing.
    """

    matrix: Tensor  # (batch, polytopes, rows, outputs)
    offset: Tensor  # (batch, polytopes, rows)

    @staticmethod
    def failing(matrix: Tensor, offset: Tensor) -> "Avoid":
        """All rows (batch, rows, outputs) stay positive: a polytope for each row that does not."""
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
                f"polytopes: the matrix has shape {tuple(self.matrix.shape)}, expected ({batch}, polytopes, rows, {outputs}) for this "
                f"batch and network, with at least one row."
            )
        if self.offset.shape != self.matrix.shape[:3]:
            raise BadInput(
                f"polytopes: the offset has shape {tuple(self.offset.shape)}, expected {tuple(self.matrix.shape[:3])}."
            )
        if not bool(self.matrix.isfinite().all() and self.offset.isfinite().all()):
            raise BadInput("polytopes: a coefficient or offset is NaN or infinite.")
