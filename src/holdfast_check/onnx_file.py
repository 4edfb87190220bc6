"""An .onnx file as a graph: protocol buffers are read here, field by field, by the numbers that onnx.proto gives them."""

import struct
from collections.abc import Callable
from typing import Any

import numpy as np

from holdfast_check.arithmetic import Array
from holdfast_check.errors import Rejected
from holdfast_check.graph import Graph, Node

Message = dict[int, list[Any]]  # number of a field -> its values: integers, or bytes
# TensorProto.DataType: how raw data are stored, and the field that holds the numbers where they are not raw.
TYPES = {1: ("<f4", 4), 11: ("<f8", 10), 7: ("<i8", 7), 6: ("<i4", 5), 9: ("|b1", 5), 2: ("<u1", 5), 3: ("<i1", 5)}


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value, shift, at = value | (byte & 127) << shift, shift + 7, at + 1
        if byte < 128:
            return (value - 2**64 if value >= 2**63 else value), at
        if shift > 63:
            raise ValueError("a number of more than 64 bits")


def _message(data: Any) -> Message:
    found: Message = {}
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        value: int | bytes
        if key & 7 == 0:
            value, at = _varint(data, at)
        else:
            length, at = _varint(data, at) if key & 7 == 2 else ({1: 8, 5: 4}[key & 7], at)
            if length < 0 or at + length > len(data):
                raise ValueError("a field is longer than the file")
            value, at = data[at : at + length], at + length
        found.setdefault(key >> 3, []).append(value)
    return found


def _integers(values: list[Any]) -> list[int]:
    """Packed or one by one."""
    found: list[int] = []
    for value in values:
        at = 0
        while not isinstance(value, int) and at < len(value):
            number, at = _varint(value, at)
            found.append(number)
        found += [value] if isinstance(value, int) else []
    return found


def _tensor(data: bytes) -> Array:
    message = _message(data)
    if message.get(14, [0])[0] == 1 or 13 in message:
        raise Rejected("weights in other files than the model's are not read")
    stored, field = TYPES[message[2][0]]
    shape = _integers(message.get(1, []))
    if 9 in message or field in (4, 10):
        return np.frombuffer(b"".join(message.get(9 if 9 in message else field, [])), dtype=stored).reshape(shape)
    return np.array(_integers(message.get(field, [])), dtype=np.int64).astype(stored).reshape(shape)


def _attribute(data: bytes) -> tuple[str, Any]:
    """By its kind: a number, an integer, a word, a tensor, or several of the first three."""
    message = _message(data)
    kinds: dict[int, Callable[[], Any]] = {
        1: lambda: struct.unpack("<f", message[2][0])[0], 2: lambda: message.get(3, [0])[0], 3: lambda: message[4][0].decode(),
        4: lambda: _tensor(message[5][0]), 6: lambda: np.frombuffer(b"".join(message.get(7, [])), "<f4"),
        7: lambda: _integers(message.get(8, [])), 8: lambda: [part.decode() for part in message.get(9, [])],
    }  # fmt: skip
    return message[1][0].decode(), kinds[message.get(20, [0])[0]]()


def _node(message: Message) -> Node:
    if message.get(7, [b""])[0] not in (b"", b"ai.onnx"):
        raise Rejected(f"operators of {message[7][0].decode()} are not known to this checker")
    inputs, outputs = (tuple(name.decode() for name in message.get(number, [])) for number in (1, 2))
    return Node(message[4][0].decode(), inputs, outputs, dict(map(_attribute, message.get(5, []))))


def _shape(info: Message) -> tuple[int, ...]:
    """Of a ValueInfoProto: type (2), tensor_type (1), shape (2), dim (1), dim_value (1). An open first size is a batch, of one."""
    dims = _message(_message(_message(info[2][0])[1][0])[2][0]).get(1, [])
    sizes = [int(_message(dim).get(1, [0])[0]) for dim in dims]
    sizes[:1] = [1] if sizes[:1] == [0] else sizes[:1]
    if 0 in sizes:
        raise Rejected(f"the input has an open size: {sizes}")
    return tuple(sizes)


def read(data: bytes) -> Graph:
    try:
        graph = _message(_message(data)[7][0])
        constants = {_message(part)[8][0].decode(): _tensor(part) for part in graph.get(5, [])}
        nodes = tuple(_node(_message(part)) for part in graph.get(1, []))
        infos = {info[1][0].decode(): info for info in map(_message, graph.get(11, []))}
        inputs = [name for name in infos if name not in constants]
        if len(inputs) != 1:
            raise Rejected(f"the model has {len(inputs)} inputs; this checker knows models with one")
        return Graph(inputs[0], _shape(infos[inputs[0]]), _message(graph[12][0])[1][0].decode(), nodes, constants)
    except (ValueError, KeyError, TypeError, IndexError, struct.error, AttributeError, OverflowError) as error:
        raise Rejected(f"no .onnx file that this checker can read ({type(error).__name__}: {error})") from error
