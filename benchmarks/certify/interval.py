"""Plain interval bound propagation (IBP), the baseline of the tables. Float64, no rounding-error bounds."""

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from benchmarks.certify.nets import Reader
from holdfast.region.norms import dual, norm

Interval = tuple[Tensor, Tensor]


def radii(
    reader: Reader, kind: str, x: Tensor, y: Tensor, targets: Tensor, p: float, guess: Tensor
) -> tuple[Tensor, float]:
    """Largest radius (batch,) that IBP proves with every frame in its own ball, and CPU seconds for all
    inputs.
    """
    x = x.double()
    weight, bias = reader.head.weight.detach().double(), reader.head.bias.detach().double()
    row, offset = weight[y] - weight[targets], bias[y] - bias[targets]

    def margin(radius: Tensor) -> Tensor:
        low, high = last_state(reader, kind, x, radius, p)
        return torch.minimum(row * low, row * high).sum(1) + offset

    began = time.process_time()
    found = bisect(margin, guess.double())
    return found, time.process_time() - began


def bisect(margin: Callable[[Tensor], Tensor], guess: Tensor, steps: int = 20) -> Tensor:
    """Largest radius below the guess with a positive margin, for each row of the batch."""
    low, high = torch.zeros_like(guess), guess
    for _ in range(steps):
        middle = (low + high) / 2
        proved = margin(middle) > 0
        low, high = torch.where(proved, middle, low), torch.where(proved, high, middle)
    return low


def last_state(reader: Reader, kind: str, x: Tensor, radius: Tensor, p: float) -> Interval:
    """Interval bounds (batch, hidden) of the state after the last frame, for x (batch, frames, pixels),
    radius (batch,).
    """
    cell: Any = reader.cell
    read, keep = cell.weight_ih_l0.detach().double(), cell.weight_hh_l0.detach().double()
    first, second = cell.bias_ih_l0.detach().double(), cell.bias_hh_l0.detach().double()
    spread = radius[:, None] * norm(read, dual(p))
    zero = torch.zeros(len(x), keep.shape[1], dtype=torch.float64)
    state, carry = (zero, zero), (zero, zero)
    for frame in x.unbind(1):
        middle = frame @ read.t() + first
        seen, kept = (middle - spread, middle + spread), _affine(keep, second, state)
        if kind == "rnn":
            state = _rising(torch.tanh, _plus(seen, kept))
        elif kind == "lstm":
            i, f, g, o = zip(*(end.chunk(4, 1) for end in _plus(seen, kept)), strict=True)
            new = _times(_rising(torch.sigmoid, i), _rising(torch.tanh, g))
            carry = _plus(_times(_rising(torch.sigmoid, f), carry), new)
            state = _times(_rising(torch.sigmoid, o), _rising(torch.tanh, carry))
        else:
            (sr, sz, sn), (kr, kz, kn) = (
                list(zip(*(end.chunk(3, 1) for end in v), strict=True)) for v in (seen, kept)
            )
            reset, update = _rising(torch.sigmoid, _plus(sr, kr)), _rising(torch.sigmoid, _plus(sz, kz))
            new = _rising(torch.tanh, _plus(sn, _times(reset, kn)))
            # z h + (1 - z) n lies between h and n, and is a sum of two products
            summed = _plus(_times(update, state), _times((1 - update[1], 1 - update[0]), new))
            low, high = torch.minimum(state[0], new[0]), torch.maximum(state[1], new[1])
            state = torch.maximum(summed[0], low), torch.minimum(summed[1], high)
    return state


def _rising(function: Callable[[Tensor], Tensor], v: Interval) -> Interval:
    return function(v[0]), function(v[1])


def _plus(a: Interval, b: Interval) -> Interval:
    return a[0] + b[0], a[1] + b[1]


def _times(a: Interval, b: Interval) -> Interval:
    corners = torch.stack([a[i] * b[j] for i in (0, 1) for j in (0, 1)])
    return corners.amin(0), corners.amax(0)


def _affine(weight: Tensor, bias: Tensor, v: Interval) -> Interval:
    middle, spread = (v[0] + v[1]) / 2 @ weight.t() + bias, (v[1] - v[0]) / 2 @ weight.abs().t()
    return middle - spread, middle + spread
