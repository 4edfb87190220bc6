"""`make test` runs a part of each product of cases, `make test-full` all of it."""

import itertools
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import sizes
from sizes import combinations, count, every, some

AXES = (["a", "b", "c", "d"], [1, 2], [True, False, None])


@pytest.mark.parametrize("together", [1, 2])
def test_all_values_or_all_pairs_of_values_occur(monkeypatch: pytest.MonkeyPatch, together: int) -> None:
    monkeypatch.setattr(sizes, "FULL", False)
    chosen = combinations(*AXES, together=together)
    assert len(chosen) == len(set(chosen)) < 24
    for axes in itertools.combinations(range(3), together):
        seen = {tuple(case[axis] for axis in axes) for case in chosen}
        assert seen == set(itertools.product(*(AXES[axis] for axis in axes)))


def test_no_more_cases_than_the_longest_axis_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sizes, "FULL", False)
    assert len(combinations(*AXES)) == 4
    assert combinations(["only"]) == [("only",)]


def test_the_full_suite_leaves_nothing_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sizes, "FULL", True)
    assert combinations(*AXES) == list(itertools.product(*AXES))
    assert every(range(7), 3) == list(range(7))
    assert some("abc", "b") == ["a", "b", "c"]
    assert count(2, full=30) == 30


def test_a_part_keeps_its_order_and_knows_its_cases(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sizes, "FULL", False)
    assert every(range(7), 3) == [0, 3, 6]
    assert some("abc", "ca") == ["a", "c"]
    assert count(2, full=30) == 2
    with pytest.raises(AssertionError, match="no cases"):
        some("abc", "d")


def test_every_entry_of_the_table_is_a_test_with_cases() -> None:
    for name in sizes.ONE_IN:
        file, function = name.split("::")
        text = (Path(__file__).parent / file).read_text()
        assert re.search(rf"^def {function}\(", text, re.MULTILINE), f"{name} does not exist"


def test_a_part_of_the_cases_has_every_value_of_every_axis() -> None:
    cases = [
        SimpleNamespace(callspec=SimpleNamespace(indices={"letter": i, "number": k}))
        for k in range(2)
        for i in range(6)
    ]
    for step in (2, 3, 50):
        dropped: Any = sizes._cases_left_out("any", cases, step)  # type: ignore[arg-type]
        kept = [case.callspec.indices for case in cases if case not in dropped]
        assert len(kept) < len(cases)
        assert {case["letter"] for case in kept} == set(range(6))
        assert {case["number"] for case in kept} == {0, 1}


def test_cases_that_share_no_value_are_left_out_in_turn() -> None:
    cases = [SimpleNamespace(callspec=SimpleNamespace(indices={"a": i, "b": i})) for i in range(7)]
    kept = [len(cases) - len(sizes._cases_left_out(name, cases, 2)) for name in ("one", "two", "three")]  # type: ignore[arg-type]
    assert set(kept) <= {3, 4}
