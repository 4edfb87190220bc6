"""CROWN-IBP: margins of a box by one walk back through the network, over ends that intervals know (Zhang et al. 2020).

The walk is that of `bounding.crown`, for a loss: in the network's own arithmetic, differentiable in its weights, for a whole batch, and no
rounding paid for. Maps go back as torch's own derivative of them, so whatever intervals go through, the walk does; a node of which nobody
noted how it came about (a maximum, a softmax) is met by its interval.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from holdfast.bounding.graph.cells.gru import cell
from holdfast.bounding.graph.cells.unroll import Value, Weights, options, unroll
from holdfast.bounding.graph.graph import HANDLERS, Graph, Handler, Node, OperatorCall
from holdfast.bounding.graph.kernel import Kernel
from holdfast.bounding.relax import LinearBounds, Relaxation
from holdfast.errors import UnsupportedLayer
from holdfast.hardening.cells import STEPS, gru_step
from holdfast.hardening.intervals import IntervalGraph, Span, Traced, as_span, between
from holdfast.hardening.planes import planes

aten = torch.ops.aten
FEW = 2  # inputs of the smaller batch that is traced


@dataclass(frozen=True)
class Way:
    """How a node came about: by an affine function of its inputs, or by a relaxed one."""

    inputs: tuple[Span, ...]
    by: Callable[..., Tensor] | Relaxation


@dataclass(eq=False)
class Tape(IntervalGraph):
    """Intervals that note how each node came about, in order."""

    ways: dict[Span, Way] = field(default_factory=dict)
    spans: dict[Span, None] = field(
        default_factory=dict
    )  # all that stand in them, in the order in which they were met

    def record_node(self, node: Span, inputs: Sequence[Node], by: Callable[..., Tensor] | Relaxation) -> Span:
        self.ways[node] = way = Way(tuple(as_span(source) for source in inputs), by)
        self.spans |= dict.fromkeys((*way.inputs, node))
        return node

    def affine(
        self,
        name: str,
        inputs: Sequence[Node],
        function: Any,
        magnitude: Any,
        *,
        kernel: Kernel | None = None,
    ) -> Node:
        return self.record_node(
            as_span(super().affine(name, inputs, function, magnitude, kernel=kernel)), inputs, function
        )

    def add_sum(self, name: str, inputs: Sequence[Node]) -> Node:
        return self.record_node(
            as_span(super().add_sum(name, inputs)), inputs, lambda *values: sum(values[1:], values[0])
        )

    def add_move(self, name: str, inputs: Sequence[Node], function: Any) -> Node:
        return self.record_node(as_span(super().add_move(name, inputs, function)), inputs, function)

    def add_relaxed(self, name: str, inputs: Sequence[Node], relaxation: Relaxation) -> Node:
        return self.record_node(as_span(super().add_relaxed(name, inputs, relaxation)), inputs, relaxation)

    def handler(self, target: Any) -> Handler | None:
        """Recurrent layers step by step, so that the walk can follow."""
        if target == aten.gru.input:
            return _gru
        return HANDLERS[target] if target in STEPS else super().handler(target)


def _gru(graph: Graph, call: OperatorCall) -> tuple[Node, ...]:
    """As the engine unrolls it, with the tighter ends that intervals know of each new state."""
    assert isinstance(graph, Tape)
    x, state, parameters = call.args[:3]

    def step(at: str, frame: Node, states: tuple[Value, ...], weights: Weights) -> tuple[Node, ...]:
        (new,) = map(as_span, cell(graph, at, frame, states, weights))
        ends = tuple((s.lower, s.upper) if isinstance(s, Span) else (s, s) for s in states)
        low, high = gru_step(as_span(frame), ends, weights)  # type: ignore[arg-type]
        tighter = between(at, torch.maximum(low, new.lower), torch.minimum(high, new.upper))
        return (graph.record_node(tighter, [new], lambda v: v),)

    return unroll(graph, call.name, x, [state], parameters, step, **options(call.args[3:]))


class TapedWalk:
    """The way back through a traced network. Nodes need not have the inputs of a batch along their first axis (sequences may be time
    first), so where they have them is found out by tracing two batches of different sizes.
    """

    def __init__(self, traced: Traced, x: Tensor) -> None:
        """x: inputs of the shape that is traced. UnsupportedLayer where a layer puts inputs and something else along one axis."""
        self.traced = traced
        self.axes: list[int] = []
        with torch.no_grad():
            few, more = (
                self._tape_bounds(*(x[:1].expand(count, *x.shape[1:]),) * 2)[0].spans
                for count in (FEW, FEW + 1)
            )
        for one, other in zip(few, more, strict=True):
            differ = [
                k
                for k, sizes in enumerate(zip(one.lower.shape, other.lower.shape, strict=True))
                if sizes[0] != sizes[1]
            ]
            if [one.lower.shape[k] for k in differ] != [FEW]:
                raise UnsupportedLayer(
                    f"layer {one.name}: inputs share an axis with something else there, which bounds cannot be walked back through. Train "
                    f"with recipe='intervals'."
                )
            self.axes.append(differ[0])

    def margins(self, lower: Tensor, upper: Tensor, label: Tensor) -> Tensor:
        """Inputs lower <= x <= upper, label (batch,) -> (batch, outputs): output[label] - output[k] is no less, for each k."""
        tape, last, head = self._tape_bounds(lower, upper)
        if head is None:
            each = torch.eye(last.lower[0].numel(), dtype=last.lower.dtype, device=last.lower.device)
            rows, shift = each[label][:, None] - each, last.lower.new_zeros(())
        else:
            weight, bias = head
            rows = weight[label][:, None] - weight
            shift = last.lower.new_zeros(()) if bias is None else bias[label][:, None] - bias
        return self._least(tape, last, rows.transpose(0, 1).unflatten(2, last.lower.shape[1:])).t() + shift

    def _tape_bounds(
        self, lower: Tensor, upper: Tensor
    ) -> tuple[Tape, Span, tuple[Tensor, Tensor | None] | None]:
        tape = Tape(device=self.traced.device)
        return tape, *self.traced.run(lower, upper, tape, elide=True)

    def _least(self, tape: Tape, last: Span, rows: Tensor) -> Tensor:
        """rows (rows, batch, *shape) of the last node -> (rows, batch): no less is row . node anywhere in the box that entered the tape."""
        axis, found = dict(zip(tape.spans, self.axes, strict=True)), _all_planes(tape)
        pending, constant = {last: rows}, rows.new_zeros(rows.shape[:2])
        for node in reversed(tape.ways):
            coefficients = pending.pop(node, None)
            if coefficients is None:
                continue
            way = tape.ways[node]
            if node in found:
                parts, more = _through_function(found[node], coefficients, axis[node])
            else:
                parts, more = _through_map(way, coefficients, axis[node])
            constant = constant + more
            for source, part in zip(way.inputs, parts, strict=True):
                pending[source] = pending[source] + part if source in pending else part
        for source, part in pending.items():
            constant = (
                constant
                + _dot(part, source.centre, axis[source])
                - _dot(part.abs(), source.reach, axis[source])
            )
        return constant


def _all_planes(tape: Tape) -> dict[Span, LinearBounds]:
    """Of every function; those that are alike, as a cell's are at all of its steps, in one go: each is small, and their number is what
    takes time."""
    groups: dict[Any, list[Span]] = {}
    for node, way in tape.ways.items():
        if isinstance(way.by, Relaxation):
            groups.setdefault(
                (type(way.by), *vars(way.by).items(), *(s.lower.shape for s in way.inputs)), []
            ).append(node)
    found: dict[Span, LinearBounds] = {}
    for nodes in groups.values():
        ways = [tape.ways[node] for node in nodes]
        sources, by = list(zip(*(way.inputs for way in ways), strict=True)), ways[0].by
        assert isinstance(by, Relaxation)
        together = planes(
            by,
            *(
                tuple(torch.stack([getattr(s, end) for s in one]) for one in sources)
                for end in ("lower", "upper")
            ),
        )
        for k, node in enumerate(nodes):
            found[node] = LinearBounds(
                tuple(s[k] for s in together.lower),
                together.lower_offset[k],
                tuple(s[k] for s in together.upper),
                together.upper_offset[k],
            )
    return found


def _through_function(found: LinearBounds, coefficients: Tensor, axis: int) -> tuple[list[Tensor], Tensor]:
    """The lower plane where the coefficient is positive, the upper one where it is negative."""
    down, up = coefficients.clamp_min(0), coefficients.clamp_max(0)
    parts = [down * low + up * high for low, high in zip(found.lower, found.upper, strict=True)]
    return parts, _dot(down, found.lower_offset, axis) + _dot(up, found.upper_offset, axis)


def _through_map(way: Way, coefficients: Tensor, axis: int) -> tuple[list[Tensor], Tensor]:
    """rows . (J x + b): rows J by torch's derivative of the map, and rows . b."""
    assert not isinstance(way.by, Relaxation)
    with torch.enable_grad():
        zeros = [torch.zeros_like(s.lower).requires_grad_() for s in way.inputs]
        value = way.by(*zeros)
        parts = torch.autograd.grad(
            value, zeros, coefficients, create_graph=True, is_grads_batched=True, materialize_grads=True
        )
    return list(parts), _dot(coefficients, value, axis)


def _dot(rows: Tensor, value: Tensor, axis: int) -> Tensor:
    """(rows, *shape), (*shape), both with the inputs along this axis of the shape -> (rows, batch)."""
    return (rows * value).movedim(axis + 1, 1).flatten(2).sum(2)
