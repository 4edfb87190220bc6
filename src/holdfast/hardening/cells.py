"""Interval bounds of recurrent layers: the cells of `network.cells` over intervals, unrolled.

Statement. For intervals of x_t, h and c, the interval of every gate and state contains its values, up to rounding.

The input's contribution W_x x_t + b is computed for all steps at once. Each step adds W_h h and applies the
gates. The interval of a gate in [0, 1] times a value is known in closed form (`multiply_gate`).

Assumption: these intervals are for a loss, as in `intervals`.

Reference: Gowal et al. 2018 (IBP); the closed form of a gate times a value is in `ranges`.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear

from holdfast.bounding.graph.cells.unroll import RecurrentLayout
from holdfast.bounding.graph.graph import Graph, OperatorCall
from holdfast.bounding.relax.base import Interval
from holdfast.errors import UnsupportedLayer
from holdfast.hardening.intervals import IntervalGraph, Span, between, rule
from holdfast.hardening.ranges import multiply_gate
from holdfast.network import cells

aten = torch.ops.aten
Ball = tuple[Tensor, Tensor]  # centre and radius of an interval
State = tuple[Interval, ...]
Step = Callable[[Ball, State, Sequence[Tensor]], State]


def _ball(low: Tensor, high: Tensor) -> Ball:
    return (low + high) / 2, (high - low) / 2


def _through(value: Ball, weight: Tensor, bias: Tensor | None = None) -> Ball:
    return linear(value[0], weight, bias), linear(value[1], weight.abs())


def _ends(value: Ball) -> Interval:
    return value[0] - value[1], value[0] + value[1]


def _each(function: Callable[[Tensor], Tensor], ends: Interval) -> Interval:
    return function(ends[0]), function(ends[1])


def _plus(a: Interval, b: Interval) -> Interval:
    return a[0] + b[0], a[1] + b[1]


def _recurrent_share(shared: Ball, state: Interval, weights: Sequence[Tensor]) -> Ball:
    """Add W_h h to the input's contribution, which includes the biases."""
    from_state = _through(_ball(*state), weights[1])
    return shared[0] + from_state[0], shared[1] + from_state[1]


def _gates(value: Ball, many: int) -> list[Interval]:
    return list(zip(*(end.chunk(many, -1) for end in _ends(value)), strict=True))


class IntervalAlgebra:
    """The operations of `network.cells` on intervals."""

    def sigmoid(self, value: Interval) -> Interval:
        return _each(torch.sigmoid, value)

    def tanh(self, value: Interval) -> Interval:
        return _each(torch.tanh, value)

    def add(self, a: Interval, b: Interval) -> Interval:
        return _plus(a, b)

    def multiply_gate(self, gate: Interval, value: Interval) -> Interval:
        return multiply_gate(gate, value)

    def blend(self, gate: Interval, state: Interval, new: Interval) -> Interval:
        """A convex combination increases in state and new. So its bounds are combinations of their bounds, at
        one of the two bounds of the gate.
        """
        low = torch.minimum(*(new[0] + share * (state[0] - new[0]) for share in gate))
        high = torch.maximum(*(new[1] + share * (state[1] - new[1]) for share in gate))
        return low, high


def _lstm(shared: Ball, state: State, weights: Sequence[Tensor]) -> State:
    i, f, g, o = _gates(_recurrent_share(shared, state[0], weights), cells.NUM_LSTM_GATES)
    return cells.lstm(IntervalAlgebra(), i, f, g, o, state[1])


def _gru(shared: Ball, state: State, weights: Sequence[Tensor]) -> State:
    size = weights[1].shape[1]
    bias = weights[3] if len(weights) == 4 else None
    recalled = _through(_ball(*state[0]), weights[1], bias)
    gates = (
        shared[0][..., : 2 * size] + recalled[0][..., : 2 * size],
        shared[1][..., : 2 * size] + recalled[1][..., : 2 * size],
    )
    r, z = _gates(gates, 2)
    from_input, from_state = (
        _ends((ball[0][..., 2 * size :], ball[1][..., 2 * size :])) for ball in (shared, recalled)
    )
    return (cells.gru(IntervalAlgebra(), r, z, from_input, from_state, state[0]),)


def gru_step(frame: Span, state: State, weights: Sequence[Tensor]) -> Interval:
    """Return the bounds of the state after one frame."""
    ((low, high),) = _gru(
        _through(_ball(frame.lower, frame.upper), weights[0], weights[2] if len(weights) == 4 else None),
        state,
        weights,
    )
    return low, high


def _plain(function: Callable[[Tensor], Tensor]) -> Step:
    def step(shared: Ball, state: State, weights: Sequence[Tensor]) -> State:
        return (_each(function, _ends(_recurrent_share(shared, state[0], weights))),)

    return step


STEPS: dict[Any, Step] = {
    aten.lstm.input: _lstm,
    aten.gru.input: _gru,
    aten.rnn_tanh.input: _plain(torch.tanh),
    aten.rnn_relu.input: _plain(torch.relu),
}


@rule(*STEPS)
def recurrent(graph: Graph, call: OperatorCall) -> tuple[Span, ...]:
    """Return (outputs, last states, ...), the results of torch's fused operators."""
    x, states, parameters = call.args[:3]
    layout = RecurrentLayout.of(call.args[3:])
    step, directions, each = (
        STEPS[call.target],
        2 if layout.bidirectional else 1,
        4 if layout.biases else 2,
    )
    if not isinstance(x, Span) or layout.dropout:
        raise UnsupportedLayer(
            f"{call.name}: a recurrent layer in training mode, or one whose sequence does not depend on the "
            "input, "
            "has no interval bounds."
        )
    if len(parameters) != each * layout.layers * directions:
        raise UnsupportedLayer(
            f"{call.name}: an LSTM with projections has no interval bounds; remove them, or train with "
            "recipe='pgd'."
        )
    time = 1 if layout.batch_first else 0
    begin: Sequence[Any] = states if isinstance(states, tuple | list) else [states]
    frames = _ball(*(end.movedim(time, 0) for end in (x.lower, x.upper)))
    last: list[list[Interval]] = [[] for _ in begin]
    for layer in range(layout.layers):
        outputs = []
        for direction in range(directions):
            row = layer * directions + direction
            weights = parameters[row * each : (row + 1) * each]
            found, state = _scan(
                step, frames, tuple(_first(s, row) for s in begin), weights, back=direction == 1
            )
            outputs.append(found)
            if isinstance(graph, IntervalGraph) and graph.seen is not None:
                for low, high in zip(*found, strict=True):
                    graph.seen(call.name, between(call.name, low, high))
            for kept, value in zip(last, state, strict=True):
                kept.append(value)
        lower, upper = (torch.cat([o[end] for o in outputs], -1) for end in (0, 1))
        frames = _ball(lower, upper)
    whole = between(call.name, lower.movedim(0, time), upper.movedim(0, time))
    return whole, *(
        between(call.name, *(torch.stack([value[end] for value in kept]) for end in (0, 1))) for kept in last
    )


def _first(state: Any, row: int) -> Interval:
    ends = (state.lower[row], state.upper[row]) if isinstance(state, Span) else (state[row], state[row])
    return ends[0].float() if ends[0].dtype == torch.float64 else ends[0], ends[1].float() if ends[
        1
    ].dtype == torch.float64 else ends[1]


def _scan(
    step: Step, frames: Ball, state: State, weights: Sequence[Tensor], *, back: bool
) -> tuple[Interval, State]:
    """frames (time, batch, features) -> bounds of all states (time, batch, hidden), and the last state."""
    gru = step is _gru
    bias = None if len(weights) == 2 else weights[2] if gru else weights[2] + weights[3]
    shared = _through(frames, weights[0], bias)
    seen: list[Interval] = []
    length = len(frames[0])
    for t in reversed(range(length)) if back else range(length):
        state = step((shared[0][t], shared[1][t]), state, weights)
        seen.append(state[0])
    ordered = seen[::-1] if back else seen
    return (torch.stack([low for low, _ in ordered]), torch.stack([high for _, high in ordered])), state
