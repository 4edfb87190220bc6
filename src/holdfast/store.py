"""The run on disk: a folder with one SQLite file that survives a kill at any moment and can be taken up again.

Every record is written as soon as it is known, in one transaction for a batch, with a write-ahead log. What a record replaces stays in
the history, so that a report can show how the ends closed in.
"""

import contextlib
import csv
import functools
import io
import json
import math
import os
import platform
import sqlite3
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

import numpy as np
import torch
from torch import Tensor

import holdfast
from holdfast.errors import Contradiction, MissingExtra, StoreError
from holdfast.files import array_in, in_words, inflated
from holdfast.question import Question, plain
from holdfast.result import Answers, Bound, Bracket, Evidence, Key, Likely, Record, Traits

P = ParamSpec("P")
T = TypeVar("T")
VERSION = 2
FILE = "run.sqlite"
SCHEMA = """
CREATE TABLE meta (name TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE input (position INTEGER PRIMARY KEY, label INTEGER, prediction INTEGER, name TEXT, tokens TEXT, x BLOB NOT NULL);
CREATE TABLE record (
    position INTEGER NOT NULL, frame INTEGER NOT NULL, part TEXT NOT NULL, lower REAL, upper REAL, status TEXT NOT NULL, body TEXT NOT NULL,
    lower_witness BLOB, upper_witness BLOB, PRIMARY KEY (position, frame, part)
);
CREATE TABLE history (position INTEGER, frame INTEGER, part TEXT, seconds REAL, queries INTEGER, lower REAL, upper REAL);
CREATE TABLE artefact (
    position INTEGER NOT NULL, frame INTEGER NOT NULL, part TEXT NOT NULL, name TEXT NOT NULL, value BLOB NOT NULL,
    PRIMARY KEY (position, frame, part, name)
);
"""
# What a page shows beside the brackets, made when it is first written: a run without them is whole, and older readers do not miss them.
ANSWER = """CREATE TABLE IF NOT EXISTS answer (
    position INTEGER NOT NULL, frame INTEGER NOT NULL, part TEXT NOT NULL, shown REAL, body TEXT NOT NULL,
    PRIMARY KEY (position, frame, part)
)"""
# The end that a record's witness shows: the upper one, or the lower one where the largest number is asked for.
SHOWN = "CASE json_extract(record.body, '$.goal') WHEN 'largest' THEN record.lower WHEN 'steepness' THEN record.lower ELSE record.upper END"
SALIENCY = "saliency"  # the name of the maps of inputs among the artefacts
SMALL = 16  # numbers of what is kept beside a record that are compared
WHOLE = -1  # the frame column of a question about the whole input; NULLs are all different to a primary key


@dataclass(frozen=True)
class StoredInput:
    """One input of the run as it was asked about."""

    index: int
    x: np.ndarray[Any, Any]
    label: int | None
    prediction: int | None
    name: str
    tokens: tuple[int, ...] | None
    saliency: np.ndarray[Any, Any] | None = None  # float32, one number for each unit; None: not stored


@dataclass(frozen=True)
class Event:
    """A moment at which a bracket became better."""

    key: Key
    seconds: float
    queries: int
    lower: float
    upper: float


def _decoding(method: "Callable[Concatenate[Store, P], T]") -> "Callable[Concatenate[Store, P], T]":
    """Whatever damaged rows make of reading them is told in words."""

    @functools.wraps(method)
    def told(self: "Store", /, *args: P.args, **kwargs: P.kwargs) -> T:
        what = f"not a run of holdfast, or damaged: its {method.__name__.strip('_').replace('_', ' ')} cannot be read"
        with in_words(self.folder / FILE, what, "Copy the run again from where it was made, or begin it anew.", StoreError):
            return method(self, *args, **kwargs)

    return told


class Store:
    """A run folder. `create` begins one, `open` takes one up; both check before any long work."""

    def __init__(self, folder: Path, connection: sqlite3.Connection) -> None:
        self.folder = folder
        self._connection = connection
        self._ends: dict[Key, tuple[float, float, str]] = {r.key: _ends(r) for r in self.records()}
        self._written: dict[Key, tuple[Bracket, str]] = {}  # what was looked at last

    @classmethod
    def create(cls, folder: str | Path, question: Question | None = None) -> Self:
        """A new run that remembers its question. StoreError if the folder is taken or cannot be written."""
        path = Path(folder)
        about = {"version": VERSION, "question": (question or Question()).as_json(), "provenance": provenance()}
        lines = [(name, json.dumps(value)) for name, value in about.items()]
        if (path / FILE).exists() and not _unborn(path / FILE):
            raise StoreError(f"{path} already holds a run. Continue it with 'holdfast resume {path}', or choose another folder.")
        try:
            path.mkdir(parents=True, exist_ok=True)
            connection = _connect(path / FILE)
            connection.executescript("BEGIN;" + SCHEMA)
            with connection:  # one transaction: a run is there with its question or not at all
                connection.executemany("INSERT INTO meta VALUES (?, ?)", lines)
        except (OSError, sqlite3.Error) as error:
            raise StoreError(f"{path}: cannot begin a run there ({error}). Is the folder writable and the disk not full?") from error
        return cls(path, connection)

    @classmethod
    def open(cls, folder: str | Path) -> Self:
        """A run that exists. StoreError if there is none or the file is damaged."""
        path = Path(folder)
        if not (path / FILE).is_file():
            raise StoreError(f"{path}: no run here ({FILE} is missing). Start one with 'holdfast radius ... --out {path}'.")
        try:
            connection = _connect(path / FILE)
            (version,) = connection.execute("SELECT value FROM meta WHERE name = 'version'").fetchone()
            if json.loads(version) != VERSION:
                raise StoreError(f"{path}: written by another version of holdfast (format {version}, this one reads {VERSION}).")
            return cls(path, connection)
        except (sqlite3.Error, LookupError, TypeError, ValueError, EOFError, AssertionError, Contradiction) as error:
            raise StoreError(f"{path / FILE}: not a run of holdfast, or damaged ({error}).") from error

    def close(self) -> None:
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---- what the run is about

    @property
    def question(self) -> Question:
        return Question.from_json(self._meta("question"))

    @property
    def provenance(self) -> dict[str, Any]:
        return self._meta("provenance")

    @_decoding
    def _meta(self, name: str) -> dict[str, Any]:
        (value,) = self._connection.execute("SELECT value FROM meta WHERE name = ?", (name,)).fetchone()
        loaded: dict[str, Any] = json.loads(value)
        return loaded

    def put_inputs(
        self,
        x: Sequence[Tensor],
        labels: Sequence[int | None],
        predictions: Sequence[int | None],
        names: Sequence[str],
        tokens: Sequence[Sequence[int] | None],
    ) -> None:
        """The inputs in their order, so that the folder alone is enough to look at the run."""
        rows = [
            (
                i,
                labels[i],
                predictions[i],
                names[i],
                None if tokens[i] is None else json.dumps(list(tokens[i] or ())),
                _pack(x[i]),
            )
            for i in range(len(x))
        ]
        with self._transaction() as connection:
            connection.executemany("INSERT OR REPLACE INTO input VALUES (?, ?, ?, ?, ?, ?)", rows)

    @_decoding
    def inputs(self) -> list[StoredInput]:
        rows = self._connection.execute("SELECT position, x, label, prediction, name, tokens FROM input ORDER BY position")
        maps = self._saliency()
        return [
            StoredInput(
                position, _unpack(x).numpy(), label, said, name or "", tuple(json.loads(tokens)) if tokens else None, maps.get(position)
            )
            for position, x, label, said, name, tokens in rows
        ]

    def put_artefacts(self, name: str, values: Mapping[Key, Tensor]) -> None:
        """Tensors that are kept beside records, such as maps of what matters."""
        with self._transaction() as connection:
            self._keep(connection, [(key, name, value) for key, value in values.items()])

    @_decoding
    def artefacts(self, name: str) -> dict[Key, Tensor]:
        rows = self._connection.execute("SELECT position, frame, part, value FROM artefact WHERE name = ?", (name,))
        return {_key(*row[:3]): _unpack(inflated(row[3])) for row in rows}

    @_decoding
    def with_aside(self) -> list[Record]:
        """All records, each with what is kept beside it."""
        rows = self._connection.execute("SELECT position, frame, part, name, value FROM artefact")
        kept: dict[Key, dict[str, Tensor]] = {}
        for *columns, name, value in rows:
            kept.setdefault(_key(*columns), {})[name] = _unpack(inflated(value))
        return [replace(record, aside=kept.get(record.key, {})) for record in self.records()]

    def _keep(self, connection: sqlite3.Connection, values: Sequence[tuple[Key, str, Tensor]]) -> None:
        rows = [(*_columns(key), name, zlib.compress(_pack(value))) for key, name, value in values]
        connection.executemany("INSERT OR REPLACE INTO artefact VALUES (?, ?, ?, ?, ?)", rows)

    def _saliency(self) -> dict[int, np.ndarray[Any, Any]]:
        return {key.index: found.float().numpy() for key, found in self.artefacts(SALIENCY).items()}

    def _has(self, table: str) -> bool:
        found = self._connection.execute("SELECT count(*) FROM sqlite_master WHERE type = 'table' AND name = ?", (table,)).fetchone()
        return bool(found[0])

    # ---- records

    def write(self, records: Sequence[Record]) -> None:
        """Keep the records that are new or better, with what they replace in the history; one transaction."""
        # Brackets are never changed, only replaced: those that were written are known by themselves.
        fresh = [r for r in records if not self._same(r)]
        changed = [r for r in fresh if self._ends.get(r.key) != _ends(r)]
        rows = [(*_columns(r.key), *_known(r), r.status, json.dumps(_body(r)), *_witnesses(r.bracket)) for r in changed]
        moments = [(*_columns(r.key), r.seconds, r.queries, *_known(r)) for r in changed if self._ends.get(r.key, ())[:2] != _ends(r)[:2]]
        if changed:
            with self._transaction() as connection:
                connection.executemany("INSERT OR REPLACE INTO record VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", rows)
                connection.executemany("INSERT INTO history VALUES (?, ?, ?, ?, ?, ?, ?)", moments)
                self._keep(connection, [(r.key, name, value) for r in changed for name, value in r.aside.items()])
        self._ends.update((r.key, _ends(r)) for r in changed)
        self._written.update((r.key, (r.bracket, r.status)) for r in fresh)

    def _same(self, record: Record) -> bool:
        bracket, status = self._written.get(record.key, (None, ""))
        return bracket is record.bracket and status == record.status

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        try:
            with self._connection:
                yield self._connection
        except (sqlite3.Error, OSError) as error:
            raise StoreError(
                f"{self.folder}: cannot write the run ({error}). Is the disk full? What was written before is safe; free some space and "
                f"continue with 'holdfast resume {self.folder}'."
            ) from error

    @_decoding
    def records(self) -> list[Record]:
        """All records, by input and frame."""
        rows = self._connection.execute(
            "SELECT position, frame, part, body, lower_witness, upper_witness FROM record ORDER BY position, frame, part"
        )
        return [_record(*row) for row in rows]

    def finished(self) -> dict[Key, Record]:
        """The records that a resumed run need not ask for again, with what is kept beside them."""
        return {r.key: r for r in self.with_aside() if r.status in ("closed", "finished")}

    def unfinished(self) -> dict[Key, Record]:
        """The records that a resumed run takes up again: interrupted, or stopped by their budget."""
        return {r.key: r for r in self.with_aside() if r.status not in ("closed", "finished")}

    def put_answers(self, answers: Mapping[Key, Answers]) -> None:
        """What the network says at the input of a record and at the witness that the record has now."""
        rows = [(*_columns(key), json.dumps(asdict(answer)), *_columns(key)) for key, answer in answers.items()]
        with self._transaction() as connection:
            connection.execute(ANSWER)
            connection.executemany(
                f"INSERT OR REPLACE INTO answer SELECT ?, ?, ?, {SHOWN}, ? FROM record WHERE position = ? AND frame = ? AND part = ?", rows
            )

    @_decoding
    def answers(self) -> dict[Key, Answers]:
        """Those that are stored and speak of the record's witness as it is now: a better record makes them stale."""
        if not self._has("answer"):
            return {}
        rows = self._connection.execute(
            f"SELECT position, frame, part, answer.body FROM answer JOIN record USING (position, frame, part) WHERE answer.shown IS {SHOWN}"
        )
        return {_key(*row[:3]): _answers(json.loads(row[3])) for row in rows}

    @_decoding
    def history(self) -> list[Event]:
        rows = self._connection.execute("SELECT position, frame, part, seconds, queries, lower, upper FROM history ORDER BY rowid")
        return [
            Event(
                _key(position, frame, part),
                float(seconds),
                int(queries),
                -math.inf if lower is None else float(lower),
                math.inf if upper is None else float(upper),
            )
            for position, frame, part, seconds, queries, lower, upper in rows
        ]

    # ---- out

    def rows(self) -> list[dict[str, Any]]:
        """One flat row for each record, for tables."""
        return [
            {
                "input": r.key.index,
                "frame": r.key.frame,
                "part": r.key.part,
                "goal": r.goal,
                "lower": r.bracket.lower.value,
                "lower_kind": r.bracket.lower.evidence.kind,
                "lower_method": r.bracket.lower.evidence.method,
                "upper": r.bracket.upper.value,
                "upper_kind": r.bracket.upper.evidence.kind,
                "upper_method": r.bracket.upper.evidence.method,
                "status": r.status,
                "seconds": r.seconds,
                "queries": r.queries,
                "note": r.bracket.note,
            }
            for r in self.records()
        ]

    def export(self, path: str | Path) -> Path:
        """Write all records as .json, .csv or .parquet, or all witnesses as .npz, by the file's ending."""
        target = Path(path)
        writers = {".json": self._json, ".csv": self._csv, ".parquet": self._parquet, ".npz": self._npz}
        if target.suffix not in writers:
            raise StoreError(f"{target}: unknown ending; use one of {', '.join(writers)}.")
        part = target.with_name(target.name + ".part")
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            writers[target.suffix](part)
            os.replace(part, target)  # never half a file
        except OSError as error:
            raise StoreError(f"{target}: cannot be written ({error}).") from error
        finally:
            with contextlib.suppress(OSError):
                part.unlink(missing_ok=True)
        return target

    def _json(self, path: Path) -> None:
        said = {key: {"answers": asdict(answers)} for key, answers in self.answers().items()}
        records = [
            {"input": r.key.index, "frame": r.key.frame, "part": r.key.part, **_body(r), **said.get(r.key, {})} for r in self.records()
        ]
        document = {"question": self.question.as_json(), "provenance": self.provenance, "records": records}
        path.write_text(json.dumps(plain(document), indent=1, allow_nan=False))

    def _csv(self, path: Path) -> None:
        rows = self.rows()
        with path.open("w", newline="") as stream:
            writer = csv.DictWriter(stream, list(rows[0]) if rows else ["input"])
            writer.writeheader()
            writer.writerows(rows)

    def _parquet(self, path: Path) -> None:
        try:
            import pyarrow
            import pyarrow.parquet
        except ImportError as error:
            raise MissingExtra("Parquet needs pyarrow: pip install 'holdfast[parquet]'. CSV and JSON work without.") from error
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(self.rows()), path)

    def _npz(self, path: Path) -> None:
        found = {str(r.key).replace("/", "_").replace(" ", "_"): r.witness.numpy() for r in self.records() if r.witness is not None}
        with path.open("wb") as stream:
            np.savez_compressed(stream, **found)  # type: ignore[arg-type]


def provenance() -> dict[str, Any]:
    """Where and with what a run was made."""
    return {
        "holdfast": holdfast.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "system": f"{platform.system()} {platform.machine()}",
        "processor": _processor(),
        "cores": os.cpu_count(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "began": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _processor() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor()


def _connect(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, timeout=10)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=NORMAL")
    return connection


def _unborn(file: Path) -> bool:
    """Was a run killed here before its first transaction? Then there is nothing to lose."""
    with contextlib.suppress(sqlite3.Error), contextlib.closing(sqlite3.connect(file)) as connection:
        return bool(connection.execute("SELECT count(*) FROM sqlite_master").fetchone() == (0,))
    return False


def _columns(key: Key) -> tuple[int, int, str]:
    return key.index, WHOLE if key.frame is None else key.frame, key.part


def _key(position: int, frame: int, part: str) -> Key:
    if not (isinstance(position, int) and isinstance(frame, int) and isinstance(part, str)):
        raise TypeError(f"a key is {position!r}, {frame!r}, {part!r}")
    return Key(position, None if frame == WHOLE else frame, part)


def _ends(record: Record) -> tuple[float, float, str]:
    """What makes a record worth writing again: its ends, and all the rest but the clock; maps change with the ends."""
    rest = {key: value for key, value in _body(record).items() if key not in ("seconds", "queries")}
    small = {name: value.tolist() for name, value in record.aside.items() if value.numel() <= SMALL}
    return record.bracket.lower.value, record.bracket.upper.value, json.dumps([rest, small])


def _known(record: Record) -> tuple[float | None, float | None]:
    """An end that is not known is NULL."""
    lower, upper = record.bracket.lower.value, record.bracket.upper.value
    return None if lower == -math.inf else lower, None if upper == math.inf else upper


def _body(record: Record) -> dict[str, Any]:
    bracket = record.bracket
    return {
        "lower": _bound(bracket.lower),
        "upper": _bound(bracket.upper),
        "estimates": [_bound(e) for e in bracket.estimates],
        "note": bracket.note,
        "status": record.status,
        "seconds": record.seconds,
        "queries": record.queries,
        "skipped": list(record.skipped),
        "question": record.question,
        "means": record.means,
        "goal": record.goal,
    }


def _bound(bound: Bound) -> dict[str, Any]:
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
        "traits": asdict(e.traits),
        "slack": bound.slack,
        "executed": bound.executed,
    }


def _record(position: int, frame: int, part: str, body: str, lower_witness: bytes | None, upper_witness: bytes | None) -> Record:
    b = json.loads(body)
    bracket = Bracket(
        _unbound(b["lower"], lower_witness),
        _unbound(b["upper"], upper_witness),
        tuple(_unbound(e, None) for e in b["estimates"]),
        b["note"],
    )
    return Record(
        _key(position, frame, part),
        bracket,
        b["status"],
        float(b["seconds"]),
        int(b["queries"]),
        tuple(b["skipped"]),
        b["question"],
        b["means"],
        b["goal"],
    )


def _unbound(b: dict[str, Any], witness: bytes | None) -> Bound:
    evidence = Evidence(
        b["kind"], b["method"], b["settings"], b["seed"], b["dtype"], tuple(b["assumptions"]), b["confidence"],
        _unpack(witness) if witness is not None else None, tuple(b["checks"]), Traits(**b["traits"]),
    )  # fmt: skip
    return Bound(float(b["value"]), evidence, float(b["slack"]), None if b["executed"] is None else float(b["executed"]))


def _answers(stored: dict[str, Any]) -> Answers:
    return Answers(*(tuple(Likely(**one) for one in stored[side]) for side in ("before", "after")))


def _witnesses(bracket: Bracket) -> tuple[bytes | None, bytes | None]:
    lower, upper = bracket.lower.evidence.witness, bracket.upper.evidence.witness
    return None if lower is None else _pack(lower), None if upper is None else _pack(upper)


def _pack(x: Tensor) -> bytes:
    buffer = io.BytesIO()
    plain = x.detach().cpu()
    # numpy has no bfloat16; float32 holds the same numbers.
    np.save(buffer, (plain.float() if plain.dtype == torch.bfloat16 else plain).numpy(), allow_pickle=False)
    return buffer.getvalue()


def _unpack(data: bytes) -> Tensor:
    return torch.from_numpy(array_in(data))
