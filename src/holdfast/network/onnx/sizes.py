"""How large do the values between the layers get? Asked without data, before anything is computed: a small file may call for terabytes."""

import contextlib
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from holdfast.errors import UnreadableFile
from holdfast.memory_budget import available_bytes, bytes_told


class _Largest(TorchDispatchMode):
    """bytes: of the largest result so far."""

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
    """UnreadableFile where one value would fill half of the memory that is left."""
    weights = {
        key: value.to("meta")
        for key, value in (*module.named_parameters(), *module.named_buffers(remove_duplicate=False))
    }
    most = available_bytes() // 2
    # What cannot be followed without data is left to the first real run, which tells its own errors.
    with contextlib.suppress(Exception), torch.no_grad(), _Largest() as largest:
        functional_call(module, weights, (example.to("meta"),))
    if largest.bytes > most:
        raise UnreadableFile(
            f"{name}: a value between its layers would take {bytes_told(largest.bytes)}, and {bytes_told(most)} are left for one. The file "
            f"is damaged, or needs a larger machine."
        )
