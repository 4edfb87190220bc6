"""How many cases of a large product `make test` runs. `make test-full` sets HOLDFAST_TESTS=full and runs all of them.

A check leaves `make test` only by a function of this module, so none is lost: the full suite has every case.
"""

import itertools
import os
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

import pytest

FULL = os.environ.get("HOLDFAST_TESTS") == "full"
full_only = pytest.mark.full_only

T = TypeVar("T")


def count(few: int, full: int) -> int:
    """How many random cases to draw."""
    return full if FULL else few


def some(cases: Iterable[T], kept: Iterable[T]) -> list[T]:
    """Those cases that are also in `kept`, in their own order; at full size all of them."""
    kept = list(kept)
    cases = list(cases)
    missing = [case for case in kept if case not in cases]
    assert not missing, f"these are no cases: {missing}"
    return [case for case in cases if FULL or case in kept]


def every(cases: Iterable[T], step: int) -> list[T]:
    """Every `step`-th case, beginning with the first; at full size all of them."""
    return list(cases)[:: 1 if FULL else step]


def combinations(*axes: Sequence[Any], together: int = 1) -> list[tuple[Any, ...]]:
    """Combinations of one value of each axis; at full size all of them.

    Args:
        together: 1: every value occurs at least once. 2: every two values of two axes occur together at least once.
    """
    every_combination = list(itertools.product(*axes))
    if FULL:
        return every_combination
    places = list(itertools.product(*(range(len(axis)) for axis in axes)))
    missing = {part for place in places for part in _parts(place, together)}
    chosen, uses = set[int](), Counter[tuple[int, int]]()

    def merit(i: int) -> tuple[int, int, int]:
        """New parts first, then values that were used least, then the order: the choice is the same in every run."""
        new = len(missing & _parts(places[i], together))
        return new, -sum(uses[value] for value in enumerate(places[i])), -i

    while missing:
        best = max(range(len(places)), key=merit)
        chosen.add(best)
        uses.update(enumerate(places[best]))
        missing -= _parts(places[best], together)
    return [every_combination[i] for i in sorted(chosen)]


def _parts(place: tuple[int, ...], together: int) -> set[tuple[tuple[int, int], ...]]:
    return set(itertools.combinations(enumerate(place), together))
