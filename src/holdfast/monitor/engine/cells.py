"""One step of the cells of `network.cells` for torch tensors and numpy arrays, in place.

A step works in place on `gates` = W_x x + b, the input's contribution, and reads `recalled` = W_h h, the
state's contribution, which all mutants of an element share. sigmoid(v) = (1 + tanh(v / 2)) / 2, and halving
is exact in floating point. So the weights of sigmoid gates are stored halved, and a single tanh evaluates all
gates before the equations of the cell are applied to their values.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from holdfast.network import cells

Array = Any  # a torch tensor or a numpy array: slices, sums and products have the same syntax


def tanh_(x: Array) -> Array:
    """Apply tanh in place. numpy is faster than torch here on a CPU, so tensors only come from a GPU."""
    return x.tanh_() if isinstance(x, Tensor) else np.tanh(x, out=x)


def relu_(x: Array) -> Array:
    return x.clamp_min_(0) if isinstance(x, Tensor) else np.maximum(x, 0, out=x)


class EvaluatedTanh:
    """A value of the LSTM whose tanh was evaluated together with the gates."""

    __slots__ = ("value",)

    def __init__(self, value: Array) -> None:
        self.value = value


class ArrayAlgebra:
    """The operations of `network.cells` on arrays. Gates are evaluated; sums overwrite their second one."""

    def sigmoid(self, value: Array) -> Array:
        return value

    def tanh(self, value: Array) -> Array:
        return value.value if type(value) is EvaluatedTanh else tanh_(value)

    def add(self, a: Array, b: Array) -> Array:
        b += a  # The second operand is always a new array, with adjacent elements.
        return b

    def multiply_gate(self, gate: Array, value: Array) -> Array:
        return gate * value

    def blend(self, gate: Array, state: Array, new: Array) -> Array:
        """new + gate (state - new)."""
        kept = state - new
        kept *= gate
        kept += new
        return kept


class DoubledArrayAlgebra(ArrayAlgebra):
    """As `ArrayAlgebra` with doubled gates, 2 sigmoid(v) = 1 + tanh(v / 2). Products are doubled too until
    `add` halves their sum; halving is exact.
    """

    def tanh(self, value: Array) -> Array:
        if type(value) is EvaluatedTanh:
            return value.value
        return value.tanh() if isinstance(value, Tensor) else np.tanh(value)  # The memory is kept.

    def add(self, a: Array, b: Array) -> Array:
        b += a
        b *= 0.5
        return b


ARRAYS: cells.CellAlgebra[Any] = ArrayAlgebra()
DOUBLED_ARRAYS: cells.CellAlgebra[Any] = DoubledArrayAlgebra()


Step = Callable[[Array, Array, Array, Array, int], None]


def lstm(gates: Array, recalled: Array, state: Array, new: Array, n: int) -> None:
    """state and new (m, 2n): h, c. Gates i, f, g, o."""
    gates += recalled
    tanh_(gates)
    gates[:, : 2 * n] += 1
    gates[:, 3 * n :] += 1
    i, f, g, o = gates[:, :n], gates[:, n : 2 * n], gates[:, 2 * n : 3 * n], gates[:, 3 * n :]
    doubled, memory = cells.lstm(DOUBLED_ARRAYS, i, f, EvaluatedTanh(g), o, state[:, n:])
    doubled *= 0.5
    new[:, n:] = memory
    new[:, :n] = doubled


def gru(gates: Array, recalled: Array, state: Array, new: Array, n: int) -> None:
    """state and new (m, n): h. Gates r, z, n."""
    doors = gates[:, : 2 * n] + recalled[:, : 2 * n]
    tanh_(doors)
    doors += 1
    doors *= 0.5
    new[:, :n] = cells.gru(
        ARRAYS, doors[:, :n], doors[:, n:], gates[:, 2 * n :], recalled[:, 2 * n :], state[:, :n]
    )


def rnn_tanh(gates: Array, recalled: Array, state: Array, new: Array, n: int) -> None:
    gates += recalled
    new[:, :n] = tanh_(gates)


def rnn_relu(gates: Array, recalled: Array, state: Array, new: Array, n: int) -> None:
    gates += recalled
    new[:, :n] = relu_(gates)


@dataclass(frozen=True)
class RecurrentWeights:
    """Weights of one recurrent layer: gates = x w_in^T + b_in, recalled = h w_rec^T + b_rec."""

    step: Step
    size: int  # n
    width: int  # size of the state
    w_in: Tensor
    b_in: Tensor
    w_rec: Tensor
    b_rec: Tensor | None


def layers_of(rnn: nn.RNNBase) -> list[RecurrentWeights]:
    """Return the layers of nn.RNN, nn.LSTM or nn.GRU (unidirectional, without projections)."""
    return [_layer(rnn, depth) for depth in range(rnn.num_layers)]


def _layer(rnn: nn.RNNBase, depth: int) -> RecurrentWeights:
    n = rnn.hidden_size
    w_in, w_rec = (getattr(rnn, f"weight_{side}_l{depth}").detach() for side in ("ih", "hh"))
    zero = w_in.new_zeros(len(w_in))
    b_in, b_rec = (
        getattr(rnn, f"bias_{side}_l{depth}").detach() if rnn.bias else zero for side in ("ih", "hh")
    )
    if isinstance(rnn, nn.LSTM):
        half = w_in.new_full((4 * n,), 0.5)
        half[2 * n : 3 * n] = 1
        return RecurrentWeights(
            lstm, n, 2 * n, w_in * half[:, None], (b_in + b_rec) * half, w_rec * half[:, None], None
        )
    if isinstance(rnn, nn.GRU):
        half = w_in.new_full((3 * n,), 0.5)
        half[2 * n :] = 1
        inner, outer = (
            torch.cat([zero[: 2 * n], b_rec[2 * n :]]),
            torch.cat([(b_in + b_rec)[: 2 * n], b_in[2 * n :]]),
        )
        return RecurrentWeights(gru, n, n, w_in * half[:, None], outer * half, w_rec * half[:, None], inner)
    step = rnn_relu if getattr(rnn, "nonlinearity", "tanh") == "relu" else rnn_tanh
    return RecurrentWeights(step, n, n, w_in.clone(), b_in + b_rec, w_rec.clone(), None)
