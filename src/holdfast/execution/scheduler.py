"""The scheduler: it shares the time budget among tasks, stores their records, and retries failed tasks.

A failed task is tried again in halves, until the input that makes it fail is known.
"""

import math
import signal
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import torch

from holdfast import signals, time_limit
from holdfast.errors import HoldfastError, StoreError
from holdfast.execution.in_process import InProcess
from holdfast.execution.task import Executor, Failure, Outputs, Task, TaskResult, Worker
from holdfast.result import DONE, Key, Record, Status

# Number of attempts at a single input before it is recorded as failed (chosen by hand).
TRIES = 2
# If no input has been answered and this many failed for the same reason, the run ends with that error (chosen
# by hand).
HOPELESS = 8


class Sink(Protocol):
    """Stores records as soon as they are known, and finds them again."""

    def load_known(self, keys: Sequence[Key]) -> dict[Key, Record]: ...

    def write(self, records: Sequence[Record]) -> None: ...


@dataclass
class InMemorySink:
    """Keeps records in memory, and also in a store if one is given."""

    store: Sink | None = None
    records: dict[Key, Record] = field(default_factory=dict)

    def load_known(self, keys: Sequence[Key]) -> dict[Key, Record]:
        stored = (
            {}
            if self.store is None
            else self.store.load_known([key for key in keys if key not in self.records])
        )
        return {**stored, **{key: self.records[key] for key in keys if key in self.records}}

    def write(self, records: Sequence[Record]) -> None:
        if self.store is not None:
            self.store.write(records)
        self.records.update((record.key, record) for record in records)


@dataclass(frozen=True)
class Progress:
    """The progress of a run.

    Attributes:
        done: number of finished questions.
        total: number of all questions.
        records: of the task that reported.
        method: that is at work.
        seconds: since the run began.
        seconds_left: an estimate from the pace until now and the time budget; None if there is none yet.
    """

    done: int
    total: int
    records: Sequence[Record]
    method: str
    seconds: float
    seconds_left: float | None


@dataclass(frozen=True)
class Unit:
    """Keys that are answered together.

    seconds: their time limit. whole: they cannot be tried again in halves.
    """

    keys: tuple[Key, ...]
    seconds: float = math.inf
    whole: bool = False


@dataclass(frozen=True)
class Workload:
    """What a run has to do.

    Attributes:
        units: the units that are not answered yet.
        total: number of all questions of the run.
        done: number of those answered before.
        related: maps a key to the keys of all parts of its question, where questions have several parts.
    """

    units: Sequence[Unit]
    total: int = 0
    done: int = 0
    related: Callable[[Key], Sequence[Key]] | None = None


@dataclass(frozen=True)
class RunOutcome:
    """How a run ended. Its records are in the sink.

    failed: number of inputs without an answer; their records hold the reason.
    """

    interrupted: bool
    failed: int
    faults: tuple[HoldfastError, ...]


@dataclass
class _Run:
    """A running unit and the records that it has reported."""

    unit: Unit
    reported: dict[Key, Record] = field(default_factory=dict)


class Scheduler:
    """The scheduler of a run: hands units to an executor as tasks, and stores their records.

    Args:
        seconds: time budget of the run.
        blanks: units that were not started get a record too.
        lenient: do not raise an exception when all units fail, because they are unrelated.
        progress: called at each report.
        outputs: called with the model's outputs at the inputs of a task.
    """

    def __init__(
        self,
        worker: Worker,
        work: Workload,
        sink: Sink,
        *,
        seconds: float | None = None,
        blanks: bool = True,
        lenient: bool = False,
        progress: Callable[[Progress], None] | None = None,
        outputs: Callable[[Outputs], None] | None = None,
    ) -> None:
        self._worker, self._sink, self._progress = worker, sink, progress
        self._all_parts = work.related
        self._outputs = outputs
        self._waiting, self._blanks = deque(work.units), blanks
        self._running: dict[tuple[Key, ...], _Run] = {}
        self._total, self._done = work.total, work.done
        self._answered = lenient or work.done > 0
        self._rows = sum(len(unit.keys) for unit in work.units)
        self._solved = 0
        self._slots = 1
        self._tries: Counter[Key] = Counter()
        self._reasons: Counter[str] = Counter()
        self._given_up = 0
        self._faults: list[HoldfastError] = []
        self._interrupted = False
        self._began = time.monotonic()
        self._deadline = min(time_limit.deadline(), math.inf if seconds is None else self._began + seconds)

    def run(self, executor: Executor | None) -> RunOutcome:
        """Run all units; without an executor in this process."""
        executor = executor or InProcess()
        self._slots = executor.slots
        with signals.watch_signals(signal.SIGINT):
            executor.run(self._worker, self)
        left: Status = "interrupted" if self._interrupted else "stopped"
        for keys in (*self._running, *(unit.keys for unit in self._waiting)) if self._blanks else ():
            found = self._sink.load_known(keys)
            self._sink.write(
                [
                    replace(record, status=left)
                    for record in self._worker.unknown([key for key in keys if key not in found])
                ]
            )
        return RunOutcome(self._interrupted, self._given_up, tuple(self._faults))

    def next(self) -> Task | None:
        """The next task with its share of the time left; None if no unit is waiting or no time is left."""
        now = time.monotonic()
        if not self._waiting or self._interrupted or now >= self._deadline:
            return None
        share = (self._deadline - now) / math.ceil(len(self._waiting) / self._slots)
        unit = self._waiting.popleft()
        other_parts = (
            []
            if self._all_parts is None
            else [key for one in unit.keys for key in self._all_parts(one) if key not in unit.keys]
        )
        others = tuple(self._sink.load_known(other_parts).values())
        task = Task(unit.keys, min(share, unit.seconds), self._sink.load_known(unit.keys), others)
        self._running[task.keys] = _Run(unit)
        return task

    def receive_records(
        self, task: Task, records: Sequence[Record], method: str, outputs: Outputs | None = None
    ) -> None:
        if outputs is not None and self._outputs is not None:
            self._outputs(outputs)
        reported = self._running[task.keys].reported
        reported.update((record.key, record) for record in records)
        if records:
            self._sink.write(records)
        if method:
            self._report(list(reported.values()), method)

    def finish_task(self, task: Task, answer: TaskResult) -> None:
        for record in answer.records:
            expected = self._worker.question(record.key)
            if expected and record.question != expected:
                raise StoreError(
                    f"the answer for input {record.key} belongs to another question: the worker process has "
                    f"read a different model or different data than this process. Do all machines see the "
                    f"same files?"
                )
        del self._running[task.keys]
        self._sink.write(answer.records)
        self._faults += answer.faults
        self._interrupted |= answer.interrupted
        self._answered |= any(record.status != "failed" for record in answer.records)
        self._given_up += sum(record.status == "failed" for record in answer.records)
        self._count(answer.records)
        self._report(answer.records, "done")

    def handle_failure(self, task: Task, failure: Failure) -> None:
        """Try the task again in halves.

        A single input is tried TRIES times and then recorded as failed, with the reason.
        """
        unit = self._running.pop(task.keys).unit
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        if failure.late:
            self._keep(unit.keys, "stopped", failure.why)
        elif len(unit.keys) > 1 and not unit.whole:
            middle, each = (len(unit.keys) + 1) // 2, task.seconds / len(unit.keys)
            halves = unit.keys[:middle], unit.keys[middle:]
            self._waiting.extendleft(Unit(keys, each * len(keys)) for keys in reversed(halves))
        elif self._count_tries(unit) < TRIES:
            self._waiting.appendleft(replace(unit, seconds=task.seconds))
        else:
            self._reasons[failure.why] += 1
            if not self._answered and (
                self._reasons[failure.why] >= HOPELESS or not (self._waiting or self._running)
            ):
                raise failure.error or HoldfastError(f"no input could be answered: {failure.why}.")
            self._given_up += 1
            self._keep(unit.keys, "failed", f"{failure.why} (tried {TRIES} times; the others went on)")

    def interrupt(self) -> None:
        self._interrupted = True

    def _count_tries(self, unit: Unit) -> int:
        self._tries[unit.keys[0]] += 1
        return self._tries[unit.keys[0]]

    def _keep(self, keys: Sequence[Key], status: Status, note: str) -> None:
        """Write the present bounds of unfinished keys with this status and note."""
        blank = {record.key: record for record in self._worker.unknown(keys)}
        found = {**blank, **self._sink.load_known(keys)}
        present = [found[key] for key in keys]
        records = [
            replace(r, status=status, bracket=replace(r.bracket, note=note)) if r.status not in DONE else r
            for r in present
        ]
        self._sink.write(records)
        self._count(records)
        self._report(records, "done")

    def _count(self, records: Sequence[Record]) -> None:
        self._done += sum(record.status in DONE for record in records)
        self._solved += len(records)

    def _report(self, records: Sequence[Record], method: str) -> None:
        if self._progress is None:
            return
        now = time.monotonic()
        passed = now - self._began
        left = passed / self._solved * (self._rows - self._solved) if self._solved else None
        if math.isfinite(self._deadline):
            left = max(0.0, min(self._deadline - now, math.inf if left is None else left))
        closed = sum(
            record.status in DONE for run in self._running.values() for record in run.reported.values()
        )
        self._progress(Progress(self._done + closed, self._total, records, method, passed, left))
