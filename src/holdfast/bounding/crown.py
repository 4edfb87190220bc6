"""CROWN: linear bounds of every node of a graph over a region, in float64 with all rounding errors included.

Statement. Let y be a node and Lambda rows of coefficients on it. The backward pass finds A and b with

    Lambda y(x)  >=  A x + b    for every x of the region,

so Lambda y >= min over the region of A x, plus b. It starts with Lambda on y and replaces node by node, from
the last to the first: an affine map by its transpose, and an activation f(z) by its linear lower bound where
the coefficient is positive and by its linear upper bound where it is negative,

    lower . z + lower_offset  <=  f(z)  <=  upper . z + upper_offset    for z within its intermediate bounds.

Intermediate bounds of the pre-activations come from the same pass, layer by layer (`IntermediateRefinement`),
intersected with interval arithmetic (`Intervals`). The claims hold for the network in real arithmetic with
its weights as stored; with `executed`, one further error term at every node makes them hold for the network
as it runs in float32. Rounding: docs/rounding.md.

Nodes that do not depend on the perturbed inputs. Where only some time steps of a sequence are perturbed, most
nodes are constant up to rounding in most rows of the batch. The backward pass goes on only in the rows in
which a node varies; in the others the coefficients are multiplied with the node's interval at once. The
varying rows of a node are stored as one slice, so batches are fastest if rows that perturb the same time
steps are neighbours.

Assumptions: the graph computes the model's function (`graph.equivalence_check` samples it), activations
have sound relaxations (`relax`), and arithmetic is that of IEEE 754 with round to nearest.

References: Zhang et al., "Efficient neural network robustness certification with general activation
functions" (CROWN, 2018); Xu et al., "Automatic perturbation analysis for scalable certified robustness and
beyond" (auto_LiRPA, 2020); Ko et al., "POPQORN: quantifying robustness of recurrent neural networks" (2019),
for recurrent cells.
"""

import math
from collections.abc import Container, Iterator, Mapping, Sequence

import torch
from torch import Tensor

from holdfast.bounding.crown_patches import MIN_DENSE_NUMBERS, Route, WindowWalk, group_by_position, route
from holdfast.bounding.graph.graph import Affine, Graph, InputNode, Node, Relaxed
from holdfast.bounding.graph.node import is_image
from holdfast.bounding.node_bounds import Boxes, IntervalBounds, LinearForms
from holdfast.bounding.relax import Clip, LinearBounds, Relaxation, Relu, RoundedInput, planes, value_range
from holdfast.bounding.relax.base import Point
from holdfast.bounding.sums_of_products import SummedBounds, SumsOfProducts, find_sums_of_products
from holdfast.bounding.sums_of_squares import find_sums_of_squares, keep_bounds
from holdfast.bounding.traversal import Backward, Forward, forward
from holdfast.cuda_graphs import record_function
from holdfast.derivations import (
    BACKWARD_CONSTANT,
    BACKWARD_MEETING,
    BACKWARD_STEP,
    CONVEX_COMBINATION,
    INTERVAL_MAP,
    NONNEGATIVE_SUM,
    STOPPED_ROW,
)
from holdfast.memory_budget import elements_per_tensor
from holdfast.region import Region
from holdfast.rounding import TINY, add_rounding_down, charge, round_down

# Numbers in one float64 tensor of coefficients on a CPU; small tensors stay in its caches (chosen by hand).
CPU_TENSOR_VALUES = 2**21
LIVE_TENSORS = (
    16  # Number of such tensors that may be alive at the same time, for planning memory (chosen by hand).
)


def propagate(
    graph: Graph,
    region: Region,
    executed: torch.dtype | None = None,
    known: Mapping[Node, IntervalBounds] | None = None,
) -> Boxes:
    """Bounds of all nodes: interval arithmetic forward, and a backward pass for every pre-activation.

    Args:
        executed: bound the network as executed in this floating-point type; default: in real arithmetic.
        known: bounds of some nodes that are known to hold over the region.
    """
    boxes = Boxes(region, executed=executed)

    def hold(node: Node) -> None:
        if known is not None and node in known:
            boxes.keep(node, *known[node])

    forward(graph.nodes, Intervals(graph, boxes).visit, hold, IntermediateRefinement(graph, boxes))
    return boxes


def intervals(graph: Graph, region: Region, executed: torch.dtype | None = None) -> Boxes:
    """Bounds of all nodes by interval arithmetic alone; at a single point these are as good as any others."""
    boxes = Boxes(region, executed=executed)
    forward(graph.nodes, Intervals(graph, boxes).visit)
    return boxes


def reusable_nodes(graph: Graph) -> list[Node]:
    """The nodes with intermediate bounds that are worth reusing in a smaller region.

    These are large images that only piecewise-linear activations read, which need no backward pass once their
    sign is decided.
    """
    if sum(node.size for node in graph.nodes) < MIN_DENSE_NUMBERS:
        return []
    return [
        node
        for node, readers in _activations_reading(graph).items()
        if is_image(node) and all(r.relaxation.sides() for r, _ in readers)
    ]


class Intervals(Forward):
    """Interval arithmetic: centre and radius through affine maps, value ranges through activations."""

    def __init__(self, graph: Graph, boxes: Boxes, relaxes: Container[type[Relaxation]] = ()) -> None:
        """relaxes: the functions whose linear bounds the caller finds, after this visit."""
        self.boxes, self.blends, self.relaxes = boxes, graph.blends, relaxes
        self.sums = find_sums_of_squares(graph)
        if all(isinstance(node, Affine) and node.moves for node in graph.nodes if graph.entry in node.inputs):
            boxes.condensed = boxes.region.condense()

    def enter(self, node: InputNode) -> None:
        lower, upper = self.boxes.region.enclosing_box()
        self.boxes.keep(node, lower.unsqueeze(1), upper.unsqueeze(1))
        self.boxes.magnitude[node] = self.boxes.largest(node)
        _note_movement(self.boxes, node)

    def through_map(self, node: Affine) -> None:
        """The interval of J x + b is J c + b -+ |J| r. Nodes that only copy elements copy their bounds."""
        boxes = self.boxes
        _note_movement(boxes, node)
        if node.copies:
            boxes.keep(
                node,
                *(_map_values(node, [side[s] for s in node.inputs]) for side in (boxes.lower, boxes.upper)),
            )
            boxes.magnitude[node] = boxes.largest(node)
            return
        centre, radius = zip(*(boxes.interval(s, slice(None)) for s in node.inputs), strict=True)
        middle, largest = _map_values(node, centre), [boxes.largest(s).flatten(1) for s in node.inputs]
        magnitude = node.forward_absolute(largest).reshape(middle.shape)
        spread = node.forward_absolute([r.flatten(1) for r in radius], shift=False).reshape(middle.shape)
        slack = charge(magnitude, INTERVAL_MAP, sum(s.size for s in node.inputs))
        slack = slack + boxes.execution_error(node, node.terms, magnitude + slack)
        boxes.magnitude[node] = magnitude + slack
        boxes.keep(node, middle - spread - slack, middle + spread + slack)
        if node.nonnegative and boxes.executed is None:
            self._keep_nonnegative_sum(node)
        if node in self.sums and boxes.executed is None:
            keep_bounds(boxes, self.sums[node])
        if node in self.blends and boxes.executed is None:
            self._blend(node, *self.blends[node])

    def _keep_nonnegative_sum(self, node: Affine) -> None:
        """Intersect with J l + b for inputs x >= l >= 0 and J, b >= 0, which is at least zero.

        Its rounding error is relative to itself. That of centre and radius is relative to the largest value,
        which may exceed a small positive b: log(power + 1e-10) would have no lower bound.
        """
        boxes = self.boxes
        least = [boxes.lower[source].flatten(1) for source in node.inputs]
        rows = torch.stack([(low >= 0).all(1) for low in least]).all(0)
        found = _map_values(node, [low.clamp_min(0) for low in least])
        found = (round_down(found, NONNEGATIVE_SUM, node.terms + 1) - TINY).clamp_min(0)
        usable = rows.reshape(-1, *(1 for _ in node.shape))
        boxes.keep(node, torch.where(usable, found, -torch.inf), torch.full_like(found, torch.inf))

    def _blend(self, node: Affine, gate: Node, one: Node, other: Node) -> None:
        """Intersect with the range of the state of a GRU, s a + (1 - s) b with s = sigmoid(z).

        It increases in a and in b and is linear in s, so its extreme values are such combinations of the
        bounds of a and b, at a bound of s. The slack covers these few operations, the sigmoid's own error
        included.
        """
        boxes = self.boxes
        shares = [torch.sigmoid(end[gate]) for end in (boxes.lower, boxes.upper)]
        slack = charge(boxes.largest(one) + boxes.largest(other), CONVEX_COMBINATION)
        low, high = (
            torch.stack([end[other] + s * (end[one] - end[other]) for s in shares])
            for end in (boxes.lower, boxes.upper)
        )
        boxes.keep(node, low.amin(0) - slack, high.amax(0) + slack)

    def through_function(self, node: Relaxed) -> None:
        boxes = self.boxes
        _note_movement(boxes, node)
        lower = tuple(boxes.lower[s] for s in node.inputs)
        upper = tuple(boxes.upper[s] for s in node.inputs)
        if type(node.relaxation) in self.relaxes and boxes.executed is None:
            boxes.keep(node, *value_range(node.relaxation, lower, upper))
            return
        found, (least, most) = _relax_over_box(node.relaxation, lower, upper)
        boxes.planes[node] = found
        if boxes.executed is not None:
            error = node.relaxation.executed_error(lower, upper, boxes.executed)
            boxes.error[node] = error = torch.full_like(least, torch.inf) if error is None else error
            least, most = least - error, most + error
        boxes.keep(node, least, most)
        boxes.magnitude[node] = magnitude_of_relaxed(boxes, node)


def magnitude_of_relaxed(boxes: Boxes, node: Relaxed) -> Tensor:
    """The sum of the absolute values of the terms of an activation's linear bounds, (batch, *shape)."""
    found = boxes.planes[node]
    magnitude = torch.maximum(found.lower_offset.abs(), found.upper_offset.abs())
    for source, low, up in zip(node.inputs, found.lower, found.upper, strict=True):
        steep = torch.maximum(low.abs(), up.abs())
        magnitude = magnitude + torch.where(steep == 0, 0, steep * boxes.largest(source))
    return magnitude


def _relax_over_box(
    relaxation: Relaxation, lower: Point, upper: Point
) -> tuple[LinearBounds, IntervalBounds]:
    """Linear bounds and value range of an activation over boxes; on a GPU one recorded CUDA graph."""
    count = len(lower)

    def both(*ends: Tensor) -> tuple[Tensor, ...]:
        found = planes(relaxation, ends[:count], ends[count:])
        values = value_range(relaxation, ends[:count], ends[count:])
        return *found.lower, found.lower_offset, *found.upper, found.upper_offset, *values

    # activations without parameters share one recording
    name = relaxation if vars(relaxation) else type(relaxation)
    *found, least, most = record_function(name, both, *lower, *upper)
    below, above = found[: count + 1], found[count + 1 :]
    return LinearBounds(tuple(below[:-1]), below[-1], tuple(above[:-1]), above[-1]), (least, most)


def _map_values(node: Affine, values: Sequence[Tensor]) -> Tensor:
    """(batch, *shape) of each input -> (batch, *shape)."""
    return node.forward([value.flatten(1) for value in values]).reshape(len(values[0]), *node.shape)


def _note_movement(boxes: Boxes, node: Node) -> None:
    """Note the rows of the batch in which the node varies: a slice that contains those of its inputs."""
    if isinstance(node, InputNode):
        boxes.elements[node] = (boxes.lower[node] < boxes.upper[node]).flatten(1)
    elif isinstance(node, Affine) and node.moves and node.inputs[0] in boxes.elements:
        boxes.elements[node] = node.forward([boxes.elements[node.inputs[0]]])
    else:
        moving = [rows for rows in (boxes.moving[source] for source in node.inputs) if rows.start < rows.stop]
        boxes.moving[node] = (
            slice(min(r.start for r in moving), max(r.stop for r in moving)) if moving else slice(0, 0)
        )
        return
    rows = boxes.elements[node].any(1).nonzero().flatten()
    boxes.moving[node] = slice(int(rows[0]), int(rows[-1]) + 1) if len(rows) else slice(0, 0)


class IntermediateRefinement:
    """Backward passes for the lower and upper bounds of pre-activations.

    Only elements that some activation could relax more tightly are bounded, chosen for every row of the batch
    by itself.
    """

    def __init__(self, graph: Graph, boxes: Boxes) -> None:
        self.graph = graph
        self.boxes = boxes
        self.readers = _activations_reading(graph)
        self.last = max(self.readers, key=lambda node: node.place, default=None)

    def __call__(self, node: Node) -> None:
        if node not in self.readers or self.boxes.moving[node].start == self.boxes.moving[node].stop:
            return
        patch_route = route(self.graph, self.boxes, node)
        if patch_route is None:
            self._by_rows(node)
        else:
            self._by_windows(node, patch_route)

    def _elements_to_refine(self, node: Node) -> Tensor:
        """The elements that some activation could relax more tightly.

        Returns (rows of the batch in which the node varies, size) bool.
        """
        moving = self.boxes.moving[node]
        lower, upper = self.boxes.lower[node][moving], self.boxes.upper[node][moving]
        needed = torch.zeros_like(lower, dtype=torch.bool)
        for reader, same_elements in self.readers[node]:
            if same_elements and len(reader.inputs) == 1:
                needed |= reader.relaxation.can_tighten((lower,), (upper,))
            else:
                needed |= upper > lower
        return needed.flatten(1)

    def _elements_that_matter(self, node: Node) -> Tensor:
        """(rows of the batch in which the node varies, size) bool: where some activation is not constant."""
        moving = self.boxes.moving[node]
        ends = (self.boxes.lower[node][moving],), (self.boxes.upper[node][moving],)
        varies = torch.zeros_like(ends[0][0], dtype=torch.bool)
        for reader, same_elements in self.readers[node]:
            if same_elements and len(reader.inputs) == 1:
                least, most = value_range(reader.relaxation, *ends)
                varies |= least < most
            else:
                varies |= ends[0][0] < ends[1][0]
        return varies.flatten(1)

    def _by_rows(self, node: Node) -> None:
        """Refine with dense rows.

        Both bounds of every element are found at once if one portion of rows suffices. Otherwise the bound nearer to
        zero comes first, as in `_by_windows`, and the other one only where an activation is not constant since: the
        intervals of the next refined layer are the better for the upper bounds of active neurons.
        """
        boxes, moving = self.boxes, self.boxes.moving[node]
        middle = (boxes.lower[node] + boxes.upper[node])[moving].flatten(1)
        nearer = torch.where(middle > 0, 1.0, -1.0).double()
        at_once = _rows_at_once(self.graph, boxes, node)
        elements = int(self._elements_to_refine(node).sum(1).max())
        if 2 * elements > at_once and all(reader.relaxation.sides() for reader, _ in self.readers[node]):
            turns = [nearer[None], -nearer[None]]
        else:
            turns = [torch.stack([nearer, -nearer])]
        flat = self._elements_to_refine(node)
        for sign in turns:  # (bounds of each element, rows of the batch in which the node varies, size)
            flat &= self._elements_to_refine(node) if node is self.last else self._elements_that_matter(node)
            count = int(flat.sum(1).max())
            if count == 0:
                return
            # All rows of the batch bound the same number of elements; rows that need fewer refine some others,
            # which is sound.
            chosen = flat.to(torch.uint8).topk(count, dim=1).indices
            mine = sign.gather(2, chosen.expand(len(sign), -1, -1))
            parts = torch.arange(count, device=flat.device).split(max(1, at_once // len(sign)))
            found = [
                _signed_bounds(self.graph, boxes, node, chosen[:, part], mine[..., part]) for part in parts
            ]
            bound, nothing = torch.cat(found, dim=2), torch.full_like(mine, torch.inf)
            least = torch.where(mine > 0, bound, -nothing).amax(0)
            most = torch.where(mine > 0, nothing, -bound).amin(0)
            self._keep(node, (torch.arange(len(flat), device=flat.device)[:, None], chosen), least, most)

    def _by_windows(self, node: Node, way: Route) -> None:
        """Refine with patches.

        The bound nearer to zero comes first, since it most often decides the sign; then the other one where
        it is still of use.
        """
        middle = (self.boxes.lower[node] + self.boxes.upper[node])[self.boxes.moving[node]].flatten(1)
        places = math.prod(node.shape[2:])
        nearer = torch.where(middle > 0, 1.0, -1.0).double()
        for sign in (nearer, -nearer):
            owner, element = self._elements_to_refine(node).nonzero().t()
            if not len(owner):
                return
            least, mine = torch.full_like(sign[owner, element], -torch.inf), sign[owner, element]
            for rows, there in group_by_position(owner, element % places, _windows_at_once(self.graph, way)):
                first = rows[:, 0]
                walk = WindowWalk(
                    self.graph,
                    self.boxes,
                    node,
                    owner[first],
                    element[first] % places,
                    element[rows] // places,
                    mine[rows] * there,
                )
                least[rows[there]] = _bounds(walk, node, way)[there]
            nothing = torch.full_like(least, torch.inf)
            self._keep(
                node,
                (owner, element),
                torch.where(mine > 0, least, -nothing),
                torch.where(mine > 0, nothing, -least),
            )

    def _keep(self, node: Node, where: tuple[Tensor, ...], least: Tensor, most: Tensor) -> None:
        """Store both bounds of some elements, given for the rows of the batch in which the node varies."""
        found = []
        for end, value in ((self.boxes.lower[node], least), (self.boxes.upper[node], most)):
            flat = end.flatten(1).clone()
            flat[self.boxes.moving[node]][where] = value
            found.append(flat.reshape(end.shape))
        self.boxes.keep(node, *found)


def nodes_to_refine(graph: Graph) -> set[Node]:
    """The nodes whose intermediate bounds `propagate` refines by backward passes."""
    return set(_activations_reading(graph))


# Increasing functions: where one is constant over its argument's bounds, or not, so is a function of it.
INCREASING = (RoundedInput, Relu, Clip)


def _activations_reading(graph: Graph) -> dict[Node, list[tuple[Relaxed, bool]]]:
    """For each node worth a backward pass, the activations that read it, and whether element by element.

    An input that only selects elements of another node (a gate among the gates of a cell) is bounded there,
    together with all the others. So is a function f of one pre-activation z: a backward pass from f(z) proves at
    most the minimum of a z + b between the bounds of z, where a z + b <= f(z), and so at most the minimum of f there,
    which is the lower bound of f(z) already. The same holds above.
    """
    found: dict[Node, list[tuple[Relaxed, bool]]] = {}
    for node in graph.nodes:
        if isinstance(node, Relaxed):
            for argument in node.inputs:
                source, same_elements = argument, True
                while True:
                    if isinstance(source, Relaxed) and len(source.inputs) == 1:
                        same_elements &= isinstance(source.relaxation, INCREASING)
                        source = source.inputs[0]
                    elif (
                        isinstance(source, Affine)
                        and source.moves
                        and not isinstance(source.inputs[0], InputNode)
                    ):
                        source, same_elements = source.inputs[0], False
                    else:
                        break
                if not isinstance(source, InputNode):
                    found.setdefault(source, []).append((node, same_elements))
    return found


def lower_bound(graph: Graph, boxes: Boxes, rows: Tensor, offset: Tensor) -> Tensor:
    """Lower bounds of linear functions of the output over a region.

    Args:
        rows: (batch, rows, outputs).
        offset: (batch, rows).

    Returns:
        (batch, rows) with result <= rows . output + offset everywhere in the region, rounding included: the
        best of CROWN, of interval bounds of the last layers, and of affine forms if there are any. Interval
        bounds are tighter for networks that were trained with them.
    """
    walked = torch.cat(
        [part.minimum(minimisation_region(boxes)) for part in _linear_parts(graph, boxes, rows)], dim=1
    )
    found = torch.fmax(
        walked,
        torch.cat(
            [_bound_by_intervals(graph, boxes, part) for part in _row_parts(graph, boxes, rows)], dim=1
        ),
    )
    if boxes.forms is not None and graph.output in boxes.forms.of:
        slope, constant = boxes.forms.linear_lower_bound(graph.entry, graph.output, rows.flatten(2))
        region = boxes.region
        forms = LinearForms(slope.reshape(*constant.shape, *region.shape), constant)
        found = torch.fmax(found, forms.minimum(region))
    return add_rounding_down(found, offset)


def _bound_by_intervals(graph: Graph, boxes: Boxes, rows: Tensor) -> Tensor:
    """Lower bounds (batch, rows) of rows (batch, rows, *output shape) by the intervals of the last nodes.

    The rows are passed back through the affine maps at the end of the network one by one; the best bound of
    all is returned. NaN or -inf where the intervals are unbounded.
    """
    walk = BackwardWalk(graph, boxes, rows.shape[1])
    walk.arrive(graph.output, rows, slice(0, len(boxes.region)))
    best = torch.full_like(walk.constant, -torch.inf)
    while graph.entry not in walk.pending:
        best = torch.fmax(best, walk.bound_by_pending_intervals())
        last = max(walk.pending, key=lambda node: node.place, default=None)
        if not isinstance(last, Affine):
            break
        walk.walk(last.place, last.place)
    return best


def linear_bound(graph: Graph, boxes: Boxes, rows: Tensor) -> LinearForms:
    """Linear lower bounds of rows . output over the region, as functions of the input.

    `rows` are (batch, rows, outputs).
    """
    parts = list(_linear_parts(graph, boxes, rows))
    coefficients = torch.cat([p.coefficients for p in parts], dim=1)
    constant = torch.cat([p.constant for p in parts], dim=1)
    if boxes.condensed is not None:
        features = boxes.condensed[1][:, None].expand(*constant.shape, -1)
        whole = constant.new_zeros((*constant.shape, graph.entry.size))
        coefficients = whole.scatter_(2, features, coefficients.flatten(2)).reshape(
            *constant.shape, *boxes.region.shape
        )
    return LinearForms(coefficients, constant)


def minimisation_region(boxes: Boxes) -> Region:
    """The region over which the linear bounds at the input are minimised."""
    return boxes.region if boxes.condensed is None else boxes.condensed[0]


def _linear_parts(graph: Graph, boxes: Boxes, rows: Tensor) -> Iterator[LinearForms]:
    for part in _row_parts(graph, boxes, rows):
        yield _walk_back(graph, boxes, graph.output, part)


def _row_parts(graph: Graph, boxes: Boxes, rows: Tensor) -> Sequence[Tensor]:
    """Split the rows into portions that fit in memory."""
    parts: Sequence[Tensor] = rows.reshape(*rows.shape[:2], *graph.output.shape).split(
        _rows_at_once(graph, boxes, graph.output), dim=1
    )
    return parts


def _rows_at_once(graph: Graph, boxes: Boxes, start: Node) -> int:
    elements = elements_per_tensor(graph.device, CPU_TENSOR_VALUES, LIVE_TENSORS)
    batch = len(boxes.region)
    entry = batch * (graph.entry.size if boxes.condensed is None else boxes.condensed[1].shape[1])
    nodes = (node for node in graph.nodes[1 : start.place + 1] if node in boxes.moving)
    rows = ((boxes.moving[node], node.size) for node in nodes)
    largest: int = max([entry, batch, *(size * (moving.stop - moving.start) for moving, size in rows)])
    return max(1, elements // largest)


def least_bytes(graph: Graph) -> int:
    """The memory that a backward pass of a single row needs."""
    return 8 * LIVE_TENSORS * max(node.size for node in graph.nodes)


def _walk_back(graph: Graph, boxes: Boxes, start: Node, rows: Tensor) -> LinearForms:
    """Linear lower bounds of rows . start over the region, for rows (batch, rows, *start.shape)."""
    walk = BackwardWalk(graph, boxes, rows.shape[1])
    walk.arrive(start, rows, slice(0, len(boxes.region)))
    return walk.back_from(start.place)


def _signed_bounds(graph: Graph, boxes: Boxes, node: Node, elements: Tensor, signs: Tensor) -> Tensor:
    """Lower bounds of elements of a node, or of their negatives, in the shape of `signs`.

    Args:
        elements: (rows of the batch in which the node varies, elements), their indices.
        signs: (k, rows of the batch, elements), +1 or -1.
    """
    moving = boxes.moving[node]
    chosen = elements.repeat(1, len(signs))
    sign = signs.movedim(0, 1).flatten(1)
    count = chosen.shape[1]
    walk = BackwardWalk(graph, boxes, count)
    first = node.rows(chosen) if isinstance(node, Affine) and node not in boxes.curvature else None
    if isinstance(node, Affine) and first is not None:
        # The transposed map of unit rows is a selection of rows of the matrices.
        # popped, so that they are freed as soon as the backward pass is done with them
        for source in node.inputs:
            rows = first.pop(0).reshape(*chosen.shape, -1).mul_(sign.unsqueeze(-1))
            walk.arrive(source, rows.reshape(*chosen.shape, *source.shape), moving)
        walk.add_rounding_error(boxes.magnitude[node][moving].flatten(1).gather(1, chosen), moving, node.size)
        if node.shift is not None:
            walk.constant[moving] += sign * node.shift[chosen]
        if node in boxes.error:
            walk.constant[moving] -= boxes.error[node][moving].flatten(1).gather(1, chosen)
        place = node.place - 1
    else:
        rows = torch.zeros((*chosen.shape, node.size), dtype=torch.float64, device=chosen.device)
        rows.scatter_(2, chosen.unsqueeze(-1), sign.unsqueeze(-1))
        walk.arrive(node, rows.reshape(*chosen.shape, *node.shape), moving)
        place = node.place
    least = walk.back_from(place).minimum(minimisation_region(boxes))[moving]
    return least.reshape(len(least), len(signs), -1).movedim(1, 0)


def _windows_at_once(graph: Graph, way: Route) -> int:
    elements = elements_per_tensor(graph.device, CPU_TENSOR_VALUES // 2, LIVE_TENSORS)
    return max(1, elements // max([way.widest, *(node.size for node in way.rest)]))


def _bounds(walk: WindowWalk, node: Node, way: Route) -> Tensor:
    """Lower bounds (positions, rows) of the rows of `walk`, which starts at the node."""
    boxes, moving = walk.boxes, walk.moving
    walk.walk(node.place, way.until)
    if not way.rest:
        return walk.lower_bound_by_intervals()
    # Beyond the patches the backward pass is dense. The rows are grouped by rows of the batch and padded to
    # the largest group.
    owner = walk.owner.repeat_interleave(walk.constant.shape[1])
    each, order = owner.bincount(minlength=moving.stop - moving.start), owner.argsort(stable=True)
    number = torch.empty_like(owner)
    number[order] = torch.arange(len(owner), device=owner.device) - (each.cumsum(0) - each)[owner[order]]
    shape = len(each), int(each.max())
    rest = BackwardWalk(walk.graph, boxes, shape[1])
    rest.steps = walk.steps
    for mine, theirs in (
        (walk.constant, rest.constant),
        (walk.total, rest.total),
        (walk.charge, rest.charge),
    ):
        theirs[moving][owner, number] = mine.flatten()
    for source in walk.pending:
        rows = walk.constant.new_zeros((*shape, *source.shape))
        rows[owner, number] = walk.dense(source).flatten(0, 1)
        rest.arrive(source, rows, moving)
    least = rest.back_from(way.until - 1).minimum(minimisation_region(boxes))
    return least[moving][owner, number].reshape(walk.constant.shape)


class BackwardWalk(Backward[Tensor]):
    """The backward pass of CROWN.

    `pending` holds the coefficients that have arrived at a node, (rows of the batch in which it varies, rows,
    *shape).
    """

    def __init__(self, graph: Graph, boxes: Boxes, rows: int) -> None:
        super().__init__(graph)
        self.boxes, self.steps = boxes, 1
        self.tangent: set[Node] = set()  # squares whose curvature was added where they are summed
        self.curved = _curved_sums(graph, boxes)
        self.products = find_sums_of_products(graph) if boxes.executed is None else {}
        # The constant of the linear bound, the sum of the sizes of all terms, and the bound of their rounding
        # errors.
        self.constant, self.total, self.charge = (
            torch.zeros((len(boxes.region), rows), dtype=torch.float64, device=graph.device) for _ in range(3)
        )

    def back_from(self, place: int) -> LinearForms:
        """Propagate everything pending back to the input; returns the linear bounds."""
        self.walk(place)
        reached = self.pending.pop(self.graph.entry, None)
        if reached is None:  # the rows do not depend on the input
            reached = self._nothing_reached()
        return LinearForms(
            reached.reshape(*self.constant.shape, *minimisation_region(self.boxes).shape),
            self._constant_after_rounding(),
        )

    def _constant_after_rounding(self) -> Tensor:
        """The constant less the bound of all rounding errors."""
        # Sums of coefficients at nodes with several readers, and of constants, add a few roundings of all
        # terms.
        return self.constant - (
            self.charge
            + charge(self.total, BACKWARD_MEETING, 4 * self.steps)
            + charge(self.constant.abs(), BACKWARD_CONSTANT)
        )

    def bound_by_pending_intervals(self) -> Tensor:
        """Lower bounds (batch, rows) from the intervals of all pending nodes; leaves the pass unchanged."""
        kept = self.constant, self.total, self.charge, self.steps
        self.constant, self.total, self.charge = (part.clone() for part in kept[:3])
        for source, part in self.pending.items():
            self._meet(source, part, self.boxes.moving[source])
        found = self._constant_after_rounding()
        self.constant, self.total, self.charge, self.steps = kept
        return found

    def _nothing_reached(self) -> Tensor:
        width = self.graph.entry.size if self.boxes.condensed is None else self.boxes.condensed[1].shape[1]
        return self.constant.new_zeros((*self.constant.shape, width))

    def add_rounding_error(self, weight: Tensor, rows: slice, terms: int) -> None:
        """Account for the rounding error of sums of `terms` terms whose sizes add up to `weight`."""
        self.charge[rows] += charge(weight, BACKWARD_STEP, 2 * terms)
        self.total[rows] += weight
        self.steps += 1

    def through_function(self, node: Relaxed, coefficients: Tensor) -> None:
        """Apply the linear lower bound to positive coefficients and the upper one to negative coefficients.

        With m the mean of the two bounds and h half of their difference this is coefficient m + |coefficient|
        h.
        """
        moving, size = self.boxes.moving[node], coefficients.abs()
        if node in self.tangent:
            self._through_tangent(node, coefficients)
            return
        tilt = self.boxes.tilt(node)
        self.constant[moving] += _dot(coefficients, tilt.offset)
        down, weight = torch.matmul(size.flatten(2), tilt.of_size).unbind(-1)
        self.constant[moving] += down
        self.add_rounding_error(weight, moving, node.size)
        for source, middle, half in zip(node.inputs, tilt.middle, tilt.half, strict=True):
            self.arrive(source, (coefficients * middle).addcmul_(size, half), moving)

    def _through_tangent(self, node: Relaxed, coefficients: Tensor) -> None:
        """Replace squares by their tangents; `through_map` has added what their sum exceeds these by."""
        moving, tangent = self.boxes.moving[node], self.boxes.tangents[node]
        self.constant[moving] += _dot(coefficients, tangent.offset[moving])
        self.add_rounding_error(_dot(coefficients.abs(), tangent.magnitude[moving]), moving, node.size)
        self.arrive(node.inputs[0], coefficients * tangent.slope[moving][:, None], moving)

    def _add_curvature(self, node: Affine, coefficients: Tensor) -> None:
        """Add the minimum of coefficients times what a sum of squares exceeds its tangents by, in [0, C]."""
        moving, (squares, most) = self.boxes.moving[node], self.boxes.curvature[node]
        found = _dot(coefficients.clamp_max(0), most[moving])
        self.constant[moving] += found
        self.add_rounding_error(-found, moving, node.size)
        self.tangent.add(squares)

    def through_map(self, node: Affine, coefficients: Tensor) -> None:
        moving = self.boxes.moving[node]
        if node in self.curved:
            self._add_curvature(node, coefficients)
        if node not in self.graph.exact:
            self.add_rounding_error(
                _dot(coefficients.abs(), self.boxes.magnitude[node][moving]), moving, node.size
            )
        if node in self.boxes.error:
            self.constant[moving] -= _dot(coefficients.abs(), self.boxes.error[node][moving])
        if node.shift is not None:
            self.constant[moving] += _dot(coefficients, node.shift[None])
        products = self.products.get(node)
        if products is not None and self._vary_alike(node, products):
            self._through_products(products, coefficients)
        elif node.moves:
            self._scatter(node, coefficients)
        elif node.exact_back:
            for source, part in zip(node.inputs, node.back(coefficients.flatten(2)), strict=True):
                self.arrive(source, part.reshape(*part.shape[:2], *source.shape), moving)
        else:
            self._through_sums(node, coefficients)

    def _vary_alike(self, sums: Affine, form: SumsOfProducts) -> bool:
        """Whether the sums and all nodes behind them vary in the same rows of the batch."""
        return all(self.boxes.moving[node] == self.boxes.moving[sums] for node in form.nodes)

    def _through_products(self, form: SumsOfProducts, coefficients: Tensor) -> None:
        """Go back to the factors of sums of products (`sums_of_products`); the sums themselves are accounted for."""
        boxes, rows, moving = self.boxes, coefficients.flatten(2), self.boxes.moving[form.sums]
        tilt = boxes.tilt(form.products)
        if tilt.summed is None:
            tilt.summed = SummedBounds.of(form, tilt.middle, tilt.half, tilt.offset, tilt.of_size)
        held = tilt.summed
        size = rows.abs()
        down, weight = torch.matmul(size, held.of_size).unbind(-1)
        self.constant[moving] += _dot(rows, held.offset) + down
        for _ in (form.products, form.copies):
            self.add_rounding_error(weight, moving, form.products.size)
        for factor, middle, half in zip(form.factors, held.middle, held.half, strict=True):
            part = factor.back(rows, middle) + factor.back(size, half)
            self.arrive(factor.source, part.reshape(*part.shape[:2], *factor.source.shape), moving)

    def _through_sums(self, node: Affine, coefficients: Tensor) -> None:
        moving, rows_to_inputs = self.boxes.moving[node], dict[tuple[int, int], list[int]]()
        for k, source in enumerate(node.inputs):
            inside = self.boxes.moving[source]
            for still in _outside(moving, inside):
                # rows . (W x) is cheaper than (rows W) . x, and W x is the same for all rows.
                middle, spread = self._point(node, k)
                rows = coefficients[_relative(still, moving)]
                self.constant[still] += _dot(rows, middle[still]) - _dot(rows.abs(), spread[still])
            if inside.start < inside.stop:
                rows_to_inputs.setdefault((inside.start, inside.stop), []).append(k)
        for ends, which in rows_to_inputs.items():
            inside = slice(*ends)
            rows = coefficients[_relative(inside, moving)].flatten(2)
            for k, part in zip(which, node.back(rows, which), strict=True):
                self.arrive(node.inputs[k], part.reshape(*part.shape[:2], *node.inputs[k].shape), inside)

    def _point(self, node: Affine, k: int) -> tuple[Tensor, Tensor]:
        """The contribution of input k to the map: within `spread` of `middle`, rounding included.

        Returns middle and spread, (batch, size) each.
        """
        if (node, k) not in self.boxes.points:
            source = node.inputs[k]
            middle, radius = self.boxes.interval(source, slice(None))
            radius = radius + charge(self.boxes.largest(source), STOPPED_ROW, source.size)
            spread = node.part(k, radius.flatten(1), absolute=True) + TINY
            self.boxes.points[node, k] = node.part(k, middle.flatten(1)), spread
        return self.boxes.points[node, k]

    def arrive(self, source: Node, part: Tensor, rows: slice) -> None:
        """Add coefficients `part` (rows of the batch, rows, *shape) on a node.

        They stay pending where the node varies; elsewhere they are multiplied with its interval.
        """
        moving = self.boxes.moving[source]
        for still in _outside(rows, moving):
            self._meet(source, part[_relative(still, rows)], still)
        if moving.start < moving.stop:
            inside = part[_relative(moving, rows)]
            if isinstance(source, InputNode):
                self._reach(inside, moving)
            else:
                self.pending[source] = self.pending[source] + inside if source in self.pending else inside

    def _meet(self, source: Node, part: Tensor, rows: slice) -> None:
        """Add the minimum of part . source over the interval of the source in these rows of the batch."""
        middle, radius = self.boxes.interval(source, rows)
        size = part.abs()
        self.constant[rows] += _dot(part, middle) - _dot(size, radius)
        self.add_rounding_error(_dot(size, self.boxes.largest(source)[rows]), rows, source.size)

    def _reach(self, part: Tensor, rows: slice, move: Affine | None = None) -> None:
        """Add coefficients on the input, or on a selection `move` of its elements.

        `part` is (rows of the batch, rows, ...).
        """
        entry, condensed = self.graph.entry, self.boxes.condensed
        whole = self.pending.get(entry)
        if whole is None:
            whole = self.pending[entry] = self._nothing_reached()
        flat = part.flatten(2)
        if condensed is None:
            if move is None:
                whole[rows] += flat
            else:
                move.back_into(flat, whole[rows])
            return
        features = condensed[1][rows]
        place = torch.full((len(features), entry.size), -1, device=flat.device)
        place.scatter_(
            1, features, torch.arange(features.shape[1], device=flat.device).expand(features.shape)
        )
        place = place if move is None else move.forward([place])
        outside = (place < 0)[:, None]
        if bool(outside.any()):  # some elements are not perturbed in some of these rows
            still = flat * outside
            self._meet(
                entry,
                (still if move is None else move.back(still)[0]).reshape(*flat.shape[:2], *entry.shape),
                rows,
            )
        whole[rows].scatter_add_(2, place.clamp_min(0)[:, None].expand(flat.shape), flat * ~outside)

    def _scatter(self, node: Affine, rows: Tensor) -> None:
        """Go back through a selection of elements: every coefficient returns to the element it came from."""
        (source,) = node.inputs
        moving = self.boxes.moving[node]
        if isinstance(source, InputNode):
            self._reach(rows, moving, node)
            return
        before, whole_rows = self.pending.get(source), self.boxes.moving[source]
        count = whole_rows.stop - whole_rows.start
        whole = rows.new_zeros((count, rows.shape[1], source.size)) if before is None else before.flatten(2)
        if before is not None and node not in self.graph.exact:
            whole = whole.clone()
        node.back_into(rows.flatten(2), whole[_relative(moving, whole_rows)])
        self.pending[source] = whole.reshape(count, rows.shape[1], *source.shape)


def _outside(rows: slice, inner: slice) -> list[slice]:
    """The rows outside of the inner ones, as slices that are not empty."""
    if inner.start >= inner.stop:
        return [rows] if rows.start < rows.stop else []
    return [s for s in (slice(rows.start, inner.start), slice(inner.stop, rows.stop)) if s.start < s.stop]


def _relative(rows: slice, whole: slice) -> slice:
    """The indices of some rows in a tensor that holds only the rows of `whole`."""
    return slice(rows.start - whole.start, rows.stop - whole.start)


def _curved_sums(graph: Graph, boxes: Boxes) -> set[Node]:
    """The sums of squares whose curvature a backward pass adds.

    Squares become tangents for all sums that read them, so all of these must have a finite curvature.
    """
    if not boxes.curvature:
        return set()
    unbounded = {
        form.squares for node, form in find_sums_of_squares(graph).items() if node not in boxes.curvature
    }
    return {node for node, (squares, _) in boxes.curvature.items() if squares not in unbounded}


def _dot(rows: Tensor, vector: Tensor) -> Tensor:
    """(batch, rows, *shape), (batch or 1, *shape) -> (batch, rows)."""
    return torch.matmul(
        rows.flatten(2), vector.expand(rows.shape[0], *vector.shape[1:]).flatten(1).unsqueeze(-1)
    ).squeeze(-1)
