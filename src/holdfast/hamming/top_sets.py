"""Selection of the best few entries of each group in lists of any length."""

import torch
from torch import Tensor


def select_best(group: Tensor, key: Tensor, score: Tensor, fails: Tensor, count: int) -> Tensor:
    """Return the indices of the `count` best entries of each group; all arguments are (n,).

    Failing entries come first, then the lowest scores; of entries with equal keys only the best is kept. The
    result is ordered by group, best first.
    """
    order = _sort_places(fails.logical_not().to(torch.uint8), score.argsort(stable=True))
    worth = torch.empty_like(order).index_put((order,), torch.arange(len(order), device=order.device))
    order = _sort_places(group, _sort_places(key, order))
    first = torch.ones_like(order, dtype=torch.bool)
    first[1:] = (group[order].diff() != 0) | (key[order].diff() != 0)
    order = order[first]
    order = _sort_places(group, _sort_places(worth, order))
    rank = torch.arange(len(order), device=group.device) - torch.searchsorted(group[order], group[order])
    return order[rank < count]


def _sort_places(by: Tensor, order: Tensor) -> Tensor:
    """Sort the indices by the values; the order of equal values is kept."""
    return order[by[order].argsort(stable=True)]


def occurring_groups(group: Tensor, count: int) -> Tensor:
    """Map (n,) to (count,) bool: the groups that occur."""
    return torch.zeros(count, dtype=torch.bool, device=group.device).index_fill(0, group, True)
