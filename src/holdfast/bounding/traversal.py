"""Backward and forward traversal of a graph.

Backward, from rows on some node to the input: linear bounds (`crown.BackwardWalk`), weights of linear bounds
(`branching.split_score`), intervals of gradients (`gradient`). Forward, from the input to every node:
intervals (`crown.Intervals`), zonotopes (`crown_with_fixed_bounds`), quadratic models (`quadratic_models`),
Taylor models (`taylor`). Rounding: docs/rounding.md.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

from holdfast import time_limit
from holdfast.bounding.graph.graph import Affine, Graph, InputNode, Node, Relaxed

Carried = TypeVar("Carried")


class Backward(ABC, Generic[Carried]):
    """Values that are propagated from the output towards the input."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        # values that have arrived at a node and were not propagated further yet
        self.pending: dict[Node, Carried] = {}

    def walk(self, place: int, until: int = 1) -> None:
        """Propagate everything pending at position `place` of the graph and before it, the last node first.

        Stops at the inputs of the node at position `until`; default: at the input of the network.
        """
        for node in reversed(self.graph.nodes[until : place + 1]):
            if node not in self.pending:
                continue
            time_limit.raise_if_expired()
            carried = self.pending.pop(node)
            if isinstance(node, Relaxed):
                self.through_function(node, carried)
            else:
                assert isinstance(node, Affine)
                self.through_map(node, carried)

    @abstractmethod
    def through_function(self, node: Relaxed, carried: Carried) -> None:
        """Propagate a value from an activation to its inputs."""

    @abstractmethod
    def through_map(self, node: Affine, carried: Carried) -> None:
        """Propagate a value from an affine map to its inputs."""


class Forward(ABC):
    """Values of every node that are computed from those of its inputs."""

    def visit(self, node: Node) -> None:
        if isinstance(node, InputNode):
            self.enter(node)
        elif isinstance(node, Affine):
            self.through_map(node)
        else:
            assert isinstance(node, Relaxed)
            self.through_function(node)

    @abstractmethod
    def enter(self, node: InputNode) -> None: ...

    @abstractmethod
    def through_map(self, node: Affine) -> None: ...

    @abstractmethod
    def through_function(self, node: Relaxed) -> None: ...


def forward(nodes: Iterable[Node], *carriers: Callable[[Node], None]) -> None:
    """Visit the nodes in order, each by all carriers in turn; a carrier may use earlier carriers' results."""
    for node in nodes:
        time_limit.raise_if_expired()
        for visit in carriers:
            visit(node)
