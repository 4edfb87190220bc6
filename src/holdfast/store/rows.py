"""Records, inputs and answers as rows of the database and back, each with a seal by which a change by another hand is noticed."""

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
from holdfast.files import array_in
from holdfast.question import Said
from holdfast.result import Answers, Bound, Bracket, Evidence, Key, Likely, Record, Traits

SMALL = 16  # numbers of what is kept beside a record that are compared
WHOLE = -1  # the frame column of a question about the whole input; NULLs are all different to a primary key
CLOCK = ("seconds", "queries")  # what changes without news
NO_NUMBERS = np.zeros(0, np.float32)

Row = tuple[Any, ...]
T = TypeVar("T")


def in_parts(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """A few at a time."""
    rest = iter(items)
    while some := list(islice(rest, size)):
        yield some


@dataclass(frozen=True)
class StoredInput:
    """One input of the run as it was asked about."""

    index: int
    x: np.ndarray[Any, Any]
    label: Said | None
    prediction: Said | None
    name: str
    tokens: tuple[int, ...] | None
    saliency: np.ndarray[Any, Any] | None = (
        None  # float32, one number for each unit, NaN: not measured, -inf: may not change; None: not stored
    )


@dataclass(frozen=True)
class Event:
    """A moment at which a bracket became better."""

    key: Key
    seconds: float
    queries: int
    lower: float
    upper: float


def columns_of(key: Key) -> tuple[int, int, str]:
    return key.index, WHOLE if key.frame is None else key.frame, key.part


def key_of(position: int, frame: int, part: str) -> Key:
    if not (isinstance(position, int) and isinstance(frame, int) and isinstance(part, str)):
        raise TypeError(f"a key is {position!r}, {frame!r}, {part!r}")
    return Key(position, None if frame == WHOLE else frame, part)


def seal(columns: Row) -> str:
    """Of all columns of a row but the seal itself. It finds what was changed by mistake; who wants to deceive can compute it too."""
    return hashlib.blake2b(b"".join(frame_columns(columns)), digest_size=16).hexdigest()


def frame_columns(columns: Row) -> Iterator[bytes]:
    """The columns so that no two rows share their bytes."""
    for value in columns:
        told = value if isinstance(value, bytes) else repr(value).encode("utf-8", "surrogatepass")
        yield b"%d:" % len(told)
        yield told


def make_seal(columns: Row) -> Row:
    return (*columns, seal(columns))


def check_seal(what: str, columns: Row, found: str | None) -> None:
    """StoreError where a row is not as it was written. Rows of older runs have no seal and are believed."""
    if found is not None and found != seal(columns):
        raise StoreError(f"{what} was changed since it was written")


# ---- records


def row_of(record: Record, told: str | None = None) -> Row:
    """position, frame, part, lower, upper, status, body, lower_witness, upper_witness, news, seal. told: its news, where they are known."""
    beside = {"beside": sorted(record.aside)} if record.aside else {}
    body = json.dumps({**body_of(record), **beside})
    return make_seal(
        (
            *columns_of(record.key),
            *known_ends(record),
            record.status,
            body,
            *_witnesses(record.bracket),
            told or news(record),
        )
    )


def record_of(row: Row, *, light: bool = False) -> Record:
    """A row with its seal. light: without the witnesses, and with evidence that equal records share."""
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


def news(record: Record) -> str:
    """What makes a record worth writing again: its ends, and all the rest but the clock; maps change with the ends."""
    rest = {name: value for name, value in body_of(record).items() if name not in CLOCK}
    small = {name: value.tolist() for name, value in record.aside.items() if value.numel() <= SMALL}
    return hashlib.blake2b(
        json.dumps([rest, small]).encode("utf-8", "surrogatepass"), digest_size=16
    ).hexdigest()


def known_ends(record: Record) -> tuple[float | None, float | None]:
    """An end that is not known is NULL. SQLite has no minus zero."""
    lower, upper = float(record.bracket.lower.value) + 0.0, float(record.bracket.upper.value) + 0.0
    return None if lower == -math.inf else lower, None if upper == math.inf else upper


def body_of(record: Record) -> dict[str, Any]:
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


def _bound_of(told: Mapping[str, Any], witness: bytes | None) -> Bound:
    why = {name: value for name, value in told.items() if name not in ("value", "slack", "executed")}
    evidence = _evidence(json.dumps(why))
    if witness is not None:
        evidence = replace(evidence, witness=unpack(witness))
    return Bound(
        float(told["value"]),
        evidence,
        float(told["slack"]),
        None if told["executed"] is None else float(told["executed"]),
    )


@lru_cache(maxsize=1024)
def _evidence(told: str) -> Evidence:
    """Thousands of records share a few of them."""
    b = json.loads(told)
    return Evidence(
        b["kind"], b["method"], b["settings"], b["seed"], b["dtype"], tuple(b["assumptions"]), b["confidence"],
        None, tuple(b["checks"]), Traits(**b["traits"]),
    )  # fmt: skip


def _witnesses(bracket: Bracket) -> tuple[bytes | None, bytes | None]:
    lower, upper = bracket.lower.evidence.witness, bracket.upper.evidence.witness
    return None if lower is None else pack(lower), None if upper is None else pack(upper)


# ---- what lies beside them


def input_of(row: Row, saliency: Tensor | None = None, *, light: bool = False) -> StoredInput:
    """A row with its seal. light: without its numbers and words."""
    *columns, found = row
    position, label, prediction, name, tokens, x = columns
    check_seal(f"input {position}", tuple(columns), found)
    return StoredInput(
        position, NO_NUMBERS if light else unpack(x).numpy(), _class_from_column(label), _class_from_column(prediction), name or "",
        tuple(json.loads(tokens)) if tokens and not light else None, None if saliency is None else saliency.float().numpy(),
    )  # fmt: skip


def class_column(said: Said | None) -> int | str | None:
    """A class as its column holds it: several as text."""
    return json.dumps(said) if isinstance(said, tuple) else said


def _class_from_column(column: int | str | None) -> Said | None:
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
    low, high = -math.inf if lower is None else float(lower), math.inf if upper is None else float(upper)
    return Event(key_of(position, frame, part), float(seconds), int(queries), low, high)


def answers_of(stored: Mapping[str, Any]) -> Answers:
    return Answers(*(tuple(Likely(**one) for one in stored[side]) for side in ("before", "after")))


def pack(x: Tensor) -> bytes:
    buffer = io.BytesIO()
    plain = x.detach().cpu()
    # numpy has no bfloat16; float32 holds the same numbers.
    np.save(buffer, (plain.float() if plain.dtype == torch.bfloat16 else plain).numpy(), allow_pickle=False)
    return buffer.getvalue()


def unpack(data: bytes) -> Tensor:
    return torch.from_numpy(array_in(data))
