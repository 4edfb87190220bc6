"""Full float32 wherever a model is asked."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch

from holdfast.process_state import Registered


def _set_flags(requests: Mapping[int, Sequence[tuple[bool, bool]]]) -> Any:
    """What the innermost request of each thread wants; between threads, whoever wants less of cuDNN is followed: proofs do without it."""
    innermost = [own[-1] for own in requests.values()]
    return torch.backends.cudnn.set_flags(
        _enabled=all(enabled for enabled, _ in innermost),
        _benchmark=False,
        _deterministic=False,
        _allow_tf32=all(allow_tf32 for _, allow_tf32 in innermost),
    )


_registered = Registered(_set_flags, lambda before: torch.backends.cudnn.set_flags(*before))


def cudnn_flags(*, enabled: bool, allow_tf32: bool = True) -> AbstractContextManager[None]:
    """torch.backends.cudnn.flags, for threads that overlap: the user's settings are back when the last one is done."""
    return _registered((enabled, allow_tf32))


def in_full() -> AbstractContextManager[None]:
    """cuDNN without the shortened products of TF32, which it takes by itself. They keep ten bits: they would blur the boundary that is
    looked for, and an input in a batch, whose products they are, would be answered otherwise than alone, where they do not apply."""
    return cudnn_flags(enabled=True, allow_tf32=False)
