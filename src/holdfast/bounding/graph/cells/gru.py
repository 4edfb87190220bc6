"""The GRU cell of torch (`network.cells.gru`) as nodes of the graph.

Reference: Ko et al. 2019 (POPQORN) for linear bounds of gates.
"""

import torch

from holdfast.bounding.graph.cells.unroll import (
    CellValue,
    ConstantValue,
    NodeAlgebra,
    RecurrentLayout,
    Value,
    Weights,
    mix,
    part,
    unroll,
)
from holdfast.bounding.graph.graph import Graph, Node, OperatorCall, handles
from holdfast.network import cells

linear = torch.nn.functional.linear


@handles(torch.ops.aten.gru.input)
def gru(graph: Graph, call: OperatorCall) -> tuple[Node, ...]:
    x, state, parameters = call.args[:3]

    def step(at: str, frame: Node, states: tuple[Value, ...], weights: Weights) -> tuple[Node, ...]:
        return cell(graph, at, frame, states, weights)

    return unroll(graph, call.name, x, [state], parameters, step, RecurrentLayout.of(call.args[3:]))


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
    state: CellValue
    recalled: CellValue
    if isinstance(h, Node):
        recalled = graph.affine(
            at, [h], lambda v: linear(v, w_h, b_h), lambda m: linear(m, w_h.abs(), b_h.abs())
        )
        state = h
    else:
        recalled = ConstantValue(linear(h, w_h, b_h), linear(h.abs(), w_h.abs(), b_h.abs()))
        state = ConstantValue(h)
    after = cells.gru(NodeAlgebra(graph, at), r, z, from_input, recalled, state)
    assert isinstance(after, Node)
    return (after,)
