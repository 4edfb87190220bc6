"""Export of a sum of decision trees for `holdfast-check`: nodes, values and base as arrays.

Statement: for every float64 input, the described trees reach the same leaves as the boxes of `network.trees.Trees`, so
their sum is the same. The checker reads a node as x <= threshold for real x, with the threshold the largest float64
number that goes left.
"""

import json

import numpy as np

from holdfast.network.trees import Array, SplitNodes, Trees
from holdfast_check.trees import TREES


def describe_trees(trees: Trees) -> bytes:
    """The bytes of a model file."""
    from safetensors.numpy import save  # imported here, since it is not installed everywhere

    nodes = trees.nodes
    chosen, left, right = _unfold(nodes)
    leaf = left < 0
    value = np.zeros((len(nodes.left), trees.values.shape[1]))
    value[nodes.leaf] = trees.values.numpy()
    compares = ~leaf & ~np.isin(chosen, list(nodes.word_splits))
    arrays = {
        "feature": np.where(compares, nodes.feature[chosen], 0).astype(np.int32),
        "threshold": np.where(compares, nodes.threshold[chosen], 0.0),
        "left": left.astype(np.int32),
        "right": right.astype(np.int32),
        "value": value[chosen],
        "roots": np.arange(len(nodes.roots), dtype=np.int32),
        "base": trees.base.numpy(),
    }
    for place, node in enumerate(chosen.tolist()):
        if node in nodes.word_splits:
            arrays[f"set/{place}"] = np.asarray(nodes.word_splits[node][1], dtype=np.int32)
    return bytes(
        save(
            {name: np.ascontiguousarray(array) for name, array in arrays.items()},
            {TREES: json.dumps({"inputs": int(trees.lower.shape[1])})},
        )
    )


def _unfold(nodes: SplitNodes) -> tuple[Array, Array, Array]:
    """The nodes as trees: the original node of each, and its children, which stand behind it. A node with several parents
    (the side of a missing number) is repeated.
    """
    order, left, right = nodes.roots.tolist(), list[int](), list[int]()
    for node in order:  # The list grows while it is read.
        inner = nodes.left[node] >= 0
        left.append(len(order) if inner else -1)
        right.append(len(order) + 1 if inner else -1)
        order += [int(nodes.left[node]), int(nodes.right[node])] if inner else []
    return np.array(order), np.array(left), np.array(right)
