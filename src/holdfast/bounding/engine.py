"""Bounds for every node of a graph over a region, by one backward traversal, in float64 with every rounding paid for.

For rows Lambda on a node y, a lower bound of Lambda . y over the region: walk back to the input, replacing each affine map by its
transpose and each relaxed function by the plane that the sign of its coefficient asks for, then minimise the linear function that
arrives over the region itself.

Rounding. A computed coefficient is taken as exact and the difference is charged: if Lambda' = fl(Lambda J) then |Lambda J x - Lambda' x| <=
gamma_N (|Lambda| |J|) |x|, N the length of the sums, and |J| |x| + |b| is at most the node's magnitude, known from the forward pass. So one
product of |Lambda| with a vector at every node pays for the coefficients, the offsets and their sums. The claim is about the network in
real arithmetic with its weights as stored.

As executed. The same walk proves bounds for the network as it runs in float32: there every node's value is its function of the values
before it plus an error of known size, which is charged like any other term. Sums may run in any order.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from holdfast.bounding.graph import Affine, Entry, Graph, Node, Relaxed
from holdfast.bounding.relax import Planes, planes, value_range
from holdfast.memory import free_bytes
from holdfast.region import Region
from holdfast.rounding import TINY, gamma

UNDERFLOW = 1e-30  # above any accumulation of float32 underflows, flushed to zero or not
ELEMENTS = 2**21  # float64 numbers in one tensor of rows on a processor, whose caches like small ones
ALIVE = 16  # such tensors may be alive at once


@dataclass
class Boxes:
    """What is known of every node over the region: lower <= value <= upper and magnitude, each (batch, *shape)."""

    region: Region
    lower: dict[Node, Tensor] = field(default_factory=dict)
    upper: dict[Node, Tensor] = field(default_factory=dict)
    magnitude: dict[Node, Tensor] = field(default_factory=dict)
    planes: dict[Node, Planes] = field(default_factory=dict)
    executed: torch.dtype | None = None  # None: the network in real arithmetic
    error: dict[Node, Tensor] = field(default_factory=dict)  # where it is executed: what computing a node adds to its value, at most

    def keep(self, node: Node, lower: Tensor, upper: Tensor) -> None:
        """Both bounds are right, so their intersection is; numbers that are none say nothing."""
        lower, upper = (
            torch.nan_to_num(lower, -torch.inf, torch.inf, -torch.inf),
            torch.nan_to_num(upper, torch.inf, torch.inf, -torch.inf),
        )
        if node in self.lower:
            lower, upper = torch.maximum(lower, self.lower[node]), torch.minimum(upper, self.upper[node])
        self.lower[node], self.upper[node] = lower, torch.maximum(lower, upper)

    def largest(self, node: Node) -> Tensor:
        return torch.maximum(self.lower[node].abs(), self.upper[node].abs())

    def computed(self, node: Node, terms: int, size: Tensor) -> Tensor | float:
        """What a sum of so many terms, of this size in all, may miss when it is executed."""
        if self.executed is None:
            return 0.0
        missed = gamma(terms + 16, self.executed) * size + UNDERFLOW
        self.error[node] = torch.where(size < torch.finfo(self.executed).max / 2, missed, torch.inf)  # a sum may overflow on its way
        return self.error[node]


@dataclass(frozen=True)
class Linear:
    """coefficients . x + constant, for each row of each input; every rounding on the way has been taken off the constant."""

    coefficients: Tensor  # (batch, rows, *input shape)
    constant: Tensor  # (batch, rows)

    def minimum(self, region: Region) -> Tensor:
        """-> (batch, rows): nothing in the region lies below."""
        least = region.minimise_linear(self.coefficients)
        return least + self.constant - 8 * gamma(1) * (least.abs() + self.constant.abs()) - TINY


def propagate(graph: Graph, region: Region, executed: torch.dtype | None = None) -> Boxes:
    """Boxes for all nodes: intervals forward, and a backward pass for each node that relaxed functions read."""
    boxes = Boxes(region, executed=executed)
    readers = _readers(graph)
    for node in graph.nodes:
        if isinstance(node, Entry):
            lower, upper = region.enclosing_box()
            boxes.keep(node, lower.unsqueeze(1), upper.unsqueeze(1))
            boxes.magnitude[node] = boxes.largest(node)
        elif isinstance(node, Affine):
            _affine_interval(boxes, node)
        elif isinstance(node, Relaxed):
            _relax(boxes, node)
        if node in readers:
            _refine(graph, boxes, node, readers[node])
    return boxes


def _readers(graph: Graph) -> dict[Node, list[tuple[Relaxed, Node]]]:
    """For each node worth a backward pass, the relaxed nodes that read it, each with the argument through which it does.

    An argument that only picks elements of another node (a gate among the gates) is bounded there, with all the others at once.
    """
    found: dict[Node, list[tuple[Relaxed, Node]]] = {}
    for node in graph.nodes:
        if isinstance(node, Relaxed):
            for argument in node.inputs:
                source = argument
                while isinstance(source, Affine) and source.picks is not None and not isinstance(source.inputs[0], Entry):
                    source = source.inputs[0]
                if not isinstance(source, Entry):
                    found.setdefault(source, []).append((node, argument))
    return found


def lower_bound(graph: Graph, boxes: Boxes, rows: Tensor, offset: Tensor) -> Tensor:
    """rows (batch, rows, outputs), offset (batch, rows) -> (batch, rows) <= row . output + offset over the region."""
    found = torch.cat([part.minimum(boxes.region) for part in _linear_parts(graph, boxes, rows)], dim=1)
    return found + offset - 4 * gamma(1) * (found.abs() + offset.abs())


def linear_bound(graph: Graph, boxes: Boxes, rows: Tensor) -> Linear:
    """rows (batch, rows, outputs) -> for every row a linear function of the input below row . output over the region."""
    parts = list(_linear_parts(graph, boxes, rows))
    return Linear(torch.cat([p.coefficients for p in parts], dim=1), torch.cat([p.constant for p in parts], dim=1))


def _linear_parts(graph: Graph, boxes: Boxes, rows: Tensor) -> Iterator[Linear]:
    output = graph.output
    for part in rows.reshape(*rows.shape[:2], *output.shape).split(_rows_at_once(graph, boxes, output), dim=1):
        yield _walk_back(graph, boxes, output, part)


def _rows_at_once(graph: Graph, boxes: Boxes, start: Node) -> int:
    elements = free_bytes(graph.device) // (8 * ALIVE) if graph.device.type == "cuda" else ELEMENTS
    return max(1, elements // (max(node.size for node in graph.nodes[: start.place + 1]) * len(boxes.region)))


def _walk_back(graph: Graph, boxes: Boxes, start: Node, rows: Tensor) -> Linear:
    """rows (batch, rows, *start.shape) -> a linear function of the input that stays below rows . start over the region."""
    none = rows.new_zeros(rows.shape[:2])
    return _continue(graph, boxes, start.place, {start: rows}, none, none)


def _element_bounds(graph: Graph, boxes: Boxes, node: Node, chosen: Tensor, sign: int) -> Tensor:
    """chosen (batch, rows): elements of the node -> (batch, rows): lower bounds of sign times each of them."""
    if isinstance(node, Affine) and node.matrices is not None:
        # The first step back from single elements only picks rows of the matrices.
        pending = {
            source: (sign * matrix[chosen]).reshape(*chosen.shape, *source.shape)
            for source, matrix in zip(node.inputs, node.matrices, strict=True)
        }
        weight = boxes.magnitude[node].flatten(1).gather(1, chosen)
        offset = sign * node.offset.flatten()[chosen]
        if node in boxes.error:
            offset = offset - boxes.error[node].flatten(1).gather(1, chosen)
        return _continue(graph, boxes, node.place - 1, pending, offset, weight).minimum(boxes.region)
    rows = torch.zeros((*chosen.shape, node.size), dtype=torch.float64, device=chosen.device)
    rows.scatter_(2, chosen.unsqueeze(-1), float(sign))
    return _walk_back(graph, boxes, node, rows.reshape(*chosen.shape, *node.shape)).minimum(boxes.region)


def _continue(graph: Graph, boxes: Boxes, place: int, pending: dict[Node, Tensor], constant: Tensor, total: Tensor) -> Linear:
    """Walk back from `place` with the coefficients that are pending; `total` is the weight of the roundings met so far."""
    charge = gamma(2 * graph.nodes[min(place + 1, len(graph.nodes) - 1)].size + 16) * total
    steps = 1
    for node in reversed(graph.nodes[: place + 1]):
        if isinstance(node, Entry) or node not in pending:
            continue
        coefficients = pending.pop(node)
        if node not in graph.exact:
            size = coefficients.abs()
            weight = _dot(size, boxes.magnitude[node])
            charge, total, steps = charge + gamma(2 * node.size + 16) * weight, total + weight, steps + 1
        if node in boxes.error:
            constant = constant - _dot(coefficients.abs(), boxes.error[node])
        if isinstance(node, Relaxed):
            # The lower plane where the coefficient is positive, the upper one where it is negative: middle and half width of the two.
            p = boxes.planes[node]
            constant = constant + _dot(coefficients, p.lower_offset / 2 + p.upper_offset / 2)
            constant = constant + _dot(size, p.lower_offset / 2 - p.upper_offset / 2)
            for source, low, up in zip(node.inputs, p.lower, p.upper, strict=True):
                part = (coefficients * (low / 2 + up / 2)[:, None]).addcmul_(size, (low / 2 - up / 2)[:, None])
                _arrive(pending, source, part)
            continue
        assert isinstance(node, Affine)
        if bool(node.offset.any()):
            constant = constant + _dot(coefficients, node.offset[None])
        if node.picks is not None:
            _scatter(pending, node, coefficients, exact=node in graph.exact)
        else:
            for source, part in zip(node.inputs, _transposed(node, coefficients), strict=True):
                _arrive(pending, source, part)
    reached = pending.pop(graph.entry, None)
    if reached is None:  # what was asked for does not depend on the input
        reached = constant.new_zeros((*constant.shape, *graph.entry.shape))
    # Sums of several coefficients at one node, and of the constants: a few more roundings of everything that was met.
    charge = 2 * (charge + gamma(4 * steps) * total) + 8 * gamma(1) * constant.abs() + TINY
    return Linear(reached.squeeze(2), constant - charge)


def _arrive(pending: dict[Node, Tensor], source: Node, part: Tensor) -> None:
    pending[source] = pending[source] + part if source in pending else part


def _scatter(pending: dict[Node, Tensor], node: Affine, rows: Tensor, *, exact: bool) -> None:
    """Back through a move: every coefficient goes to the element it came from."""
    (source,) = node.inputs
    assert node.picks is not None
    before = pending.get(source)
    whole = rows.new_zeros((*rows.shape[:2], source.size)) if before is None else before.flatten(2)
    if exact:  # only moves of other elements have written here
        whole[..., node.span if node.span is not None else node.picks] = rows.flatten(2)
    else:
        whole = whole.index_add(2, node.picks, rows.flatten(2))
    pending[source] = whole.reshape(*rows.shape[:2], *source.shape)


def _dot(rows: Tensor, vector: Tensor) -> Tensor:
    """(batch, rows, *shape), (batch or 1, *shape) -> (batch, rows)."""
    return torch.matmul(rows.flatten(2), vector.expand(rows.shape[0], *vector.shape[1:]).flatten(1).unsqueeze(-1)).squeeze(-1)


def _transposed(node: Affine, rows: Tensor) -> list[Tensor]:
    """(batch, rows, *shape) -> for each input (batch, rows, *its shape): rows times the matrix of the map."""
    if node.adds:
        return [rows for _ in node.inputs]
    if node.matrices is not None:
        found = tuple(rows.flatten(2) @ matrix for matrix in node.matrices)
    else:
        zeros = [torch.zeros(source.shape, dtype=rows.dtype, device=rows.device) for source in node.inputs]
        # Without cuDNN a convolution is a plain matrix product, to which the rounding bound applies.
        with torch.backends.cudnn.flags(enabled=False):
            _, back = torch.func.vjp(node.function, *zeros)  # type: ignore[misc]
            found = torch.func.vmap(back)(rows.flatten(0, 1))
    return [part.reshape(*rows.shape[:2], *source.shape) for part, source in zip(found, node.inputs, strict=True)]


def _affine_interval(boxes: Boxes, node: Affine) -> None:
    """Centre and radius through the map: J c + b -+ |J| r. A move has the bounds of what it moved."""
    if node.picks is not None:
        (source,) = node.inputs
        lower, upper = (side[source].flatten(1)[:, node.picks].reshape(-1, *node.shape) for side in (boxes.lower, boxes.upper))
        boxes.keep(node, lower, upper)
        boxes.magnitude[node] = boxes.largest(node)
        return
    _mapped_interval(boxes, node)


def _mapped_interval(boxes: Boxes, node: Affine) -> None:
    lower = [boxes.lower[s] for s in node.inputs]
    upper = [boxes.upper[s] for s in node.inputs]
    largest = [boxes.largest(s) for s in node.inputs]
    centre = [low / 2 + high / 2 for low, high in zip(lower, upper, strict=True)]
    radius = [(high / 2 - low / 2) * (1 + 4 * gamma(1)) + 2 * gamma(1) * big for low, high, big in zip(lower, upper, largest, strict=True)]
    terms = sum(s.size for s in node.inputs)
    if node.matrices is not None:
        absolute = [m.abs() for m in node.matrices]
        middle = _through(node.matrices, centre) + node.offset.flatten()
        magnitude, spread = _through(absolute, largest) + node.offset_size.flatten(), _through(absolute, radius)
        middle, magnitude, spread = (v.reshape(-1, *node.shape) for v in (middle, magnitude, spread))
    else:
        with torch.backends.cudnn.flags(enabled=False):
            function, size = torch.func.vmap(node.function), torch.func.vmap(node.magnitude)
            middle, magnitude = function(*centre), size(*largest)
            spread = size(*radius) - node.magnitude(*[torch.zeros_like(m[0]) for m in largest])
    slack = 4 * gamma(terms) * magnitude + TINY
    slack = slack + boxes.computed(node, node.terms, magnitude + slack)
    boxes.magnitude[node] = magnitude + slack
    boxes.keep(node, middle - spread - slack, middle + spread + slack)


def _through(matrices: Sequence[Tensor], values: Sequence[Tensor]) -> Tensor:
    """(batch, *shape) for each input -> (batch, size): the sum of matrix times value."""
    return sum((v.flatten(1) @ m.t() for m, v in zip(matrices, values, strict=True)), torch.zeros((), dtype=torch.float64))


def _relax(boxes: Boxes, node: Relaxed) -> None:
    lower = tuple(boxes.lower[s] for s in node.inputs)
    upper = tuple(boxes.upper[s] for s in node.inputs)
    found = planes(node.relaxation, lower, upper)
    boxes.planes[node] = found
    least, most = value_range(node.relaxation, lower, upper)
    missed = boxes.computed(node, 0, node.relaxation.magnitude(lower, upper))
    boxes.keep(node, least - missed, most + missed)
    magnitude = torch.maximum(found.lower_offset.abs(), found.upper_offset.abs())
    for source, low, up in zip(node.inputs, found.lower, found.upper, strict=True):
        steep = torch.maximum(low.abs(), up.abs())
        magnitude = magnitude + torch.where(steep == 0, 0, steep * boxes.largest(source))
    boxes.magnitude[node] = magnitude


def _refine(graph: Graph, boxes: Boxes, node: Node, readers: list[tuple[Relaxed, Node]]) -> None:
    """A backward pass for both signs of every element that some reader could use more tightly, chosen input by input."""
    needed = torch.zeros_like(boxes.lower[node], dtype=torch.bool)
    for reader, argument in readers:
        if argument is node and reader.inputs == (node,):
            needed |= reader.relaxation.unresolved((boxes.lower[node],), (boxes.upper[node],))
        else:
            needed |= boxes.upper[node] > boxes.lower[node]
    flat = needed.flatten(1)
    count = int(flat.sum(1).max())
    if count == 0:
        return
    # Every input has its own elements to look at; those with fewer look at some others too, which does no harm.
    chosen = flat.to(torch.uint8).topk(count, dim=1).indices
    parts = chosen.split(_rows_at_once(graph, boxes, node), dim=1)
    lower, upper = (torch.cat([_element_bounds(graph, boxes, node, part, sign) for part in parts], dim=1) for sign in (1, -1))
    found = [
        end.flatten(1).scatter(1, chosen, value).reshape(end.shape)
        for end, value in ((boxes.lower[node], lower), (boxes.upper[node], -upper))
    ]
    boxes.keep(node, *found)
