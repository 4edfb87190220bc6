"""Subproblems of regions with counted changes (norm 0): trees of split units, and minima of linear functions over a leaf.

Statement. A node of a tree has units that stay at the centre, units that were taken, and free ones, of which at most
`budget` differ from the centre. Splitting a free unit gives a child where it stays and a child where it is taken and the
budget is one less: x has the centre's values there or not. A taken unit has a box, of which an element's interval is
halved, or a list of values, which is divided in two. Both children cover their parent.

`CountedRegion.minimum`: with g_j <= 0 the smallest change of row . x by free unit j alone,

    row . x >= sum over units that stay or are free of row . c + sum over taken units of their minimum
               + the sum of the `budget` smallest g_j,

since units do not interact and at most `budget` free ones differ. The minimum over a box is taken at its ends, and over a
list at one of its values.

Rounding: every sum has at most n + units terms, with absolute values below |row| (|c| + the largest |x|); `UNIT_GAINS`
covers the sums at the centre, those of units, their differences, and the last sum.

Assumption: float64, rounded to nearest.

Reference: docs/counting.md for changed pixels; Jia et al., "Certified robustness to adversarial word substitutions" (2019),
for lists of words.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from holdfast_check.arithmetic import UNIT_GAINS, Array, charge
from holdfast_check.errors import require
from holdfast_check.limits import look_at_clock
from holdfast_check.region import CheckedRegion
from holdfast_check.rows import RowRegion

STAYS, FREE, TAKEN = 0, 1, 2  # The states of a unit.


@dataclass(frozen=True, eq=False)
class UnitLeaf:
    """A node: states (units,), the budget of the free units, and parts of boxes and lists of taken units."""

    states: Array
    budget: int
    boxes: dict[int, tuple[float, float]] = field(default_factory=dict)  # element: its interval
    lists: dict[int, tuple[int, int]] = field(
        default_factory=dict
    )  # unit: the first value and the one after the last


def root(region: RowRegion) -> UnitLeaf:
    """The node of the whole region."""
    moves = np.array([
        unit in region.choices or bool((region.lower[own] < region.upper[own]).any())
        for unit, own in enumerate(region.elements)
    ])  # fmt: skip
    return UnitLeaf(np.where(moves, FREE, STAYS).astype(np.int8), int(region.radius))


def split(region: RowRegion, leaf: UnitLeaf, cut: int) -> tuple[UnitLeaf, UnitLeaf]:
    """The children of a node: `cut` is a unit, or the number of units plus an element of a taken unit."""
    require(0 <= cut < region.count + len(region.units), f"the tree splits unit {cut}, which does not exist")
    if cut >= region.count:
        at = cut - region.count
        unit = int(region.units[at])
        require(
            leaf.states[unit] == TAKEN and unit not in region.choices,
            f"the tree halves element {at}, not taken",
        )
        low, high = leaf.boxes.get(at, (float(region.lower[at]), float(region.upper[at])))
        middle = low / 2 + high / 2
        require(low <= middle <= high, f"the tree halves element {at} where it cannot be halved")
        first, second = {**leaf.boxes, at: (low, middle)}, {**leaf.boxes, at: (middle, high)}
        return replace(leaf, boxes=first), replace(leaf, boxes=second)
    if leaf.states[cut] == TAKEN:
        require(cut in region.choices, f"the tree divides the list of unit {cut}, which has none")
        start, stop = leaf.lists.get(cut, (0, len(region.choices[cut])))
        require(stop - start >= 2, f"the tree divides the list of unit {cut}, of which one value is left")
        middle_place = (start + stop) // 2
        return (
            replace(leaf, lists={**leaf.lists, cut: (start, middle_place)}),
            replace(leaf, lists={**leaf.lists, cut: (middle_place, stop)}),
        )
    require(leaf.states[cut] == FREE and leaf.budget >= 1, f"the tree takes unit {cut}, which may not change")
    stays, taken = leaf.states.copy(), leaf.states.copy()
    stays[cut], taken[cut] = STAYS, TAKEN
    return replace(leaf, states=stays), replace(leaf, states=taken, budget=leaf.budget - 1)


def unit_leaves(region: RowRegion, cuts: Array) -> list[UnitLeaf]:
    """The leaves of a tree in depth-first order, each node before its children, -1 for a leaf."""
    found, waiting = list[UnitLeaf](), [root(region)]
    for cut in cuts.tolist():
        look_at_clock()
        require(waiting, "the tree continues after its last leaf")
        node = waiting.pop()
        if cut == -1:
            found.append(node)
        else:
            waiting += split(region, node, cut)[::-1]
    require(not waiting, f"{len(waiting)} nodes have no leaf: the tree does not cover the region")
    return found


@dataclass(frozen=True)
class CountedRegion(CheckedRegion):
    """A batch of leaves as a region whose linear functions are minimised as the module's statement says."""

    rows: RowRegion | None = None
    states: Array | None = None  # (batch, units)
    budgets: Array | None = None  # (batch,)
    listed: dict[int, Array] | None = None  # unit: (batch, values) bool, the values that a leaf keeps

    @staticmethod
    def of(region: RowRegion, leaves: list[UnitLeaf]) -> CountedRegion:
        """The region of some leaves."""
        states = np.stack([leaf.states for leaf in leaves])
        budgets = np.array([leaf.budget for leaf in leaves])
        moves: Array = np.asarray((states == TAKEN) | ((states == FREE) & (budgets >= 1)[:, None]))
        each = moves[:, region.units]
        lower, upper = (np.where(each, end, region.centre) for end in (region.lower, region.upper))
        for place, leaf in enumerate(leaves):
            for at, (low, high) in leaf.boxes.items():
                lower[place, at], upper[place, at] = low, high
        listed = {}
        for unit, values in region.choices.items():
            kept = np.ones((len(leaves), len(values)), dtype=bool)
            for place, leaf in enumerate(leaves):
                if unit in leaf.lists:
                    kept[place] = False
                    kept[place, slice(*leaf.lists[unit])] = True
            listed[unit] = kept
            empty: Array = ~np.asarray(kept.any(1))
            own, centre = region.elements[unit], region.centre[region.elements[unit]]
            least = np.where(kept[..., None], values, np.inf).min(1, initial=np.inf)
            most = np.where(kept[..., None], values, -np.inf).max(1, initial=-np.inf)
            free = states[:, unit, None] == FREE
            least, most = (
                np.where(free | empty[:, None], np.minimum(least, centre), least),
                np.where(free | empty[:, None], np.maximum(most, centre), most),
            )
            inside = moves[:, unit, None]
            lower[:, own], upper[:, own] = np.where(inside, least, centre), np.where(inside, most, centre)
        return CountedRegion(lower, upper, 0.0, region.centre, None, region, states, budgets, listed)

    @cached_property
    def _order(self) -> tuple[Array, Array]:
        """The elements by unit, and where each unit begins."""
        assert self.rows is not None
        order = np.argsort(self.rows.units, kind="stable")
        return order, np.searchsorted(self.rows.units[order], np.arange(self.rows.count))

    def minimum(self, rows: Array) -> Array:
        """(batch, rows, n) -> (batch, rows): lower bounds of row . x over each leaf."""
        assert self.rows is not None
        assert self.states is not None
        assert self.budgets is not None
        assert self.listed is not None
        assert self.centre is not None
        order, starts = self._order
        centre = rows * self.centre
        ends = np.minimum(rows * self.lower[:, None], rows * self.upper[:, None])
        still, low = (np.add.reduceat(part[..., order], starts, axis=-1) for part in (centre, ends))
        for unit, values in self.rows.choices.items():
            own, kept = self.rows.elements[unit], self.listed[unit]
            at = rows[..., own] @ values.T
            at = np.where(kept[:, None], at, np.inf).min(-1, initial=np.inf)
            low[..., unit] = np.where(np.asarray(kept.any(1))[:, None], at, still[..., unit])
        gains = np.where((self.states == FREE)[:, None], np.minimum(low - still, 0.0), 0.0)
        gains = np.sort(gains, axis=-1)
        taken = np.arange(gains.shape[-1]) < self.budgets[:, None, None]
        total = np.where((self.states == TAKEN)[:, None], low, still).sum(-1)
        total = total + np.where(taken, gains, 0.0).sum(-1)
        largest = np.maximum(np.abs(self.lower), np.abs(self.upper)) + np.abs(self.centre)
        size = (np.abs(rows) * largest[:, None]).sum(-1)
        found: Array = total - charge(size, UNIT_GAINS, rows.shape[-1] + len(starts))
        return found
