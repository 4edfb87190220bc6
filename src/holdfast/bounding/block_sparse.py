"""Matrices in which many rows are zero but for the same few columns, as those of convolutions: the neurons at one place read one window.

Rows with the same columns are bundled, and bundles of one layer are padded to one size, so that sums over all rows are products of small
matrices. A row of zeros, and a column that a bundle counts twice with zeros, add nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Bundles:
    """g bundles of r rows and c columns; of a matrix with n rows and `width` columns."""

    values: Tensor  # (g, r, c)
    rows: Tensor  # (g, r): numbers of the rows, n where there is none
    pairs: Tensor  # (g, c, c): the places of their columns in a flat width x width matrix
    own: Tensor  # (g, r, c): the same of the row's own column and its columns
    across: Tensor  # (g, r, c): and the other way round

    def to(self, dtype: torch.dtype) -> "Bundles":
        return Bundles(self.values.to(dtype), self.rows, self.pairs, self.own, self.across)

    def add_squares(self, weight: Tensor, total: Tensor) -> None:
        """weight (batch, n): total (batch, width, width) += sum of weight row' row."""
        mine = torch.nn.functional.pad(weight, (0, 1))[:, self.rows]
        total.flatten(1).index_add_(
            1, self.pairs.flatten(), ((self.values.mT * mine[:, :, None]) @ self.values).flatten(1)
        )

    def add_beside(self, weight: Tensor, total: Tensor) -> None:
        """total += sum of weight (e' row + row' e), where e is one in the row's own column."""
        mine = (torch.nn.functional.pad(weight, (0, 1))[:, self.rows].unsqueeze(-1) * self.values).flatten(1)
        for where in (self.own, self.across):
            total.flatten(1).index_add_(1, where.flatten(), mine)

    def squares(self, matrix: Tensor, found: Tensor) -> None:
        """matrix (batch, width, width): found (batch, n + 1) at these rows = row matrix row'."""
        inner = matrix.flatten(1)[:, self.pairs]
        found[:, self.rows] = ((self.values @ inner) * self.values).sum(-1)

    def beside(self, matrix: Tensor, found: Tensor) -> None:
        """found (batch, n + 1) at these rows = row matrix e'."""
        found[:, self.rows] = (matrix.flatten(1)[:, self.across] * self.values).sum(-1)


def bundle_rows(matrix: Tensor, own: Tensor, layers: Sequence[tuple[int, int]]) -> list[Bundles]:
    """matrix (n, width), own (n,): the own column of each row, any where it has none; layers: rows that are bundled together."""
    return [_layer(matrix, own, start, stop) for start, stop in layers if stop > start]


def _layer(matrix: Tensor, own: Tensor, start: int, stop: int) -> Bundles:
    count, width = matrix.shape
    support = matrix[start:stop] != 0
    # Any number that tells most sets of columns apart will do: a bundle has all columns of all its rows.
    key = support.double() @ torch.arange(2, width + 2, dtype=torch.float64, device=matrix.device).sqrt()
    group = key.unique(return_inverse=True)[1]
    joint = (
        torch.zeros((int(group.max()) + 1, width), device=matrix.device).index_add_(0, group, support.float())
        > 0
    )
    most = int(group.bincount().max()), int(joint.sum(1).max())
    if len(joint) * most[0] * most[1] ** 2 >= (stop - start) * width**2 / 2:  # too different from one another
        group, joint = torch.zeros_like(group), joint.any(0, keepdim=True)
        most = stop - start, int(joint.sum())
    columns = _numbers(joint, max(1, most[1]), fill=0)
    member = torch.nn.functional.one_hot(group, len(joint)).T
    rows = _numbers(member.bool(), most[0], fill=count - start) + start
    values = torch.nn.functional.pad(matrix, (0, 0, 0, 1))[rows[:, :, None], columns[:, None]]
    first = torch.arange(columns.shape[1], device=columns.device)[None] < joint.sum(1, keepdim=True)
    values = values * first[:, None]
    mine = torch.nn.functional.pad(own, (0, 1))[rows][:, :, None]
    wide = columns[:, None].expand(values.shape)
    return Bundles(
        values, rows, columns[:, :, None] * width + columns[:, None], mine * width + wide, wide * width + mine
    )


def _numbers(which: Tensor, count: int, fill: int) -> Tensor:
    """(g, m) bool -> (g, count): the numbers of what is true, in order, and then `fill`."""
    place = (
        torch.where(which, torch.arange(which.shape[1], device=which.device), which.shape[1])
        .sort(1)
        .values[:, :count]
    )
    return torch.where(place < which.shape[1], place, fill)
