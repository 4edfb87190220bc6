"""Rare but legal encodings of a model: repeated protobuf fields, odd wire types, functions, domains."""

import struct
from collections.abc import Callable
from dataclasses import replace

import onnx
from onnx import helper

from benchmarks.onnx_differential.building import Case
from benchmarks.onnx_differential.draw import Draw

Field = tuple[int, int, int | bytes]
"""Number, wire type (0: varint, 1: 8 bytes, 2: bytes with their length, 5: 4 bytes), value."""

GRAPH, OPSET_IMPORT, FUNCTIONS = 7, 8, 25  # of ModelProto
NODE, INITIALIZER = 1, 5  # of GraphProto
OP_TYPE, ATTRIBUTE, DOMAIN = 4, 5, 7  # of NodeProto
FLOAT, INTEGER, INTEGERS, TYPE = 2, 3, 8, 20  # of AttributeProto
DATA_TYPE, FLOAT_DATA, RAW_DATA = 2, 4, 9  # of TensorProto


def vary(draw: Draw, case: Case) -> Case:
    """The case itself, most of the time; otherwise the same model in one odd encoding."""
    if draw.chance(0.85):
        return case
    name = draw.pick(sorted(WAYS))
    try:
        content = WAYS[name](draw, case)
    except (LookupError, ValueError, StopIteration):
        return case  # This model has no such element.
    return replace(case, content=content, variants=(*case.variants, name))


# ---------------------------------------------------------------- functions


def shadow(draw: Draw, case: Case) -> bytes:
    """Add a local function with the name of the operator under test that computes something else."""
    model, node = _with_node(case)
    if len(node.output) != 1 or not node.input or not node.input[0]:
        raise ValueError("no single result")
    inputs = [f"in{place}" for place in range(len(node.input))]
    body = helper.make_node("Neg" if case.operator != "Neg" else "Abs", ["in0"], ["out"])
    names = [attribute.name for attribute in node.attribute]
    function = helper.make_function(
        "", node.op_type, inputs, ["out"], [body], list(model.opset_import), attributes=names
    )
    if draw.chance(0.5):
        function.domain = "ai.onnx"
    model.functions.append(function)
    return bytes(model.SerializeToString())


def wrap(draw: Draw, case: Case) -> bytes:
    """Move the node under test into a local function."""
    model, node = _with_node(case)
    if not all(node.input):
        raise ValueError("an input is left out")
    inner = onnx.NodeProto()
    inner.CopyFrom(node)
    del inner.input[:], inner.output[:]
    inner.input.extend(f"in{place}" for place in range(len(node.input)))
    inner.output.extend(f"out{place}" for place in range(len(node.output)))
    imports = [entry for entry in model.opset_import if entry.domain == ""]
    function = helper.make_function("own", "Wrapped", list(inner.input), list(inner.output), [inner], imports)
    node.op_type, node.domain = "Wrapped", "own"
    del node.attribute[:]
    model.functions.append(function)
    model.opset_import.append(helper.make_opsetid("own", 1))
    return bytes(model.SerializeToString())


def _with_node(case: Case) -> tuple[onnx.ModelProto, onnx.NodeProto]:
    model = onnx.load_from_string(case.content)
    return model, next(
        node for node in model.graph.node if node.op_type == case.operator and node.op_type != "If"
    )


# ---------------------------------------------------------------- protobuf


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value, at = value | (byte & 127) << shift, at + 1
        if byte < 128:
            return value, at
        shift += 7


def _varint(value: int) -> bytes:
    value &= 2**64 - 1
    written = b""
    while True:
        value, low = value >> 7, value & 127
        written += bytes([low | (128 if value else 0)])
        if not value:
            return written


def decode(data: bytes) -> list[Field]:
    fields: list[Field] = []
    at = 0
    while at < len(data):
        key, at = _read_varint(data, at)
        number, wire = key >> 3, key & 7
        value: int | bytes
        if wire == 0:
            value, at = _read_varint(data, at)
        else:
            length, at = _read_varint(data, at) if wire == 2 else ({1: 8, 5: 4}[wire], at)
            value, at = data[at : at + length], at + length
        fields.append((number, wire, value))
    return fields


def encode(fields: list[Field]) -> bytes:
    written = b""
    for number, wire, value in fields:
        written += _varint(number << 3 | wire)
        if isinstance(value, int):
            written += _varint(value)
        else:
            written += (_varint(len(value)) if wire == 2 else b"") + value
    return written


Edit = Callable[[list[Field]], list[Field]]


def _within(data: bytes, path: list[tuple[int, Callable[[bytes], bool]]], edit: Edit) -> bytes:
    """Edit the first message under this path of (field number, condition).

    Raises LookupError where there is none.
    """
    fields = decode(data)
    if not path:
        return encode(edit(fields))
    number, accept = path[0]
    for place, (found, wire, value) in enumerate(fields):
        if found == number and wire == 2 and isinstance(value, bytes) and accept(value):
            try:
                fields[place] = (number, 2, _within(value, path[1:], edit))
            except LookupError:
                continue
            return encode(fields)
    raise LookupError(path)


def _any(_: bytes) -> bool:
    return True


def _node_of(case: Case) -> list[tuple[int, Callable[[bytes], bool]]]:
    return [(GRAPH, _any), (NODE, lambda data: (OP_TYPE, 2, case.operator.encode()) in decode(data))]


def operator_twice(draw: Draw, case: Case) -> bytes:
    other: Field = (OP_TYPE, 2, draw.pick((b"Neg", b"Relu", b"Identity")))
    first = draw.chance(0.5)
    return _within(
        case.content, _node_of(case), lambda fields: [other, *fields] if first else [*fields, other]
    )


def domain_twice(draw: Draw, case: Case) -> bytes:
    values = draw.pick(
        ((b"ai.onnx.ml", b""), (b"ai.onnx.ml", b"ai.onnx"), (b"ai.onnx",), (b"",), (b"", b"ai.onnx.ml"))
    )
    return _within(
        case.content, _node_of(case), lambda fields: [*fields, *((DOMAIN, 2, value) for value in values)]
    )


def _attribute_edit(case: Case, number: int, edit: Edit) -> bytes:
    path = [*_node_of(case), (ATTRIBUTE, lambda data: any(field[0] == number for field in decode(data)))]
    return _within(case.content, path, edit)


def integer_twice(draw: Draw, case: Case) -> bytes:
    other: Field = (INTEGER, 0, draw.integer(0, 2))
    first = draw.chance(0.5)
    return _attribute_edit(case, INTEGER, lambda fields: [other, *fields] if first else [*fields, other])


def float_twice(draw: Draw, case: Case) -> bytes:
    other: Field = (FLOAT, 5, struct.pack("<f", draw.pick((0.25, -3.0, 7.0))))
    first = draw.chance(0.5)
    return _attribute_edit(case, FLOAT, lambda fields: [other, *fields] if first else [*fields, other])


def wrong_wire(draw: Draw, case: Case) -> bytes:
    """Write a field with a wrong wire type, which protobuf skips as unknown."""
    number = draw.pick((FLOAT, INTEGER))
    odd: Field = draw.pick(
        ((number, 2, struct.pack("<f", 7.0)), (number, 1, struct.pack("<d", 7.0)), (FLOAT, 0, 5))
    )
    first = draw.chance(0.5)
    return _attribute_edit(case, number, lambda fields: [odd, *fields] if first else [*fields, odd])


def type_twice(draw: Draw, case: Case) -> bytes:
    other: Field = (TYPE, 0, draw.pick((1, 2)))
    first = draw.chance(0.7)
    return _attribute_edit(
        case, draw.pick((FLOAT, INTEGER)), lambda fields: [other, *fields] if first else [*fields, other]
    )


def attribute_twice(draw: Draw, case: Case) -> bytes:
    def edit(fields: list[Field]) -> list[Field]:
        place = next(place for place, field in enumerate(fields) if field[0] == ATTRIBUTE)
        value = fields[place][2]
        assert isinstance(value, bytes)
        changed = encode(
            [(number, wire, 0 if number == INTEGER else part) for number, wire, part in decode(value)]
        )
        return [*fields, (ATTRIBUTE, 2, draw.pick((value, changed)))]

    try:
        return _within(case.content, _node_of(case), edit)
    except StopIteration:
        raise LookupError("no attributes") from None


def packed_otherwise(draw: Draw, case: Case) -> bytes:
    """Write a list of integers as one packed field instead of one by one, or half of it."""

    def edit(fields: list[Field]) -> list[Field]:
        numbers = [
            value
            for number, wire, value in fields
            if number == INTEGERS and wire == 0 and isinstance(value, int)
        ]
        rest = [field for field in fields if field[0] != INTEGERS]
        half = draw.integer(0, len(numbers))
        packed: list[Field] = [(INTEGERS, 2, b"".join(map(_varint, numbers[:half])))]
        return [*rest, *packed, *((INTEGERS, 0, value) for value in numbers[half:])]

    return _attribute_edit(case, INTEGERS, edit)


def _tensor_edit(case: Case, number: int, edit: Edit) -> bytes:
    path = [(GRAPH, _any), (INITIALIZER, lambda data: any(field[0] == number for field in decode(data)))]
    return _within(case.content, path, edit)


def raw_twice(draw: Draw, case: Case) -> bytes:
    def edit(fields: list[Field]) -> list[Field]:
        raw = next(value for number, _, value in fields if number == RAW_DATA)
        assert isinstance(raw, bytes)
        rest, half = [field for field in fields if field[0] != RAW_DATA], len(raw) // 2
        ways: list[list[Field]] = [
            [*fields, (RAW_DATA, 2, bytes(len(raw)))],
            [(RAW_DATA, 2, bytes(len(raw))), *fields],
            [*rest, (RAW_DATA, 2, raw[:half]), (RAW_DATA, 2, raw[half:])],
        ]
        return draw.pick(ways)

    return _tensor_edit(case, RAW_DATA, edit)


def raw_and_typed(draw: Draw, case: Case) -> bytes:
    """Store two sets of values in one tensor."""
    return _tensor_edit(
        case, RAW_DATA, lambda fields: [*fields, (FLOAT_DATA, 2, struct.pack("<f", 3.0) * draw.integer(1, 4))]
    )


def data_type_twice(draw: Draw, case: Case) -> bytes:
    other: Field = (DATA_TYPE, 0, draw.pick((1, 6, 7)))
    first = draw.chance(0.7)
    return _tensor_edit(case, DATA_TYPE, lambda fields: [other, *fields] if first else [*fields, other])


def initializer_twice(draw: Draw, case: Case) -> bytes:
    """Store two initializers of one name, the second with zeros."""

    def is_raw(data: bytes) -> bool:
        return RAW_DATA in {field[0] for field in decode(data)}

    def edit(fields: list[Field]) -> list[Field]:
        chosen = next(
            _bytes(value) for number, _, value in fields if number == INITIALIZER and is_raw(_bytes(value))
        )
        zeros: list[Field] = []
        for number, wire, value in decode(chosen):
            zeros.append((number, wire, bytes(len(_bytes(value))) if number == RAW_DATA else value))
        return [*fields, (INITIALIZER, 2, encode(zeros))]

    try:
        return _within(case.content, [(GRAPH, _any)], edit)
    except StopIteration:
        raise LookupError("no raw initializer") from None


def _bytes(value: int | bytes) -> bytes:
    assert isinstance(value, bytes)
    return value


def graph_in_two(draw: Draw, case: Case) -> bytes:
    """Split the graph into two fields, which protobuf merges."""
    fields = decode(case.content)
    [graph] = [_bytes(value) for number, _, value in fields if number == GRAPH]
    parts = decode(graph)
    cut = draw.integer(0, len(parts))
    rest = [field for field in fields if field[0] != GRAPH]
    return encode([(GRAPH, 2, encode(parts[:cut])), *rest, (GRAPH, 2, encode(parts[cut:]))])


def opset_twice(draw: Draw, case: Case) -> bytes:
    other: Field = (OPSET_IMPORT, 2, helper.make_opsetid("", draw.integer(7, 23)).SerializeToString())
    fields = decode(case.content)
    return encode([other, *fields] if draw.chance(0.5) else [*fields, other])


def opset_alias(draw: Draw, case: Case) -> bytes:
    """Import the operator set under its alias."""
    model = onnx.load_from_string(case.content)
    model.opset_import[0].domain = "ai.onnx"
    if draw.chance(0.3):
        model.opset_import.append(helper.make_opsetid("", draw.integer(7, 23)))
    return bytes(model.SerializeToString())


def unknown_fields(draw: Draw, case: Case) -> bytes:
    extra: list[Field] = [(99, 2, b"hello"), (1000, 0, 5)]
    content = _within(case.content, _node_of(case), lambda fields: [*fields, *extra])
    return encode([*decode(content), *extra])


WAYS: dict[str, Callable[[Draw, Case], bytes]] = {
    "a function that shadows the operator": shadow,
    "the operator in a function": wrap,
    "op_type twice": operator_twice,
    "domain again": domain_twice,
    "attribute integer twice": integer_twice,
    "attribute float twice": float_twice,
    "attribute with a wrong wire type": wrong_wire,
    "attribute type twice": type_twice,
    "attribute twice": attribute_twice,
    "integers packed otherwise": packed_otherwise,
    "raw_data twice": raw_twice,
    "raw_data and float_data": raw_and_typed,
    "data_type twice": data_type_twice,
    "initializer twice": initializer_twice,
    "graph in two fields": graph_in_two,
    "operator set twice": opset_twice,
    "operator set by its other name": opset_alias,
    "unknown fields": unknown_fields,
}
