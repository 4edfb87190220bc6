"""The exception by which a check ends with rejection, and a zip that refuses lists of different lengths."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


class Rejected(Exception):
    """A step of a proof that does not hold, or that this checker does not support. Nothing is accepted after
    it.
    """


class NoBounds(Rejected):
    """The bounds of a step are infinite or exclude each other, so the proof needs other slopes or subproblems."""


def require(holds: object, what: str) -> None:
    """Raise `Rejected` unless the condition holds. Unlike assert, it cannot be disabled by an option of
    Python.
    """
    if not holds:
        raise Rejected(what)


def zip_equal(*lists: Iterable[Any]) -> list[tuple[Any, ...]]:
    """The tuples of elements at equal places; ValueError if the lists have different lengths.

    `zip(..., strict=True)` needs Python 3.10, and this checker also runs with 3.9.
    """
    columns = [list(one) for one in lists]
    if len({len(column) for column in columns}) > 1:
        raise ValueError(f"lists of {', '.join(str(len(column)) for column in columns)} elements")
    return list(zip(*columns))
