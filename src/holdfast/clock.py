"""Until when a step may take: whoever steps a search says it, and what takes long looks at it and ends early with what it has."""

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_deadline: ContextVar[float] = ContextVar("deadline", default=math.inf)


def deadline() -> float:
    """On the monotonic clock; infinite where there is none."""
    return _deadline.get()


def passed() -> bool:
    return time.monotonic() >= _deadline.get()


@contextmanager
def within(seconds_at: float) -> Iterator[None]:
    """Until this time of the monotonic clock, or an earlier one that holds already."""
    token = _deadline.set(min(seconds_at, _deadline.get()))
    try:
        yield
    finally:
        _deadline.reset(token)
