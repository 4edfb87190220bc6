"""The nodes of a graph: its input, functions between two planes, and affine maps, which have a module of their own (`affine`)."""

from dataclasses import dataclass

import torch
from torch import Tensor

from holdfast.bounding.relax import Relaxation


@dataclass(frozen=True, eq=False)
class Node:
    """One step of the graph; `place` rises along every edge."""

    place: int
    name: str
    inputs: tuple["Node", ...]
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        return int(torch.Size(self.shape).numel())


def is_image(node: Node) -> bool:
    """Whether it is (1, channels, height, width)."""
    return len(node.shape) == 4 and node.shape[0] == 1


@dataclass(frozen=True, eq=False)
class InputNode(Node):
    """The network's input."""


@dataclass(frozen=True, eq=False)
class Relaxed(Node):
    """value = relaxation.function(*inputs), element by element, between two planes."""

    relaxation: Relaxation


@dataclass(frozen=True, eq=False)
class Lowered:
    """A node plus constants, in some places so low that a softmax or a maximum leaves nothing of them, or minus infinity: what masks make.

    It is no node. The two are kept apart, since minus infinity has no bounds and a sum with -1e38 would lose the node's digits.
    """

    node: Node
    by: Tensor  # of the node's shape

    @property
    def shape(self) -> tuple[int, ...]:
        return self.node.shape


@dataclass(frozen=True)
class Unbounded:
    """An answer that nothing is known of; harmless while nobody reads it."""

    what: str
