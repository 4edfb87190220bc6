"""The nodes of a graph: the input, relaxed scalar functions, and affine maps (in `affine`)."""

from dataclasses import dataclass

import torch
from torch import Tensor

from holdfast.bounding.relax import Relaxation


@dataclass(frozen=True, eq=False)
class Node:
    """One node of the graph; `place` increases along every edge."""

    place: int
    name: str
    inputs: tuple["Node", ...]
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        return int(torch.Size(self.shape).numel())


def is_image(node: Node) -> bool:
    """Whether the shape is (1, channels, height, width)."""
    return len(node.shape) == 4 and node.shape[0] == 1


@dataclass(frozen=True, eq=False)
class InputNode(Node):
    """The network's input."""


@dataclass(frozen=True, eq=False)
class Relaxed(Node):
    """value = relaxation.function(*inputs), element by element, enclosed by linear bounds."""

    relaxation: Relaxation


@dataclass(frozen=True, eq=False)
class MaskedValue:
    """A masked value: a node plus constants, some of them so low, or minus infinity, that a softmax or a
    maximum ignores them.

    It is not a node. The two parts are stored separately, because minus infinity has no bounds and adding
    -1e38 would lose all digits of the node.
    """

    node: Node
    by: Tensor  # Constants of the node's shape.

    @property
    def shape(self) -> tuple[int, ...]:
        return self.node.shape


@dataclass(frozen=True)
class Unbounded:
    """A result without bounds; it is an error only if a later node reads it."""

    what: str
