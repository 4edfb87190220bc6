"""A pool of workers outside this process, each with one task at a time.

A worker gets its next task when it is done, is replaced when it is lost, and is ended when it hangs.
Subclasses of `RemoteWorker` know where the workers are and how messages reach them.
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from holdfast.execution.task import Failure, Outputs, Task, TaskQueue, TaskResult
from holdfast.result import Record

# Seconds within which the model must have answered at the inputs of a task; a fifth of the task's time budget
# if that is more (chosen by hand).
FIRST_ANSWER_SECONDS = 10.0
# Seconds after its time budget, plus a tenth of the budget, after which a worker is considered to hang
# (chosen by hand).
GRACE_SECONDS = 5.0
# Seconds between two checks of the time budgets (chosen by hand).
POLL_SECONDS = 0.5


@dataclass(frozen=True)
class Ready:
    """The worker has been built and starts its first task. fit: it can compute gradients."""

    fit: bool = True


@dataclass(frozen=True)
class Update:
    """A report from a running task."""

    records: tuple[Record, ...]
    method: str
    outputs: Outputs | None = None


Message = Ready | Update | TaskResult | Failure


class WorkerLost(Exception):
    """The worker is gone, so no message will come. Its text is the reason."""


@dataclass(eq=False, kw_only=True)
class RemoteWorker(ABC):
    """One worker outside this process.

    Attributes:
        task: its present task.
        since: when it got the task, or when it was ready if that was later; on the monotonic clock.
        ready: it has been built.
        answered: the model has answered at the inputs of the task.
    """

    task: Task | None = None
    since: float = 0.0
    ready: bool = False
    answered: bool = False

    @abstractmethod
    def send(self, task: Task) -> None:
        """Give the worker a task. WorkerLost if it is gone."""

    @abstractmethod
    def receive(self) -> Message:
        """The next message, which has arrived already. WorkerLost if the worker is gone."""

    @abstractmethod
    def end(self) -> None:
        """Kill the worker."""

    def excess(self) -> str:
        """The reason to end the worker although it is on time, such as its memory; "" if there is none."""
        return ""

    def overdue(self) -> bool:
        """Whether the worker has exceeded its time budget, or the model has not answered at the inputs in
        time."""
        assert self.task is not None
        passed, allowed = time.monotonic() - self.since, self.task.seconds
        too_long = passed > allowed + GRACE_SECONDS + allowed / 10 or (
            not self.answered and passed > max(FIRST_ANSWER_SECONDS, allowed / 5)
        )
        return self.ready and too_long


H = TypeVar("H", bound=RemoteWorker)


@dataclass(kw_only=True)
class WorkerPool(ABC, Generic[H]):
    """At most `size` workers of one kind."""

    size: int
    remotes: list[H] = field(default_factory=list)

    @abstractmethod
    def start_worker(self) -> H:
        """A new worker, which may not be ready yet."""

    @abstractmethod
    def wait_for_messages(self, busy: Sequence[H]) -> list[H]:
        """The workers that have a message; waits at most LOOK seconds for one."""

    def unfit(self) -> None:
        """Make sure that workers started from now on can compute gradients, because one could not."""
        raise AssertionError

    def work(self, deal: TaskQueue) -> None:
        """Run tasks until there are none. Ctrl-C ends the work; records that were reported are kept."""
        try:
            while self._fill(deal):
                self._process_messages(deal)
        except KeyboardInterrupt:
            deal.interrupt()
        finally:
            for remote in list(self.remotes):
                self._end_worker(remote)

    def _fill(self, deal: TaskQueue) -> bool:
        """Give every idle worker a task, and start workers up to `size`.

        Returns False if no task is waiting or running.
        """
        for remote in list(self.remotes):
            if remote.task is None and (task := deal.next()) is not None:
                self._assign(remote, task, deal)
        while len(self.remotes) < self.size and (task := deal.next()) is not None:
            self.remotes.append(self.start_worker())
            self._assign(self.remotes[-1], task, deal)
        # A worker that is not ready yet may never be, because a cluster that has lost a machine may be unable
        # to start it. So idle workers take over.
        idle = [remote for remote in self.remotes if remote.task is None]
        absent = [remote for remote in self.remotes if remote.task is not None and not remote.ready]
        for remote, other in zip(idle, absent, strict=False):
            self._end_worker(other)
            assert other.task is not None
            self._assign(remote, other.task, deal)
        return any(remote.task is not None for remote in self.remotes)

    def _process_messages(self, deal: TaskQueue) -> None:
        busy = [remote for remote in self.remotes if remote.task is not None]
        ready = self.wait_for_messages(busy)
        for remote in busy:
            assert remote.task is not None
            if remote in ready:
                self._handle_message(remote, remote.task, deal)
            elif remote.overdue():
                why = f"it had not come back after {time.monotonic() - remote.since:.0f} s and was ended"
                self._fail(remote, remote.task, deal, Failure(why, late=remote.answered))
            elif excess := remote.excess():
                self._fail(remote, remote.task, deal, Failure(excess))

    def _assign(self, remote: H, task: Task, deal: TaskQueue) -> None:
        remote.task, remote.since, remote.answered = task, time.monotonic(), False
        try:
            remote.send(task)
        except WorkerLost as error:
            self._fail(remote, task, deal, Failure(str(error)))

    def _handle_message(self, remote: H, task: Task, deal: TaskQueue) -> None:
        try:
            message = remote.receive()
        except WorkerLost as error:
            self._fail(remote, task, deal, Failure(str(error)))
            return
        if isinstance(message, Ready):
            remote.ready, remote.since = True, time.monotonic()
            if not message.fit:
                self.unfit()
                self._end_worker(remote)
                self.remotes.append(self.start_worker())
                self._assign(self.remotes[-1], task, deal)
        elif isinstance(message, Update):
            remote.answered = True
            deal.receive_records(task, message.records, message.method, message.outputs)
        else:
            remote.task = None
            if isinstance(message, TaskResult):
                deal.finish_task(task, message)
            else:
                deal.handle_failure(task, message)

    def _fail(self, remote: H, task: Task, deal: TaskQueue, failure: Failure) -> None:
        self._end_worker(remote)
        deal.handle_failure(task, failure)

    def _end_worker(self, remote: H) -> None:
        self.remotes.remove(remote)
        remote.end()
