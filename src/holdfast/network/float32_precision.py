"""Full float32 precision of cuDNN wherever a model is evaluated."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch

from holdfast.process_state import Registered


def _set_flags(requests: Mapping[int, Sequence[tuple[bool, bool]]]) -> Any:
    """Set cuDNN's flags to the innermost request of each thread.

    Between threads, the more restrictive request wins.
    """
    innermost = [own[-1] for own in requests.values()]
    return torch.backends.cudnn.set_flags(
        _enabled=all(enabled for enabled, _ in innermost),
        _benchmark=False,
        _deterministic=False,
        _allow_tf32=all(allow_tf32 for _, allow_tf32 in innermost),
    )


_registered = Registered(_set_flags, lambda before: torch.backends.cudnn.set_flags(*before))


def cudnn_flags(*, enabled: bool, allow_tf32: bool = True) -> AbstractContextManager[None]:
    """torch.backends.cudnn.flags for concurrent threads: the user's settings are restored when the last one
    leaves the context."""
    return _registered((enabled, allow_tf32))


def without_tf32() -> AbstractContextManager[None]:
    """cuDNN without TF32, which it uses by default.

    TF32 products have ten bits of mantissa. They would blur the decision boundary, and an input would have
    other outputs in a batch, where cuDNN uses TF32, than alone, where it does not.
    """
    return cudnn_flags(enabled=True, allow_tf32=False)
