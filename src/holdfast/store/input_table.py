"""The inputs of a run: their numbers, labels, predictions, names and tokens."""

import json
from collections.abc import Iterator, Mapping, Sequence

from torch import Tensor

from holdfast.files import inflate
from holdfast.question import ClassLabel
from holdfast.store import database
from holdfast.store.database import FILE, KEYS, report_damage
from holdfast.store.rows import StoredInput, class_column, in_batches, input_of, make_seal, pack, unpack
from holdfast.store.tables import INPUT, INSERT_INPUT, LAST, ROWS_PER_QUERY, Tables

# Name of the saliency maps among the artefacts.
SALIENCY = "saliency"


class InputTable(Tables):
    """Reads and writes the inputs."""

    def put_inputs(
        self,
        x: Sequence[Tensor],
        labels: Sequence[ClassLabel | None],
        predictions: Sequence[ClassLabel | None],
        names: Sequence[str],
        tokens: Sequence[Sequence[int] | None],
    ) -> None:
        """Store the inputs in their order, so that reports need only the run folder."""
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
            connection.executemany(INSERT_INPUT, rows)
        with self.transaction() as connection:
            database.checkpoint(connection)

    def inputs(self) -> list[StoredInput]:
        """All inputs, in their order."""
        return list(self.stream_inputs())

    def stream_inputs(
        self, first: int = 0, last: int = LAST, *, light: bool = False
    ) -> Iterator[StoredInput]:
        """The inputs at positions `first` to `last`, in constant memory.

        light: without their numbers and saliency maps.
        """
        query = (
            f"SELECT {self.input_columns} FROM input WHERE position BETWEEN ? AND ? "
            f"ORDER BY position LIMIT {ROWS_PER_QUERY}"
        )
        maps = f"SELECT position, value FROM artefact WHERE name = '{SALIENCY}' AND position BETWEEN ? AND ?"
        while rows := self.query_rows(query, (first, last)):
            found: dict[int, bytes] = {} if light else dict(self.query_rows(maps, (rows[0][0], rows[-1][0])))
            with report_damage(self.folder / FILE):
                some = [input_of(row, _unpack_map(found.get(row[0])), light=light) for row in rows]
            yield from some
            first = rows[-1][0] + 1

    def inputs_without_prediction(self) -> set[int]:
        """Positions of the inputs without a stored prediction, except those on which the model failed."""
        failed = "SELECT position FROM record WHERE status = 'failed'"
        query = f"SELECT position FROM input WHERE prediction IS NULL AND position NOT IN ({failed})"
        return {position for (position,) in self.query_rows(query)}

    def put_predictions(self, said: Mapping[int, ClassLabel]) -> None:
        """Store predictions, by position, for those inputs that have none yet."""
        columns = INPUT.removesuffix(", seal")
        for some in in_batches(said, KEYS):
            positions = ", ".join(map(str, some))
            rows = self.query_rows(
                f"SELECT {columns} FROM input WHERE prediction IS NULL AND position IN ({positions})"
            )
            updated = [
                (position, label, class_column(said[position]), *rest) for position, label, _, *rest in rows
            ]
            with self.transaction() as connection:
                connection.executemany(INSERT_INPUT, map(make_seal, updated))

    def has_inputs(self) -> bool:
        """Whether the inputs are stored."""
        return bool(self.query_rows("SELECT 1 FROM input LIMIT 1"))


def _unpack_map(value: bytes | None) -> Tensor | None:
    return None if value is None else unpack(inflate(value))
