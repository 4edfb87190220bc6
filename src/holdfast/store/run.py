"""A run: every record is written as soon as it is known, in one transaction for a batch, with a write-ahead log. What a record replaces
stays in the history, so that a report can show how the ends closed in. Nothing here grows with the number of records."""

import contextlib
import hashlib
import itertools
import json
import os
import platform
import sqlite3
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

import holdfast
from holdfast.errors import HoldfastError, StoreError
from holdfast.files import inflate
from holdfast.question import Question, Said
from holdfast.result import Answers, Bracket, Key, Record, Status
from holdfast.store import database
from holdfast.store.database import FILE, KEYS, VERSION, reading
from holdfast.store.export import export, flat
from holdfast.store.lease import Lease
from holdfast.store.rows import (
    Event,
    Row,
    StoredInput,
    answers_of,
    check_seal,
    class_column,
    columns_of,
    event_of,
    frame_columns,
    in_parts,
    input_of,
    key_of,
    known_ends,
    make_seal,
    news,
    pack,
    record_of,
    row_of,
    seal,
    unpack,
)

# What a page shows beside the brackets, made when it is first written: a run without them is whole, and older readers do not miss them.
ANSWER = """CREATE TABLE IF NOT EXISTS answer (
    position INTEGER NOT NULL, frame INTEGER NOT NULL, part TEXT NOT NULL, shown REAL, body TEXT NOT NULL,
    PRIMARY KEY (position, frame, part)
)"""
# The end that a record's witness shows: the upper one, or the lower one where the largest number is asked for.
SHOWN = "CASE json_extract(record.body, '$.goal') WHEN 'largest' THEN record.lower WHEN 'steepness' THEN record.lower ELSE record.upper END"
INPUT = "position, label, prediction, name, tokens, x, seal"
RECORD = "position, frame, part, lower, upper, status, body, lower_witness, upper_witness, news, seal"
UPSERT = f"""INSERT INTO record ({RECORD}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (position, frame, part) DO UPDATE SET
    {", ".join(f"{name} = excluded.{name}" for name in RECORD.split(", ")[3:])}"""
SALIENCY = "saliency"  # the name of the maps of inputs among the artefacts
TOGETHER = 200  # rows that are read at once
LAST = 2**62


class Store:
    """A run folder. `create` begins one, `open` takes one up, and both hold it alone until `close`; `read` looks at one, also while
    another process writes it. All check before any long work."""

    def __init__(
        self, folder: Path, connection: sqlite3.Connection, lease: Lease | None = None, version: int = VERSION
    ) -> None:
        self.folder = folder
        self._connection = connection
        self._lease = lease
        self._record, self.input_columns = RECORD, INPUT
        if version < VERSION:
            self._record = RECORD.replace("news, seal", "NULL, NULL")
            self.input_columns = INPUT.replace("seal", "NULL")
        self._written: dict[Key, tuple[Bracket, str]] = {}  # what was looked at last

    @classmethod
    def create(cls, folder: str | Path, question: Question | None = None) -> Self:
        """A new run that remembers its question. StoreError if the folder is taken or cannot be written."""
        path = Path(folder)
        return cls(path, *begin(path, question or Question(), provenance()))

    @classmethod
    def open(cls, folder: str | Path) -> Self:
        """A run that exists, to go on with it. StoreError if there is none, another process writes it, or the file is damaged."""
        path = _there(folder)
        with contextlib.ExitStack() as undo, reading(path / FILE):
            lease = Lease(path)
            undo.callback(lease.release)
            connection = undo.enter_context(contextlib.closing(database.connect_writer(path / FILE)))
            version = database.version_of(connection, path)
            database.check_pages(connection, path / FILE)
            if version < VERSION:
                database.upgrade_format(connection)
            found = cls(path, connection, lease)._looked_over()
            undo.pop_all()
            return found

    @classmethod
    def read(cls, folder: str | Path) -> Self:
        """A run that exists, as it is now, to look at. StoreError if there is none, or the file is damaged."""
        path = _there(folder)
        with contextlib.ExitStack() as undo, reading(path / FILE):
            connection = undo.enter_context(contextlib.closing(database.looked_at(path / FILE)))
            found = cls(path, connection, version=database.version_of(connection, path))._looked_over()
            undo.pop_all()
            return found

    def _looked_over(self) -> Self:
        """What must be there, and as it was written."""
        told = dict(self._connection.execute("SELECT name, value FROM meta"))
        check_seal("the question", (told["question"], told["provenance"]), told.get("seal"))
        for table in ("input", "record", "history", "artefact"):
            self._connection.execute(f"SELECT count(*) FROM (SELECT 1 FROM {table} LIMIT 1)").fetchone()
        return self

    def close(self) -> None:
        self._connection.close()
        if self._lease is not None:
            self._lease.release()

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

    def fingerprint(self) -> str:
        """SHA-256 of the question, of all inputs and of all records as they were written, in their order: runs that share it say the same
        of the same. What lies beside records, and the history, are no part of it."""
        digest = hashlib.sha256()
        told: dict[str, str] = dict(self.query_rows("SELECT name, value FROM meta"))
        rows = itertools.chain(
            [(told["question"], told["provenance"])],
            self.rows_of("input", self.input_columns.rpartition(", ")[0]),
            self._in_order(),
        )
        for row in rows:
            digest.update(b"%d;" % len(row))
            for part in frame_columns(row):
                digest.update(part)
        return digest.hexdigest()

    def _in_order(self) -> Iterator[Row]:
        """The rows of all records by their keys, without their seals."""
        place: Row = (-LAST, -LAST, "")
        asked = (
            f"SELECT {self._record.rpartition(', ')[0]} FROM record WHERE (position, frame, part) > (?, ?, ?)"
        )
        while rows := self.query_rows(f"{asked} ORDER BY position, frame, part LIMIT {TOGETHER}", place):
            yield from rows
            place = rows[-1][:3]

    def _meta(self, name: str) -> dict[str, Any]:
        [(value,)] = self.query_rows("SELECT value FROM meta WHERE name = ?", (name,))
        loaded: dict[str, Any] = json.loads(value)
        return loaded

    def put_inputs(
        self,
        x: Sequence[Tensor],
        labels: Sequence[Said | None],
        predictions: Sequence[Said | None],
        names: Sequence[str],
        tokens: Sequence[Sequence[int] | None],
    ) -> None:
        """The inputs in their order, so that the folder alone is enough to look at the run."""
        rows = (
            make_seal(
                (
                    i,
                    class_column(labels[i]),
                    class_column(predictions[i]),
                    names[i],
                    None if words is None else json.dumps(list(words)),
                    pack(x[i]),
                )
            )
            for i, words in enumerate(tokens)
        )
        with self.transaction() as connection:
            connection.executemany("INSERT OR REPLACE INTO input VALUES (?, ?, ?, ?, ?, ?, ?)", rows)
        with self.transaction() as connection:
            database.checkpoint(connection)

    def inputs(self) -> list[StoredInput]:
        return list(self.stream_inputs())

    def stream_inputs(
        self, first: int = 0, last: int = LAST, *, light: bool = False
    ) -> Iterator[StoredInput]:
        """Those from `first` to `last`, a few in memory at a time. light: without their numbers and maps."""
        told = f"SELECT {self.input_columns} FROM input WHERE position BETWEEN ? AND ? ORDER BY position LIMIT {TOGETHER}"
        maps = f"SELECT position, value FROM artefact WHERE name = '{SALIENCY}' AND position BETWEEN ? AND ?"
        while rows := self.query_rows(told, (first, last)):
            found: dict[int, bytes] = {} if light else dict(self.query_rows(maps, (rows[0][0], rows[-1][0])))
            with reading(self.folder / FILE):
                some = [input_of(row, _unpack_tensor(found.get(row[0])), light=light) for row in rows]
            yield from some
            first = rows[-1][0] + 1

    def inputs_without_prediction(self) -> set[int]:
        """The inputs of which it is not known what the network says, but for those that it could not answer."""
        failed = "SELECT position FROM record WHERE status = 'failed'"
        return {
            position
            for (position,) in self.query_rows(
                f"SELECT position FROM input WHERE prediction IS NULL AND position NOT IN ({failed})"
            )
        }

    def put_predictions(self, said: Mapping[int, Said]) -> None:
        """What the network says of inputs of which that is not known yet."""
        columns = INPUT.removesuffix(", seal")
        for some in in_parts(said, KEYS):
            places = ", ".join(map(str, some))
            rows = self.query_rows(
                f"SELECT {columns} FROM input WHERE prediction IS NULL AND position IN ({places})"
            )
            told = [(place, label, class_column(said[place]), *rest) for place, label, _, *rest in rows]
            with self.transaction() as connection:
                connection.executemany(
                    "INSERT OR REPLACE INTO input VALUES (?, ?, ?, ?, ?, ?, ?)", map(make_seal, told)
                )

    def has_inputs(self) -> bool:
        return bool(self.query_rows("SELECT 1 FROM input LIMIT 1"))

    def put_artefacts(self, name: str, values: Mapping[Key, Tensor]) -> None:
        """Tensors that are kept beside records, such as maps of what matters."""
        with self.transaction() as connection:
            self._keep(connection, [(key, name, value) for key, value in values.items()])

    def artefacts(self, name: str) -> dict[Key, Tensor]:
        rows = self.query_rows("SELECT position, frame, part, value FROM artefact WHERE name = ?", (name,))
        with reading(self.folder / FILE):
            return {key_of(*row[:3]): unpack(inflate(row[3])) for row in rows}

    def _keep(self, connection: sqlite3.Connection, values: Sequence[tuple[Key, str, Tensor]]) -> None:
        rows = [(*columns_of(key), name, zlib.compress(pack(value))) for key, name, value in values]
        connection.executemany("INSERT OR REPLACE INTO artefact VALUES (?, ?, ?, ?, ?)", rows)

    # ---- records

    def write(self, records: Sequence[Record]) -> None:
        """Keep the records that are new or better, with what they replace in the history; one transaction."""
        # Brackets are never changed, only replaced: those that were written are known by themselves.
        fresh = [r for r in records if not self._same(r)]
        known: dict[Key, Row] = {}
        for row in self.of_keys(
            "SELECT position, frame, part, news, lower, upper FROM record", [r.key for r in fresh]
        ):
            known[key_of(*row[:3])] = row[3:]
        told = {r.key: news(r) for r in fresh}
        changed = [r for r in fresh if r.key not in known or known[r.key][0] != told[r.key]]
        moved = [r for r in changed if r.key not in known or known[r.key][1:] != known_ends(r)]
        if changed:
            with self.transaction() as connection:
                self._put(connection, changed, told)
                moments = [(*columns_of(r.key), r.seconds, r.queries, *known_ends(r)) for r in moved]
                connection.executemany("INSERT INTO history VALUES (?, ?, ?, ?, ?, ?, ?)", moments)
        self._written = {r.key: (r.bracket, r.status) for r in records}

    def replace(self, records: Sequence[Record]) -> None:
        """These records instead of what is there, whatever it is; the history says nothing of it."""
        with self.transaction() as connection:
            self._put(connection, records, {})

    def _put(
        self, connection: sqlite3.Connection, records: Sequence[Record], told: Mapping[Key, str]
    ) -> None:
        connection.executemany(UPSERT, (row_of(r, told.get(r.key)) for r in records))
        self._keep(connection, [(r.key, name, value) for r in records for name, value in r.aside.items()])

    def _same(self, record: Record) -> bool:
        bracket, status = self._written.get(record.key, (None, ""))
        return bracket is record.bracket and status == record.status

    @contextlib.contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """All of it is written, or nothing."""
        try:
            with self._connection:
                yield self._connection
        except (sqlite3.Error, OSError) as error:
            raise StoreError(
                f"{self.folder}: cannot write the run ({error}). Is the disk full? What was written before is safe; free some space and "
                f"continue with 'holdfast resume {self.folder}'."
            ) from error

    def query_rows(self, asked: str, values: Sequence[Any] = ()) -> list[Row]:
        """Rows of the database."""
        with reading(self.folder / FILE):
            return self._connection.execute(asked, values).fetchall()

    def of_keys(self, asked: str, keys: Iterable[Key]) -> Iterator[Row]:
        """Rows of these keys alone, each found by its index: a cross join is walked in the order in which it is written."""
        before, after = asked.split(" FROM ", 1)
        for some in in_parts(keys, KEYS):
            these = f"WITH these (position, frame, part) AS (VALUES {', '.join(['(?, ?, ?)'] * len(some))})"
            table, _, rest = after.partition(" ")
            found = f"{these} {before} FROM these CROSS JOIN {table} USING (position, frame, part) {rest}"
            yield from self.query_rows(found, [value for key in some for value in columns_of(key)])

    def records(self) -> list[Record]:
        """All records, by input and frame."""
        return list(self.stream())

    def stream(self, first: int = 0, last: int = LAST, *, light: bool = False) -> Iterator[Record]:
        """The records of the inputs from `first` to `last`, by input and frame, a few in memory at a time. light: without witnesses."""
        asked = (
            f"SELECT {self._record} FROM record WHERE (position, frame, part) > (?, ?, ?) AND position <= ?"
        )
        place: Row = (first, -LAST, "")
        while rows := self.query_rows(
            f"{asked} ORDER BY position, frame, part LIMIT {TOGETHER}", (*place, last)
        ):
            with reading(self.folder / FILE):
                some = [record_of(row, light=light) for row in rows]
            yield from some
            place = rows[-1][:3]

    def iterate_readable(self) -> Iterator[Record | HoldfastError]:
        """Every record without its witnesses, or why it cannot be believed."""
        for row in self.rows_of("record", self._record):
            try:
                record = record_of(row, light=True)
                if row[3:6] != (*known_ends(record), record.status):
                    raise StoreError("what it says stands twice, and differs")
                yield record
            except Exception as error:  # a damaged row fails in any layer of whatever reads it
                kind = type(error) if isinstance(error, HoldfastError) else StoreError
                yield kind(f"input {'/'.join(map(str, row[:3]))}: {error}")

    def load_known(self, keys: Sequence[Key]) -> dict[Key, Record]:
        """The records of these keys that are there, with what is kept beside them."""
        with reading(self.folder / FILE):
            found = [record_of(row) for row in self.of_keys(f"SELECT {self._record} FROM record", keys)]
        return {record.key: record for record in self.beside(found)}

    def with_aside(self) -> list[Record]:
        """All records, each with what is kept beside it."""
        return list(self.stream_with_aside())

    def stream_with_aside(self) -> Iterator[Record]:
        """The same, a few in memory at a time."""
        return (record for some in in_parts(self.stream(), KEYS) for record in self.beside(some))

    def beside(self, records: Sequence[Record]) -> Iterator[Record]:
        """These records with what is kept beside them."""
        kept: dict[Key, dict[str, Tensor]] = {}
        rows = self.of_keys(
            "SELECT position, frame, part, name, value FROM artefact", [r.key for r in records]
        )
        with reading(self.folder / FILE):
            for *columns, name, value in rows:
                kept.setdefault(key_of(*columns), {})[name] = unpack(inflate(value))
        for record in records:
            yield replace(record, aside=kept.get(record.key, {}))

    def counts(self) -> dict[Status, int]:
        """How many records of each status there are."""
        return dict(self.query_rows("SELECT status, count(*) FROM record GROUP BY status"))

    def answered_inputs(self) -> list[int]:
        """The inputs that have a record."""
        return [
            position
            for (position,) in self.query_rows("SELECT DISTINCT position FROM record ORDER BY position")
        ]

    def queried_inputs(self) -> set[int]:
        """The inputs that the model was asked about and could answer."""
        return {
            record.key.index
            for record in self.stream(light=True)
            if record.queries and record.status != "failed"
        }

    def parts(self) -> list[str]:
        """Of the question, those that have a record."""
        return [part for (part,) in self.query_rows("SELECT DISTINCT part FROM record ORDER BY part")]

    def finished_records(self) -> dict[Key, Record]:
        """The records that a resumed run need not ask for again, with what is kept beside them."""
        return {r.key: r for r in self.with_aside() if r.status in ("closed", "finished")}

    def unfinished_records(self) -> dict[Key, Record]:
        """The records that a resumed run takes up again: interrupted, or stopped by their budget."""
        return {r.key: r for r in self.with_aside() if r.status not in ("closed", "finished")}

    def put_answers(self, answers: Mapping[Key, Answers]) -> None:
        """What the network says at the input of a record and at the witness that the record has now."""
        rows = [
            (*columns_of(key), json.dumps(asdict(answer)), *columns_of(key))
            for key, answer in answers.items()
        ]
        with self.transaction() as connection:
            connection.execute(ANSWER)
            connection.executemany(
                f"INSERT OR REPLACE INTO answer SELECT ?, ?, ?, {SHOWN}, ? FROM record WHERE position = ? AND frame = ? AND part = ?",
                rows,
            )

    def answers(self, keys: Iterable[Key] | None = None) -> dict[Key, Answers]:
        """Those that are stored and speak of the record's witness as it is now: a better record makes them stale. keys: of these alone."""
        if not self.has("answer"):
            return {}
        told = f"""SELECT position, frame, part, answer.body FROM answer CROSS JOIN record USING (position, frame, part)
            WHERE answer.shown IS {SHOWN}"""
        rows = self.query_rows(told) if keys is None else self.of_keys(told, keys)
        with reading(self.folder / FILE):
            return {key_of(*row[:3]): answers_of(json.loads(row[3])) for row in rows}

    def rows_of(self, table: str, columns: str = "*") -> Iterator[Row]:
        """A whole table as it lies there, a few rows at a time."""
        place = -1
        while rows := self.query_rows(
            f"SELECT rowid, {columns} FROM {table} WHERE rowid > ? ORDER BY rowid LIMIT {TOGETHER}", (place,)
        ):
            yield from (row[1:] for row in rows)
            place = rows[-1][0]

    def has(self, table: str) -> bool:
        return bool(
            self.query_rows("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?", (table,))
        )

    def history(self, every: int = 1) -> list[Event]:
        """How the ends closed in; of about so many inputs one, spread over them all."""
        told = """SELECT position, frame, part, seconds, queries, lower, upper FROM history
            WHERE ((position * 2654435761) >> 16) % ? = 0 ORDER BY rowid"""
        rows = self.query_rows(told, (every,))
        with reading(self.folder / FILE):
            return [event_of(*row) for row in rows]

    def moments(self) -> int:
        """How many the history holds."""
        return int(self.query_rows("SELECT count(*) FROM history")[0][0])

    # ---- out

    def copy_to(self, folder: Path) -> Path:
        """The run as it is now, as a file of its own in an empty folder: the same bytes for the same run, whether or not some of it still
        lies in the log."""
        target = folder / FILE
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with contextlib.closing(sqlite3.connect(target)) as copy:
                self._connection.backup(copy)
                copy.execute(
                    "PRAGMA journal_mode=DELETE"
                ).fetchall()  # so that who reads it writes no log beside it
        except (sqlite3.Error, OSError) as error:
            raise StoreError(
                f"{self.folder}: cannot be copied to {folder} ({error}). Is the disk full?"
            ) from error
        return target

    def rows(self) -> list[dict[str, Any]]:
        """One flat row for each record, for tables."""
        return [flat(record) for record in self.stream(light=True)]

    def export(self, path: str | Path) -> Path:
        """Write all records as .json, .csv or .parquet, or all witnesses as .npz, by the file's ending."""
        return export(self, path)


def begin(path: Path, question: Question, made: Mapping[str, Any]) -> tuple[sqlite3.Connection, Lease]:
    """The database of a new run that was made by whom or of what its provenance says."""
    about = {"version": VERSION, "question": question.as_json(), "provenance": made}
    lines = [(name, json.dumps(value)) for name, value in about.items()]
    lines.append(("seal", seal(tuple(text for _, text in lines[1:]))))
    if (path / FILE).exists() and not database.unborn(path / FILE):
        raise StoreError(
            f"{path} already holds a run. Continue it with 'holdfast resume {path}', or choose another folder."
        )
    try:
        path.mkdir(parents=True, exist_ok=True)
        with contextlib.ExitStack() as undo:
            lease = Lease(path)
            undo.callback(lease.release)
            connection = database.begun(path / FILE, lines)
            undo.pop_all()
        return connection, lease
    except (OSError, sqlite3.Error) as error:
        raise StoreError(
            f"{path}: cannot begin a run there ({error}). Is the folder writable and the disk not full?"
        ) from error


def _there(folder: str | Path) -> Path:
    path = Path(folder)
    if not (path / FILE).is_file():
        raise StoreError(
            f"{path}: no run here ({FILE} is missing). Start one with 'holdfast radius ... --out {path}'."
        )
    return path


def _unpack_tensor(value: bytes | None) -> Tensor | None:
    return None if value is None else unpack(inflate(value))


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
