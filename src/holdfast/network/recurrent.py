"""Recurrent layers while a model is traced: the tracer walks through one frame, which tells the shapes of all.

torch.export keeps a recurrent layer whole, but to know the shape of its answer it unrolls the layer over time, with a symbol for the size
of the batch: seconds for some hundred frames. Here the layer is traced as an operator of our own with the same arguments, whose shape is
that of one frame, told as often as there are frames; then torch's own operator is put back into the graph. What torch would refuse in a
layer, it refuses in its one frame.
"""

import copy
from typing import Any, TypeVar

import torch
from torch import Tensor, fx, nn
from torch.overrides import TorchFunctionMode

Copied = TypeVar("Copied", bound=nn.Module)


def copy_module(module: Copied) -> Copied:
    """A deep copy in which the weights of every recurrent layer lie in one chunk on a GPU, as cuDNN wants them.

    copy.deepcopy gives each weight memory of its own; at every call cuDNN would copy them together again and warn of it.
    """
    copied = copy.deepcopy(module)
    for part in copied.modules():
        if isinstance(part, nn.RNNBase) and not isinstance(part, torch.jit.ScriptModule):
            part.flatten_parameters()
    return copied


_REST = "Tensor[] params, bool has_biases, int num_layers, float dropout, bool train, bool bidirectional, bool batch_first"
_LIBRARY = torch.library.Library("holdfast", "FRAGMENT")
_LIBRARY.define(f"lstm(Tensor input, Tensor[] hx, {_REST}) -> (Tensor, Tensor, Tensor)")
for _name in ("gru", "rnn_tanh", "rnn_relu"):
    _LIBRARY.define(f"{_name}(Tensor input, Tensor hx, {_REST}) -> (Tensor, Tensor)")

_KERNELS: dict[str, Any] = {
    "lstm": torch.lstm,
    "gru": torch.gru,
    "rnn_tanh": torch.rnn_tanh,
    "rnn_relu": torch.rnn_relu,
}
_OURS: dict[Any, Any] = {
    kernel: getattr(torch.ops.holdfast, name).default for name, kernel in _KERNELS.items()
}
_THEIRS: dict[Any, Any] = {
    ours: getattr(torch.ops.aten, ours._schema.name.partition("::")[2]).input for ours in _OURS.values()
}


def _shapes(kernel: Any) -> Any:
    """What the kernel answers to x (time, batch, features), or batch first, without its numbers."""

    def output_shapes(x: Tensor, hx: Any, *rest: Any) -> tuple[Tensor, ...]:
        time = 1 if rest[-1] else 0
        one, *states = kernel(x.narrow(time, 0, min(1, x.shape[time])), hx, *rest)
        batch, size = one.shape[1 - time], one.shape[2]
        outputs = one.new_empty((x.shape[time], batch, size))
        return outputs.transpose(0, 1) if rest[-1] else outputs, *states

    return output_shapes


for _name, _kernel in _KERNELS.items():
    torch.library.register_fake(f"holdfast::{_name}", _shapes(_kernel), lib=_LIBRARY)


class OneFrame(TorchFunctionMode):
    """Within, recurrent layers of whole sequences are the operators of this file. Only for a tracer: they have no numbers."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        ours = _OURS.get(func)
        whole = (
            ours is not None and not kwargs and len(args) == 9 and isinstance(args[3], bool)
        )  # a packed sequence has its weights there
        called: Any = ours if whole else func
        return called(*args, **(kwargs or {}))


def put_back(graph: fx.Graph) -> None:
    """torch's operators in the place of ours."""
    for node in graph.nodes:
        node.target = _THEIRS.get(node.target, node.target)
