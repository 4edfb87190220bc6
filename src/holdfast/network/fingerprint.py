"""Hashes by which a run knows its model, its data and its question again."""

import hashlib
from pathlib import Path

import torch
from torch import Tensor, nn


def of_text(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def of_file(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def joined(main: str, *others: str) -> str:
    """One hash for all; where there are no others, the main one itself."""
    parts = [main, *filter(None, others)]
    return main if len(parts) == 1 else of_text("\n".join(parts))


def of_tensors(named: dict[str, Tensor], begin: str = "") -> str:
    """Names and bytes, in their order."""
    digest = hashlib.sha256(begin.encode())
    for name, value in named.items():
        digest.update(name.encode())
        digest.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def of_module(module: nn.Module) -> str:
    """The structure and the weights."""
    return of_tensors({key: value for key, value in module.state_dict().items() if isinstance(value, Tensor)}, begin=repr(module))
