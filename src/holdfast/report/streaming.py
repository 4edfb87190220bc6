"""The rows of a run input by input, so that a run of any length can be looked at."""

from collections.abc import Iterator
from itertools import chain, groupby

from holdfast.report.packed_rows import Packed
from holdfast.report.summary import InputRow, QuestionPart, in_order, rows_of
from holdfast.store import Store, StoredInput
from holdfast.store.tables import LAST


def by_input(
    store: Store, first: int = 0, last: int = LAST, *, light: bool = False, whole_inputs: bool = False
) -> Iterator[tuple[StoredInput | None, list[InputRow]]]:
    """What was kept of each input from `first` to `last`, and its rows; no rows where it has no answer, None where it was not kept.

    light         without witnesses and numbers: what totals, verdicts and plots are made of.
    whole_inputs  with the numbers of the inputs all the same.
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
    """All rows part by part, and the inputs that were asked about. The rows of the first `whole` inputs come with everything."""
    firsts = store.answered_inputs()[:whole]
    parts: dict[str, Packed] = {}
    asked: set[int] = set()
    split = firsts[-1] + 1 if firsts else 0
    for stored, rows in chain(by_input(store, 0, split - 1), by_input(store, split, light=True)):
        asked |= {stored.index} if stored is not None else set()
        for row in rows:
            asked.add(row.index)
            parts.setdefault(row.part, Packed()).append(row, whole=row.index < split)
    return in_order(parts), asked
