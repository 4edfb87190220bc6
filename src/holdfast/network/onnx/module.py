"""The torch module of an imported ONNX file, which calls its operators one after another."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeAlias

import torch
from torch import Tensor, nn

from holdfast.errors import BadInput, UnsupportedLayer
from holdfast.network.onnx.operators.static import flat
from holdfast.network.onnx.operators.table import OPERATORS, STATICS, Kind, OnnxNode, Static, run_operator

Value: TypeAlias = Tensor | Static


@dataclass(frozen=True)
class Port:
    """An input or output of the graph. None in the shape is an axis of any size."""

    name: str
    shape: tuple[int | None, ...]
    dtype: torch.dtype


@dataclass(frozen=True)
class Environment:
    """The values during one evaluation.

    `working` is an empty tensor with the module's floating dtype and device.
    """

    values: dict[str, Value]
    constants: Mapping[str, Tensor]
    working: Tensor

    def tensor(self, value: Value) -> Tensor:
        """The value as a tensor on the module's device, floats in its dtype.

        Symbolic numbers of the tracer are kept.
        """
        if isinstance(value, Tensor):
            return value
        numbers, device = flat(value), self.working.device
        dtype = torch.int64
        if any(isinstance(number, float | torch.SymFloat) for number in numbers):
            dtype = self.working.dtype
        elif numbers and all(isinstance(number, bool) for number in numbers):
            dtype = torch.bool
        if any(isinstance(number, torch.SymInt | torch.SymFloat) for number in numbers):
            items = [torch.scalar_tensor(number, dtype=dtype, device=device) for number in numbers]
            return torch.stack(items).reshape(value.shape)
        return torch.tensor(numbers, dtype=dtype, device=device).reshape(value.shape)


class Argument(Protocol):
    """The source of one input of an operator."""

    def fetch(self, environment: Environment) -> Any: ...


@dataclass(frozen=True)
class Fixed:
    """A value that is known at import and that the operator takes as Python numbers."""

    value: Any

    def fetch(self, environment: Environment) -> Any:
        return self.value


@dataclass(frozen=True)
class Constant:
    """A value that is known at import and that the operator takes as a tensor: a buffer of the module."""

    key: str

    def fetch(self, environment: Environment) -> Tensor:
        return environment.constants[self.key]


@dataclass(frozen=True)
class Computed:
    """A result of an earlier step, or an input of the graph."""

    name: str
    kind: Kind

    def fetch(self, environment: Environment) -> Any:
        value = environment.values[self.name]
        if self.kind is Kind.STATIC:
            return value
        if self.kind is Kind.NUMBER and not isinstance(value, Tensor) and value.ndim == 0:
            return value.item()
        return environment.tensor(value)


class PlanStep(Protocol):
    """One step of the module: it reads values and writes values."""

    @property
    def reads(self) -> frozenset[str]: ...

    def run(self, environment: Environment) -> None: ...


def _names(arguments: Sequence[Argument]) -> frozenset[str]:
    return frozenset(argument.name for argument in arguments if isinstance(argument, Computed))


@dataclass(frozen=True)
class Call:
    """A call of one operator, which is looked up by name at each call, so that the module can be pickled."""

    node: OnnxNode
    table: Literal["tensors", "numbers"]
    arguments: tuple[Argument, ...]

    @property
    def reads(self) -> frozenset[str]:
        return _names(self.arguments)

    def run(self, environment: Environment) -> None:
        operator = (STATICS if self.table == "numbers" else OPERATORS)[self.node.operator]
        inputs = [argument.fetch(environment) for argument in self.arguments]
        try:
            outputs = run_operator(self.node, operator, inputs)
        except Exception as error:
            error.add_note(f"in ONNX node {self.node.name!r} ({self.node.operator})")
            raise
        # Not strict, because trailing outputs may have no names.
        environment.values.update(zip(self.node.outputs, outputs, strict=False))


@dataclass(frozen=True)
class Plan:
    """Steps in order, and the values that are their outcome."""

    steps: tuple[PlanStep, ...]
    outcome: tuple[Argument, ...]

    @property
    def reads(self) -> frozenset[str]:
        return _names(self.outcome).union(*(step.reads for step in self.steps))

    def run(self, environment: Environment) -> list[Any]:
        for step, finished in zip(self.steps, self._last_uses(), strict=True):
            step.run(environment)
            for name in finished:
                environment.values.pop(name, None)
        return [argument.fetch(environment) for argument in self.outcome]

    def _last_uses(self) -> list[frozenset[str]]:
        """For each step the values that no later step reads.

        They are dropped, to free the memory of earlier layers.
        """
        needed = _names(self.outcome)
        finished = []
        for step in reversed(self.steps):
            finished.append(step.reads - needed)
            needed |= step.reads
        return finished[::-1]


@dataclass(frozen=True)
class Choice:
    """An If whose condition depends only on shapes. Its branches can read the values outside of it."""

    condition: Argument
    branches: Mapping[bool, Plan]
    outputs: tuple[str, ...]

    @property
    def reads(self) -> frozenset[str]:
        return _names([self.condition]).union(*(plan.reads for plan in self.branches.values()))

    def run(self, environment: Environment) -> None:
        taken = self.branches[bool(self.condition.fetch(environment).item())]
        inner = Environment(dict(environment.values), environment.constants, environment.working)
        environment.values.update(zip(self.outputs, taken.run(inner), strict=True))


class OnnxModule(nn.Module):
    """An ONNX graph as a torch module that returns one tensor, or a tuple if the graph has several outputs.

    The file's constants are buffers, so `.double()` and `.to()` convert all of the module. For torch.export,
    the dynamic shapes of several inputs are nested like the signature: (first, (second, third)).
    """

    def __init__(
        self,
        name: str,
        plan: Plan,
        constants: Mapping[str, Tensor],
        inputs: tuple[Port, ...],
        outputs: tuple[Port, ...],
        working: torch.dtype,
    ) -> None:
        super().__init__()
        self.name = name
        self.plan = plan
        self.is_quantised = any(
            isinstance(step, Call) and step.node.operator in ("QuantizeLinear", "Requantise")
            for step in plan.steps
        )
        self.inputs = inputs
        self.outputs = outputs
        self.constants = nn.Module()
        for key, value in constants.items():
            self.constants.register_buffer(key, value)
        self.working: Tensor
        self.register_buffer("working", torch.empty(0, dtype=working), persistent=False)

    def forward(self, first: Tensor, *others: Tensor) -> Tensor | tuple[Tensor, ...]:
        inputs = (first, *others)
        if len(inputs) != len(self.inputs):
            names = ", ".join(port.name for port in self.inputs)
            raise BadInput(
                f"{self.name} takes {len(self.inputs)} inputs ({names}), {len(inputs)} were given."
            )
        values: dict[str, Value] = {port.name: value for port, value in zip(self.inputs, inputs, strict=True)}
        environment = Environment(
            values, dict(self.constants.named_buffers(remove_duplicate=False)), self.working
        )
        found = self.plan.run(environment)
        results = tuple(
            _as_declared_type(value, port) for value, port in zip(found, self.outputs, strict=True)
        )
        return results if len(results) > 1 else results[0]

    def extra_repr(self) -> str:
        return f"{self.name}: {len(self.plan.steps)} steps"


def _as_declared_type(value: Tensor, port: Port) -> Tensor:
    """Integers in the dtype that the file declares (numbers from shapes have 64 bits).

    Floats in the module's dtype.
    """
    return value if port.dtype.is_floating_point or value.is_floating_point() else value.to(port.dtype)


def data_dependent(node: OnnxNode, name: str) -> UnsupportedLayer:
    """The error for a node that needs a value at import which depends on the data."""
    return UnsupportedLayer(
        f"{node.operator} node {node.name!r} needs {name!r} to be a constant or to follow from shapes, but "
        f"it is computed from the data, so the network has no fixed structure. If it comes from an input "
        f"that you know, such as a sample rate, bind that input: import_onnx(..., "
        f"constants={{'name': value}})."
    )
