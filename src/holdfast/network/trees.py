"""Sums of decision trees as boxes: each leaf is a box of inputs with the value that it adds to the outputs.

A node of a tree compares x[feature] with a threshold, in the model's own arithmetic and after the scalers
before it in a pipeline. All these operations are monotone in x, so for every node there is a largest float64
number that goes left. It is found by bisection over the float64 numbers, which uses only the comparison
itself. So the boxes are closed, and every float64 input is in exactly one leaf of every tree.

A node may also split the values of a categorical column, which a row stores as one-hot numbers. "The value is in
S" is the box in which the number of each value outside S is at most 1/2. A row has exactly one 1 among these
numbers, so it is in exactly one leaf here, too; points that are no rows may be in several.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

# Largest number of float64 values in one side of the boxes of all leaves: 256 MiB (chosen by hand).
LARGEST = 2**25
# Number of comparisons of inputs with sides of boxes that are in memory at once (chosen by hand).
ELEMENTS = 2**24
# Number of halvings that reduce the range of all 2**64 float64 bit patterns to one number, and one more.
BISECTION_STEPS = 65
# Upper bound of the one-hot number of a value that is not chosen: any number of [0, 1) would do (chosen by hand).
NOT_CHOSEN = 0.5

Array = NDArray[Any]


@dataclass(frozen=True, eq=False)
class Nodes:
    """The nodes of all trees in one list.

    Attributes:
        feature: (nodes,) int, the feature that a node compares.
        left: (nodes,) int, the left child; -1 for a leaf.
        right: (nodes,) int, the right child.
        values: (nodes, outputs) float64, the values of leaves.
        tree: (nodes,) int, the tree of each node.
        roots: (trees,) int.
        goes_left: (n,) numbers, (n,) nodes -> (n,) bool: whether these numbers of the nodes' features go
            left. Non-increasing in the numbers.
        arithmetic: the numpy type in which the model adds up its trees.
        word_splits: for a node that splits the values of a categorical column, the features of the values
            that go left, and of the values that go right. Such a node compares no number.
    """

    feature: Array
    left: Array
    right: Array
    values: Array
    tree: Array
    roots: Array
    goes_left: Callable[[Array, Array], Array]
    arithmetic: type
    word_splits: Mapping[int, tuple[Array, Array]] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class SplitNodes:
    """The nodes from which the boxes of `Trees` were made, for certificates.

    Attributes:
        threshold: (nodes,) the largest float64 number that goes left; NaN for leaves.
        leaf: (leaves,) the node of each leaf of `Trees`.
    """

    feature: Array
    left: Array
    right: Array
    threshold: Array
    roots: Array
    leaf: Array
    word_splits: Mapping[int, tuple[Array, Array]]


@dataclass(frozen=True, eq=False)
class Trees:
    """outputs(x) = base + the sum over trees of the values of the leaf that contains x.

    Attributes:
        lower: (leaves, features) float64, lower bounds of the closed boxes.
        upper: (leaves, features) float64, upper bounds.
        tree: (leaves,) int64, the tree of each leaf, in increasing order.
        values: (leaves, outputs) float64.
        base: (outputs,) float64.
        unit: machine epsilon of the arithmetic in which the model adds up.
        nodes: the nodes of the trees.
    """

    lower: Tensor
    upper: Tensor
    tree: Tensor
    values: Tensor
    base: Tensor
    unit: float
    nodes: SplitNodes

    @property
    def count(self) -> int:
        """The number of trees."""
        return int(self.tree[-1]) + 1

    def holds(self, x: Tensor) -> Tensor:
        """(n, features) -> (n, leaves) bool: whether each leaf contains each point."""
        parts = [
            ((p[:, None] >= self.lower) & (p[:, None] <= self.upper)).all(-1)
            for p in x.split(self._at_once())
        ]
        return torch.cat(parts)

    def _at_once(self) -> int:
        return max(1, ELEMENTS // self.lower.numel())

    def sum(self, x: Tensor) -> Tensor:
        """(n, features) float64 -> (n, outputs): base plus the sum over trees, in float64."""
        return self.base + self.holds(x).double() @ self.values

    def cell(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """(n, features) -> lower and upper bounds (n, features) of the box around each point in which all
        trees are constant."""
        lower, upper = [], []
        for part in x.split(self._at_once()):
            inside = self.holds(part)[..., None]
            lower.append(torch.where(inside, self.lower, -torch.inf).amax(1))
            upper.append(torch.where(inside, self.upper, torch.inf).amin(1))
        return torch.cat(lower), torch.cat(upper)

    def rounding_error(self) -> Tensor:
        """(outputs,) float64: a bound of |the model's own sum, in its own arithmetic and order - the exact
        sum|."""
        zeros = torch.zeros((self.count, self.values.shape[1]), dtype=torch.float64)
        size: Tensor = zeros.scatter_reduce(
            0, self.tree[:, None].expand_as(self.values), self.values.abs(), "amax"
        )
        error: Tensor = 8 * self.unit * (self.count + 8) * (size.sum(0) + self.base.abs())
        return error

    def thresholds(self, feature: int) -> Tensor:
        """The thresholds of a feature in increasing order: the largest numbers that go left in some node."""
        bounds = self.upper[:, feature]
        found: Tensor = bounds[bounds.isfinite()].unique()
        return found

    def probes(self, count: int) -> Tensor:
        """(count, features): points directly on both sides of thresholds.

        Features without thresholds get random values of several magnitudes, because the model may read them
        too.
        """
        generator = torch.Generator().manual_seed(0)
        found = torch.randn((count, self.lower.shape[1]), generator=generator, dtype=torch.float64)
        sizes = torch.tensor([1e-3, 1.0, 30.0, 1e4], dtype=torch.float64)
        found = found * sizes[torch.randint(0, len(sizes), tuple(found.shape), generator=generator)]
        for feature in range(found.shape[1]):
            left = self.thresholds(feature)
            if len(left):
                right = torch.nextafter(left, torch.full_like(left, torch.inf))
                sides = torch.cat([left, right, left[:1] - 1 - left[0].abs(), left[-1:] + 1 + left[-1].abs()])
                found[:, feature] = sides[torch.randint(0, len(sides), (count,), generator=generator)]
        return found


def trees_of(nodes: Nodes, features: int) -> Trees | None:
    """The leaves as boxes; None if there are no leaves or too many."""
    leaves = int((nodes.left < 0).sum())
    if leaves * features > LARGEST or leaves == 0:
        return None
    threshold = _thresholds(nodes)
    splits_words = np.zeros(len(nodes.left), dtype=bool)
    splits_words[list(nodes.word_splits)] = True
    at = nodes.roots
    lower, upper = np.full((len(at), features), -np.inf), np.full((len(at), features), np.inf)
    found: list[tuple[Array, Array, Array]] = []
    while len(at):
        leaf = nodes.left[at] < 0
        found.append((at[leaf], lower[leaf], upper[leaf]))
        at, lower, upper = at[~leaf], lower[~leaf], upper[~leaf]
        feature, row, cut = nodes.feature[at], np.arange(len(at)), threshold[at]
        left_upper, right_lower, right_upper = upper.copy(), lower.copy(), upper
        row, feature, cut = (part[~splits_words[at]] for part in (row, feature, cut))
        left_upper[row, feature] = np.minimum(upper[row, feature], cut)
        right_lower[row, feature] = np.maximum(lower[row, feature], np.nextafter(cut, np.inf))
        worded = np.flatnonzero(splits_words[at])
        if len(worded):
            right_upper = upper.copy()
        for k in worded:
            goes_left, goes_right = nodes.word_splits[int(at[k])]
            left_upper[k, goes_right] = np.minimum(upper[k, goes_right], NOT_CHOSEN)
            right_upper[k, goes_left] = np.minimum(upper[k, goes_left], NOT_CHOSEN)
        at = np.concatenate([nodes.left[at], nodes.right[at]])
        lower, upper = np.concatenate([lower, right_lower]), np.concatenate([left_upper, right_upper])
    leaf, low, high = (np.concatenate(parts) for parts in zip(*found, strict=True))
    order = np.argsort(nodes.tree[leaf], kind="stable")
    leaf, low, high = leaf[order], low[order], high[order]
    reached = (low <= high).all(1)  # a node that repeats a comparison above it has an empty side
    leaf, low, high = leaf[reached], low[reached], high[reached]
    values = torch.from_numpy(nodes.values[leaf].astype(np.float64))
    _, tree = np.unique(nodes.tree[leaf], return_inverse=True)
    return Trees(
        lower=torch.from_numpy(low),
        upper=torch.from_numpy(high),
        tree=torch.from_numpy(tree.astype(np.int64)),
        values=values,
        base=torch.zeros(values.shape[1], dtype=torch.float64),
        unit=float(np.finfo(nodes.arithmetic).eps),
        nodes=SplitNodes(
            nodes.feature, nodes.left, nodes.right, threshold, nodes.roots, leaf, nodes.word_splits
        ),
    )


def _thresholds(nodes: Nodes) -> Array:
    """(nodes,) float64: the largest number that goes left.

    Inf if all do, -inf if none does, NaN for leaves.
    """
    inner = np.flatnonzero(nodes.left >= 0)
    top = _order_key(np.array([np.finfo(np.float64).max]))[0]
    low, high = np.full(len(inner), -top), np.full(len(inner), top)

    def left(key: Array) -> Array:
        with np.errstate(over="ignore", invalid="ignore"):
            return nodes.goes_left(_from_order_key(key), inner)

    all_left, none_left = left(high), ~left(low)
    for _ in range(BISECTION_STEPS):
        middle = (low >> 1) + (high >> 1) + (low & high & 1)
        goes = left(middle)
        low, high = np.where(goes, middle, low), np.where(goes, high, middle)
    thresholds = np.full(len(nodes.left), np.nan)
    thresholds[inner] = np.where(all_left, np.inf, np.where(none_left, -np.inf, _from_order_key(low)))
    return thresholds


def _order_key(values: Array) -> Array:
    """float64 -> int64, strictly increasing."""
    bits = values.view(np.int64)
    return np.where(bits < 0, -(bits & np.int64(2**63 - 1)), bits)


def _from_order_key(keys: Array) -> Array:
    """The inverse of `_order_key`."""
    bits = np.where(keys < 0, (-keys) | np.int64(-(2**63)), keys)
    found: Array = bits.astype(np.int64).view(np.float64)
    return found
