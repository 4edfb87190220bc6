"""Fast tracing of recurrent layers: output shapes are computed from a single time step.

torch.export keeps a recurrent layer as one operator, but to compute the shape of its output it unrolls the
layer over time with a symbolic batch size, which takes seconds for a few hundred time steps. Here the layer
is traced as a custom operator with the same arguments, whose output shape follows from one time step;
afterwards torch's operator is put back into the graph. Arguments that torch refuses are still refused,
because torch evaluates the one time step.
"""

import copy
from typing import Any, TypeVar

import torch
from torch import Tensor, fx, nn
from torch.overrides import TorchFunctionMode

Copied = TypeVar("Copied", bound=nn.Module)


def copy_module(module: Copied) -> Copied:
    """A deep copy in which the weights of every recurrent layer are contiguous on a GPU, as cuDNN requires.

    copy.deepcopy allocates each weight separately; then cuDNN would copy them together at every call, with a
    warning.
    """
    copied = copy.deepcopy(module)
    for part in copied.modules():
        if isinstance(part, nn.RNNBase) and not isinstance(part, torch.jit.ScriptModule):
            part.flatten_parameters()
    return copied


_REST = (
    "Tensor[] params, bool has_biases, int num_layers, float dropout, bool train, bool bidirectional, "
    "bool batch_first"
)
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
    """The output shapes of a kernel for x (time, batch, features), or with batch_first (batch, time,
    features)."""

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
    """A context in which recurrent layers call the custom operators of this file.

    It is only for tracing, because these operators compute no values.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        ours = _OURS.get(func)
        # The signature for packed sequences has the weights as its argument 3.
        is_unpacked = ours is not None and not kwargs and len(args) == 9 and isinstance(args[3], bool)
        called: Any = ours if is_unpacked else func
        return called(*args, **(kwargs or {}))


def put_back(graph: fx.Graph) -> None:
    """Replace the custom operators of a graph by torch's own."""
    for node in graph.nodes:
        node.target = _THEIRS.get(node.target, node.target)
