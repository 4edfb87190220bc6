"""Records, inputs and answers as rows of the database and back, each with a seal that reveals later
changes."""

import hashlib
import io
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from itertools import islice
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from holdfast.errors import StoreError
from holdfast.files import array_from_bytes
from holdfast.question import ClassLabel
from holdfast.result import Answers, Bound, Bracket, Evidence, Key, Likely, Record, Traits

# Largest number of elements of an artefact whose values take part in `change_digest`; larger ones are not compared
# (chosen by hand).
SMALL = 16
# The frame column of a question about the whole input. NULL would not do: a primary key treats all NULLs as
# different.
WHOLE = -1
# Fields of a record whose change alone does not make it worth writing again.
CLOCK = ("seconds", "queries")
# The key of the artefacts' names in the body of a record.
ARTEFACT_NAMES = "beside"
NO_NUMBERS = np.zeros(0, np.float32)

Row = tuple[Any, ...]
T = TypeVar("T")


class DamagedRow(StoreError):
    """A row of the database differs from what was written.

    The message does not name the run; `database.report_damage` adds it.
    """


def in_batches(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """The items in lists of at most `size`."""
    rest = iter(items)
    while some := list(islice(rest, size)):
        yield some


@dataclass(frozen=True)
class StoredInput:
    """One input of a run.

    saliency: float32, one number for each unit; NaN: not measured, -inf: not perturbable. None: not stored.
    """

    index: int
    x: np.ndarray[Any, Any]
    label: ClassLabel | None
    prediction: ClassLabel | None
    name: str
    tokens: tuple[int, ...] | None
    saliency: np.ndarray[Any, Any] | None = None


@dataclass(frozen=True)
class Event:
    """The bounds of a key after an improvement, and the time and queries spent until then."""

    key: Key
    seconds: float
    queries: int
    lower: float
    upper: float


def columns_of(key: Key) -> tuple[int, int, str]:
    """position, frame, part."""
    return key.index, WHOLE if key.frame is None else key.frame, key.part


def key_of(position: int, frame: int, part: str) -> Key:
    if not (isinstance(position, int) and isinstance(frame, int) and isinstance(part, str)):
        raise TypeError(f"a key is {position!r}, {frame!r}, {part!r}")
    return Key(position, None if frame == WHOLE else frame, part)


def seal(columns: Row) -> str:
    """A hash of all columns of a row except the seal.

    It detects accidental changes, not forgery: everybody can compute it.
    """
    return hashlib.blake2b(b"".join(frame_columns(columns)), digest_size=16).hexdigest()


def frame_columns(columns: Row) -> Iterator[bytes]:
    """The columns as bytes, each after its length, so that different rows have different bytes."""
    for value in columns:
        encoded = value if isinstance(value, bytes) else repr(value).encode("utf-8", "surrogatepass")
        yield b"%d:" % len(encoded)
        yield encoded


def make_seal(columns: Row) -> Row:
    """The row with its seal appended."""
    return (*columns, seal(columns))


def check_seal(what: str, columns: Row, found: str | None) -> None:
    """Raise DamagedRow if a row differs from what was written.

    Rows of older runs have no seal and are not checked.
    """
    if found is not None and found != seal(columns):
        raise DamagedRow(f"{what} was changed since it was written")


# ---- records


def row_of(record: Record, digest: str | None = None) -> Row:
    """position, frame, part, lower, upper, status, body, lower_witness, upper_witness, news, seal.

    digest: `change_digest(record)`, if it was computed already.
    """
    artefacts = {ARTEFACT_NAMES: sorted(record.aside)} if record.aside else {}
    body = json.dumps({**body_of(record), **artefacts})
    return make_seal(
        (
            *columns_of(record.key),
            *bound_columns(record),
            record.status,
            body,
            *_witnesses(record.bracket),
            digest or change_digest(record),
        )
    )


def record_of(row: Row, *, light: bool = False) -> Record:
    """The record in a row; DamagedRow if the row differs from its seal. light: without the witnesses."""
    *columns, found = row
    position, frame, part, _, _, _, body, lower_witness, upper_witness, _ = columns
    key = key_of(position, frame, part)
    check_seal(f"the record of input {key}", tuple(columns), found)
    b = json.loads(body)
    bracket = Bracket(
        _bound_of(b["lower"], None if light else lower_witness),
        _bound_of(b["upper"], None if light else upper_witness),
        tuple(_bound_of(e, None) for e in b["estimates"]),
        b["note"],
    )
    skipped = tuple(b["skipped"])
    return Record(
        key,
        bracket,
        b["status"],
        float(b["seconds"]),
        int(b["queries"]),
        skipped,
        b["question"],
        b["means"],
        b["goal"],
    )


def change_digest(record: Record) -> str:
    """A hash that changes when a record is worth writing again: of everything except time, queries and large
    artefacts.

    Large artefacts change only together with the bounds.
    """
    rest = {name: value for name, value in body_of(record).items() if name not in CLOCK}
    small = {name: value.tolist() for name, value in record.aside.items() if value.numel() <= SMALL}
    return hashlib.blake2b(
        json.dumps([rest, small]).encode("utf-8", "surrogatepass"), digest_size=16
    ).hexdigest()


def bound_columns(record: Record) -> tuple[float | None, float | None]:
    """The lower and the upper bound as columns: None for an unknown bound, and no minus zero, which SQLite
    cannot store."""
    lower, upper = float(record.bracket.lower.value) + 0.0, float(record.bracket.upper.value) + 0.0
    return None if lower == -math.inf else lower, None if upper == math.inf else upper


def body_of(record: Record) -> dict[str, Any]:
    """The fields of a record as JSON, without its key, witnesses and artefacts."""
    bracket = record.bracket
    return {
        "lower": _bound_as_json(bracket.lower),
        "upper": _bound_as_json(bracket.upper),
        "estimates": [_bound_as_json(e) for e in bracket.estimates],
        "note": bracket.note,
        "status": record.status,
        "seconds": record.seconds,
        "queries": record.queries,
        "skipped": list(record.skipped),
        "question": record.question,
        "means": record.means,
        "goal": record.goal,
    }


def _bound_as_json(bound: Bound) -> dict[str, Any]:
    e = bound.evidence
    value: float | str = bound.value if math.isfinite(bound.value) else str(bound.value)
    return {
        "value": value,
        "kind": e.kind,
        "method": e.method,
        "settings": dict(e.settings),
        "seed": e.seed,
        "dtype": e.dtype,
        "assumptions": list(e.assumptions),
        "checks": list(e.checks),
        "confidence": e.confidence,
        "traits": _traits(e.traits),
        "slack": bound.slack,
        "executed": bound.executed,
    }


@lru_cache(maxsize=256)
def _traits(traits: Traits) -> dict[str, Any]:
    return asdict(traits)


def _bound_of(stored: Mapping[str, Any], witness: bytes | None) -> Bound:
    fields = {name: value for name, value in stored.items() if name not in ("value", "slack", "executed")}
    evidence = _evidence(json.dumps(fields))
    if witness is not None:
        evidence = replace(evidence, witness=unpack(witness))
    return Bound(
        float(stored["value"]),
        evidence,
        float(stored["slack"]),
        None if stored["executed"] is None else float(stored["executed"]),
    )


@lru_cache(maxsize=1024)
def _evidence(stored: str) -> Evidence:
    """The evidence in a JSON text, cached because thousands of records share a few."""
    b = json.loads(stored)
    return Evidence(
        b["kind"],
        b["method"],
        b["settings"],
        b["seed"],
        b["dtype"],
        tuple(b["assumptions"]),
        b["confidence"],
        None,
        tuple(b["checks"]),
        Traits(**b["traits"]),
    )


def _witnesses(bracket: Bracket) -> tuple[bytes | None, bytes | None]:
    lower, upper = bracket.lower.evidence.witness, bracket.upper.evidence.witness
    return None if lower is None else pack(lower), None if upper is None else pack(upper)


# ---- inputs, history, answers and tensors


def input_of(row: Row, saliency: Tensor | None = None, *, light: bool = False) -> StoredInput:
    """The input in a row.

    Raises DamagedRow if the row differs from its seal. light: without its numbers and tokens.
    """
    *columns, found = row
    position, label, prediction, name, tokens, x = columns
    check_seal(f"input {position}", tuple(columns), found)
    return StoredInput(
        position,
        NO_NUMBERS if light else unpack(x).numpy(),
        _class_from_column(label),
        _class_from_column(prediction),
        name or "",
        tuple(json.loads(tokens)) if tokens and not light else None,
        None if saliency is None else saliency.float().numpy(),
    )


def class_column(said: ClassLabel | None) -> int | str | None:
    """A class as a column value: one as a number, several as JSON text."""
    return json.dumps(said) if isinstance(said, tuple) else said


def _class_from_column(column: int | str | None) -> ClassLabel | None:
    return tuple(int(number) for number in json.loads(column)) if isinstance(column, str) else column


def event_of(
    position: int,
    frame: int,
    part: str,
    seconds: float,
    queries: int,
    lower: float | None,
    upper: float | None,
) -> Event:
    """The event in a row of the history; an unknown bound is infinite."""
    low, high = -math.inf if lower is None else float(lower), math.inf if upper is None else float(upper)
    return Event(key_of(position, frame, part), float(seconds), int(queries), low, high)


def answers_of(stored: Mapping[str, Any]) -> Answers:
    return Answers(*(tuple(Likely(**one) for one in stored[side]) for side in ("before", "after")))


def pack(x: Tensor) -> bytes:
    """The tensor as a .npy file."""
    buffer = io.BytesIO()
    plain = x.detach().cpu()
    # numpy has no bfloat16; float32 holds the same numbers.
    np.save(buffer, (plain.float() if plain.dtype == torch.bfloat16 else plain).numpy(), allow_pickle=False)
    return buffer.getvalue()


def unpack(data: bytes) -> Tensor:
    return torch.from_numpy(array_from_bytes(data))
