"""Random damage to structured files: one part is changed at a time, and the container stays valid."""

import contextlib
import io
import json
import re
import sqlite3
import struct
import tempfile
import zipfile
from pathlib import Path
from random import Random
from typing import Any

import onnx

from benchmarks.fuzz.damage import NUMBERS, SCALARS, damaged, damaged_json

SHAPES = (
    "()",
    "(1,)",
    "(-1,)",
    "(0, 3)",
    "(1000000000000,)",
    "(1099511627776, 1099511627776)",
    "(3, 0)",
    "(2, -3, 4)",
    "(True,)",
    "(1.5,)",
    "[3]",
    "None",
    "(9999999999,)",
)
TYPES = (
    "'<f8'", "'<f4'", "'>f8'", "'<i8'", "'|b1'", "'<c16'", "'|O'", "'<U5'", "'|S3'", "'<M8[s]'", "'|V16'",
    "'<f2'", "'|u1'", "[('a', '<f4')]", "'<f16'", "'nonsense'",
)  # fmt: skip


def damaged_npy(data: bytes, chance: Random) -> bytes:
    """Change shape, type or order in the header; the numbers stay."""
    if data[:6] != b"\x93NUMPY" or len(data) < 11:
        return data
    length = struct.unpack_from("<H", data, 8)[0]
    header, rest = data[10 : 10 + length].decode("latin1"), data[10 + length :]
    accident = chance.randrange(4)
    if accident == 0:
        header = re.sub(r"\([^()]*\)", chance.choice(SHAPES), header, count=1)
    elif accident == 1:
        header = re.sub(r"'descr': '[^']*'", f"'descr': {chance.choice(TYPES)}", header, count=1)
    elif accident == 2:
        header = header.replace("False", "True")
    else:
        return (
            data[:10] + damaged(data[10 : 10 + length], chance, [], text=True)[:length].ljust(length) + rest
        )
    header = header.rstrip() + "\n"
    return data[:8] + struct.pack("<H", len(header)) + header.encode("latin1", "replace") + rest


def damaged_npz(data: bytes, chance: Random) -> bytes:
    """Damage, rename, delete, duplicate or recompress one member."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            members = [(name, archive.read(name)) for name in archive.namelist()]
    except Exception:
        return data
    at = chance.randrange(len(members)) if members else 0
    name, content = members[at]
    accident = chance.randrange(6)
    if accident == 0:
        del members[at]
    elif accident == 1:
        members[at] = (
            chance.choice(
                ("", "x", "y.npy", "../x.npy", "names.npy", "lengths.npy", "classes.npy", "\ud7ff.npy")
            ),
            content,
        )
    elif accident == 2:
        members.append((name, content))
    else:
        members[at] = name, damaged_npy(content, chance) if accident < 5 else damaged(content, chance, [])
    out = io.BytesIO()
    with (
        contextlib.suppress(Exception),
        zipfile.ZipFile(
            out, "w", chance.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2))
        ) as archive,
    ):
        for name, content in members:
            archive.writestr(name, content)
    return out.getvalue()


def damaged_safetensors(data: bytes, chance: Random) -> bytes:
    length = struct.unpack_from("<Q", data)[0]
    header = damaged_json(data[8 : 8 + length], chance)
    return struct.pack("<Q", len(header)) + header + data[8 + length :]


def damaged_proof(data: bytes, chance: Random) -> bytes:
    """Damage a certificate: its claim, or the index of its arrays."""
    if chance.random() < 0.3:
        return damaged_safetensors(data, chance)
    length = struct.unpack_from("<Q", data)[0]
    told = json.loads(data[8 : 8 + length])
    [(name, inner)] = told["__metadata__"].items()
    told["__metadata__"][name] = damaged_json(inner.encode(), chance).decode(errors="replace")
    header = json.dumps(told).encode()
    return struct.pack("<Q", len(header)) + header + data[8 + length :]


def damaged_onnx(data: bytes, chance: Random) -> bytes:
    """Change one field of one protobuf message, at any depth."""
    model = onnx.ModelProto()
    try:
        model.ParseFromString(data)
    except Exception:
        return data
    for _ in range(chance.choice((1, 1, 2))):
        _change(chance.choice(list(_messages(model))), chance)
    with contextlib.suppress(Exception):
        return bytes(model.SerializeToString())
    return data


def _messages(message: Any) -> Any:
    yield message
    for field, value in message.ListFields():
        if field.message_type is not None:
            for part in value if _many(field) else [value]:
                yield from _messages(part)


def _many(field: Any) -> bool:
    repeated = getattr(field, "is_repeated", None)
    return bool(field.label == field.LABEL_REPEATED if repeated is None else repeated)


def _change(message: Any, chance: Random) -> None:
    """Delete a field, or replace or duplicate one of its values, or copy a neighbour's value."""
    fields = (
        list(message.DESCRIPTOR.fields)
        if chance.random() < 0.3
        else [field for field, _ in message.ListFields()]
    )
    if not fields:
        return
    field = chance.choice(fields)
    with contextlib.suppress(TypeError, ValueError, AttributeError):
        if chance.random() < 0.15:
            message.ClearField(field.name)
        elif field.message_type is not None:
            held = getattr(message, field.name)
            if not _many(field):
                _change(held, chance)
            elif held and chance.random() < 0.5:
                held.add().CopyFrom(chance.choice(held))
            elif held:
                del held[chance.randrange(len(held))]
            else:
                _change(held.add(), chance)
        elif _many(field):
            held = getattr(message, field.name)
            if held and chance.random() < 0.7:
                held[chance.randrange(len(held))] = _scalar(field, chance, held[0])
            elif chance.random() < 0.5:
                held.append(_scalar(field, chance, held[0] if held else None))
            elif held:
                del held[chance.randrange(len(held))]
        else:
            setattr(message, field.name, _scalar(field, chance, getattr(message, field.name)))


OPERATORS = (
    "Reshape",
    "Gather",
    "LSTM",
    "Conv",
    "If",
    "Loop",
    "Scan",
    "Concat",
    "Expand",
    "Range",
    "ConstantOfShape",
    "Squeeze",
    "Slice",
    "Gemm",
    "Softmax",
    "Cast",
    "Tile",
    "Pad",
    "Nothing",
)


def _scalar(field: Any, chance: Random, old: Any) -> Any:
    if field.type == field.TYPE_STRING:
        return chance.choice(("", "x", "X", str(old or "") + "_", "\0", *OPERATORS))
    if field.type == field.TYPE_BYTES:
        return damaged(bytes(old or b"seed"), chance, [])
    if field.cpp_type in (field.CPPTYPE_FLOAT, field.CPPTYPE_DOUBLE):
        return chance.choice((0.0, -1.0, float("nan"), float("inf"), 1e38))
    return chance.choice((0, 1, -1, 2, 3, 7, 16, 100, 2**31 - 1, 2**31, 2**40, 2**62, -(2**63)))


def damaged_sqlite(data: bytes, chance: Random) -> bytes:
    """Replace a cell, damage the JSON or array inside it, delete a row, or change the schema."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "run.sqlite"
        file.write_bytes(data)
        with (
            contextlib.suppress(sqlite3.Error),
            contextlib.closing(sqlite3.connect(file)) as connection,
            connection,
        ):
            _change_row(connection, chance)
        return file.read_bytes()


def _change_row(connection: sqlite3.Connection, chance: Random) -> None:
    tables = [row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
    table = chance.choice([*tables, "meta", "record", "record"])
    columns = [row[1] for row in connection.execute(f"PRAGMA table_info({table})")]
    if chance.random() < 0.03:
        connection.execute(
            chance.choice(
                (
                    f"DROP TABLE {table}",
                    f"ALTER TABLE {table} RENAME TO other",
                    f"ALTER TABLE {table} DROP COLUMN {columns[-1]}",
                )
            )
        )
        return
    rows = [row[0] for row in connection.execute(f"SELECT rowid FROM {table}")]
    if not rows:
        return
    row, column = chance.choice(rows), chance.choice(columns)
    if chance.random() < 0.1:
        connection.execute(f"DELETE FROM {table} WHERE rowid = ?", (row,))
        return
    (old,) = connection.execute(f"SELECT {column} FROM {table} WHERE rowid = ?", (row,)).fetchone()
    connection.execute(
        f"UPDATE OR IGNORE {table} SET {column} = ? WHERE rowid = ?", (_cell(old, chance), row)
    )


def _cell(old: Any, chance: Random) -> Any:
    if isinstance(old, str) and chance.random() < 0.8:
        changed = (
            damaged_json(old.encode(), chance)
            if chance.random() < 0.8
            else damaged(old.encode() or b"x", chance, [], text=True)
        )
        return changed.decode("utf-8", "replace")
    if isinstance(old, bytes) and chance.random() < 0.8:
        return damaged_npy(old, chance) if chance.random() < 0.6 else damaged(old or b"x", chance, [])
    plain = [
        value
        for value in SCALARS
        if isinstance(value, int | float | None) and not (isinstance(value, int) and abs(value) >= 2**63)
    ]
    return chance.choice([*plain, *NUMBERS[:12], b"", b"\x80", json.dumps([]), "{}"])
