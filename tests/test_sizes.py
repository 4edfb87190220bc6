"""`make test` runs a part of each product of cases, `make test-full` all of it."""

import itertools

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
