"""Find a tree of input splits whose leaves the checker's own bounds prove. The search is not trusted."""

import math
import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from holdfast.certificates.draft import ProofDraft
from holdfast_check import Rejected
from holdfast_check.planes import StepBounds
from holdfast_check.proof import Claim
from holdfast_check.region import CheckedRegion
from holdfast_check.steps import Program

AT_ONCE = 512  # Subproblems that are bounded together.
MOST = 200_000  # Largest number of nodes of a tree.

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class RowRecorder(CheckedRegion):
    """A region that keeps the rows of the last query."""

    asked: list[Array] = field(default_factory=lambda: [np.zeros(0)])

    def minimum(self, rows: Array) -> Array:
        self.asked[0] = rows
        return super().minimum(rows)


def split_box(draft: ProofDraft) -> Array:
    """Return the tree of a claim about a box in the checker's format; Rejected if time or size run out."""
    claim, program = draft.read_claim(), draft.network
    if not math.isinf(claim.box().norm):
        raise Rejected("linear bounds alone do not prove it, and only boxes can be split")
    parts: list[list[int]] = [
        [-1, 0, 0]
    ]  # each node: the element that is split, and the indices of the halves
    waiting = [(0, claim.box().lower[0], claim.box().upper[0])]
    many = max(1, min(AT_ONCE, 2**19 // max(step.size for step in program.steps)))
    while waiting:
        if time.monotonic() > draft.until or len(parts) > MOST:
            raise Rejected(
                f"{len(waiting)} subproblems are left to prove after {len(parts)} splits: give more --seconds"
            )
        some, waiting = waiting[-many:], waiting[:-many]
        for (place, low, high), along in zip(some, _choose_splits(claim, program, some), strict=True):
            if along < 0:
                continue
            middle = low[along] / 2 + high[along] / 2
            if not low[along] < middle < high[along]:
                raise Rejected("a subproblem cannot be split any further and is not proved")
            first, second = high.copy(), low.copy()
            first[along] = second[along] = middle
            parts[place] = [along, len(parts), len(parts) + 1]
            parts += [[-1, 0, 0], [-1, 0, 0]]
            waiting += [(parts[place][1], low, first), (parts[place][2], second, high)]
    order, left = [], [0]
    while left:
        place = left.pop()
        order.append(parts[place][0])
        if parts[place][0] >= 0:
            left += [parts[place][2], parts[place][1]]
    return np.array(order, dtype=np.int8 if max(order) < 128 else np.int16)


def _choose_splits(claim: Claim, program: Program, parts: list[tuple[int, Array, Array]]) -> list[int]:
    """Return the element to split for each subproblem, or -1 where it is proved."""
    lower, upper = np.stack([low for _, low, _ in parts]), np.stack([high for _, _, high in parts])
    region = RowRecorder(lower, upper)
    with np.errstate(all="ignore"):
        bounds = StepBounds(program, region).rows(claim.matrix, claim.offset) - claim.above
    best = np.stack([bounds[:, list(group)].max(1) for group in claim.groups], 1)
    rows = np.stack([np.array(group)[bounds[:, list(group)].argmax(1)] for group in claim.groups], 1)
    worst = best.argmin(1)
    chosen = rows[np.arange(len(parts)), worst]
    fall = np.abs(region.asked[0][np.arange(len(parts)), chosen]) * (upper - lower)
    found: list[int] = np.where(best.min(1) > 0, -1, fall.argmax(1)).tolist()
    return found
