"""The recurrent classifiers unrolled, for bounding tools without recurrent layers; each frame is an input."""

from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.certify.nets import Reader


class Unrolled(nn.Module):
    """Frames as separate arguments, each (batch, pixels) -> (batch, classes).

    The first step has no state, so none is fed.
    """

    def __init__(self, reader: Reader, kind: str) -> None:
        super().__init__()
        (read, keep), (read_bias, keep_bias) = _weights(reader)
        self.kind, self.head = kind, reader.head
        self.read, self.keep = (
            _linear(read, read_bias),
            _linear(keep, torch.zeros_like(keep_bias) if kind != "gru" else keep_bias),
        )
        if kind == "gru":
            self.start = keep_bias.detach().clone()
        else:
            self.read.bias.data += keep_bias

    def forward(self, *frames: Tensor) -> Tensor:
        state: tuple[Tensor, ...] | None = None
        for frame in frames:
            state = getattr(self, f"_{self.kind}")(self.read(frame), state)
        assert state is not None
        logits: Tensor = self.head(state[0])
        return logits

    def _rnn(self, y: Tensor, state: tuple[Tensor, ...] | None) -> tuple[Tensor, ...]:
        return (torch.tanh(y if state is None else y + self.keep(state[0])),)

    def _lstm(self, y: Tensor, state: tuple[Tensor, ...] | None) -> tuple[Tensor, ...]:
        i, f, g, o = self._parts(y if state is None else y + self.keep(state[0]), 4)
        c = torch.sigmoid(i) * torch.tanh(g)
        if state is not None:
            c = torch.sigmoid(f) * state[1] + c
        return torch.sigmoid(o) * torch.tanh(c), c

    def _gru(self, y: Tensor, state: tuple[Tensor, ...] | None) -> tuple[Tensor, ...]:
        (yr, yz, yn), (r, z, n) = self._parts(y, 3), self.start.chunk(3)
        if state is not None:
            r, z, n = self._parts(self.keep(state[0]), 3)
        new = torch.tanh(yn + torch.sigmoid(yr + r) * n)
        update = yz + z
        old = 0 if state is None else torch.sigmoid(update) * state[0]
        return (torch.sigmoid(-update) * new + old,)

    def _parts(self, y: Tensor, count: int) -> list[Tensor]:
        size = self.keep.in_features
        return [y[:, k * size : (k + 1) * size] for k in range(count)]


def _weights(reader: Reader) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    cell: Any = reader.cell
    return (cell.weight_ih_l0.detach(), cell.weight_hh_l0.detach()), (
        cell.bias_ih_l0.detach(),
        cell.bias_hh_l0.detach(),
    )


def _linear(weight: Tensor, bias: Tensor) -> nn.Linear:
    layer = nn.Linear(weight.shape[1], weight.shape[0], dtype=weight.dtype)
    layer.load_state_dict({"weight": weight.clone(), "bias": bias.clone()})
    return layer
