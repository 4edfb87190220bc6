"""Opens .onnx and .onnx.gz files. They are untrusted: nothing is executed, and no size is believed."""

import hashlib
from collections.abc import Iterator
from pathlib import Path

import onnx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from onnx import TensorProto

from holdfast.errors import UnreadableFile
from holdfast.files import read_unpacked
from holdfast.network.onnx.tensors import DTYPES, byte_count, check_size, tensors_of, type_name

MAX_BYTES = 2**31 - 1
"""protobuf itself ends here, so no honest file is larger; a small compressed one that unpacks further is not honest."""


def read_onnx(
    path: str | Path, *, max_bytes: int = MAX_BYTES, beside: "hashlib._Hash | None" = None
) -> onnx.ModelProto:
    """Reads a model with all its tensors; `max_bytes` bounds what it may take unpacked, and its external data, which goes into the
    hash `beside` as well: the file itself does not tell it.

    Raises UnreadableFile where the file is missing, damaged, not ONNX, too large, or points outside its directory.
    """
    path = Path(path)
    model = _parse_model(path, max_bytes)
    left = max_bytes
    for tensor in tensors_of(model.graph):
        if tensor.data_location == TensorProto.EXTERNAL:
            left -= _load_external(tensor, path, left)
            if beside is not None:
                beside.update(f"{tensor.name} {len(tensor.raw_data)}\n".encode() + tensor.raw_data)
        check_size(tensor, str(path))
    return model


def external_files(path: Path) -> list[Path]:
    """The files beside a model that its tensors lie in, by their names; those that lead elsewhere are refused as by `read_onnx`."""
    found = {
        _external(tensor, path)[0]
        for tensor in tensors_of(_parse_model(path, MAX_BYTES).graph)
        if tensor.data_location == TensorProto.EXTERNAL
    }
    return sorted(found)


def _parse_model(path: Path, max_bytes: int) -> onnx.ModelProto:
    too_large = f"unpacks to more than {max_bytes} bytes, which no ONNX file should. If it is to be trusted, raise max_bytes."
    content = read_unpacked(path, max_bytes, too_large)
    model = onnx.ModelProto()
    try:
        model.ParseFromString(content)
    except DecodeError as error:
        raise UnreadableFile(
            f"{path}: not an ONNX model, or truncated ({error}). Export or download it again."
        ) from error
    # Any bytes that happen to parse make a ModelProto; only an exporter writes all three of these.
    if not (model.ir_version and model.opset_import and model.graph.output):
        raise UnreadableFile(
            f"{path}: not an ONNX model: it declares no version, no operator set or no outputs."
        )
    if not all(
        isinstance(name, str) for name in _names(model.graph)
    ):  # protobuf hands out what is not text as bytes
        raise UnreadableFile(
            f"{path}: a name in the graph is not text. The file is damaged; download it again."
        )
    return model


def _names(graph: onnx.GraphProto) -> Iterator[object]:
    """Every name in the graph and the graphs within it."""
    yield from (item.name for item in (*graph.input, *graph.output, *graph.initializer))
    for node in graph.node:
        yield from (node.op_type, node.domain, node.name, *node.input, *node.output)
        for attribute in node.attribute:
            yield attribute.name
            yield from _names(attribute.g) if attribute.HasField("g") else ()


def _external(tensor: TensorProto, path: Path) -> tuple[Path, dict[str, str]]:
    """Where its values lie, and what else is said of them."""
    entries = {entry.key: entry.value for entry in tensor.external_data}
    location = entries.get("location", "")
    directory = path.resolve().parent
    target = (directory / location).resolve()  # follows links, so that none leads out unseen
    if not location or not target.is_relative_to(directory):
        raise UnreadableFile(
            f"{path}: tensor {tensor.name!r}: its values are said to lie in {location!r}, outside the model's directory {directory}. "
            f"Refused: a model may only read files beside it."
        )
    return target, entries


def _load_external(tensor: TensorProto, path: Path, max_bytes: int) -> int:
    """Moves the values of one tensor from the file they lie in into the model; returns their number of bytes."""
    where = f"{path}: tensor {tensor.name!r}"
    if tensor.data_type not in DTYPES:
        raise UnreadableFile(f"{where}: {type_name(tensor.data_type)} values in another file cannot be read.")
    target, entries = _external(tensor, path)
    if any(size < 0 for size in tensor.dims) or byte_count(tensor) > max_bytes:
        raise UnreadableFile(
            f"{where}: dimensions {list(tensor.dims)} are negative or more than max_bytes allows."
        )
    try:
        offset = int(entries.get("offset", 0))
        with target.open("rb") as file:
            file.seek(offset)
            values = file.read(byte_count(tensor))
    except (OSError, ValueError) as error:
        raise UnreadableFile(
            f"{where}: its values should lie in {target}, which cannot be read ({error})."
        ) from error
    if int(entries.get("length", len(values)) or 0) != len(values) or len(values) != byte_count(tensor):
        raise UnreadableFile(
            f"{where}: should find {byte_count(tensor)} bytes at {offset} of {target}, found {len(values)} and "
            f"declares {entries.get('length', 'no length')}. Export or download both files again."
        )
    tensor.raw_data = values
    tensor.ClearField("external_data")
    tensor.data_location = TensorProto.DEFAULT
    return len(values)
