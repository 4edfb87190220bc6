"""Search objectives for one specification: its score, and each of the linear conditions nearest to being
violated.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from holdfast import batch
from holdfast.problem import Problem
from holdfast.property import LinearProperty


@dataclass(frozen=True)
class Lanes:
    """The objective of each lane, which is minimised: the score of the specification or one of its rows. An
    input's lanes lie side by side.
    """

    each: int  # lanes of each input
    matrix: Tensor  # (lanes, outputs)
    offset: Tensor  # (lanes,)
    whole: Tensor  # (lanes,) bool: the objective is the score itself

    def score(self, lane: Tensor, outputs: Tensor, margin: Tensor) -> Tensor:
        """Map lanes (n, k), outputs (n, outputs) and scores of the specification (n,) to objectives (n,
        k).
        """
        row = torch.einsum("nko,no->nk", self.matrix[lane].to(outputs), outputs) + self.offset[lane].to(
            outputs
        )
        return torch.where(self.whole[lane], margin[:, None], row.nan_to_num(nan=-torch.inf))


def create_lanes(problem: Problem, most: int) -> Lanes:
    """Create one lane for the score and the others for the rows of the specification that are nearest to
    violation at the centre.
    """
    outputs = problem.network(problem.region.centre).double()
    row = torch.arange(len(problem), device=outputs.device)
    matrix, offset = outputs.new_zeros(len(row), 1, outputs.shape[1]), outputs.new_zeros(len(row), 1)
    if isinstance(problem.property, LinearProperty) and most > 1:
        near = [
            _nearest(problem.property, part, outputs[part], most - 1)
            for part in row.split(max(1, 2**22 // outputs.shape[1] ** 2))
        ]
        matrix, offset = (
            torch.cat([first, torch.cat(rest)], 1)
            for first, rest in zip((matrix, offset), zip(*near, strict=True), strict=True)
        )
    each = matrix.shape[1] if matrix.shape[1] > 2 else 1  # A single row is the score itself.
    whole = torch.arange(len(row) * each, device=outputs.device) % each == 0
    return Lanes(each, matrix[:, :each].flatten(0, 1), offset[:, :each].flatten(), whole)


def _nearest(prop: LinearProperty, row: Tensor, outputs: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return the `count` conditions nearest to violation, (n, count, outputs), and their offsets (n, count),
    for rows (n,) of the problem.
    """
    matrix, offset = (part.to(outputs) for part in batch.take(prop, row).rows(outputs.shape[1]))
    near = (torch.einsum("bro,bo->br", matrix, outputs) + offset).argsort(stable=True)[:, :count]
    return matrix.gather(1, near[..., None].expand(-1, -1, matrix.shape[2])), offset.gather(1, near)
