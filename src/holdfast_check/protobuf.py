"""Protocol buffers, read strictly: bytes that two parsers could read in two ways are refused.

A message is read by a table of its fields. Refused are a field that the table does not list, a field that is listed as refused, a
singular field that occurs twice (a parser takes the last value, or merges two messages), a wire type other than the declared one, a
number in more bytes than it needs, repeated numbers that are packed and unpacked at once or packed in several runs, and text that is
not UTF-8.
"""

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Union

import numpy as np

from holdfast_check.errors import Rejected, require

WIRE_TYPES = {"int": 0, "int32": 0, "double": 1, "float": 5}  # everything else is length-delimited
LENGTH_DELIMITED = 2
FIXED = {"double": ("<d", 8), "float": ("<f", 4)}  # for struct and numpy alike, and how many bytes

Kind = Union[str, "Table"]  # int, int32, float, double, text, bytes, or the table of a message
Table = Mapping[int, "Field"]


@dataclass(frozen=True)
class Field:
    """One field of a message. refused: why a file that has it is not read; empty for a field that is read."""

    name: str
    kind: Kind
    repeated: bool = False
    refused: str = ""


def read_varint(data: memoryview, at: int) -> tuple[int, int]:
    """-> an unsigned number below 2^64, and where the next byte is."""
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
    """Two's complement of 64 bits; an int32 must fit into 32, since parsers cut it off there."""
    number = value - 2**64 if value >= 2**63 else value
    require(kind == "int" or -(2**31) <= number < 2**31, "a 32-bit number is too large")
    return number


def _packed(data: memoryview, kind: str) -> Any:
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
    """A length-delimited value that is no number."""
    if field.kind == "bytes":
        return data
    if field.kind == "text":
        try:
            return bytes(data).decode()
        except UnicodeDecodeError as error:
            raise Rejected(f"{field.name} is not UTF-8") from error
    if isinstance(field.kind, str):
        raise Rejected(f"{field.name} is not written as numbers are")
    return read_message(data, field.kind, field.name)


def read_message(data: memoryview, table: Table, name: str) -> dict[str, Any]:
    """-> the values of a message by the names of their fields: a list for a repeated field, nothing for a singular one that is absent."""
    found: dict[str, Any] = {field.name: [] for field in table.values() if field.repeated}
    packed: dict[str, bool] = {}
    at = 0
    while at < len(data):
        key, at = read_varint(data, at)
        number, wire = key >> 3, key & 7
        require(number in table, f"{name} has a field {number}, which is not known to this checker")
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
                values = _packed(own, str(field.kind))
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
                f"{name}: the numbers of {field.name} are packed in several runs, or packed and unpacked at once",
            )
            packed[field.name] = together
        found[field.name] = values if together else found[field.name] + values
    return found
