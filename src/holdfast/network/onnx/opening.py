"""ONNX files as modules with one input and one output, token models split from their embedding, or as black
boxes."""

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
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
from holdfast.network.flat_tensors import FlatInterface, FlatTensor
from holdfast.network.low_precision import DYNAMIC_NOTE
from holdfast.network.onnx.flat_interface import join_tensors
from holdfast.network.onnx.importer import import_onnx, ports
from holdfast.network.onnx.module import Port
from holdfast.network.onnx.outputs import choose_output
from holdfast.network.onnx.quantised_groups import is_dynamic
from holdfast.network.onnx.reader import read_onnx
from holdfast.network.onnx.runtime import OnnxRuntime, session
from holdfast.network.onnx.sizes import check_sizes
from holdfast.network.several_inputs import Sizes, flat_tensors

# Size of an axis of the example input whose size the file leaves open (chosen by hand).
OPEN = 7
# Batch size of the example input if the file leaves it open (chosen by hand).
OPEN_BATCH = 2
# Largest number of elements of an input, at the size that the file declares (chosen by hand).
LARGEST_INPUT = 2**27
# Largest difference between outputs by ids and by word vectors that is attributed to rounding (chosen by
# hand).
RELATIVE_TOLERANCE = 1e-4
ABSOLUTE_TOLERANCE = 1e-5


@dataclass(frozen=True)
class OpenedOnnx:
    """An opened file.

    Attributes:
        shape: of the module's input, with the batch axis; None for an axis of any size.
        example: an input of the module.
        vectors: (words, dim), the embedding of a token model; `module` then takes word vectors.
        token_module: the whole token model.
        dynamic: grids depend on the whole batch, so inputs are evaluated one by one.
        extra_hashes: hashes of parts of the model outside the file: external data, constants, the chosen
            output.
    """

    module: nn.Module
    shape: tuple[int | None, ...]
    example: Tensor
    black_box: bool = False
    vectors: Tensor | None = None
    token_module: nn.Module | None = None
    notes: tuple[str, ...] = field(default=())
    extra_hashes: tuple[str, ...] = field(default=())
    dynamic: bool = False
    input_tensors: tuple[FlatTensor, ...] = ()


def open_onnx(
    path: Path,
    *,
    black_box: bool = False,
    batched: bool = True,
    constants: Mapping[str, Any] | None = None,
    output: str | None = None,
    interface: FlatInterface | None = None,
    inputs: Sequence[str] | Sizes | None = None,
) -> OpenedOnnx:
    """The file as a torch module; with onnxruntime and a note if black_box=True or an operator is unknown.

    Args:
        batched: whether the input has a batch axis.
        constants: values for all inputs except the perturbed one.
        output: the name of the output to measure; see `choose_output`.
        interface: joins several inputs into one, and several outputs and inner values.
        inputs: the names of the inputs that are perturbed together, if there are several.
    """
    model, external = _with_external(path)
    held: tuple[FlatTensor, ...] = ()
    before: dict[str, Tensor] = {}
    if inputs is not None:
        model, interface, before = _join_named(model, path, inputs, constants or {}, output)
        held, constants, output = interface.inputs, None, None
    elif interface is not None:
        model = join_tensors(model, interface, str(path))
    chosen = choose_output(model, str(path), output)
    model = chosen.model
    declared, _ = ports(model.graph, str(path))
    fixed = {
        name: _example_input(declared, name, value, path) for name, value in sorted((constants or {}).items())
    }
    opened = _open_model(model, path, declared, fixed, black_box, batched)
    kinds = {
        f"{name} {value.dtype} {tuple(value.shape)}": value for name, value in {**fixed, **before}.items()
    }
    extra_hashes = (
        external,
        of_tensors(kinds, begin="constants") if kinds else "",
        of_output(chosen.name if chosen.ambiguous else None),
        "" if interface is None else of_output(repr(interface)),
    )
    notes = (*opened.notes, *filter(None, [chosen.note]))
    return replace(opened, extra_hashes=extra_hashes, notes=notes, input_tensors=held)


def _join_named(
    model: onnx.ModelProto,
    path: Path,
    inputs: Sequence[str] | Sizes,
    constants: Mapping[str, Any],
    output: str | None,
) -> tuple[onnx.ModelProto, FlatInterface, dict[str, Tensor]]:
    """The model with one flat input for the named ones, and with constants in place of all others."""
    names = [inputs] if isinstance(inputs, str) else list(inputs)
    sizes = (
        {tensor.name: tensor.shape for tensor in flat_tensors(inputs, "inputs")}
        if isinstance(inputs, Mapping)
        else {}
    )
    chosen = onnx.ModelProto()
    chosen.CopyFrom(choose_output(model, str(path), output).model)
    graph = chosen.graph
    declared = {port.name: port for port in ports(graph, str(path))[0]}
    listed = ", ".join(f"{name} {_shape_text(port.shape)}" for name, port in declared.items())
    strange = next((name for name in (*names, *constants) if name not in declared), None)
    if strange is not None or len(set(names)) < len(names):
        raise BadInput(f"{path}: {strange!r} is no input of the model, or is named twice; it has {listed}.")
    left = [name for name in declared if name not in names and name not in constants]
    if left or set(names) & set(constants):
        raise BadInput(
            f"{path}: the model has the inputs {listed}. Name each in inputs, or give it a value in constants; "
            f"{', '.join(left) or 'one of them'} is in {'neither' if left else 'both'}."
        )
    fixed = {
        name: _example_input(tuple(declared.values()), name, value, path) for name, value in constants.items()
    }
    for name, value in fixed.items():
        graph.initializer.append(numpy_helper.from_array(value.numpy(), name))
        graph.input.remove(next(info for info in graph.input if info.name == name))
    tensors = []
    for name in (name for name in declared if name in names):
        shape = declared[name].shape
        own = shape[1:] if len(shape) > 1 and shape[0] in (None, 1) else shape
        known = sizes.get(name, own)
        if len(known) != len(own) or any(a not in (None, b) for a, b in zip(own, known, strict=True)):
            raise BadInput(
                f"{path}: the input {name} is {_shape_text(own)}, inputs say {_shape_text(known)}."
            )
        if None in known:
            raise BadInput(
                f"{path}: the file leaves the size of {name} open ({_shape_text(shape)}): give it, as in "
                f'inputs={{"{name}": 8}}.'
            )
        tensors.append(FlatTensor(name, tuple(size or 1 for size in known)))
    [info] = graph.output
    ends = [dim.dim_value for dim in info.type.tensor_type.shape.dim]
    if not ends or any(size < 1 for size in ends[1:]):
        raise BadInput(
            f"{path}: the file does not declare the shape of its output {info.name}; export it again."
        )
    end = FlatTensor(info.name, tuple(ends[1:]) if len(ends) > 1 else tuple(ends))
    declared_shapes = tuple(
        FlatTensor(tensor.name, _with_batch(declared[tensor.name].shape, tensor.shape)) for tensor in tensors
    )
    joined = join_tensors(chosen, FlatInterface(declared_shapes, (end,)), str(path))
    return joined, FlatInterface(tuple(tensors), (end,)), fixed


def _with_batch(shape: tuple[int | None, ...], own: tuple[int, ...]) -> tuple[int, ...]:
    """The sizes of one input with the batch axis of size one, if the file declares such an axis."""
    return own if len(shape) == len(own) else (1, *own)


def session_of(
    path: str | Path, output: str | None = None, interface: FlatInterface | None = None
) -> OnnxRuntime:
    """An onnxruntime session of the file with only the output of this name, or with joined tensors."""
    model = read_onnx(path)
    if interface is not None:
        model = join_tensors(model, interface, str(path))
    return session(choose_output(model, str(path), output).model, str(path))


def of_onnx(path: Path) -> str:
    """The hash of a file and its external data."""
    return combine_hashes(of_file(path), _with_external(path)[1])


def _with_external(path: Path) -> tuple[onnx.ModelProto, str]:
    """The model, and the hash of its external data; "" if there are none."""
    data = hashlib.sha256()
    empty = data.hexdigest()
    model = read_onnx(path, external_hash=data)
    return model, "" if data.hexdigest() == empty else data.hexdigest()


def _open_model(
    model: onnx.ModelProto,
    path: Path,
    inputs: tuple[Port, ...],
    fixed: Mapping[str, Tensor],
    black_box: bool,
    batched: bool,
) -> OpenedOnnx:
    free = [port for port in inputs if port.name not in fixed]
    if len(free) != 1:
        described = ", ".join(f"{p.name} {_shape_text(p.shape)}" for p in free)
        raise BadInput(
            f"{path}: the model has {len(free)} inputs ({described}); holdfast perturbs one. "
            f"Give the others a value (constants={{'name': value}}, --constant name=value), or perturb several "
            f"together: inputs=[{', '.join(repr(p.name) for p in free[:2])}], --inputs "
            f"{','.join(p.name for p in free[:2])}."
        )
    (port,) = free
    if not port.shape:
        raise BadInput(
            f"{path}: the input {port.name} is a single number or of no declared shape. "
            f"Export the file with the shape of its input."
        )
    if math.prod(size or OPEN for size in port.shape) > LARGEST_INPUT:
        raise BadInput(
            f"{path}: the input {port.name} {_shape_text(port.shape)} is larger than {LARGEST_INPUT} "
            f"numbers. Is it damaged?"
        )
    if black_box:
        note = "runs as a black box, as requested: no gradients, nothing can be proved"
        return _black_box(model, path, port, fixed, note, batched)
    try:
        module = import_onnx(model, str(path), constants=fixed)
        if port.dtype.is_floating_point:
            example = _example(port)
            check_sizes(module, example, str(path))
            dynamic = is_dynamic(model)
            notes = (DYNAMIC_NOTE,) if dynamic else ()
            return OpenedOnnx(module, port.shape, example, notes=notes, dynamic=dynamic)
        return _split(model, path, module, port, fixed)
    except UnsupportedLayer as error:
        return _black_box(model, path, port, fixed, f"{error} It runs as a black box now.", batched)


def _black_box(
    model: onnx.ModelProto, path: Path, port: Port, fixed: Mapping[str, Tensor], note: str, batched: bool
) -> OpenedOnnx:
    run = session(model, str(path))
    values = {name: value.numpy() for name, value in fixed.items()}

    def evaluate(x: "np.ndarray[Any, Any]") -> Any:
        return run(*(x if p.name == port.name else values[p.name] for p in run.inputs))

    dynamic = is_dynamic(model)
    function = _row_by_row(evaluate) if batched and (dynamic or port.shape[:1] == (1,)) else evaluate
    module = BlackBox(function, batched=batched)
    notes = (note, *([DYNAMIC_NOTE] if dynamic else []))
    return OpenedOnnx(module, port.shape, _example(port).float(), black_box=True, notes=notes)


def _row_by_row(evaluate: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """The function, called for each row of a batch."""
    return lambda x: np.concatenate([np.asarray(evaluate(row[None])).reshape(1, -1) for row in x])


def _split(
    model: onnx.ModelProto, path: Path, module: nn.Module, port: Port, fixed: Mapping[str, Tensor]
) -> OpenedOnnx:
    """A token model without the Gather that looks up the tokens, whose output becomes the input."""
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
            f"{path}: the input {port.name} holds integers that are {found}, not looked up in one table of "
            f"vectors, so there are no word vectors to perturb."
        )
    (lookup,) = lookups
    vectors = torch.from_numpy(numpy_helper.to_array(weights[lookup.input[0]]).copy())
    if vectors.dim() != 2 or not vectors.is_floating_point():
        raise UnsupportedLayer(
            f"{path}: the input {port.name} is looked up in a table of shape {tuple(vectors.shape)}, "
            f"not (words, numbers)."
        )
    if not bool(vectors.isfinite().all()):
        raise BadInput(
            f"{path}: its table of vectors, {lookup.input[0]}, holds NaN or infinity. "
            f"The training diverged, or it is damaged."
        )
    rest = onnx.ModelProto()
    rest.CopyFrom(model)
    graph = rest.graph
    graph.node.remove(lookup)
    for node in graph.node:
        for i, name in enumerate(node.input):
            if name == port.name:  # only Shape is left, and the axes of the tokens keep their positions
                node.input[i] = lookup.output[0]
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
        by_ids, by_vectors = tensor_of(module(tokens)), tensor_of(behind(vectors[tokens.long()]))
    if not torch.allclose(by_ids, by_vectors, rtol=RELATIVE_TOLERANCE, atol=ABSOLUTE_TOLERANCE):
        raise UnsupportedLayer(
            f"{path}: behind its table of vectors the model does not answer as the whole model does."
        )
    shape = (*port.shape, vectors.shape[1])
    return OpenedOnnx(behind, shape, vectors[tokens.long()], vectors=vectors, token_module=module)


def _axis(node: onnx.NodeProto) -> int:
    return next((int(a.i) for a in node.attribute if a.name == "axis"), 0)


def _example(port: Port) -> Tensor:
    """Zeros in the shape of an input."""
    open_sizes = [OPEN_BATCH if axis == 0 else OPEN for axis in range(len(port.shape))]
    shape = [default if size is None else size for size, default in zip(port.shape, open_sizes, strict=True)]
    return torch.zeros(shape, dtype=port.dtype)


def _example_input(inputs: tuple[Port, ...], name: str, value: Any, path: Path) -> Tensor:
    """The value of a constant input as a tensor of its declared shape.

    A single number fills the shape, with size one for open axes. A list of numbers is reshaped if it has the
    right length. An array must have the shape.
    """
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
            f"{path}: the constant {name!r} has shape {tuple(tensor.shape)}, the file declares "
            f"{_shape_text(port.shape)}. Give a number for all of it, {math.prod(least)} numbers in a row, "
            f"or an array of that shape."
        )
    return tensor


def _shape_text(shape: tuple[int | None, ...]) -> str:
    return "x".join("any" if d is None else str(d) for d in shape) or "a number"
