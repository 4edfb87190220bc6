"""ONNX's RNN, GRU and LSTM as steps, unrolled over time.

Statement. With gates in ONNX's order,

    RNN:  h' = f(W x + R h + b);
    LSTM: c' = sigmoid(f) c + sigmoid(i) tanh(g),   h' = sigmoid(o) tanh(c');
    GRU:  h' = (1 - sigmoid(z)) n + sigmoid(z) h,   n = tanh(W_n x + b_n + sigmoid(r) (R_n h + d_n)).

X is (length, 1, inputs); W is (directions, gates * hidden, inputs), R the same for the hidden state, B
(directions, 2 * gates * hidden). Y is (length, directions, 1, hidden); Y_h and Y_c are (directions, 1,
hidden).

Assumption: the activations are the standard's defaults; any other is refused.

Reference: the ONNX standard, operators RNN, GRU and LSTM.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from holdfast_check.arithmetic import Array
from holdfast_check.errors import Rejected, require, zip_equal
from holdfast_check.functions import ProductFunction
from holdfast_check.operators import GraphNode
from holdfast_check.signatures import Value
from holdfast_check.steps import Builder, StepView

GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}  # The number of gates of a cell, as the ONNX standard defines it.
# The default activations of the ONNX standard, the only ones that are read.
USUAL = {"RNN": ["Tanh"], "GRU": ["Sigmoid", "Tanh"], "LSTM": ["Sigmoid", "Tanh", "Tanh"]}


class RecurrentDirection:
    """One direction of one layer. A gate is W x + R h + both biases; the sums of absolute values of biases
    are stored, because biases may cancel.
    """

    def __init__(self, builder: Builder, node: GraphNode, weights: tuple[Array, Array, Array]) -> None:
        self.builder, self.name = builder, node.outputs[0] or node.op
        self.w, self.r, bias = (part.astype(np.float64) for part in weights)
        self.hidden = self.r.shape[1]
        self.b_w, self.b_r = bias[: len(self.w)], bias[len(self.w) :]

    def gates(self, rows: slice, x: StepView, h: StepView | None) -> StepView:
        """The pre-activations (1, rows) of gates. x is (1, inputs); h is (1, hidden), or None for a zero
        state.
        """
        parts: list[tuple[StepView, Array | None, Array | None]] = [(x, self.w[rows].T, None)]
        parts += [(h, self.r[rows].T, None)] if h is not None else []
        bias, size = self.b_w[rows] + self.b_r[rows], np.abs(self.b_w[rows]) + np.abs(self.b_r[rows])
        return self.builder.affine(self.name, (1, len(bias)), parts, bias, size)

    def gate(self, gates: StepView, place: int) -> StepView:
        """The elements of one gate."""
        return StepView(gates.step, gates.index[:, place * self.hidden : (place + 1) * self.hidden])

    def product(self, f: str, v: StepView, g: str, z: StepView) -> StepView:
        """f(v) g(z) as one step."""
        return self.builder.apply_function(self.name, ProductFunction(f, g), v, z)

    def rnn(self, x: StepView, h: StepView | None, c: StepView | None) -> tuple[StepView, StepView | None]:
        """h' = tanh(W x + R h + b)."""
        return self.builder.apply_function(
            self.name, ProductFunction("tanh"), self.gates(slice(None), x, h)
        ), None

    def lstm(self, x: StepView, h: StepView | None, c: StepView | None) -> tuple[StepView, StepView | None]:
        """Gates in the order i, o, f, g: c' = sigmoid(f) c + sigmoid(i) tanh(g), h' = sigmoid(o) tanh(c')."""
        gates = self.gates(slice(None), x, h)
        i, o, f, g = (self.gate(gates, place) for place in range(4))
        memory = self.product("sigmoid", i, "tanh", g)
        if c is not None:
            memory = self.builder.add_scaled(
                self.name, [(self.product("sigmoid", f, "identity", c), 1.0), (memory, 1.0)]
            )
        return self.product("sigmoid", o, "tanh", memory), memory

    def gru(self, x: StepView, h: StepView | None, c: StepView | None) -> tuple[StepView, StepView | None]:
        """Gates in the order z, r, n, with linear_before_reset.

        m = W x + b_w + sigmoid(r) (R h + b_r), n = tanh(m), h' = (1 - sigmoid(z)) n + sigmoid(z) h. This is
        sigmoid(-z) n without a previous state, and n + sigmoid(z) (h - n) with one.
        """
        builder, last = self.builder, slice(2 * self.hidden, 3 * self.hidden)
        gates = self.gates(slice(0, 2 * self.hidden), x, h)
        z, r = self.gate(gates, 0), self.gate(gates, 1)
        own: tuple[StepView, Array | None, Array | None] = (x, self.w[last].T, None)
        if h is None:  # R h + b_r is the bias alone.
            recalled = builder.add_scaled(
                self.name,
                [(builder.apply_function(self.name, ProductFunction("sigmoid"), r), self.b_r[last])],
            )
        else:
            state = builder.affine(self.name, (1, self.hidden), [(h, self.r[last].T, None)], self.b_r[last])
            recalled = self.product("sigmoid", r, "identity", state)
        new = builder.affine(self.name, (1, self.hidden), [own, (recalled, None, None)], self.b_w[last])
        if h is None:
            return self.product("sigmoid", builder.add_scaled(self.name, [(z, -1.0)]), "tanh", new), None
        n = builder.apply_function(self.name, ProductFunction("tanh"), new)
        change = builder.add_scaled(self.name, [(h, 1.0), (n, -1.0)])
        return builder.add_scaled(
            self.name, [(n, 1.0), (self.product("sigmoid", z, "identity", change), 1.0)]
        ), None


def unroll_layer(builder: Builder, node: GraphNode, given: tuple[Any, ...]) -> tuple[Value, ...]:
    """The outputs Y, Y_h (and Y_c of an LSTM) of a layer."""
    x, w, r, b, lengths, h_first, c_first = [*given, *[None] * 7][:7]
    attributes, name = node.attributes, node.outputs[0] or node.op
    direction, many = (
        attributes.get("direction", "forward"),
        2 if attributes.get("direction") == "bidirectional" else 1,
    )
    require(
        list(attributes.get("activations", USUAL[node.op] * many)) == USUAL[node.op] * many,
        "activations other than the defaults",
    )
    require(node.op != "GRU" or attributes.get("linear_before_reset"), "a GRU without linear_before_reset")
    if not isinstance(x, StepView) or len(x.shape) != 3 or x.shape[1] != 1:
        raise Rejected("a sequence that does not depend on the input, or a batch of several sequences")
    require(w.ndim == 3 and r.ndim == 3, "the sizes of the weights")
    hidden = r.shape[2]
    rows = GATES[node.op] * hidden
    require(
        w.shape == (many, rows, x.shape[2]) and r.shape == (many, rows, hidden), "the sizes of the weights"
    )
    require(attributes.get("hidden_size", hidden) == hidden, "hidden_size differs from that of the weights")
    require(b is None or b.shape == (many, 2 * rows), "the sizes of the biases")
    require(lengths is None or lengths.tolist() == [len(x.index)], "sequences of several lengths")
    for state in (h_first, c_first):
        require(
            state is None or (state.shape == (many, 1, hidden) and not state.any()),
            "an initial state other than zero",
        )
    b = np.zeros((many, 2 * rows)) if b is None else b
    outputs: list[list[StepView]] = []
    lasts: list[tuple[StepView, StepView | None]] = []
    for place in range(many):
        cell = RecurrentDirection(builder, node, (w[place], r[place], b[place]))
        step = {"RNN": cell.rnn, "GRU": cell.gru, "LSTM": cell.lstm}[node.op]
        h: StepView | None = None
        c: StepView | None = None
        seen: list[StepView] = []
        backwards = direction == "reverse" or place == 1
        for frame in x.index[::-1] if backwards else x.index:
            h, c = step(StepView(x.step, frame), h, c)
            seen.append(StepView(h.step, h.index[None]))
        if h is None:
            raise Rejected("an empty sequence")
        outputs.append(seen[::-1] if backwards else seen)
        lasts.append((h, c))
    frames = [
        builder.concatenate(name, [StepView(v.step, v.index[:, None]) for v in both], 1)
        for both in zip_equal(*outputs)
    ]
    whole = builder.concatenate(name, frames, 0)
    last = builder.concatenate(name, [StepView(h.step, h.index[None]) for h, _ in lasts], 0)
    memories = [StepView(c.step, c.index[None]) for _, c in lasts if c is not None]
    return whole, last, *((builder.concatenate(name, memories, 0),) if memories else ())
