"""Recovery of the readable rows of a damaged run into a new run that can be resumed.

The damaged file is copied and never written. Its tables are read by ranges of row ids: a range that cannot be
read is halved until single rows are left out. A row is kept if it matches its seal and decodes to a record;
in older runs without seals, if it decodes.
"""

import contextlib
import json
import os
import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from holdfast.errors import StoreError
from holdfast.question import Question
from holdfast.store import database
from holdfast.store.atomic_write import create_whole
from holdfast.store.database import FILE, KEYS, LOG
from holdfast.store.record_table import ANSWER, CLAIM, UPSERT
from holdfast.store.rows import ARTEFACT_NAMES, Row, check_seal, in_batches, input_of, key_of, record_of
from holdfast.store.run import Store
from holdfast.store.tables import INPUT, RECORD

MAGIC = b"SQLite format 3\0"
# Page size of the file, in bytes: the default of SQLite, which `database` does not change.
PAGE = 4096
# Length of a file's header on the first page, in bytes (SQLite file format).
HEADER = 100
# Largest number of pages that a damaged header may add to a truncated file (chosen by hand; 4 GiB).
MAX_MISSING_PAGES = 2**20
# Number of row ids that one query reads (chosen by hand).
RANGE = 1000
# Smallest number of bytes that a row takes. A stored row id that would need a larger file than this one is
# damaged.
SMALLEST = 32
# Without a usable highest row id, reading stops after this many row ids, or after READ_AHEAD times the last
# one that was read (both chosen by hand).
FAR = 10_000
READ_AHEAD = 4
# Exceptions of a damaged file; text with invalid UTF-8 raises UnicodeDecodeError, a ValueError.
UNREADABLE = (sqlite3.Error, ValueError)


@dataclass(frozen=True)
class Salvaged:
    """The outcome of a recovery.

    Attributes:
        folder: the new run.
        saved: number of records that were recovered.
        changed: number of records that can be read, but differ from what was written.
        expected: number of records by the index of their table; None if the index cannot be read.
        inputs: whether all inputs were recovered; if not, a resumed run writes them again.
    """

    folder: Path
    saved: int
    changed: int
    expected: int | None
    inputs: bool

    def __str__(self) -> str:
        total = (
            "an unknown number"
            if self.expected is None
            else str(max(self.expected, self.saved + self.changed))
        )
        text = f"{self.saved} of {total} records saved"
        text += f"; {self.changed} are not as they were written and are left out" if self.changed else ""
        return text + ("" if self.inputs else "; inputs are lost, and come back with the resumed run")


def salvage(folder: str | Path, new: str | Path) -> Salvaged:
    """Recover the run in `folder` into a new run in `new`.

    Raises StoreError if the question cannot be read, because records have no meaning without it.
    """
    source, target = Path(folder), Path(new)
    if not (source / FILE).is_file():
        raise StoreError(f"{source}: no run here ({FILE} is missing).")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=".salvage-") as place:
            file = Path(place) / FILE
            for name in (FILE, LOG):
                if (source / name).is_file():
                    shutil.copyfile(source / name, file.with_name(name))
            with contextlib.closing(_open_damaged(file, source)) as damaged:
                return _save_readable(damaged, source, target)
    except OSError as error:
        raise StoreError(f"{target}: cannot be written ({error}).") from error


def _open_damaged(file: Path, source: Path) -> sqlite3.Connection:
    """A connection to the copy, after as much repair as SQLite needs to run a query."""
    for repair in (_no_repair, _pad_file, _restore_header):
        repair(file)
        connection = sqlite3.connect(file)
        try:
            if connection.execute("SELECT value FROM meta WHERE name = 'question'").fetchone():
                return connection
        except (sqlite3.Error, ValueError):
            pass
        connection.close()
    raise StoreError(
        f"{source}: the question of this run cannot be read, and without it records have no meaning. "
        f"Run it again with another --out."
    )


def _no_repair(file: Path) -> None:
    pass


def _pad_file(file: Path) -> None:
    """Append empty pages to a truncated file, because SQLite refuses a file that is shorter than its header
    says."""
    with file.open("r+b") as stream:
        head = stream.read(HEADER)
        size = os.path.getsize(file)
        size += -size % PAGE
        if head.startswith(MAGIC):
            pages = int.from_bytes(head[28:32], "big")
            size = max(size, PAGE * min(pages, 2 * size // PAGE + MAX_MISSING_PAGES))
        stream.truncate(size)


def _restore_header(file: Path) -> None:
    """Replace a lost first page by that of a new run: the tables of all runs begin at the same pages."""
    fresh = file.with_name("fresh.sqlite")
    database.create_database(fresh, []).close()
    page = bytearray(fresh.read_bytes()[:PAGE])
    # Clearing the "version-valid-for" number makes SQLite ignore the number of pages in the header.
    page[92:96] = b"\0\0\0\0"
    with file.open("r+b") as stream:
        stream.write(page)


def _save_readable(damaged: sqlite3.Connection, source: Path, target: Path) -> Salvaged:
    try:
        meta = dict(damaged.execute("SELECT name, value FROM meta").fetchall())
        check_seal("its question", (meta["question"], meta["provenance"]), meta.get("seal"))
        question, about = Question.from_json(json.loads(meta["question"])), json.loads(meta["provenance"])
    except Exception as error:  # damage can surface as any exception in any layer
        raise StoreError(
            f"{source}: the question of this run is damaged ({error}). Run it again with another --out."
        ) from error
    expected: int | None = None
    with contextlib.suppress(sqlite3.Error):
        expected = int(damaged.execute("SELECT count(*) FROM record").fetchone()[0])
    with create_whole(target, question, {**about, "salvaged from": str(source)}) as whole:
        _, all_inputs = _copy_table(damaged, whole, "input", INPUT, lambda row: bool(input_of(row)))
        for table, columns in (("artefact", "*"), ("history", "*"), ("answer", "*"), ("claim", "*")):
            if _has(damaged, table):
                _copy_table(damaged, whole, table, columns, None)
        saved, changed = _copy_records(damaged, whole)
        if not all_inputs:
            with whole.transaction() as connection:
                connection.execute("DELETE FROM input")
    return Salvaged(target, saved, changed, expected, all_inputs)


def _copy_records(damaged: sqlite3.Connection, whole: Store) -> tuple[int, int]:
    """Copy the intact records whose artefacts are all there.

    Returns how many were copied, and how many were readable but damaged.
    """
    saved = changed = 0
    for some in in_batches(_rows(damaged, "record", RECORD), KEYS):
        good = [row for row in some if row is not None and _check_row(row, lambda row: bool(record_of(row)))]
        keys = [key_of(*row[:3]) for row in good]
        artefacts = {
            (key_of(*row[:3]), row[3])
            for row in whole.of_keys("SELECT position, frame, part, name FROM artefact", keys)
        }
        kept = [
            row
            for row in good
            if all(
                (key_of(*row[:3]), name) in artefacts for name in json.loads(row[6]).get(ARTEFACT_NAMES, ())
            )
        ]
        with whole.transaction() as connection:
            connection.executemany(UPSERT, kept)
        saved, changed = saved + len(kept), changed + sum(row is not None for row in some) - len(kept)
    return saved, changed


def _copy_table(
    damaged: sqlite3.Connection, whole: Store, table: str, columns: str, check: Callable[[Row], bool] | None
) -> tuple[int, bool]:
    """Copy the readable rows that pass `check`.

    Returns their number, and whether all rows of the table were copied.
    """
    count, complete = 0, True
    for some in in_batches(_rows(damaged, table, columns), KEYS):
        good = [row for row in some if row is not None and (check is None or _check_row(row, check))]
        count, complete = count + len(good), complete and len(good) == len(some)
        with whole.transaction() as connection:
            if table == "answer":
                connection.execute(ANSWER)
            if table == "claim":
                connection.execute(CLAIM)
            for row in good:
                with contextlib.suppress(
                    sqlite3.IntegrityError
                ):  # a damaged row may hold NULL where none is allowed
                    connection.execute(
                        f"INSERT OR REPLACE INTO {table} VALUES ({', '.join('?' * len(row))})", row
                    )
    return count, complete


def _check_row(row: Row, check: Callable[[Row], bool]) -> bool:
    try:
        return check(row)
    except Exception:  # damage can surface as any exception in any layer
        return False


def _has(damaged: sqlite3.Connection, table: str) -> bool:
    with contextlib.suppress(sqlite3.Error):
        return bool(
            damaged.execute(
                "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?", (table,)
            ).fetchone()
        )
    return False


def _rows(damaged: sqlite3.Connection, table: str, columns: str) -> Iterator[Row | None]:
    """Every row that can be read, and None for each row id that cannot be read."""
    existing = {"*", *(row[1] for row in damaged.execute(f"PRAGMA table_info({table})"))}
    selected = ", ".join(name if name in existing else "NULL" for name in columns.split(", "))
    query = f"SELECT rowid, {selected} FROM {table} NOT INDEXED WHERE rowid"
    next_id, last_read = 0, 0
    highest = _highest_row_id(damaged, table)
    while next_id <= (max(FAR, READ_AHEAD * last_read) if highest is None else highest):
        try:
            rows = damaged.execute(f"{query} >= ? ORDER BY rowid LIMIT {RANGE}", (next_id,)).fetchall()
        except UNREADABLE:
            for row in _rows_between(damaged, f"{query} BETWEEN ? AND ?", next_id, next_id + RANGE - 1):
                last_read = last_read if row is None else row[0]
                yield None if row is None else row[1:]
            next_id += RANGE
            continue
        if not rows:
            return
        yield from (row[1:] for row in rows)
        last_read, next_id = rows[-1][0], rows[-1][0] + 1


def _rows_between(damaged: sqlite3.Connection, query: str, first: int, last: int) -> Iterator[Row | None]:
    """The rows with ids `first` to `last`, with their ids, by bisection.

    Yields None for each id that cannot be read.
    """
    try:
        yield from damaged.execute(query, (first, last)).fetchall()
    except UNREADABLE:
        if first == last:
            yield None
            return
        middle = (first + last) // 2
        yield from _rows_between(damaged, query, first, middle)
        yield from _rows_between(damaged, query, middle + 1, last)


def _highest_row_id(damaged: sqlite3.Connection, table: str) -> int | None:
    """The largest row id by the table or its index.

    Returns None if neither gives one that is plausible for the size of the file.
    """
    (pages,) = damaged.execute("PRAGMA page_count").fetchone()
    for query in (
        f"SELECT max(rowid) FROM {table} NOT INDEXED",
        f"SELECT max(rowid) FROM {table} INDEXED BY sqlite_autoindex_{table}_1",
    ):
        with contextlib.suppress(*UNREADABLE):
            found = int(damaged.execute(query).fetchone()[0] or 0)
            if found <= pages * PAGE // SMALLEST:
                return found
    return None
