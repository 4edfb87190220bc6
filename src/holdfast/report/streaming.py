"""Rows of a run, streamed input by input, so that runs of any length fit in memory."""

from collections.abc import Iterator
from itertools import chain, groupby

from holdfast.report.packed_rows import PackedRows
from holdfast.report.summary import InputRow, QuestionPart, order_parts, rows_of
from holdfast.store import Store, StoredInput
from holdfast.store.tables import LAST


def by_input(
    store: Store, first: int = 0, last: int = LAST, *, light: bool = False, whole_inputs: bool = False
) -> Iterator[tuple[StoredInput | None, list[InputRow]]]:
    """Yield each stored input from `first` to `last` with its rows.

    An input without an answer has no rows; the input is None if it was not stored.

    Args:
        light: leave out counterexamples and input values; totals, verdicts and plots do not need them.
        whole_inputs: with `light`, keep the input values.
    """
    inputs = store.stream_inputs(first, last, light=light and not whole_inputs)
    stored = next(inputs, None)
    for index, group in groupby(store.stream(first, last, light=light), key=lambda record: record.key.index):
        while stored is not None and stored.index < index:
            yield stored, []
            stored = next(inputs, None)
        found = stored if stored is not None and stored.index == index else None
        records = list(group)
        answers = {} if light else store.answers([record.key for record in records])
        yield found, rows_of(records, [] if found is None else [found], answers)
        stored = next(inputs, None) if found is not None else stored
    while stored is not None:
        yield stored, []
        stored = next(inputs, None)


def summary_parts(store: Store, whole: int = 0) -> tuple[list[QuestionPart], set[int]]:
    """Return all rows by part, and the indices of all inputs of the run.

    The first `whole` inputs have complete rows.
    """
    firsts = store.answered_inputs()[:whole]
    parts: dict[str, PackedRows] = {}
    indices: set[int] = set()
    split = firsts[-1] + 1 if firsts else 0
    for stored, rows in chain(by_input(store, 0, split - 1), by_input(store, split, light=True)):
        indices |= {stored.index} if stored is not None else set()
        for row in rows:
            indices.add(row.index)
            parts.setdefault(row.part, PackedRows()).append(row, whole=row.index < split)
    return order_parts(parts), indices
