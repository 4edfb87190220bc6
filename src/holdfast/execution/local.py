"""The executor with supervised processes on this machine: one that hangs, runs out of memory or crashes costs
only its own task.

Messages are pickled. They come through pipes from this process's own children, never from a file or another
source.
"""

import contextlib
import ctypes
import multiprocessing
import os
import pickle
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import torch

from holdfast import memory_budget, signals
from holdfast.errors import BadInput, HoldfastError
from holdfast.execution.in_process import InProcess
from holdfast.execution.python_path import without_working_folder
from holdfast.execution.task import (
    Failure,
    Outputs,
    Task,
    TaskQueue,
    TaskResult,
    Worker,
    describe_exit,
    failure_of,
)
from holdfast.execution.worker_pool import (
    POLL_SECONDS,
    Message,
    Ready,
    RemoteWorker,
    Update,
    WorkerLost,
    WorkerPool,
)
from holdfast.process_state import ignored_warnings
from holdfast.result import Record

# PR_SET_PDEATHSIG of prctl(2): the signal that a process gets when its parent dies.
PARENT_GONE = 1
# Added to a worker's oom_score_adj, in thousandths of the machine's memory. When memory runs out, the kernel
# kills the process with the highest score. This is enough to kill a worker before the run, which holds the
# same model and data, and too little to kill it before larger, unrelated processes (chosen by hand).
BEFORE_THE_RUN = 50
# Largest value of oom_score_adj (proc(5)).
MAX_OOM_SCORE = 1000
# Libraries that may have started the OpenMP threads that torch uses too.
SHARES_THREADS = ("lightgbm", "xgboost")


@dataclass(frozen=True)
class Local:
    """Runs tasks in supervised processes.

    Attributes:
        workers: number of processes.
        threads: number of torch threads in each.
        make: builds the worker of a process that cannot be forked from this one: with a GPU, or on systems
            without fork. It must be picklable. Without it such a run is not supervised.
        memory: bytes that one process may use. A process that uses more is ended, and its task is tried again
            in halves.
    """

    workers: int = 1
    threads: int = 1
    make: Callable[[], Worker] | None = None
    memory: int | None = None

    def __post_init__(self) -> None:
        if self.workers < 1 or self.threads < 1:
            raise BadInput(f"workers and threads must be at least 1, got {self.workers} and {self.threads}.")

    @property
    def slots(self) -> int:
        return self.workers

    def run(self, worker: Worker, deal: TaskQueue) -> None:
        forks = can_fork()
        if forks or self.make is not None:
            _Processes(size=self.workers, options=self, worker=worker if forks else None).work(deal)
        else:
            InProcess().run(worker, deal)


def can_fork() -> bool:
    """Whether workers can be forked from this process.

    CUDA does not work in a fork of a process that has initialised it.
    """
    return sys.platform == "linux" and not torch.cuda.is_initialized()


@dataclass(eq=False, kw_only=True)
class _Process(RemoteWorker):
    process: Any
    pipe: Connection
    memory: int | None

    def send(self, task: Task) -> None:
        try:
            self.pipe.send_bytes(pickle.dumps(task))
        except OSError:
            raise self._gone() from None

    def receive(self) -> Message:
        try:
            # The pipe is private to this process and the worker that it started, which runs the user's own model.
            message: Message = pickle.loads(self.pipe.recv_bytes())
        except (EOFError, OSError):
            raise self._gone() from None
        return message

    def _gone(self) -> WorkerLost:
        self.process.join()
        return WorkerLost(describe_exit(self.process.exitcode))

    def end(self) -> None:
        self.process.kill()
        self.process.join()
        self.pipe.close()

    def excess(self) -> str:
        if self.memory is None or memory_budget.held_bytes(self.process.pid) <= self.memory:
            return ""
        limit = memory_budget.format_bytes(self.memory)
        return f"it needs more than the {limit} that --memory allows each process"


@dataclass(kw_only=True)
class _Processes(WorkerPool[_Process]):
    """The pool of processes. worker: inherited by forked processes; None if every process builds its own."""

    options: Local
    worker: Worker | None

    def start_worker(self) -> _Process:
        context: Any = multiprocessing.get_context("spawn" if self.worker is None else "fork")
        ours, theirs = context.Pipe()
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()  # else a forked process would write the buffer again
        # A thread pool of this process does not exist in its fork, and torch would wait for it forever.
        has_thread_pool = torch.get_num_threads() != 1 or any(name in sys.modules for name in SHARES_THREADS)
        threads = 1 if self.worker is not None and has_thread_pool else self.options.threads
        arguments: tuple[Any, ...]
        if self.worker is None:
            arguments = (theirs, self.options.make, True, threads, os.getpid(), [])
        else:  # a fork inherits all pipes; unless it closes them, no process sees a pipe end
            inherited = [ours, *(remote.pipe for remote in self.remotes)]
            arguments = (theirs, self.worker, False, threads, os.getpid(), inherited)
        process = context.Process(target=_serve, args=arguments, daemon=True)
        # Python warns of forks in processes with threads; the fork uses nothing that these threads hold.
        with ignored_warnings(DeprecationWarning), without_working_folder():
            process.start()
        theirs.close()
        return _Process(process=process, pipe=ours, memory=self.options.memory)

    def wait_for_messages(self, busy: Sequence[_Process]) -> list[_Process]:
        ready = wait([remote.pipe for remote in busy], timeout=POLL_SECONDS)
        return [remote for remote in busy if remote.pipe in ready]

    def unfit(self) -> None:
        if self.options.make is None:
            raise HoldfastError(
                "torch has computed gradients in this process, so processes forked from it cannot: "
                "use the executor 'here'."
            )
        self.worker = None  # processes started from now on build their own


def _serve(
    pipe: Connection, source: Any, to_make: bool, threads: int, parent: int, closing: Sequence[Connection]
) -> None:
    """The loop of a worker process: receive a task, send reports and the result.

    Args:
        source: the worker, or with to_make=True the function that builds it.
        closing: inherited connections that this process does not use.
    """
    follow_parent(parent)
    for other in closing:
        other.close()
    torch.set_num_threads(threads)
    worker: Worker | Failure

    def report(records: Sequence[Record], method: str, outputs: Outputs | None = None) -> None:
        _send(pipe, Update(tuple(records), method, outputs))

    try:
        worker = source() if to_make else source
    except Exception as error:
        worker = failure_of(error)
    _send(pipe, Ready(to_make or _has_gradients()))
    while True:
        try:
            # Written by the parent process, over a pipe that nobody else has.
            task: Task = pickle.loads(pipe.recv_bytes())
        except (EOFError, OSError):
            return
        result: TaskResult | Failure
        # SIGINT can be sent to a worker alone; Ctrl-C also reaches the run, which ends its workers.
        with signals.watch_signals(signal.SIGINT, always=True):
            try:
                result = worker if isinstance(worker, Failure) else worker.answer(task, report)
            except Exception as error:
                result = failure_of(error)
            except KeyboardInterrupt as error:
                result = (
                    TaskResult((), interrupted=True)
                    if signals.has_arrived()
                    else Failure(f"it raised {type(error).__name__}")
                )
        _send(pipe, result)


def _send(pipe: Connection, message: Message) -> None:
    """Send a message without being interrupted: half a message would keep the run waiting."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        pipe.send_bytes(pickle.dumps(message))
    except OSError:
        os._exit(1)  # the run has ended
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _has_gradients() -> bool:
    """Whether this process can compute gradients.

    Where torch has GPUs, it computes gradients in threads, and a fork of a process that has started them is
    without these threads.
    """
    try:
        x = torch.ones(1, requires_grad=True)
        torch.autograd.grad((x * x).sum(), x)
    except RuntimeError:
        return False
    return True


def follow_parent(parent: int) -> None:
    """Let this process end with its parent, and be killed before its parent when memory runs out."""
    for number in (signal.SIGINT, signal.SIGTERM):  # the run handles them and ends its workers
        signal.signal(number, signal.SIG_IGN)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PARENT_GONE, signal.SIGKILL)
        with contextlib.suppress(OSError, ValueError):
            score = Path("/proc/self/oom_score_adj")
            score.write_text(str(min(MAX_OOM_SCORE, int(score.read_text()) + BEFORE_THE_RUN)))
    if os.getppid() != parent:
        os._exit(1)
