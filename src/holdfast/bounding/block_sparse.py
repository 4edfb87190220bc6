"""Sums over the rows of a block-sparse matrix, as small dense products.

Statement. For a matrix A with rows A_i (n rows, `width` columns) and unit rows e_i that select row i's own
column, the classes here compute, batched,

    sum of weight_i A_i'A_i,    sum of weight_i (e_i'A_i + A_i'e_i),    A_i X A_i',    A_i X e_i'.

In convolutional networks many rows are zero outside of the same few columns: neurons at one position read the
same window of the image. Rows with the same columns form a block, and the blocks of a layer are padded with
zeros to one size. Rows of zeros, and columns that a block holds twice with zeros, do not change the sums.

Assumption: none; `sdp_dual` charges the rounding of these sums.

Reference: none; the sums are reordered only.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class RowBlocks:
    """Blocks of rows of one layer: g blocks of r rows and c columns."""

    values: Tensor  # (g, r, c)
    rows: Tensor  # (g, r): row indices; n marks padding
    pairs: Tensor  # (g, c, c): indices of the column pairs in a flattened (width, width) matrix
    own: Tensor  # (g, r, c): such indices of (the row's own column, column)
    across: Tensor  # (g, r, c): such indices of (column, the row's own column)

    def to(self, dtype: torch.dtype) -> "RowBlocks":
        return RowBlocks(self.values.to(dtype), self.rows, self.pairs, self.own, self.across)

    def add_squares(self, weight: Tensor, total: Tensor) -> None:
        """Add sum of weight_i A_i'A_i to total (batch, width, width), for weight (batch, n)."""
        mine = torch.nn.functional.pad(weight, (0, 1))[:, self.rows]
        total.flatten(1).index_add_(
            1, self.pairs.flatten(), ((self.values.mT * mine[:, :, None]) @ self.values).flatten(1)
        )

    def add_cross_products(self, weight: Tensor, total: Tensor) -> None:
        """Add sum of weight_i (e_i'A_i + A_i'e_i) to total (batch, width, width), for weight (batch, n)."""
        mine = (torch.nn.functional.pad(weight, (0, 1))[:, self.rows].unsqueeze(-1) * self.values).flatten(1)
        for where in (self.own, self.across):
            total.flatten(1).index_add_(1, where.flatten(), mine)

    def quadratic_forms(self, matrix: Tensor, found: Tensor) -> None:
        """Write A_i X A_i' into found (batch, n + 1) at these rows, for X = matrix (batch, width, width)."""
        inner = matrix.flatten(1)[:, self.pairs]
        found[:, self.rows] = ((self.values @ inner) * self.values).sum(-1)

    def cross_products(self, matrix: Tensor, found: Tensor) -> None:
        """Write A_i X e_i' into found (batch, n + 1) at these rows."""
        found[:, self.rows] = (matrix.flatten(1)[:, self.across] * self.values).sum(-1)


def split_into_blocks(matrix: Tensor, own: Tensor, layers: Sequence[tuple[int, int]]) -> list[RowBlocks]:
    """Split a matrix (n, width) into blocks.

    Args:
        own: (n,), the own column of each row; arbitrary for rows without one.
        layers: ranges of rows; rows of different layers are never in one block.
    """
    return [_layer(matrix, own, start, stop) for start, stop in layers if stop > start]


def _layer(matrix: Tensor, own: Tensor, start: int, stop: int) -> RowBlocks:
    count, width = matrix.shape
    support = matrix[start:stop] != 0
    # Rows are grouped by a hash of their columns. Collisions are harmless: a block holds the columns of all
    # its rows.
    key = support.double() @ torch.arange(2, width + 2, dtype=torch.float64, device=matrix.device).sqrt()
    group = key.unique(return_inverse=True)[1]
    joint = (
        torch.zeros((int(group.max()) + 1, width), device=matrix.device).index_add_(0, group, support.float())
        > 0
    )
    most = int(group.bincount().max()), int(joint.sum(1).max())
    # blocks would not save half of the work
    if len(joint) * most[0] * most[1] ** 2 >= (stop - start) * width**2 / 2:
        group, joint = torch.zeros_like(group), joint.any(0, keepdim=True)
        most = stop - start, int(joint.sum())
    columns = _numbers(joint, max(1, most[1]), fill=0)
    member = torch.nn.functional.one_hot(group, len(joint)).T
    rows = _numbers(member.bool(), most[0], fill=count - start) + start
    values = torch.nn.functional.pad(matrix, (0, 0, 0, 1))[rows[:, :, None], columns[:, None]]
    first = torch.arange(columns.shape[1], device=columns.device)[None] < joint.sum(1, keepdim=True)
    values = values * first[:, None]
    own_columns = torch.nn.functional.pad(own, (0, 1))[rows][:, :, None]
    columns_of_rows = columns[:, None].expand(values.shape)
    return RowBlocks(
        values,
        rows,
        columns[:, :, None] * width + columns[:, None],
        own_columns * width + columns_of_rows,
        columns_of_rows * width + own_columns,
    )


def _numbers(which: Tensor, count: int, fill: int) -> Tensor:
    """(g, m) bool -> (g, count): the indices of the true entries in ascending order, padded with `fill`."""
    place = (
        torch.where(which, torch.arange(which.shape[1], device=which.device), which.shape[1])
        .sort(1)
        .values[:, :count]
    )
    return torch.where(place < which.shape[1], place, fill)
