"""Rows of a table: which columns a witness changes, from what to what."""

from collections.abc import Sequence

from holdfast.question import Question
from holdfast.region.columns import Columns
from holdfast.report.summary import Row, short

FEW = 6  # changed columns in one line


def columns_of(question: Question) -> Columns | None:
    """What the run says of its columns."""
    stored = question.asked.columns
    return None if stored is None else Columns.from_json(stored["each"]).ordered(stored["order"])


def changes_of(row: Row, question: Question) -> list[tuple[str, str, str]] | None:
    """(column, what it was, what it is) for each that the witness changes; None where there is no table or no witness."""
    columns, witness = columns_of(question), row.witness
    if columns is None or row.source is None or witness is None or witness.shape != row.source.x.shape:
        return None
    return columns.changes(row.source.x.tolist(), witness.tolist())


def in_a_line(changes: Sequence[tuple[str, str, str]]) -> str:
    more = f" and {len(changes) - FEW} more columns" if len(changes) > FEW else ""
    return ", ".join(f"{short(name, 30)} {short(was, 30)} → {short(now, 30)}" for name, was, now in changes[:FEW]) + more
