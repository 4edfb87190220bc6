"""Messages between the scheduler of a run and its workers.

All of them can be pickled; times are durations, because clocks differ.
"""

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
    """The model's outputs at the inputs of a task, evaluated when its search begins."""

    keys: tuple[Key, ...]
    values: Tensor  # (keys, outputs)


class Tell(Protocol):
    """Reports to the scheduler: records that improved, the method at work, and once for each task the outputs
    at its inputs."""

    def __call__(self, records: Sequence[Record], method: str, outputs: Outputs | None = None, /) -> None: ...


@dataclass(frozen=True)
class Task:
    """Keys that are answered together.

    Attributes:
        seconds: the time budget of the task.
        known: records of these keys from earlier searches; the search continues from them.
        others: records of other parts of the same questions, whose witnesses are also tried here.
    """

    keys: tuple[Key, ...]
    seconds: float = math.inf
    known: Mapping[Key, Record] = field(default_factory=dict)
    others: tuple[Record, ...] = ()


@dataclass(frozen=True)
class TaskResult:
    """One record for each key of a task, in order.

    faults: errors that invalidate some of the records; they are raised when all other tasks are done.
    """

    records: tuple[Record, ...]
    faults: tuple[HoldfastError, ...] = ()
    interrupted: bool = False


@dataclass(frozen=True)
class Failure:
    """Why a task has no result.

    Attributes:
        late: the task was ended after its time budget, so its last reports are its result.
        error: the exception, if it can be pickled.
    """

    why: str
    late: bool = False
    error: Exception | None = None


class Worker(Protocol):
    """Answers tasks. Every worker process has its own, with its own copy of the model."""

    def answer(self, task: Task, tell: Tell) -> TaskResult:
        """Answer a task. Ctrl-C ends the search, and the bounds found until then are the result.

        tell: called first without records and with the model's outputs at the inputs, then with records that
            improved.
        """
        ...

    def unknown(self, keys: Sequence[Key]) -> list[Record]:
        """Records without bounds for these keys."""
        ...

    def question(self, key: Key) -> str:
        """The hash of the question for this key; "" if only the record has it."""
        ...


class TaskQueue(Protocol):
    """The scheduler as an executor sees it: a source of tasks and a receiver of reports."""

    def next(self) -> Task | None:
        """The next task, or None if there is none now. A failed task may make new ones."""
        ...

    def receive_records(
        self, task: Task, records: Sequence[Record], method: str, outputs: Outputs | None = None
    ) -> None: ...

    def finish_task(self, task: Task, answer: TaskResult) -> None: ...

    def handle_failure(self, task: Task, failure: Failure) -> None: ...

    def interrupt(self) -> None: ...


class Executor(Protocol):
    """Runs tasks, `slots` of them at a time."""

    @property
    def slots(self) -> int: ...

    def run(self, worker: Worker, deal: TaskQueue) -> None:
        """Run tasks until none is waiting and none is running."""
        ...


def describe_exception(error: BaseException) -> str:
    """The class and the message of an exception, in one line."""
    name, text = type(error).__name__[:100], first_line(error, LONGEST_NOTE)
    return name if text == type(error).__name__ else f"{name}: {text}"


def failure_of(error: Exception) -> Failure:
    """The failure of a task by an exception, with the exception itself if it can be pickled and unpickled."""
    with contextlib.suppress(Exception):
        pickle.loads(
            pickle.dumps(error)
        )  # safe: our own bytes. Some exceptions can be pickled but not unpickled.
        return Failure(describe_exception(error), error=error)
    return Failure(describe_exception(error))


def describe_exit(code: int | None) -> str:
    """Why a process ended unexpectedly, from its exit code."""
    if code is not None and code < 0:
        name = signal.Signals(-code).name if -code in {s.value for s in signal.Signals} else f"signal {-code}"
        more = ", as the kernel does when memory runs out" if -code == signal.SIGKILL else ""
        return f"its process was ended by {name}{more}"
    return f"its process ended with exit code {code}"
