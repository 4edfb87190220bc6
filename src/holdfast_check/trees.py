"""Sums of decision trees, and lower bounds of them over a region of rows from the leaves that it reaches.

Definition. A model of trees has nodes. A node is a leaf with a value, compares a number (left if x_f <= threshold, else
right), or tests a set S of elements (left if x_i <= 1/2 for every i of S, else right). Its output is
f(x) = base + the sum over trees of the value of the leaf that x reaches; every x reaches one leaf of every tree.

Statement. For a row A of the claim, and L_t the leaves of tree t that some x of the region may reach,

    A . f(x) + b >= A . base + b + sum over t of min over L_t of A . v    for all x in the region.

A leaf is left out only if no x of the region reaches it: with (a, b] the numbers of element i on the way to the leaf, every
x there has |x_i - c_i| at least the distance from c_i to the next allowed number in (a, b]. These distances, divided by
the scales and rounded down, exceed the radius in the norm of the region; or, under norm 0, more units than it allows
exclude their value at the centre; or an element has no allowed number in (a, b], or a unit no value of its list.
Comparisons of float64 numbers are exact. Quotients and sums of nonnegative numbers are lowered by `ROW_DISTANCE`, underflow
included.

Rounding: each value A . v is a sum of at most `outputs` products, so the whole is a sum of at most trees + outputs + 2
terms, charged by `TREE_TOTAL` with the largest absolute value of every tree.

`exact_margin` computes the same number in rational arithmetic with a walk of its own through the nodes.

Assumption: float64, rounded to nearest; the model's file describes the trees.

Reference: Chen et al., "Robustness verification of tree-based models" (2019).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from typing import Any

import numpy as np

from holdfast_check.arithmetic import LARGEST, ROW_DISTANCE, TREE_TOTAL, Array, charge, down, up
from holdfast_check.errors import Rejected, require
from holdfast_check.limits import look_at_clock
from holdfast_check.rows import RowRegion

TREES = "holdfast-trees"  # The key in the metadata of a file that describes trees.
LARGEST_TABLE = 2**26  # Numbers of one side of the boxes of all leaves (512 MiB; chosen by hand).
MOST_EXACT = 2_000_000  # Leaves times inputs up to which `exact_margin` computes (chosen by hand).


@dataclass(frozen=True, eq=False)
class TreeSum:
    """The model of the module's definition.

    Attributes:
        feature, threshold, left, right: (nodes,); `left` is -1 for leaves.
        value: (nodes, outputs), of leaves.
        roots: (trees,).
        sets: node -> elements, of nodes that test a set.
    """

    inputs: int
    feature: Array
    threshold: Array
    left: Array
    right: Array
    value: Array
    roots: Array
    base: Array
    sets: dict[int, Array] = field(default_factory=dict)
    ranked: bool = False

    @property
    def outputs(self) -> int:
        return int(self.value.shape[1])

    @cached_property
    def leaf_boxes(self) -> tuple[Array, Array, Array, Array, list[tuple[int, Array]]]:
        """(leaves,) node and tree; (leaves, n) a and b; and (leaf, set) where the leaf needs x_i > 1/2 for some i of
        the set. Leaves with an empty interval are left out.
        """
        count = int((self.left < 0).sum())
        require(count * self.inputs <= LARGEST_TABLE, "more leaves and inputs than fit into memory as boxes")
        low, high = np.full((count, self.inputs), -np.inf), np.full((count, self.inputs), np.inf)
        nodes, trees = np.zeros(count, dtype=np.int64), np.zeros(count, dtype=np.int64)
        needed: list[tuple[int, Array]] = []
        found = 0
        for tree, root in enumerate(self.roots.tolist()):
            waiting: list[tuple[int, list[tuple[int, float, bool]], list[Array]]] = [(root, [], [])]
            while waiting:
                node, path, some = waiting.pop()
                left, right = int(self.left[node]), int(self.right[node])
                if left < 0:
                    nodes[found], trees[found] = node, tree
                    for at, cut, is_left in path:
                        if is_left:
                            high[found, at] = min(high[found, at], cut)
                        else:
                            low[found, at] = max(low[found, at], cut)
                    needed += [(found, elements) for elements in some]
                    found += 1
                elif node in self.sets:
                    elements = self.sets[node]
                    waiting.append((right, path, [*some, elements]))
                    waiting.append((left, [*path, *((at, 0.5, True) for at in elements.tolist())], some))
                else:
                    at, cut = int(self.feature[node]), float(self.threshold[node])
                    waiting.append((right, [*path, (at, cut, False)], some))
                    waiting.append((left, [*path, (at, cut, True)], some))
            look_at_clock()
        require(found == count, "a leaf that belongs to no tree")
        return nodes, trees, low, high, needed

    def leaf_of(self, root: int, x: list[float]) -> int:
        """The leaf of a tree that a point reaches."""
        node = root
        while self.left[node] >= 0:
            if node in self.sets:
                goes_left = all(x[at] <= 0.5 for at in self.sets[node].tolist())
            else:
                goes_left = x[int(self.feature[node])] <= float(self.threshold[node])
            node = int(self.left[node] if goes_left else self.right[node])
        return node

    def value_at(self, x: Array) -> Array:
        """(batch, n) -> (batch, outputs), in plain float64, for comparison with other programs."""
        rows = [
            self.base + sum(self.value[self.leaf_of(root, point)] for root in self.roots.tolist())
            for point in x.reshape(len(x), -1).tolist()
        ]
        return np.stack(rows)


def read_trees(inputs: Any, arrays: dict[str, Array]) -> TreeSum:
    """Read and validate a description: `inputs` and the arrays feature, threshold, left, right, value, roots, base, and
    set/NODE for nodes that test a set. Rejected if it is none.
    """
    try:
        if type(inputs) is not int or inputs < 1:
            raise ValueError(f"{inputs!r} inputs")
        feature, left, right, roots = (
            arrays[name].astype(np.int64) for name in ("feature", "left", "right", "roots")
        )
        kinds = {arrays[name].dtype.kind for name in ("feature", "left", "right", "roots")}
        threshold, value, base = (arrays[name].astype(np.float64) for name in ("threshold", "value", "base"))
        count = len(left)
        if not kinds <= {"i", "u"} or any(a.shape != (count,) for a in (feature, threshold, right, left)):
            raise ValueError("arrays of different shapes or types")
        if value.ndim != 2 or value.shape[0] != count or base.shape != value.shape[1:] or roots.ndim != 1:
            raise ValueError("values, base or roots of another shape")
        if not bool((np.abs(value) < LARGEST).all() and (np.abs(base) < LARGEST).all()) or not len(roots):
            raise ValueError("a value that is not finite, or no tree")
        sets = {
            int(name[4:]): array.astype(np.int64).ravel()
            for name, array in arrays.items()
            if name.startswith("set/")
        }
        inner = np.flatnonzero(left >= 0)
        if not bool((left[left < 0] == -1).all() and (right[left < 0] == -1).all()):
            raise ValueError("a leaf with children")
        compares = inner[~np.isin(inner, list(sets))]
        good = not np.isnan(threshold[compares]).any() and bool(
            ((feature[compares] >= 0) & (feature[compares] < inputs)).all()
        )
        if not good or any(
            node not in inner or bool(((some < 0) | (some >= inputs)).any()) for node, some in sets.items()
        ):
            raise ValueError("a node that compares nothing")
        # Children stand behind their parents and belong to one parent, and roots to none: so these are trees.
        below = np.concatenate([left[inner], right[inner]])
        behind = bool((left[inner] > inner).all() and (right[inner] > inner).all() and (below < count).all())
        every = np.sort(np.concatenate([below, roots]))
        if not behind or not np.array_equal(every, np.arange(count)):
            raise ValueError("nodes that are no trees")
    except (ValueError, KeyError, TypeError, OverflowError) as error:
        raise Rejected(f"the trees of the model cannot be read ({type(error).__name__}: {error})") from error
    return TreeSum(inputs, feature, threshold, left, right, value, roots, base, sets)


def reachable(model: TreeSum, region: RowRegion) -> Array:
    """(leaves,) bool: False only for leaves that no point of the region reaches."""
    _, _, a, b, needed = model.leaf_boxes
    c, lower, upper = region.centre, region.lower, region.upper
    if region.norm == 0 and region.radius < 1:
        lower = upper = c
    rises, falls = c <= a, c > b
    stepped = region.steps > 0
    step = np.where(stepped, region.steps, 1.0)
    # The next allowed number above a, and the largest one up to b. A real number above a may be as close to it as one
    # likes. Division by a power of two is exact.
    first = np.where(stepped, (np.floor(a / step) + 1.0) * step, a)
    last = np.where(stepped, np.floor(b / step) * step, b)
    last = np.minimum(last, b)
    none = rises & np.where(stepped, (first > b) | (first > upper), a >= upper)
    none |= falls & ((last < lower) | (stepped & (last <= a)))
    away = np.where(rises, first - c, np.where(falls, c - last, 0.0))
    away = np.where(away > 0, down(away), 0.0)
    blocked: Array = none & ~np.isin(region.units, list(region.choices))
    open_: Array = np.logical_and((a < b).all(1), ~blocked.any(1))
    for leaf, elements in needed:  # Some element of the set exceeds 1/2.
        inside = ~np.isin(region.units[elements], list(region.choices))
        if bool(inside.all()) and not bool((upper[elements] > 0.5).any()):
            open_[leaf] = False
    if region.norm == 0:
        changes = _changes(model, region, rises | falls, open_)
        return np.asarray(open_ & (changes <= region.radius))
    scaled = away / region.scales
    if math.isinf(region.norm):
        return np.asarray(open_ & (down(scaled) <= region.radius).all(1))
    power = scaled if region.norm == 1 else scaled * scaled
    total = power.sum(1)
    total = total - charge(total, ROW_DISTANCE, power.shape[1])
    limit = region.radius if region.norm == 1 else float(up(np.array(region.radius * region.radius)))
    return np.asarray(open_ & ~(total > limit))


def _changes(model: TreeSum, region: RowRegion, away: Array, open_: Array) -> Array:
    """(leaves,): a lower bound of the number of units that differ from the centre at a leaf; `open_` is cleared where a
    unit has no value there.
    """
    _, _, a, b, needed = model.leaf_boxes
    count = np.zeros(len(a))
    wanted: dict[int, list[tuple[int, Array]]] = {}
    for leaf, elements in needed:
        units = np.unique(region.units[elements])
        if len(units) == 1 and int(units[0]) in region.choices:
            own = region.elements[int(units[0])]
            wanted.setdefault(int(units[0]), []).append((leaf, np.isin(own, elements)))
        # Of a set that is spread over several units it is not known which one changes: nothing is counted.
    for unit, own in enumerate(region.elements):
        if unit not in region.choices:
            count += away[:, own].any(1)
            continue
        values = np.concatenate([region.centre[own][None], region.choices[unit]])
        fits: Array = np.all((values[None] > a[:, None, own]) & (values[None] <= b[:, None, own]), axis=2)
        for leaf, members in wanted.get(unit, ()):
            fits[leaf] &= (values[:, members] > 0.5).any(1)
        open_ &= fits.any(1) if region.radius >= 1 else fits[:, 0]
        count += ~fits[:, 0]
    return count


def margin(model: TreeSum, region: RowRegion, matrix: Array, offset: Array) -> Array:
    """(rows,): lower bounds of matrix . f(x) + offset over the region."""
    nodes, trees, *_ = model.leaf_boxes
    reached = reachable(model, region)
    contribution = model.value[nodes] @ matrix.T.astype(np.float64)
    size = np.abs(model.value[nodes]) @ np.abs(matrix.T.astype(np.float64))
    least = np.full((len(model.roots), len(matrix)), np.inf)
    largest = np.zeros_like(least)
    np.minimum.at(least, trees[reached], contribution[reached])
    np.maximum.at(largest, trees, size)
    require(bool(np.isfinite(least).all()), "a tree of which the region reaches no leaf")
    total = least.sum(0) + matrix @ model.base + offset
    sizes = largest.sum(0) + np.abs(matrix) @ np.abs(model.base) + np.abs(offset)
    found: Array = total - charge(sizes, TREE_TOTAL, len(least) + 2 * matrix.shape[1])
    return found


def shown_margin(model: TreeSum, matrix: Array, offset: Array, x: Array) -> list[Fraction]:
    """matrix . f(x) + offset at a point, exact, (rows,)."""
    point = x.tolist()
    total = [Fraction(number) for number in model.base.tolist()]
    for root in model.roots.tolist():
        value = model.value[model.leaf_of(root, point)].tolist()
        total = [some + Fraction(more) for some, more in zip(total, value)]
    return _rows(matrix, offset, total)


def _rows(matrix: Array, offset: Array, values: list[Fraction]) -> list[Fraction]:
    found = []
    for row, shift in zip(matrix.tolist(), offset.tolist()):
        found.append(sum((Fraction(m) * v for m, v in zip(row, values) if m != 0), Fraction(float(shift))))
    return found


def exact_margin(model: TreeSum, region: RowRegion, matrix: Array, offset: Array) -> list[Fraction]:
    """`margin` in rational arithmetic, (rows,), by a walk through the nodes that keeps the interval of every element."""
    total = _rows(matrix, offset, [Fraction(number) for number in model.base.tolist()])
    zero = np.zeros(len(matrix))
    for root in model.roots.tolist():
        look_at_clock()
        best: list[Fraction] | None = None
        for node, ends, sets in _paths(model, root):
            if _reaches(region, ends, sets):
                value = _rows(matrix, zero, [Fraction(number) for number in model.value[node].tolist()])
                best = value if best is None else [min(pair) for pair in zip(best, value)]
        if best is None:
            raise Rejected("a tree of which the region reaches no leaf")
        total = [some + more for some, more in zip(total, best)]
    return total


Ends = dict[int, tuple[float, float]]


def _paths(model: TreeSum, root: int) -> list[tuple[int, Ends, list[Array]]]:
    """The leaves below a node: each with the intervals (a, b] of the elements on its way, and the sets of which some
    element exceeds 1/2.
    """
    found = []
    waiting: list[tuple[int, Ends, list[Array]]] = [(root, {}, [])]
    while waiting:
        node, ends, sets = waiting.pop()
        if model.left[node] < 0:
            found.append((node, ends, sets))
            continue
        left, right = int(model.left[node]), int(model.right[node])
        places = model.sets[node].tolist() if node in model.sets else [int(model.feature[node])]
        cut = 0.5 if node in model.sets else float(model.threshold[node])
        inner = dict(ends)
        for at in places:
            low, high = inner.get(at, (-math.inf, math.inf))
            inner[at] = low, min(high, cut)
        waiting.append((left, inner, sets))
        if node in model.sets:
            waiting.append((right, ends, [*sets, model.sets[node]]))
        else:
            low, high = ends.get(places[0], (-math.inf, math.inf))
            waiting.append((right, {**ends, places[0]: (max(low, cut), high)}, sets))
    return found


def _reaches(region: RowRegion, ends: Ends, sets: list[Array]) -> bool:
    """Whether some x of the region may have its elements in these intervals and exceed 1/2 in every set; exact up to sets
    that are spread over several units, which are ignored.
    """
    changed: set[int] = set()
    total = Fraction(0)
    frozen = region.norm == 0 and region.radius < 1
    by_unit: dict[int, Ends] = {}
    for at, interval in ends.items():
        unit = int(region.units[at])
        if unit in region.choices:
            by_unit.setdefault(unit, {})[at] = interval
            continue
        gap = _gap(region, at, *interval, frozen)
        if gap is None:
            return False
        if gap == 0:
            centre = float(region.centre[at])
            if interval[0] < centre <= interval[1]:
                continue
        changed.add(unit)
        if region.norm > 0:
            share = gap / Fraction(float(region.scales[at]))
            if math.isinf(region.norm):
                if share > Fraction(region.radius):
                    return False
            else:
                total += share ** int(region.norm)
    listed = {int(unit) for some in sets for unit in region.units[some].tolist()} & set(region.choices)
    for unit in sorted(listed | set(by_unit)):
        own = region.elements[unit].tolist()
        inner = [some for some in sets if set(some.tolist()) <= set(own)]
        values = [region.centre[own].tolist(), *([] if frozen else region.choices[unit].tolist())]
        fits = [
            all(by_unit.get(unit, {}).get(at, (-math.inf, math.inf))[0] < v for at, v in zip(own, one))
            and all(v <= by_unit.get(unit, {}).get(at, (-math.inf, math.inf))[1] for at, v in zip(own, one))
            and all(any(v > 0.5 for at, v in zip(own, one) if at in some.tolist()) for some in inner)
            for one in values
        ]
        if not any(fits):
            return False
        if not fits[0]:
            changed.add(unit)
    upper = region.centre if frozen else region.upper
    for some in sets:
        apart = not {int(unit) for unit in region.units[some].tolist()} & set(region.choices)
        if apart and not any(float(upper[at]) > 0.5 for at in some.tolist()):
            return False
    if region.norm == 0:
        return len(changed) <= region.radius
    return math.isinf(region.norm) or total <= Fraction(region.radius) ** int(region.norm)


def _gap(region: RowRegion, at: int, a: float, b: float, frozen: bool) -> Fraction | None:
    """The infimum of |x - c| over the allowed numbers x of an element in (a, b]; None if there are none."""
    c, step = float(region.centre[at]), float(region.steps[at])
    low, high = (c, c) if frozen else (float(region.lower[at]), float(region.upper[at]))
    if a >= b:
        return None
    if a < c <= b:
        return Fraction(0)
    if step > 0:
        if c <= a:
            number = (Fraction(a) / Fraction(step)).__floor__() + 1
        else:
            number = (Fraction(b) / Fraction(step)).__floor__()
        x = number * Fraction(step)
        fits = a < x and (b == math.inf or x <= Fraction(b)) and _within(x, low, high)
        return abs(x - Fraction(c)) if fits else None
    if c <= a:
        return Fraction(a) - Fraction(c) if a < high else None
    return Fraction(c) - Fraction(b) if b >= low else None


def _within(x: Fraction, low: float, high: float) -> bool:
    return (low == -math.inf or Fraction(low) <= x) and (high == math.inf or x <= Fraction(high))
