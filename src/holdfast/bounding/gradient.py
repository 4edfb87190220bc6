"""Bounds of the gradient of linear functions of the output over a region (interval arithmetic).

Statement. For rows between rows_low and rows_high and every x of the region, lower <= gradient of (row .
f)(x) <= upper, where the gradient exists. The gradient is the row times the matrix of the last affine map,
times the derivatives of the activations before it, times the next matrix, and so on. On the way back every
entry of this product is an interval, stored as middle and half width: an affine map J takes them to middle J
and half |J|, so only the rounding of the middle adds to the width. An activation multiplies by the interval
of its derivative over its pre-activation bounds. Where those fix every derivative (a stable ReLU) the result
is exact up to rounding.

Soundness at kinks. The region must be convex. Along a segment inside the region every node is absolutely
continuous, and almost everywhere its derivative along the segment is the sum over its inputs of a number of
the `derivative_range` times theirs: where a pre-activation stays on a kink of the activation on a set of
positive measure, its own derivative is zero almost everywhere there, and any number will do. So the row
changes from x to x' by the integral of g . (x' - x) with g between the bounds found here. Where the row is
differentiable, g is its gradient. Rounding: docs/rounding.md.

Assumptions: the region is convex; activations are locally Lipschitz, with a `derivative_range`.

Reference: Weng et al., "Towards fast computation of certified robustness for ReLU networks" (Fast-Lip, 2018),
for ReLU networks.
"""

import torch
from torch import Tensor

from holdfast.bounding.crown import CPU_TENSOR_VALUES
from holdfast.bounding.graph.graph import Affine, Graph, Node, Relaxed
from holdfast.bounding.node_bounds import Boxes
from holdfast.bounding.traversal import Backward
from holdfast.derivations import (
    BOX_RADIUS,
    FEW_OPERATIONS,
    GRADIENT_ENDPOINTS,
    GRADIENT_INTERVAL,
    GRADIENT_MIDDLE,
    GRADIENT_SUM,
    GRADIENT_WIDTH,
)
from holdfast.errors import UnsupportedLayer
from holdfast.rounding import charge, round_up

Interval = tuple[Tensor, Tensor]  # middle and half width, each (batch, rows, *shape)


def gradient_bounds(graph: Graph, boxes: Boxes, rows_low: Tensor, rows_high: Tensor) -> tuple[Tensor, Tensor]:
    """Bounds of the gradients of linear functions of the output.

    Args:
        boxes: intermediate bounds over a convex region.
        rows_low, rows_high: (batch, rows, outputs).

    Returns:
        lower, upper (batch, rows, *input shape); infinite where no bound is known.
    """
    ranges: dict[Node, list[tuple[Tensor, Tensor]]] = {
        node: _ranges(boxes, node) for node in graph.nodes if isinstance(node, Relaxed)
    }
    at_once = max(1, CPU_TENSOR_VALUES // (len(boxes.region) * max(node.size for node in graph.nodes)))
    parts = [
        _Gradients(graph, ranges).of(*part)
        for part in zip(rows_low.split(at_once, 1), rows_high.split(at_once, 1), strict=True)
    ]
    middle, half = (torch.cat(part, dim=1) for part in zip(*parts, strict=True))
    lower, upper = _ends(middle, half)
    lower = lower.nan_to_num(-torch.inf, torch.inf, -torch.inf)
    upper = upper.nan_to_num(torch.inf, torch.inf, -torch.inf)
    shape = (*lower.shape[:2], *boxes.region.shape)
    return lower.reshape(shape), upper.reshape(shape)


def _ranges(boxes: Boxes, node: Relaxed) -> list[tuple[Tensor, Tensor]]:
    """The bounds of the derivative for each input of the activation, (batch, 1, *shape) each."""
    lower, upper = (tuple(side[s] for s in node.inputs) for side in (boxes.lower, boxes.upper))
    found = node.relaxation.derivative_range(lower, upper)
    if found is None:
        raise UnsupportedLayer(
            f"layer {node.name}: no bound of the derivative of {type(node.relaxation).__name__} is "
            f"implemented, so the steepness of the network cannot be bounded. Radii and scores can still be "
            f"certified; to add such a bound, see docs/extending.md."
        )
    return [(low[:, None], high[:, None]) for low, high in found]


class _Gradients(Backward[Interval]):
    """The backward pass of the gradient's intervals."""

    def __init__(self, graph: Graph, ranges: dict[Node, list[tuple[Tensor, Tensor]]]) -> None:
        super().__init__(graph)
        self.ranges = ranges

    def of(self, low: Tensor, high: Tensor) -> Interval:
        """Rows between low and high (batch, rows, outputs) -> middle and half width at the input."""
        shape = (*low.shape[:2], *self.graph.output.shape)
        self.pending = {
            self.graph.output: _interval(low.double().reshape(shape), high.double().reshape(shape))
        }
        self.walk(self.graph.output.place)
        if self.graph.entry in self.pending:
            return self.pending[self.graph.entry]
        none = low.new_zeros((*low.shape[:2], *self.graph.entry.shape), dtype=torch.float64)
        return none, none  # the output does not depend on the input

    def through_function(self, node: Relaxed, carried: Interval) -> None:
        self._arrive(node, _through_function(self.ranges[node], *carried))

    def through_map(self, node: Affine, carried: Interval) -> None:
        self._arrive(node, _through_map(node, *carried))

    def _arrive(self, node: Node, parts: list[Interval]) -> None:
        for source, part in zip(node.inputs, parts, strict=True):
            self.pending[source] = _sum(self.pending[source], part) if source in self.pending else part


def _through_function(ranges: list[tuple[Tensor, Tensor]], middle: Tensor, half: Tensor) -> list[Interval]:
    """Multiply an interval by the interval of the derivative: the extreme products of their endpoints."""
    low, high = _ends(middle, half)
    found = []
    for flat, steep in ranges:
        if bool((flat >= 0).all()):  # increasing: each endpoint of the product needs one of the coefficient
            least, most = torch.minimum(low * flat, low * steep), torch.maximum(high * flat, high * steep)
        else:
            products = torch.stack([low * flat, low * steep, high * flat, high * steep])
            least, most = products.amin(0), products.amax(0)
        found.append(_interval(least, most))
    return found


def _through_map(node: Affine, middle: Tensor, half: Tensor) -> list[Interval]:
    width = half
    if not node.exact_back:
        width = round_up(half, GRADIENT_WIDTH, 2 * node.size)
        width = width + charge(middle.abs(), GRADIENT_MIDDLE, 2 * node.size)
    ends = zip(
        node.inputs, node.back(middle.flatten(2)), node.back(width.flatten(2), absolute=True), strict=True
    )
    return [(_reshape_to_source(m, source), _reshape_to_source(w, source)) for source, m, w in ends]


def _reshape_to_source(part: Tensor, source: Node) -> Tensor:
    return part.reshape(*part.shape[:2], *source.shape)


def _sum(a: Interval, b: Interval) -> Interval:
    middle = a[0] + b[0]
    half = round_up(a[1] + b[1], FEW_OPERATIONS) + charge(a[0].abs() + b[0].abs(), GRADIENT_SUM)
    return middle, half


def _interval(low: Tensor, high: Tensor) -> Interval:
    """Middle and half width of [low, high], enlarged by the rounding errors of these operations.

    The last rounding of low and high themselves is included.
    """
    middle = low / 2 + high / 2
    largest = torch.maximum(low.abs(), high.abs())
    half = round_up(high / 2 - low / 2, BOX_RADIUS) + charge(largest, GRADIENT_INTERVAL)
    return middle, half


def _ends(middle: Tensor, half: Tensor) -> tuple[Tensor, Tensor]:
    width = half + charge(middle.abs() + half, GRADIENT_ENDPOINTS)
    return middle - width, middle + width
