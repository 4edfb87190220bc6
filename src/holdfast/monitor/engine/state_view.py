"""Interface of an opened network: its states, and one step from each to the next."""

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from holdfast.monitor.engine.recurrent import Recurrent
from holdfast.monitor.engine.streaming import OpenedStreaming
from holdfast.network import Network


class StateView(Protocol):
    """A network with visible states (n, width).

    `gates` and `recall` are the contributions of element and state to a step.
    """

    width: int
    tokens: int | None
    dtype: torch.dtype
    device: torch.device

    def start(self, count: int) -> Tensor: ...

    def gates(self, elements: Tensor) -> Tensor: ...

    def recall(self, state: Tensor) -> Tensor: ...

    def step(self, gates: Tensor, recalled: Tensor, state: Tensor) -> Tensor: ...

    def advance(self, state: Tensor, elements: Tensor) -> Tensor: ...

    def outputs(self, state: Tensor) -> Tensor: ...

    def doubt(self, outputs: Tensor) -> Tensor:
        """(n, o) -> (n,): a label with a margin of at most this is undecided."""
        ...

    def covers(self, sequence: Tensor, values: Tensor) -> bool:
        """Whether the view is valid for this length of sequence and size of elements."""
        ...


def open_network(net: Network, sequences: Sequence[Tensor] = ()) -> StateView | None:
    """Open the network; None if it is a black box. sequences: examples for the check."""
    return OpenedStreaming.of(net, sequences) or Recurrent.of(net, sequences)
