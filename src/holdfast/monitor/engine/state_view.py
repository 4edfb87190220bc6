"""What the engines need of a network: its states, and one step from each to the next. Found in the user's module, or not at all."""

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from holdfast.monitor.engine.recurrent import Recurrent
from holdfast.monitor.engine.streaming import OpenedStreaming
from holdfast.network import Network


class StateView(Protocol):
    """state (n, width); `Recurrent` says what each means. gates and recall are what elements and states bring into a step."""

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
        """(n, o) -> (n,): labels decided by no more than this are open."""
        ...

    def covers(self, sequence: Tensor, values: Tensor) -> bool:
        """Whether the view is the network on a sequence as long as this one, and on elements as large as these, too."""
        ...


def find(net: Network, sequences: Sequence[Tensor] = ()) -> StateView | None:
    """The network opened; None: a black box. sequences: some to check it on."""
    return OpenedStreaming.of(net, sequences) or Recurrent.of(net, sequences)
