"""Saliency maps: how far the margin decreases when a single unit changes (DeepTRE's sensitivity of single
units).

Units are evaluated from coarse to fine, like the levels of a quadtree: wherever a budget ends the search,
every input has a coarse map of the whole of it. A unit has a value in the map once all of its values were
evaluated; until then the map holds NaN, never 0.

Reference: W. Ruan et al., Global robustness evaluation of deep neural networks with provable guarantees for
the Hamming distance, 2019.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from holdfast import time_limit
from holdfast.errors import BadInput
from holdfast.hamming.judge_outputs import judge_outputs
from holdfast.memory_budget import format_bytes, free_bytes
from holdfast.method import Claims, Method
from holdfast.network import Network
from holdfast.problem import Problem
from holdfast.property import Robustness
from holdfast.region import Domain, Sparse
from holdfast.region.unit_choices import TriedValues, UnitChoices, replace_unit
from holdfast.region.units import Unit, unit_axes
from holdfast.result import Goal, Record, Traits
from holdfast.solver import solve

SALIENCY_KEY = "saliency"  # The name of the extra of a record that holds the map.
# Memory for a value that is tried: its number in float64, and its row, unit and value in the list; measured as the
# order of magnitude, not as a bound.
BYTES_PER_VALUE = 64
# Value of a unit that may not change in the stored map; NaN marks a unit that was not measured.
LOCKED = -math.inf


@dataclass(frozen=True, eq=False)
class SaliencyState:
    """The state of the map: all changes of single units are listed, and the first `done` of them were
    evaluated.

    The list runs through the units of all inputs from coarse to fine; the values of one unit are next to each
    other.
    """

    table: UnitChoices
    at_centre: Tensor  # (batch,)
    change: Tensor  # (3, changes): row, unit, value
    done: int
    least: Tensor  # (batch, units): lowest score found; infinite before the first evaluation
    # (batch,): index of the change with the lowest score, -1 if none is below that of the input
    worst: Tensor
    earlier: Tensor  # (batch, units): the map of the run that is resumed; NaN where it was not measured

    def fall(self) -> Tensor:
        """Return (batch, units): the map; LOCKED for units that may not change, NaN for units with values not
        yet evaluated.
        """
        row, unit, _ = self.change[:, self.done :]
        measured = torch.ones_like(self.least, dtype=torch.bool)
        measured[row, unit] = False
        found = torch.where(measured, (self.at_centre[:, None] - self.least).clamp_min(0), torch.nan)
        found = torch.where(self.earlier.isnan(), found, self.earlier)
        return torch.where(self.table.open.any(-1), found, LOCKED)


@dataclass(frozen=True)
class Saliency(Method[SaliencyState]):
    """Evaluate every single unit at all of its values, a bounded number in each step."""

    finds: ClassVar[str] = "witnesses"
    help: ClassVar[str] = "the most harmful change of a single unit or word, and a map of the effect of each"
    traits: ClassVar[Traits] = Traits(seeded=False, glass=False)
    goals: ClassVar[tuple[Goal, ...]] = ("worst",)

    levels: int = 2  # values of a number, evenly spaced over the domain

    def obstacle(self, problem: Problem) -> str | None:
        if problem.region.unit_grid is None:
            return f"saliency maps are of single units or words, not of a {type(problem.region).__name__}"
        return None

    def start(self, problem: Problem, seed: int) -> SaliencyState:
        region = problem.region
        grid = region.unit_grid
        if grid is None or self.levels < 2:
            raise BadInput(
                "maps are of single units or words at two or more values: give a Sparse or a Words region."
            )
        values = region.centre.numel() * self.levels
        if values * BYTES_PER_VALUE > free_bytes(region.centre.device):
            raise BadInput(
                f"levels: {self.levels} values of each of {region.centre.numel()} numbers need about "
                f"{format_bytes(values * BYTES_PER_VALUE)} of memory. Give fewer levels or fewer inputs."
            )
        table = region.unit_choices(
            TriedValues(self.levels, every_level=True), torch.Generator().manual_seed(0)
        )
        at_centre, _ = judge_outputs(
            problem, torch.arange(len(problem), device=table.centre.device), problem.network(region.centre)
        )
        least = at_centre.new_full((len(problem), table.units), torch.inf)
        nowhere, blank = torch.full_like(at_centre, -1, dtype=torch.int64), torch.full_like(least, torch.nan)
        return SaliencyState(table, at_centre, _coarse_to_fine(table.open, grid), 0, least, nowhere, blank)

    def resume_state(
        self, problem: Problem, state: SaliencyState, aside: Mapping[str, Tensor]
    ) -> SaliencyState:
        """Skip units that were measured before; their worst counterexample is the upper bound of the
        record.
        """
        if SALIENCY_KEY not in aside:
            return state
        earlier = aside[SALIENCY_KEY].flatten(1).to(state.least)
        earlier = torch.where(earlier.isinf(), torch.nan, earlier)
        row, unit, _ = state.change
        return replace(state, earlier=earlier, change=state.change[:, earlier[row, unit].isnan()])

    def step(self, problem: Problem, state: SaliencyState) -> tuple[SaliencyState | None, Claims]:
        for _ in range(max(1, state.table.per_step // state.table.at_once)):
            if state.done < state.change.shape[1]:
                state = _evaluate_batch(problem, state)
            if state.done == state.change.shape[1] or time_limit.has_expired():
                break
        row, unit, value = state.change[:, state.worst[state.worst >= 0]]
        points = problem.region.centre.clone()
        points[row] = state.table.as_inputs(
            replace_unit(state.table.centre[row], unit, state.table.table[row, unit, value])
        )
        grid = problem.region.unit_grid
        assert grid is not None
        claims = Claims(
            witness=points,
            found=state.worst >= 0,
            aside={SALIENCY_KEY: state.fall().reshape(len(problem), *grid)},
        )
        return (state if state.done < state.change.shape[1] else None), claims


def _coarse_to_fine(open_: Tensor, shape: Sequence[int]) -> Tensor:
    """Return the changes (3, changes): row, unit, value, in the order in which they are evaluated.

    The rank of a unit interleaves the bits of its coordinates, each reversed: a coordinate that is a multiple
    of a large power of two comes first. So every prefix of the order is a grid over the whole input, as fine
    as possible.

    Args:
        open_: (batch, units, values) bool, the changes that may be tried.
        shape: the grid of the units.
    """
    change = open_.nonzero().T
    rank = torch.zeros(tuple(shape), dtype=torch.int64)
    bits = [max(1, size - 1).bit_length() if size > 1 else 0 for size in shape]
    free = 0  # the next bit of the rank, the least significant first
    for level in range(max(bits, default=0)):
        for axis, (size, many) in enumerate(zip(shape, bits, strict=True)):
            if level < many:
                # Bit `level` of the reversed coordinate.
                place = torch.arange(size) >> (many - 1 - level) & 1
                rank += (place << free).reshape([-1 if k == axis else 1 for k in range(len(shape))])
                free += 1
    # A stable sort keeps the order of rows and values among units of the same rank.
    order = rank.flatten().to(change.device)[change[1]].argsort(stable=True)
    return change[:, order]


def _evaluate_batch(problem: Problem, state: SaliencyState) -> SaliencyState:
    """Evaluate the next batch of changes."""
    table, end = state.table, min(state.done + state.table.at_once, state.change.shape[1])
    row, unit, value = state.change[:, state.done : end]
    score, _ = judge_outputs(
        problem,
        row,
        problem.network(
            table.as_inputs(replace_unit(table.centre[row], unit, table.table[row, unit, value]))
        ),
    )
    before = torch.minimum(state.at_centre, state.least.amin(1))
    least = (
        state.least.flatten()
        .scatter_reduce(0, row * table.units + unit, score, "amin")
        .reshape(state.least.shape)
    )
    lower = (score < before[row]) & (score == least.amin(1)[row])
    first = torch.full_like(state.worst, end).scatter_reduce(
        0, row[lower], lower.nonzero()[:, 0] + state.done, "amin"
    )
    return replace(state, done=end, least=least, worst=torch.where(first < end, first, state.worst))


def saliency_problem(
    net: Network,
    x: Tensor,
    y: Tensor | Sequence[int] | None = None,
    *,
    domain: tuple[float, float] | Domain | None = None,
    unit: Unit | None = None,
    free: Tensor | None = None,
    values: Sequence[float] | Tensor | None = None,
) -> Problem:
    """Return the problem: how low can the margin of class y become when one unit changes? Options as in
    `saliency`.
    """
    centre = x.to(net.device, net.dtype)
    label = net(centre).argmax(-1) if y is None else torch.as_tensor(y, device=net.device)
    bounds = net.domain if domain is None else Domain.of(domain)
    tried = None if values is None else torch.as_tensor(list(values), dtype=torch.float64, device=net.device)
    region = Sparse(
        centre,
        torch.ones(len(centre)),
        bounds,
        axes=unit_axes(tuple(x.shape[1:]), unit),
        free=free,
        levels=tried,
    )
    return Problem(net, region, Robustness(label), "worst")


def saliency(
    net: Network,
    x: Tensor,
    y: Tensor | Sequence[int] | None = None,
    *,
    domain: tuple[float, float] | Domain | None = None,
    unit: Unit | None = None,
    free: Tensor | None = None,
    values: Sequence[float] | Tensor | None = None,
    levels: int = 2,
) -> Tensor:
    """Return (batch, *unit shape): how far changing each unit alone can decrease the margin of class y; NaN
    for locked units.

    Args:
        x: (batch, *shape), inputs.
        y: (batch,) classes. Default: the network's predictions.
        domain: the values a unit may take. Default: the network's domain.
        unit: what changes as one: "pixel", "frame" or "number". Default: the pixels of an image, else
            numbers.
        free: bool, broadcast over (batch, *unit shape): units that may change. Default: all.
        values: values that a changed number may take, all of which are tried. Default: `levels` values,
            evenly spaced over the domain.

    Needs outputs only. Zero means that none of the values tried decreases the margin. The map is an estimate:
    nothing is known between these values.
    """
    problem = saliency_problem(net, x, y, domain=domain, unit=unit, free=free, values=values)
    return stack_maps(problem, solve([problem], [Saliency(levels)]))


def stack_maps(problem: Problem, records: Sequence[Record]) -> Tensor:
    """Return the maps of the records, (batch, *unit grid); NaN for locked units and missing maps."""
    grid = problem.region.unit_grid
    assert grid is not None
    blank = problem.region.centre.new_full(grid, torch.nan)
    found = torch.stack([record.aside.get(SALIENCY_KEY, blank) for record in records])
    return torch.where(found.isinf(), torch.nan, found)
