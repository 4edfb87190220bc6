"""Groups of similar words by complete linkage: any two words of a group are similar."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

if TYPE_CHECKING:
    from scipy.sparse import coo_array

ROWS_PER_BLOCK = 2048  # Rows of the cosine matrix that are computed at once; limits memory (chosen by hand).
# A distance above any cosine distance (at most 2), for pairs that must never be merged.
FORBIDDEN_DISTANCE = 4.0


def complete_linkage(
    vectors: Tensor, cosine: float, apart: Iterable[tuple[int, int]] = ()
) -> list[list[int]]:
    """Group vectors (n, d): any two have at least this cosine; pairs of `apart` share no group.

    Groups of one are omitted. A merge below the threshold never joins two components of the graph of similar
    pairs. So each component is linked separately, with the same result as for all n words at once but without
    the n x n matrix.
    """
    from scipy.sparse.csgraph import connected_components

    unit = torch.nn.functional.normalize(vectors.detach().float().cpu(), dim=1)
    forbidden = {pair for a, b in apart for pair in ((a, b), (b, a))}
    _, component = connected_components(_alike(unit, cosine), directed=False)
    order = np.argsort(component, kind="stable")
    found: list[list[int]] = []
    for members in np.split(order, np.flatnonzero(np.diff(component[order])) + 1):
        if len(members) > 1:
            found += _link_members(members, unit, cosine, forbidden)
    return found


def _alike(unit: Tensor, cosine: float) -> "coo_array":
    """Return the graph of pairs with at least this cosine."""
    from scipy.sparse import coo_array

    rows, columns = [], []
    for begin in range(0, len(unit), ROWS_PER_BLOCK):
        i, j = (unit[begin : begin + ROWS_PER_BLOCK] @ unit.T >= cosine).nonzero().unbind(1)
        rows.append(i + begin)
        columns.append(j)
    pairs = (torch.cat(rows).numpy(), torch.cat(columns).numpy())
    return coo_array((np.ones(len(pairs[0]), dtype=np.int8), pairs), shape=(len(unit), len(unit)))


def _link_members(
    members: np.ndarray[Any, Any], unit: Tensor, cosine: float, forbidden: set[tuple[int, int]]
) -> list[list[int]]:
    """Complete linkage within one component, cut at the threshold."""
    from scipy.cluster.hierarchy import fcluster, linkage

    distance = (1 - unit[members] @ unit[members].T).double().clamp_min(0).numpy()
    place = {int(word): at for at, word in enumerate(members)}
    for a, b in forbidden:
        if a in place and b in place:
            distance[place[a], place[b]] = FORBIDDEN_DISTANCE
    condensed = distance[np.triu_indices(len(members), 1)]
    labels = fcluster(linkage(condensed, method="complete"), t=1 - cosine, criterion="distance")
    order = np.argsort(labels, kind="stable")
    parts = np.split(members[order], np.flatnonzero(np.diff(labels[order])) + 1)
    return [sorted(int(word) for word in part) for part in parts if len(part) > 1]
