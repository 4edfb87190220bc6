"""The SQLite file of a run: its tables, how it is opened for writing and reading, and the errors when it
cannot be."""

import contextlib
import json
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path

from holdfast.errors import StoreError
from holdfast.store.rows import DamagedRow

# Format of the file that this version of holdfast writes. Formats that it reads; 2 has no seals.
VERSION = 3
READABLE = (2, 3)
FILE = "run.sqlite"
LOG = f"{FILE}-wal"
# Largest number of keys in one query. A key has three parameters, and older versions of SQLite accept at most
# 999 parameters.
KEYS = 300
# Length of the write-ahead log, in pages of 4 KiB (64 MB in all), at which SQLite moves it into the database.
# A plain file copy that is taken during the move may be inconsistent, so the move should be rare (chosen by
# hand).
LOG_PAGES = 16_000
# Seconds that a statement waits for a lock of another process before it fails (chosen by hand).
LOCK_TIMEOUT = 10
# The low byte of an extended SQLite error code is the primary code.
PRIMARY_CODE = 0xFF
SCHEMA = """
CREATE TABLE meta (name TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE input (
    position INTEGER PRIMARY KEY, label INTEGER, prediction INTEGER, name TEXT, tokens TEXT, x BLOB NOT NULL,
    seal TEXT
);
CREATE TABLE record (
    position INTEGER NOT NULL, frame INTEGER NOT NULL, part TEXT NOT NULL,
    lower REAL, upper REAL, status TEXT NOT NULL, body TEXT NOT NULL,
    lower_witness BLOB, upper_witness BLOB, news TEXT, seal TEXT, PRIMARY KEY (position, frame, part)
);
CREATE TABLE history (
    position INTEGER, frame INTEGER, part TEXT, seconds REAL, queries INTEGER, lower REAL, upper REAL
);
CREATE TABLE artefact (
    position INTEGER NOT NULL, frame INTEGER NOT NULL, part TEXT NOT NULL, name TEXT NOT NULL,
    value BLOB NOT NULL, PRIMARY KEY (position, frame, part, name)
);
"""
# Statements that turn format 2 into format 3.
UPGRADE = (
    "ALTER TABLE input ADD COLUMN seal TEXT",
    "ALTER TABLE record ADD COLUMN news TEXT",
    "ALTER TABLE record ADD COLUMN seal TEXT",
)


def connect_writer(file: Path) -> sqlite3.Connection:
    """A connection for the process that writes the run."""
    connection = sqlite3.connect(file, timeout=LOCK_TIMEOUT)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=NORMAL")
    connection.execute(f"PRAGMA wal_autocheckpoint={LOG_PAGES}")
    return connection


def create_database(file: Path, meta: Sequence[tuple[str, str]]) -> sqlite3.Connection:
    """A new database with its tables and its meta rows, written in one transaction: no run exists without its
    question."""
    connection = connect_writer(file)
    connection.executescript("BEGIN;" + SCHEMA)
    with connection:
        connection.executemany("INSERT INTO meta VALUES (?, ?)", meta)
    checkpoint(connection)
    return connection


def checkpoint(connection: sqlite3.Connection) -> None:
    """Move the write-ahead log into the database file."""
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()


def connect_reader(file: Path) -> sqlite3.Connection:
    """A read-only connection that sees the present state of the run, also while another process writes it.

    It also works in a folder that cannot be written, except if the newest records are still in the
    write-ahead log there.
    """
    try:
        connection = sqlite3.connect(f"{file.resolve().as_uri()}?mode=ro", uri=True, timeout=LOCK_TIMEOUT)
        connection.execute("BEGIN")
        connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
        return connection
    except sqlite3.OperationalError as error:
        log = file.with_name(LOG)
        if error.sqlite_errorcode & PRIMARY_CODE not in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY):
            raise
        if log.exists() and log.stat().st_size:
            raise StoreError(
                f"{file.parent}: its newest records are in {LOG}, which cannot be read in a folder without "
                f"write access ({error}). Copy the folder to a place where you may write, and read it there."
            ) from error
    # There is no log and none can be created, so no other process can be writing: the file may be opened as
    # immutable.
    connection = sqlite3.connect(f"{file.resolve().as_uri()}?mode=ro&immutable=1", uri=True)
    connection.execute("BEGIN")
    return connection


def version_of(connection: sqlite3.Connection, folder: Path) -> int:
    """The format of the file; StoreError if this version of holdfast does not read it."""
    (stored,) = connection.execute("SELECT value FROM meta WHERE name = 'version'").fetchone()
    version = json.loads(stored)
    if version not in READABLE:
        readable = " and ".join(map(str, READABLE))
        raise StoreError(
            f"{folder}: written by another version of holdfast (format {stored}, this one reads {readable})."
        )
    return int(version)


def upgrade_format(connection: sqlite3.Connection) -> None:
    """Add the columns of format 3 to a run of format 2. Rows that were written before stay without a seal."""
    with connection:
        for line in UPGRADE:
            connection.execute(line)
        connection.execute("UPDATE meta SET value = ? WHERE name = 'version'", (json.dumps(VERSION),))


def check_pages(connection: sqlite3.Connection, file: Path) -> None:
    """Raise StoreError if pages of the file are damaged."""
    found = [str(line) for (line,) in connection.execute("PRAGMA quick_check(3)")]
    if found != ["ok"]:
        raise damaged_error(file, "; ".join(" ".join(line.split()) for line in found))


def damaged_error(file: Path, why: object) -> StoreError:
    """The error for a file that is no run or is damaged."""
    return StoreError(
        f"{file}: not a run of holdfast, or damaged ({why}). 'holdfast salvage {file.parent} --out NEW' "
        f"makes a run of its readable part."
    )


@contextlib.contextmanager
def report_damage(file: Path) -> Iterator[None]:
    """Turn every exception inside into a StoreError that names the file as damaged."""
    try:
        yield
    except DamagedRow as error:
        raise damaged_error(file, error) from error
    except StoreError:  # names the run already
        raise
    except Exception as error:  # damage can surface as any exception in any layer
        raise damaged_error(file, error) from error


def is_unborn(file: Path) -> bool:
    """Whether the file has no table: a run was killed before its first transaction, so nothing is lost by
    replacing it."""
    with contextlib.suppress(sqlite3.Error), contextlib.closing(sqlite3.connect(file)) as connection:
        return bool(connection.execute("SELECT count(*) FROM sqlite_master").fetchone() == (0,))
    return False
