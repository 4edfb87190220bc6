"""Until when a step may go on. `solve` sets the deadline, and steps that take long look at it and end early with what they have."""

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_deadline: ContextVar[float] = ContextVar("deadline", default=math.inf)


def deadline() -> float:
    """Of the monotonic clock; infinite where there is none."""
    return _deadline.get()


def passed() -> bool:
    return time.monotonic() >= deadline()


@contextmanager
def within(until: float) -> Iterator[None]:
    """Whatever runs inside should end by then; an earlier deadline around it stays in force."""
    before = _deadline.set(min(until, deadline()))
    try:
        yield
    finally:
        _deadline.reset(before)
