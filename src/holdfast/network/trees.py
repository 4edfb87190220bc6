"""Sums of decision trees as boxes: each leaf is a box of inputs and what it adds to the outputs.

A tree asks x[feature] <= threshold, in its own arithmetic and after what stands before it in a pipeline. All of that rises with x, so for
every question there is a largest float64 number that goes left; it is found by bisection over the float64 numbers, and asks nothing but
the comparison itself. So boxes have closed ends, and every float64 input lies in exactly one leaf of every tree.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

LARGEST = 2**25  # numbers in the boxes of all leaves: 256 MiB
ELEMENTS = 2**24  # compared at once

Array = NDArray[Any]


@dataclass(frozen=True, eq=False)
class Nodes:
    """The nodes of all trees in one list. A node goes left where goes_left(x, node) is true, for numbers x of its feature."""

    feature: Array  # (nodes,) int
    left: Array  # (nodes,) int: -1 for a leaf
    right: Array  # (nodes,) int
    values: Array  # (nodes, outputs) float64: of leaves
    tree: Array  # (nodes,) int
    roots: Array  # (trees,) int
    goes_left: Callable[
        [Array, Array], Array
    ]  # (n,) numbers, (n,) nodes -> (n,) bool, never false below where it is true
    arithmetic: type  # in which the model adds up


@dataclass(frozen=True, eq=False)
class Trees:
    """outputs(x) = base + the sum over trees of the values of the leaf that holds x."""

    lower: Tensor  # (leaves, features) float64, closed
    upper: Tensor  # (leaves, features)
    tree: Tensor  # (leaves,) int64, rising
    values: Tensor  # (leaves, outputs) float64
    base: Tensor  # (outputs,) float64
    unit: float  # of the arithmetic in which the model adds up

    @property
    def count(self) -> int:
        return int(self.tree[-1]) + 1

    def holds(self, x: Tensor) -> Tensor:
        """(n, features) -> (n, leaves) bool."""
        parts = [
            ((p[:, None] >= self.lower) & (p[:, None] <= self.upper)).all(-1)
            for p in x.split(self._at_once())
        ]
        return torch.cat(parts)

    def _at_once(self) -> int:
        return max(1, ELEMENTS // self.lower.numel())

    def sum(self, x: Tensor) -> Tensor:
        """(n, features) float64 -> (n, outputs)."""
        return self.base + self.holds(x).double() @ self.values

    def cell(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """(n, features) -> (n, features) twice: the box around each point in which no tree changes its answer."""
        lower, upper = [], []
        for part in x.split(self._at_once()):
            inside = self.holds(part)[..., None]
            lower.append(torch.where(inside, self.lower, -torch.inf).amax(1))
            upper.append(torch.where(inside, self.upper, torch.inf).amin(1))
        return torch.cat(lower), torch.cat(upper)

    def rounding_error(self) -> Tensor:
        """(outputs,) float64: how far the model's own sum, in its own arithmetic and order, may lie from the true one."""
        none = torch.zeros((self.count, self.values.shape[1]), dtype=torch.float64)
        size: Tensor = none.scatter_reduce(
            0, self.tree[:, None].expand_as(self.values), self.values.abs(), "amax"
        )
        missed: Tensor = 8 * self.unit * (self.count + 8) * (size.sum(0) + self.base.abs())
        return missed

    def thresholds(self, feature: int) -> Tensor:
        """Rising: the largest numbers of a feature on the left of a question."""
        ends = self.upper[:, feature]
        found: Tensor = ends[ends.isfinite()].unique()
        return found

    def probes(self, count: int) -> Tensor:
        """-> (count, features): points on both sides of the questions, as close as numbers go. A feature that no tree asks about moves too,
        near and far: the model may read it all the same."""
        generator = torch.Generator().manual_seed(0)
        found = torch.randn((count, self.lower.shape[1]), generator=generator, dtype=torch.float64)
        sizes = torch.tensor([1e-3, 1.0, 30.0, 1e4], dtype=torch.float64)
        found = found * sizes[torch.randint(0, len(sizes), tuple(found.shape), generator=generator)]
        for feature in range(found.shape[1]):
            ends = self.thresholds(feature)
            if len(ends):
                beyond = torch.nextafter(ends, torch.full_like(ends, torch.inf))
                sides = torch.cat(
                    [ends, beyond, ends[:1] - 1 - ends[0].abs(), ends[-1:] + 1 + ends[-1].abs()]
                )
                found[:, feature] = sides[torch.randint(0, len(sides), (count,), generator=generator)]
        return found


def trees_of(nodes: Nodes, features: int) -> Trees | None:
    """The leaves as boxes; None where there are too many, or a single leaf is all there is."""
    leaves = int((nodes.left < 0).sum())
    if leaves * features > LARGEST or leaves == 0:
        return None
    end = _ends(nodes)
    at = nodes.roots
    lower, upper = np.full((len(at), features), -np.inf), np.full((len(at), features), np.inf)
    found: list[tuple[Array, Array, Array]] = []
    while len(at):
        leaf = nodes.left[at] < 0
        found.append((at[leaf], lower[leaf], upper[leaf]))
        at, lower, upper = at[~leaf], lower[~leaf], upper[~leaf]
        feature, row, cut = nodes.feature[at], np.arange(len(at)), end[at]
        left_upper, right_lower = upper.copy(), lower.copy()
        left_upper[row, feature] = np.minimum(upper[row, feature], cut)
        right_lower[row, feature] = np.maximum(lower[row, feature], np.nextafter(cut, np.inf))
        at = np.concatenate([nodes.left[at], nodes.right[at]])
        lower, upper = np.concatenate([lower, right_lower]), np.concatenate([left_upper, upper])
    leaf, low, high = (np.concatenate(parts) for parts in zip(*found, strict=True))
    order = np.argsort(nodes.tree[leaf], kind="stable")
    leaf, low, high = leaf[order], low[order], high[order]
    reached = (low <= high).all(1)  # a question may repeat one above it
    leaf, low, high = leaf[reached], low[reached], high[reached]
    values = torch.from_numpy(nodes.values[leaf].astype(np.float64))
    _, tree = np.unique(nodes.tree[leaf], return_inverse=True)
    return Trees(
        torch.from_numpy(low), torch.from_numpy(high), torch.from_numpy(tree.astype(np.int64)), values,
        torch.zeros(values.shape[1], dtype=torch.float64), float(np.finfo(nodes.arithmetic).eps),
    )  # fmt: skip


def _ends(nodes: Nodes) -> Array:
    """(nodes,) float64: the largest number that goes left; infinite where all do, or none does. Of leaves it means nothing."""
    inner = np.flatnonzero(nodes.left >= 0)
    top = _number(np.array([np.finfo(np.float64).max]))[0]
    low, high = np.full(len(inner), -top), np.full(len(inner), top)

    def left(key: Array) -> Array:
        with np.errstate(over="ignore", invalid="ignore"):
            return nodes.goes_left(_value(key), inner)

    all_left, none_left = left(high), ~left(low)
    for _ in range(65):
        middle = (low >> 1) + (high >> 1) + (low & high & 1)
        goes = left(middle)
        low, high = np.where(goes, middle, low), np.where(goes, high, middle)
    ends = np.full(len(nodes.left), np.nan)
    ends[inner] = np.where(all_left, np.inf, np.where(none_left, -np.inf, _value(low)))
    return ends


def _number(values: Array) -> Array:
    """float64 -> int64 in the same order."""
    bits = values.view(np.int64)
    return np.where(bits < 0, -(bits & np.int64(2**63 - 1)), bits)


def _value(keys: Array) -> Array:
    """The way back."""
    bits = np.where(keys < 0, (-keys) | np.int64(-(2**63)), keys)
    found: Array = bits.astype(np.int64).view(np.float64)
    return found
