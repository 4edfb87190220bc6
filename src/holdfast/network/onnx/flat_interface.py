"""An ONNX model of several inputs and outputs as one of a single flat input and a single flat output.

The new input (batch, n) holds the elements of all inputs one after the other, row-major; the new output those of
the outputs and inner values that were asked for. Only Gather, Reshape, Cast and Concat nodes are added, so the
importer and onnxruntime compute the model as before.
"""

import math
from collections.abc import Sequence

import onnx
from onnx import TensorProto, helper

from holdfast.errors import BadInput
from holdfast.network.flat_tensors import FlatInterface, FlatTensor
from holdfast.network.onnx.outputs import FLOATING, prune_to_output

INPUT, OUTPUT = "holdfast_input", "holdfast_output"


def join_tensors(model: onnx.ModelProto, interface: FlatInterface, file: str) -> onnx.ModelProto:
    """Return a copy with one input and one output. BadInput if the tensors are not those of the file."""
    joined = onnx.ModelProto()
    joined.CopyFrom(model)
    graph = joined.graph
    stored = {tensor.name for tensor in graph.initializer}
    inputs = _match(interface.inputs, [i for i in graph.input if i.name not in stored], "inputs", file)
    outputs = _match(interface.outputs, list(graph.output), "outputs", file)
    hidden = [(tensor, _inner_value(graph, tensor, file)) for tensor in interface.hidden]
    kinds = {info.type.tensor_type.elem_type for _, info in inputs}
    if len(kinds) != 1 or not kinds <= set(FLOATING):
        raise BadInput(f"{file}: its inputs must be floating-point numbers of one type.")
    (kind,) = kinds
    shapes = [_input_shape(tensor, info, file) for tensor, info in inputs]
    batched = all(len(shape) > 1 and shape[0] in (None, 1) for shape in shapes)
    before: list[onnx.NodeProto] = []
    begin = 0
    for k, ((tensor, info), shape) in enumerate(zip(inputs, shapes, strict=True)):
        source = INPUT
        if len(inputs) > 1:
            numbers = _constant(graph, f"{INPUT}_places_{k}", range(begin, begin + tensor.size))
            source = f"{INPUT}_part_{k}"
            before.append(helper.make_node("Gather", [INPUT, numbers], [source], axis=1))
        sizes = _known_sizes(shape, tensor, file)
        target = _constant(graph, f"{INPUT}_shape_{k}", [-1, *sizes[1:]] if batched else sizes)
        before.append(helper.make_node("Reshape", [source, target], [info.name]))
        begin += tensor.size
    after: list[onnx.NodeProto] = []
    parts = []
    for k, (tensor, name) in enumerate([*((t, info.name) for t, info in outputs), *hidden]):
        target = _constant(graph, f"{OUTPUT}_shape_{k}", [-1, tensor.size])
        flat, cast = f"{OUTPUT}_flat_{k}", f"{OUTPUT}_part_{k}"
        after.append(helper.make_node("Reshape", [name, target], [flat]))
        after.append(helper.make_node("Cast", [flat], [cast], to=kind))
        parts.append(cast)
    after.append(helper.make_node("Concat", parts, [OUTPUT], axis=1))
    for info in [info for _, info in inputs]:
        graph.input.remove(info)
    nodes = [*before, *graph.node, *after]
    del graph.node[:]
    graph.node.extend(nodes)
    sizes_of: list[int | str] = ["batch" if batched and _is_open(shapes) else 1, begin]
    graph.input.insert(0, helper.make_tensor_value_info(INPUT, kind, sizes_of))
    total = sum(tensor.size for tensor in (*interface.outputs, *interface.hidden))
    graph.output.append(helper.make_tensor_value_info(OUTPUT, kind, [sizes_of[0], total]))
    return prune_to_output(joined, OUTPUT)


def _match(
    tensors: Sequence[FlatTensor], given: Sequence[onnx.ValueInfoProto], what: str, file: str
) -> list[tuple[FlatTensor, onnx.ValueInfoProto]]:
    """The tensors with those of the file, by name or by position."""
    listed = ", ".join(info.name for info in given)
    if len(tensors) != len(given):
        raise BadInput(f"{file}: has {len(given)} {what} ({listed}), but {len(tensors)} are declared.")
    named = {info.name: info for info in given}
    found = []
    for tensor, info in zip(tensors, given, strict=True):
        if tensor.name and tensor.name not in named:
            raise BadInput(f"{file}: among its {what} ({listed}) is no {tensor.name!r}.")
        found.append((tensor, named[tensor.name] if tensor.name else info))
    return found


def _inner_value(graph: onnx.GraphProto, tensor: FlatTensor, file: str) -> str:
    """The name of the value that a node computes; a node with a single output may be named instead."""
    for node in graph.node:
        if tensor.name in node.output:
            return tensor.name
    for node in graph.node:
        if node.name == tensor.name and len(node.output) == 1:
            return str(node.output[0])
    raise BadInput(f"{file}: no node computes {tensor.name!r}; name the output of a node as the file does.")


def _input_shape(tensor: FlatTensor, info: onnx.ValueInfoProto, file: str) -> tuple[int | None, ...]:
    """The shape of an input as the file declares it, with the declared sizes where they fit."""
    sizes = tuple(dim.dim_value if dim.dim_value > 0 else None for dim in info.type.tensor_type.shape.dim)
    if math.prod(size or 1 for size in sizes) == tensor.size or len(sizes) == len(tensor.shape):
        return sizes
    raise BadInput(
        f"{file}: the input {info.name} has the shape {[size or 'any' for size in sizes]}, declared is {list(tensor.shape)}."
    )


def _known_sizes(shape: tuple[int | None, ...], tensor: FlatTensor, file: str) -> list[int]:
    """The shape with the declared sizes in place of open ones."""
    if len(shape) == len(tensor.shape):
        sizes = [own or declared for own, declared in zip(shape, tensor.shape, strict=True)]
    else:
        sizes = [own or 1 for own in shape]
    if math.prod(sizes) != tensor.size:
        raise BadInput(
            f"{file}: an input of shape {[size or 'any' for size in shape]} is declared as {list(tensor.shape)}."
        )
    return sizes


def _is_open(shapes: Sequence[tuple[int | None, ...]]) -> bool:
    return all(shape[0] is None for shape in shapes)


def _constant(graph: onnx.GraphProto, name: str, values: Sequence[int]) -> str:
    graph.initializer.append(helper.make_tensor(name, TensorProto.INT64, [len(values)], list(values)))
    return name
