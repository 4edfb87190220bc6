"""Until when a step may go on. `solve` sets the deadline, and steps that take long look at it and end early with what they have.

What they do not look after is cut off: deep inside long work stands `check`, which raises `Expired` a moment after the deadline, and
whoever can do without that work calls it by `in_time`. Elsewhere, and where there is no deadline, `check` does nothing.
"""

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

import torch
from torch import Tensor

SOON = 8  # rows after which a long step looks at the clock

GRACE = 0.5  # seconds after the deadline for what looks at it: what was trained until then is put into one proof

T = TypeVar("T")
_deadline: ContextVar[float] = ContextVar("deadline", default=math.inf)
_spared: ContextVar[bool] = ContextVar("spared", default=False)  # somebody can do without what runs now


class Expired(BaseException):
    """The time was up in the midst of something. No error, so that nobody takes it for one of the model's."""


def deadline() -> float:
    """Of the monotonic clock; infinite where there is none."""
    return _deadline.get()


def passed() -> bool:
    return time.monotonic() >= deadline()


def share(part: float) -> float:
    """Until when this part of the time that is left is spent."""
    now = time.monotonic()
    return now + part * (deadline() - now)


def check() -> None:
    """Cut off what runs now, if the time is up and somebody said `in_time`."""
    if _spared.get() and time.monotonic() >= deadline() + GRACE:
        raise Expired


def in_time(work: Callable[[], T], otherwise: T) -> T:
    """What the work gives; or the other thing, where it was cut off. What it had changed by then must not matter to anyone."""
    before = _spared.set(True)
    try:
        return work()
    except Expired:
        return otherwise
    finally:
        _spared.reset(before)


def portions(x: Tensor) -> Iterator[Tensor]:
    """The rows of x, all at once where nobody waits; else a few at a time, the first always and the others until the time is up."""
    for place, rows in enumerate(torch.arange(len(x), device=x.device).split(len(x) if math.isinf(deadline()) else SOON)):
        if place and passed():
            return
        yield rows


def at_once(usual: int, soon: int, device: torch.device) -> int:
    """How much to ask for in one go: as usual where nobody waits, or where a graphics card is soon done with it."""
    return usual if math.isinf(deadline()) or device.type == "cuda" else soon


@contextmanager
def within(until: float) -> Iterator[None]:
    """Whatever runs inside should end by then; an earlier deadline around it stays in force."""
    before = _deadline.set(min(until, deadline()))
    try:
        yield
    finally:
        _deadline.reset(before)
