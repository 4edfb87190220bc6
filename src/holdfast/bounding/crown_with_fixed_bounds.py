"""CROWN with additional information: zonotopes, given bounds, chosen slopes, rows on several nodes.

Everything here is composed of the steps of `crown`, which bound all rounding errors.

Statement and assumptions: see `crown`. Given bounds must hold at every point of the region or subproblem;
then so does every result.

References: see `crown`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from holdfast import batch
from holdfast.bounding import crown
from holdfast.bounding.constant_nodes import ConstantNodes
from holdfast.bounding.crown import BackwardWalk, magnitude_of_relaxed
from holdfast.bounding.graph.graph import Affine, Graph, InputNode, Node, Relaxed
from holdfast.bounding.node_bounds import Boxes, IntervalBounds, LinearForms
from holdfast.bounding.relax.base import LinearBounds, intercept, planes
from holdfast.bounding.traversal import Forward, forward
from holdfast.bounding.zonotope import FACTORS, Forms
from holdfast.region import Region


def propagate(
    graph: Graph,
    region: Region,
    forms: Forms | None = None,
    within: Mapping[Node, IntervalBounds] | None = None,
    walks: bool = True,
    order: Sequence[Node] | None = None,
    constant: ConstantNodes | None = None,
) -> tuple[Boxes, Tensor]:
    """Bounds of all nodes, as `crown.propagate` finds them, and (batch,) bool: rows that contain no point.

    Args:
        forms: zonotopes, which are propagated as well; every bound is the better of the two.
        within: constraints lower <= value <= upper on some nodes. The bounds hold for the points of the
            region that satisfy them all.
        walks: whether to refine intermediate bounds by backward passes.
        order: a topological order of the nodes in which to visit them; default: that of the graph.
        constant: nodes whose bounds are known already, since they do not vary.
    """
    boxes = Boxes(region)
    held = BoundConstraints(boxes, within or {})
    carriers: list[Callable[[Node], None]] = [
        crown.Intervals(graph, boxes, relaxes=() if forms is None else FACTORS).visit
    ]
    if forms is not None:
        carriers.append(ZonotopePropagation(forms, boxes).visit)
    carriers.append(held)
    if walks:
        carriers.append(crown.IntermediateRefinement(graph, boxes))

    def visit(node: Node) -> None:
        if constant is not None and node in constant.nodes:
            constant.place(node, boxes, forms)
            return
        for carrier in carriers:
            carrier(node)

    forward(graph.nodes if order is None else order, visit)
    return boxes, held.empty


class BoundConstraints:
    """Intersects the bounds of some nodes with constraints on the way forward.

    `empty` (batch,) bool: the rows in which no point satisfies the constraints.
    """

    def __init__(self, boxes: Boxes, within: Mapping[Node, IntervalBounds]) -> None:
        self.boxes, self.within = boxes, within
        self.empty = torch.zeros(len(boxes.region), dtype=torch.bool, device=boxes.region.centre.device)

    def __call__(self, node: Node) -> None:
        if node in self.within:
            self.empty |= _violates(self.boxes, node, self.within[node])
            self.boxes.keep(node, *self.within[node])


class ZonotopePropagation(Forward):
    """Zonotopes and intervals side by side: activations are relaxed over the intersection of both."""

    def __init__(self, forms: Forms, boxes: Boxes) -> None:
        self.forms, self.boxes = forms, boxes

    def visit(self, node: Node) -> None:
        super().visit(node)
        if node in self.forms.of:
            self.boxes.keep(
                node, *(end.reshape(-1, *node.shape) for end in self.forms.of[node].interval_bounds())
            )

    def enter(self, node: InputNode) -> None:
        assert node in self.forms.of

    def through_map(self, node: Affine) -> None:
        self.forms.affine(node)

    def through_function(self, node: Relaxed) -> None:
        """Relax over the intersection; the linear bounds of the form replace wider ones between the box."""
        boxes = self.boxes
        ends = [boxes.lower[s] for s in node.inputs], [boxes.upper[s] for s in node.inputs]
        found = self.forms.apply_relaxation(node, *ends, boxes.planes.get(node))
        if found is None and node not in boxes.planes:
            boxes.planes[node] = planes(node.relaxation, tuple(ends[0]), tuple(ends[1]))
            boxes.magnitude[node] = magnitude_of_relaxed(boxes, node)
        if found is not None and len(node.inputs) > 1:
            slope, low, high = found
            shaped = tuple(s.reshape(-1, *node.shape) for s in slope)
            shape = low.reshape(-1, *node.shape), high.reshape(-1, *node.shape)
            boxes.planes[node] = LinearBounds(shaped, shape[0], shaped, shape[1])
            boxes.magnitude[node] = magnitude_of_relaxed(boxes, node)


def _violates(boxes: Boxes, node: Node, held: IntervalBounds) -> Tensor:
    """(batch,) bool: where some element lies wholly outside of its constraint."""
    return ((boxes.upper[node] < held[0]) | (boxes.lower[node] > held[1])).flatten(1).any(1)


def with_tighter_bounds(graph: Graph, boxes: Boxes, ends: Mapping[Node, IntervalBounds]) -> Boxes:
    """A copy of the boxes with tighter bounds of some nodes, for the points that satisfy these.

    The linear bounds of the activations that read them are computed again; the bounds of later nodes are
    kept, which remain valid.
    """
    changed = replace(
        boxes,
        lower=dict(boxes.lower),
        upper=dict(boxes.upper),
        planes=dict(boxes.planes),
        tilts={},
        points={},
    )
    for node, held in ends.items():
        changed.keep(node, *held)
    for node in graph.nodes:
        if isinstance(node, Relaxed) and any(source in ends for source in node.inputs):
            lower, upper = (
                tuple(side[source] for source in node.inputs) for side in (changed.lower, changed.upper)
            )
            changed.planes[node] = planes(node.relaxation, lower, upper)
    return changed


def with_slopes(boxes: Boxes, below: Mapping[Node, Tensor]) -> Boxes:
    """A copy of the boxes with other slopes of some linear lower bounds; the intercepts follow."""
    changed = replace(boxes, planes=dict(boxes.planes), magnitude=dict(boxes.magnitude), tilts={})
    for node, slope in below.items():
        assert isinstance(node, Relaxed)
        (source,) = node.inputs
        before = boxes.planes[node]
        offset = intercept(node.relaxation, (boxes.lower[source],), (boxes.upper[source],), (slope,))[0]
        changed.planes[node] = LinearBounds((slope,), offset, before.upper, before.upper_offset)
        steep = torch.maximum(slope.abs(), before.upper[0].abs())
        size = torch.maximum(offset.abs(), before.upper_offset.abs())
        changed.magnitude[node] = (size + torch.where(steep == 0, 0, steep * boxes.largest(source))).detach()
    return changed


def combine_rows(graph: Graph, boxes: Boxes, rows: Mapping[Node, Tensor]) -> LinearForms:
    """Linear functions of the input that are lower bounds of the sum of row . node over several nodes.

    `rows` are (batch, rows, *shape) for each node.
    """
    count = next(iter(rows.values())).shape[1]
    walk = BackwardWalk(graph, boxes, count)
    for node, part in rows.items():
        walk.arrive(node, part, slice(0, len(boxes.region)))
    return walk.back_from(max(node.place for node in rows))


def take_rows(boxes: Boxes, rows: Tensor) -> Boxes:
    """The boxes of some rows of the batch; an index may occur several times."""

    def some(values: dict[Node, Tensor]) -> dict[Node, Tensor]:
        return {node: value[rows] for node, value in values.items()}

    some_planes = {
        node: LinearBounds(
            tuple(s[rows] for s in p.lower),
            p.lower_offset[rows],
            tuple(s[rows] for s in p.upper),
            p.upper_offset[rows],
        )
        for node, p in boxes.planes.items()
    }
    # Treating a node as varying in rows in which it is constant costs time but is sound.
    moving = {
        node: slice(0, len(rows) if where.start < where.stop else 0) for node, where in boxes.moving.items()
    }
    return Boxes(
        batch.take(boxes.region, rows),
        some(boxes.lower),
        some(boxes.upper),
        some(boxes.magnitude),
        some_planes,
        moving=moving,
        elements=some(boxes.elements),
    )
