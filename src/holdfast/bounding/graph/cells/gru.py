"""The GRU cell of torch, with gates in the order r, z, n:

    n = tanh(W_in x + b_in + sigmoid(r) (W_hn h + b_hn)),   h' = (1 - sigmoid(z)) n + sigmoid(z) h.

The graph uses h' = n + sigmoid(z) (h - n): one product instead of two. The gap of a product's linear bounds
grows with the widths of its factors, and h - n is narrower than the sum of both widths, because h and n
depend on the same input. Interval arithmetic uses that h' is a convex combination of h and n
(`Graph.blends`).

Reference: Ko et al. 2019 (POPQORN) for linear bounds of gates.
"""

import torch

from holdfast.bounding.graph.cells.unroll import (
    Value,
    Weights,
    add,
    mix,
    options,
    part,
    times_constant,
    unroll,
)
from holdfast.bounding.graph.graph import Graph, Node, OperatorCall, handles
from holdfast.bounding.relax import Sigmoid, SigmoidTanh, SigmoidTimes, Tanh

linear = torch.nn.functional.linear


@handles(torch.ops.aten.gru.input)
def gru(graph: Graph, call: OperatorCall) -> tuple[Node, ...]:
    x, state, parameters = call.args[:3]

    def step(at: str, frame: Node, states: tuple[Value, ...], weights: Weights) -> tuple[Node, ...]:
        return cell(graph, at, frame, states, weights)

    return unroll(graph, call.name, x, [state], parameters, step, **options(call.args[3:]))


def cell(graph: Graph, at: str, frame: Node, states: tuple[Value, ...], weights: Weights) -> tuple[Node, ...]:
    """One time step: (frame, previous state) -> next state."""
    (h,) = states
    size = weights[1].shape[1]
    gates = mix(graph, at, frame, h, weights, slice(0, 2 * size))
    r, z = (part(graph, at, gates, k * size, size) for k in range(2))
    last = slice(2 * size, 3 * size)
    w_x, w_h = weights[0][last], weights[1][last]
    none = torch.zeros(size, dtype=w_x.dtype, device=w_x.device)
    b_x, b_h = (weights[2][last], weights[3][last]) if len(weights) == 4 else (none, none)
    from_input = graph.affine(
        at, [frame], lambda v: linear(v, w_x, b_x), lambda m: linear(m, w_x.abs(), b_x.abs())
    )
    if isinstance(h, Node):
        recalled = graph.affine(
            at, [h], lambda v: linear(v, w_h, b_h), lambda m: linear(m, w_h.abs(), b_h.abs())
        )
        reset = graph.add_relaxed(at, [r, recalled], SigmoidTimes())
        new = graph.add_relaxed(at, [add(graph, at, from_input, reset)], Tanh())
        change = graph.affine(at, [h, new], lambda v, z: v - z, lambda v, z: v + z)
        state = add(graph, at, new, graph.add_relaxed(at, [z, change], SigmoidTimes()))
        graph.blends[state] = z, h, new
        return (state,)
    recalled_size = linear(h.abs(), w_h.abs(), b_h.abs())
    reset = times_constant(
        graph, at, graph.add_relaxed(at, [r], Sigmoid()), linear(h, w_h, b_h), recalled_size
    )
    away = graph.affine(at, [z], lambda v: -v, lambda m: m)
    written = graph.add_relaxed(at, [away, add(graph, at, from_input, reset)], SigmoidTanh())
    return (add(graph, at, written, times_constant(graph, at, graph.add_relaxed(at, [z], Sigmoid()), h)),)
