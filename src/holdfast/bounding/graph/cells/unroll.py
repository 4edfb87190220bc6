"""Unrolling shared by RNN, LSTM and GRU: layers, directions and time steps, and cells as nodes of the
graph."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from holdfast.bounding.graph.graph import Graph, Node
from holdfast.bounding.relax import Sigmoid, SigmoidTanh, SigmoidTimes, Tanh
from holdfast.errors import UnsupportedLayer

# A state that depends on the input (a node), or a constant (usually the initial state).
Value = Node | Tensor
Weights = Sequence[Tensor]  # Input weights, recurrent weights, and either both biases or none.
Step = Callable[[str, Node, tuple[Value, ...], Weights], tuple[Node, ...]]


@dataclass(frozen=True)
class RecurrentLayout:
    """How a recurrent operator of torch is laid out, from its trailing arguments.

    Attributes:
        biases: the parameters hold both biases of each layer and direction.
        layers: number of layers.
        dropout: states are dropped at random between layers.
        bidirectional: each layer reads the sequence in both directions.
        batch_first: the first axis of the sequence is the batch.
    """

    biases: bool
    layers: int
    dropout: bool
    bidirectional: bool
    batch_first: bool

    @staticmethod
    def of(args: tuple[Any, ...]) -> "RecurrentLayout":
        """Read has_biases, layers, dropout, train, bidirectional and batch_first."""
        biases, layers, rate, train, bidirectional, batch_first = args
        return RecurrentLayout(biases, layers, bool(train and rate > 0), bidirectional, batch_first)


def unroll(
    graph: Graph,
    name: str,
    x: Node,
    states: Sequence[Value],
    parameters: Sequence[Tensor],
    step: Step,
    layout: RecurrentLayout,
) -> tuple[Node, ...]:
    """(outputs, last states...), as torch's recurrent operators return them. Each state is (layers *
    directions, 1, hidden).
    """
    if not isinstance(x, Node):
        raise UnsupportedLayer(
            f"{name}: a recurrent layer with a state that depends on the input and a constant sequence "
            "has no bound."
        )
    if layout.dropout:
        raise UnsupportedLayer(
            f"{name}: a recurrent layer in training mode drops states at random. "
            "Export the model in evaluation mode."
        )
    graph.recurrent = True
    time = 1 if layout.batch_first else 0
    length, directions, each = x.shape[time], 2 if layout.bidirectional else 1, 4 if layout.biases else 2
    frames = [pick(graph, f"{name}[{t}]", x, time, t) for t in range(length)]
    last: list[list[Node]] = [[] for _ in states]
    for layer in range(layout.layers):
        outputs: list[list[Node]] = []
        for direction in range(directions):
            row = layer * directions + direction
            weights = parameters[row * each : (row + 1) * each]
            state: tuple[Value, ...] = tuple(
                pick(graph, name, s, 0, row) if isinstance(s, Node) else s[row] for s in states
            )
            seen: list[Node] = []
            for t in range(length) if direction == 0 else reversed(range(length)):
                state = step(f"{name}[{t}]", frames[t], state, weights)
                assert isinstance(state[0], Node)
                seen.append(state[0])
            outputs.append(seen if direction == 0 else seen[::-1])
            for kept, value in zip(last, state, strict=True):
                assert isinstance(value, Node)
                kept.append(value)
        frames = [
            o[0] if directions == 1 else together(graph, name, list(o), -1)
            for o in zip(*outputs, strict=True)
        ]
    whole = stack_nodes(graph, name, frames, time)
    return whole, *(stack_nodes(graph, name, kept, 0) for kept in last)


def pick(graph: Graph, name: str, node: Node, axis: int, place: int) -> Node:
    return graph.add_move(name, [node], lambda v: v.select(axis, place))


def part(graph: Graph, name: str, node: Node, start: int, size: int) -> Node:
    """A slice of the last axis."""
    return graph.add_move(name, [node], lambda v: v.narrow(-1, start, size))


def together(graph: Graph, name: str, nodes: list[Node], axis: int) -> Node:
    return graph.add_move(name, nodes, lambda *v: torch.cat(v, axis))


def stack_nodes(graph: Graph, name: str, nodes: list[Node], axis: int) -> Node:
    return graph.add_move(name, nodes, lambda *v: torch.stack(v, axis))


def mix(graph: Graph, name: str, x: Node, h: Value, weights: Weights, rows: slice = slice(None)) -> Node:
    """W_i x + b_i + W_h h + b_h for selected rows of the weights; a constant state joins the offset."""
    w_x, w_h = weights[0][rows], weights[1][rows]
    bias = sum((b[rows] for b in weights[2:]), torch.zeros(w_x.shape[0], dtype=w_x.dtype, device=w_x.device))
    linear = torch.nn.functional.linear
    if isinstance(h, Node):
        return graph.affine(
            name,
            [x, h],
            lambda v, s: linear(v, w_x, bias) + linear(s, w_h),
            lambda v, s: linear(v, w_x.abs(), bias.abs()) + linear(s, w_h.abs()),
        )
    offset = bias + linear(h, w_h)
    size = bias.abs() + linear(h.abs(), w_h.abs())
    return graph.affine(name, [x], lambda v: linear(v, w_x) + offset, lambda v: linear(v, w_x.abs()) + size)


def times_constant(
    graph: Graph, name: str, node: Node, constant: Tensor, weight: Tensor | None = None
) -> Node:
    """node * constant, for a node within [-1, 1]; `weight` is the sum of absolute values of the terms that
    the constant was computed from.
    """
    rounded = torch.zeros_like(constant) if weight is None else weight
    return graph.affine(name, [node], lambda v: v * constant, lambda m: m * constant.abs() + rounded)


def add(graph: Graph, name: str, a: Node, b: Node) -> Node:
    return graph.affine(name, [a, b], *(lambda v, z: v + z,) * 2)


@dataclass(frozen=True)
class ConstantValue:
    """A value that does not depend on the input; `size` is the sum of absolute values of its terms."""

    value: Tensor
    size: Tensor | None = None


@dataclass(frozen=True)
class SigmoidOf:
    """sigmoid(source), not evaluated: linear bounds are tighter for its product with another value."""

    source: Node


@dataclass(frozen=True)
class TanhOf:
    """tanh(source), not evaluated."""

    source: Node


CellValue = Node | ConstantValue | SigmoidOf | TanhOf


@dataclass(frozen=True)
class NodeAlgebra:
    """The operations of `network.cells` as nodes of a graph, named `at`."""

    graph: Graph
    at: str

    def sigmoid(self, value: CellValue) -> SigmoidOf:
        assert isinstance(value, Node)
        return SigmoidOf(value)

    def tanh(self, value: CellValue) -> TanhOf:
        assert isinstance(value, Node)
        return TanhOf(value)

    def add(self, a: CellValue, b: CellValue) -> Node:
        assert isinstance(a, Node)
        assert isinstance(b, Node)
        return add(self.graph, self.at, a, b)

    def multiply_gate(self, gate: CellValue, value: CellValue) -> Node:
        assert isinstance(gate, SigmoidOf)
        if isinstance(value, TanhOf):
            return self.graph.add_relaxed(self.at, [gate.source, value.source], SigmoidTanh())
        if isinstance(value, ConstantValue):
            evaluated = self.graph.add_relaxed(self.at, [gate.source], Sigmoid())
            return times_constant(self.graph, self.at, evaluated, value.value, value.size)
        assert isinstance(value, Node)
        return self.graph.add_relaxed(self.at, [gate.source, value], SigmoidTimes())

    def blend(self, gate: CellValue, state: CellValue, new: CellValue) -> Node:
        """new + gate (state - new): one product instead of two.

        The gap of a product's linear bounds grows with the widths of its factors, and state - new is narrower
        than the sum of both widths, because both depend on the same input. Interval arithmetic uses that the
        result is a convex combination (`Graph.blends`). A constant state cannot be subtracted without losing
        the bound of sigmoid(-z) tanh(v) as one function.
        """
        graph, at = self.graph, self.at
        assert isinstance(gate, SigmoidOf)
        assert isinstance(new, TanhOf)
        if isinstance(state, ConstantValue):
            away = graph.affine(at, [gate.source], lambda v: -v, lambda m: m)
            written = graph.add_relaxed(at, [away, new.source], SigmoidTanh())
            return add(graph, at, written, self.multiply_gate(gate, state))
        assert isinstance(state, Node)
        evaluated = graph.add_relaxed(at, [new.source], Tanh())
        change = graph.affine(at, [state, evaluated], lambda v, z: v - z, lambda v, z: v + z)
        result = add(graph, at, evaluated, self.multiply_gate(gate, change))
        graph.blends[result] = gate.source, state, evaluated
        return result
