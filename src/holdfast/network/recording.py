"""The operators of a network as a graph, recorded from calls, for networks whose code cannot branch.

torch.export takes one to two seconds of processor time before it traces anything. A module of an ONNX file without
`If` and without arithmetic of shapes calls its operators one after another, so a record of one call has all of
them. What the functions of its operators decide by the sizes of tensors must not depend on the number of rows: calls
with one, two and three rows are recorded, and the recordings have to be equal, operator by operator, with the same
arguments and the same constants, except for the number of rows itself in a reshape. Everything else is left to torch.export (`trace.py`).

This is no proof that the graph is the model: `bounding.graph.equivalence_check` compares both, as for every graph.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import getitem
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.utils._python_dispatch import TorchDispatchMode

from holdfast.network.adapter import Adapter, FirstRow, MappedOverBatch
from holdfast.network.trace import weights_of
from holdfast.process_state import silent_torch

ROWS = (3, 2, 1)  # Numbers of rows in the recorded calls; the first recording is the result.
RESHAPES = ("aten.reshape.default", "aten.view.default")
# torch.tensor() calls these on the new tensor, which is recorded as a constant where it is used.
MAKE_CONSTANTS = ("aten.lift_fresh.default", "aten.detach_.default")


class _NotRecordable(Exception):
    """The call has something that a list of operators on tensors does not describe."""


@dataclass
class _Recorder:
    """The graph of one call. `held` keeps tensors alive, because they are recognised by their identity."""

    graph: fx.Graph = field(default_factory=fx.Graph)
    attributes: dict[str, Tensor] = field(default_factory=dict)
    names: dict[int, str] = field(default_factory=dict)
    nodes: dict[int, fx.Node] = field(default_factory=dict)
    held: list[Any] = field(default_factory=list)
    constants: list[Tensor] = field(default_factory=list)

    def add_input(self, x: Tensor) -> None:
        self._remember(x, self.graph.placeholder("x"))

    def add_call(self, function: Any, args: Any, kwargs: Any, found: Any) -> None:
        """Record a call of an operator with its result."""
        if (
            str(function) in MAKE_CONSTANTS
            and id(args[0]) not in self.nodes
            and id(args[0]) not in self.names
        ):
            return
        if function._schema.is_mutable or torch.Tag.nondeterministic_seeded in function.tags:
            raise _NotRecordable
        if str(function) == "aten.squeeze.default":  # It would drop the axis of a single row.
            raise _NotRecordable
        if str(function) == "aten.clone.default" and self._is_input(args[0]):
            self._remember(found, self.nodes[id(args[0])])  # `Adapter` copies its input.
            return
        given = fx.node.map_aggregate((args, kwargs), self._argument)
        name = str(function).split(".")[1]
        node = self.graph.create_node("call_function", function, *given, name=name)
        if isinstance(found, Tensor):
            self._remember(found, node)
            return
        if not isinstance(found, tuple | list) or not all(isinstance(part, Tensor) for part in found):
            raise _NotRecordable  # A number that was read from a tensor decides something.
        node.meta["val"] = tuple(map(_describe, found))
        for place, part in enumerate(found):
            self._remember(part, self.graph.call_function(getitem, (node, place)))

    def _is_input(self, value: Any) -> bool:
        return id(value) in self.nodes and self.nodes[id(value)].op == "placeholder"

    def _remember(self, value: Tensor, node: fx.Node) -> None:
        self.held.append(value)
        self.nodes[id(value)] = node
        if node.op != "placeholder":
            node.meta["val"] = _describe(value)

    def _argument(self, value: Any) -> Any:
        """A node for a tensor; other arguments are returned unchanged."""
        if isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
            raise _NotRecordable
        if not isinstance(value, Tensor):
            return value
        if id(value) not in self.nodes:
            name = self.names.get(id(value))
            if name is None:
                name = f"_constant{len(self.constants)}"
                self.constants.append(value)
                self.attributes[name] = value
            self._remember(value, self.graph.get_attr(name))
        return self.nodes[id(value)]

    def finish(self, answer: Any) -> None:
        if not isinstance(answer, Tensor) or id(answer) not in self.nodes:
            raise _NotRecordable  # The answer does not depend on the input, or is no tensor.
        self.graph.output((self.nodes[id(answer)],))
        self.graph.eliminate_dead_code()

    def lines(self) -> list[tuple[str, ...]]:
        """The operators with their arguments, for comparison."""
        return [
            (node.op, node.name, str(node.target), str(node.args), str(node.kwargs))
            for node in self.graph.nodes
        ]


class _RecordingMode(TorchDispatchMode):
    """Records every operator that is called, as called: in inference mode torch does not decompose it before."""

    def __init__(self, recorder: _Recorder) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.recorder = recorder

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Nothing here is compiled; torch would import its compiler for this, which takes a second."""
        return False

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = function(*args, **(kwargs or {}))
        self.recorder.add_call(function, args, kwargs or {}, found)
        return found


def record_operators(module: nn.Module, example: Tensor) -> fx.GraphModule | None:
    """The operators that the module calls, with its weights; None if a record of calls may not describe it.

    Args:
        example: (batch, *shape), of which the first row is used.
    """
    if not calls_in_order(module):
        return None
    recordings = []
    for rows in ROWS:
        recorder = _Recorder(attributes=weights_of(module))
        recorder.names = {id(value): name for name, value in recorder.attributes.items()}
        try:
            with torch.inference_mode(), silent_torch():
                x = example[:1].expand(rows, *example.shape[1:]).clone()
                recorder.add_input(x)
                with _RecordingMode(recorder):
                    answer = module(x)
                recorder.finish(answer)
        except Exception:  # whatever torch.export says about such a model is its error
            return None
        recordings.append(recorder)
    for nodes in zip(*(recorder.graph.nodes for recorder in recordings), strict=False):
        _free_rows(nodes)
    first, *others = recordings
    if not all(_are_equal(first, other) for other in others):
        return None
    # Tensors of inference mode cannot take part in gradients.
    attributes = first.attributes | {
        f"_constant{i}": value.clone() for i, value in enumerate(first.constants)
    }
    return fx.GraphModule(attributes, first.graph)


def calls_in_order(module: nn.Module) -> bool:
    """Whether it is an ONNX file without branches and arithmetic of shapes, in an adapter without lengths."""
    if not isinstance(module, Adapter) or module.takes_lengths:
        return False
    inner: Any = module.model
    inner = inner.model if isinstance(inner, FirstRow) else inner
    inner = inner.model if isinstance(inner, MappedOverBatch) else inner
    # The class is found by its attribute, because the package onnx need not be there to import this module.
    plan = getattr(inner, "plan", None)
    if plan is None:
        return False
    from holdfast.network.onnx.operators.table import OPERATORS

    return all(
        getattr(step, "table", None) == "tensors" and not OPERATORS[step.node.operator].answers_static
        for step in plan.steps
    )


def _free_rows(nodes: Sequence[fx.Node]) -> None:
    """Reshape to -1 rows where each recording reshapes to its own number of rows and to the same other sizes."""
    if any(str(node.target) not in RESHAPES or len(node.args) != 2 for node in nodes):
        return
    sizes: list[Any] = [list(node.args[1]) for node in nodes]  # type: ignore[arg-type]
    if all(
        own[:1] == [rows] and own[1:] == sizes[0][1:] and min(own[1:], default=1) > 0
        for own, rows in zip(sizes, ROWS, strict=True)
    ):
        for node in nodes:
            node.args = (node.args[0], [-1, *sizes[0][1:]])


def _are_equal(one: _Recorder, other: _Recorder) -> bool:
    return (
        one.lines() == other.lines()
        and len(one.constants) == len(other.constants)
        and all(
            a.dtype == b.dtype and torch.equal(a, b)
            for a, b in zip(one.constants, other.constants, strict=True)
        )
    )


def _describe(value: Tensor) -> Tensor:
    """A tensor without data of the same shape and type, as torch.export keeps it."""
    return torch.empty(value.shape, dtype=value.dtype, device="meta")
