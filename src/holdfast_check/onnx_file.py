"""An .onnx file as a graph: protocol buffers are read here, field by field, by the numbers that onnx.proto gives them."""

import struct
from collections.abc import Iterator
from typing import Any

import numpy as np

from holdfast_check.arithmetic import Array
from holdfast_check.errors import Rejected
from holdfast_check.graph import Graph, Node

Field = tuple[int, int | bytes]
# TensorProto.DataType: how raw data are stored, and the field that holds the numbers where they are not raw
TYPES = {1: ("<f4", 4), 11: ("<f8", 10), 7: ("<i8", 7), 6: ("<i4", 5), 9: ("|b1", 5), 10: ("<f2", 5), 2: ("<u1", 5), 3: ("<i1", 5)}


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value, shift, at = value | (byte & 127) << shift, shift + 7, at + 1
        if byte < 128:
            return value, at
        if shift > 63:
            raise ValueError("a number of more than 64 bits")


def _fields(data: bytes) -> Iterator[Field]:
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        number, kind = key >> 3, key & 7
        if kind == 0:
            value, at = _varint(data, at)
            yield number, value
            continue
        if kind == 2:
            length, at = _varint(data, at)
        else:
            length = {1: 8, 5: 4}[kind]
        if at + length > len(data):
            raise ValueError("a field is longer than the file")
        yield number, data[at : at + length]
        at += length


def _message(data: int | bytes) -> dict[int, list[Any]]:
    if isinstance(data, int):
        raise ValueError("a number where a message belongs")
    found: dict[int, list[Any]] = {}
    for number, value in _fields(data):
        found.setdefault(number, []).append(value)
    return found


def _signed(value: int) -> int:
    return value - 2**64 if value >= 2**63 else value


def _integers(values: list[Any]) -> list[int]:
    """Packed or one by one."""
    found: list[int] = []
    for value in values:
        if isinstance(value, int):
            found.append(_signed(value))
            continue
        at = 0
        while at < len(value):
            number, at = _varint(value, at)
            found.append(_signed(number))
    return found


def _tensor(data: bytes) -> Array:
    message = _message(data)
    if message.get(14, [0])[0] == 1 or 13 in message:
        raise Rejected("weights in other files than the model's are not read")
    stored, field = TYPES[message[2][0]]
    shape = _integers(message.get(1, []))
    if 9 in message:
        return np.frombuffer(message[9][0], dtype=stored).reshape(shape)
    if field in (4, 10):
        return np.frombuffer(b"".join(message.get(field, [])), dtype=stored).reshape(shape)
    integers = np.array(_integers(message.get(field, [])), dtype=np.int64)
    return (integers.astype("<u2").view("<f2") if stored == "<f2" else integers.astype(stored)).reshape(shape)


def _attribute(data: bytes) -> tuple[str, Any]:
    message = _message(data)
    kind = message.get(20, [0])[0]
    if kind == 1:
        [value] = struct.unpack("<f", message[2][0])
    elif kind == 2:
        value = _signed(message.get(3, [0])[0])
    elif kind == 3:
        value = message[4][0].decode()
    elif kind == 4:
        value = _tensor(message[5][0])
    elif kind == 6:
        value = [struct.unpack("<f", part[at : at + 4])[0] for part in message.get(7, []) for at in range(0, len(part), 4)]
    elif kind == 7:
        value = _integers(message.get(8, []))
    elif kind == 8:
        value = [part.decode() for part in message.get(9, [])]
    else:
        raise Rejected(f"an attribute of kind {kind} is not known to this checker")
    return message[1][0].decode(), value


def _shape(info: dict[int, list[Any]]) -> tuple[int, ...]:
    """Of a ValueInfoProto: type (2), tensor_type (1), shape (2), dim (1), dim_value (1). An open first size is a batch, of one."""
    dims = [_message(dim) for dim in _message(_message(_message(info[2][0])[1][0])[2][0]).get(1, [])]
    sizes = [int(dim.get(1, [0])[0]) for dim in dims]
    if sizes and sizes[0] == 0:
        sizes[0] = 1
    if 0 in sizes:
        raise Rejected(f"the input has an open size: {sizes}")
    return tuple(sizes)


def read(data: bytes, numbers: int | None = None) -> Graph:
    """numbers: how many an input has, for a model whose input has no fixed length."""
    try:
        graph = _message(_message(data)[7][0])
        constants = {_message(part)[8][0].decode(): _tensor(part) for part in graph.get(5, [])}
        nodes = []
        for part in graph.get(1, []):
            message = _message(part)
            if message.get(7, [b""])[0] not in (b"", b"ai.onnx"):
                raise Rejected(f"operators of {message[7][0].decode()} are not known to this checker")
            inputs, outputs = (tuple(name.decode() for name in message.get(number, [])) for number in (1, 2))
            nodes.append(Node(message[4][0].decode(), inputs, outputs, dict(map(_attribute, message.get(5, [])))))
        infos = [_message(part) for part in graph.get(11, [])]
        inputs = [info for info in infos if info[1][0].decode() not in constants]
        if len(inputs) != 1 or not graph.get(12):
            raise Rejected(f"the model has {len(inputs)} inputs; this checker knows models with one")
        output = _message(graph[12][0])[1][0].decode()
        return Graph(inputs[0][1][0].decode(), _shape(inputs[0]), output, tuple(nodes), constants)
    except (ValueError, KeyError, TypeError, IndexError, struct.error, AttributeError, OverflowError) as error:
        raise Rejected(f"no .onnx file that this checker can read ({type(error).__name__}: {error})") from error
