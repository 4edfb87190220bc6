"""Memory-efficient rows: numbers in arrays, shared values stored once, and each row built on access."""

from array import array
from collections.abc import Hashable, Sequence
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from holdfast.report.summary import InputRow
from holdfast.result import Bound, Bracket, Evidence, Record
from holdfast.store import StoredInput
from holdfast.store.rows import NO_NUMBERS

Values = NDArray[np.float64]
REALS, INTEGERS = 5, 8  # Numbers of a row: bounds, slacks and seconds; index, queries, labels and references.
NOTHING = -(2**62)  # Marks a missing integer; no index, label or output is that small.


class PackedRows(Sequence[InputRow]):
    """Rows without counterexamples, frames and input values, at about a hundred bytes each, and complete
    rows on request.
    """

    def __init__(self) -> None:
        self._reals, self._integers = array("d"), array("q")
        self._places: dict[Hashable, int] = {}
        self._shared: list[Any] = []
        self._estimates: dict[int, tuple[Bound, ...]] = {}
        self._names: dict[int, str] = {}
        self._frames: dict[int, tuple[Record, ...]] = {}
        self._whole: dict[int, InputRow] = {}

    def append(self, row: InputRow, *, whole: bool = False, frames: bool = False) -> None:
        """Append a row. whole: keep it completely. frames: keep the records of its frames."""
        place, lower, upper, source = len(self), row.bracket.lower, row.bracket.upper, row.source
        if whole:
            self._whole[place] = row
        if row.bracket.estimates:
            self._estimates[place] = row.bracket.estimates
        if source is not None and source.name not in ("", str(row.index)):
            self._names[place] = source.name
        if frames and row.frames:
            self._frames[place] = row.frames
        self._reals.extend((lower.value, upper.value, lower.slack, upper.slack, row.seconds))
        kept = (None, None) if source is None else (source.label, source.prediction)
        several = (
            kept if any(isinstance(value, tuple) for value in kept) else None
        )  # Several classes of one input.
        rest = (row.bracket.note, row.status, row.goal, row.part, source is not None, several)
        ends = (self._share(id(end.evidence), end.evidence) for end in (lower, upper))
        numbers = (value if isinstance(value, int) else NOTHING for value in (*kept, row.output))
        self._integers.extend((row.index, row.queries, *numbers, *ends, self._share(rest, rest)))

    def _share(self, key: Hashable, value: Any) -> int:
        if key not in self._places:
            self._places[key] = len(self._shared)
            self._shared.append(value)
        return self._places[key]

    def __len__(self) -> int:
        return len(self._reals) // REALS

    @overload
    def __getitem__(self, place: int) -> InputRow: ...

    @overload
    def __getitem__(self, place: slice) -> list[InputRow]: ...

    def __getitem__(self, place: int | slice) -> InputRow | list[InputRow]:
        if isinstance(place, slice):
            return [self[k] for k in range(*place.indices(len(self)))]
        if place < 0:
            place += len(self)
        if not 0 <= place < len(self):
            raise IndexError(place)
        return self._whole.get(place) or self._make_row(place)

    def _make_row(self, place: int) -> InputRow:
        lower, upper, low_slack, high_slack, seconds = self._reals[REALS * place : REALS * (place + 1)]
        index, queries, *numbers, low, high, rest = self._integers[INTEGERS * place : INTEGERS * (place + 1)]
        label, prediction, output = (None if value == NOTHING else value for value in numbers)
        note, status, goal, part, kept, several = self._shared[rest]
        label, prediction = (label, prediction) if several is None else several
        why: tuple[Evidence, Evidence] = self._shared[low], self._shared[high]
        ends = Bound(lower, why[0], low_slack), Bound(upper, why[1], high_slack)
        source = (
            StoredInput(index, NO_NUMBERS, label, prediction, self._names.get(place, str(index)), None)
            if kept
            else None
        )
        bracket = Bracket(*ends, self._estimates.get(place, ()), note)
        return InputRow(
            index,
            bracket,
            status,
            seconds,
            queries,
            self._frames.get(place, ()),
            source,
            None,
            goal,
            part,
            output,
        )

    @property
    def ends(self) -> Values:
        """(rows, 2): lower and upper bounds."""
        return np.array(self._reals, dtype=np.float64).reshape(-1, REALS)[:, :2]


class SelectedRows(Sequence[InputRow]):
    """A selection of rows in a given order."""

    def __init__(self, rows: Sequence[InputRow], places: Sequence[int]) -> None:
        self.rows, self.places = rows, places

    def __len__(self) -> int:
        return len(self.places)

    @overload
    def __getitem__(self, place: int) -> InputRow: ...

    @overload
    def __getitem__(self, place: slice) -> list[InputRow]: ...

    def __getitem__(self, place: int | slice) -> InputRow | list[InputRow]:
        return (
            [self.rows[k] for k in self.places[place]]
            if isinstance(place, slice)
            else self.rows[self.places[place]]
        )


def bounds_of(rows: Sequence[InputRow]) -> Values:
    """(rows, 2): lower and upper bounds, without building rows where they are stored in arrays."""
    if isinstance(rows, SelectedRows):
        return np.take(bounds_of(rows.rows), rows.places, axis=0)
    if isinstance(rows, PackedRows):
        return rows.ends
    return np.array([(row.bracket.lower.value, row.bracket.upper.value) for row in rows]).reshape(-1, 2)
