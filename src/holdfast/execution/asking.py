"""Asking the model in a supervised process, outside a search: one that hangs, crashes or runs out of memory ends no run.

The process is a copy of this one, made when the model is first asked, so nothing travels but inputs and outputs.
"""

import contextlib
import math
import multiprocessing
import os
import pickle
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

from torch import Tensor

from holdfast.errors import HoldfastError
from holdfast.execution.local import can_fork, follow_parent
from holdfast.execution.task import Failure, ending, failure_of
from holdfast.network.delegation import delegate_queries
from holdfast.process_state import ignored_warnings


class NotAnswered(HoldfastError):
    """The model has no answer here: it raised, crashed or did not come back in time."""


@dataclass(eq=False)
class Asking:
    """until  of the monotonic clock: when there is no time left to ask; infinite: there always is."""

    until: float
    known: dict[int, Any] = field(
        default_factory=dict
    )  # the networks that the process holds, by their place in memory
    process: Any = None
    pipe: Connection | None = None

    def ask(self, network: Any, method: str, x: Tensor) -> Tensor:
        """What the network's method returns for x. NotAnswered where the process ended, or the time is up."""
        if time.monotonic() >= self.until:
            raise NotAnswered(f"there was no time left to ask {network.name}.")
        if id(network) not in self.known:
            self.end()  # A copy of this process that was made earlier does not hold this network.
            self.known[id(network)] = network
        if self.pipe is None:
            self._begin()
        assert self.pipe is not None
        left = None if math.isinf(self.until) else max(0.0, self.until - time.monotonic())
        try:
            self.pipe.send_bytes(pickle.dumps((id(network), method, x)))
            if not self.pipe.poll(left):
                self.end()
                raise NotAnswered(f"{network.name} had not answered when the time for it was over.")
            answer = pickle.loads(self.pipe.recv_bytes())  # of our own child
        except (EOFError, OSError):
            self.process.join()
            why = ending(self.process.exitcode)
            self.end()
            raise NotAnswered(f"{network.name} was asked, and {why}.") from None
        if isinstance(answer, Failure):
            raise answer.error or NotAnswered(f"{network.name} was asked and failed: {answer.why}.")
        assert isinstance(answer, Tensor)
        return answer

    def end(self) -> None:
        if self.pipe is not None:
            self.process.kill()
            self.process.join()
            self.pipe.close()
            self.pipe = None

    def _begin(self) -> None:
        ways: Any = multiprocessing.get_context("fork")
        ours, theirs = ways.Pipe()
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()  # else the copy would write it again
        process = ways.Process(target=_serve, args=(theirs, ours, dict(self.known), os.getpid()), daemon=True)
        with ignored_warnings(DeprecationWarning):  # Python warns of threads that a fork leaves behind.
            process.start()
        theirs.close()
        self.process, self.pipe = process, ours


@contextmanager
def asking_elsewhere(seconds: float = math.inf) -> Iterator[None]:
    """Inside, networks are asked in a supervised process, for so many seconds in all; where this process cannot be copied, here."""
    if not can_fork():
        yield
        return
    asking = Asking(time.monotonic() + seconds)
    try:
        with delegate_queries(asking.ask):
            yield
    finally:
        asking.end()


def _serve(pipe: Connection, other: Connection, networks: dict[int, Any], parent: int) -> None:
    follow_parent(parent)
    other.close()
    with delegate_queries(None):
        while True:
            try:
                place, method, x = pickle.loads(pipe.recv_bytes())
            except (EOFError, OSError):
                return
            answer: Tensor | Failure
            try:
                answer = getattr(networks[place], method)(x)
            except Exception as error:
                answer = failure_of(error)
            except KeyboardInterrupt as error:  # SIGINT is ignored here: the model raised it.
                answer = Failure(f"it raised {type(error).__name__}")
            pipe.send_bytes(pickle.dumps(answer))
