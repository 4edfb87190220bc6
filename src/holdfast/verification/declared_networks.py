"""The networks that a file of VNN-LIB 2 declares: their tensors, and where the elements of these are counted."""

import math
from dataclasses import dataclass
from typing import Literal

Role = Literal["input", "hidden", "output"]


@dataclass(frozen=True)
class DeclaredTensor:
    """An input, output or inner value of a declared network.

    Attributes:
        kind: its element type as written, such as float32 or real.
        onnx_name: its name in the ONNX file, if the declaration gives one; else the position counts.
        line: of the declaration.
        begin: number of its first element among all inputs of the file, or among all outputs and inner values.
    """

    name: str
    role: Role
    kind: str
    shape: tuple[int, ...]
    onnx_name: str
    line: int
    begin: int = 0

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    def index_of(self, number: int) -> str:
        """The element with this number in the file, as the file writes it."""
        rest, indices = number - self.begin, list[int]()
        for size in reversed(self.shape):
            indices.insert(0, rest % size)
            rest //= size
        return f"{self.name}[{','.join(map(str, indices))}]" if self.shape else self.name


@dataclass(frozen=True)
class DeclaredRelation:
    """(equal-to name) or (isomorphic-to name) in the declaration of a network."""

    relation: Literal["equal-to", "isomorphic-to"]
    name: str


Declaration = DeclaredTensor | DeclaredRelation


@dataclass(frozen=True)
class DeclaredNetwork:
    """A declared network; `equal_to` and `isomorphic_to` are "" or the name of an earlier one."""

    name: str
    inputs: tuple[DeclaredTensor, ...]
    hidden: tuple[DeclaredTensor, ...]
    outputs: tuple[DeclaredTensor, ...]
    line: int
    equal_to: str = ""
    isomorphic_to: str = ""

    @property
    def tensors(self) -> tuple[DeclaredTensor, ...]:
        return (*self.inputs, *self.hidden, *self.outputs)

    @property
    def is_plain(self) -> bool:
        """Whether it has one input and one output, neither named, and nothing else is read."""
        named = any(tensor.onnx_name for tensor in self.tensors)
        return len(self.inputs) == len(self.outputs) == 1 and not self.hidden and not named
