"""Rows in little memory say what whole rows say, and a run is walked input by input without missing one."""

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from report_runs import estimate, proof, witness

import holdfast as hf
from holdfast.report.packed_rows import PackedRows, SelectedRows, bounds_of
from holdfast.report.streaming import by_input, summary_parts
from holdfast.report.summary import parts_of, rows_of, totals_of
from holdfast.report.verdict import is_correct, tally
from holdfast.result import Bracket, Key, Record, trivial_bound

NewStore = Callable[..., hf.Store]


def records() -> list[Record]:
    """Inputs 0 to 6: open, closed, wrong, estimated, unbreakable, by frames, and in two parts."""
    note = "the property fails at the input itself"
    brackets = [
        Bracket(proof(0.1), trivial_bound(math.inf)),
        Bracket(proof(0.25), witness(0.25, torch.ones(3))),
        Bracket(trivial_bound(0.0), witness(0.0, torch.ones(3)), note=note),
        Bracket(proof(0.2), witness(0.5, torch.ones(3)), (estimate(0.3), estimate(math.inf))),
        Bracket(proof(math.inf), trivial_bound(math.inf)),
    ]
    found = [Record(Key(k), bracket, "finished", 0.5 + k, 10 * k) for k, bracket in enumerate(brackets)]
    found += [
        Record(Key(5, frame), Bracket(proof(0.1 * frame), witness(1.0)), "stopped", 1.0, 1)
        for frame in range(3)
    ]
    found += [
        Record(Key(6, None, part), Bracket(proof(0.3), witness(0.4)), "interrupted", 1.0, 1, goal="worst")
        for part in ("", "worst")
    ]
    return found


def filled(store: hf.Store) -> hf.Store:
    """Inputs 2 to 8 were kept; of 7 and 8 nothing is known."""
    store.put_inputs(
        [torch.full((3,), float(k)) for k in range(9)],
        list(range(9)),
        [0] * 9,
        ["", "1", *"cdefghi"],
        [None] * 9,
    )
    with store.transaction() as connection:
        connection.execute("DELETE FROM input WHERE position < 2")
    store.write(records())
    return store


def test_every_input_comes_once_with_all_its_rows(new_store: NewStore) -> None:
    store = filled(new_store())
    found = [
        (None if stored is None else stored.index, [row.index for row in rows])
        for stored, rows in by_input(store)
    ]
    assert found == [
        (None, [0]),
        (None, [1]),
        *((k, [k]) for k in range(2, 6)),
        (6, [6, 6]),
        (7, []),
        (8, []),
    ]
    some = list(by_input(store, 2, 3))
    assert [stored.x.tolist() for stored, _ in some if stored is not None] == [[2.0] * 3, [3.0] * 3]
    assert [(row.index, row.witness is not None) for _, rows in some for row in rows] == [
        (2, True),
        (3, True),
    ]
    assert [row.witness for _, rows in by_input(store, 2, 3, light=True) for row in rows] == [None, None]


def test_packed_rows_say_what_whole_rows_say(new_store: NewStore) -> None:
    store = filled(new_store())
    whole = parts_of(rows_of(store.records(), store.inputs()))
    parts, asked = summary_parts(store, whole=2)
    assert asked == set(range(9))
    assert [(part.name, part.sense, part.heading) for part in parts] == [
        (part.name, part.sense, part.heading) for part in whole
    ]
    for part, other in zip(parts, whole, strict=True):
        assert isinstance(part.rows, PackedRows)
        for row, same in zip(part.rows, other.rows, strict=True):
            assert replace(row, frames=(), source=None) == replace(same, frames=(), source=None)
            assert (row.display_name, is_correct(row), row.fails_at_once) == (
                same.display_name,
                is_correct(same),
                same.fails_at_once,
            )
            assert (row.witness is not None) == (same.witness is not None and row.index < 2)
        assert str(totals_of(part.rows)) == str(totals_of(other.rows))
        assert tally(part.rows, 0.2) == tally(other.rows, 0.2)
        np.testing.assert_array_equal(bounds_of(part.rows), bounds_of(list(other.rows)))
        chosen = SelectedRows(part.rows, [len(other.rows) - 1, 0])
        np.testing.assert_array_equal(bounds_of(chosen), bounds_of([other.rows[-1], other.rows[0]]))
        assert [row.index for row in chosen[:]] == [other.rows[-1].index, other.rows[0].index]


def test_rows_that_are_not_there(new_store: NewStore) -> None:
    parts, asked = summary_parts(new_store())
    assert asked == set()
    assert not parts[0].rows
    empty = PackedRows()
    assert bounds_of(empty).shape == (0, 2)
    with pytest.raises(IndexError):
        empty[0]
