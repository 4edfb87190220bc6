"""Queries of the model in a supervised process, outside a search: a model that hangs, crashes or runs out of
memory does not end the run.

The process is a fork of this one, made at the first query, so that only inputs and outputs are sent between
the two.
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
from holdfast.execution.task import Failure, describe_exit, failure_of
from holdfast.network.delegation import delegate_queries
from holdfast.process_state import ignored_warnings


class NotAnswered(HoldfastError):
    """The model did not answer a query: it raised an exception, crashed, or exceeded the time limit."""


@dataclass(eq=False)
class QueryProcess:
    """The supervised process, started at the first query.

    Attributes:
        until: the time limit for all queries, on the monotonic clock; infinity: none.
        known: the networks that the process has, by their `id`.
    """

    until: float
    known: dict[int, Any] = field(default_factory=dict)
    process: Any = None
    pipe: Connection | None = None

    def ask(self, network: Any, method: str, x: Tensor) -> Tensor:
        """The outputs of the network's method for x.

        Raises NotAnswered if the process ends or the time limit is reached.
        """
        if time.monotonic() >= self.until:
            raise NotAnswered(f"there was no time left to query {network.name}.")
        if id(network) not in self.known:
            self.end()  # a process that was forked earlier does not have this network
            self.known[id(network)] = network
        if self.pipe is None:
            self._begin()
        assert self.pipe is not None
        seconds_left = None if math.isinf(self.until) else max(0.0, self.until - time.monotonic())
        try:
            self.pipe.send_bytes(pickle.dumps((id(network), method, x)))
            if not self.pipe.poll(seconds_left):
                self.end()
                raise NotAnswered(f"{network.name} had not answered when its time limit was reached.")
            # The pipe is private to this process and the child that it forked, which runs the user's own model.
            answer = pickle.loads(self.pipe.recv_bytes())
        except (EOFError, OSError):
            self.process.join()
            why = describe_exit(self.process.exitcode)
            self.end()
            raise NotAnswered(f"{network.name} was queried, and {why}.") from None
        if isinstance(answer, Failure):
            raise answer.error or NotAnswered(f"{network.name} was queried and failed: {answer.why}.")
        assert isinstance(answer, Tensor)
        return answer

    def end(self) -> None:
        """Kill the process; the next query starts another."""
        if self.pipe is not None:
            self.process.kill()
            self.process.join()
            self.pipe.close()
            self.pipe = None

    def _begin(self) -> None:
        context: Any = multiprocessing.get_context("fork")
        ours, theirs = context.Pipe()
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()  # else the forked process would write the buffer again
        arguments = (theirs, ours, dict(self.known), os.getpid())
        process = context.Process(target=_serve, args=arguments, daemon=True)
        with ignored_warnings(DeprecationWarning):  # Python warns of forks in processes with threads
            process.start()
        theirs.close()
        self.process, self.pipe = process, ours


@contextmanager
def query_in_subprocess(seconds: float = math.inf) -> Iterator[None]:
    """Inside the block, networks are evaluated in a supervised process, with a time limit for all queries
    together.

    Where this process cannot be forked, networks are evaluated in this process.
    """
    if not can_fork():
        yield
        return
    asking = QueryProcess(time.monotonic() + seconds)
    try:
        with delegate_queries(asking.ask):
            yield
    finally:
        asking.end()


def _serve(pipe: Connection, other: Connection, networks: dict[int, Any], parent: int) -> None:
    """The loop of the supervised process: receive a query, send the outputs or a Failure."""
    follow_parent(parent)
    other.close()
    with delegate_queries(None):
        while True:
            try:
                # Written by the parent process, over a pipe that nobody else has.
                network, method, x = pickle.loads(pipe.recv_bytes())
            except (EOFError, OSError):
                return
            answer: Tensor | Failure
            try:
                answer = getattr(networks[network], method)(x)
            except Exception as error:
                answer = failure_of(error)
            except KeyboardInterrupt as error:  # raised by the model: SIGINT is ignored in this process
                answer = Failure(f"it raised {type(error).__name__}")
            pipe.send_bytes(pickle.dumps(answer))
