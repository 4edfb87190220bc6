"""The rows of a run input by input, so that a run of any length can be looked at."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import groupby

from holdfast.report.summary import Row, rows_of
from holdfast.store import Store, StoredInput
from holdfast.store.rows import NO_NUMBERS
from holdfast.store.run import LAST


def by_input(
    store: Store, first: int = 0, last: int = LAST, *, light: bool = False, whole_inputs: bool = False
) -> Iterator[tuple[StoredInput | None, list[Row]]]:
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


def without_numbers(stored: StoredInput) -> StoredInput:
    return replace(stored, x=NO_NUMBERS, tokens=None, saliency=None)


def summary_rows(store: Store, whole: int = 0) -> tuple[list[Row], set[int]]:
    """All rows, and the inputs that were asked about. The first `whole` inputs come with everything, the others without frames, witnesses
    and numbers: a few hundred bytes each."""
    firsts = store.answered()[:whole]
    rows: list[Row] = []
    asked: set[int] = set()
    for stored, found in by_input(store, 0, firsts[-1]) if firsts else ():
        asked |= {stored.index} if stored is not None else set()
        rows += found
    for stored, found in by_input(store, firsts[-1] + 1 if firsts else 0, light=True):
        asked |= {stored.index} if stored is not None else set()
        rows += (replace(row, frames=()) for row in found)
    return rows, asked | {row.index for row in rows}
