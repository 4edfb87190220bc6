"""The plain recurrent cell: h' = f(W_i x + b_i + W_h h + b_h), f = tanh or ReLU."""

import torch

from holdfast.bounding.graph.cells.unroll import RecurrentLayout, Value, Weights, mix, unroll
from holdfast.bounding.graph.graph import Graph, Node, OperatorCall, handles
from holdfast.bounding.relax import Relaxation, Relu, Tanh


@handles(torch.ops.aten.rnn_tanh.input)
def rnn_tanh(graph: Graph, call: OperatorCall) -> tuple[Node, ...]:
    return _rnn(graph, call, Tanh())


@handles(torch.ops.aten.rnn_relu.input)
def rnn_relu(graph: Graph, call: OperatorCall) -> tuple[Node, ...]:
    return _rnn(graph, call, Relu())


def _rnn(graph: Graph, call: OperatorCall, activation: Relaxation) -> tuple[Node, ...]:
    x, state, parameters = call.args[:3]

    def step(at: str, frame: Node, h: tuple[Value, ...], weights: Weights) -> tuple[Node, ...]:
        return (graph.add_relaxed(at, [mix(graph, at, frame, h[0], weights)], activation),)

    return unroll(graph, call.name, x, [state], parameters, step, RecurrentLayout.of(call.args[3:]))
