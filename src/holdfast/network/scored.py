"""A network followed by a function of its outputs, as one network with one output.

Its bounds are bounds of the function.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from holdfast.errors import HoldfastError
from holdfast.network.adapter import Adapter
from holdfast.network.network import Network
from holdfast.network.trace import as_plain_module

# Largest difference between the graph and the function that is attributed to rounding (chosen by hand).
RELATIVE_TOLERANCE = 1e-4
ABSOLUTE_TOLERANCE = 1e-6


class Scored(nn.Module):
    """The model followed by a score, (n, *shape) -> (n, 1)."""

    def __init__(self, model: nn.Module, score: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.model = model
        self.score = score

    def forward(self, x: Tensor) -> Tensor:
        return self.score(self.model(x)).unsqueeze(-1)


def append_score(net: Network, score: Callable[[Tensor], Tensor], x: Tensor) -> Network | None:
    """The network followed by a score.

    Returns None if it has no traced graph (numpy inside, a branch on values, a black box).

    Args:
        score: (n, outputs) -> (n,), written in torch.
        x: inputs on which the traced graph must agree with the function.
    """
    if not net.differentiable:
        return None
    scored = net.around(Scored(net.module, score))
    scored.name = f"a score of {net.name}"
    probe = x[:2].to(net.device, net.dtype)
    try:
        graph = Adapter(as_plain_module(scored.program(probe)))
        same = torch.allclose(
            graph(probe), scored.module(probe), rtol=RELATIVE_TOLERANCE, atol=ABSOLUTE_TOLERANCE
        )
    except (HoldfastError, RuntimeError, ValueError, TypeError):
        return None
    return scored if same else None
