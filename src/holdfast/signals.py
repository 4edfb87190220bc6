"""Signals that end a run: Ctrl-C (SIGINT), and SIGTERM as `kill` and batch systems send it. Either is raised
as KeyboardInterrupt.

A model can raise KeyboardInterrupt too. That is a failure of the model and ends no run; the two are
distinguished by whether a signal arrived.
"""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, TypeVar

from holdfast.errors import HoldfastError

OURS = 128  # A shell reports a process that a signal ended by 128 plus the number of the signal (POSIX).

T = TypeVar("T")
_arrived: list[int] = []  # Signals since the outermost `watch_signals` began.
_watching = 0  # How many `watch_signals` are running in this process's main thread.


class ModelRaised(HoldfastError):
    """The model raised KeyboardInterrupt or SystemExit, which would end the program."""


@contextmanager
def watch_signals(*numbers: int, always: bool = False) -> Iterator[None]:
    """Make these signals raise KeyboardInterrupt in the main thread, and record them for `has_arrived`.

    Args:
        always: Also if the process ignores or handles them otherwise.
    """
    global _watching
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    usual = (signal.default_int_handler, signal.SIG_DFL, _handle)
    before = {
        number: signal.getsignal(number) for number in numbers if always or signal.getsignal(number) in usual
    }
    if not _watching:
        _arrived.clear()
    _watching += bool(before)
    try:
        for number in before:
            signal.signal(number, _handle)
        yield
    finally:
        _watching -= bool(before)
        for number, handler in before.items():
            signal.signal(number, handler)


def _handle(number: int, _: FrameType | None) -> None:
    _arrived.append(number)
    raise KeyboardInterrupt


def has_arrived() -> bool:
    """Whether a signal arrived that ends the run; True outside `watch_signals`, where that is unknown."""
    if threading.current_thread() is not threading.main_thread():
        return False  # Python raises KeyboardInterrupt in the main thread alone.
    return bool(_arrived) or not _watching


def exit_code() -> int:
    """The exit code of a command that a signal ended: 130 after Ctrl-C, 143 after SIGTERM."""
    return OURS + (_arrived[0] if _arrived else signal.SIGINT)


def call_model(name: str, call: Callable[..., T], *given: Any) -> T:
    """Call the model's code; ModelRaised if it raises KeyboardInterrupt or SystemExit without a signal."""
    try:
        return call(*given)
    except (KeyboardInterrupt, SystemExit) as error:
        if isinstance(error, KeyboardInterrupt) and has_arrived():
            raise
        raise ModelRaised(f"{name} raised {type(error).__name__} when it was called.") from error
