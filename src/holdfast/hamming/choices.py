"""The values that searches over changed units try, for pixels, frames, features and words alike."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from holdfast import batch
from holdfast.memory_budget import LARGE_INPUT_NUMBERS, rows_per_call
from holdfast.network.trees import Trees
from holdfast.problem import Problem
from holdfast.region import ChangedColumns, Sparse, Words

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
MAX_COLUMN_VALUES = 256  # Largest number of values tried for a column of a table (chosen by hand).
QUERIES_PER_STEP = 128  # Number of such queries in one step of a method (chosen by hand).
# Large inputs queried in one step: 32 forward passes of a network for 224 x 224 pixels take one to ten seconds on a CPU
# core (chosen by hand).
LARGE_INPUTS_PER_STEP = 32


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

    def query_network(self, problem: Problem, units: Tensor) -> Tensor:
        """Query the network: (n, units, parts) to outputs (n, outputs)."""
        return problem.network(self.as_inputs(units))

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


def _at(x: Tensor, places: Tensor) -> Tensor:
    """Gather (..., features) at (columns, parts) into (..., columns, parts)."""
    return torch.nn.functional.pad(x, (0, 1))[..., places]


def column_choices(region: ChangedColumns, count: int, trees: Trees | None) -> ColumnChoices:
    """Return the values tried in each column: all values of a word; for a number, both sides of every
    threshold of the trees.

    Without trees a number takes `count` values, evenly spaced over its domain.
    """
    features, device = region.shape[0], region.centre.device
    parts = max(len(own) for own in region.columns.places)
    places = torch.tensor(
        [[*own, *[features] * (parts - len(own))] for own in region.columns.places], device=device
    )
    lower, upper = region.feature_bounds()
    tried = []
    for column, own in zip(region.columns.each, region.columns.places, strict=True):
        if column.worded:
            tried.append(
                torch.nn.functional.pad(torch.eye(len(own), dtype=torch.float64), (0, parts - len(own)))
            )
        else:
            low, high = float(lower[own[0]]), float(upper[own[0]])
            values = (
                torch.linspace(low, high, count, dtype=torch.float64)
                if column.movable
                else torch.zeros(0, dtype=torch.float64)
            )
            if trees is not None and column.movable:
                ends = trees.thresholds(own[0])
                values = torch.cat([values, ends, torch.nextafter(ends, torch.full_like(ends, torch.inf))])
            if column.step > 0:
                steps = (values / column.step).floor()
                values = torch.cat([steps, steps + 1]).unique() * column.step
            values = values[(values >= low) & (values <= high)].unique()
            if len(values) > MAX_COLUMN_VALUES:
                values = values[torch.linspace(0, len(values) - 1, MAX_COLUMN_VALUES).round().long()]
            tried.append(torch.nn.functional.pad(values[:, None], (0, parts - 1)))
    most = max(len(values) for values in tried)
    filled = torch.stack(
        [torch.nn.functional.pad(values, (0, 0, 0, most - len(values)), value=torch.nan) for values in tried]
    )
    centre = _at(region.centre, places)
    table = filled.to(centre).expand(len(region), -1, -1, -1)
    known = ~table.isnan().any(-1)
    free = (region.by_column(region.moving.double()) > 0)[:, None]
    table = torch.where(known[..., None], table, centre[:, :, None])
    return ColumnChoices(
        region.shape, (), centre, table, free & known & (table != centre[:, :, None]).any(-1), places
    )


def replace_unit(x: Tensor, unit: Tensor, value: Tensor) -> Tensor:
    """Return a copy of x (n, units, parts) in which unit (n,) of each has its value (n, parts)."""
    return x.index_put((torch.arange(len(x), device=x.device), unit), value)


def judge_outputs(problem: Problem, row: Tensor, outputs: Tensor) -> tuple[Tensor, Tensor]:
    """Return the scores (n,) of outputs (n, outputs) for rows (n,) of the problem, and which of them
    certainly fail (n,).

    A counterexample must fail in float64 too, so a score within rounding error of zero does not count as
    failing: another change that fails by more is found as easily. An exact tie counts, since it is no effect
    of rounding. If the goal is the lowest score, nothing fails.
    """
    score = batch.take(problem.property, row).score(outputs)
    rounded = problem.network.differentiable and outputs.dtype != torch.float64
    doubt = 32 * torch.finfo(outputs.dtype).eps * outputs.abs().amax(-1) if rounded else 0
    fails = ~(score > -doubt) | (score == 0)
    return score.nan_to_num(nan=-torch.inf), fails & (problem.goal == "radius")


def choices(
    region: Sparse | Words, count: int, generator: torch.Generator, *, every_level: bool = False
) -> UnitChoices:
    """Return the values tried: for words their whole set; for numbers `count` evenly spaced values of the
    domain, or the region's levels.

    Of many levels an evenly spaced choice that includes both bounds is taken, unless `every_level` is set. A
    unit of several parts takes every combination of their values while these are few, else corners.
    """
    axes: tuple[int, ...]
    if isinstance(region, Words):
        axes, table = (1,), region.vectors.table[region.choices].to(region.centre)
        free = torch.ones(table.shape[:2], dtype=torch.bool, device=table.device)
    else:
        axes, free = region.axes, region.flatten_units(region.free_units())
        ladder = _as_units(_ladder(region, count, every_level), axes)
        table = _combine_values(ladder, _patterns(ladder.shape[0], ladder.shape[2], generator)).expand(
            len(region), -1, -1, -1
        )
    centre = _as_units(region.centre, axes)
    return UnitChoices(
        region.shape, axes, centre, table, free[..., None] & (table != centre[:, :, None]).any(-1)
    )


def _as_units(x: Tensor, axes: tuple[int, ...]) -> Tensor:
    """Reshape (n, *shape) to (n, units, parts)."""
    moved = x.movedim(tuple(axis + 1 for axis in axes), tuple(range(-len(axes), 0)))
    return moved.reshape(len(x), math.prod(moved.shape[1 : moved.dim() - len(axes)]), -1)


def _ladder(region: Sparse, count: int, every_level: bool) -> Tensor:
    """Return (count, *shape): the values tried for each number by itself, in increasing order."""
    levels, like = region.values(), region.centre
    if levels is not None:
        most = len(levels) if every_level else min(len(levels), MAX_LEVELS)
        chosen = levels[torch.linspace(0, len(levels) - 1, most, dtype=torch.float64).round().long()]
        return chosen.to(like).reshape(-1, *(1 for _ in region.shape)).expand(-1, *region.shape)
    lower, upper = (
        end.to(like.device).expand(region.shape) for end in (region.domain.lower, region.domain.upper)
    )
    share = torch.linspace(0, 1, count, dtype=torch.float64, device=like.device).reshape(
        -1, *(1 for _ in region.shape)
    )
    return torch.where(share < 1, lower + share * (upper - lower), upper).to(like)


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
