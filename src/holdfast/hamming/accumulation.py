"""A first upper bound in norm 0 from few queries: units are changed in the order of the gradient until the
specification fails.

Method. Let x be the input with some units changed, g the gradient of the score at x, and c(u) the values of unit u
that minimise the linearised score g . x. A round begins at the input and changes, behind each gradient, the
`chunk` units with the largest linearised decrease g_u . (x_u - c(u)), until the set fails; bisection then finds a small
failing prefix of the last chunk. In the first round all units are one chunk, and prefixes of sizes 1, 2, 4, ... are
queried: one gradient and about thirty queries, whatever the number of units. Each later round takes an eighth of the
smallest failing set behind a gradient, down to single units. Finally units that are not needed are restored.

Every set that fails was queried, so its size is an upper bound; nothing is claimed about smaller sets.

Reference: N. Papernot et al., The limitations of deep learning in adversarial settings (JSMA), 2016, changes the
units with the largest gradient one or two at a time.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from holdfast import batch
from holdfast.hamming.judge_outputs import judge_outputs
from holdfast.problem import Problem
from holdfast.region.unit_choices import UnitChoices, replace_unit

CHUNKS = 8  # Chunks of a round, as a share of the smallest failing set so far (chosen by hand).
MAX_GRADIENTS = 64  # Gradients of one round (chosen by hand).
BISECTION_POINTS = 7  # Set sizes queried at once between one that holds and one that fails (chosen by hand).
BISECTIONS = 2  # Number of such batches of sizes (chosen by hand).
MAX_RESTORED = 256  # Sets of more units are not reduced unit by unit (chosen by hand).


@dataclass(frozen=True)
class Accumulation:
    """The state of the rounds, row by row; one row advances in each step."""

    x: Tensor  # (batch, units, parts): the input with the units that were changed in this round
    chunk: Tensor  # (batch,) int64: units changed behind each gradient; 0: only restoring is left
    gradients: Tensor  # (batch,) int64: gradients of this round
    open: Tensor  # (batch,) bool: the row is not finished
    turn: int  # the row that advances next


@dataclass(frozen=True)
class FailingSet:
    """A set of changed units of one row that violates the specification."""

    row: int
    x: Tensor  # (units, parts)
    margin: Tensor  # ()


def start_accumulation(table: UnitChoices, may_change: Tensor) -> Accumulation:
    """Return the state before the first gradient; `may_change` (batch,) bool marks the rows to work on."""
    none = torch.zeros(len(table.centre), dtype=torch.int64, device=table.centre.device)
    return Accumulation(table.centre, none + table.units, none, may_change, 0)


def accumulate_units(
    problem: Problem, table: UnitChoices, state: Accumulation, best: Tensor, witness: Tensor
) -> tuple[Accumulation, FailingSet | None]:
    """Advance one row by one gradient, or restore the units that its best set does not need.

    Args:
        best: (batch,), number of units of the smallest failing set so far, infinite if there is none.
        witness: (batch, units, parts), these sets.

    Returns the state, and a failing set if one was found that is smaller.
    """
    order = (torch.arange(len(state.open)) + state.turn) % len(state.open)
    row = int(order[state.open[order.to(state.open.device)].cpu()][0])
    state = replace(state, turn=row + 1)
    if not int(state.chunk[row]):
        state = replace(state, open=_with(state.open, row, False))
        return state, _restore_units(problem, table, row, witness[row], float(best[row]))
    point = state.x[row]
    units, values = _steepest_units(problem, table, row, point, int(state.chunk[row]))
    room = best[row] - 1 - _count(table, row, point[None])[0]
    units, values = (part[: max(0, int(room))] if room.isfinite() else part for part in (units, values))
    found = _smallest_prefix(
        problem, table, row, point, units, values, every=int(state.chunk[row]) == table.units
    )
    if found is not None:
        best = _with(best, row, float(_count(table, row, found.x[None])[0]))
        return _end_round(table, state, row, float(best[row])), found
    after = point.index_put((units,), values)
    state = replace(
        state,
        x=_with(state.x, row, after),
        gradients=_with(state.gradients, row, int(state.gradients[row]) + 1),
    )
    if len(units) < int(state.chunk[row]) or int(state.gradients[row]) >= MAX_GRADIENTS:
        state = _end_round(table, state, row, float(best[row]))
    return state, None


def _end_round(table: UnitChoices, state: Accumulation, row: int, best: float) -> Accumulation:
    """Begin the next round of a row with smaller chunks; 0 if no smaller one can reach below `best`."""
    chunk = int(state.chunk[row])
    smaller = min(chunk - 1, max(1, int(best) // CHUNKS)) if best < torch.inf else chunk // 16
    if best < torch.inf and smaller * MAX_GRADIENTS < best:
        smaller = 0
    return replace(
        state,
        x=_with(state.x, row, table.centre[row]),
        chunk=_with(state.chunk, row, smaller),
        gradients=_with(state.gradients, row, 0),
        open=_with(state.open, row, bool(state.open[row]) and best > 1),
    )


def _with(values: Tensor, row: int, value: Tensor | float) -> Tensor:
    """Return a copy with another value in one row."""
    changed = values.clone()
    changed[row] = value
    return changed


def _count(table: UnitChoices, row: int, x: Tensor) -> Tensor:
    """Return (n,): the number of changed units of x (n, units, parts)."""
    return (x != table.centre[row]).any(-1).sum(-1)


def _steepest_units(
    problem: Problem, table: UnitChoices, row: int, point: Tensor, count: int
) -> tuple[Tensor, Tensor]:
    """Return up to `count` unchanged units (k,) whose change decreases the linearised score most, best first,
    and their new values (k, parts).
    """
    one = torch.tensor([row], device=point.device)
    prop, region = batch.take(problem.property, one), batch.take(problem.family, one)
    slope = problem.network.score_and_gradient(table.as_inputs(point[None]), prop.score)[1].to(point)
    corner = table.as_units(region.at(region.limit()).vertex(slope))[0]
    fall = ((corner - point) * table.as_units(slope)[0]).sum(-1)
    allowed = table.open[row].any(-1) & (point == table.centre[row]).all(-1) & (fall < 0)
    units = fall.masked_fill(~allowed, torch.inf).argsort(stable=True)[: min(count, int(allowed.sum()))]
    return units, corner[units]


def _smallest_prefix(
    problem: Problem,
    table: UnitChoices,
    row: int,
    point: Tensor,
    units: Tensor,
    values: Tensor,
    *,
    every: bool,
) -> FailingSet | None:
    """Return the smallest failing set among the queried prefixes of the units; None if none fails.

    every: query prefixes of all powers of two, else half of the units and all of them first.
    """
    count = len(units)
    first_sizes = {2**k for k in range(count.bit_length())} if every else {(count + 1) // 2}
    sizes = sorted(size for size in {*first_sizes, count} if 0 < size <= count)
    low, found = 0, None
    for turn in range(1 + BISECTIONS):
        if not sizes:
            break
        margin, fails = _judge_prefixes(problem, table, row, point, units, values, sizes)
        if not bool(fails.any()):
            if turn == 0:
                return None
            low = sizes[-1]
        else:
            first = int(fails.nonzero()[0, 0])
            high = sizes[first]
            low = sizes[first - 1] if first else low
            found = FailingSet(row, point.index_put((units[:high],), values[:high]), margin[first])
            top = high
        sizes = _sizes_between(low, top)
    return found


def _sizes_between(low: int, high: int) -> list[int]:
    """Return up to BISECTION_POINTS sizes strictly between two sizes, evenly spaced, ascending."""
    steps = BISECTION_POINTS + 1
    return sorted({low + (high - low) * k // steps for k in range(1, steps)} - {low, high})


def _judge_prefixes(
    problem: Problem,
    table: UnitChoices,
    row: int,
    point: Tensor,
    units: Tensor,
    values: Tensor,
    sizes: Sequence[int],
) -> tuple[Tensor, Tensor]:
    """Query the point with the first `size` of the units changed; scores and failures (sizes,) each."""
    x = torch.stack([point.index_put((units[:size],), values[:size]) for size in sizes])
    return _judge(problem, table, row, x)


def _judge(problem: Problem, table: UnitChoices, row: int, x: Tensor) -> tuple[Tensor, Tensor]:
    rows = torch.full((len(x),), row, device=x.device)
    return judge_outputs(problem, rows, problem.network(table.as_inputs(x)))


def _restore_units(
    problem: Problem, table: UnitChoices, row: int, point: Tensor, best: float
) -> FailingSet | None:
    """Restore units that a failing set does not need, the least needed first; None if all are needed.

    One query for each unit ranks them, and bisection finds how many of them may be restored together.
    """
    if not 1 < best <= MAX_RESTORED:
        return None
    units = (point != table.centre[row]).any(-1).nonzero().flatten()
    own = table.centre[row, units]
    without = replace_unit(point.expand(len(units), -1, -1), units, own)
    margin, fails = _judge(problem, table, row, without)
    if not bool(fails.any()):
        return None
    order = margin.argsort(stable=True)[: int(fails.sum())]
    low, high = 1, len(order) + 1
    found = FailingSet(row, without[order[0]], margin[order[0]])
    sizes = [2**k for k in range(1, high.bit_length()) if 2**k < high]
    while sizes:
        margins, fails = _judge_prefixes(problem, table, row, point, units[order], own[order], sizes)
        held = fails.nonzero().flatten()
        if len(held):
            last = int(held[-1])
            low = sizes[last]
            found = FailingSet(row, point.index_put((units[order[:low]],), own[order[:low]]), margins[last])
            high = sizes[last + 1] if last + 1 < len(sizes) else high
        else:
            high = sizes[0]
        sizes = _sizes_between(low, high)
    return found
