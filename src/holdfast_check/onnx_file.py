"""Read an .onnx file as a graph.

The bytes are decoded by the field numbers of onnx.proto (`protobuf`). Only what a plain feed-forward or
recurrent network needs is read: every other field is either listed below as without effect on the model's
function, or rejected.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any

import numpy as np

from holdfast_check.arithmetic import Array
from holdfast_check.errors import Rejected, require
from holdfast_check.graph import Declared, ModelGraph
from holdfast_check.operators import GraphNode
from holdfast_check.protobuf import Field, Table, read_message
from holdfast_check.signatures import OPSETS

IR_VERSIONS = 3, 14  # The first and the last IR version of ONNX that is read.
OWN_DOMAINS = "", "ai.onnx"  # Both name ONNX's own operators.
# TensorProto.DataType: the numpy type, and the field that holds the numbers unless they are stored as raw
# bytes.
TYPES = {
    1: ("<f4", "float_data"), 11: ("<f8", "double_data"), 7: ("<i8", "int64_data"), 6: ("<i4", "int32_data"),
    9: ("|b1", "int32_data"),
    2: ("|u1", "int32_data"), 3: ("|i1", "int32_data"),
}  # fmt: skip
DATA = "raw_data", "float_data", "double_data", "int64_data", "int32_data"

SUBGRAPH = "subgraphs are not read"
OTHER_FILES = "weights in other files than the model's are not read"
NO_TENSOR = "only tensors are read"


def _table(
    *fields: tuple[int, str, Any] | tuple[int, str, Any, bool], refused: Mapping[int, str] | None = None
) -> Table:
    """The fields of a message, by number; `refused` maps numbers of unsupported fields to the reason."""
    read = {number: Field(name, kind, bool(rest)) for number, name, kind, *rest in fields}
    return read | {number: Field("", "bytes", True, why) for number, why in (refused or {}).items()}


# doc_string, metadata_props, denotation and the names of producers, graphs and nodes do not affect the
# function of a model.
ENTRY = _table((1, "key", "bytes"), (2, "value", "bytes"))
DIMENSION = _table((1, "dim_value", "int"), (2, "dim_param", "text"), (3, "denotation", "bytes"))
SHAPE = _table((1, "dim", DIMENSION, True))
TENSOR_TYPE = _table((1, "elem_type", "int32"), (2, "shape", SHAPE))
TYPE = _table(
    (1, "tensor_type", TENSOR_TYPE),
    (6, "denotation", "bytes"),
    refused=dict.fromkeys((4, 5, 7, 8, 9), NO_TENSOR),
)
VALUE_INFO = _table(
    (1, "name", "text"), (2, "type", TYPE), (3, "doc_string", "bytes"), (4, "metadata_props", ENTRY, True)
)
TENSOR = _table(
    (1, "dims", "int", True), (2, "data_type", "int32"), (4, "float_data", "float", True),
    (5, "int32_data", "int32", True),
    (7, "int64_data", "int", True), (8, "name", "text"), (9, "raw_data", "bytes"),
    (10, "double_data", "double", True),
    (12, "doc_string", "bytes"), (14, "data_location", "int32"), (16, "metadata_props", ENTRY, True),
    refused={3: "tensors in segments are not read", 6: NO_TENSOR, 11: "unsigned weights are not read",
        13: OTHER_FILES},
)  # fmt: skip
ATTRIBUTE = _table(
    (1, "name", "text"), (2, "f", "float"), (3, "i", "int"), (4, "s", "text"), (5, "t", TENSOR),
    (7, "floats", "float", True),
    (8, "ints", "int", True), (9, "strings", "text", True), (13, "doc_string", "bytes"),
    (20, "type", "int32"),
    refused={
        6: SUBGRAPH, 11: SUBGRAPH, 10: "lists of tensors are not read", 14: NO_TENSOR, 15: NO_TENSOR,
        22: "sparse tensors are not read",
        21: "attributes of a surrounding function are not read", 23: "sparse tensors are not read",
    },
)  # fmt: skip
NODE = _table(
    (1, "input", "text", True), (2, "output", "text", True), (3, "name", "bytes"), (4, "op_type", "text"),
    (5, "attribute", ATTRIBUTE, True),
    (6, "doc_string", "bytes"), (7, "domain", "text"), (8, "overload", "text"),
    (9, "metadata_props", ENTRY, True),
    refused={10: "nodes for several devices are not read"},
)  # fmt: skip
GRAPH = _table(
    (1, "node", NODE, True), (2, "name", "bytes"), (5, "initializer", TENSOR, True),
    (10, "doc_string", "bytes"),
    (11, "input", VALUE_INFO, True), (12, "output", VALUE_INFO, True), (13, "value_info", VALUE_INFO, True),
    (16, "metadata_props", ENTRY, True),
    refused={14: "quantization annotations are not read", 15: "sparse tensors are not read"},
)  # fmt: skip
OPSET = _table((1, "domain", "text"), (2, "version", "int"))
MODEL = _table(
    (1, "ir_version", "int"), (2, "producer_name", "bytes"), (3, "producer_version", "bytes"),
    (4, "domain", "bytes"),
    (5, "model_version", "int"), (6, "doc_string", "bytes"), (7, "graph", GRAPH),
    (8, "opset_import", OPSET, True),
    (14, "metadata_props", ENTRY, True),
    refused={
        20: "models with training information are not read", 25: "functions of the model's own are not read",
        26: "models for several devices are not read",
    },
)  # fmt: skip
# AttributeProto.AttributeType: the field that holds the value, and the value of an absent field. Other types
# are rejected.
ATTRIBUTES: dict[int, tuple[str, Any]] = {
    1: ("f", 0.0), 2: ("i", 0), 3: ("s", ""), 4: ("t", None), 6: ("floats", []), 7: ("ints", []),
    8: ("strings", []),
}  # fmt: skip


def _tensor(message: Mapping[str, Any], name: str) -> Array:
    """A tensor: its numbers are in exactly the field that belongs to its type, and fill its shape."""
    require(message.get("data_location", 0) == 0, OTHER_FILES)
    kind = message.get("data_type", 0)
    require(kind in TYPES, f"tensor {name!r} has the element type {kind}, which is not read")
    stored, field = TYPES[kind]
    shape = message["dims"]
    require(all(size >= 0 for size in shape), f"tensor {name!r} has a negative size")
    size = 1
    for part in shape:
        size *= part
    filled = [one for one in DATA if len(message.get(one, ()))]
    require(len(filled) <= 1, f"tensor {name!r} has its numbers in two places")
    require(
        "raw_data" not in message or filled in ([], ["raw_data"]),
        f"tensor {name!r} has its numbers in two places",
    )
    if filled == ["raw_data"]:
        require(
            len(message["raw_data"]) == size * np.dtype(stored).itemsize,
            f"tensor {name!r} does not fill its shape",
        )
        if stored == "|b1":
            require(max(message["raw_data"]) <= 1, f"tensor {name!r} has a truth value other than 0 and 1")
        return np.frombuffer(message["raw_data"], dtype=stored).reshape(shape)
    require(filled in ([], [field]), f"tensor {name!r} has its numbers in the wrong field")
    numbers = message[field]
    require(len(numbers) == size, f"tensor {name!r} does not fill its shape")
    if field in ("float_data", "double_data"):
        return np.array(numbers, dtype=stored).reshape(shape)
    wide = np.array(numbers, dtype=np.int64)
    narrow = wide.astype(stored)
    require(
        (narrow.astype(np.int64) == wide).all(), f"tensor {name!r} has a number that its type does not hold"
    )
    return narrow.reshape(shape)


def _attribute(message: Mapping[str, Any]) -> tuple[str, Any]:
    """The name and value of an attribute."""
    name, kind = message.get("name", ""), message.get("type", 0)
    require(name, "an attribute without a name")
    require(kind in ATTRIBUTES, f"attribute {name} has a type ({kind}) that is not read")
    field, absent = ATTRIBUTES[kind]
    several = {"floats", "ints", "strings"}
    filled = [
        one for one, _ in ATTRIBUTES.values() if (len(message[one]) > 0 if one in several else one in message)
    ]
    require(set(filled) <= {field}, f"attribute {name} has a value of another type than declared")
    if field == "t":
        require("t" in message, f"attribute {name} has no value")
        return name, _tensor(message["t"], name)
    value = message.get(field, absent)
    return name, list(map(float, value)) if field == "floats" else value


def _node(message: Mapping[str, Any], number: int) -> GraphNode:
    """A node with its attributes."""
    op = message.get("op_type", "")
    try:
        require(
            message.get("domain", "") in OWN_DOMAINS,
            f"operators of the domain {message.get('domain')} are not supported by this checker",
        )
        require(not message.get("overload"), "functions of the model's own are not read")
        attributes: dict[str, Any] = {}
        for part in message["attribute"]:
            name, value = _attribute(part)
            require(name not in attributes, f"attribute {name} occurs twice")
            attributes[name] = value
    except Rejected as error:
        raise Rejected(f"node {number} ({op}): {error}") from error
    return GraphNode(op, tuple(message["input"]), tuple(message["output"]), attributes)


def _read_declaration(message: Mapping[str, Any]) -> tuple[str, Declared]:
    """A ValueInfoProto: its name, and its declared element type and sizes (None: not declared, or open)."""
    name, tensor = message.get("name", ""), message.get("type", {}).get("tensor_type")
    if tensor is None:
        return name, Declared(None, None)
    kind = tensor.get("elem_type", 0)
    require(kind in TYPES, f"{name!r} has the element type {kind}, which is not read")
    if "shape" not in tensor:
        return name, Declared(TYPES[kind][0], None)
    sizes: list[int | None] = []
    for dimension in tensor["shape"]["dim"]:
        require(
            not {"dim_value", "dim_param"} <= dimension.keys(),
            f"{name!r} has a size that is both a number and a name",
        )
        sizes.append(dimension.get("dim_value"))
    return name, Declared(TYPES[kind][0], tuple(sizes))


def _constants(graph: Mapping[str, Any]) -> dict[str, Array]:
    """The initializers, by name."""
    constants: dict[str, Array] = {}
    for message in graph["initializer"]:
        name = message.get("name", "")
        require(name, "an initializer without a name")
        require(name not in constants, f"two initializers are called {name!r}")
        constants[name] = _tensor(message, name)
    return constants


def _input(given: dict[str, Declared], constants: Mapping[str, Array], ir_version: int) -> str:
    """The name of the one input that is not an initializer. Before IR version 4 every initializer had to be
    an input as well; since then, whoever runs the model may override such an initializer, so it is
    rejected.
    """
    for name in given.keys() & constants.keys():
        require(ir_version < 4, f"initializer {name!r} is an input as well, so it can be overridden")
        given[name].agrees(constants[name].dtype.str, constants[name].shape, name)
    inputs = [name for name in given if name not in constants]
    require(len(inputs) == 1, f"the model has {len(inputs)} inputs; this checker supports models with one")
    return inputs[0]


def _unique(messages: list[Mapping[str, Any]], what: str) -> dict[str, Declared]:
    """Declarations by name; reject empty and repeated names."""
    found: dict[str, Declared] = {}
    for name, declared in map(_read_declaration, messages):
        require(name and name not in found, f"two {what} are called {name!r}")
        found[name] = declared
    return found


def read_onnx(data: bytes) -> ModelGraph:
    """The graph of a model; `Rejected` names the unsupported part of the file."""
    try:
        return _graph(read_message(memoryview(data), MODEL, "the model"))
    except (
        ValueError,
        KeyError,
        TypeError,
        IndexError,
        struct.error,
        AttributeError,
        OverflowError,
        MemoryError,
    ) as error:
        raise Rejected(
            f"not an .onnx file that this checker can read ({type(error).__name__}: {error})"
        ) from error


def _graph(model: Mapping[str, Any]) -> ModelGraph:
    """The graph of a decoded ModelProto."""
    require("graph" in model, "not an .onnx file that this checker can read: it has no graph")
    ir_version = model.get("ir_version", 0)
    require(
        IR_VERSIONS[0] <= ir_version <= IR_VERSIONS[1],
        f"IR version {ir_version}; this checker supports {IR_VERSIONS[0]} to {IR_VERSIONS[1]}",
    )
    versions = [
        entry.get("version", 0) for entry in model["opset_import"] if entry.get("domain", "") in OWN_DOMAINS
    ]
    require(
        len(set(versions)) == 1,
        f"the model imports {len(set(versions))} versions of ONNX's operators, not one",
    )
    require(
        OPSETS[0] <= versions[0] <= OPSETS[1],
        f"opset {versions[0]}; this checker supports {OPSETS[0]} to {OPSETS[1]}",
    )
    graph = model["graph"]
    constants = _constants(graph)
    given, made = _unique(graph["input"], "inputs"), _unique(graph["output"], "outputs")
    name = _input(given, constants, ir_version)
    require(len(made) == 1, f"the model has {len(made)} outputs; this checker supports models with one")
    kind, sizes = given[name].kind, given[name].sizes
    require(kind in ("<f4", "<f8"), f"the input has the element type {kind}, not float32 or float64")
    if sizes is None:
        raise Rejected("the input has no shape")
    # An open first size is the batch size, taken as one.
    shape = (1, *sizes[1:]) if sizes[:1] == (None,) else sizes
    closed = tuple(size for size in shape if size is not None)
    require(
        len(closed) == len(shape) and all(size > 0 for size in closed),
        f"the input has an open size: {list(sizes)}",
    )
    nodes = tuple(_node(message, number) for number, message in enumerate(graph["node"]))
    declared = (*_unique(graph["value_info"], "values").items(), *made.items())
    return ModelGraph(
        name, closed, next(iter(made)), nodes, constants, opset=versions[0], kind=str(kind), declared=declared
    )
