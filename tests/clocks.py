"""Clocks for tests of budgets: how busy the machine is changes nothing that they show."""

import time
from collections.abc import Callable


class TestClock:
    """Stands for time.monotonic and time.sleep. Sleeping takes no time but moves the clock; `running` is added to it."""

    __test__ = False

    def __init__(self, running: Callable[[], float]) -> None:
        self._begin, self._running, self._moved = time.monotonic(), running, 0.0
        self._since = running()

    def __call__(self) -> float:
        return self._begin + self._moved + self._running() - self._since

    def advance(self, seconds: float) -> None:
        self._moved += seconds
