"""The sizes of a model's intermediate values, computed on the meta device: a small file may require terabytes
of memory."""

import contextlib
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from holdfast.errors import UnreadableFile, UnsupportedLayer
from holdfast.memory_budget import available_bytes, format_bytes


class _Largest(TorchDispatchMode):
    """Records the size of the largest result of all operators, in `bytes`."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.bytes = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = function(*args, **(kwargs or {}))
        sizes = [
            value.untyped_storage().nbytes() for value in tree_leaves(found) if isinstance(value, Tensor)
        ]
        self.bytes = max([self.bytes, *sizes])
        return found


def check_sizes(module: nn.Module, example: Tensor, name: str) -> None:
    """Raise UnreadableFile if a single intermediate value would take more than half of the available
    memory, and UnsupportedLayer if an operator refuses the sizes that it meets."""
    weights = {
        key: value.to("meta")
        for key, value in (*module.named_parameters(), *module.named_buffers(remove_duplicate=False))
    }
    most = available_bytes() // 2
    # Models that cannot run without data are not checked; their errors appear when they are evaluated.
    refused = False
    with contextlib.suppress(Exception), torch.no_grad(), _Largest() as largest:
        try:
            functional_call(module, weights, (example.to("meta"),))
        except UnsupportedLayer:
            refused = True
    if largest.bytes > most:
        raise UnreadableFile(
            f"{name}: a value between its layers would take {format_bytes(largest.bytes)}, and "
            f"{format_bytes(most)} are available for one. The file is damaged, or needs a larger machine."
        )
    if refused:  # by an operator, or by torch, which lacks some operators without data
        with torch.no_grad():
            module(example)
