"""A float64 version of a network, for bounds and counterexamples that rounding must not decide."""

import contextlib
from typing import TYPE_CHECKING

import torch
from torch import Tensor, fx, nn

from holdfast.network.adapter import Adapter
from holdfast.network.output_comparison import same_by_rounding
from holdfast.network.recurrent import copy_module
from holdfast.network.trace import as_plain_module, convert_graph, rewrite

if TYPE_CHECKING:
    from holdfast.network.network import Network


def float64_network(net: "Network", x: Tensor) -> "Network | None":
    """The network in float64 for inputs shaped like x, or None if neither its module nor its traced graph can
    be converted."""
    for convert in (_convert_module, _convert_graph):
        with contextlib.suppress(Exception):
            converted = net.around(convert(net, x))
            converted.dtype = torch.float64
            probe = x[:2].to(net.device, net.dtype)
            # A layer that rounds to float32 inside shows as a difference.
            if same_by_rounding(net(probe), converted(probe)):
                return converted
    return None


def _convert_module(net: "Network", x: Tensor) -> nn.Module:
    copied = copy_module(net.module).double()
    for part in copied.modules():
        if isinstance(part, fx.GraphModule):
            rewrite(part, dtype=torch.float64, device=net.device, own=net.dtype)
    return copied


def _convert_graph(net: "Network", x: Tensor) -> nn.Module:
    program = as_plain_module(net.program(x))
    graph = convert_graph(program, dtype=torch.float64, device=net.device, own=net.dtype)
    return Adapter(graph)
