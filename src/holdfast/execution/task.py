"""What travels between a run and those who answer its questions. Everything here can be pickled, and times are spans: clocks differ."""

import contextlib
import math
import pickle
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from torch import Tensor

from holdfast.errors import HoldfastError
from holdfast.foreign_text import LONGEST_NOTE, first_line
from holdfast.result import Key, Record


@dataclass(frozen=True)
class Outputs:
    """What the model answered at the inputs of a task, when the search began."""

    keys: tuple[Key, ...]
    values: Tensor  # (keys, outputs)


class Tell(Protocol):
    """Report to the run: records that have become better, the method at work, and once for each task the outputs at its inputs."""

    def __call__(self, records: Sequence[Record], method: str, outputs: Outputs | None = None, /) -> None: ...


@dataclass(frozen=True)
class Task:
    """Questions that are answered together.

    seconds  the share of the budget that they have.
    known    what was found of them before; the search goes on from there.
    others   what is known of other parts of the same questions: their witnesses count here too.
    """

    keys: tuple[Key, ...]
    seconds: float = math.inf
    known: Mapping[Key, Record] = field(default_factory=dict)
    others: tuple[Record, ...] = ()


@dataclass(frozen=True)
class TaskResult:
    """One record for each key of a task, in order. faults: why some of them are believed no more; raised when all others are done."""

    records: tuple[Record, ...]
    faults: tuple[HoldfastError, ...] = ()
    interrupted: bool = False


@dataclass(frozen=True)
class Failure:
    """Why a task has no answer.

    late   its time was over when it was ended: what it told until then is all there will be.
    error  the exception, where there is one that can travel.
    """

    why: str
    late: bool = False
    error: Exception | None = None


class Worker(Protocol):
    """Who answers. Every process that does has one of its own, and with it its own copy of the model."""

    def answer(self, task: Task, tell: Tell) -> TaskResult:
        """tell: called with the records that have become better, and the method at work; first with none, once the model has answered at
        the inputs, and with these answers. Ctrl-C ends the search; what was found so far is the answer."""
        ...

    def unknown(self, keys: Sequence[Key]) -> list[Record]:
        """Records that say nothing yet."""
        ...

    def question(self, key: Key) -> str:
        """The hash of what is asked; empty: only the answer tells."""
        ...


class Deal(Protocol):
    """What an executor is given: tasks, as long as there are any, and somebody to tell."""

    def next(self) -> Task | None: ...

    def receive_records(
        self, task: Task, records: Sequence[Record], method: str, outputs: Outputs | None = None
    ) -> None: ...

    def finish_task(self, task: Task, answer: TaskResult) -> None: ...

    def handle_failure(self, task: Task, failure: Failure) -> None: ...

    def interrupt(self) -> None: ...


class Executor(Protocol):
    """Where tasks are answered. slots: how many at a time."""

    @property
    def slots(self) -> int: ...

    def run(self, worker: Worker, deal: Deal) -> None:
        """Until there is no task left and none in work."""
        ...


def describe_exception(error: BaseException) -> str:
    """An exception in one line."""
    name, text = type(error).__name__[:100], first_line(error, LONGEST_NOTE)
    return name if text == type(error).__name__ else f"{name}: {text}"


def failure_of(error: Exception) -> Failure:
    """With the exception itself where that can travel."""
    with contextlib.suppress(Exception):
        pickle.loads(
            pickle.dumps(error)
        )  # our own bytes of a moment ago: some exceptions are written and cannot be read again
        return Failure(describe_exception(error), error=error)
    return Failure(describe_exception(error))


def ending(code: int | None) -> str:
    """How a process ended that should not have."""
    if code is not None and code < 0:
        name = signal.Signals(-code).name if -code in {s.value for s in signal.Signals} else f"signal {-code}"
        more = ", as the kernel does where memory runs out" if -code == signal.SIGKILL else ""
        return f"its process was ended by {name}{more}"
    return f"its process ended with exit code {code}"
