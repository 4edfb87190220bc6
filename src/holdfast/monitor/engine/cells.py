"""One step of RNN, LSTM and GRU cells, for torch tensors and numpy arrays.

A step works in place on `gates` = W_x x + b, the input's contribution, and reads `recalled` = W_h h, the
state's contribution, which all mutants of an element share. sigmoid(v) = (1 + tanh(v / 2)) / 2, and halving
is exact in floating point. So the weights of sigmoid gates are stored halved, and a single tanh evaluates all
gates.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

Array = Any  # a torch tensor or a numpy array: slices, sums and products have the same syntax


def tanh_(x: Array) -> Array:
    """Apply tanh in place. numpy is faster than torch here on a CPU, so tensors only come from a GPU."""
    return x.tanh_() if isinstance(x, Tensor) else np.tanh(x, out=x)


def relu_(x: Array) -> Array:
    return x.clamp_min_(0) if isinstance(x, Tensor) else np.maximum(x, 0, out=x)


Step = Callable[[Array, Array, Array, Array, int], None]


def lstm(gates: Array, recalled: Array, state: Array, new: Array, n: int) -> None:
    """state and new (m, 2n): h, c.

    Gates i, f, g, o: c' = sigmoid(f) c + sigmoid(i) tanh(g), h' = sigmoid(o) tanh(c').
    """
    gates += recalled
    tanh_(gates)
    gates[:, : 2 * n] += 1
    gates[:, 3 * n :] += 1
    memory = gates[:, n : 2 * n] * state[:, n:]
    memory += gates[:, :n] * gates[:, 2 * n : 3 * n]
    memory *= 0.5
    new[:, n:] = memory
    tanh_(memory)
    memory *= gates[:, 3 * n :]
    memory *= 0.5
    new[:, :n] = memory


def gru(gates: Array, recalled: Array, state: Array, new: Array, n: int) -> None:
    """Gates r, z, n: v = tanh(x_n + sigmoid(r) (W h)_n), h' = v + sigmoid(z) (h - v)."""
    doors = gates[:, : 2 * n] + recalled[:, : 2 * n]
    tanh_(doors)
    doors += 1
    doors *= 0.5
    value = doors[:, :n] * recalled[:, 2 * n :]
    value += gates[:, 2 * n :]
    tanh_(value)
    kept = state[:, :n] - value
    kept *= doors[:, n:]
    kept += value
    new[:, :n] = kept


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
