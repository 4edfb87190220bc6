"""The two ways through a graph. What is carried along is the parameter; its rounding is analysed in docs/rounding.md.

Backwards, from rows of some node to the input: planes (`crown.BackwardWalk`), the weights of planes (`split_score`), intervals of gradients
(`gradient`). Forwards, from the input to every node: intervals (`crown.Intervals`), affine forms (`crown_within`), second-order models
(`second_order`).
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

from holdfast import time_limit
from holdfast.bounding.graph.graph import Affine, Graph, InputNode, Node, Relaxed

Carried = TypeVar("Carried")


class Backward(ABC, Generic[Carried]):
    """Something on its way back to the input."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.pending: dict[Node, Carried] = {}  # what has arrived at a node and has not gone on yet

    def walk(self, place: int, until: int = 1) -> None:
        """Take everything that is pending at this place and before it back to the input, the last node first; or to what the node at
        the place `until` reads."""
        for node in reversed(self.graph.nodes[until : place + 1]):
            if node not in self.pending:
                continue
            time_limit.check()
            carried = self.pending.pop(node)
            if isinstance(node, Relaxed):
                self.through_function(node, carried)
            else:
                assert isinstance(node, Affine)
                self.through_map(node, carried)

    @abstractmethod
    def through_function(self, node: Relaxed, carried: Carried) -> None:
        """Hand what has arrived at a function on to its arguments."""

    @abstractmethod
    def through_map(self, node: Affine, carried: Carried) -> None:
        """Hand what has arrived at an affine map on to its inputs."""


class Forward(ABC):
    """Something that is found out about every node from what is known of those it reads."""

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
    """Visit node after node, each by all carriers in turn, so that one may use what those before it found."""
    for node in nodes:
        time_limit.check()
        for visit in carriers:
            visit(node)
