"""Until when a step may go on. `solve` sets the deadline, and steps that take long look at it and end early with what they have.

What they do not look after is cut off: deep inside long work stands `check`, which raises `Expired` a moment after the deadline, and
whoever can do without that work calls it by `in_time`. Elsewhere, and where there is no deadline, `check` does nothing.

Work that looks at no clock at all (tracing a model, the model itself) is ended by `interrupt_late`, which asks the operating system for
a signal a second after the deadline. It ends Python code wherever it is, but not a single long call into compiled code.
"""

import math
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import FrameType
from typing import Any, TypeVar

import torch
from torch import Tensor

SOON = 8  # rows after which a long step looks at the clock

GRACE = (
    0.5  # seconds after the deadline for what looks at it: what was trained until then is put into one proof
)

OVERTIME = 1.0  # Seconds after the deadline at which work that looks at no clock is interrupted: GRACE, and as much again.
PREPARATION = 60.0  # Seconds beyond a budget for what comes before a search and cannot be left out: reading, tracing, hashing a model.
AGAIN = 0.25  # Seconds between two signals: code may catch an exception that it should not, or may be where none can be raised.
UNSAFE = frozenset(
    {"__enter__", "__exit__", "__del__"}
)  # Functions in which an exception would leave something half done.

T = TypeVar("T")
_deadline: ContextVar[float] = ContextVar("deadline", default=math.inf)
_spared: ContextVar[bool] = ContextVar("spared", default=False)  # somebody can do without what runs now


class Expired(BaseException):
    """The time was up in the midst of something. No error, so that nobody takes it for one of the model's."""


def deadline() -> float:
    """Of the monotonic clock; infinite where there is none."""
    return _deadline.get()


def has_expired() -> bool:
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


class _Interrupted(BaseException):
    """Raised by the signal. Only the `interrupt_late` whose time it was catches it, so nothing inside goes on with half a result."""

    def __init__(self, whose: object) -> None:
        super().__init__("the time was up")
        self.whose = whose


_limits: list[
    tuple[float, object]
] = []  # When each `interrupt_late` that is running is to be interrupted, outermost first.


def interrupt_late(work: Callable[[], T], otherwise: T, overtime: float = OVERTIME) -> T:
    """Return what the work returns, or `otherwise` if it is still running `overtime` seconds after the deadline.

    Work that was interrupted may leave objects half changed: the caller must not go on with them.
    Without a deadline, outside the main thread and where somebody else handles SIGALRM, this is `in_time`.
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
            _limits[:] = outer  # From here on no signal is for this call.
            _set_timer()
            if before is not None:
                signal.signal(signal.SIGALRM, before)
    except _Interrupted as interrupted:
        if interrupted.whose is not mine[1]:
            raise
        _spared.set(spared)  # The signal may have come before somebody inside could put these back.
        _deadline.set(now)
        return otherwise


def _set_timer() -> None:
    if _limits:
        wait = max(1e-3, min(until for until, _ in _limits) - time.monotonic())
        signal.setitimer(signal.ITIMER_REAL, wait, AGAIN)
    else:
        signal.setitimer(signal.ITIMER_REAL, 0)


def _on_alarm(_: int, frame: FrameType | None) -> None:
    """Interrupt the outermost work whose time is up, unless it is where an exception would do harm: the signal comes again."""
    now = time.monotonic()
    whose = next((token for until, token in _limits if now >= until), None)
    if whose is not None and _safe(frame):
        raise _Interrupted(whose)


def _safe(frame: Any) -> bool:
    """Whether no context is being entered or left, no module is being imported, and it is not this module that runs."""
    if frame is not None and frame.f_code.co_filename == __file__:
        return False
    while frame is not None and frame.f_code is not interrupt_late.__code__:
        if frame.f_code.co_name in UNSAFE or frame.f_code.co_filename.startswith("<frozen importlib"):
            return False
        frame = frame.f_back
    return True


def portions(x: Tensor) -> Iterator[Tensor]:
    """The rows of x, all at once where nobody waits; else a few at a time, the first always and the others until the time is up."""
    for place, rows in enumerate(
        torch.arange(len(x), device=x.device).split(len(x) if math.isinf(deadline()) else SOON)
    ):
        if place and has_expired():
            return
        yield rows


def at_once(usual: int, soon: int, device: torch.device) -> int:
    """How much to ask for in one go: as usual where nobody waits, or where a GPU is soon done with it."""
    return usual if math.isinf(deadline()) or device.type == "cuda" else soon


@contextmanager
def within(until: float) -> Iterator[None]:
    """Whatever runs inside should end by then; an earlier deadline around it stays in force."""
    before = _deadline.set(min(until, deadline()))
    try:
        yield
    finally:
        _deadline.reset(before)
