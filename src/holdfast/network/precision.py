"""Full float32 wherever a model is asked."""

from contextlib import AbstractContextManager

import torch


def in_full() -> AbstractContextManager[None]:
    """cuDNN without the shortened products of TF32, which it takes by itself. They keep ten bits: they would blur the boundary that is
    looked for, and an input in a batch, whose products they are, would be answered otherwise than alone, where they do not apply."""
    return torch.backends.cudnn.flags(enabled=True, allow_tf32=False)
