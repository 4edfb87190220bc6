"""Products with a matrix that is block diagonal up to the order of its rows and columns.

Statement. Rows and columns of a matrix J are connected where J is not zero. Its connected components share no row and
no column, so with B_k the block of component k, of rows R_k and columns C_k,

    (rows J)[C_k] = rows[R_k] B_k,    and zero at columns without any number.

A map along the last axis of a tensor, a transposition with a factor and the pairwise sums of a softmax are such
matrices: with 17 tokens of 48 numbers the dense product takes 17 to 816 times as many multiplications. Every result is a
sum of a part of the products of the dense one, the others being zeros, so its bound of rounding errors holds.

Assumption: coefficients are finite; a NaN reaches the columns of its component only.

Reference: none; zeros are left out.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

Place = slice | Tensor  # Indices along an axis: a slice if they are consecutive.
# Matrices of at least this many elements are examined; for smaller ones the dense product is as fast (chosen by hand).
MIN_ELEMENTS = 2**15
MIN_SAVING = 8  # The dense product takes at least this many times as many multiplications (chosen by hand).
MAX_ROUNDS = 4  # Rounds in which the components must be found; full blocks take two.
MAX_GROUPS = 4  # The largest number of different shapes of blocks.


@dataclass(frozen=True)
class EqualBlocks:
    """Blocks of one shape."""

    rows: Place  # (blocks * height): the rows of one block after the other
    columns: Place  # (blocks * width)
    blocks: Tensor  # (blocks, height, width); (1, height, width) if all are the same

    def times(self, coefficients: Tensor, blocks: Tensor) -> Tensor:
        """(n, size) -> (n, number of columns)."""
        _, height, width = blocks.shape
        some = take_columns(coefficients, self.rows)
        if height == 1:
            made = some.unsqueeze(-1) * blocks[:, 0]
        elif len(blocks) == 1:
            made = some.reshape(-1, height) @ blocks[0]
        elif width == 1:
            made = (some.reshape(len(some), -1, height) * blocks[..., 0]).sum(-1)
        else:
            made = (some.reshape(len(some), -1, height).transpose(0, 1) @ blocks).transpose(0, 1)
        return made.reshape(len(some), -1)


@dataclass(frozen=True)
class BlockMatrix:
    """A matrix (height, width) as the blocks of its connected components."""

    width: int
    groups: tuple[EqualBlocks, ...]

    @staticmethod
    def of(matrix: Tensor) -> "BlockMatrix | None":
        """The blocks of the matrix; None where its dense products are as fast."""
        if matrix.numel() < MIN_ELEMENTS:
            return None
        at = matrix.nonzero()
        if not len(at) or MIN_SAVING * len(at) > matrix.numel():
            return None
        height, width = matrix.shape
        label = _find_components(at, height, width)
        if label is None:
            return None
        each = label.bincount()
        heights, widths = (part.bincount(minlength=len(each)) for part in label.split([height, width]))
        full = (heights > 0) & (widths > 0)
        if MIN_SAVING * int((heights * widths)[full].sum()) > matrix.numel():
            return None
        shapes = torch.stack([heights, widths], 1)
        kinds = shapes[full].unique(dim=0)
        if len(kinds) > MAX_GROUPS:
            return None
        groups = list[EqualBlocks]()
        for kind in kinds:
            mine = (shapes == kind).all(1)
            rows, columns = (
                (some := mine[part].nonzero().flatten())[part[some].argsort(stable=True)]
                for part in label.split([height, width])
            )
            count = int(mine.sum())
            blocks = matrix[rows.reshape(count, -1, 1), columns.reshape(count, 1, -1)]
            same = bool((blocks == blocks[:1]).all())
            groups.append(EqualBlocks(find_place(rows), find_place(columns), blocks[:1] if same else blocks))
        return BlockMatrix(width, tuple(groups))

    def like(self, rows: Tensor, *, absolute: bool) -> list[Tensor]:
        """The blocks, or their absolute values, in the element type of the rows."""
        return [(group.blocks.abs() if absolute else group.blocks).to(rows.dtype) for group in self.groups]

    def back(self, rows: Tensor, *, absolute: bool = False) -> Tensor:
        """rows J, or rows |J|: (..., height) -> (..., width)."""
        flat = rows.reshape(-1, rows.shape[-1])
        parts = [
            group.times(flat, blocks)
            for group, blocks in zip(self.groups, self.like(rows, absolute=absolute), strict=True)
        ]
        if len(parts) == 1 and self.groups[0].columns == slice(0, self.width):
            whole = parts[0]
        else:
            whole = rows.new_zeros((len(flat), self.width))
            for group, part in zip(self.groups, parts, strict=True):
                if isinstance(group.columns, slice):
                    whole[:, group.columns] = part
                else:
                    whole = whole.index_copy(1, group.columns, part)
        return whole.reshape(*rows.shape[:-1], self.width)


def _find_components(at: Tensor, height: int, width: int) -> Tensor | None:
    """(height + width,): the number of the connected component of each row and each column, given the indices (n, 2) of
    all numbers that are not zero. None where a component has longer paths than full blocks have.

    Each row and column takes the smallest number of its neighbours until all have those of their neighbours.
    """
    row, column = at.unbind(1)
    label = torch.arange(height + width, device=at.device)
    for _ in range(MAX_ROUNDS):
        before, (rows, columns) = label, label.split([height, width])
        columns = columns.scatter_reduce(0, column, rows[row], "amin")
        rows = rows.scatter_reduce(0, row, columns[column], "amin")
        label = torch.cat([rows, columns])
        if torch.equal(label, before):
            return label
    return None


def take_columns(value: Tensor, place: Place) -> Tensor:
    return value[:, place] if isinstance(place, slice) else value.index_select(1, place)


def find_place(numbers: Tensor) -> Place:
    """Indices, as a slice if they are consecutive."""
    first, count = int(numbers[0]) if len(numbers) else 0, len(numbers)
    in_order = torch.equal(numbers, torch.arange(first, first + count, device=numbers.device))
    return slice(first, first + count) if in_order else numbers
