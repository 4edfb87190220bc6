"""ONNX tensors and types as torch's.

Nothing is executed, and every declared size is checked before it is used.
"""

import math

import onnx
import torch
from onnx import TensorProto, numpy_helper
from torch import Tensor

from holdfast.errors import UnreadableFile, UnsupportedLayer

DTYPES: dict[int, torch.dtype] = {
    TensorProto.BOOL: torch.bool,
    TensorProto.UINT8: torch.uint8,
    TensorProto.UINT16: torch.uint16,
    TensorProto.UINT32: torch.uint32,
    TensorProto.UINT64: torch.uint64,
    TensorProto.INT8: torch.int8,
    TensorProto.INT16: torch.int16,
    TensorProto.INT32: torch.int32,
    TensorProto.INT64: torch.int64,
    TensorProto.FLOAT16: torch.float16,
    TensorProto.BFLOAT16: torch.bfloat16,
    TensorProto.FLOAT: torch.float32,
    TensorProto.DOUBLE: torch.float64,
}

# The field that holds values that are not raw bytes; all other types use int32_data.
_FIELDS: dict[int, str] = {
    TensorProto.FLOAT: "float_data",
    TensorProto.DOUBLE: "double_data",
    TensorProto.INT64: "int64_data",
    TensorProto.UINT32: "uint64_data",
    TensorProto.UINT64: "uint64_data",
}


def type_name(code: int) -> str:
    """The name of an ONNX element type, or its number if it has no name."""
    names: dict[int, str] = {value: name for name, value in TensorProto.DataType.items()}
    return names.get(code, f"type {code}")


def byte_count(tensor: TensorProto) -> int:
    """The number of bytes for the declared dimensions of a tensor of a known type."""
    count: int = math.prod(tensor.dims)
    return count * DTYPES[tensor.data_type].itemsize


def check_size(tensor: TensorProto, where: str) -> None:
    """Raise UnreadableFile if the number of stored values differs from the declared dimensions."""
    if any(size < 0 for size in tensor.dims):
        raise UnreadableFile(f"{where}: tensor {tensor.name!r} has negative dimensions {list(tensor.dims)}.")
    if tensor.data_type not in DTYPES or tensor.data_location == TensorProto.EXTERNAL:
        return
    if tensor.HasField("raw_data"):
        held, declared, unit = len(tensor.raw_data), byte_count(tensor), "bytes"
    else:
        field = _FIELDS.get(tensor.data_type, "int32_data")
        held, declared, unit = len(getattr(tensor, field)), math.prod(tensor.dims), "values"
    if held != declared:
        raise UnreadableFile(
            f"{where}: tensor {tensor.name!r} of dimensions {list(tensor.dims)} should hold {declared} "
            f"{unit} but holds {held}. The file is damaged; export or download it again."
        )


def as_torch(tensor: TensorProto, where: str) -> Tensor:
    """The values as a torch tensor of the same type and shape, in memory of its own."""
    if tensor.data_type not in DTYPES:
        raise UnsupportedLayer(
            f"{where}: tensor {tensor.name!r} is of type {type_name(tensor.data_type)}, which cannot be "
            f"imported."
        )
    if tensor.data_location == TensorProto.EXTERNAL:
        raise UnreadableFile(
            f"{where}: the values of tensor {tensor.name!r} are in another file. "
            f"Open the model with read_onnx(path), which reads them."
        )
    check_size(tensor, where)
    array = numpy_helper.to_array(tensor)
    if tensor.data_type == TensorProto.BFLOAT16:  # onnx's numpy type for it is unknown to torch
        return torch.from_numpy(array.astype("float32")).to(torch.bfloat16)
    return torch.from_numpy(array.copy())


def tensors_of(graph: onnx.GraphProto) -> list[TensorProto]:
    """All tensors stored in the graph, in the attributes of its nodes and in nested graphs."""
    found = list(graph.initializer)
    for attribute in (attribute for node in graph.node for attribute in node.attribute):
        found += [attribute.t] if attribute.HasField("t") else []
        found += attribute.tensors
        for inner in [*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs]:
            found += tensors_of(inner)
    return found
