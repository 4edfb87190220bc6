"""Find a tree of split units with which the checker proves a claim about counted changes. The search is not trusted.

A unit is split into "stays" and "changes", where the bound says that it matters most; words of a changed position are
divided into halves down to single ones, and numbers into halves of their interval.
"""

import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from holdfast.certificates.draft import ProofDraft
from holdfast_check import Rejected
from holdfast_check.budget import FREE, TAKEN, CountedRegion, UnitLeaf, root, split
from holdfast_check.planes import StepBounds
from holdfast_check.proof import AT_ONCE, Claim
from holdfast_check.rows import RowRegion

MOST_AT_ONCE = 256  # Subproblems that are bounded together (chosen by hand).
MOST_NODES = 8192  # Largest number of nodes of a tree (chosen by hand, as for ReLU splits).

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class GainRecorder(CountedRegion):
    """A region of counted changes that keeps the rows of the last query."""

    asked: list[Array] = field(default_factory=lambda: [np.zeros(0)])

    def minimum(self, rows: Array) -> Array:
        self.asked[0] = rows
        return super().minimum(rows)


def split_units(draft: ProofDraft) -> Array:
    """Return the tree of a claim about counted changes in the checker's format; Rejected if time or size run out."""
    claim = draft.read_claim()
    rows = claim.rows()
    parts: list[list[int]] = [[-1, 0, 0]]  # each node: the split, and the indices of its children
    waiting = [(0, root(rows))]
    many = max(1, min(MOST_AT_ONCE, AT_ONCE // max(step.size for step in draft.network.steps)))
    while waiting:
        if time.monotonic() > draft.until or len(parts) > MOST_NODES:
            raise Rejected(
                f"{len(waiting)} subproblems are left to prove after {len(parts)} splits: give more --seconds"
            )
        some, waiting = waiting[-many:], waiting[:-many]
        chosen = _choose_splits(draft, claim, rows, [leaf for _, leaf in some])
        for (place, leaf), cut in zip(some, chosen, strict=True):
            if cut is None:
                continue
            first, second = split(rows, leaf, cut)
            parts[place] = [cut, len(parts), len(parts) + 1]
            parts += [[-1, 0, 0], [-1, 0, 0]]
            waiting += [(parts[place][1], first), (parts[place][2], second)]
    order, left = [], [0]
    while left:
        place = left.pop()
        order.append(parts[place][0])
        if parts[place][0] >= 0:
            left += [parts[place][2], parts[place][1]]
    return np.array(order, dtype=np.int32)


def _choose_splits(
    draft: ProofDraft, claim: Claim, rows: RowRegion, parts: list[UnitLeaf]
) -> list[int | None]:
    """Return the split of each subproblem, or None where it is proved; Rejected if one cannot be split."""
    region = CountedRegion.of(rows, parts)
    recorder = GainRecorder(**{name: getattr(region, name) for name in CountedRegion.__dataclass_fields__})
    with np.errstate(all="ignore"):
        bounds = StepBounds(draft.network, recorder).rows(claim.matrix, claim.offset) - claim.above
    best = np.stack([bounds[:, list(group)].max(1) for group in claim.groups], 1)
    each = np.stack([np.array(group)[bounds[:, list(group)].argmax(1)] for group in claim.groups], 1)
    worst = best.argmin(1)
    asked = recorder.asked[0][np.arange(len(parts)), each[np.arange(len(parts)), worst]]
    fall = np.abs(asked) * (region.upper - region.lower)
    found: list[int | None] = []
    for place, leaf in enumerate(parts):
        found.append(None if best[place].min() > 0 else _best_split(rows, leaf, fall[place]))
    return found


def _best_split(rows: RowRegion, leaf: UnitLeaf, fall: Array) -> int:
    """The split of a unit, list or interval whose numbers change the bound most."""
    by_unit = np.bincount(rows.units, fall, rows.count)
    usable = np.zeros(rows.count, dtype=bool)
    usable[leaf.states == FREE] = leaf.budget >= 1
    for unit in np.flatnonzero(leaf.states == TAKEN).tolist():
        start, stop = leaf.lists.get(unit, (0, len(rows.choices.get(unit, ()))))
        usable[unit] = stop - start >= 2 if unit in rows.choices else by_unit[unit] > 0
    if not usable.any():
        raise Rejected("a subproblem cannot be split any further and is not proved")
    unit = int(np.where(usable, by_unit, -1.0).argmax())
    if leaf.states[unit] == TAKEN and unit not in rows.choices:
        own = rows.elements[unit]
        return rows.count + int(own[fall[own].argmax()])
    return unit
