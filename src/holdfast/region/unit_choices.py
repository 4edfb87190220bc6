"""The values that searches over changed units try, for pixels, frames, features, columns and words alike."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import torch
from torch import Tensor

from holdfast.memory_budget import LARGE_INPUT_NUMBERS, rows_per_call

if TYPE_CHECKING:
    from holdfast.region.columns import Column

# Largest number of values tried for one unit: up to here, every combination of the values of its parts
# (chosen by hand).
MAX_VALUES_PER_UNIT = 64
# Number of random corners tried for a unit with many parts, in addition to its lowest and highest value
# (chosen by hand).
RANDOM_CORNERS = 14
# Largest number of levels tried for one number; of more, an evenly spaced choice (chosen by hand).
MAX_LEVELS = 16
# Numbers in the inputs of one query: few enough for the activations of small networks to stay in the cache
# (chosen by hand).
QUERY_NUMBERS = 2**17
MIN_COLUMN_VALUES = 9  # Smallest number of values tried for a number of a table (chosen by hand).
MAX_COLUMN_VALUES = 256  # Largest number of values tried for a column of a table (chosen by hand).
QUERIES_PER_STEP = 128  # Number of such queries in one step of a method (chosen by hand).
# Large inputs queried in one step: 32 forward passes of a network for 224 x 224 pixels take one to ten seconds on a CPU
# core (chosen by hand).
LARGE_INPUTS_PER_STEP = 32


@dataclass(frozen=True)
class TriedValues:
    """Which values a search over changed units tries, where the region does not list them all.

    Attributes:
        count: values of a number, evenly spaced over its domain, if the region does not list its values.
        every_level: take all levels of the region, not an evenly spaced choice of them.
        thresholds: feature -> the values between which the network is constant, both sides of which are tried, too.
    """

    count: int
    every_level: bool = False
    thresholds: Callable[[int], Tensor] | None = None


@dataclass(frozen=True, eq=False)
class UnitChoices:
    """Inputs divided into units of equal size, and the values that are tried for each unit of each input.

    An input as units is (units, parts): a colour pixel has three parts, a word as many as its vector.
    """

    shape: tuple[int, ...]  # shape of an input
    axes: tuple[int, ...]  # axes of an input that belong to one unit
    centre: Tensor  # (batch, units, parts)
    table: Tensor  # (batch, units, values, parts)
    open: Tensor  # (batch, units, values) bool: the value may be tried and differs from the input's
    sampled: bool  # the table holds only some corners of units that have many parts

    @staticmethod
    def of_table(
        x: Tensor, axes: tuple[int, ...], table: Tensor, free: Tensor, *, sampled: bool
    ) -> "UnitChoices":
        """Return the choices from inputs x (batch, *shape), a table of values and (batch, units) bool."""
        centre = _as_units(x, axes)
        differs = (table != centre[:, :, None]).any(-1)
        return UnitChoices(tuple(x.shape[1:]), axes, centre, table, free[..., None] & differs, sampled)

    @staticmethod
    def of_ladder(
        x: Tensor, axes: tuple[int, ...], ladder: Tensor, free: Tensor, generator: torch.Generator
    ) -> "UnitChoices":
        """Return the choices from values of single numbers, (count, *shape), combined for each unit."""
        values = _as_units(ladder, axes)
        parts = values.shape[2]
        table = _combine_values(values, _patterns(len(values), parts, generator))
        sampled = 2**parts > MAX_VALUES_PER_UNIT
        return UnitChoices.of_table(x, axes, table.expand(len(x), -1, -1, -1), free, sampled=sampled)

    @property
    def units(self) -> int:
        return int(self.table.shape[1])

    @property
    def values(self) -> int:
        return int(self.table.shape[2])

    def as_units(self, x: Tensor) -> Tensor:
        """Reshape (n, *shape) to (n, units, parts)."""
        return _as_units(x, self.axes)

    def as_inputs(self, units: Tensor) -> Tensor:
        """Reshape (n, units, parts) to (n, *shape)."""
        kept = [size for axis, size in enumerate(self.shape) if axis not in self.axes]
        whole = units.reshape(len(units), *kept, *(self.shape[axis] for axis in self.axes))
        return whole.movedim(tuple(range(-len(self.axes), 0)), tuple(axis + 1 for axis in self.axes))

    def changed_units(self, row: Tensor, units: Tensor) -> Tensor:
        """Return which units differ from the input of each row: (n,), (n, units, parts) to (n, units)
        bool.
        """
        return (units != self.centre[row]).any(-1)

    def restored_variants(self, row: Tensor, units: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield, batch by batch, every input with one of its changed units restored.

        Each batch holds the index of the input (m,) and the inputs (m, units, parts).
        """
        which, unit = self.changed_units(row, units).nonzero(as_tuple=True)
        for some, back in zip(which.split(self.at_once), unit.split(self.at_once), strict=True):
            if len(some):
                yield some, replace_unit(units[some], back, self.centre[row[some], back])

    @property
    def at_once(self) -> int:
        """Number of inputs in one query."""
        most = 32 * QUERY_NUMBERS if self.centre.is_cuda else QUERY_NUMBERS
        return rows_per_call(math.prod(self.shape), most)

    @property
    def per_step(self) -> int:
        """Number of inputs queried in one step, small enough that a search can be stopped in time."""
        return LARGE_INPUTS_PER_STEP if self.large else QUERIES_PER_STEP * self.at_once

    @property
    def large(self) -> bool:
        """Whether an input is so large that each query counts."""
        return math.prod(self.shape) >= LARGE_INPUT_NUMBERS


@dataclass(frozen=True, eq=False)
class ColumnChoices(UnitChoices):
    """The units are the columns of a table: one number each, or for a word as many as it has values, padded
    with zeros.
    """

    # (columns, parts): indices of the column's numbers in a row; padding refers to an index beyond the row
    places: Tensor

    def as_units(self, x: Tensor) -> Tensor:
        return _at(x, self.places)

    def as_inputs(self, units: Tensor) -> Tensor:
        row = units.new_zeros((len(units), self.shape[0] + 1))
        return row.index_copy(1, self.places.flatten(), units.flatten(1))[:, :-1]

    @classmethod
    def of_columns(cls, x: Tensor, places: Tensor, tried: Sequence[Tensor], free: Tensor) -> Self:
        """Return the choices of rows x (batch, features).

        Args:
            places: as the field.
            tried: the values of each column, (values, parts) each.
            free: (columns,) bool, the columns that may change.
        """
        most = max(len(values) for values in tried)
        filled = torch.stack(
            [
                torch.nn.functional.pad(values, (0, 0, 0, most - len(values)), value=torch.nan)
                for values in tried
            ]
        )
        centre = _at(x, places)
        table = filled.to(centre).expand(len(x), -1, -1, -1)
        known = ~table.isnan().any(-1)
        table = torch.where(known[..., None], table, centre[:, :, None])
        differs = (table != centre[:, :, None]).any(-1)
        shape = tuple(x.shape[1:])
        return cls(shape, (), centre, table, free[:, None] & known & differs, False, places)


def _at(x: Tensor, places: Tensor) -> Tensor:
    """Gather (..., features) at (columns, parts) into (..., columns, parts)."""
    return torch.nn.functional.pad(x, (0, 1))[..., places]


def column_places(columns: Sequence[Sequence[int]], features: int) -> Tensor:
    """Return (columns, parts): the indices of each column's numbers, padded with `features`."""
    parts = max(len(own) for own in columns)
    return torch.tensor([[*own, *[features] * (parts - len(own))] for own in columns])


def column_values(column: "Column", low: float, high: float, count: int, ends: Tensor | None) -> Tensor:
    """Return the values tried for a number of a table, (values,) float64, in increasing order.

    Args:
        count: values evenly spaced between `low` and `high`.
        ends: thresholds between which the network is constant; both sides of each are tried, too.
    """
    if not column.movable:
        return torch.zeros(0, dtype=torch.float64)
    values = torch.linspace(low, high, count, dtype=torch.float64)
    if ends is not None:
        values = torch.cat([values, ends, torch.nextafter(ends, torch.full_like(ends, torch.inf))])
    if column.step > 0:
        steps = (values / column.step).floor()
        values = torch.cat([steps, steps + 1]).unique() * column.step
    found: Tensor = values[(values >= low) & (values <= high)].unique()
    kept = torch.linspace(0, len(found) - 1, MAX_COLUMN_VALUES).round().long()
    return found[kept] if len(found) > MAX_COLUMN_VALUES else found


def replace_unit(x: Tensor, unit: Tensor, value: Tensor) -> Tensor:
    """Return a copy of x (n, units, parts) in which unit (n,) of each has its value (n, parts)."""
    return x.index_put((torch.arange(len(x), device=x.device), unit), value)


def _as_units(x: Tensor, axes: tuple[int, ...]) -> Tensor:
    """Reshape (n, *shape) to (n, units, parts)."""
    moved = x.movedim(tuple(axis + 1 for axis in axes), tuple(range(-len(axes), 0)))
    return moved.reshape(len(x), math.prod(moved.shape[1 : moved.dim() - len(axes)]), -1)


def _patterns(count: int, parts: int, generator: torch.Generator) -> Tensor:
    """Return (values, parts): the index of the value, of `count`, that each part of a unit takes."""
    if count**parts <= MAX_VALUES_PER_UNIT:
        return index_product(count, parts)
    if 2**parts <= MAX_VALUES_PER_UNIT:
        corners = index_product(2, parts)
    else:
        drawn = torch.randint(0, 2, (RANDOM_CORNERS, parts), generator=generator)
        corners = torch.cat(
            [torch.zeros(1, parts, dtype=torch.int64), torch.ones(1, parts, dtype=torch.int64), drawn]
        )
    uniform = torch.arange(1, count - 1)[:, None].expand(-1, parts)
    return torch.cat([corners * (count - 1), uniform])


def index_product(count: int, parts: int) -> Tensor:
    """Return (count ** parts, parts): every way to give each part one of `count` values."""
    places = count ** torch.arange(parts)
    return torch.arange(count**parts)[:, None] // places % count


def _combine_values(ladder: Tensor, patterns: Tensor) -> Tensor:
    """Combine the values of single numbers (count, units, parts) by patterns (values, parts) into (units,
    values, parts).
    """
    part = torch.arange(patterns.shape[1], device=ladder.device)
    return ladder.permute(1, 0, 2)[:, patterns.to(ladder.device), part]
