"""Tracing of models that pack sequences (torch.nn.utils.rnn.pack_padded_sequence).

torch packs by the values of the lengths, which a graph cannot represent. But inputs of different length never
share a batch here, so no sequence is padded, and a recurrent layer computes the same on the packed as on the
plain sequences. During tracing the packed data are therefore (time, batch, ...). An assertion in the graph
checks that the lengths are those of the input; it has no bound, so nothing is proved where the lengths are
shorter or depend on the input.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence
from torch.overrides import TorchFunctionMode

# Message of the assertion in the graph. It is part of the hash of the traced program, so stored runs depend
# on its text.
NOT_FULL = (
    "sequences are packed with lengths that are not those of the input, which has no bound here; "
    "attacks still work"
)


class FullSequences(TorchFunctionMode):
    """A context in which this thread packs unpadded sequences with operators that can be traced.

    The recurrent layers of the model are changed permanently to accept the result. torch itself is not
    changed, so other threads may pack and trace at the same time.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        for part in model.modules():
            if isinstance(part, nn.RNNBase) and not isinstance(part, torch.jit.ScriptModule):
                part.forward = _forward_of_packed(part)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        called: Any = _TRACEABLE.get(func, func)
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


_TRACEABLE: dict[Any, Any] = {torch._VF._pack_padded_sequence: _pack, torch._VF._pad_packed_sequence: _pad}


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
