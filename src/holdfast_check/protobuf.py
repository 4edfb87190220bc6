"""A strict reader of protocol buffers: bytes that two parsers could read differently are rejected.

A message is read by a table of its fields. Rejected are: a field that is not in the table or is listed as
refused; a singular field that occurs twice (parsers take the last value, or merge two messages); a wire type
other than the declared one; a number in more bytes than it needs; repeated numbers that are both packed and
unpacked, or packed in several runs; and text that is not UTF-8.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Union

import numpy as np

from holdfast_check.errors import Rejected, require

# The wire types of numbers; all other kinds are length-delimited.
WIRE_TYPES = {"int": 0, "int32": 0, "double": 1, "float": 5}
LENGTH_DELIMITED = 2  # The wire type of bytes, text, messages and packed numbers.
FIXED = {"double": ("<d", 8), "float": ("<f", 4)}  # The format for struct and numpy, and the size in bytes.

Kind = Union[str, "Table"]  # int, int32, float, double, text, bytes, or the table of a message.
Table = Mapping[int, "Field"]


@dataclass(frozen=True)
class Field:
    """One field of a message. refused: why a file with this field is rejected; empty if the field is read."""

    name: str
    kind: Kind
    repeated: bool = False
    refused: str = ""


def read_varint(data: memoryview, at: int) -> tuple[int, int]:
    """(value, next position): an unsigned number below 2^64."""
    value = 0
    for place in range(10):
        require(at < len(data), "the file ends inside a number")
        byte = data[at]
        at += 1
        value |= (byte & 127) << (7 * place)
        if byte < 128:
            require(byte != 0 or place == 0, "a number is written in more bytes than it needs")
            require(value < 2**64, "a number of more than 64 bits")
            return value, at
    raise Rejected("a number of more than 64 bits")


def _as_signed(value: int, kind: str) -> int:
    """Two's complement in 64 bits. An int32 must fit in 32 bits, because parsers truncate it."""
    number = value - 2**64 if value >= 2**63 else value
    require(kind == "int" or -(2**31) <= number < 2**31, "a 32-bit number is too large")
    return number


def _read_packed(data: memoryview, kind: str) -> Any:
    """The numbers of a packed field."""
    if kind in FIXED:
        form, size = FIXED[kind]
        require(len(data) % size == 0, "packed numbers of the wrong length")
        return np.frombuffer(data, dtype=np.dtype(form))
    found, at = [], 0
    while at < len(data):
        value, at = read_varint(data, at)
        found.append(_as_signed(value, kind))
    return found


def _value(data: memoryview, field: Field) -> Any:
    """A length-delimited value that is not a number."""
    if field.kind == "bytes":
        return data
    if field.kind == "text":
        try:
            return bytes(data).decode()
        except UnicodeDecodeError as error:
            raise Rejected(f"{field.name} is not UTF-8") from error
    if isinstance(field.kind, str):
        raise Rejected(f"{field.name} is a number but is stored as bytes")
    return read_message(data, field.kind, field.name)


def read_message(data: memoryview, table: Table, name: str) -> dict[str, Any]:
    """The values of a message by field name: a list for a repeated field; an absent singular field has no
    entry.
    """
    found: dict[str, Any] = {field.name: [] for field in table.values() if field.repeated}
    packed: dict[str, bool] = {}
    at = 0
    while at < len(data):
        key, at = read_varint(data, at)
        number, wire = key >> 3, key & 7
        require(number in table, f"{name} has a field {number}, which this checker does not support")
        field = table[number]
        require(not field.refused, f"{name}: {field.refused}")
        expected = (
            WIRE_TYPES.get(field.kind, LENGTH_DELIMITED) if isinstance(field.kind, str) else LENGTH_DELIMITED
        )
        together = field.repeated and expected != LENGTH_DELIMITED and wire == LENGTH_DELIMITED
        require(
            wire == expected or together, f"{name}: field {field.name} has wire type {wire}, not {expected}"
        )
        if wire == 0:
            value, at = read_varint(data, at)
            values = [_as_signed(value, str(field.kind))]
        else:
            length, at = read_varint(data, at) if wire == LENGTH_DELIMITED else ({1: 8, 5: 4}[wire], at)
            require(length <= len(data) - at, f"{name}: field {field.name} is longer than the file")
            own, at = data[at : at + length], at + length
            if together:
                values = _read_packed(own, str(field.kind))
            elif wire == LENGTH_DELIMITED:
                values = [_value(own, field)]
            else:
                values = [struct.unpack(FIXED[str(field.kind)][0], own)[0]]
        if not field.repeated:
            require(field.name not in found, f"{name}: field {field.name} occurs twice")
            found[field.name] = values[0]
            continue
        if expected != LENGTH_DELIMITED:
            once = field.name not in packed or (not together and not packed[field.name])
            require(
                once,
                f"{name}: the numbers of {field.name} are packed in several runs, or also stored unpacked",
            )
            packed[field.name] = together
        found[field.name] = values if together else found[field.name] + values
    return found
