"""The inputs, outputs and inner values of a model that are joined to one flat input and one flat output."""

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class FlatTensor:
    """A tensor of a model: its name, or "" for the next input or output of the file, and its declared shape."""

    name: str
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        return math.prod(self.shape)


@dataclass(frozen=True)
class FlatInterface:
    """The inputs that are joined, the outputs that are joined, and inner values after these."""

    inputs: tuple[FlatTensor, ...]
    outputs: tuple[FlatTensor, ...]
    hidden: tuple[FlatTensor, ...] = ()
