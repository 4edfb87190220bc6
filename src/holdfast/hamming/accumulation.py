"""A first upper bound in norm 0 from few queries: sets of units that shrink while the specification fails.

Method. Let x_0 be the input. The first step evaluates the gradient at x_0 and changes the units with the largest
linearised decrease: prefixes of 1, 2, 4, ... units are queried, and bisection finds a small failing one. These are one
gradient and about thirty queries, whatever the number of units.

Each later step is one step of dual averaging with a bound k of the number of changed units. With g_i the gradient of
the score at x_i, divided by its mean absolute value,

    G = g_0 + ... + g_i,    x_{i+1} = argmin { G . z : z in the region, z differs from x_0 in at most k units },

which changes the k units with the largest decrease of G . z, each to the corner that minimises it. A point that fails is
a smaller counterexample, and k becomes SHRINK times its size. After PATIENCE gradients without one, units that are not
needed are restored, and the search ends.

Every set that fails was queried, so its size is an upper bound; nothing is claimed about smaller sets.

References: Y. Nesterov, Primal-dual subgradient methods for convex problems, 2009 (dual averaging); L. Xiao, Dual
averaging methods for regularized stochastic learning and online optimization, 2010. The set of points with at most k
changed units is not convex, so their guarantees do not apply here.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from holdfast import batch
from holdfast.hamming.judge_outputs import judge_outputs
from holdfast.problem import Problem
from holdfast.region.unit_choices import UnitChoices, replace_unit

# The bound of the number of units after a failing set, as a share of its size; chosen by hand on six pieces of the two
# photographs of scikit-learn, with EfficientNet-Lite0.
SHRINK = 0.8
PATIENCE = (
    30  # Gradients without a smaller failing set before the search ends; chosen by hand on the same pieces.
)
BISECTION_POINTS = 7  # Set sizes queried at once between one that holds and one that fails (chosen by hand).
BISECTIONS = 2  # Number of such batches of sizes (chosen by hand).
MAX_RESTORED = 256  # Sets of more units are not reduced unit by unit (chosen by hand).


@dataclass(frozen=True)
class Accumulation:
    """The state of the search, row by row; one row advances in each step."""

    x: Tensor  # (batch, units, parts): the input with some units changed
    total: Tensor  # (batch, units, parts): the sum of the normalised gradients
    size: Tensor  # (batch,) int64: units that may be changed; 0: before the first gradient
    stalled: Tensor  # (batch,) int64: gradients since the last smaller failing set
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
    return Accumulation(table.centre, torch.zeros_like(table.centre), none, none, may_change, 0)


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
    search, state = _RowSearch(problem, table, row), replace(state, turn=row + 1)
    if int(state.stalled[row]) > PATIENCE:
        state = replace(state, open=_with(state.open, row, False))
        return state, search.restore_units(witness[row], float(best[row]))
    if not int(state.size[row]):
        return search.take_first_step(state)
    found, score, total = None, *search.add_gradient(state.x[row], state.total[row])
    size = int(search.count_units(state.x[row][None])[0])
    if score <= 0 and size < float(best[row]):
        margin, fails = search.judge(state.x[row][None])
        found = FailingSet(row, state.x[row], margin[0]) if bool(fails) else None
    size = min(size - 1, max(1, int(SHRINK * size))) if found is not None else int(state.size[row])
    units, values = search.find_steepest_units(total, size)
    return replace(
        state,
        x=_with(state.x, row, table.centre[row].index_put((units,), values)),
        total=_with(state.total, row, total),
        size=_with(state.size, row, size),
        stalled=_with(state.stalled, row, 0 if found is not None else int(state.stalled[row]) + 1),
        open=_with(state.open, row, size > 0),
    ), found


@dataclass(frozen=True)
class _RowSearch:
    """The search in one row; x and point are points (units, parts)."""

    problem: Problem
    table: UnitChoices
    row: int

    def take_first_step(self, state: Accumulation) -> tuple[Accumulation, FailingSet | None]:
        """Query prefixes of all units in the order of the gradient at the input."""
        point = self.table.centre[self.row]
        _, total = self.add_gradient(point, state.total[self.row])
        units, values = self.find_steepest_units(total, self.table.units)
        found = self.find_smallest_prefix(point, units, values)
        size = len(units) if found is None else int(self.count_units(found.x[None])[0])
        after = point.index_put((units,), values) if found is None else found.x
        if found is not None:
            size = min(size - 1, max(1, int(SHRINK * size)))
        return replace(
            state,
            x=_with(state.x, self.row, after),
            total=_with(state.total, self.row, total),
            size=_with(state.size, self.row, size),
            open=_with(state.open, self.row, size > 0),
        ), found

    def count_units(self, x: Tensor) -> Tensor:
        """Return (n,): the number of changed units of x (n, units, parts)."""
        return (x != self.table.centre[self.row]).any(-1).sum(-1)

    def add_gradient(self, point: Tensor, total: Tensor) -> tuple[float, Tensor]:
        """Return the score at a point (units, parts), and the sum of the gradients with the one there, normalised."""
        one = torch.tensor([self.row], device=point.device)
        prop = batch.take(self.problem.property, one)
        score, slope = self.problem.network.score_and_gradient(self.table.as_inputs(point[None]), prop.score)
        slope = self.table.as_units(slope)[0].to(total)
        size = slope.abs().mean()
        return float(score), total + (slope / size if float(size) > 0 else slope)

    def find_steepest_units(self, slope: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """Return up to `count` units (k,) whose change from the input decreases slope . z most, best first, and their new
        values (k, parts); slope (units, parts).
        """
        one = torch.tensor([self.row], device=slope.device)
        region = batch.take(self.problem.family, one)
        corner = self.table.as_units(region.at(region.limit()).vertex(self.table.as_inputs(slope[None])))[0]
        fall = ((corner - self.table.centre[self.row]) * slope).sum(-1)
        allowed = self.table.open[self.row].any(-1) & (fall < 0)
        units = fall.masked_fill(~allowed, torch.inf).argsort(stable=True)[: min(count, int(allowed.sum()))]
        return units, corner[units]

    def find_smallest_prefix(self, point: Tensor, units: Tensor, values: Tensor) -> FailingSet | None:
        """Return the smallest failing set among the queried prefixes of the units; None if none fails."""
        count = len(units)
        sizes = sorted(
            size for size in {*(2**k for k in range(count.bit_length())), count} if 0 < size <= count
        )
        low, found = 0, None
        for turn in range(1 + BISECTIONS):
            if not sizes:
                break
            margin, fails = self.judge_prefixes(point, units, values, sizes)
            if not bool(fails.any()):
                if turn == 0:
                    return None
                low = sizes[-1]
            else:
                first = int(fails.nonzero()[0, 0])
                high = sizes[first]
                low = sizes[first - 1] if first else low
                found = FailingSet(self.row, point.index_put((units[:high],), values[:high]), margin[first])
                top = high
            sizes = _sizes_between(low, top)
        return found

    def judge_prefixes(
        self, point: Tensor, units: Tensor, values: Tensor, sizes: Sequence[int]
    ) -> tuple[Tensor, Tensor]:
        """Query the point with the first `size` of the units changed; scores and failures (sizes,) each."""
        x = torch.stack([point.index_put((units[:size],), values[:size]) for size in sizes])
        return self.judge(x)

    def judge(self, x: Tensor) -> tuple[Tensor, Tensor]:
        rows = torch.full((len(x),), self.row, device=x.device)
        return judge_outputs(self.problem, rows, self.problem.network(self.table.as_inputs(x)))

    def restore_units(self, point: Tensor, best: float) -> FailingSet | None:
        """Restore units that a failing set does not need, the least needed first; None if all are needed.

        One query for each unit ranks them, and bisection finds how many of them may be restored together.
        """
        if not 1 < best <= MAX_RESTORED:
            return None
        units = (point != self.table.centre[self.row]).any(-1).nonzero().flatten()
        own = self.table.centre[self.row, units]
        without = replace_unit(point.expand(len(units), -1, -1), units, own)
        margin, fails = self.judge(without)
        if not bool(fails.any()):
            return None
        order = margin.argsort(stable=True)[: int(fails.sum())]
        low, high = 1, len(order) + 1
        found = FailingSet(self.row, without[order[0]], margin[order[0]])
        sizes = [2**k for k in range(1, high.bit_length()) if 2**k < high]
        while sizes:
            margins, fails = self.judge_prefixes(point, units[order], own[order], sizes)
            held = fails.nonzero().flatten()
            if len(held):
                last = int(held[-1])
                low = sizes[last]
                found = FailingSet(
                    self.row, point.index_put((units[order[:low]],), own[order[:low]]), margins[last]
                )
                high = sizes[last + 1] if last + 1 < len(sizes) else high
            else:
                high = sizes[0]
            sizes = _sizes_between(low, high)
        return found


def _with(values: Tensor, row: int, value: Tensor | float) -> Tensor:
    """Return a copy with another value in one row."""
    changed = values.clone()
    changed[row] = value
    return changed


def _sizes_between(low: int, high: int) -> list[int]:
    """Return up to BISECTION_POINTS sizes strictly between two sizes, evenly spaced, ascending."""
    steps = BISECTION_POINTS + 1
    return sorted({low + (high - low) * k // steps for k in range(1, steps)} - {low, high})
