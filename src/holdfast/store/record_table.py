"""The records of a run, with the tensors (artefacts), class probabilities (answers) and earlier bounds
(history) that belong to them."""

import json
import sqlite3
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from holdfast.errors import HoldfastError
from holdfast.files import inflate
from holdfast.result import Answers, Bracket, Key, Record, Status
from holdfast.store.database import FILE, KEYS, VERSION, report_damage
from holdfast.store.lease import Lease
from holdfast.store.rows import (
    DamagedRow,
    Event,
    Row,
    answers_of,
    bound_columns,
    change_digest,
    columns_of,
    event_of,
    in_batches,
    key_of,
    pack,
    record_of,
    row_of,
    unpack,
)
from holdfast.store.tables import LAST, RECORD, ROWS_PER_QUERY, Tables

# The table is created when answers are first written: a run without them is complete, and older readers do
# not miss them.
ANSWER = """CREATE TABLE IF NOT EXISTS answer (
    position INTEGER NOT NULL, frame INTEGER NOT NULL, part TEXT NOT NULL, shown REAL, body TEXT NOT NULL,
    PRIMARY KEY (position, frame, part)
)"""
# The table is created when claims are first written, as that of answers.
CLAIM = """CREATE TABLE IF NOT EXISTS claim (
    position INTEGER NOT NULL, frame INTEGER NOT NULL, part TEXT NOT NULL, body TEXT NOT NULL,
    PRIMARY KEY (position, frame, part)
)"""
# The table is created when a result is first written, as that of answers.
CERTIFICATE = CLAIM.replace("claim", "certificate")
# The bound that a record's witness shows: the upper bound, or the lower bound where the largest value is the
# goal.
SHOWN = (
    "CASE json_extract(record.body, '$.goal') WHEN 'largest' THEN record.lower WHEN 'steepness' THEN "
    "record.lower ELSE record.upper END"
)
UPSERT = f"""INSERT INTO record ({RECORD}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
    ON CONFLICT (position, frame, part) DO UPDATE SET
    {", ".join(f"{name} = excluded.{name}" for name in RECORD.split(", ")[3:])}"""
# Statuses of records that a resumed run does not compute again.
COMPLETE: tuple[Status, ...] = ("closed", "finished")


class RecordTable(Tables):
    """Reads and writes the records and everything that is stored by their keys."""

    def __init__(
        self, folder: Path, connection: sqlite3.Connection, lease: Lease | None = None, version: int = VERSION
    ) -> None:
        super().__init__(folder, connection, lease, version)
        # Bracket and status of the records that were written last.
        self._written: dict[Key, tuple[Bracket, str]] = {}

    # ---- writing

    def write(self, records: Sequence[Record]) -> None:
        """Store the records that are new or better, and the bounds they replace in the history, in one
        transaction."""
        # Brackets are immutable, so a record with the same bracket object was written already.
        fresh = [r for r in records if not self._is_written(r)]
        known: dict[Key, Row] = {}
        for row in self.of_keys(
            "SELECT position, frame, part, news, lower, upper FROM record", [r.key for r in fresh]
        ):
            known[key_of(*row[:3])] = row[3:]
        digests = {r.key: change_digest(r) for r in fresh}
        changed = [r for r in fresh if r.key not in known or known[r.key][0] != digests[r.key]]
        moved = [r for r in changed if r.key not in known or known[r.key][1:] != bound_columns(r)]
        if changed:
            with self.transaction() as connection:
                self._put(connection, changed, digests)
                events = [(*columns_of(r.key), r.seconds, r.queries, *bound_columns(r)) for r in moved]
                connection.executemany("INSERT INTO history VALUES (?, ?, ?, ?, ?, ?, ?)", events)
        self._written = {r.key: (r.bracket, r.status) for r in records}

    def replace(self, records: Sequence[Record]) -> None:
        """Store these records in the place of older ones, without comparison and without an entry in the
        history."""
        with self.transaction() as connection:
            self._put(connection, records, {})

    def _put(
        self, connection: sqlite3.Connection, records: Sequence[Record], digests: Mapping[Key, str]
    ) -> None:
        connection.executemany(UPSERT, (row_of(r, digests.get(r.key)) for r in records))
        self._put_tensors(
            connection, [(r.key, name, value) for r in records for name, value in r.aside.items()]
        )

    def _is_written(self, record: Record) -> bool:
        bracket, status = self._written.get(record.key, (None, ""))
        return bracket is record.bracket and status == record.status

    # ---- reading

    def records(self) -> list[Record]:
        """All records, ordered by input and frame, without artefacts."""
        return list(self.stream())

    def stream(self, first: int = 0, last: int = LAST, *, light: bool = False) -> Iterator[Record]:
        """The records of the inputs at positions `first` to `last`, ordered by input and frame, in constant
        memory.

        light: without witnesses.
        """
        query = (
            f"SELECT {self._record} FROM record WHERE (position, frame, part) > (?, ?, ?) AND position <= ? "
            f"ORDER BY position, frame, part LIMIT {ROWS_PER_QUERY}"
        )
        key: Row = (first, -LAST, "")
        while rows := self.query_rows(query, (*key, last)):
            with report_damage(self.folder / FILE):
                some = [record_of(row, light=light) for row in rows]
            yield from some
            key = rows[-1][:3]

    def rows_in_order(self) -> Iterator[Row]:
        """The rows of all records ordered by key, without their seals."""
        key: Row = (-LAST, -LAST, "")
        query = (
            f"SELECT {self._record.rpartition(', ')[0]} FROM record WHERE (position, frame, part) > (?, ?, "
            f"?) ORDER BY position, frame, part LIMIT {ROWS_PER_QUERY}"
        )
        while rows := self.query_rows(query, key):
            yield from rows
            key = rows[-1][:3]

    def iterate_readable(self) -> Iterator[Record | HoldfastError]:
        """Every record without its witnesses, or the reason why it is damaged."""
        for row in self.rows_of("record", self._record):
            try:
                record = record_of(row, light=True)
                if row[3:6] != (*bound_columns(record), record.status):
                    raise DamagedRow("its columns and its body disagree about the bounds or the status")
                yield record
            except Exception as error:  # damage can surface as any exception in any layer
                kind = type(error) if isinstance(error, HoldfastError) else DamagedRow
                yield kind(f"input {'/'.join(map(str, row[:3]))}: {error}")

    def load_known(self, keys: Sequence[Key]) -> dict[Key, Record]:
        """The stored records of these keys, with artefacts."""
        with report_damage(self.folder / FILE):
            found = [record_of(row) for row in self.of_keys(f"SELECT {self._record} FROM record", keys)]
        return {record.key: record for record in self.attach_artefacts(found)}

    def records_with_artefacts(self) -> list[Record]:
        """All records, with artefacts."""
        return list(self.stream_with_artefacts())

    def stream_with_artefacts(self) -> Iterator[Record]:
        """All records, with artefacts, in constant memory."""
        return (record for some in in_batches(self.stream(), KEYS) for record in self.attach_artefacts(some))

    def finished_records(self) -> dict[Key, Record]:
        """The records that a resumed run does not compute again, with artefacts."""
        return {r.key: r for r in self.records_with_artefacts() if r.status in COMPLETE}

    def unfinished_records(self) -> dict[Key, Record]:
        """The records that a resumed run continues: all others."""
        return {r.key: r for r in self.records_with_artefacts() if r.status not in COMPLETE}

    def counts(self) -> dict[Status, int]:
        """The number of records of each status."""
        return dict(self.query_rows("SELECT status, count(*) FROM record GROUP BY status"))

    def answered_inputs(self) -> list[int]:
        """Positions of the inputs that have a record."""
        query = "SELECT DISTINCT position FROM record ORDER BY position"
        return [position for (position,) in self.query_rows(query)]

    def queried_inputs(self) -> set[int]:
        """Positions of the inputs on which the model was evaluated without failing."""
        return {
            record.key.index
            for record in self.stream(light=True)
            if record.queries and record.status != "failed"
        }

    def parts(self) -> list[str]:
        """The parts of the question that have a record."""
        return [part for (part,) in self.query_rows("SELECT DISTINCT part FROM record ORDER BY part")]

    # ---- artefacts

    def put_artefacts(self, name: str, values: Mapping[Key, Tensor]) -> None:
        """Store tensors for keys, such as saliency maps."""
        with self.transaction() as connection:
            self._put_tensors(connection, [(key, name, value) for key, value in values.items()])

    def artefacts(self, name: str) -> dict[Key, Tensor]:
        """The stored tensors of this name."""
        rows = self.query_rows("SELECT position, frame, part, value FROM artefact WHERE name = ?", (name,))
        with report_damage(self.folder / FILE):
            return {key_of(*row[:3]): unpack(inflate(row[3])) for row in rows}

    def attach_artefacts(self, records: Sequence[Record]) -> Iterator[Record]:
        """The records with their artefacts in `aside`."""
        artefacts: dict[Key, dict[str, Tensor]] = {}
        rows = self.of_keys(
            "SELECT position, frame, part, name, value FROM artefact", [r.key for r in records]
        )
        with report_damage(self.folder / FILE):
            for *columns, name, value in rows:
                artefacts.setdefault(key_of(*columns), {})[name] = unpack(inflate(value))
        for record in records:
            yield replace(record, aside=artefacts.get(record.key, {}))

    def _put_tensors(self, connection: sqlite3.Connection, values: Sequence[tuple[Key, str, Tensor]]) -> None:
        rows = [(*columns_of(key), name, zlib.compress(pack(value))) for key, name, value in values]
        connection.executemany("INSERT OR REPLACE INTO artefact VALUES (?, ?, ?, ?, ?)", rows)

    # ---- answers

    def put_answers(self, answers: Mapping[Key, Answers]) -> None:
        """Store the network's answers at the input of each record and at the record's present witness."""
        rows = [
            (*columns_of(key), json.dumps(asdict(answer)), *columns_of(key))
            for key, answer in answers.items()
        ]
        query = (
            f"INSERT OR REPLACE INTO answer SELECT ?, ?, ?, {SHOWN}, ? FROM record "
            f"WHERE position = ? AND frame = ? AND part = ?"
        )
        with self.transaction() as connection:
            connection.execute(ANSWER)
            connection.executemany(query, rows)

    def put_claims(self, claims: Mapping[Key, Mapping[str, Any]]) -> None:
        """Store what records are about, in the format of a certificate, as JSON."""
        rows = [(*columns_of(key), json.dumps(claim)) for key, claim in claims.items()]
        with self.transaction() as connection:
            connection.execute(CLAIM)
            connection.executemany("INSERT OR REPLACE INTO claim VALUES (?, ?, ?, ?)", rows)

    def claims(self, keys: Iterable[Key] | None = None) -> dict[Key, dict[str, Any]]:
        """What records are about, of all records or of these keys; runs of earlier versions store nothing."""
        if not self.has("claim"):
            return {}
        query = "SELECT position, frame, part, body FROM claim"
        rows = self.query_rows(query) if keys is None else self.of_keys(query, keys)
        with report_damage(self.folder / FILE):
            return {key_of(*row[:3]): dict(json.loads(row[3])) for row in rows}

    def put_certificate(self, key: Key, claimed: float | None, reason: str) -> None:
        """Store the result of writing a proof: the score that the accepted certificate proves to be exceeded,
        or None and the reason why there is no certificate.
        """
        body = json.dumps({"claimed": claimed, "reason": reason})
        with self.transaction() as connection:
            connection.execute(CERTIFICATE)
            connection.execute(
                "INSERT OR REPLACE INTO certificate VALUES (?, ?, ?, ?)", (*columns_of(key), body)
            )

    def certificates(self) -> dict[Key, tuple[float | None, str]]:
        """The results of `put_certificate`; empty if the run was not asked to write certificates."""
        if not self.has("certificate"):
            return {}
        rows = self.query_rows("SELECT position, frame, part, body FROM certificate")
        with report_damage(self.folder / FILE):
            bodies = {key_of(*row[:3]): json.loads(row[3]) for row in rows}
            return {key: (body["claimed"], str(body["reason"])) for key, body in bodies.items()}

    def answers(self, keys: Iterable[Key] | None = None) -> dict[Key, Answers]:
        """The stored answers that belong to the present witnesses, of all records or of these keys.

        A record that improves after its answers were stored makes them stale; stale answers are left out.
        """
        if not self.has("answer"):
            return {}
        query = f"""SELECT position, frame, part, answer.body
            FROM answer CROSS JOIN record USING (position, frame, part) WHERE answer.shown IS {SHOWN}"""
        rows = self.query_rows(query) if keys is None else self.of_keys(query, keys)
        with report_damage(self.folder / FILE):
            return {key_of(*row[:3]): answers_of(json.loads(row[3])) for row in rows}

    # ---- history

    def history(self, every: int = 1) -> list[Event]:
        """How the bounds improved, for about one of `every` inputs, chosen by a hash of their positions."""
        query = """SELECT position, frame, part, seconds, queries, lower, upper FROM history
            WHERE ((position * 2654435761) >> 16) % ? = 0 ORDER BY rowid"""
        rows = self.query_rows(query, (every,))
        with report_damage(self.folder / FILE):
            return [event_of(*row) for row in rows]

    def count_events(self) -> int:
        """The number of events in the history."""
        return int(self.query_rows("SELECT count(*) FROM history")[0][0])
