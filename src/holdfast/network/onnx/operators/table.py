"""Nodes of ONNX graphs, and the tables of the functions that compute them.

An operator is a function of the node and its inputs. The types of its signature determine the form of each
input:

    Tensor             the value, as a tensor
    Static a numpy array of Python numbers (symbolic while torch.export traces): shapes, axes, pads Tensor |
    int a Python number if the value is a single number known at import, else a tensor

The return type determines whether the result is a tensor, a tuple of tensors (several outputs) or a Static.
"""

import enum
import inspect
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
from torch import Tensor

from holdfast.errors import UnsupportedLayer

Static: TypeAlias = npt.NDArray[np.object_]

Function = TypeVar("Function", bound=Callable[..., Any])


class Kind(enum.Enum):
    """The form in which a value is passed to an operator."""

    TENSOR = "tensor"
    STATIC = "static"
    NUMBER = "number where it is one, else tensor"


@dataclass(frozen=True)
class OnnxNode:
    """One node of the graph, without protobuf. An empty name in `inputs` or `outputs` is an omitted one."""

    operator: str
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    opset: int
    attributes: Mapping[str, Any] = field(default_factory=dict)

    def integer(self, key: str, default: int) -> int:
        return int(self.attributes.get(key, default))

    def number(self, key: str, default: float) -> float:
        """A floating-point attribute, rounded to float32 as in ONNX, where also defaults are float32."""
        return float(np.float32(self.attributes.get(key, default)))

    def text(self, key: str, default: str) -> str:
        return str(self.attributes.get(key, default))

    def integers(self, key: str, default: Iterable[int]) -> list[int]:
        return [int(value) for value in self.attributes.get(key, default)]

    def has_input(self, position: int) -> bool:
        return position < len(self.inputs) and self.inputs[position] != ""

    def has_output(self, position: int) -> bool:
        return position < len(self.outputs) and self.outputs[position] != ""

    def unsupported_error(self, what: str) -> UnsupportedLayer:
        return UnsupportedLayer(f"{self.operator} node {self.name!r}: {what} is not supported.")


@dataclass(frozen=True)
class Operator:
    """A function with the kinds of its inputs. The last kind repeats if the function takes `*values`."""

    run: Callable[..., Any]
    kinds: tuple[Kind, ...]
    repeats: bool
    answers_static: bool
    answers_many: bool

    def kind(self, position: int) -> Kind | None:
        """The kind of the input at this position; None if the operator has no such input."""
        if position < len(self.kinds):
            return self.kinds[position]
        return self.kinds[-1] if self.repeats else None


def run_operator(node: OnnxNode, operator: Operator, inputs: Sequence[Any]) -> tuple[Any, ...]:
    """Return the results of an operator. UnsupportedLayer where torch has no kernel for these types."""
    try:
        answer = operator.run(node, *inputs)
    except NotImplementedError as error:  # torch raises it, and only for a missing kernel.
        raise node.unsupported_error(f"something that torch does not have ({error})") from error
    return tuple(answer) if operator.answers_many else (answer,)


# The operators on tensors.
OPERATORS: dict[str, Operator] = {}

# The operators on Static values, for shape arithmetic, which must be done in Python numbers.
STATICS: dict[str, Operator] = {}

# Operators that are rewritten as several others. Nodes that depend only on constants are computed at import.
REWRITES: dict[str, Callable[[OnnxNode], list[OnnxNode]]] = {}


def operator(*names: str) -> Callable[[Function], Function]:
    """Register a function that computes the operators of these names."""
    return _adder(OPERATORS, names, _describe_operator)


def static(*names: str) -> Callable[[Function], Function]:
    """Register a function that computes these operators if every input is Static."""
    return _adder(STATICS, names, _describe_operator)


def rewrite(*names: str) -> Callable[[Function], Function]:
    """Register a function that rewrites these operators as others."""
    return _adder(REWRITES, names, lambda function: function)


def _adder(
    table: dict[str, Any], names: tuple[str, ...], entry: Callable[[Any], Any]
) -> Callable[[Function], Function]:
    def add(function: Function) -> Function:
        for name in names:
            if name in table:
                raise ValueError(f"operator {name} is registered twice: {table[name]} and {function}")
            table[name] = entry(function)
        return function

    return add


def _describe_operator(function: Callable[..., Any]) -> Operator:
    hints = typing.get_type_hints(function)
    _, *parameters = inspect.signature(function).parameters.values()  # without the node
    returned = hints["return"]
    return Operator(
        run=function,
        kinds=tuple(_kind(hints[parameter.name]) for parameter in parameters),
        repeats=any(parameter.kind is parameter.VAR_POSITIONAL for parameter in parameters),
        answers_static=returned == Static,
        answers_many=typing.get_origin(returned) is tuple,
    )


def _kind(hint: Any) -> Kind:
    union = typing.get_origin(hint) in (typing.Union, types.UnionType)
    members = typing.get_args(hint) if union else (hint,)
    if Tensor not in members:
        return Kind.STATIC
    return Kind.NUMBER if int in members else Kind.TENSOR
