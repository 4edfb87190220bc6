"""Deadlines. The solver sets one, and long steps check it and end early with their results so far.

Three mechanisms, from cooperative to forced:

- `has_expired`, `portions`, `at_once`: a step checks the deadline itself.
- `raise_if_expired`, called deep inside long work, raises `Expired` shortly after the deadline. A caller that can do
  without the result calls the work by `in_time`; outside of it, and without a deadline, `raise_if_expired` does nothing.
- `interrupt_late` is for work that checks no clock (tracing a model, the model itself). The operating system
  sends a signal one second after the deadline, which interrupts Python code anywhere, but not a single long
  call into compiled code.
"""

import math
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import FrameType
from typing import Any, TypeVar

import torch
from torch import Tensor

ITEMS_PER_CHECK = 4096  # Small items after which `checked` checks the clock; chosen by hand.
ROWS_PER_CHECK = 8  # Rows after which a long step checks the clock; chosen by hand.

# Seconds after the deadline for work that checks it, such as one last proof with the trained coefficients;
# chosen by hand.
GRACE = 0.5

OVERTIME = 1.0  # Seconds after the deadline at which work that checks no clock is interrupted: twice GRACE.
# Seconds beyond a budget for reading, tracing and hashing a model before a search; chosen by hand.
PREPARATION = 60.0
# Seconds between two signals, since code may catch the exception or be where none can be raised; chosen by
# hand.
SIGNAL_INTERVAL = 0.25
# Functions in which an exception would leave an object in an inconsistent state.
UNSAFE = frozenset({"__enter__", "__exit__", "__del__"})

T = TypeVar("T")
_deadline: ContextVar[float] = ContextVar("deadline", default=math.inf)
# True inside `in_time`: the caller can do without the result
_spared: ContextVar[bool] = ContextVar("spared", default=False)


class Expired(BaseException):
    """The deadline has passed. Not an Exception, so that no handler takes it for an error of the model."""


def deadline() -> float:
    """The deadline on the monotonic clock; infinite if there is none."""
    return _deadline.get()


def has_expired() -> bool:
    return time.monotonic() >= deadline()


def share_of_remaining(part: float) -> float:
    """The moment at which this share of the remaining time is used up."""
    now = time.monotonic()
    return now + part * (deadline() - now)


def raise_if_expired() -> None:
    """Raise Expired if the deadline has passed and the work was called by `in_time`."""
    if _spared.get() and time.monotonic() >= deadline() + GRACE:
        raise Expired


def checked(items: Iterable[T]) -> Iterator[T]:
    """Yield the items; at the first of every ITEMS_PER_CHECK of them the deadline is checked."""
    for place, item in enumerate(items):
        if place % ITEMS_PER_CHECK == 0:
            raise_if_expired()
        yield item


def in_time(work: Callable[[], T], otherwise: T) -> T:
    """Return work(), or `otherwise` if it was interrupted. The work must not have modified anything that the
    caller uses.
    """
    before = _spared.set(True)
    try:
        return work()
    except Expired:
        return otherwise
    finally:
        _spared.reset(before)


class _Interrupted(BaseException):
    """Raised by the signal; only the `interrupt_late` whose deadline passed catches it."""

    def __init__(self, whose: object) -> None:
        super().__init__("the time was up")
        self.whose = whose


# For each running `interrupt_late`, outermost first: when it is to be interrupted, and its token.
_limits: list[tuple[float, object]] = []


def interrupt_late(work: Callable[[], T], otherwise: T, overtime: float = OVERTIME) -> T:
    """Return what the work returns, or `otherwise` if it is still running `overtime` seconds after the
    deadline.

    Interrupted work may leave objects in an inconsistent state: the caller must not use them.
    Without a deadline, outside the main thread, and if SIGALRM has another handler, this is `in_time`.
    """
    until = deadline() + overtime
    free = threading.current_thread() is threading.main_thread() and hasattr(signal, "setitimer")
    if math.isinf(until) or not free or signal.getsignal(signal.SIGALRM) not in (signal.SIG_DFL, _on_alarm):
        return in_time(work, otherwise)
    mine = (until, object())
    before = signal.signal(signal.SIGALRM, _on_alarm)
    outer = list(_limits)
    spared = _spared.get()
    now = _deadline.get()
    try:
        try:
            _limits.append(mine)
            _set_timer()
            return in_time(work, otherwise)
        finally:
            _limits[:] = outer  # From here on no signal concerns this call.
            _set_timer()
            if before is not None:
                signal.signal(signal.SIGALRM, before)
    except _Interrupted as interrupted:
        if interrupted.whose is not mine[1]:
            raise
        _spared.set(spared)  # The signal may have arrived before inner code restored these.
        _deadline.set(now)
        return otherwise


def _set_timer() -> None:
    if _limits:
        wait = max(1e-3, min(until for until, _ in _limits) - time.monotonic())
        signal.setitimer(signal.ITIMER_REAL, wait, SIGNAL_INTERVAL)
    else:
        signal.setitimer(signal.ITIMER_REAL, 0)


def _on_alarm(_: int, frame: FrameType | None) -> None:
    """Interrupt the outermost work whose time is up, unless an exception would do harm there: the signal is
    repeated.
    """
    now = time.monotonic()
    whose = next((token for until, token in _limits if now >= until), None)
    if whose is not None and _safe(frame):
        raise _Interrupted(whose)


def _safe(frame: Any) -> bool:
    """Whether no context is being entered or left, no module is being imported, and this module is not
    running.
    """
    if frame is not None and frame.f_code.co_filename == __file__:
        return False
    while frame is not None and frame.f_code is not interrupt_late.__code__:
        if frame.f_code.co_name in UNSAFE or frame.f_code.co_filename.startswith("<frozen importlib"):
            return False
        frame = frame.f_back
    return True


def portions(x: Tensor) -> Iterator[Tensor]:
    """Yield the rows of x: all at once without a deadline, else a few at a time until it passes, but always
    the first.
    """
    for place, rows in enumerate(
        torch.arange(len(x), device=x.device).split(len(x) if math.isinf(deadline()) else ROWS_PER_CHECK)
    ):
        if place and has_expired():
            return
        yield rows


def at_once(usual: int, soon: int, device: torch.device) -> int:
    """The batch size: `usual` without a deadline or on a GPU, else `soon`."""
    return usual if math.isinf(deadline()) or device.type == "cuda" else soon


@contextmanager
def within(until: float) -> Iterator[None]:
    """Set the deadline for everything inside; an earlier outer deadline stays in force."""
    before = _deadline.set(min(until, deadline()))
    try:
        yield
    finally:
        _deadline.reset(before)
