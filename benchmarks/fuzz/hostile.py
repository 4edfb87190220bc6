"""Small files that are made to exhaust the memory, the stack or the time of their reader."""

import io
import struct
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path

import onnx
from onnx import TensorProto, helper

GIB = 2**30
HEAD2 = (
    "(vnnlib-version <2.0>)\n"
    "(declare-network N (declare-input X float32 [{}]) (declare-output Y float32 [1,2]))\n"
)


def npy(shape: str, dtype: str = "<f8", content: bytes = bytes(64)) -> bytes:
    """A .npy file whose header declares such an array."""
    header = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + content


def npz(**members: bytes) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(f"{name}.npy", content)
    return out.getvalue()


def bomb() -> bytes:
    """A kilobyte whose header declares 100 GiB of unpacked data."""
    data = bytearray(npz(x=npy("(13421772800,)", content=bytes(2**20)), y=npy("(8,)")))
    for at in (data.index(b"PK\x03\x04") + 22, data.index(b"PK\x01\x02") + 24):
        data[at : at + 4] = struct.pack("<I", 2**32 - 2)
    return bytes(data)


def sparse(path: Path, size: int = 2 * GIB) -> Path:
    """A sparse file of zeros, which takes no disk space."""
    with path.open("wb") as file:
        file.truncate(size)
    return path


def model(
    nodes: list[onnx.NodeProto],
    weights: dict[str, list[int]],
    functions: Sequence[onnx.FunctionProto] = (),
    width: int = 4,
) -> bytes:
    tensors = [
        helper.make_tensor(name, TensorProto.INT64, [len(values)], values) for name, values in weights.items()
    ]
    ports = [
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", width])] for name in ("x", "y")
    ]
    graph = helper.make_graph(nodes, "hostile", *ports, initializer=tensors)
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("own", 1)]
    made = helper.make_model(graph, functions=list(functions), opset_imports=opsets, ir_version=8)
    return bytes(made.SerializeToString())


def function(name: str, *calls: str) -> onnx.FunctionProto:
    """An ONNX function that calls others, one after the other."""
    names = ["a", *(f"h{k}" for k in range(len(calls) - 1)), "b"]
    own = [
        helper.make_node(call, [names[k]], [names[k + 1]], domain="" if call == "Relu" else "own")
        for k, call in enumerate(calls)
    ]
    return helper.make_function(
        "own", name, ["a"], ["b"], own, [helper.make_opsetid("", 18), helper.make_opsetid("own", 1)]
    )


def png(width: int, height: int) -> bytes:
    """A PNG that declares this size and has no image data."""
    chunks = (
        (b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)),
        (b"IDAT", zlib.compress(bytes(64))),
        (b"IEND", b""),
    )
    parts = (
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
        for name, data in chunks
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def onnx_files() -> dict[str, bytes]:
    add, call = helper.make_node("Add", ["x", "h"], ["y"]), helper.make_node("F0", ["x"], ["y"], domain="own")
    many = [helper.make_node("ConstantOfShape", ["s"], [f"c{k}"]) for k in range(64)]
    tile = helper.make_node("Tile", ["x", "r"], ["h"])
    doubling = [function(f"F{k}", *[f"F{k + 1}"] * 2) for k in range(40)]
    giant = onnx.ModelProto()
    giant.ParseFromString(model([add], {"h": [1]}))
    giant.graph.initializer[0].dims[0] = 2**40
    return {
        "a tensor that says it is giant": bytes(giant.SerializeToString()),
        "an input of 2^40 numbers": model([helper.make_node("Relu", ["x"], ["y"])], {}, width=2**40),
        "a constant of 2^40 numbers": model(
            [helper.make_node("ConstantOfShape", ["s"], ["h"]), add], {"s": [2**40]}
        ),
        "many large constants": model([*many, helper.make_node("Relu", ["x"], ["y"])], {"s": [2**27]}),
        "a value of 2^40 numbers": model([tile, helper.make_node("Relu", ["h"], ["y"])], {"r": [1, 2**38]}),
        "a function that calls itself": model([call], {}, [function("F0", "F1"), function("F1", "F0")]),
        "functions that double forty times": model([call], {}, [*doubling, function("F40", "Relu")]),
        "graphs in graphs": _nested(5000),
    }


def _nested(depth: int) -> bytes:
    """Graphs nested in attributes of nodes to this depth, as protobuf bytes."""
    found = b""
    # Fields: g of an attribute, attribute of a node, node of a graph.
    for tag in (b"\x32", b"\x2a", b"\x0a") * depth:
        found = tag + _varint(len(found)) + found
    return b"\x08\x08" + b"\x3a" + _varint(len(found)) + found


def _varint(number: int) -> bytes:
    found = bytearray()
    while number > 127:
        found.append(number & 127 | 128)
        number >>= 7
    return bytes([*found, number])


def vnnlib_files() -> dict[str, str]:
    names = (
        "(declare-const X_0 Real)(declare-const Y_0 Real)(declare-const Y_1 Real)"
        "(assert (>= X_0 0))(assert (<= X_0 1))\n"
    )
    either = "(or " + "".join(f"(and {'(<= Y_0 1)' * 60}(<= Y_1 {k}))" for k in range(200)) + ")"
    return {
        "open brackets": names + "(" * 300_000,
        "an or-product": names + "(assert (or (<= Y_0 0) (<= Y_1 0)))" * 40,
        "an or-product of long conditions": names + f"(assert {either})\n(assert {either})",
        "a product with ever more digits": names + f"(assert (<= Y_0 (* {'1e999 ' * 20_000})))",
        "products in products": names + f"(assert (<= {'(* 1e999 ' * 20_000}Y_0{')' * 20_000} 1))",
        "version 2, deep": HEAD2.format("1,2")
        + "(assert "
        + "(and " * 100_000
        + "(<= X[0,0] 1.0)"
        + ")" * 100_001,
        "version 2, giant": HEAD2.format("1099511627776,1099511627776") + "(assert (<= X[0,0] 1.0))",
    }


def data_files() -> dict[str, bytes]:
    return {
        "shape.npz": npz(x=npy("(1000000000000,)"), y=npy("(8,)")),
        "bomb.npz": bomb(),
        "nothing.npz": npz(x=npy("(1099511627776, 0)", content=b""), y=npy("(8,)")),
        "negative.npz": npz(x=npy("(-8,)"), y=npy("(8,)")),
        "twice.npz": npz(x=npy("(8,)"), y=npy("(8,)")).replace(b"y.npy", b"x.npy"),
        "shape.npy": npy("(1000000000000,)"),
        "empty texts.npy": npy("(1000000000000,)", "<U0", b""),
        "field.csv": b"0," + b"1" * 10**6 + b"\n",
        "deep.json": b"[" * 100_000,
        "number.json": b'{"good": [' + b"9" * 10**6 + b"]}",
    }
