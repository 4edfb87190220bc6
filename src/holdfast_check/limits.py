"""A time limit for checking: loops look at the clock, and the check ends when the limit has passed."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from holdfast_check.errors import Rejected


class OutOfTime(Rejected):
    """The time limit has passed: the claim was neither accepted nor found wrong."""


class _Limit:
    """The deadline of this process and the clock that it is read from."""

    until = math.inf
    seconds = math.inf
    clock: Callable[[], float] = time.monotonic


@contextmanager
def time_limit(seconds: float | None, clock: Callable[[], float] = time.monotonic) -> Iterator[None]:
    """Within the block `look_at_clock` raises `OutOfTime` after `seconds`; None: never."""
    before = _Limit.until, _Limit.seconds, _Limit.clock
    if seconds is not None:
        _Limit.until, _Limit.seconds, _Limit.clock = clock() + seconds, seconds, clock
    try:
        yield
    finally:
        _Limit.until, _Limit.seconds, _Limit.clock = before


def look_at_clock() -> None:
    """Raise OutOfTime if the limit has passed. Called between operations that each take well below a second."""
    if _Limit.until < math.inf and _Limit.clock() > _Limit.until:
        raise OutOfTime(f"not checked: {_Limit.seconds:g} s have passed; give more --seconds")
