"""Bounds for every node of a graph over a region, by one backward traversal, in float64 with every rounding paid for.

For rows Lambda on a node y, a lower bound of Lambda . y over the region: walk back to the input, replacing each affine map by its
transpose and each relaxed function by the plane that the sign of its coefficient asks for, then minimise the linear function that
arrives over the region itself.

Rounding. A computed coefficient is taken as exact and the difference is charged: if Lambda' = fl(Lambda J) then |Lambda J x - Lambda' x| <=
gamma_N (|Lambda| |J|) |x|, N the length of the sums, and |J| |x| + |b| is at most the node's magnitude, known from the forward pass. So one
product of |Lambda| with a vector at every node pays for the coefficients, the offsets and their sums. The claim is about the network in
real arithmetic with its weights as stored.

What stays still. Where only some frames of an input move, most nodes are points (but for rounding) in most rows of the batch. The walk
goes on only in the rows in which a node moves; in the others its coefficients meet its interval at once. For every node these rows are
kept as one slice, so the walk is shortest where rows that move the same frames lie next to each other.

As executed. The same walk proves bounds for the network as it runs in float32: there every node's value is its function of the values
before it plus an error of known size, which is charged like any other term. Sums may run in any order.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from holdfast.bounding.graph.graph import Affine, Entry, Graph, Node, Relaxed
from holdfast.bounding.relax import Planes, planes, value_range
from holdfast.memory import free_bytes
from holdfast.region import Region
from holdfast.rounding import TINY, UNDERFLOW, gamma

ELEMENTS = 2**21  # float64 numbers in one tensor of rows on a processor, whose caches like small ones
ALIVE = 16  # such tensors may be alive at once


@dataclass(frozen=True)
class Tilt:
    """A relaxed function in the rows in which it moves, as the walk uses it: the middle of its planes and half their difference."""

    middle: list[Tensor]  # for each input, slopes (rows, 1, *shape)
    half: list[Tensor]
    offset: Tensor  # (rows, *shape)
    of_size: Tensor  # (rows, size, 2): what the size of a coefficient takes off, and how much its rounding weighs


@dataclass
class Boxes:
    """What is known of every node over the region: lower <= value <= upper and magnitude, each (batch, *shape)."""

    region: Region
    lower: dict[Node, Tensor] = field(default_factory=dict)
    upper: dict[Node, Tensor] = field(default_factory=dict)
    magnitude: dict[Node, Tensor] = field(default_factory=dict)
    planes: dict[Node, Planes] = field(default_factory=dict)
    tilts: dict[Node, Tilt] = field(default_factory=dict)
    executed: torch.dtype | None = None  # None: the network in real arithmetic
    error: dict[Node, Tensor] = field(default_factory=dict)  # where it is executed: what computing a node adds to its value, at most
    moving: dict[Node, slice] = field(default_factory=dict)  # the rows of the batch in which a node moves, and maybe some in between
    elements: dict[Node, Tensor] = field(default_factory=dict)  # (batch, size) bool, for the input and moves of it: what moves
    condensed: tuple[Region, Tensor] | None = None  # the region over the features that move, and which these are (batch, features)
    points: dict[tuple[Node, int], tuple[Tensor, Tensor]] = field(default_factory=dict)  # a map of one input's interval: middle, spread

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

    def interval(self, node: Node, rows: slice) -> tuple[Tensor, Tensor]:
        """-> middle, radius: every value of the node in these rows is within the radius of the middle."""
        lower, upper, largest = self.lower[node][rows], self.upper[node][rows], self.largest(node)[rows]
        return lower / 2 + upper / 2, (upper / 2 - lower / 2) * (1 + 4 * gamma(1)) + 2 * gamma(1) * largest

    def tilt(self, node: Node) -> Tilt:
        if node not in self.tilts:
            p, rows = self.planes[node], self.moving[node]
            low, up = p.lower_offset[rows], p.upper_offset[rows]
            down = low / 2 - up / 2
            if node in self.error:
                down = down - self.error[node][rows]
            self.tilts[node] = Tilt(
                [(a[rows] / 2 + b[rows] / 2)[:, None] for a, b in zip(p.lower, p.upper, strict=True)],
                [(a[rows] / 2 - b[rows] / 2)[:, None] for a, b in zip(p.lower, p.upper, strict=True)],
                low / 2 + up / 2,
                torch.stack([down.flatten(1), self.magnitude[node][rows].flatten(1)], dim=-1),
            )
        return self.tilts[node]

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

    coefficients: Tensor  # (batch, rows, *shape of the region)
    constant: Tensor  # (batch, rows)

    def minimum(self, region: Region) -> Tensor:
        """-> (batch, rows): nothing in the region lies below."""
        least = region.minimise_linear(self.coefficients)
        return least + self.constant - 8 * gamma(1) * (least.abs() + self.constant.abs()) - TINY


def propagate(
    graph: Graph, region: Region, executed: torch.dtype | None = None, also: Callable[[Boxes, Node], None] | None = None, walks: bool = True
) -> Boxes:
    """Boxes for all nodes: intervals forward, and a backward pass for each node that relaxed functions read.

    also   called for every node behind its interval, to keep whatever else is known of it.
    walks  False: no backward passes, where something else keeps the bounds tight.
    """
    boxes = Boxes(region, executed=executed)
    readers = _readers(graph)
    if all(isinstance(node, Affine) and node.picks is not None for node in graph.nodes if graph.entry in node.inputs):
        boxes.condensed = region.condensed()
    for node in graph.nodes:
        if isinstance(node, Entry):
            lower, upper = region.enclosing_box()
            boxes.keep(node, lower.unsqueeze(1), upper.unsqueeze(1))
            boxes.magnitude[node] = boxes.largest(node)
        _note_movement(boxes, node)
        if isinstance(node, Affine):
            _affine_interval(boxes, node)
        elif isinstance(node, Relaxed):
            _relax(boxes, node)
        if also is not None:
            also(boxes, node)
        if walks and node in readers:
            _refine(graph, boxes, node, readers[node])
    return boxes


def _note_movement(boxes: Boxes, node: Node) -> None:
    """In which rows does the node move? Those from the first to the last in which something it reads does."""
    if isinstance(node, Entry):
        boxes.elements[node] = (boxes.lower[node] < boxes.upper[node]).flatten(1)
    elif isinstance(node, Affine) and node.picks is not None and node.inputs[0] in boxes.elements:
        boxes.elements[node] = boxes.elements[node.inputs[0]][:, node.picks]
    else:
        moving = [rows for rows in (boxes.moving[source] for source in node.inputs) if rows.start < rows.stop]
        boxes.moving[node] = slice(min(r.start for r in moving), max(r.stop for r in moving)) if moving else slice(0, 0)
        return
    rows = boxes.elements[node].any(1).nonzero().flatten()
    boxes.moving[node] = slice(int(rows[0]), int(rows[-1]) + 1) if len(rows) else slice(0, 0)


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
    found = torch.cat([part.minimum(_walked_region(boxes)) for part in _linear_parts(graph, boxes, rows)], dim=1)
    return found + offset - 4 * gamma(1) * (found.abs() + offset.abs())


def linear_bound(graph: Graph, boxes: Boxes, rows: Tensor) -> Linear:
    """rows (batch, rows, outputs) -> for every row a linear function of the input below row . output over the region."""
    parts = list(_linear_parts(graph, boxes, rows))
    coefficients, constant = torch.cat([p.coefficients for p in parts], dim=1), torch.cat([p.constant for p in parts], dim=1)
    if boxes.condensed is not None:
        features = boxes.condensed[1][:, None].expand(*constant.shape, -1)
        whole = constant.new_zeros((*constant.shape, graph.entry.size))
        coefficients = whole.scatter_(2, features, coefficients.flatten(2)).reshape(*constant.shape, *boxes.region.shape)
    return Linear(coefficients, constant)


def _walked_region(boxes: Boxes) -> Region:
    """The region over which what arrives at the input is minimised."""
    return boxes.region if boxes.condensed is None else boxes.condensed[0]


def _linear_parts(graph: Graph, boxes: Boxes, rows: Tensor) -> Iterator[Linear]:
    output = graph.output
    for part in rows.reshape(*rows.shape[:2], *output.shape).split(_rows_at_once(graph, boxes, output), dim=1):
        yield _walk_back(graph, boxes, output, part)


def _rows_at_once(graph: Graph, boxes: Boxes, start: Node) -> int:
    elements = free_bytes(graph.device) // (8 * ALIVE) if graph.device.type == "cuda" else ELEMENTS
    batch = len(boxes.region)
    entry = batch * (graph.entry.size if boxes.condensed is None else boxes.condensed[1].shape[1])
    rows = ((boxes.moving[node], node.size) for node in graph.nodes[1 : start.place + 1])
    largest: int = max([entry, batch, *(size * (moving.stop - moving.start) for moving, size in rows)])
    return max(1, elements // largest)


def _walk_back(graph: Graph, boxes: Boxes, start: Node, rows: Tensor) -> Linear:
    """rows (batch, rows, *start.shape) -> a linear function of the input that stays below rows . start over the region."""
    walk = Walk(graph, boxes, rows.shape[1])
    walk.arrive(start, rows, slice(0, len(boxes.region)))
    return walk.back_from(start.place)


def _element_bounds(graph: Graph, boxes: Boxes, node: Node, chosen: Tensor) -> tuple[Tensor, Tensor]:
    """chosen (rows of the batch in which the node moves, rows): its elements -> lower and upper bounds of each, the same shape."""
    moving, count = boxes.moving[node], chosen.shape[1]
    sign = torch.ones(2 * count, dtype=torch.float64, device=chosen.device)
    sign[count:] = -1  # an upper bound is a lower bound of the negative
    chosen = torch.cat([chosen, chosen], dim=1)
    walk = Walk(graph, boxes, 2 * count)
    if isinstance(node, Affine) and node.matrices is not None:
        # The first step back from single elements only picks rows of the matrices.
        for source, matrix in zip(node.inputs, node.matrices, strict=True):
            walk.arrive(source, (sign[:, None] * matrix[chosen]).reshape(*chosen.shape, *source.shape), moving)
        walk.weigh(boxes.magnitude[node][moving].flatten(1).gather(1, chosen), moving, node.size)
        walk.constant[moving] += sign * node.offset.flatten()[chosen]
        if node in boxes.error:
            walk.constant[moving] -= boxes.error[node][moving].flatten(1).gather(1, chosen)
        place = node.place - 1
    else:
        rows = torch.zeros((*chosen.shape, node.size), dtype=torch.float64, device=chosen.device)
        rows.scatter_(2, chosen.unsqueeze(-1), sign[:, None].expand(*chosen.shape, 1))
        walk.arrive(node, rows.reshape(*chosen.shape, *node.shape), moving)
        place = node.place
    least = walk.back_from(place).minimum(_walked_region(boxes))[moving]
    return least[:, :count], -least[:, count:]


class Walk:
    """Coefficients on their way back to the input."""

    def __init__(self, graph: Graph, boxes: Boxes, rows: int) -> None:
        self.graph, self.boxes, self.steps = graph, boxes, 1
        self.pending: dict[Node, Tensor] = {}  # (rows of the batch in which the node moves, rows, *shape)
        # What is known of the constant so far, the weight of the roundings met, and what they may cost.
        self.constant, self.total, self.charge = (
            torch.zeros((len(boxes.region), rows), dtype=torch.float64, device=graph.device) for _ in range(3)
        )

    def back_from(self, place: int) -> Linear:
        graph, boxes = self.graph, self.boxes
        for node in reversed(graph.nodes[: place + 1]):
            if isinstance(node, Entry) or node not in self.pending:
                continue
            coefficients = self.pending.pop(node)
            if isinstance(node, Relaxed):
                self._through_planes(node, coefficients)
            else:
                assert isinstance(node, Affine)
                self._through_map(node, coefficients)
        reached = self.pending.pop(graph.entry, None)
        if reached is None:  # what was asked for does not depend on the input
            reached = self._nothing_reached()
        # Sums of several coefficients at one node, and of the constants: a few more roundings of everything that was met.
        charge = 2 * (self.charge + gamma(4 * self.steps) * self.total) + 8 * gamma(1) * self.constant.abs() + TINY
        return Linear(reached.reshape(*self.constant.shape, *_walked_region(boxes).shape), self.constant - charge)

    def _nothing_reached(self) -> Tensor:
        width = self.graph.entry.size if self.boxes.condensed is None else self.boxes.condensed[1].shape[1]
        return self.constant.new_zeros((*self.constant.shape, width))

    def weigh(self, weight: Tensor, rows: slice, terms: int) -> None:
        """Roundings of sums of so many terms, of this weight in all."""
        self.charge[rows] += gamma(2 * terms + 16) * weight
        self.total[rows] += weight
        self.steps += 1

    def _through_planes(self, node: Relaxed, coefficients: Tensor) -> None:
        """The lower plane where the coefficient is positive, the upper one where it is negative: middle and half width of the two."""
        moving, size = self.boxes.moving[node], coefficients.abs()
        tilt = self.boxes.tilt(node)
        self.constant[moving] += _dot(coefficients, tilt.offset)
        down, weight = torch.matmul(size.flatten(2), tilt.of_size).unbind(-1)
        self.constant[moving] += down
        self.weigh(weight, moving, node.size)
        for source, middle, half in zip(node.inputs, tilt.middle, tilt.half, strict=True):
            self.arrive(source, (coefficients * middle).addcmul_(size, half), moving)

    def _through_map(self, node: Affine, coefficients: Tensor) -> None:
        moving = self.boxes.moving[node]
        if node not in self.graph.exact:
            self.weigh(_dot(coefficients.abs(), self.boxes.magnitude[node][moving]), moving, node.size)
        if node in self.boxes.error:
            self.constant[moving] -= _dot(coefficients.abs(), self.boxes.error[node][moving])
        if node.shifts:
            self.constant[moving] += _dot(coefficients, node.offset[None])
        if node.picks is not None:
            self._scatter(node, coefficients)
        elif node.joins is not None:
            for source, places in zip(node.inputs, node.joins, strict=True):
                part = coefficients.flatten(2)[..., places]
                self.arrive(source, part.reshape(*part.shape[:2], *source.shape), moving)
        elif node.matrices is not None:
            for k, (source, matrix) in enumerate(zip(node.inputs, node.matrices, strict=True)):
                for still in _apart(moving, self.boxes.moving[source]):
                    # rows . (W x) costs less than (rows W) . x, and the first product is the same for all rows.
                    middle, spread = self._point(node, k)
                    place = _within(still, moving)
                    self.constant[still] += _dot(coefficients[place], middle[still]) - _dot(coefficients[place].abs(), spread[still])
                inside = self.boxes.moving[source]
                if inside.start < inside.stop:
                    rows = coefficients[_within(inside, moving)].flatten(2) @ matrix
                    self.arrive(source, rows.reshape(*rows.shape[:2], *source.shape), inside)
        else:
            for source, part in zip(node.inputs, transposed(node, coefficients), strict=True):
                self.arrive(source, part, moving)

    def _point(self, node: Affine, k: int) -> tuple[Tensor, Tensor]:
        """-> middle, spread (batch, *shape): what input k adds to the map, every value of it and every rounding of the product."""
        if (node, k) not in self.boxes.points:
            assert node.matrices is not None
            source, matrix = node.inputs[k], node.matrices[k]
            middle, radius = self.boxes.interval(source, slice(None))
            radius = radius + 4 * gamma(source.size + 2) * self.boxes.largest(source)
            self.boxes.points[node, k] = middle.flatten(1) @ matrix.t(), radius.flatten(1) @ matrix.abs().t() + TINY
        return self.boxes.points[node, k]

    def arrive(self, source: Node, part: Tensor, rows: slice) -> None:
        """part (rows of the batch, rows, *shape) goes on where the source moves; elsewhere it meets its interval here."""
        moving = self.boxes.moving[source]
        for still in _apart(rows, moving):
            self._meet(source, part[_within(still, rows)], still, None)
        if moving.start < moving.stop:
            inside = part[_within(moving, rows)]
            if isinstance(source, Entry):
                self._reach(slice(0, source.size), inside, moving)
            else:
                self.pending[source] = self.pending[source] + inside if source in self.pending else inside

    def _meet(self, source: Node, part: Tensor, rows: slice, only: Tensor | None) -> None:
        """Add the least value of part . source over the source's interval in these rows; `only` (rows, *shape) says which elements."""
        middle, radius = self.boxes.interval(source, rows)
        largest = self.boxes.largest(source)[rows]
        if only is not None:
            middle, radius, largest = middle * only, radius * only, largest * only
        size = part.abs()
        self.constant[rows] += _dot(part, middle) - _dot(size, radius)
        self.weigh(_dot(size, largest), rows, source.size)

    def _reach(self, which: slice | Tensor, part: Tensor, rows: slice) -> None:
        """Add coefficients part (rows of the batch, rows, ...) on some elements of the input to what has reached it."""
        entry, condensed = self.graph.entry, self.boxes.condensed
        whole = self.pending.get(entry)
        if whole is None:
            whole = self.pending[entry] = self._nothing_reached()
        flat = part.flatten(2)
        if condensed is None:
            if isinstance(which, slice):
                whole[rows, :, which] += flat
            else:
                whole[rows].index_add_(2, which, flat)
            return
        features = condensed[1][rows]
        place = torch.full((len(features), entry.size), -1, device=flat.device)
        place.scatter_(1, features, torch.arange(features.shape[1], device=flat.device).expand(features.shape))
        place = place[:, which]
        outside = place < 0
        if bool(outside.any()):  # it stays still in some of these rows
            only = torch.zeros((len(features), entry.size), dtype=torch.bool, device=flat.device)
            only[:, which] = outside
            padded = flat.new_zeros((*flat.shape[:2], entry.size))
            padded.index_add_(2, torch.arange(entry.size, device=flat.device)[which], flat)  # an element may be read more than once
            self._meet(entry, padded, rows, only.reshape(-1, *entry.shape))
        into = place.clamp_min(0)[:, None].expand(flat.shape)
        whole[rows].scatter_add_(2, into, flat * ~outside[:, None])

    def _scatter(self, node: Affine, rows: Tensor) -> None:
        """Back through a move: every coefficient goes to the element it came from."""
        (source,) = node.inputs
        assert node.picks is not None
        which = node.span if node.span is not None else node.picks
        moving = self.boxes.moving[node]
        if isinstance(source, Entry):
            self._reach(which, rows, moving)
            return
        before, whole_rows = self.pending.get(source), self.boxes.moving[source]
        count = whole_rows.stop - whole_rows.start
        whole = rows.new_zeros((count, rows.shape[1], source.size)) if before is None else before.flatten(2)
        part = _within(moving, whole_rows)
        if node in self.graph.exact:  # only moves of other elements have written here
            whole[part, :, which] = rows.flatten(2)
        else:
            whole = whole.clone()
            whole[part] = whole[part].index_add(2, node.picks, rows.flatten(2))
        self.pending[source] = whole.reshape(count, rows.shape[1], *source.shape)


def _apart(rows: slice, inner: slice) -> list[slice]:
    """The rows outside of the inner ones, as slices that are not empty."""
    if inner.start >= inner.stop:
        return [rows] if rows.start < rows.stop else []
    return [s for s in (slice(rows.start, inner.start), slice(inner.stop, rows.stop)) if s.start < s.stop]


def _within(rows: slice, whole: slice) -> slice:
    """The place of some rows in a tensor that holds only the rows of `whole`."""
    return slice(rows.start - whole.start, rows.stop - whole.start)


def _dot(rows: Tensor, vector: Tensor) -> Tensor:
    """(batch, rows, *shape), (batch or 1, *shape) -> (batch, rows)."""
    return torch.matmul(rows.flatten(2), vector.expand(rows.shape[0], *vector.shape[1:]).flatten(1).unsqueeze(-1)).squeeze(-1)


def transposed(node: Affine, rows: Tensor) -> list[Tensor]:
    """(batch, rows, *shape) -> for each input (batch, rows, *its shape): rows times the matrix of the map, which is not kept."""
    if node.adds:
        return [rows for _ in node.inputs]
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
    elif node.joins is not None:
        lower, upper = (torch.func.vmap(node.function)(*(side[s] for s in node.inputs)) for side in (boxes.lower, boxes.upper))
    else:
        _mapped_interval(boxes, node)
        return
    boxes.keep(node, lower, upper)
    boxes.magnitude[node] = boxes.largest(node)


def _mapped_interval(boxes: Boxes, node: Affine) -> None:
    largest = [boxes.largest(s) for s in node.inputs]
    centre, radius = zip(*(boxes.interval(s, slice(None)) for s in node.inputs), strict=True)
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
    if boxes.executed is not None:
        error = node.relaxation.executed_error(lower, upper, boxes.executed)
        boxes.error[node] = error = torch.full_like(least, torch.inf) if error is None else error
        least, most = least - error, most + error
    boxes.keep(node, least, most)
    magnitude = torch.maximum(found.lower_offset.abs(), found.upper_offset.abs())
    for source, low, up in zip(node.inputs, found.lower, found.upper, strict=True):
        steep = torch.maximum(low.abs(), up.abs())
        magnitude = magnitude + torch.where(steep == 0, 0, steep * boxes.largest(source))
    boxes.magnitude[node] = magnitude


def _refine(graph: Graph, boxes: Boxes, node: Node, readers: list[tuple[Relaxed, Node]]) -> None:
    """A backward pass for both signs of every element that some reader could use more tightly, chosen input by input."""
    moving = boxes.moving[node]
    lower, upper = boxes.lower[node][moving], boxes.upper[node][moving]
    needed = torch.zeros_like(lower, dtype=torch.bool)
    for reader, argument in readers:
        if argument is node and reader.inputs == (node,):
            needed |= reader.relaxation.unresolved((lower,), (upper,))
        else:
            needed |= upper > lower
    flat = needed.flatten(1)
    count = int(flat.sum(1).max()) if len(flat) else 0
    if count == 0:
        return
    # Every input has its own elements to look at; those with fewer look at some others too, which does no harm.
    chosen = flat.to(torch.uint8).topk(count, dim=1).indices
    parts = chosen.split(max(1, _rows_at_once(graph, boxes, node) // 2), dim=1)
    least, most = (torch.cat(ends, dim=1) for ends in zip(*(_element_bounds(graph, boxes, node, part) for part in parts), strict=True))
    found = []
    for end, value in ((boxes.lower[node], least), (boxes.upper[node], most)):
        flat = end.flatten(1).clone()
        flat[moving] = flat[moving].scatter(1, chosen, value)
        found.append(flat.reshape(end.shape))
    boxes.keep(node, *found)
