"""A network and a function of its outputs as one network with one output: what is proved of it is proved of the function."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from holdfast.errors import HoldfastError
from holdfast.network.adapter import Adapter
from holdfast.network.network import Network
from holdfast.network.trace import as_plain_module


class Scored(nn.Module):
    """(n, *shape) -> (n, 1)."""

    def __init__(self, model: nn.Module, score: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.model = model
        self.score = score

    def forward(self, x: Tensor) -> Tensor:
        return self.score(self.model(x)).unsqueeze(-1)


def append_score(net: Network, score: Callable[[Tensor], Tensor], x: Tensor) -> Network | None:
    """score (n, outputs) -> (n,), written in torch; None where no graph of it can be made (numpy inside, a branch on values, a black box).

    x  inputs to ask about: the graph must say what the function says.
    """
    if not net.differentiable:
        return None
    whole = net.around(Scored(net.module, score))
    whole.name = f"a score of {net.name}"
    probe = x[:2].to(net.device, net.dtype)
    try:
        graph = Adapter(as_plain_module(whole.program(probe)))
        same = torch.allclose(graph(probe), whole.module(probe), rtol=1e-4, atol=1e-6)
    except (HoldfastError, RuntimeError, ValueError, TypeError):
        return None
    return whole if same else None
