"""Bounds of the gradient of rows of the output, over a whole region.

The gradient of a row is a product: the row, times the matrix of the last affine map, times the derivatives of the functions before it,
times the next matrix, and so on. Walking back, every entry of the product so far is an interval. Between two layers of functions the
product with the affine maps is taken at once and exactly: middles through the map, half widths through its absolute values. Only a function
that is steeper here and flatter there over its box widens the intervals; where the boxes of `crown.propagate` fix every derivative (a ReLU
that does not change sides) nothing is lost but rounding.

Soundness. Along a segment inside the region, which must be convex, every node is absolutely continuous, and almost everywhere its
derivative along the segment is the sum over its arguments of a number of `derivative_ranges` times theirs: where an argument stands on a
kink of the function for more than a moment, its own derivative is zero and any number will do. So the row changes by the integral of
g . (x' - x) with g between the bounds found here, kinks or not. Where the row is differentiable, g is its gradient.

Rounding. A computed middle is taken as exact and the difference goes into the half width: gamma_N (|middle| + half) |J| with N the length
of the sums, as in the crown.
"""

import torch
from torch import Tensor

from holdfast.bounding.crown import ELEMENTS, Boxes, transposed
from holdfast.bounding.graph.graph import Affine, Entry, Graph, Node, Relaxed
from holdfast.bounding.relax.derivative import derivative_ranges
from holdfast.rounding import TINY, gamma

Interval = tuple[Tensor, Tensor]  # middle and half width, each (batch, rows, *shape)


def gradient_bounds(graph: Graph, boxes: Boxes, rows_low: Tensor, rows_high: Tensor) -> tuple[Tensor, Tensor]:
    """rows between rows_low and rows_high (batch, rows, outputs) -> lower, upper (batch, rows, *input shape) of their gradients.

    Infinite where nothing is known. `boxes` are those of a convex region.
    """
    ranges: dict[Node, list[tuple[Tensor, Tensor]]] = {node: _ranges(boxes, node) for node in graph.nodes if isinstance(node, Relaxed)}
    at_once = max(1, ELEMENTS // (len(boxes.region) * max(node.size for node in graph.nodes)))
    parts = [_walk(graph, ranges, *part) for part in zip(rows_low.split(at_once, 1), rows_high.split(at_once, 1), strict=True)]
    middle, half = (torch.cat(part, dim=1) for part in zip(*parts, strict=True))
    lower, upper = _ends(middle, half)
    lower, upper = lower.nan_to_num(-torch.inf, torch.inf, -torch.inf), upper.nan_to_num(torch.inf, torch.inf, -torch.inf)
    shape = (*lower.shape[:2], *boxes.region.shape)
    return lower.reshape(shape), upper.reshape(shape)


def _ranges(boxes: Boxes, node: Relaxed) -> list[tuple[Tensor, Tensor]]:
    """For each argument the derivative's ends, (batch, 1, *shape)."""
    lower, upper = (tuple(side[s] for s in node.inputs) for side in (boxes.lower, boxes.upper))
    return [(low[:, None], high[:, None]) for low, high in derivative_ranges(node, lower, upper)]


def _walk(graph: Graph, ranges: dict[Node, list[tuple[Tensor, Tensor]]], low: Tensor, high: Tensor) -> Interval:
    shape = (*low.shape[:2], *graph.output.shape)
    pending: dict[Node, Interval] = {graph.output: _interval(low.double().reshape(shape), high.double().reshape(shape))}
    for node in reversed(graph.nodes):
        if isinstance(node, Entry) or node not in pending:
            continue
        middle, half = pending.pop(node)
        parts = _through_function(ranges[node], middle, half) if isinstance(node, Relaxed) else _through_map(node, middle, half)
        for source, part in zip(node.inputs, parts, strict=True):
            pending[source] = _sum(pending[source], part) if source in pending else part
    if graph.entry not in pending:  # the output does not depend on the input
        none = low.new_zeros((*low.shape[:2], *graph.entry.shape), dtype=torch.float64)
        return none, none
    return pending[graph.entry]


def _through_function(ranges: list[tuple[Tensor, Tensor]], middle: Tensor, half: Tensor) -> list[Interval]:
    """An interval times the interval of the derivative: the extreme products of their ends."""
    low, high = _ends(middle, half)
    found = []
    for flat, steep in ranges:
        if bool((flat >= 0).all()):  # a function that rises: each end of the product needs one end of the coefficient only
            least, most = torch.minimum(low * flat, low * steep), torch.maximum(high * flat, high * steep)
        else:
            products = torch.stack([low * flat, low * steep, high * flat, high * steep])
            least, most = products.amin(0), products.amax(0)
        found.append(_interval(least, most))
    return found


def _through_map(node: Node, middle: Tensor, half: Tensor) -> list[Interval]:
    assert isinstance(node, Affine)
    if node.adds:
        return [(middle, half) for _ in node.inputs]
    if node.joins is not None:
        ends = zip(node.inputs, node.joins, strict=True)
        return [tuple(_shaped(part.flatten(2)[..., places], source) for part in (middle, half)) for source, places in ends]  # type: ignore[misc]
    error = gamma(2 * node.size + 16)
    width = half * (1 + 4 * error) + 2 * error * middle.abs() + TINY
    if node.picks is not None:
        (source,) = node.inputs
        none = middle.new_zeros((*middle.shape[:2], source.size))
        return [tuple(_shaped(none.index_add(2, node.picks, part.flatten(2)), source) for part in (middle, width))]  # type: ignore[list-item]
    if node.matrices is not None:
        pairs = zip(node.inputs, node.matrices, strict=True)
        return [(_shaped(middle.flatten(2) @ m, source), _shaped(width.flatten(2) @ m.abs(), source)) for source, m in pairs]
    return list(zip(transposed(node, middle), _of_size(node, width), strict=True))


def _of_size(node: Affine, rows: Tensor) -> list[Tensor]:
    """rows >= 0 times the absolute values of the map's matrix, which its magnitude |J| m + |b| knows."""
    ones = [torch.ones(source.shape, dtype=rows.dtype, device=rows.device) for source in node.inputs]
    with torch.backends.cudnn.flags(enabled=False):
        _, back = torch.func.vjp(node.magnitude, *ones)  # type: ignore[misc]
        found = torch.func.vmap(back)(rows.flatten(0, 1))
    return [_shaped(part.reshape(*rows.shape[:2], -1), source) for part, source in zip(found, node.inputs, strict=True)]


def _shaped(part: Tensor, source: Node) -> Tensor:
    return part.reshape(*part.shape[:2], *source.shape)


def _sum(a: Interval, b: Interval) -> Interval:
    middle = a[0] + b[0]
    return middle, (a[1] + b[1]) * (1 + 4 * gamma(1)) + gamma(1) * (a[0].abs() + b[0].abs())


def _interval(low: Tensor, high: Tensor) -> Interval:
    """Middle and half width of what lies between, its last products and these operations charged."""
    middle = low / 2 + high / 2
    half = (high / 2 - low / 2) * (1 + 4 * gamma(1)) + 4 * gamma(1) * torch.maximum(low.abs(), high.abs()) + TINY
    return middle, half


def _ends(middle: Tensor, half: Tensor) -> tuple[Tensor, Tensor]:
    width = half + 2 * gamma(1) * (middle.abs() + half)
    return middle - width, middle + width
