"""Import of an ONNX graph as a torch module.

The graph is traversed once. Values that depend only on constants are computed at import. Values that depend
only on shapes are computed as Python numbers when the module runs. All other nodes become torch operators.
The module holds no protobuf objects.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import onnx
import onnx.checker
import torch
from torch import Tensor

from holdfast.errors import BadInput, HoldfastError, UnreadableFile, UnsupportedLayer
from holdfast.network.onnx.functions import DOMAINS, inline_functions
from holdfast.network.onnx.module import (
    Argument,
    Call,
    Choice,
    Computed,
    Constant,
    Fixed,
    OnnxModule,
    Plan,
    PlanStep,
    Port,
    data_dependent,
)
from holdfast.network.onnx.operators.quantised import (
    MAKES_GRID,
    MICROSOFT,
    MOVES_GRID,
    RANGES,
    READS_GRID,
)
from holdfast.network.onnx.operators.static import as_static
from holdfast.network.onnx.operators.table import (
    OPERATORS,
    REWRITES,
    STATICS,
    Kind,
    OnnxNode,
    Operator,
    Static,
    run_operator,
)
from holdfast.network.onnx.quantised_groups import INTERNAL, fuse_dynamic_layers, fuse_quantised_groups
from holdfast.network.onnx.tensors import DTYPES, as_torch, type_name

__all__ = ["import_onnx", "ports"]

# The oldest operator set that is imported; older ones broadcast by attributes.
_FIRST_OPSET = 7
# The newest operator set whose definitions the rules were checked against; a later one may redefine
# operators.
_LAST_OPSET = 28
# Positions of the inputs that determine the size of the result.
_SIZES = {"Expand": (1,), "RangeLike": (0, 1)}
# Attributes that are integers and mean true or false. Runtimes disagree about values other than 0 and 1.
_FLAGS = frozenset(
    (
        "allowzero",
        "ceil_mode",
        "count_include_pad",
        "exclusive",
        "fmod",
        "input_forget",
        "keepdims",
        "layout",
        "linear_before_reset",
        "noop_with_empty_axes",
        "reverse",
        "select_last_index",
        "spatial",
        "storage_order",
        "training_mode",
        "transA",
        "transB",
        "upper",
    )
)
# A module whose attributes are names that a buffer may not have.
_TAKEN = torch.nn.Module()
_HALVES = (torch.float16, torch.bfloat16)
# Largest number of elements of a constant that may be part of shape arithmetic; larger ones are data (chosen
# by hand).
_LARGEST_STATIC = 1024
# Largest number of elements of all values that are computed from constants at import, so that a small file
# cannot exhaust the memory (chosen by hand).
_LARGEST_FOLDED = 2**28

_BLACK_BOX = (
    "The file still works as a black box through onnxruntime (pip install 'holdfast[runtime]'), "
    "where proofs and gradients are not available."
)


def import_onnx(
    model: onnx.ModelProto, name: str, *, constants: Mapping[str, Any] | None = None
) -> OnnxModule:
    """The graph as a torch module.

    Args:
        name: names the file in errors.
        constants: values for inputs of the graph that configure the network, such as a sample rate. The
            module does not take these.

    Raises:
        UnsupportedLayer: operators have no rule; the message names all of them.
        UnreadableFile: the graph is malformed.
    """
    model = inline_functions(model, name)
    if any(node.domain == INTERNAL for node in model.graph.node):
        raise UnsupportedLayer(f"{name}: the domain {INTERNAL} is reserved.")
    model = fuse_dynamic_layers(fuse_quantised_groups(model, name))
    opset = max(
        (entry.version for entry in model.opset_import if entry.domain in DOMAINS), default=_FIRST_OPSET
    )
    if opset < _FIRST_OPSET:
        raise UnsupportedLayer(
            f"{name}: operator set {opset} is older than {_FIRST_OPSET}. "
            f"Convert the file with onnx.version_converter.convert_version."
        )
    if opset > _LAST_OPSET:
        raise UnsupportedLayer(
            f"{name}: operator set {opset} is newer than {_LAST_OPSET}, the last that is supported. "
            f"{_BLACK_BOX}"
        )
    graph = model.graph
    inputs, outputs = ports(graph, name)
    bound = _bound(dict(constants or {}), inputs, name)
    free = tuple(port for port in inputs if port.name not in bound)
    if not free:
        raise BadInput(f"{name}: the graph has no free inputs, so there is nothing to measure.")
    working = next((port.dtype for port in (*free, *outputs) if port.dtype.is_floating_point), torch.float32)
    scope = _Scope(name, opset, working, known=bound, tensors={port.name for port in free})
    outcome = scope.walk(graph)
    scope.complaints.raise_any(name)
    plan = Plan(tuple(scope.steps), tuple(scope.argument(value, Kind.TENSOR) for value in outcome))
    return OnnxModule(name, plan, scope.constants, free, outputs, working)


def ports(graph: onnx.GraphProto, name: str) -> tuple[tuple[Port, ...], tuple[Port, ...]]:
    """The inputs without stored values, and the outputs of the graph."""
    stored = {tensor.name for tensor in graph.initializer}
    return (
        tuple(_port(info, name) for info in graph.input if info.name not in stored),
        tuple(_port(info, name) for info in graph.output),
    )


def _port(info: onnx.ValueInfoProto, name: str) -> Port:
    code = info.type.tensor_type.elem_type
    if code not in DTYPES:
        raise UnsupportedLayer(f"{name}: {info.name!r} is of {type_name(code)}, not a tensor of numbers.")
    sizes = tuple(dim.dim_value if dim.dim_value > 0 else None for dim in info.type.tensor_type.shape.dim)
    return Port(info.name, sizes, DTYPES[code])


def _bound(constants: dict[str, Any], inputs: tuple[Port, ...], name: str) -> dict[str, Tensor]:
    types = {port.name: port.dtype for port in inputs}
    for key in constants:
        if key not in types:
            raise BadInput(f"{name} has no input {key!r} to bind; its inputs are {', '.join(types)}.")
    return {key: torch.as_tensor(value, dtype=types[key]) for key, value in constants.items()}


@dataclass
class _Complaints:
    """Everything that cannot be imported, collected for a single error.

    Attributes:
        unknown: operators without a rule, and the names of their nodes.
    """

    unknown: dict[str, list[str]] = field(default_factory=dict)
    others: list[str] = field(default_factory=list)

    def raise_any(self, name: str) -> None:
        lines = list(dict.fromkeys(self.others))
        if self.unknown:
            listed = "; ".join(
                f"{key} (node {', '.join(map(repr, nodes))})" for key, nodes in self.unknown.items()
            )
            lines.insert(0, f"no rule for operator {listed}.")
        if lines:
            raise UnsupportedLayer(f"{name}: " + "\n".join([*lines, _BLACK_BOX]))


@dataclass
class _Scope:
    """The state of the traversal of one graph. Branches of an If get a copy.

    Attributes:
        working: the floating dtype of the module.
        known: values that are computed at import.
        statics: names of values that will be numbers, computed from shapes.
        ranks: those of `statics` that follow from ranks alone, and are therefore the same for every batch.
        tensors: names of values that will be tensors.
        constants: the buffers of the module, shared by all scopes.
        keys: the key in `constants` of each name.
        grid: names of values that hold the integers of a quantised tensor as floating-point numbers.
        folded: a single number, the count of elements computed from constants, shared by all scopes.
    """

    name: str
    opset: int
    working: torch.dtype
    known: dict[str, Tensor] = field(default_factory=dict)
    statics: set[str] = field(default_factory=set)
    ranks: set[str] = field(default_factory=set)
    tensors: set[str] = field(default_factory=set)
    constants: dict[str, Tensor] = field(default_factory=dict)
    keys: dict[str, str] = field(default_factory=dict)
    grid: set[str] = field(default_factory=set)
    complaints: _Complaints = field(default_factory=_Complaints)
    folded: list[int] = field(default_factory=lambda: [0])
    steps: list[PlanStep] = field(default_factory=list)

    def inner(self) -> "_Scope":
        """A copy for a branch."""
        return replace(
            self,
            known=dict(self.known),
            statics=set(self.statics),
            ranks=set(self.ranks),
            tensors=set(self.tensors),
            keys=dict(self.keys),
            grid=set(self.grid),
            steps=[],
        )

    def walk(self, graph: onnx.GraphProto) -> list[str]:
        """Import a whole graph, and return the names of its outputs."""
        if graph.sparse_initializer:
            self.complaints.others.append("sparse constants are not supported.")
        stored = [tensor.name for tensor in graph.initializer]
        if len(set(stored)) < len(stored):
            raise UnreadableFile(f"{self.name}: it holds two constants of one name. Export the file again.")
        for tensor in graph.initializer:
            self.known[tensor.name] = as_torch(tensor, self.name)
        for proto in graph.node:
            self._take(proto)
        for output in graph.output:
            if not self._has(output.name):
                raise UnreadableFile(
                    f"{self.name}: nothing computes the output {output.name!r}. Export the file again."
                )
        return [output.name for output in graph.output]

    def _take(self, proto: onnx.NodeProto) -> None:
        outputs = tuple(proto.output)
        try:
            self._check(proto)
            if not _is_known_operator(proto):
                self._unknown(f"{proto.domain}::{proto.op_type}".removeprefix("::"), proto.name, outputs)
            elif proto.op_type == "If":
                self._choose(_node(proto, self.opset, self.name))
            else:
                node = _node(proto, self.opset, self.name)
                for piece in REWRITES[node.operator](node) if node.operator in REWRITES else [node]:
                    self._place(self._specialise(piece))
        except UnsupportedLayer as error:
            self.complaints.others.append(str(error))
            self.tensors.update(outputs)  # the traversal continues, to find everything that is unsupported

    def _check(self, proto: onnx.NodeProto) -> None:
        """Raise UnreadableFile unless names are computed once and before they are read, and the node conforms
        to ONNX."""
        what = f"{self.name}: {proto.op_type} node {proto.name!r}"
        for name in filter(None, proto.input):
            if not self._has(name):
                raise UnreadableFile(
                    f"{what} reads {name!r}, which nothing before it computes. Export the file again."
                )
        for name in filter(None, proto.output):
            if self._has(name):
                raise UnreadableFile(
                    f"{what} computes {name!r}, which exists already. Export the file again."
                )
        context = onnx.checker.C.CheckerContext()
        context.ir_version, context.opset_imports = onnx.IR_VERSION, {"": self.opset}
        try:
            # The nodes inside an If are checked when they are imported.
            if _is_known_operator(proto) and proto.op_type != "If" and proto.domain in DOMAINS:
                onnx.checker.check_node(proto, context)
        except onnx.checker.ValidationError as error:
            raise UnreadableFile(
                f"{what} is not as ONNX defines it: {error}. Export the file again."
            ) from error

    def _has(self, name: str) -> bool:
        return name in self.known or name in self.statics or name in self.tensors

    def _unknown(self, key: str, node: str, outputs: tuple[str, ...]) -> None:
        self.complaints.unknown.setdefault(key, []).append(node or outputs[0])
        self.tensors.update(outputs)

    def _place(self, node: OnnxNode) -> None:
        """Compute the node now if all its inputs are known, else add a step that calls it."""
        inputs = [name for name in node.inputs if name]
        self._follow_grid(node)
        numbers = self._in_numbers(node, inputs)
        operator = (STATICS if numbers else OPERATORS)[node.operator]
        if not operator.answers_many and any(node.outputs[1:]):
            raise node.unsupported_error(
                f"an output beyond the first ({', '.join(filter(None, node.outputs[1:]))})"
            )
        if all(name in self.known for name in inputs):
            self._fold(node, operator)
            return
        arguments = tuple(self._input(node, operator, position) for position in range(len(node.inputs)))
        self.steps.append(Call(node, "numbers" if numbers else "tensors", arguments))
        (self.statics if operator.answers_static else self.tensors).update(node.outputs)
        if numbers and (node.operator in ("Shape", "Size") or self._of_ranks(inputs)):
            self.ranks.update(node.outputs)

    def _follow_grid(self, node: OnnxNode) -> None:
        """Note where the integers of a quantised tensor go; UnsupportedLayer where they meet other operators.

        They are held as floating-point numbers, with which an operator on integers computes something else.
        """
        quantised = self.grid.intersection(node.inputs)
        if node.operator in MAKES_GRID or (quantised and node.operator in MOVES_GRID):
            self.grid.update(node.outputs)
        elif node.operator == "DynamicQuantizeLinear":
            self.grid.update((node.outputs[0], node.outputs[2]))
        elif quantised and node.operator not in READS_GRID:
            raise node.unsupported_error("an operation on the integers of a quantised tensor")

    def _with_range(self, node: OnnxNode) -> OnnxNode:
        """The node with its range of integers and its zero point, (low, high, zero)."""
        name = node.inputs[2] if node.has_input(2) else ""
        if name and name not in self.known:
            raise data_dependent(node, name)
        code = node.integer("output_dtype", 0)
        zero = self.known[name] if name else torch.zeros((), dtype=DTYPES.get(code or 2, torch.uint8))
        if zero.dtype not in RANGES:
            raise node.unsupported_error(f"a grid of {zero.dtype}")
        if zero.numel() != 1 and bool((zero != zero.flatten()[0]).any()):
            raise node.unsupported_error("a zero point that differs between channels of data")
        if node.integer("block_size", 0):
            raise node.unsupported_error("data quantised in blocks")
        grid = [*RANGES[zero.dtype], int(zero.flatten()[0])]
        return replace(node, attributes={**node.attributes, "grid": grid})

    def _specialise(self, node: OnnxNode) -> OnnxNode:
        """A node with facts about its inputs: a range of integers, an embedding lookup, or indices that are not
        negative."""
        if node.operator in ("QuantizeLinear", "Requantise"):
            return self._with_range(node)
        if node.operator not in ("Gather", "GatherElements"):
            return node
        table, indices = (self.known.get(name) for name in node.inputs)
        if indices is not None and bool((indices >= 0).all()):
            return replace(node, attributes={**node.attributes, "forwards": 1})
        words = table is not None and indices is None and table.dim() == 2 and node.inputs[1] in self.tensors
        if node.operator == "Gather" and words and node.integer("axis", 0) in (0, -2):
            return replace(node, operator="Embedding")
        return node

    def _in_numbers(self, node: OnnxNode, inputs: list[str]) -> bool:
        """Whether the node is shape arithmetic: all its inputs are numbers, and not all of them are known at
        import."""
        if node.operator not in STATICS or not any(name in self.statics for name in inputs):
            return False
        if not self._of_ranks([node.inputs[position] for position in _SIZES.get(node.operator, ())]):
            return False  # a result whose size depends on the data is data
        return all(self._is_static(name) for name in inputs)

    def _of_ranks(self, names: list[str]) -> bool:
        return all(name in self.ranks or name in self.known for name in names)

    def _is_static(self, name: str) -> bool:
        return name in self.statics or (name in self.known and self.known[name].numel() <= _LARGEST_STATIC)

    def _input(self, node: OnnxNode, operator: Operator, position: int) -> Argument:
        kind, name = operator.kind(position), node.inputs[position]
        if not name:
            return Fixed(None)
        if kind is None:
            raise node.unsupported_error(f"input {position} ({name!r})")
        if kind is Kind.STATIC and not self._is_static(name):
            raise data_dependent(node, name)
        return self.argument(name, kind)

    def argument(self, name: str, kind: Kind) -> Argument:
        """The argument that fetches a value in this form."""
        if name not in self.known:
            return Computed(name, kind)
        value = self.known[name]
        if kind is Kind.STATIC:
            return Fixed(_numbers(value))
        if kind is Kind.NUMBER and value.dim() == 0:
            return Fixed(value.item())
        return Constant(self._constant(name, value))

    def _constant(self, name: str, value: Tensor) -> str:
        """The key of the buffer with this constant. Floating constants are stored in the module's dtype."""
        if name not in self.keys:
            if (
                value.is_floating_point()
                and value.dtype != self.working
                and {value.dtype, self.working} & set(_HALVES)
            ):
                raise UnsupportedLayer(
                    f"{name!r} makes the network compute in {value.dtype} between layers of {self.working}; "
                    f"such rounding cannot be bounded."
                )
            if value.is_floating_point() and not torch.equal(
                value.to(self.working).to(value.dtype).nan_to_num(), value.nan_to_num()
            ):
                raise UnsupportedLayer(
                    f"{name!r} holds {value.dtype} numbers that {self.working}, the dtype of the network, "
                    f"cannot represent; rounding them would change the network."
                )
            key = re.sub(r"\W+", "_", name) or "constant"
            while key in self.constants or hasattr(_TAKEN, key):
                key += "_"
            self.keys[name] = key
            self.constants[key] = (
                value.to(self.working) if value.is_floating_point() else value
            ).contiguous()
        return self.keys[name]

    def _fold(self, node: OnnxNode, operator: Operator) -> None:
        """Compute the node at import, after checking the size of the result on the meta device."""

        def answers(move: Callable[[Tensor], Tensor]) -> tuple[Any, ...]:
            inputs = [
                self._fold_constant(node, operator, position, move) for position in range(len(node.inputs))
            ]
            return run_operator(node, operator, inputs)

        try:
            self.folded[0] += sum(
                value.numel()
                for value in answers(lambda tensor: tensor.to("meta"))
                if isinstance(value, Tensor)
            )
            if self.folded[0] > _LARGEST_FOLDED:
                raise UnreadableFile(
                    f"{self.name}: with {node.operator} node {node.name!r} the results of its constants "
                    f"would have {self.folded[0]} elements, which no network needs. Export the file again."
                )
            found = answers(lambda tensor: tensor)
        except HoldfastError:
            raise
        except Exception as error:
            raise UnreadableFile(
                f"{self.name}: constant {node.operator} node {node.name!r} cannot be computed ({error}). "
                f"The file is damaged; export it again."
            ) from error
        for name, value in zip(node.outputs, found, strict=False):
            self.known[name] = value if isinstance(value, Tensor) else torch.tensor(value.tolist())

    def _fold_constant(
        self, node: OnnxNode, operator: Operator, position: int, move: Callable[[Tensor], Tensor]
    ) -> Any:
        name, kind = node.inputs[position], operator.kind(position)
        if not name:
            return None
        value = self.known[name]
        if kind is Kind.STATIC:
            return _numbers(value)
        return value.item() if kind is Kind.NUMBER and value.dim() == 0 else move(value)

    def _adopt(self, inner: "_Scope", name: str) -> None:
        """Take one name over from a branch.

        Other names of the branch remain local, because another branch may use them.
        """
        if name in inner.known:
            self.known[name] = inner.known[name]
        (self.statics if name in inner.statics else self.tensors).update({name} - inner.known.keys())

    def _choose(self, node: OnnxNode) -> None:
        """Import an If: one branch if the condition is known, both if it depends on shapes."""
        [condition] = node.inputs
        graphs = {True: node.attributes["then_branch"], False: node.attributes["else_branch"]}
        if condition in self.known:
            inner = self.inner()
            taken = inner.walk(graphs[bool(self.known[condition].item())])
            for source, target in zip(taken, node.outputs, strict=True):
                inner._place(OnnxNode("Identity", node.name, (source,), (target,), self.opset))
                self._adopt(inner, target)
            self.steps += inner.steps
            return
        if condition not in self.statics:
            raise data_dependent(node, condition)
        scopes = {case: self.inner() for case in graphs}
        taken_by = {case: scope.walk(graphs[case]) for case, scope in scopes.items()}
        kinds = []
        for position, output in enumerate(node.outputs):
            numbers = all(scope._is_static(taken_by[case][position]) for case, scope in scopes.items())
            kinds.append(Kind.STATIC if numbers else Kind.TENSOR)
            (self.statics if numbers else self.tensors).add(output)
        branches = {
            case: Plan(
                tuple(scope.steps),
                tuple(scope.argument(name, kind) for name, kind in zip(taken_by[case], kinds, strict=True)),
            )
            for case, scope in scopes.items()
        }
        self.steps.append(Choice(self.argument(condition, Kind.STATIC), branches, node.outputs))


def _is_known_operator(proto: onnx.NodeProto) -> bool:
    """Whether there is a rule for this operator of ONNX.

    Internal operators of the rewriting rules are not allowed in files.
    """
    ours = proto.op_type == "If" or proto.op_type in OPERATORS or proto.op_type in REWRITES
    if proto.domain == INTERNAL:
        return ours
    if proto.domain == "com.microsoft":
        return ours and proto.op_type in MICROSOFT
    return ours and proto.domain in DOMAINS and onnx.defs.has(proto.op_type)


def _numbers(value: Tensor) -> Static:
    return as_static(value.tolist()).reshape(value.shape)


def _node(proto: onnx.NodeProto, opset: int, where: str) -> OnnxNode:
    names = [entry.name for entry in proto.attribute]
    if len(set(names)) < len(names):
        raise UnreadableFile(
            f"{where}: {proto.op_type} node {proto.name!r} has an attribute twice. Export the file again."
        )
    odd = next((entry for entry in proto.attribute if entry.name in _FLAGS and entry.i not in (0, 1)), None)
    if odd is not None:
        raise UnsupportedLayer(
            f"{proto.op_type} node {proto.name!r}: {odd.name}={odd.i}, which ONNX defines as 0 or 1 only, "
            f"is not supported."
        )
    return OnnxNode(
        operator=proto.op_type,
        name=proto.name or next(filter(None, proto.output), proto.op_type),
        inputs=tuple(proto.input),
        outputs=tuple(proto.output),
        opset=opset,
        attributes={
            entry.name: _plain(onnx.helper.get_attribute_value(entry), where) for entry in proto.attribute
        },
    )


def _plain(value: Any, where: str) -> Any:
    """An attribute as Python values and tensors.

    The graphs of an If remain protobuf, because they are imported at once.
    """
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    if isinstance(value, onnx.TensorProto):
        return as_torch(value, where)
    return [_plain(item, where) for item in value] if isinstance(value, list) else value
