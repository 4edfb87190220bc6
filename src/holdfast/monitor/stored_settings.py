"""Validation of a stored monitor: wrong indices count from the end, cycles never terminate.

ValueError and TypeError state what is wrong.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from holdfast.monitor.mutation.choices import ChoiceTable

if TYPE_CHECKING:
    from holdfast.monitor.abstract.marble_scores import MarbleScores
    from holdfast.monitor.abstract.tree import DecisionTreeEstimate

NUMBER, WHOLE, TEXT = (int, float), (int,), (str,)
SETTINGS: Mapping[str, tuple[type, ...]] = {
    "mode": TEXT,
    "unknown": TEXT,
    "unk": (int, type(None)),
    "confidence": NUMBER,
    "samples": WHOLE,
    "seed": WHOLE,
    "max_length": WHOLE,
}
GROWING: Mapping[str, tuple[type, ...]] = {
    "depth": WHOLE,
    "fewest": WHOLE,
    "share": NUMBER,
    "omega": WHOLE,
    "pull": NUMBER,
    "confidence": NUMBER,
    "seed": WHOLE,
}
MARBLE: Mapping[str, tuple[type, ...]] = {"refinement": (dict,), "states": WHOLE, "unseen": NUMBER}
REFINEMENT: Mapping[str, tuple[type, ...]] = {
    "omega": WHOLE,
    "theta": NUMBER,
    "criterion": TEXT,
    "split": TEXT,
    "seed": WHOLE,
}


def check_types(stored: Mapping[str, Any], kinds: Mapping[str, tuple[type, ...]]) -> dict[str, Any]:
    """Return the settings if they have exactly these names and types; a bool is not a number."""
    if stored.keys() != kinds.keys():
        raise ValueError(f"expected {', '.join(kinds)}, found {', '.join(map(str, stored))}")
    for name, value in stored.items():
        is_kind = isinstance(value, kinds[name]) and (not isinstance(value, bool) or bool in kinds[name])
        if not is_kind or (isinstance(value, list) and not all(isinstance(text, str) for text in value)):
            raise TypeError(f"{name} is {str(value)[:60]!r}")
        if isinstance(value, int) and not -(2**63) <= value < 2**63:
            raise ValueError(f"{name} is too large")
    return dict(stored)


def checked_table(table: ChoiceTable) -> ChoiceTable:
    start, count = table.start, len(table.values)
    _kind("start", start, torch.int64, (len(start),))
    _kind("probability", table.probability, torch.float64, (count,))
    _kind("values", table.values, torch.int64, (count,))
    if len(start) < 1 or int(start[0]) != 0 or int(start[-1]) != count or bool((start.diff() < 1).any()):
        raise ValueError("the sets are not consecutive")
    if not bool(((table.probability >= 0) & (table.probability <= 1)).all()):
        raise ValueError("a probability is outside of [0, 1]")
    return table


def checked_tree(tree: "DecisionTreeEstimate") -> "DecisionTreeEstimate":
    nodes, splits, entries, bands = len(tree.parent), len(tree.weight), len(tree.keys), len(tree.edges) + 1
    wanted: dict[str, tuple[torch.dtype, tuple[int, ...]]] = {
        "parent": (torch.int64, (nodes,)),
        "base": (torch.float64, (nodes,)),
        "split": (torch.int64, (nodes,)),
        "weight": (torch.float32, (splits, tree.weight.shape[-1])),
        "threshold": (torch.float32, (splits,)),
        "below": (torch.int64, (splits, 2)),
        "keys": (torch.int64, (entries,)),
        "effect": (torch.float64, (entries,)),
        "support": (torch.int64, (entries,)),
        "edges": (torch.float64, (bands - 1,)),
        "errors": (torch.float64, (2, 2, bands)),
    }
    for name, (dtype, shape) in wanted.items():
        _kind(name, getattr(tree, name), dtype, shape)
    own = torch.arange(nodes)
    inner = tree.split >= 0
    if not (
        0 < tree.labels < nodes
        and 0 < tree.inputs < 2**40
        and entries
        and 0 <= tree.growing.depth <= nodes + 64
    ):
        raise ValueError("the tree has too few nodes, or invalid numbers of labels, inputs or levels")
    if bool((tree.parent >= own).any() | (tree.split >= splits).any() | (tree.keys.diff() < 0).any()):
        raise ValueError("the tree has a cycle, or refers to splits that do not exist")
    below = tree.below[tree.split[inner]]
    if bool((below <= own[inner, None]).any() | (below >= nodes).any()):
        raise ValueError("the tree has a cycle")
    return tree


def checked_marble(model: "MarbleScores", width: int) -> "MarbleScores":
    """Return the model if its arrays fit together and its states have this width."""
    nodes, vectors, pairs = len(model.leaf), len(model.dual), len(model.keys)
    omega = len(model.components)
    wanted: dict[str, tuple[torch.dtype, tuple[int, ...]]] = {
        "centre": (torch.float64, (width,)),
        "components": (torch.float64, (omega, width)),
        "below": (torch.int64, (nodes, 2)),
        "leaf": (torch.int64, (nodes,)),
        "first": (torch.int64, (nodes + 1,)),
        "vectors": (torch.float64, (vectors, omega)),
        "dual": (torch.float64, (vectors,)),
        "gamma": (torch.float64, (nodes,)),
        "intercept": (torch.float64, (nodes,)),
        "keys": (torch.int64, (pairs,)),
        "count": (torch.int64, (pairs,)),
        "eta": (torch.float64, (pairs, model.eta.shape[-1])),
    }
    for name, (dtype, shape) in wanted.items():
        _kind(name, getattr(model, name), dtype, shape)
    if not (nodes and omega and pairs and model.eta.shape[1] and 0 < model.states <= nodes):
        raise ValueError("the model has too few nodes, dimensions, pairs, labels or states")
    inner = model.leaf < 0
    below = model.below[inner]
    if bool((below <= torch.arange(nodes)[inner, None]).any() | (below >= nodes).any()):
        raise ValueError("the refinement tree has a cycle, or refers to nodes that do not exist")
    first = model.first
    if int(first[0]) != 0 or int(first[-1]) != vectors or bool((first.diff() < 0).any()):
        raise ValueError("the support vectors are not consecutive")
    if bool((model.leaf >= model.states).any() | (model.keys < 0).any() | (model.keys.diff() <= 0).any()):
        raise ValueError("an abstract state does not exist, or the pairs are not in order")
    if bool((model.count < 1).any() | (model.eta < -1e-9).any() | (model.eta > 1 + 1e-9).any()):
        raise ValueError("a count is below 1, or a probability is outside of [0, 1]")
    if not 0 <= model.unseen <= 1:
        raise ValueError("the score of unseen pairs is outside of [0, 1]")
    return model


def _kind(name: str, value: Tensor, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    if value.dtype != dtype or tuple(value.shape) != shape:
        raise ValueError(
            f"{name} holds {value.dtype} of shape {tuple(value.shape)}, expected {dtype} of {shape}"
        )
    if value.is_floating_point() and not bool(value.isfinite().all()):
        raise ValueError(f"{name} holds NaN or infinity")
