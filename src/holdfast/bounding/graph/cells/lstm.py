"""The LSTM cell of torch: c' = sigmoid(f) c + sigmoid(i) tanh(g), h' = sigmoid(o) tanh(c'), with gates in the
order i, f, g, o.

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
from holdfast.bounding.relax import Sigmoid, SigmoidTanh, SigmoidTimes
from holdfast.errors import UnsupportedLayer


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
        i, f, g, o = (part(graph, at, gates, k * size, size) for k in range(4))
        written = graph.add_relaxed(at, [i, g], SigmoidTanh())
        if isinstance(c, Node):
            kept = graph.add_relaxed(at, [f, c], SigmoidTimes())
        else:
            kept = times_constant(graph, at, graph.add_relaxed(at, [f], Sigmoid()), c)
        memory = add(graph, at, kept, written)
        return graph.add_relaxed(at, [o, memory], SigmoidTanh()), memory

    return unroll(graph, call.name, x, [hidden, memory], parameters, step, **options(call.args[3:]))
