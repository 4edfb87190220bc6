"""What can be read of a damaged run, as a new one that can be resumed.

The damaged file is copied and never touched. Its tables are walked by the numbers of their rows: a range that cannot be read is halved
until what is lost is a row. A row counts where its seal is whole and it makes a record; of older runs without seals, where it makes one.
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
from holdfast.store.rows import Row, check_seal, in_parts, input_of, key_of, record_of
from holdfast.store.run import ANSWER, INPUT, RECORD, UPSERT, Store

MAGIC = b"SQLite format 3\0"
PAGE = 4096
RANGE = 1000  # rows that are read at once where nothing is damaged
SMALLEST = 32  # bytes of a row, so that no damaged number is believed that the file has no room for
FAR = 10_000  # row numbers that are tried where nothing says how many there are; then four times as far as something was read
UNREADABLE = (sqlite3.Error, ValueError)  # text that is none is a UnicodeDecodeError


@dataclass(frozen=True)
class Salvaged:
    """What came of it."""

    folder: Path
    saved: int  # records
    changed: int  # that can be read, but are not as they were written
    expected: int | None  # by the index of the records; None: that cannot be read either
    inputs: bool  # False: some are lost, and a resumed run writes them again

    def __str__(self) -> str:
        of = (
            "an unknown number"
            if self.expected is None
            else str(max(self.expected, self.saved + self.changed))
        )
        told = f"{self.saved} of {of} records saved"
        told += f"; {self.changed} are not as they were written and are left out" if self.changed else ""
        return told + ("" if self.inputs else "; inputs are lost, and come back with the resumed run")


def salvage(folder: str | Path, new: str | Path) -> Salvaged:
    """StoreError where not even the question can be read: records without it mean nothing."""
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
    """The copy, as far mended that SQLite lets itself be asked."""
    for mend in (_as_it_is, _pad_file, _restore_header):
        mend(file)
        connection = sqlite3.connect(file)
        try:
            if connection.execute("SELECT value FROM meta WHERE name = 'question'").fetchone():
                return connection
        except (sqlite3.Error, ValueError):
            pass
        connection.close()
    raise StoreError(
        f"{source}: not even the question of this run can be read, and without it records mean nothing. Begin it anew with another --out."
    )


def _as_it_is(file: Path) -> None:
    pass


def _pad_file(file: Path) -> None:
    """A file that ends too soon, with empty pages where there are none: SQLite refuses a shorter one as a whole."""
    with file.open("r+b") as stream:
        head = stream.read(100)
        size = os.path.getsize(file)
        size += -size % PAGE
        if head.startswith(MAGIC):
            size = max(size, PAGE * min(int.from_bytes(head[28:32], "big"), 2 * size // PAGE + 2**20))
        stream.truncate(size)


def _restore_header(file: Path) -> None:
    """A file whose first page is lost, with that of a new run: the tables of all runs begin at the same pages."""
    fresh = file.with_name("fresh.sqlite")
    database.begun(fresh, []).close()
    page = bytearray(fresh.read_bytes()[:PAGE])
    page[92:96] = b"\0\0\0\0"  # so the number of pages in the head is not believed
    with file.open("r+b") as stream:
        stream.write(page)


def _save_readable(damaged: sqlite3.Connection, source: Path, target: Path) -> Salvaged:
    try:
        meta = dict(damaged.execute("SELECT name, value FROM meta").fetchall())
        check_seal("its question", (meta["question"], meta["provenance"]), meta.get("seal"))
        question, about = Question.from_json(json.loads(meta["question"])), json.loads(meta["provenance"])
    except Exception as error:  # a damaged row fails in any layer of whatever reads it
        raise StoreError(
            f"{source}: what this run was asked cannot be read or believed ({error}). Begin it anew."
        ) from error
    expected: int | None = None
    with contextlib.suppress(sqlite3.Error):
        expected = int(damaged.execute("SELECT count(*) FROM record").fetchone()[0])
    with create_whole(target, question, {**about, "salvaged from": str(source)}) as whole:
        _, all_inputs = _copy_table(damaged, whole, "input", INPUT, lambda row: bool(input_of(row)))
        for table, columns in (("artefact", "*"), ("history", "*"), ("answer", "*")):
            if _has(damaged, table):
                _copy_table(damaged, whole, table, columns, None)
        saved, changed = _records(damaged, whole)
        if not all_inputs:
            with whole.transaction() as connection:
                connection.execute("DELETE FROM input")
    return Salvaged(target, saved, changed, expected, all_inputs)


def _records(damaged: sqlite3.Connection, whole: Store) -> tuple[int, int]:
    saved = changed = 0
    for some in in_parts(_rows(damaged, "record", RECORD), KEYS):
        good = [row for row in some if row is not None and _check_row(row, lambda row: bool(record_of(row)))]
        keys = [key_of(*row[:3]) for row in good]
        beside = {
            (key_of(*row[:3]), row[3])
            for row in whole.of_keys("SELECT position, frame, part, name FROM artefact", keys)
        }
        kept = [
            row
            for row in good
            if all((key_of(*row[:3]), name) in beside for name in json.loads(row[6]).get("beside", ()))
        ]
        with whole.transaction() as connection:
            connection.executemany(UPSERT, kept)
        saved, changed = saved + len(kept), changed + sum(row is not None for row in some) - len(kept)
    return saved, changed


def _copy_table(
    damaged: sqlite3.Connection, whole: Store, table: str, columns: str, check: Callable[[Row], bool] | None
) -> tuple[int, bool]:
    """How many rows, and whether all of them could be read."""
    count, every = 0, True
    for some in in_parts(_rows(damaged, table, columns), KEYS):
        good = [row for row in some if row is not None and (check is None or _check_row(row, check))]
        count, every = count + len(good), every and len(good) == len(some)
        with whole.transaction() as connection:
            if table == "answer":
                connection.execute(ANSWER)
            for row in good:
                with contextlib.suppress(sqlite3.IntegrityError):  # a damaged row that is none
                    connection.execute(
                        f"INSERT OR REPLACE INTO {table} VALUES ({', '.join('?' * len(row))})", row
                    )
    return count, every


def _check_row(row: Row, check: Callable[[Row], bool]) -> bool:
    try:
        return check(row)
    except Exception:  # a damaged row fails in any layer of whatever reads it
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
    """Every row that can be read; None for each number of a row that cannot."""
    there = {"*", *(row[1] for row in damaged.execute(f"PRAGMA table_info({table})"))}
    asked = ", ".join(name if name in there else "NULL" for name in columns.split(", "))
    told, place, read, highest = (
        f"SELECT rowid, {asked} FROM {table} NOT INDEXED WHERE rowid",
        0,
        0,
        _highest(damaged, table),
    )
    while place <= (max(FAR, 4 * read) if highest is None else highest):
        try:
            rows = damaged.execute(f"{told} >= ? ORDER BY rowid LIMIT {RANGE}", (place,)).fetchall()
        except UNREADABLE:
            for row in _between(damaged, f"{told} BETWEEN ? AND ?", place, place + RANGE - 1):
                read = read if row is None else row[0]
                yield None if row is None else row[1:]
            place += RANGE
            continue
        if not rows:
            return
        yield from (row[1:] for row in rows)
        read, place = rows[-1][0], rows[-1][0] + 1


def _between(damaged: sqlite3.Connection, asked: str, first: int, last: int) -> Iterator[Row | None]:
    try:
        yield from damaged.execute(asked, (first, last)).fetchall()
    except UNREADABLE:
        if first == last:
            yield None
            return
        middle = (first + last) // 2
        yield from _between(damaged, asked, first, middle)
        yield from _between(damaged, asked, middle + 1, last)


def _highest(damaged: sqlite3.Connection, table: str) -> int | None:
    """The largest number of a row, by the table or by its index; None where neither says one that the file has room for."""
    (pages,) = damaged.execute("PRAGMA page_count").fetchone()
    for asked in (
        f"SELECT max(rowid) FROM {table} NOT INDEXED",
        f"SELECT max(rowid) FROM {table} INDEXED BY sqlite_autoindex_{table}_1",
    ):
        with contextlib.suppress(*UNREADABLE):
            found = int(damaged.execute(asked).fetchone()[0] or 0)
            if found <= pages * PAGE // SMALLEST:
                return found
    return None
