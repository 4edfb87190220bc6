"""SQL access to the tables of a run: queries, queries by key, transactions, and iteration over a whole table
in constant memory."""

import contextlib
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from holdfast.errors import StoreError
from holdfast.result import Key
from holdfast.store.database import FILE, KEYS, VERSION, report_damage
from holdfast.store.lease import Lease
from holdfast.store.rows import Row, columns_of, in_batches

# Column names of the tables `input` and `record`, in the order of `rows.input_of` and `rows.record_of`.
INPUT = "position, label, prediction, name, tokens, x, seal"
RECORD = "position, frame, part, lower, upper, status, body, lower_witness, upper_witness, news, seal"
INSERT_INPUT = "INSERT OR REPLACE INTO input VALUES (?, ?, ?, ?, ?, ?, ?)"
# Largest number of rows that one query returns, so that memory does not grow with the run (chosen by hand).
ROWS_PER_QUERY = 200
# Larger than every position of an input: the default end of a range.
LAST = 2**62


class Tables:
    """An open database of a run, and the lease of the process that writes it."""

    def __init__(
        self, folder: Path, connection: sqlite3.Connection, lease: Lease | None = None, version: int = VERSION
    ) -> None:
        self.folder = folder
        self._connection = connection
        self._lease = lease
        self._record, self.input_columns = RECORD, INPUT
        if version < VERSION:  # format 2 has no seals
            self._record = RECORD.replace("news, seal", "NULL, NULL")
            self.input_columns = INPUT.replace("seal", "NULL")

    def close(self) -> None:
        self._connection.close()
        if self._lease is not None:
            self._lease.release()

    @contextlib.contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Either everything inside is written, or nothing."""
        try:
            with self._connection:
                yield self._connection
        except (sqlite3.Error, OSError) as error:
            raise StoreError(
                f"{self.folder}: cannot write the run ({error}). Is the disk full? What was written before "
                f"is safe; free some space and continue with 'holdfast resume {self.folder}'."
            ) from error

    def query_rows(self, query: str, values: Sequence[Any] = ()) -> list[Row]:
        """The rows that a query returns; StoreError if the file is damaged there."""
        with report_damage(self.folder / FILE):
            return self._connection.execute(query, values).fetchall()

    def of_keys(self, query: str, keys: Iterable[Key]) -> Iterator[Row]:
        """The rows of `query` ("SELECT columns FROM table ...") that belong to these keys, each found by the
        index.

        SQLite evaluates a cross join in the written order, so it looks up every key instead of scanning the
        table.
        """
        before, after = query.split(" FROM ", 1)
        for some in in_batches(keys, KEYS):
            these = f"WITH these (position, frame, part) AS (VALUES {', '.join(['(?, ?, ?)'] * len(some))})"
            table, _, rest = after.partition(" ")
            joined = f"{these} {before} FROM these CROSS JOIN {table} USING (position, frame, part) {rest}"
            yield from self.query_rows(joined, [value for key in some for value in columns_of(key)])

    def rows_of(self, table: str, columns: str = "*") -> Iterator[Row]:
        """All rows of a table in the order of their row ids."""
        row_id = -1
        query = f"SELECT rowid, {columns} FROM {table} WHERE rowid > ? ORDER BY rowid LIMIT {ROWS_PER_QUERY}"
        while rows := self.query_rows(query, (row_id,)):
            yield from (row[1:] for row in rows)
            row_id = rows[-1][0]

    def has(self, table: str) -> bool:
        """Whether the database has this table."""
        return bool(
            self.query_rows("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?", (table,))
        )
