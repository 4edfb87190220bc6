"""Branch-and-bound trees: the leaves of a tree of splits, which together cover the region.

Statement. If a claim holds over every leaf, it holds over the region, because the leaves cover it.

A tree is stored in depth-first order, each node before its two children: where it is split, or -1 for a leaf.
A box is split at the middle of one of its sides. Any region is split at the sign of a value of the network,
an element of a step: one child has value <= 0, the other value >= 0. Both children contain the points at
which they are split, so the children cover their parent.

Assumption: none; every leaf is checked.

Reference: Bunel et al., "Branch and bound for piecewise linear neural network verification" (2020).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import numpy as np

from holdfast_check.arithmetic import Array
from holdfast_check.errors import Rejected, require, zip_equal
from holdfast_check.limits import look_at_clock
from holdfast_check.planes import StepBounds

T = TypeVar("T")
SignSplit = tuple[int, int, float]  # Step, element, and the sign of that element in this child.


def _leaves(whole: T, cuts: Array, halves: Callable[[T, list[int]], tuple[T, T]]) -> list[T]:
    """The leaves of a stored tree; reject a tree that is incomplete or longer than its leaves require."""
    found, waiting = [], [whole]
    for cut in cuts.reshape(len(cuts), -1).tolist():
        look_at_clock()
        require(waiting, "the tree continues after its last leaf")
        part = waiting.pop()
        if cut[0] == -1:
            found.append(part)
        else:
            first, second = halves(part, cut)
            waiting += [second, first]
    if waiting:
        raise Rejected(f"{len(waiting)} nodes have no leaf: the tree does not cover the region")
    return found


def leaves(lower: Array, upper: Array, cuts: Array) -> tuple[Array, Array]:
    """Lower and upper bounds (leaves, n) of all leaves of a tree of halved boxes. `cuts` is (nodes,)."""

    def halves(ends: tuple[Array, Array], cut: list[int]) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
        (low, high), [along] = ends, cut
        require(0 <= along < len(low), f"the tree halves element {along} of {len(low)}")
        middle = low[along] / 2 + high[along] / 2
        require(
            low[along] <= middle <= high[along], f"the tree halves element {along} where it cannot be halved"
        )
        first, second = high.copy(), low.copy()
        first[along] = second[along] = middle
        return (low, first), (second, high)

    found = _leaves((lower, upper), cuts, halves)
    return np.stack([low for low, _ in found]), np.stack([high for _, high in found])


def paths(cuts: Array, sizes: list[int]) -> list[list[SignSplit]]:
    """For each leaf its splits, from the root; in a first child the value is at most zero. `cuts` is (nodes,
    2), `sizes` holds the size of every step.
    """

    def halves(path: list[SignSplit], cut: list[int]) -> tuple[list[SignSplit], list[SignSplit]]:
        step, element = cut
        require(
            0 <= step < len(sizes) and 0 <= element < sizes[step],
            f"the tree splits element {element} of step {step}, which does not exist",
        )
        return [*path, (step, element, -1.0)], [*path, (step, element, 1.0)]

    return _leaves([], cuts, halves)


def margins(
    whole: StepBounds,
    matrix: Array,
    offset: Array,
    some: list[list[SignSplit]],
    multipliers: Array,
    slopes: dict[str, Array],
    refine: bool,
) -> Array:
    """Lower bounds (leaves, rows) of matrix . output + offset over selected leaves of a tree of signs.

    Args:
        whole: bounds over the whole region.
        multipliers: (splits of all these leaves, rows), none negative.
        slopes: `rows/K`, (leaves, rows, n), and `at/K`.
        refine: if True, backward passes tighten the intermediate bounds over every leaf; otherwise those of the
            whole region are used, restricted at the splits.
    """
    region, many = whole.region, len(some)
    held = [
        (np.repeat(low, many, 0), np.repeat(high, many, 0))
        for low, high in zip_equal(whole.lower, whole.upper)
    ]
    signs: dict[int, Array] = {}
    for (leaf, (step, element, sign)), times in zip_equal(
        ((leaf, cut) for leaf, path in enumerate(some) for cut in path), multipliers
    ):
        low, high = held[step]
        if sign > 0:
            low[leaf, element] = max(low[leaf, element], 0.0)
        else:
            high[leaf, element] = min(high[leaf, element], 0.0)
        terms = signs.setdefault(step, np.zeros((many, len(matrix), whole.program.steps[step].size)))
        terms[leaf, :, element] -= sign * times
    tiled = region.within(np.repeat(region.lower, many, 0), np.repeat(region.upper, many, 0))
    return StepBounds(whole.program, tiled, slopes, held, refine).rows(matrix, offset, signs)
