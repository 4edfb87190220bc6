"""The equations of `network.cells` in every algebra, compared with torch.nn's cells in float64."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import holdfast as hf
from holdfast.hardening.cells import STEPS
from holdfast.monitor.engine.cells import layers_of
from holdfast.network import cells
from holdfast.region import Box

KINDS = {"lstm": nn.LSTM, "gru": nn.GRU, "rnn_tanh": nn.RNN, "rnn_relu": nn.RNN}
HIDDEN, FEATURES, FRAMES = 5, 3, 4


def recurrent(kind: str, *, bias: bool = True) -> Any:
    torch.manual_seed(len(kind))
    more = {"nonlinearity": "relu"} if kind == "rnn_relu" else {}
    model = KINDS[kind](FEATURES, HIDDEN, batch_first=True, bias=bias, **more).double().eval()
    for weight in model.parameters():
        weight.data.mul_(3)  # gates far from their linear part
    return model


def weights_of(model: Any) -> list[Tensor]:
    return [weight.detach() for weight in model.all_weights[0]]


def states_of(model: Any, x: Tensor) -> tuple[Tensor, Tensor | None]:
    """Hidden states of all frames (batch, frames, hidden), and the last memory of an LSTM."""
    with torch.no_grad():
        outputs, last = model(x)
    return outputs, last[1][0] if isinstance(last, tuple) else None


class Plain:
    """The algebra of float64 tensors."""

    def sigmoid(self, value: Tensor) -> Tensor:
        return value.sigmoid()

    def tanh(self, value: Tensor) -> Tensor:
        return value.tanh()

    def add(self, a: Tensor, b: Tensor) -> Tensor:
        return a + b

    def multiply_gate(self, gate: Tensor, value: Tensor) -> Tensor:
        return gate * value

    def blend(self, gate: Tensor, state: Tensor, new: Tensor) -> Tensor:
        return gate * state + (1 - gate) * new


def inputs(batch: int = 6) -> Tensor:
    return torch.randn(
        batch, FRAMES, FEATURES, dtype=torch.float64, generator=torch.Generator().manual_seed(3)
    )


def test_the_equations_are_those_of_torch() -> None:
    x, zero = inputs(), torch.zeros(6, HIDDEN, dtype=torch.float64)
    lstm, gru = recurrent("lstm"), recurrent("gru")
    h, c = zero, zero
    w_x, w_h, b_x, b_h = weights_of(lstm)
    for t in range(FRAMES):
        h, c = cells.lstm(
            Plain(), *(x[:, t] @ w_x.T + b_x + h @ w_h.T + b_h).chunk(cells.NUM_LSTM_GATES, 1), c
        )
    hidden, memory = states_of(lstm, x)
    torch.testing.assert_close((h, c), (hidden[:, -1], memory))
    h = zero
    w_x, w_h, b_x, b_h = weights_of(gru)
    for t in range(FRAMES):
        (r_x, z_x, n_x), (r_h, z_h, n_h) = (
            part.chunk(cells.NUM_GRU_GATES, 1) for part in (x[:, t] @ w_x.T + b_x, h @ w_h.T + b_h)
        )
        h = cells.gru(Plain(), r_x + r_h, z_x + z_h, n_x, n_h, h)
    torch.testing.assert_close(h, states_of(gru, x)[0][:, -1])


class LastState(nn.Module):
    def __init__(self, core: nn.Module) -> None:
        super().__init__()
        self.core = core

    def forward(self, x: Tensor) -> Tensor:
        return self.core(x)[0][:, -1]


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_the_graph_computes_the_cell(kind: str, bias: bool) -> None:
    """Over a single point, lower and upper bounds are the output up to rounding, and on either side of it."""
    model, x = recurrent(kind, bias=bias), inputs(2)
    bounds = hf.bounds(hf.Network.from_torch(LastState(model).eval()), Box.between(x, x))
    truth = states_of(model, x)[0][:, -1]
    assert bool((bounds.lower <= truth + 1e-14).all())
    assert bool((bounds.upper >= truth - 1e-14).all())
    torch.testing.assert_close(bounds.lower, truth, rtol=0, atol=1e-9)
    torch.testing.assert_close(bounds.upper, truth, rtol=0, atol=1e-9)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("width", [0.0, 0.3])
def test_intervals_of_the_cell_contain_it(kind: str, width: float) -> None:
    model, x = recurrent(kind), inputs()
    w = weights_of(model)
    shift = w[2] if kind == "gru" else w[2] + w[3]
    zero = torch.zeros(6, HIDDEN, dtype=torch.float64)
    state = tuple((zero, zero) for _ in range(2 if kind == "lstm" else 1))
    step = STEPS[getattr(torch.ops.aten, kind).input]
    for t in range(FRAMES):
        ball = x[:, t] @ w[0].T + shift, torch.full_like(x[:, t], width) @ w[0].abs().T
        state = step(ball, state, w)
    low, high = state[0]
    for sign in (-1, 0, 1):
        truth = states_of(model, x + sign * width)[0][:, -1]
        assert bool((low <= truth + 1e-12).all())
        assert bool((truth - 1e-12 <= high).all())
    if width == 0:
        torch.testing.assert_close(low, high, rtol=0, atol=1e-12)


@dataclass
class Arrays:
    """How the monitor stores gates: numpy arrays on a CPU, tensors on a GPU."""

    numpy: bool

    def of(self, value: Tensor) -> Any:
        return value.numpy().copy() if self.numpy else value.clone()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("numpy", [True, False])
def test_the_monitor_computes_the_cell_in_place(kind: str, numpy: bool) -> None:
    model, x, arrays = recurrent(kind), inputs(), Arrays(numpy)
    (layer,) = layers_of(model)
    state = arrays.of(torch.zeros(6, layer.width, dtype=torch.float64))
    for t in range(FRAMES):
        recalled = torch.as_tensor(state[:, : layer.size]) @ layer.w_rec.T
        if layer.b_rec is not None:
            recalled = recalled + layer.b_rec
        before, new = arrays.of(torch.as_tensor(state)), arrays.of(torch.as_tensor(state))
        gates = arrays.of(x[:, t] @ layer.w_in.T + layer.b_in)
        layer.step(gates, arrays.of(recalled), state, new, layer.size)
        assert np.array_equal(np.asarray(state), np.asarray(before))  # the old state is read only
        state = new
    hidden, memory = states_of(model, x)
    torch.testing.assert_close(torch.as_tensor(state)[:, : layer.size], hidden[:, -1])
    if memory is not None:
        torch.testing.assert_close(torch.as_tensor(state)[:, layer.size :], memory)
