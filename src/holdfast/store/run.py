"""A run folder: its question, inputs and records in one SQLite file.

Every batch of records is written as soon as it is known, in one transaction with a write-ahead log. Bounds
that a record replaces stay in the history, so that a report can show how they improved. Memory does not grow
with the number of records.
"""

import contextlib
import hashlib
import itertools
import json
import sqlite3
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from holdfast.errors import StoreError
from holdfast.question import Question
from holdfast.store import database
from holdfast.store.database import FILE, VERSION, report_damage
from holdfast.store.export import export, flat
from holdfast.store.input_table import InputTable
from holdfast.store.lease import Lease
from holdfast.store.provenance import provenance
from holdfast.store.record_table import RecordTable
from holdfast.store.rows import check_seal, frame_columns, seal


class Store(InputTable, RecordTable):
    """A run folder.

    `create` begins a run and `open` continues one; both hold the run's lease until `close`. `read` opens a
    run for reading, also while another process writes it. All of them check the folder before any long work.
    """

    @classmethod
    def create(cls, folder: str | Path, question: Question | None = None) -> Self:
        """A new run in `folder` with this question. StoreError if the folder holds a run already or cannot be written."""
        path = Path(folder)
        return cls(path, *begin(path, question or Question(), provenance()))

    @classmethod
    def open(cls, folder: str | Path) -> Self:
        """An existing run in `folder`, to continue it.

        Raises StoreError if there is none, another process writes it, or the file is damaged.
        """
        path = _run_folder(folder)
        with contextlib.ExitStack() as undo, report_damage(path / FILE):
            lease = Lease(path)
            undo.callback(lease.release)
            connection = undo.enter_context(contextlib.closing(database.connect_writer(path / FILE)))
            version = database.version_of(connection, path)
            database.check_pages(connection, path / FILE)
            if version < VERSION:
                database.upgrade_format(connection)
            store = cls(path, connection, lease)._check_tables()
            undo.pop_all()
            return store

    @classmethod
    def read(cls, folder: str | Path) -> Self:
        """The run in `folder` in its present state, for reading.

        Raises StoreError if there is none, or the file is damaged.
        """
        path = _run_folder(folder)
        with contextlib.ExitStack() as undo, report_damage(path / FILE):
            connection = undo.enter_context(contextlib.closing(database.connect_reader(path / FILE)))
            store = cls(path, connection, version=database.version_of(connection, path))._check_tables()
            undo.pop_all()
            return store

    def _check_tables(self) -> Self:
        """Raise an exception unless all tables exist and the question has its seal."""
        meta = dict(self._connection.execute("SELECT name, value FROM meta"))
        check_seal("the question", (meta["question"], meta["provenance"]), meta.get("seal"))
        for table in ("input", "record", "history", "artefact"):
            self._connection.execute(f"SELECT count(*) FROM (SELECT 1 FROM {table} LIMIT 1)").fetchone()
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def question(self) -> Question:
        return Question.from_json(self._meta("question"))

    @property
    def provenance(self) -> dict[str, Any]:
        return self._meta("provenance")

    def _meta(self, name: str) -> dict[str, Any]:
        [(value,)] = self.query_rows("SELECT value FROM meta WHERE name = ?", (name,))
        loaded: dict[str, Any] = json.loads(value)
        return loaded

    def fingerprint(self) -> str:
        """SHA-256 of the question, all inputs and all records as they were written, in their order.

        Artefacts, answers and the history are not part of it.
        """
        digest = hashlib.sha256()
        meta: dict[str, str] = dict(self.query_rows("SELECT name, value FROM meta"))
        rows = itertools.chain(
            [(meta["question"], meta["provenance"])],
            self.rows_of("input", self.input_columns.rpartition(", ")[0]),
            self.rows_in_order(),
        )
        for row in rows:
            digest.update(b"%d;" % len(row))
            for part in frame_columns(row):
                digest.update(part)
        return digest.hexdigest()

    def copy_to(self, folder: Path) -> Path:
        """Write the present state of the run as one file into an empty folder, and return its path.

        Equal runs give equal bytes, also where one of them still has a write-ahead log.
        """
        target = folder / FILE
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with contextlib.closing(sqlite3.connect(target)) as copy:
                self._connection.backup(copy)
                # Without this a reader of the copy would create a log file next to it.
                copy.execute("PRAGMA journal_mode=DELETE").fetchall()
        except (sqlite3.Error, OSError) as error:
            raise StoreError(
                f"{self.folder}: cannot be copied to {folder} ({error}). Is the disk full?"
            ) from error
        return target

    def rows(self) -> list[dict[str, Any]]:
        """One flat row for each record, for tables."""
        return [flat(record) for record in self.stream(light=True)]

    def export(self, path: str | Path) -> Path:
        """Write all records as .json, .csv or .parquet, or all witnesses as .npz, depending on the ending of
        `path`, and return the path.
        """
        return export(self, path)


def begin(path: Path, question: Question, provenance: Mapping[str, Any]) -> tuple[sqlite3.Connection, Lease]:
    """The database of a new run in this folder, and its lease.

    Raises StoreError if the folder holds a run or cannot be written.
    """
    about = {"version": VERSION, "question": question.as_json(), "provenance": provenance}
    lines = [(name, json.dumps(value)) for name, value in about.items()]
    lines.append(("seal", seal(tuple(text for _, text in lines[1:]))))
    if (path / FILE).exists() and not database.is_unborn(path / FILE):
        raise StoreError(
            f"{path} already holds a run. Continue it with 'holdfast resume {path}', or choose another "
            f"folder."
        )
    if path.is_file():
        raise StoreError(f"{path}: cannot begin a run there: it is a file, and a run is a folder.")
    try:
        path.mkdir(parents=True, exist_ok=True)
        with contextlib.ExitStack() as undo:
            lease = Lease(path)
            undo.callback(lease.release)
            connection = database.create_database(path / FILE, lines)
            undo.pop_all()
        return connection, lease
    except (OSError, sqlite3.Error) as error:
        raise StoreError(
            f"{path}: cannot begin a run there ({error}). Is the folder writable and the disk not full?"
        ) from error


def _run_folder(folder: str | Path) -> Path:
    """The path, if the folder holds a run; else StoreError."""
    path = Path(folder)
    if not (path / FILE).is_file():
        raise StoreError(
            f"{path}: no run here ({FILE} is missing). Start one with 'holdfast radius ... --out {path}'."
        )
    return path
