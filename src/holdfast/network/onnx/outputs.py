"""Choice of the output of an ONNX file that is measured, and removal of the others."""

from collections.abc import Iterator
from dataclasses import dataclass

import onnx
from onnx import TensorProto

from holdfast.errors import BadInput
from holdfast.network.onnx.tensors import type_name

FLOATING = (TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16, TensorProto.BFLOAT16)


@dataclass(frozen=True)
class ChosenOutput:
    """The model with one output, and without the nodes, constants and inputs that only other outputs need.

    Attributes:
        name: of the output.
        ambiguous: another output could have been meant, so the name is part of the model's fingerprint.
        note: tells the user which outputs are left out.
    """

    model: onnx.ModelProto
    name: str
    ambiguous: bool = False
    note: str = ""


def choose_output(model: onnx.ModelProto, file: str, output: str | None = None) -> ChosenOutput:
    """The model with the output of this name; by default its only output, or its only floating-point output.

    Raises BadInput if several outputs could be meant, or none has the name.
    """
    outputs = {info.name: info for info in model.graph.output}
    listed = ", ".join(_describe(info) for info in outputs.values())
    if output is not None and output not in outputs:
        raise BadInput(f"{file}: there is no output named {output!r}; there are {listed}.")
    floating = [name for name, info in outputs.items() if _may_be_floating(info)]
    if output is None and len(outputs) > 1 and len(floating) != 1:
        raise BadInput(
            f"{file}: the model has {len(outputs)} outputs, {listed}; more than one could be meant. "
            f"Name the one to measure: output='NAME' (--output NAME on the command line)."
        )
    if len(outputs) == 1:
        [name] = outputs
        return ChosenOutput(model, name)
    name = output or floating[0]
    why = "" if output is not None else ", the only one of floating numbers,"
    note = f"the file has {len(outputs)} outputs, {listed}; {name}{why} is measured"
    return ChosenOutput(
        prune_to_output(model, name), name, ambiguous=len(floating) != 1 or name not in floating, note=note
    )


def _may_be_floating(info: onnx.ValueInfoProto) -> bool:
    """Whether an output is floating point, or its type is not declared."""
    kind = info.type.WhichOneof("value")
    return kind is None or (
        kind == "tensor_type" and info.type.tensor_type.elem_type in (*FLOATING, TensorProto.UNDEFINED)
    )


def _describe(info: onnx.ValueInfoProto) -> str:
    kind = info.type.tensor_type
    if info.type.WhichOneof("value") != "tensor_type":
        return f"{info.name} ({'not a tensor' if info.type.WhichOneof('value') else 'of no declared type'})"
    sizes = " x ".join(str(dim.dim_value) if dim.dim_value > 0 else "any" for dim in kind.shape.dim)
    shape = (sizes or "one number") if kind.HasField("shape") else "of no declared shape"
    return f"{info.name} ({shape}{'' if kind.elem_type in FLOATING else f', {type_name(kind.elem_type)}'})"


def prune_to_output(model: onnx.ModelProto, name: str) -> onnx.ModelProto:
    """A copy with only the output `name` and the nodes it needs, so that unused unsupported operators cause
    no errors."""
    kept = onnx.ModelProto()
    kept.CopyFrom(model)
    graph = kept.graph
    needed = {name}
    nodes: list[onnx.NodeProto] = []
    others: set[str] = set()
    for node in reversed(graph.node):
        if needed.intersection(node.output):
            nodes.append(node)
            needed.update(_reads(node))
        else:
            others.update(_reads(node))
    nodes.reverse()
    unneeded = (others | {info.name for info in graph.output}) - needed
    _keep(graph.node, nodes)
    _keep(graph.output, [next(info for info in graph.output if info.name == name)])
    _keep(graph.initializer, [tensor for tensor in graph.initializer if tensor.name not in unneeded])
    _keep(graph.input, [info for info in graph.input if info.name not in unneeded])
    return kept


def _keep(field, items) -> None:  # type: ignore[no-untyped-def]  # protobuf's repeated fields have no public type
    copies = list(items)
    for i, item in enumerate(copies):
        copies[i] = type(item)()
        copies[i].CopyFrom(item)
    del field[:]
    field.extend(copies)


def _reads(node: onnx.NodeProto) -> Iterator[str]:
    """The names that a node reads, including those of graphs inside it."""
    yield from filter(None, node.input)
    for attribute in node.attribute:
        for graph in (attribute.g, *attribute.graphs):
            yield from (info.name for info in graph.output)
            for inner in graph.node:
                yield from _reads(inner)
