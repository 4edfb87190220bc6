"""An ONNX file as holdfast takes it up: one input, one answer, tokens split from their vectors, a black box where it must be."""

import hashlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from onnx import numpy_helper
from torch import Tensor, nn

from holdfast.errors import BadInput, UnsupportedLayer
from holdfast.network.adapter import BlackBox, tensor_of
from holdfast.network.fingerprint import combine_hashes, of_file, of_output, of_tensors
from holdfast.network.onnx.importer import import_onnx, ports
from holdfast.network.onnx.module import Port
from holdfast.network.onnx.outputs import choose_output
from holdfast.network.onnx.reader import read_onnx
from holdfast.network.onnx.runtime import OnnxRuntime, session
from holdfast.network.onnx.sizes import check_sizes

OPEN = 7  # what an open axis of an example is
LARGEST_INPUT = 2**27  # numbers, at the size that the file declares


@dataclass(frozen=True)
class OpenedOnnx:
    """What a file turned out to be. `shape` and `example` are of the module's own input, batch axis and all."""

    module: nn.Module
    shape: tuple[int | None, ...]
    example: Tensor
    black_box: bool = False
    vectors: Tensor | None = None
    token_module: nn.Module | None = None
    notes: tuple[str, ...] = field(default=())
    beside: tuple[str, ...] = field(
        default=()
    )  # hashes of what makes the model and is not in the file: external data, constants, the output chosen


def open_onnx(
    path: Path,
    *,
    black_box: bool = False,
    constants: Mapping[str, Any] | None = None,
    output: str | None = None,
) -> OpenedOnnx:
    """The file as a torch module; through onnxruntime where that is asked for or an operator is unknown, and said so.

    output: the name of the output to measure; see `choose_output`.
    """
    model, external = _with_external(path)
    chosen = choose_output(model, str(path), output)
    model = chosen.model
    inputs, _ = ports(model.graph, str(path))
    fixed = {
        name: _example_input(inputs, name, value, path) for name, value in sorted((constants or {}).items())
    }
    opened = _open_model(model, path, inputs, fixed, black_box)
    kinds = {f"{name} {value.dtype} {tuple(value.shape)}": value for name, value in fixed.items()}
    beside = (
        external,
        of_tensors(kinds, begin="constants") if kinds else "",
        of_output(chosen.name if chosen.ambiguous else None),
    )
    return replace(opened, beside=beside, notes=(*opened.notes, *filter(None, [chosen.note])))


def session_of(path: str | Path, output: str | None = None) -> OnnxRuntime:
    """The file through onnxruntime, with the output of this name alone."""
    return session(choose_output(read_onnx(path), str(path), output).model, str(path))


def of_onnx(path: Path) -> str:
    """The hash of a file and of the external data that it reads."""
    return combine_hashes(of_file(path), _with_external(path)[1])


def _with_external(path: Path) -> tuple[onnx.ModelProto, str]:
    """The model, and the hash of its external data; "" where there are none."""
    data = hashlib.sha256()
    empty = data.hexdigest()
    model = read_onnx(path, beside=data)
    return model, "" if data.hexdigest() == empty else data.hexdigest()


def _open_model(
    model: onnx.ModelProto, path: Path, inputs: tuple[Port, ...], fixed: Mapping[str, Tensor], black_box: bool
) -> OpenedOnnx:
    free = [port for port in inputs if port.name not in fixed]
    if len(free) != 1:
        described = ", ".join(f"{p.name} {_shape_text(p.shape)}" for p in free)
        raise BadInput(
            f"{path}: the model has {len(free)} inputs ({described}); holdfast moves exactly one. Give the others a value: "
            f"constants={{'name': value}}, or --constant name=value."
        )
    (port,) = free
    if not port.shape:
        raise BadInput(
            f"{path}: the input {port.name} is a single number or of no declared shape. Export the file with the shape of its input."
        )
    if math.prod(size or OPEN for size in port.shape) > LARGEST_INPUT:
        raise BadInput(
            f"{path}: the input {port.name} {_shape_text(port.shape)} is larger than {LARGEST_INPUT} numbers. Is it damaged?"
        )
    if black_box:
        return _black_box(
            model, path, port, fixed, "asked to run as a black box: no gradients, nothing can be proved"
        )
    try:
        module = import_onnx(model, str(path), constants=fixed)
        if port.dtype.is_floating_point:
            example = _example(port)
            check_sizes(module, example, str(path))
            return OpenedOnnx(module, port.shape, example)
        return _split(model, path, module, port, fixed)
    except UnsupportedLayer as error:
        return _black_box(model, path, port, fixed, f"{error} It runs as a black box now.")


def _black_box(
    model: onnx.ModelProto, path: Path, port: Port, fixed: Mapping[str, Tensor], note: str
) -> OpenedOnnx:
    run = session(model, str(path))
    values = {name: value.numpy() for name, value in fixed.items()}

    def ask(x: "np.ndarray[Any, Any]") -> Any:
        return run(*(x if p.name == port.name else values[p.name] for p in run.inputs))

    return OpenedOnnx(
        BlackBox(_each(ask, port)), port.shape, _example(port).float(), black_box=True, notes=(note,)
    )


def _each(ask: Callable[[Any], Any], port: Port) -> Callable[[Any], Any]:
    """A file with a fixed batch size is asked row by row."""
    if port.shape[:1] != (1,):
        return ask
    return lambda x: np.concatenate([np.asarray(ask(row[None])).reshape(1, -1) for row in x])


def _split(
    model: onnx.ModelProto, path: Path, module: nn.Module, port: Port, fixed: Mapping[str, Tensor]
) -> OpenedOnnx:
    """A token model: the Gather that looks the tokens up is cut out, and its output becomes the input."""
    weights = {t.name: t for t in model.graph.initializer}
    readers = [n for n in model.graph.node if port.name in n.input]
    lookups = [
        n
        for n in readers
        if n.op_type == "Gather" and n.input[1] == port.name and n.input[0] in weights and not _axis(n)
    ]
    others = [n for n in readers if n not in lookups and n.op_type != "Shape"]
    if others or len(lookups) != 1:
        found = f"also read by {others[0].op_type}" if others else f"looked up {len(lookups)} times"
        raise UnsupportedLayer(
            f"{path}: the input {port.name} holds integers that are {found}, not looked up in one table of vectors, so there is no space "
            f"in which they could move a little."
        )
    (lookup,) = lookups
    vectors = torch.from_numpy(numpy_helper.to_array(weights[lookup.input[0]]).copy())
    if vectors.dim() != 2 or not vectors.is_floating_point():
        raise UnsupportedLayer(
            f"{path}: the input {port.name} is looked up in a table of shape {tuple(vectors.shape)}, not (words, numbers)."
        )
    if not bool(vectors.isfinite().all()):
        raise BadInput(
            f"{path}: its table of vectors, {lookup.input[0]}, holds NaN or infinity. The training diverged, or it is damaged."
        )
    rest = onnx.ModelProto()
    rest.CopyFrom(model)
    graph = rest.graph
    graph.node.remove(lookup)
    for node in graph.node:
        for place, name in enumerate(node.input):
            if name == port.name:  # only Shape is left, and the axes of the tokens stand in the same places
                node.input[place] = lookup.output[0]
    old = next(i for i in graph.input if i.name == port.name)
    graph.input.remove(old)
    sizes = [size if size is not None else f"free{i}" for i, size in enumerate(port.shape)]
    graph.input.append(
        onnx.helper.make_tensor_value_info(
            lookup.output[0], onnx.TensorProto.FLOAT, [*sizes, vectors.shape[1]]
        )
    )
    behind = import_onnx(rest, str(path), constants=fixed)
    tokens = _example(port).random_(0, len(vectors), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        whole, parts = tensor_of(module(tokens)), tensor_of(behind(vectors[tokens.long()]))
    if not torch.allclose(whole, parts, rtol=1e-4, atol=1e-5):
        raise UnsupportedLayer(
            f"{path}: behind its table of vectors the model does not answer as the whole model does."
        )
    shape = (*port.shape, vectors.shape[1])
    return OpenedOnnx(behind, shape, vectors[tokens.long()], vectors=vectors, token_module=module)


def _axis(node: onnx.NodeProto) -> int:
    return next((int(a.i) for a in node.attribute if a.name == "axis"), 0)


def _example(port: Port) -> Tensor:
    return torch.zeros(
        [size if size is not None else 2 if place == 0 else OPEN for place, size in enumerate(port.shape)],
        dtype=port.dtype,
    )


def _example_input(inputs: tuple[Port, ...], name: str, value: Any, path: Path) -> Tensor:
    """A number fills the declared shape, open axes at one; numbers in a row take that shape where they fill it; an array must fit it."""
    port = next((p for p in inputs if p.name == name), None)
    if port is None:
        raise BadInput(
            f"{path}: there is no input named {name!r}; there are {', '.join(p.name for p in inputs)}."
        )
    try:
        tensor = torch.as_tensor(value).to(port.dtype)
    except (TypeError, ValueError, RuntimeError) as error:
        raise BadInput(
            f"{path}: the constant {name!r} must be a number or an array of numbers ({error})."
        ) from error
    least = [1 if size is None else size for size in port.shape]
    if not tensor.dim():
        return torch.full(least, tensor.item(), dtype=port.dtype)
    if tensor.dim() == 1 and len(least) > 1 and tensor.numel() == math.prod(least):
        return tensor.reshape(least)
    fits = len(least) == tensor.dim() and all(
        size in (None, own) for size, own in zip(port.shape, tensor.shape, strict=True)
    )
    if least and not fits:
        raise BadInput(
            f"{path}: the constant {name!r} has shape {tuple(tensor.shape)}, the file declares {_shape_text(port.shape)}. Give a number "
            f"for all of it, {math.prod(least)} numbers in a row, or an array of that shape."
        )
    return tensor


def _shape_text(shape: tuple[int | None, ...]) -> str:
    return "x".join("any" if d is None else str(d) for d in shape) or "a number"
