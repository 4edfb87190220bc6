"""RNN, LSTM and GRU.

If torch has the cell of a node, the layer becomes one call of torch's operator (aten.lstm, aten.gru,
aten.rnn_tanh in traced graphs), with the weights rearranged at import. Other layers are unrolled over time.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from holdfast.errors import BadInput, UnreadableFile, UnsupportedLayer
from holdfast.network.onnx.operators.table import OnnxNode, Static, operator, rewrite

# The positions in ONNX of torch's gates: input, forget, cell, output in (i, o, f, c); reset, update, new in
# (z, r, h).
_GATES = {"RNN": [0], "LSTM": [0, 2, 3, 1], "GRU": [1, 0, 2]}

_DEFAULTS = {"RNN": ["Tanh"], "LSTM": ["Sigmoid", "Tanh", "Tanh"], "GRU": ["Sigmoid", "Tanh"]}
# Softplus is missing, because onnxruntime computes it in these layers as log(1 + exp(v)), which is infinite
# above 88.
_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": torch.relu,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "softsign": torch.nn.functional.softsign,
}
_DIRECTIONS = {"forward": 1, "reverse": 1, "bidirectional": 2}


@rewrite("RNN", "LSTM", "GRU")
def recurrent(node: OnnxNode) -> list[OnnxNode]:
    """Rewrite a recurrent layer.

    Its inputs are X, W, R, B, sequence_lens, initial_h, and for an LSTM initial_c and peepholes P.

    A separate node rearranges the weights. As they are constants, this is computed once, at import.
    """
    if "activation_alpha" in node.attributes or "activation_beta" in node.attributes:
        raise node.unsupported_error("an activation with parameters")
    unknown = [name for name in _activations(node) if name not in _ACTIVATIONS]
    if unknown:
        raise node.unsupported_error(f"activation {', '.join(unknown)}")
    if "clip" in node.attributes and node.number("clip", 0) <= 0:
        raise node.unsupported_error("clip at zero, which some runtimes take for no clip,")
    if node.operator == "LSTM" and node.number("clip", 0):
        # ONNX clips the cell state before the last activation, onnxruntime does not.
        raise node.unsupported_error("clip, which ONNX and onnxruntime define differently,")
    if len(_activations(node)) != len(_DEFAULTS[node.operator]) * _directions(node):
        raise node.unsupported_error(f"{len(_activations(node))} activations")
    data, weight, recurrence, bias, lengths, *state = (*node.inputs, *[""] * (8 - len(node.inputs)))
    state = state[:2] if node.operator == "LSTM" else state[:1]
    if not _fits(node):
        attributes = {**node.attributes, "cell": node.operator}
        return [OnnxNode("Unrolled", node.name, node.inputs, node.outputs, node.opset, attributes)]
    attributes = {**node.attributes, "cell": _torch_cell(node), "gates": _GATES[node.operator]}
    kinds = 4 if bias else 2
    rearranged = tuple(f"{node.name}/{_name(node)}/weight{i}" for i in range(kinds * _directions(node)))
    inputs = (data, lengths, *state, *rearranged)
    return [
        OnnxNode("TorchWeights", node.name, (weight, recurrence, bias), rearranged, node.opset, attributes),
        OnnxNode(f"Torch{node.operator}", node.name, inputs, node.outputs, node.opset, attributes),
    ]


def _name(node: OnnxNode) -> str:
    return next(name for name in node.outputs if name)


def _directions(node: OnnxNode) -> int:
    return _DIRECTIONS[node.text("direction", "forward")]


def _activations(node: OnnxNode) -> list[str]:
    """The activations of the forward direction, then those of the other, in lower case because ONNX ignores
    the case."""
    cell = node.text("cell", node.operator)
    names = node.attributes.get("activations") or _DEFAULTS[cell] * _directions(node)
    return [str(name).lower() for name in names]


def _fits(node: OnnxNode) -> bool:
    """Whether torch has the cell of this node."""
    plain = not node.number("clip", 0) and not node.integer("input_forget", 0) and not node.has_input(7)
    activations = _activations(node)
    usual = [name.lower() for name in _DEFAULTS[node.operator]] * _directions(node)
    if node.operator == "RNN":
        return plain and (activations == usual or set(activations) == {"relu"})
    if node.operator == "GRU":
        return plain and activations == usual and node.integer("linear_before_reset", 0) == 1
    return plain and activations == usual


def _torch_cell(node: OnnxNode) -> str:
    return "relu" if set(_activations(node)) == {"relu"} else "tanh"


@operator("TorchWeights")
def torch_weights(
    node: OnnxNode, weight: Tensor, recurrence: Tensor, bias: Tensor | None = None
) -> tuple[Tensor, ...]:
    """The weights with torch's order of gates: for each direction w_ih, w_hh and, if there is a bias, b_ih,
    b_hh.

    Args:
        weight: W (directions, gates * h, in).
        recurrence: R (directions, gates * h, h).
        bias: B (directions, 2 * gates * h).
    """
    order = node.integers("gates", ())

    def gates(rows: Tensor) -> Tensor:
        blocks = rows.chunk(len(order))
        return torch.cat([blocks[gate] for gate in order])

    arranged: list[Tensor] = []
    for direction in range(weight.shape[0]):
        arranged += [gates(weight[direction]), gates(recurrence[direction])]
        if bias is not None:
            arranged += [gates(half) for half in bias[direction].chunk(2)]
    return tuple(arranged)


@dataclass(frozen=True)
class Sequence:
    """A layer's input in torch's layout, and the conversion of outputs to ONNX's layout.

    Attributes:
        data: (time, batch, in); reversed in time for the direction "reverse", which torch does not have.
        directions: 1 or 2.
    """

    node: OnnxNode
    data: Tensor
    directions: int

    @classmethod
    def of(cls, node: OnnxNode, data: Tensor, lengths: Static | None) -> "Sequence":
        data = data.transpose(0, 1) if node.integer("layout", 0) else data
        if lengths is not None and any(length != data.shape[0] for length in lengths.reshape(-1).tolist()):
            raise UnsupportedLayer(
                f"{node.name!r}: sequence_lens {lengths.tolist()} shorter than the {data.shape[0]} steps of "
                f"the input are not supported: give sequences of one length, without padding."
            )
        reverse = node.text("direction", "forward") == "reverse"
        return cls(node, data.flip(0) if reverse else data, _directions(node))

    def state(self, given: Tensor | None, hidden: int) -> Tensor:
        """The initial state (directions, batch, hidden); zero if none is given."""
        if given is None:
            return self.data.new_zeros(self.directions, self.data.shape[1], hidden)
        given = given.transpose(0, 1) if self.node.integer("layout", 0) else given
        # torch does not check the shape, and would read beyond the end of the tensor.
        if tuple(given.shape) != (self.directions, self.data.shape[1], hidden):
            batch = given.shape[1] if given.dim() == 3 else "another rank"
            raise BadInput(
                f"{self.node.operator} node {self.node.name!r}: its initial state is of shape "
                f"{tuple(given.shape)}, made for a batch of {batch}, but a batch of {self.data.shape[1]} "
                f"was given."
            )
        return given

    def outputs(self, every: Tensor, *last: Tensor) -> tuple[Tensor, ...]:
        """Y and Y_h, Y_c in ONNX's layout, from (time, batch, directions * hidden) and states (directions,
        batch, hidden)."""
        every = every.reshape(*every.shape[:2], self.directions, -1)
        every = every.flip(0) if self.node.text("direction", "forward") == "reverse" else every
        if self.node.integer("layout", 0):
            return every.transpose(0, 1), *(state.transpose(0, 1) for state in last)
        return every.transpose(1, 2), *last

    def settings(self, weights: tuple[Tensor, ...]) -> tuple[bool, int, float, bool, bool, bool]:
        """The arguments biases, layers, dropout, training, bidirectional and batch first of torch's recurrent
        operators."""
        hidden = weights[1].shape[-1]
        rows = hidden * len(self.node.integers("gates", ()))
        expected = [(rows, self.data.shape[2]), (rows, hidden), (rows,), (rows,)]
        expected = expected[: len(weights) // self.directions]
        if [tuple(weight.shape) for weight in weights] != expected * self.directions:
            shapes = ", ".join(str(tuple(weight.shape)) for weight in weights)
            raise UnreadableFile(
                f"{self.node.operator} node {self.node.name!r}: weights {shapes} do not fit together. "
                f"Export it again."
            )
        return len(weights) == 4 * self.directions, 1, 0.0, False, self.directions == 2, False


@operator("TorchLSTM")
def lstm(
    node: OnnxNode,
    data: Tensor,
    lengths: Static | None,
    hidden: Tensor | None,
    cell: Tensor | None,
    *weights: Tensor,
) -> tuple[Tensor, ...]:
    sequence = Sequence.of(node, data, lengths)
    width = weights[1].shape[1]
    state = [sequence.state(hidden, width), sequence.state(cell, width)]
    return sequence.outputs(*torch.lstm(sequence.data, state, weights, *sequence.settings(weights)))


@operator("TorchGRU")
def gru(
    node: OnnxNode, data: Tensor, lengths: Static | None, hidden: Tensor | None, *weights: Tensor
) -> tuple[Tensor, ...]:
    sequence = Sequence.of(node, data, lengths)
    state = sequence.state(hidden, weights[1].shape[1])
    return sequence.outputs(*torch.gru(sequence.data, state, weights, *sequence.settings(weights)))


@operator("TorchRNN")
def rnn(
    node: OnnxNode, data: Tensor, lengths: Static | None, hidden: Tensor | None, *weights: Tensor
) -> tuple[Tensor, ...]:
    sequence = Sequence.of(node, data, lengths)
    state = sequence.state(hidden, weights[1].shape[1])
    layer = torch.rnn_relu if node.text("cell", "tanh") == "relu" else torch.rnn_tanh
    return sequence.outputs(*layer(sequence.data, state, weights, *sequence.settings(weights)))


@dataclass(frozen=True)
class OnnxCell:
    """One direction of a layer, with ONNX's weights, whose gates are stacked along the first axis.

    Attributes:
        weight: (gates * hidden, in).
        recurrence: (gates * hidden, hidden).
        input_bias: (gates * hidden,).
        state_bias: (gates * hidden,).
        peepholes: (3 * hidden,).
        clip: limit of the arguments of activations; 0: none.
        reset_after: the GRU multiplies by the reset gate after the product with the recurrent weights.
        coupled: the LSTM's forget gate is one minus its input gate.
    """

    weight: Tensor
    recurrence: Tensor
    input_bias: Tensor
    state_bias: Tensor
    peepholes: Tensor
    activations: list[Callable[[Tensor], Tensor]]
    clip: float
    reset_after: bool
    coupled: bool

    def gate(self, value: Tensor, activation: int) -> Tensor:
        """The activation of this number, applied to a clipped value."""
        return self.activations[activation](value.clamp(-self.clip, self.clip) if self.clip else value)


State = tuple[Tensor, ...]


def _rnn_step(cell: OnnxCell, data: Tensor, state: State) -> State:
    [hidden] = state
    total = data @ cell.weight.T + hidden @ cell.recurrence.T + cell.input_bias + cell.state_bias
    return (cell.gate(total, 0),)


def _lstm_step(cell: OnnxCell, data: Tensor, state: State) -> State:
    hidden, memory = state
    total = data @ cell.weight.T + hidden @ cell.recurrence.T + cell.input_bias + cell.state_bias
    enter, leave, forget, new = total.chunk(4, -1)
    see_enter, see_leave, see_forget = cell.peepholes.chunk(3)
    enter = cell.gate(enter + see_enter * memory, 0)
    forget = 1 - enter if cell.coupled else cell.gate(forget + see_forget * memory, 0)
    memory = forget * memory + enter * cell.gate(new, 1)
    return cell.gate(leave + see_leave * memory, 0) * cell.activations[2](memory), memory


def _gru_step(cell: OnnxCell, data: Tensor, state: State) -> State:
    [hidden] = state
    keep_in, reset_in, new_in = (data @ cell.weight.T + cell.input_bias).chunk(3, -1)
    keep_rows, reset_rows, new_rows = cell.recurrence.chunk(3)
    keep_bias, reset_bias, new_bias = cell.state_bias.chunk(3)
    keep = cell.gate(keep_in + hidden @ keep_rows.T + keep_bias, 0)
    reset = cell.gate(reset_in + hidden @ reset_rows.T + reset_bias, 0)
    if cell.reset_after:
        new = cell.gate(new_in + reset * (hidden @ new_rows.T + new_bias), 1)
    else:
        new = cell.gate(new_in + (reset * hidden) @ new_rows.T + new_bias, 1)
    return ((1 - keep) * new + keep * hidden,)


# The number of states, the number of gates, and one time step of each cell.
_STEPS: dict[str, tuple[int, int, Callable[[OnnxCell, Tensor, State], State]]] = {
    "RNN": (1, 1, _rnn_step),
    "LSTM": (2, 4, _lstm_step),
    "GRU": (1, 3, _gru_step),
}


@operator("Unrolled")
def unroll_layer(
    node: OnnxNode,
    data: Tensor,
    weight: Tensor,
    recurrence: Tensor,
    bias: Tensor | None = None,
    lengths: Static | None = None,
    hidden: Tensor | None = None,
    memory: Tensor | None = None,
    peepholes: Tensor | None = None,
) -> tuple[Tensor, ...]:
    """Any recurrent layer, unrolled over time."""
    states, gates, step = _STEPS[node.text("cell", "")]
    sequence = Sequence.of(node, data, lengths)
    width = recurrence.shape[2]
    initial = [sequence.state(given, width) for given in (hidden, memory)[:states]]
    outputs, finals = [], []
    for direction in range(sequence.directions):
        cell = _cell(node, direction, gates, weight, recurrence, bias, peepholes)
        backwards = direction == 1
        inputs = sequence.data.flip(0) if backwards else sequence.data
        state: State = tuple(start[direction] for start in initial)
        every: list[Any] = []
        for frame in inputs.unbind(0):
            state = step(cell, frame, state)
            every.append(state[0])
        outputs.append(torch.stack(every[::-1] if backwards else every))
        finals.append(state)
    last = [torch.stack(parts) for parts in zip(*finals, strict=True)]
    return sequence.outputs(torch.cat(outputs, dim=2), *last)


def _cell(
    node: OnnxNode,
    direction: int,
    gates: int,
    weight: Tensor,
    recurrence: Tensor,
    bias: Tensor | None,
    peepholes: Tensor | None,
) -> OnnxCell:
    width = recurrence.shape[2]
    names = _activations(node)
    each = len(names) // _directions(node)
    both = weight.new_zeros(2 * gates * width) if bias is None else bias[direction]
    input_bias, state_bias = both.chunk(2)
    return OnnxCell(
        weight=weight[direction],
        recurrence=recurrence[direction],
        input_bias=input_bias,
        state_bias=state_bias,
        peepholes=weight.new_zeros(3 * width) if peepholes is None else peepholes[direction],
        activations=[_ACTIVATIONS[name] for name in names[direction * each : (direction + 1) * each]],
        clip=node.number("clip", 0.0),
        reset_after=bool(node.integer("linear_before_reset", 0)),
        coupled=bool(node.integer("input_forget", 0)),
    )
