"""A box cut into halves: which leaves there are, so that every point of the box lies in one of them.

The tree is written down from its root, each part before its two halves: the element that is halved, or -1 for a leaf. Both halves hold
the number at which the part is cut, so nothing lies between them.
"""

import numpy as np

from holdfast_check.arithmetic import Array
from holdfast_check.errors import Rejected


def leaves(lower: Array, upper: Array, cuts: Array) -> tuple[Array, Array]:
    """(n,), (n,), (parts,) -> lower and upper ends (leaves, n) of all leaves."""
    found_lower, found_upper, waiting = [], [], [(lower, upper)]
    for cut in cuts.tolist():
        if not waiting:
            raise Rejected("the tree goes on after its last leaf")
        low, high = waiting.pop()
        if cut == -1:
            found_lower.append(low)
            found_upper.append(high)
            continue
        if not 0 <= cut < len(low):
            raise Rejected(f"the tree halves element {cut} of {len(low)}")
        middle = low[cut] / 2 + high[cut] / 2
        if not low[cut] <= middle <= high[cut]:
            raise Rejected(f"the tree halves element {cut} where it cannot be halved")
        first, second = high.copy(), low.copy()
        first[cut] = second[cut] = middle
        waiting += [(second, high), (low, first)]
    if waiting:
        raise Rejected(f"{len(waiting)} parts of the region have no leaf: the tree does not cover it")
    return np.stack(found_lower), np.stack(found_upper)
