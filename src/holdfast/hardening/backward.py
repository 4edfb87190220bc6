"""CROWN-IBP: margins over a box by one CROWN backward pass over interval bounds (Zhang et al. 2020).

Statement. Intermediate bounds come from IBP. From the margins rows . z, linear bounds are propagated back
to the input,

    rows . z >= L . x + constant   over the box,   and   min over the box of L . x = L m - |L| r.

The pass is that of `holdfast.bounding.crown`, for a loss: in the network's dtype, differentiable in the
weights, for a whole batch, without outward rounding. Affine maps are transposed by torch's own derivative. A
node without a recorded rule (a maximum, a softmax) is replaced by its interval.

Assumption: the margins are for a loss, and prove nothing.

Reference: Zhang et al., "Towards stable and efficient training of verifiably robust neural networks" (2020).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from holdfast.bounding.graph.cells.gru import cell
from holdfast.bounding.graph.cells.unroll import RecurrentLayout, Value, Weights, unroll
from holdfast.bounding.graph.graph import HANDLERS, Graph, Handler, Node, OperatorCall
from holdfast.bounding.graph.kernel import Kernel
from holdfast.bounding.relax import LinearBounds, Relaxation
from holdfast.errors import UnsupportedLayer
from holdfast.hardening.cells import STEPS, gru_step
from holdfast.hardening.intervals import IntervalGraph, Span, Traced, as_span, between
from holdfast.hardening.planes import linear_bounds

aten = torch.ops.aten
TRACED_BATCH = 2  # Batch size of the smaller of two traced batches; any number above 1.


@dataclass(frozen=True)
class Way:
    """How a node was computed: as an affine map or a relaxed function of its inputs."""

    inputs: tuple[Span, ...]
    by: Callable[..., Tensor] | Relaxation


@dataclass(eq=False)
class Tape(IntervalGraph):
    """Intervals with a record of how each node was computed, in order."""

    ways: dict[Span, Way] = field(default_factory=dict)
    spans: dict[Span, None] = field(default_factory=dict)  # all recorded nodes, in order of first use

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
        last_axis: Tensor | None = None,
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
        """Unroll recurrent layers step by step, so that the backward pass can follow."""
        if target == aten.gru.input:
            return _gru
        return HANDLERS[target] if target in STEPS else super().handler(target)


def _gru(graph: Graph, call: OperatorCall) -> tuple[Node, ...]:
    """Unroll a GRU as the engine does, with the tighter interval of each new state."""
    assert isinstance(graph, Tape)
    x, state, parameters = call.args[:3]

    def step(at: str, frame: Node, states: tuple[Value, ...], weights: Weights) -> tuple[Node, ...]:
        (new,) = map(as_span, cell(graph, at, frame, states, weights))
        ends = tuple((s.lower, s.upper) if isinstance(s, Span) else (s, s) for s in states)
        low, high = gru_step(as_span(frame), ends, weights)  # type: ignore[arg-type]
        tighter = between(at, torch.maximum(low, new.lower), torch.minimum(high, new.upper))
        return (graph.record_node(tighter, [new], lambda v: v),)

    return unroll(graph, call.name, x, [state], parameters, step, RecurrentLayout.of(call.args[3:]))


class TapedWalk:
    """The backward pass through a traced network.

    The batch axis of a node is not always the first one (sequences may be time first). It is found by tracing
    two batches of different sizes.
    """

    def __init__(self, traced: Traced, x: Tensor) -> None:
        """x: inputs of the traced shape.

        UnsupportedLayer if a layer merges the batch axis with another axis.
        """
        self.traced = traced
        self.axes: list[int] = []
        with torch.no_grad():
            few, more = (
                self._tape_bounds(*(x[:1].expand(count, *x.shape[1:]),) * 2)[0].spans
                for count in (TRACED_BATCH, TRACED_BATCH + 1)
            )
        for one, other in zip(few, more, strict=True):
            differ = [
                k
                for k, sizes in enumerate(zip(one.lower.shape, other.lower.shape, strict=True))
                if sizes[0] != sizes[1]
            ]
            if [one.lower.shape[k] for k in differ] != [TRACED_BATCH]:
                raise UnsupportedLayer(
                    f"layer {one.name}: it merges the batch axis with another axis, which CROWN bounds do "
                    "not "
                    f"support. Train with recipe='intervals'."
                )
            self.axes.append(differ[0])

    def margins(self, lower: Tensor, upper: Tensor, label: Tensor) -> Tensor:
        """Lower-bound the margins over lower <= x <= upper: label (batch,) -> (batch, outputs).

        result[b, k] <= output[label] - output[k], up to rounding.
        """
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
        """rows (rows, batch, *shape) of the last node -> (rows, batch): lower bounds of row . node."""
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
    """Relax every function.

    Functions of equal type and shape (as in all steps of a cell) are batched, for speed.
    """
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
        together = linear_bounds(
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
    """Use the lower linear bound for positive coefficients, the upper one for negative coefficients."""
    down, up = coefficients.clamp_min(0), coefficients.clamp_max(0)
    parts = [down * low + up * high for low, high in zip(found.lower, found.upper, strict=True)]
    return parts, _dot(down, found.lower_offset, axis) + _dot(up, found.upper_offset, axis)


def _through_map(way: Way, coefficients: Tensor, axis: int) -> tuple[list[Tensor], Tensor]:
    """Return the rows of J and rows . b for rows . (J x + b), by torch's derivative of the map."""
    assert not isinstance(way.by, Relaxation)
    with torch.enable_grad():
        zeros = [torch.zeros_like(s.lower).requires_grad_() for s in way.inputs]
        value = way.by(*zeros)
        parts = torch.autograd.grad(
            value, zeros, coefficients, create_graph=True, is_grads_batched=True, materialize_grads=True
        )
    return list(parts), _dot(coefficients, value, axis)


def _dot(rows: Tensor, value: Tensor, axis: int) -> Tensor:
    """(rows, *shape), (*shape), batch along this axis -> (rows, batch): sums of products."""
    return (rows * value).movedim(axis + 1, 1).flatten(2).sum(2)
