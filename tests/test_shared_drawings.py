"""Charts that tests share are those that would be drawn."""

import itertools

import pytest

from shared_drawings import draw_once


def test_equal_numbers_are_drawn_twice_and_then_remembered() -> None:
    drawn = list[tuple[int, bool]]()

    def draw(number: int, *, narrow: bool = False) -> str:
        drawn.append((number, narrow))
        return f"{number} {narrow}"

    remembered = draw_once(draw)
    assert [remembered(1), remembered(1), remembered(1), remembered(1, narrow=True)] == ["1 False"] * 3 + [
        "1 True"
    ]
    assert drawn == [(1, False), (1, False), (1, True)]


def test_a_chart_that_changes_is_seen() -> None:
    numbers = itertools.count()
    remembered = draw_once(lambda _: str(next(numbers)))
    remembered("a")
    with pytest.raises(AssertionError, match="two charts"):
        remembered("a")
