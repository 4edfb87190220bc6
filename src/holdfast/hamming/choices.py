"""What a unit may become: the moves of every search among changed units, for pixels, frames, features and words alike."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from holdfast import batch
from holdfast.network.trees import Trees
from holdfast.problem import Problem
from holdfast.region import ChangedColumns, Sparse, Words

MOST = 64  # values tried for one unit: every combination of its parts' values up to here
CORNERS = 14  # of a unit with many parts, beside its lowest and its highest
SPREAD = 16  # of many levels
ELEMENTS = (
    2**17
)  # numbers in the inputs asked at once: few enough for the activations of small networks to stay in the cache
COLUMN = 256  # values tried for a column of a table
PIECES = 128  # so many times that in one step of a method


@dataclass(frozen=True, eq=False)
class UnitChoices:
    """Inputs cut into units of equal size, and for each unit of each input the values that are tried.

    An input as units is (units, parts): a colour pixel has three parts, a word as many as its vector.
    """

    shape: tuple[int, ...]  # of an input
    axes: tuple[int, ...]  # of an input, that belong to one unit
    centre: Tensor  # (batch, units, parts)
    table: Tensor  # (batch, units, values, parts)
    open: Tensor  # (batch, units, values) bool: may be tried, and is a change

    @property
    def units(self) -> int:
        return int(self.table.shape[1])

    @property
    def values(self) -> int:
        return int(self.table.shape[2])

    def as_units(self, x: Tensor) -> Tensor:
        """(n, *shape) -> (n, units, parts)."""
        return _as_units(x, self.axes)

    def as_inputs(self, units: Tensor) -> Tensor:
        """(n, units, parts) -> (n, *shape)."""
        kept = [size for axis, size in enumerate(self.shape) if axis not in self.axes]
        whole = units.reshape(len(units), *kept, *(self.shape[axis] for axis in self.axes))
        return whole.movedim(tuple(range(-len(self.axes), 0)), tuple(axis + 1 for axis in self.axes))

    def changed_units(self, row: Tensor, units: Tensor) -> Tensor:
        """(n,), (n, units, parts) -> (n, units) bool."""
        return (units != self.centre[row]).any(-1)

    def one_put_back(self, row: Tensor, units: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """(n,), (n, units, parts) -> piece by piece, every input with one changed unit as it was: which input (m,), (m, units, parts)."""
        which, unit = self.changed_units(row, units).nonzero(as_tuple=True)
        for some, back in zip(which.split(self.at_once), unit.split(self.at_once), strict=True):
            if len(some):
                yield some, put(units[some], back, self.centre[row[some], back])

    def ask(self, problem: Problem, units: Tensor) -> Tensor:
        """(n, units, parts) -> the network's outputs (n, outputs)."""
        return problem.network(self.as_inputs(units))

    @property
    def at_once(self) -> int:
        """How many inputs to make and ask at once."""
        most = 32 * ELEMENTS if self.centre.is_cuda else ELEMENTS
        return max(1, most // max(1, math.prod(self.shape)))

    @property
    def per_step(self) -> int:
        """How many inputs to ask in one step, so that a search can be stopped in time."""
        return PIECES * self.at_once


@dataclass(frozen=True, eq=False)
class ColumnChoices(UnitChoices):
    """The units are the columns of a table, of one number each, or of as many as a word has values; filled up with zeros."""

    places: (
        Tensor  # (columns, parts): where its numbers stand in a row; beyond the row's end where it has fewer
    )

    def as_units(self, x: Tensor) -> Tensor:
        return _at(x, self.places)

    def as_inputs(self, units: Tensor) -> Tensor:
        row = units.new_zeros((len(units), self.shape[0] + 1))
        return row.index_copy(1, self.places.flatten(), units.flatten(1))[:, :-1]


def _at(x: Tensor, places: Tensor) -> Tensor:
    """(..., features), (columns, parts) -> (..., columns, parts)."""
    return torch.nn.functional.pad(x, (0, 1))[..., places]


def column_choices(region: ChangedColumns, count: int, trees: Trees | None) -> ColumnChoices:
    """The values tried: of a word all; of a number those just on both sides of the thresholds of the trees, or without trees `count`
    evenly over its domain."""
    features, device = region.shape[0], region.centre.device
    parts = max(len(own) for own in region.columns.places)
    places = torch.tensor(
        [[*own, *[features] * (parts - len(own))] for own in region.columns.places], device=device
    )
    lower, upper = region.ends()
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
            if len(values) > COLUMN:
                values = values[torch.linspace(0, len(values) - 1, COLUMN).round().long()]
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


def put(x: Tensor, unit: Tensor, value: Tensor) -> Tensor:
    """(n, units, parts), (n,), (n, parts) -> a copy in which one unit of each has its value."""
    return x.index_put((torch.arange(len(x), device=x.device), unit), value)


def judge_outputs(problem: Problem, row: Tensor, outputs: Tensor) -> tuple[Tensor, Tensor]:
    """(n,) rows of the problem, (n, outputs) -> their scores (n,), and which of them fail beyond doubt (n,).

    A witness must fail in float64 too, so a score within rounding of zero is left in doubt: another change that
    fails by more is as easily found. An exact tie is no accident. Where the lowest score is asked for, nothing fails.
    """
    score = batch.take(problem.property, row).score(outputs)
    rounded = problem.network.differentiable and outputs.dtype != torch.float64
    doubt = 32 * torch.finfo(outputs.dtype).eps * outputs.abs().amax(-1) if rounded else 0
    fails = ~(score > -doubt) | (score == 0)
    return score.nan_to_num(nan=-torch.inf), fails & (problem.goal == "radius")


def choices(
    region: Sparse | Words, count: int, generator: torch.Generator, *, every_level: bool = False
) -> UnitChoices:
    """The values tried: for words their whole set; for numbers `count` evenly over the domain, or the levels of the region.

    Of many levels a spread with both bounds is taken, unless every one is asked for. A unit of several parts takes every combination of
    their values while these are few, else corners.
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
    """(n, *shape) -> (n, units, parts)."""
    moved = x.movedim(tuple(axis + 1 for axis in axes), tuple(range(-len(axes), 0)))
    return moved.reshape(len(x), math.prod(moved.shape[1 : moved.dim() - len(axes)]), -1)


def _ladder(region: Sparse, count: int, every_level: bool) -> Tensor:
    """-> (count, *shape): the values tried for each number by itself, rising."""
    levels, like = region.values(), region.centre
    if levels is not None:
        most = len(levels) if every_level else min(len(levels), SPREAD)
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
    """-> (values, parts): which of its `count` values each part of a unit takes."""
    if count**parts <= MOST:
        return product(count, parts)
    if 2**parts <= MOST:
        corners = product(2, parts)
    else:
        drawn = torch.randint(0, 2, (CORNERS, parts), generator=generator)
        corners = torch.cat(
            [torch.zeros(1, parts, dtype=torch.int64), torch.ones(1, parts, dtype=torch.int64), drawn]
        )
    grey = torch.arange(1, count - 1)[:, None].expand(-1, parts)
    return torch.cat([corners * (count - 1), grey])


def product(count: int, parts: int) -> Tensor:
    """-> (count ** parts, parts): every way to give each part one of `count` values."""
    places = count ** torch.arange(parts)
    return torch.arange(count**parts)[:, None] // places % count


def _combine_values(ladder: Tensor, patterns: Tensor) -> Tensor:
    """(count, units, parts), (values, parts) -> (units, values, parts)."""
    part = torch.arange(patterns.shape[1], device=ladder.device)
    return ladder.permute(1, 0, 2)[:, patterns.to(ladder.device), part]
