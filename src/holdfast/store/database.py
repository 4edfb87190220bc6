"""The file of a run: its tables, how it is opened for writing and for reading, and what is said where it cannot be."""

import contextlib
import json
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path

from holdfast.errors import StoreError

VERSION = 3
READABLE = (2, 3)  # 2: without seals
FILE = "run.sqlite"
LOG = f"{FILE}-wal"
KEYS = 300  # of one query: three numbers each, and older SQLites take no more than 999
# Pages of the log, 64 MB, that are then brought into the database: a plain copy taken at that very moment may be torn, so it is rare.
LOG_PAGES = 16_000
SCHEMA = """
CREATE TABLE meta (name TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE input (
    position INTEGER PRIMARY KEY, label INTEGER, prediction INTEGER, name TEXT, tokens TEXT, x BLOB NOT NULL, seal TEXT
);
CREATE TABLE record (
    position INTEGER NOT NULL, frame INTEGER NOT NULL, part TEXT NOT NULL, lower REAL, upper REAL, status TEXT NOT NULL, body TEXT NOT NULL,
    lower_witness BLOB, upper_witness BLOB, news TEXT, seal TEXT, PRIMARY KEY (position, frame, part)
);
CREATE TABLE history (position INTEGER, frame INTEGER, part TEXT, seconds REAL, queries INTEGER, lower REAL, upper REAL);
CREATE TABLE artefact (
    position INTEGER NOT NULL, frame INTEGER NOT NULL, part TEXT NOT NULL, name TEXT NOT NULL, value BLOB NOT NULL,
    PRIMARY KEY (position, frame, part, name)
);
"""
NEWER = (
    "ALTER TABLE input ADD COLUMN seal TEXT",
    "ALTER TABLE record ADD COLUMN news TEXT",
    "ALTER TABLE record ADD COLUMN seal TEXT",
)


def connect_writer(file: Path) -> sqlite3.Connection:
    """For the one who writes."""
    connection = sqlite3.connect(file, timeout=10)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=NORMAL")
    connection.execute(f"PRAGMA wal_autocheckpoint={LOG_PAGES}")
    return connection


def begun(file: Path, meta: Sequence[tuple[str, str]]) -> sqlite3.Connection:
    """A new database with its tables and what it is about, in one transaction: a run is there with its question or not at all."""
    connection = connect_writer(file)
    connection.executescript("BEGIN;" + SCHEMA)
    with connection:
        connection.executemany("INSERT INTO meta VALUES (?, ?)", meta)
    checkpoint(connection)
    return connection


def checkpoint(connection: sqlite3.Connection) -> None:
    """All that was written lies in the database itself, and none of it in the log alone."""
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()


def looked_at(file: Path) -> sqlite3.Connection:
    """For those who read, also while another process writes, and where nothing can be written. They see the run as it is now."""
    try:
        connection = sqlite3.connect(f"{file.resolve().as_uri()}?mode=ro", uri=True, timeout=10)
        connection.execute("BEGIN")
        connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
        return connection
    except sqlite3.OperationalError as error:
        log = file.with_name(LOG)
        if "unable to open" not in str(error) and "readonly" not in str(error):
            raise
        if log.exists() and log.stat().st_size:
            raise StoreError(
                f"{file.parent}: its newest records lie in {LOG}, which cannot be read where nothing can be written ({error}). Copy the "
                f"folder to where you may write, and read it there."
            ) from error
    # Without a log and without a place for one, nobody can be writing here.
    connection = sqlite3.connect(f"{file.resolve().as_uri()}?mode=ro&immutable=1", uri=True)
    connection.execute("BEGIN")
    return connection


def version_of(connection: sqlite3.Connection, folder: Path) -> int:
    """StoreError where this version of holdfast does not read it."""
    (told,) = connection.execute("SELECT value FROM meta WHERE name = 'version'").fetchone()
    version = json.loads(told)
    if version not in READABLE:
        raise StoreError(
            f"{folder}: written by another version of holdfast (format {told}, this one reads {' and '.join(map(str, READABLE))})."
        )
    return int(version)


def upgrade_format(connection: sqlite3.Connection) -> None:
    """A run of format 2 gets the columns of 3; what was written before stays without a seal."""
    with connection:
        for line in NEWER:
            connection.execute(line)
        connection.execute("UPDATE meta SET value = ? WHERE name = 'version'", (json.dumps(VERSION),))


def check_pages(connection: sqlite3.Connection, file: Path) -> None:
    """StoreError where pages of the file are damaged."""
    found = [str(line) for (line,) in connection.execute("PRAGMA quick_check(3)")]
    if found != ["ok"]:
        raise damaged_error(file, "; ".join(" ".join(line.split()) for line in found))


def damaged_error(file: Path, why: object) -> StoreError:
    return StoreError(
        f"{file}: not a run of holdfast, or damaged ({why}). 'holdfast salvage {file.parent} --out NEW' makes a run of what is readable."
    )


@contextlib.contextmanager
def reading(file: Path) -> Iterator[None]:
    """What cannot be read is said to be damaged, where it is."""
    try:
        yield
    except Exception as error:  # a damaged row fails in any layer of whatever reads it
        raise (
            error
            if isinstance(error, StoreError) and str(error).startswith(str(file.parent))
            else damaged_error(file, error)
        ) from error


def unborn(file: Path) -> bool:
    """Was a run killed here before its first transaction? Then there is nothing to lose."""
    with contextlib.suppress(sqlite3.Error), contextlib.closing(sqlite3.connect(file)) as connection:
        return bool(connection.execute("SELECT count(*) FROM sqlite_master").fetchone() == (0,))
    return False
