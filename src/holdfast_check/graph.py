"""The graph of a model, and its translation into steps: which value each node reads, and what it may define.

`operators` and `recurrent` have the meaning of the nodes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from holdfast_check.arithmetic import Array
from holdfast_check.errors import Rejected, require, zip_equal
from holdfast_check.operators import KINDS, GraphNode, Operators, check_size
from holdfast_check.recurrent import GATES, unroll_layer
from holdfast_check.signatures import DESCRIBED, Value, check_attributes, check_inputs, form_of
from holdfast_check.steps import Builder, Program, StepView

# Operators that only move elements.
PLACES = {
    "Identity",
    "Reshape",
    "Flatten",
    "Transpose",
    "Squeeze",
    "Unsqueeze",
    "Slice",
    "Gather",
}
# Exceptions that malformed files raise in numpy or Python; they become `Rejected`.
UNREADABLE = (
    ValueError,
    IndexError,
    TypeError,
    KeyError,
    AttributeError,
    ZeroDivisionError,
    MemoryError,
    OverflowError,
)


@dataclass(frozen=True)
class Declared:
    """The element type and sizes that a file declares for a value; None where it declares none or leaves a
    size open.
    """

    kind: str | None
    sizes: tuple[int | None, ...] | None

    def agrees(self, kind: str, shape: tuple[int, ...], name: str) -> None:
        """Reject a value whose type or sizes differ from the declaration."""
        require(self.kind in (None, kind), f"{name!r} is declared as {self.kind}, but is {kind}")
        same = self.sizes is None or (
            len(self.sizes) == len(shape)
            and all(size in (None, found) for size, found in zip_equal(self.sizes, shape))
        )
        require(same, f"{name!r} is declared with the sizes {self.sizes}, but has {shape}")


@dataclass(frozen=True)
class ModelGraph:
    """The graph of a model as stored in its file. opset: the version of ONNX's operators, or DESCRIBED. kind:
    the element type of the input.
    """

    input: str
    input_shape: tuple[int, ...]  # Including the batch axis, of size one.
    output: str
    nodes: tuple[GraphNode, ...]
    constants: Mapping[str, Array]
    opset: int = DESCRIBED
    kind: str = "<f8"
    declared: tuple[tuple[str, Declared], ...] = field(default=())


def program(graph: ModelGraph) -> Program:
    """Translate a graph into steps. Unsupported parts are rejected, with the node and the cause."""
    check_size(*graph.input_shape)
    builder = Builder(graph.input_shape)
    require(
        graph.input and graph.input not in graph.constants and "" not in graph.constants,
        "the input has the name of a constant",
    )
    values: dict[str, Value] = {**graph.constants, graph.input: builder.input}
    kinds = {**{name: array.dtype.str for name, array in graph.constants.items()}, graph.input: graph.kind}
    made = set(values)  # All names defined, including those of unsupported values.
    # Values of which only the order is known: the output of a softmax is represented by its input.
    ranked: set[str] = set()
    last = _last_softmax(graph)
    for number, node in enumerate(graph.nodes):
        try:
            _follow(builder, graph.opset, node, values, kinds, made, ranked, number == last)
        except (Rejected, *UNREADABLE) as error:
            raise Rejected(
                f"node {number} ({node.op}, with output {', '.join(node.outputs)}): {error}"
            ) from error
    for name, declared in graph.declared:
        if name in values:
            declared.agrees(kinds[name], values[name].shape, name)
    output = values.get(graph.output)
    if not isinstance(output, StepView):
        raise Rejected(
            f"the output {graph.output!r} is computed by no supported node, or does not depend on the input"
        )
    return Program(graph.input_shape, builder.steps, output, graph.output in ranked)


def _last_softmax(graph: ModelGraph) -> int | None:
    """The node of a softmax behind which elements only move, so that claims about the order of the outputs hold
    for its input; None if there is none, or if other nodes read it.
    """
    readers = [name for node in graph.nodes for name in node.inputs]
    wanted = graph.output
    if readers.count(wanted):
        return None
    for number in range(len(graph.nodes) - 1, -1, -1):
        node = graph.nodes[number]
        if wanted in node.outputs:
            if node.op in ("Softmax", "LogSoftmax"):
                return number
            if node.op not in PLACES or not node.inputs or readers.count(node.inputs[0]) != 1:
                return None
            wanted = node.inputs[0]
    return None


def _follow(
    builder: Builder,
    opset: int,
    node: GraphNode,
    values: dict[str, Value],
    kinds: dict[str, str],
    made: set[str],
    ranked: set[str],
    ranks: bool,
) -> None:
    """Translate one node and add its outputs to `values`. ranks: whether it is a softmax of which only the order
    is kept.
    """
    form = form_of(node.op, opset)
    check_attributes(form, node.attributes, opset)
    for name in filter(None, node.inputs):
        require(
            name in values, f"it reads {name!r}, which no node before it computes, or which is not supported"
        )
    given = [values[name] if name else None for name in node.inputs]
    kind = check_inputs(form, given, [kinds[name] if name else "" for name in node.inputs], opset)
    outputs = [name for name in node.outputs if name]
    require((node.outputs and node.outputs[0]) or node.op in GATES, "its first output has no name")
    many = max((place for place, name in enumerate(node.outputs, 1) if name), default=0)
    require(
        form.outputs == -1 or many <= form.outputs,
        f"it has {many} outputs; this checker supports {form.outputs}",
    )
    require(
        len(set(outputs)) == len(outputs) and made.isdisjoint(outputs),
        "it defines a name that is already defined",
    )
    made.update(outputs)
    if ranked.intersection(node.inputs):
        require(
            node.op in PLACES,
            "it reads the output of a softmax; this checker supports a softmax as the last step only",
        )
    results = (
        unroll_layer(builder, node, tuple(given))
        if node.op in GATES
        else Operators(builder, node, opset, ranks).apply(given)
    )
    if ranked.intersection(node.inputs) or (ranks and results is given[0]):
        ranked.update(outputs)
    for name, value in zip(node.outputs, results if isinstance(results, tuple) else (results,)):
        if name:
            require(not isinstance(value, StepView) or value.index.size > 0, f"{name!r} is empty")
            values[name] = value
            kinds[name] = (
                (KINDS[node.attributes["to"]] if node.op == "Cast" else kind)
                if isinstance(value, StepView)
                else value.dtype.str
            )
