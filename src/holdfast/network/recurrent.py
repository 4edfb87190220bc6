"""Tracing of recurrent layers: output shapes from a single time step, and packed sequences.

torch.export keeps a recurrent layer as one operator, but to compute the shape of its output it unrolls the
layer over time with a symbolic batch size, which takes seconds for a few hundred time steps. Here the layer
is traced as a custom operator with the same arguments, whose output shape follows from one time step;
afterwards torch's operator is put back into the graph. Arguments that torch refuses are still refused,
because torch evaluates the one time step.

torch packs sequences (torch.nn.utils.rnn.pack_padded_sequence) by the values of their lengths, which a graph cannot
represent. But inputs of different length never share a batch here, so no sequence is padded, and a recurrent layer
computes the same on the packed as on the plain sequences. During tracing the packed data are therefore (time, batch,
...). An assertion in the graph checks that the lengths are those of the input; it has no bound, so nothing is proved
where the lengths are shorter or depend on the input.
"""

import copy
from typing import Any, TypeVar

import torch
from torch import Tensor, fx, nn
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.nn.utils.rnn import PackedSequence
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


# The torch whose names of nodes were compared (tests/network/test_recurrent.py). Others compute one whole frame.
COMPARED = torch.__version__.startswith("2.13.")
BATCH = 2  # Rows for which output shapes are computed; any number would do.
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
        batch, frame = x.shape[1 - time], x.narrow(time, 0, min(1, x.shape[time]))
        found = _shapes_of_numbers(kernel, frame, hx, rest) if COMPARED else None
        if found is None:
            one, *others = kernel(frame, hx, *rest)
            outputs = one.new_empty((x.shape[time], one.shape[1 - time], one.shape[2]))
            return outputs.transpose(0, 1) if rest[-1] else outputs, *others
        (_, _, size), *states = found
        # A product is a symbol of its own. torch's kernels return such a one, except for a GRU; it decides the
        # names of nodes, and these the hash of the graph, which stored runs know.
        outputs = x.new_empty((x.shape[time], batch if kernel is torch.gru else batch * 1, size))
        return (
            outputs.transpose(0, 1) if rest[-1] else outputs,
            *(x.new_empty((layers, batch, width)) for layers, _, width in states),
        )

    return output_shapes


def _shapes_of_numbers(kernel: Any, frame: Tensor, hx: Any, rest: Any) -> list[torch.Size] | None:
    """The output shapes for one frame with a batch of two, from tensors without data; None if they cannot tell.

    With a symbolic batch size the same takes longer than the rest of the trace. They cannot tell if other sizes
    are symbolic, or if the tensors are not all on one device.
    """
    states, (weights, *settings) = list(hx) if isinstance(hx, list | tuple) else [hx], rest
    time, given = 1 if settings[-1] else 0, [frame, *states, *weights]
    axes = {id(frame): 1 - time, **{id(state): 1 for state in states}}
    sizes = [[BATCH if n == axes.get(id(t)) else size for n, size in enumerate(t.shape)] for t in given]
    if len({t.device for t in given}) > 1 or not all(type(size) is int for shape in sizes for size in shape):
        return None
    if any(state.dim() != 3 or state.shape[1] != frame.shape[1 - time] for state in states):
        return None
    with unset_fake_temporarily():
        x, *others = (
            torch.empty(shape, dtype=t.dtype, device="meta") for shape, t in zip(sizes, given, strict=True)
        )
        numbers, weights = others[: len(states)], others[len(states) :]
        return [
            out.shape for out in kernel(x, numbers if len(states) > 1 else numbers[0], weights, *settings)
        ]


for _name, _kernel in _KERNELS.items():
    torch.library.register_fake(f"holdfast::{_name}", _shapes(_kernel), lib=_LIBRARY)


# Message of the assertion in the graph. It is part of the hash of the traced program, so stored runs depend
# on its text.
NOT_FULL = (
    "sequences are packed with lengths that are not those of the input, which has no bound here; "
    "attacks still work"
)


class TraceableRecurrence(TorchFunctionMode):
    """A context in which recurrent layers of this thread call the custom operators of this file, and sequences are
    packed by operators that can be traced.

    It is only for tracing, because the custom operators compute no values. The recurrent layers of the model are
    changed permanently to accept packed sequences. torch itself is not changed, so other threads may pack and trace at
    the same time.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        for part in model.modules():
            if isinstance(part, nn.RNNBase) and not isinstance(part, torch.jit.ScriptModule):
                part.forward = _forward_of_packed(part)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        ours = _OURS.get(func)
        # The signature for packed sequences has the weights as its argument 3.
        is_unpacked = ours is not None and not kwargs and len(args) == 9 and isinstance(args[3], bool)
        called: Any = ours if is_unpacked else _PACKING.get(func, func)
        return called(*args, **(kwargs or {}))


def _pack(x: Tensor, lengths: Tensor, batch_first: bool) -> tuple[Tensor, Tensor]:
    frames = x.transpose(0, 1) if batch_first else x
    torch._assert_async((lengths == frames.shape[0]).all(), NOT_FULL)
    return frames, torch.full((frames.shape[0],), frames.shape[1], dtype=torch.int64)


def _pad(frames: Tensor, sizes: Tensor, batch_first: bool, value: float, total: int) -> tuple[Tensor, Tensor]:
    length = sizes.shape[0]
    lengths = torch.full((frames.shape[1],), length, dtype=torch.int64)
    if total > length:
        shape = (total - length, *frames.shape[1:])
        padding = torch.full(shape, value, dtype=frames.dtype, device=frames.device)
        frames = torch.cat([frames, padding])
    return frames.transpose(0, 1) if batch_first else frames, lengths


_PACKING: dict[Any, Any] = {torch._VF._pack_padded_sequence: _pack, torch._VF._pad_packed_sequence: _pad}


def _forward_of_packed(layer: nn.RNNBase) -> Any:
    """The layer's forward, extended to packed sequences of this module."""
    original = layer.forward

    def forward(x: Any, hx: Any = None) -> Any:
        if not isinstance(x, PackedSequence):
            return original(x, hx)
        first = None if hx is None else layer.permute_hidden(hx, x.sorted_indices)
        outputs, state = original(x.data.transpose(0, 1) if layer.batch_first else x.data, first)
        outputs = outputs.transpose(0, 1) if layer.batch_first else outputs
        return PackedSequence(outputs, *x[1:]), layer.permute_hidden(state, x.unsorted_indices)

    return forward


def put_back(graph: fx.Graph) -> None:
    """Replace the custom operators of a graph by torch's own."""
    for node in graph.nodes:
        node.target = _THEIRS.get(node.target, node.target)
