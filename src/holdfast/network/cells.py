"""The equations of torch's recurrent cells, once for all that compute with them.

Statement. With sigmoid(v) = 1 / (1 + exp(-v)) and products elementwise, torch.nn defines one time step as

    RNN:   h' = tanh(v)  or  max(v, 0),                      v = W_x x + b_x + W_h h + b_h;
    LSTM:  c' = sigmoid(f) c + sigmoid(i) tanh(g),           (i, f, g, o) = W_x x + b_x + W_h h + b_h,
           h' = sigmoid(o) tanh(c');
    GRU:   n' = tanh(W_n x + b_n + sigmoid(r) (V_n h + d_n)),  (r, z) = W x + b + V h + d for these rows,
           h' = (1 - sigmoid(z)) n' + sigmoid(z) h.

`lstm` and `gru` are these lines over an algebra: nodes of the computation graph (`bounding`), intervals
(`hardening`) or arrays (`monitor`). An algebra may return an unevaluated value, so that it can bound sigmoid(i)
tanh(g) as one function of two variables. An RNN's cell is a single activation and needs no function here. The
independent checker holds its own equations.

Assumption: the affine maps v, (i, f, g, o), (r, z), W_n x + b_n and V_n h + d_n are computed by the caller.

Reference: the documentation of torch.nn.RNNCell, LSTMCell and GRUCell.
"""

from typing import Protocol, TypeVar

V = TypeVar("V")

NUM_LSTM_GATES = 4  # i, f, g, o, in the order in which torch stores their rows.
NUM_GRU_GATES = 3  # r, z, n.


class CellAlgebra(Protocol[V]):
    """The operations of a recurrent cell on values of one kind."""

    def sigmoid(self, value: V, /) -> V: ...

    def tanh(self, value: V, /) -> V: ...

    def add(self, a: V, b: V, /) -> V: ...

    def multiply_gate(self, gate: V, value: V, /) -> V:
        """gate * value, for a gate that `sigmoid` returned."""

    def blend(self, gate: V, state: V, new: V, /) -> V:
        """gate * state + (1 - gate) * new, for a gate and a new value from `sigmoid` and `tanh`."""


def lstm(algebra: CellAlgebra[V], i: V, f: V, g: V, o: V, c: V) -> tuple[V, V]:
    """h', c' from the pre-activations of the gates and the memory c."""
    written = algebra.multiply_gate(algebra.sigmoid(i), algebra.tanh(g))
    kept = algebra.multiply_gate(algebra.sigmoid(f), c)
    memory = algebra.add(kept, written)
    return algebra.multiply_gate(algebra.sigmoid(o), algebra.tanh(memory)), memory


def gru(algebra: CellAlgebra[V], r: V, z: V, from_input: V, recalled: V, h: V) -> V:
    """h' from the pre-activations r and z, W_n x + b_n, V_n h + d_n and the state h."""
    reset = algebra.multiply_gate(algebra.sigmoid(r), recalled)
    return algebra.blend(algebra.sigmoid(z), h, algebra.tanh(algebra.add(from_input, reset)))
