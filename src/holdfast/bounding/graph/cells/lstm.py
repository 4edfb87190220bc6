"""The LSTM cell of torch (`network.cells.lstm`) as nodes of the graph.

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
from holdfast.errors import UnsupportedLayer
from holdfast.network import cells


@handles(torch.ops.aten.lstm.input)
def lstm(graph: Graph, call: OperatorCall) -> tuple[Node, ...]:
    x, (hidden, memory), parameters = call.args[:3]
    biases, layers, _, _, bidirectional, _ = call.args[3:]
    if len(parameters) != (4 if biases else 2) * layers * (2 if bidirectional else 1):
        raise UnsupportedLayer(
            f"{call.name}: an LSTM with projections has no bound here; attacks and black-box methods "
            "still work."
        )

    def step(at: str, frame: Node, state: tuple[Value, ...], weights: Weights) -> tuple[Node, ...]:
        h, c = state
        size = weights[1].shape[1]
        gates = mix(graph, at, frame, h, weights)
        i, f, g, o = (part(graph, at, gates, k * size, size) for k in range(cells.NUM_LSTM_GATES))
        memory: CellValue = c if isinstance(c, Node) else ConstantValue(c)
        state_after = cells.lstm(NodeAlgebra(graph, at), i, f, g, o, memory)
        return tuple(value for value in state_after if isinstance(value, Node))

    return unroll(graph, call.name, x, [hidden, memory], parameters, step, RecurrentLayout.of(call.args[3:]))
