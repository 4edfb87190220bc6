"""Packed sequences while a model is traced. Inputs of one length share a batch, so nothing is padded: packing only lines the frames up.

torch packs by the lengths' values, which no graph can show. For full lengths it is the frames of all rows, time after time, and a
recurrent layer answers to them as it does to the sequences as they were. So here (time, batch, ...) stands for them. That the lengths are
full is a check inside the graph, by which nothing is proved where they are not, or where they depend on the input.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence
from torch.overrides import TorchFunctionMode

NOT_FULL = "sequences are packed with lengths that are not those of the input, which has no bound here; attacks still work"


class FullSequences(TorchFunctionMode):
    """Within, this thread packs full sequences only, by operators that can be traced; and the model's recurrent layers take them. The model
    is changed for good. Nothing of torch is changed, so other threads may pack and trace at the same time.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        for part in model.modules():
            if isinstance(part, nn.RNNBase) and not isinstance(part, torch.jit.ScriptModule):
                part.forward = _of_packed(part)

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
        frames = torch.cat(
            [
                frames,
                torch.full(
                    (total - length, *frames.shape[1:]), value, dtype=frames.dtype, device=frames.device
                ),
            ]
        )
    return frames.transpose(0, 1) if batch_first else frames, lengths


_TRACEABLE: dict[Any, Any] = {torch._VF._pack_padded_sequence: _pack, torch._VF._pad_packed_sequence: _pad}


def _of_packed(layer: nn.RNNBase) -> Any:
    """The layer's forward, which turns a packed sequence into its frames and back."""
    plain = layer.forward

    def forward(x: Any, hx: Any = None) -> Any:
        if not isinstance(x, PackedSequence):
            return plain(x, hx)
        first = None if hx is None else layer.permute_hidden(hx, x.sorted_indices)
        answer, state = plain(x.data.transpose(0, 1) if layer.batch_first else x.data, first)
        answer = answer.transpose(0, 1) if layer.batch_first else answer
        return PackedSequence(answer, *x[1:]), layer.permute_hidden(state, x.unsorted_indices)

    return forward
