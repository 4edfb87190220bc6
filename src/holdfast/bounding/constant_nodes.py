"""Bounds of the nodes that do not depend on the perturbed inputs: found once for a centre, and used for every region.

Statement. Where only some frames of a sequence are perturbed, all nodes before them have one value in every point of
the region, that at the centre x_c. `find_constant_nodes` returns these nodes and

    lower <= y(x_c) <= upper    for every such node y that a varying node reads,

by affine forms over the single point x_c, so it holds whatever the radius and whichever later frames are perturbed. A
form of such a node is the middle of its interval with half its width as the error; so the rounding errors of two such
nodes count as independent, which loses a few units of rounding.

Assumption: as in `zonotope`; a node is constant if no path leads to it from an input that varies.

Reference: docs/rounding.md, for the errors of the value at a point.
"""

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from holdfast.bounding.graph.graph import Affine, Graph, Node
from holdfast.bounding.node_bounds import Boxes, IntervalBounds
from holdfast.bounding.zonotope import Forms
from holdfast.region import Region

# Number of float64 values in the bounds of all centres that are kept (128 MiB; chosen by hand).
MAX_VALUES = 2**24
# Least share of a network's values that must be constant: below, bounding them apart saves nothing (chosen by hand).
LEAST_SHARE = 0.2

BoundCentres = Callable[[Tensor], Mapping[Node, IntervalBounds]]
# For each graph the bounds of the nodes by centre, the one used last at the end.
_known: "WeakKeyDictionary[Graph, OrderedDict[bytes, dict[Node, IntervalBounds]]]" = WeakKeyDictionary()


@dataclass(frozen=True)
class ConstantNodes:
    """The nodes that vary in no row of a batch, with bounds of every one that a varying node reads.

    Attributes:
        nodes: never the input itself; all inputs of such a node are constant, too.
        bounds: lower, upper (batch, *shape) of every node that a varying node reads, and of a constant output.
    """

    nodes: Set[Node]
    bounds: Mapping[Node, IntervalBounds]

    def place(self, node: Node, boxes: Boxes, forms: Forms | None) -> None:
        """Give a constant node its bounds and its form, if it is read."""
        if node in self.bounds:
            boxes.keep(node, *self.bounds[node])
            boxes.moving[node] = slice(0, 0)
        if forms is not None:
            forms.place_constant(node, self.bounds.get(node))


def find_constant_nodes(
    graph: Graph, region: Region, order: Sequence[Node], bound_centres: BoundCentres
) -> ConstantNodes | None:
    """The constant nodes of a region, in a topological order; None if there are too few.

    bound_centres: bounds of all nodes at some centres, (centres, inputs), which are remembered.
    """
    lower, upper = (end.flatten(1).to(graph.device, torch.float64) for end in region.enclosing_box())
    still = lower == upper
    constant = _constant_nodes(graph, order, ~still.all(0))
    if sum(node.size for node in constant) < LEAST_SHARE * sum(node.size for node in graph.nodes[1:]):
        return None
    centre = torch.where(still, lower, region.centre.flatten(1).to(lower))
    read = {source for node in graph.nodes if node not in constant for source in node.inputs}
    wanted = [node for node in graph.nodes if node in constant and (node in read or node is graph.output)]
    return ConstantNodes(constant, _bounds_at_centres(graph, centre, wanted, bound_centres))


def _constant_nodes(graph: Graph, order: Sequence[Node], varies: Tensor) -> set[Node]:
    """The nodes that depend on no input that varies; varies (inputs,) bool."""
    varying: set[Node] = {graph.entry}
    for node in order:
        if isinstance(node, Affine) and node.moves and node.inputs[0] is graph.entry:
            if bool(node.forward([varies[None]]).any()):
                varying.add(node)
        elif any(source in varying for source in node.inputs):
            varying.add(node)
    return set(order) - varying


def _bounds_at_centres(
    graph: Graph, centre: Tensor, wanted: Sequence[Node], bound_centres: BoundCentres
) -> dict[Node, IntervalBounds]:
    known = _known.setdefault(graph, OrderedDict())
    keys = [row.cpu().numpy().tobytes() for row in centre]
    missing = {key: row for row, key in enumerate(keys) if key not in known}
    if missing:
        found = bound_centres(centre[list(missing.values())])
        for place, key in enumerate(missing):
            known[key] = {node: (low[place], high[place]) for node, (low, high) in found.items()}
    bounds = {}
    for node in wanted:
        lower, upper = (torch.stack([known[key][node][side] for key in keys]) for side in (0, 1))
        bounds[node] = lower, upper
    for key in keys:
        known.move_to_end(key)
    most = max(1, MAX_VALUES // (2 * sum(node.size for node in graph.nodes)))
    while len(known) > most:
        known.popitem(last=False)
    return bounds
