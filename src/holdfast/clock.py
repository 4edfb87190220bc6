"""Until when a step may go on. `solve` sets the deadline, and steps that take long look at it and end early with what they have."""

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import Tensor

SOON = 8  # rows after which a long step looks at the clock

_deadline: ContextVar[float] = ContextVar("deadline", default=math.inf)


def deadline() -> float:
    """Of the monotonic clock; infinite where there is none."""
    return _deadline.get()


def passed() -> bool:
    return time.monotonic() >= deadline()


def portions(x: Tensor) -> Iterator[Tensor]:
    """The rows of x, all at once where nobody waits; else a few at a time, the first always and the others until the time is up."""
    for place, rows in enumerate(torch.arange(len(x), device=x.device).split(len(x) if math.isinf(deadline()) else SOON)):
        if place and passed():
            return
        yield rows


@contextmanager
def within(until: float) -> Iterator[None]:
    """Whatever runs inside should end by then; an earlier deadline around it stays in force."""
    before = _deadline.set(min(until, deadline()))
    try:
        yield
    finally:
        _deadline.reset(before)
