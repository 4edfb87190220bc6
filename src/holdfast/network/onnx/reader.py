"""Reading of .onnx and .onnx.gz files.

They are untrusted: nothing is executed, and every declared size is checked.
"""

import hashlib
from collections.abc import Iterator
from pathlib import Path

import onnx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from onnx import TensorProto

from holdfast.errors import UnreadableFile
from holdfast.files import read_unpacked
from holdfast.network.onnx.tensors import DTYPES, byte_count, check_size, tensors_of, type_name

# Largest size of an unpacked file, in bytes: the limit of protobuf. A compressed file that unpacks to more is
# malicious.
MAX_BYTES = 2**31 - 1


def read_onnx(
    path: str | Path, *, max_bytes: int = MAX_BYTES, external_hash: "hashlib._Hash | None" = None
) -> onnx.ModelProto:
    """Read a model with all its tensors.

    Args:
        max_bytes: largest size of the unpacked file, and of its external data.
        external_hash: updated with the external data, which a hash of the file does not cover.

    Raises:
        UnreadableFile: the file is missing, damaged, not ONNX, too large, or refers to files outside its
            folder.
    """
    path = Path(path)
    model = _parse_model(path, max_bytes)
    left = max_bytes
    for tensor in tensors_of(model.graph):
        if tensor.data_location == TensorProto.EXTERNAL:
            left -= _load_external(tensor, path, left)
            if external_hash is not None:
                external_hash.update(f"{tensor.name} {len(tensor.raw_data)}\n".encode() + tensor.raw_data)
        check_size(tensor, str(path))
    return model


def external_files(path: Path) -> list[Path]:
    """The files with a model's external data, sorted. UnreadableFile if one is outside the model's folder."""
    found = {
        _external(tensor, path)[0]
        for tensor in tensors_of(_parse_model(path, MAX_BYTES).graph)
        if tensor.data_location == TensorProto.EXTERNAL
    }
    return sorted(found)


def _parse_model(path: Path, max_bytes: int) -> onnx.ModelProto:
    too_large = (
        f"unpacks to more than {max_bytes} bytes, which no ONNX file should. "
        f"If you trust its source, raise max_bytes."
    )
    content = read_unpacked(path, max_bytes, too_large)
    model = onnx.ModelProto()
    try:
        model.ParseFromString(content)
    except DecodeError as error:
        raise UnreadableFile(
            f"{path}: not an ONNX model, or truncated ({error}). Export or download it again."
        ) from error
    # Random bytes may parse as a ModelProto, but only exporters write all three of these fields.
    if not (model.ir_version and model.opset_import and model.graph.output):
        raise UnreadableFile(
            f"{path}: not an ONNX model: it declares no version, no operator set or no outputs."
        )
    # protobuf returns names that are not valid text as bytes.
    if not all(isinstance(name, str) for name in _names(model.graph)):
        raise UnreadableFile(
            f"{path}: a name in the graph is not text. The file is damaged; download it again."
        )
    return model


def _names(graph: onnx.GraphProto) -> Iterator[object]:
    """All names in the graph and in the graphs inside it."""
    yield from (item.name for item in (*graph.input, *graph.output, *graph.initializer))
    for node in graph.node:
        yield from (node.op_type, node.domain, node.name, *node.input, *node.output)
        for attribute in node.attribute:
            yield attribute.name
            yield from _names(attribute.g) if attribute.HasField("g") else ()


def _external(tensor: TensorProto, path: Path) -> tuple[Path, dict[str, str]]:
    """The file with the external data of a tensor, and the entries that describe it."""
    entries = {entry.key: entry.value for entry in tensor.external_data}
    location = entries.get("location", "")
    directory = path.resolve().parent
    target = (directory / location).resolve()  # follows links, so that no link leads out of the folder
    if not location or not target.is_relative_to(directory):
        raise UnreadableFile(
            f"{path}: tensor {tensor.name!r}: its external data {location!r} are outside the model's "
            f"directory {directory}. Refused: a model may only read files in its own directory."
        )
    return target, entries


def _load_external(tensor: TensorProto, path: Path, max_bytes: int) -> int:
    """Load the external data of one tensor into the model, and return their number of bytes."""
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
            f"{where}: its values should be in {target}, which cannot be read ({error})."
        ) from error
    if int(entries.get("length", len(values)) or 0) != len(values) or len(values) != byte_count(tensor):
        raise UnreadableFile(
            f"{where}: should find {byte_count(tensor)} bytes at {offset} of {target}, found {len(values)} "
            f"and declares {entries.get('length', 'no length')}. Export or download both files again."
        )
    tensor.raw_data = values
    tensor.ClearField("external_data")
    tensor.data_location = TensorProto.DEFAULT
    return len(values)
