"""The crown's walk with more to go by: affine forms beside the intervals, bounds that are known beforehand, chosen slopes, multipliers.

Everything here is put together from the crown's own steps, so every rounding is charged as it is there.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace

import torch
from torch import Tensor

from holdfast import batch
from holdfast.bounding import crown
from holdfast.bounding.crown import BackwardWalk
from holdfast.bounding.graph.graph import Affine, Graph, InputNode, Node, Relaxed
from holdfast.bounding.node_bounds import Boxes, Ends, LinearForms
from holdfast.bounding.relax.base import LinearBounds, intercept, planes
from holdfast.bounding.traversal import Forward, forward
from holdfast.bounding.zonotope import Forms
from holdfast.region import Region


def propagate(
    graph: Graph,
    region: Region,
    forms: Forms | None = None,
    within: Mapping[Node, Ends] | None = None,
    walks: bool = True,
) -> tuple[Boxes, Tensor]:
    """Boxes for all nodes, as `crown.propagate` finds them, and (batch,) bool: which rows hold no point at all.

    forms   are carried along; every bound is the better of the two.
    within  what the values of some nodes are held to: the bounds speak of the points of the region that do so.
    walks   False: no backward passes, for forms that know as much without them.
    """
    boxes = Boxes(region)
    held = Held(boxes, within or {})
    carriers: list[Callable[[Node], None]] = [crown.Intervals(graph, boxes).visit]
    if forms is not None:
        carriers.append(_Carried(forms, boxes).visit)

    forward(graph.nodes, *carriers, held, *([crown.IntermediateRefinement(graph, boxes)] if walks else []))
    return boxes, held.empty


class Held:
    """Ends to which the values of some nodes are held on the way forward; empty, (batch,) bool: the rows without a point that does so."""

    def __init__(self, boxes: Boxes, within: Mapping[Node, Ends]) -> None:
        self.boxes, self.within = boxes, within
        self.empty = torch.zeros(len(boxes.region), dtype=torch.bool, device=boxes.region.centre.device)

    def __call__(self, node: Node) -> None:
        if node in self.within:
            self.empty |= _apart(self.boxes, node, self.within[node])
            self.boxes.keep(node, *self.within[node])


class _Carried(Forward):
    """Forms beside intervals: functions are taken over the better of the two, and so is what follows."""

    def __init__(self, forms: Forms, boxes: Boxes) -> None:
        self.forms, self.boxes = forms, boxes

    def visit(self, node: Node) -> None:
        super().visit(node)
        if node in self.forms.of:
            self.boxes.keep(node, *(end.reshape(-1, *node.shape) for end in self.forms.of[node].ends()))

    def enter(self, node: InputNode) -> None:
        assert node in self.forms.of

    def through_map(self, node: Affine) -> None:
        self.forms.affine(node)

    def through_function(self, node: Relaxed) -> None:
        self.forms.apply_relaxation(
            node, [self.boxes.lower[s] for s in node.inputs], [self.boxes.upper[s] for s in node.inputs]
        )


def _apart(boxes: Boxes, node: Node, held: Ends) -> Tensor:
    """-> (batch,) where some element lies wholly outside of what it is held to."""
    return ((boxes.upper[node] < held[0]) | (boxes.lower[node] > held[1])).flatten(1).any(1)


def with_ends(graph: Graph, boxes: Boxes, ends: Mapping[Node, Ends]) -> Boxes:
    """The same boxes where the values of some nodes are held to narrower ends, for the points that do so. The planes of the functions that
    read them follow; what else lies behind them keeps its ends, which hold there, too."""
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
    """The same boxes with other slopes of the lower planes of some functions of one argument; the intercepts follow."""
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
    """rows (batch, rows, *shape) of several nodes -> linear functions of the input below the sum of row . node over the region."""
    count = next(iter(rows.values())).shape[1]
    walk = BackwardWalk(graph, boxes, count)
    for node, part in rows.items():
        walk.arrive(node, part, slice(0, len(boxes.region)))
    return walk.back_from(max(node.place for node in rows))


def take_rows(boxes: Boxes, rows: Tensor) -> Boxes:
    """The boxes of some rows of the batch, each as often as it is named."""

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
    # A node may be taken to move in rows in which it does not: that costs time only.
    moving = {
        node: slice(0, len(rows) if where.start < where.stop else 0) for node, where in boxes.moving.items()
    }
    return Boxes(
        batch.take(boxes.region, rows), some(boxes.lower), some(boxes.upper), some(boxes.magnitude), some_planes,
        moving=moving, elements=some(boxes.elements),
    )  # fmt: skip
