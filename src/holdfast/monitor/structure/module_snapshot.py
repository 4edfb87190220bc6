"""Check that a call leaves a module unchanged.

State kept between calls would make answers depend on earlier calls.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from holdfast.network.statefulness import generators

ATTRIBUTE_DEPTH = 4  # Nesting depth to which attributes are followed (chosen by hand).


class ModuleSnapshot:
    """A module's current state: its tensors, its attributes and their contents."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.tensors = [
            (tensor, tensor.detach().clone()) for tensor in (*module.parameters(), *module.buffers())
        ]
        self.kept, self.dice = _comparable_copy(module, ATTRIBUTE_DEPTH), generators()

    def check(self, end: Callable[[str], Any]) -> None:
        """Call `end` with the reason if something has changed."""
        if (
            not all(torch.equal(now, before) for now, before in self.tensors)
            or _comparable_copy(self.module, ATTRIBUTE_DEPTH) != self.kept
        ):
            end("keeps something from one call to the next")
        if generators() != self.dice:
            end("draws random numbers")


def _comparable_copy(value: Any, depth: int) -> Any:
    """Return a value that compares equal as long as nothing was replaced or modified."""
    if value is None or isinstance(value, bool | int | str | bytes):
        return value
    if isinstance(value, float | complex):
        return repr(value)
    if isinstance(value, Tensor):
        return id(value), value._version
    if isinstance(value, np.ndarray):
        return value.tobytes()
    if depth and isinstance(value, list | tuple):
        return [id(value), *(_comparable_copy(part, depth - 1) for part in value)]
    if depth and isinstance(value, dict):
        return [id(value), *((str(key), _comparable_copy(part, depth - 1)) for key, part in value.items())]
    if isinstance(value, nn.Module):
        return [
            id(value),
            *((key, _comparable_copy(part, ATTRIBUTE_DEPTH)) for key, part in vars(value).items()),
        ]
    if depth and hasattr(value, "__dict__") and not isinstance(value, type) and not callable(value):
        return [id(value), *((key, _comparable_copy(part, depth - 1)) for key, part in vars(value).items())]
    return id(value) if not isinstance(value, set | frozenset) else sorted(map(repr, value))
