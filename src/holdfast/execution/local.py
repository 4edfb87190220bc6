"""Supervised processes on this machine: one that raises, hangs, runs out of memory or crashes costs its own task and no other.

What travels is pickled: through pipes between this process and its own children, never from a file or from anybody else."""

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
from holdfast.execution.in_process import Here
from holdfast.execution.python_path import without_working_folder
from holdfast.execution.task import Deal, Failure, Outputs, Task, TaskResult, Worker, ending, failure_of
from holdfast.execution.worker_pool import LOOK, Crew, Hand, Lost, Ready, Said, Told
from holdfast.process_state import ignored_warnings
from holdfast.result import Record

PARENT_GONE = 1  # PR_SET_PDEATHSIG
# The kernel ends the process that fills most of the memory, counted in thousandths of it. A worker counts as if it filled so many more:
# enough to go before the run, which holds the model and the data as it does, and not before larger processes that have no part in this.
BEFORE_THE_RUN = 50
SHARES_THREADS = ("lightgbm", "xgboost")  # libraries that may have begun the pool of threads that torch uses


@dataclass(frozen=True)
class Local:
    """workers  processes at a time.
    threads  of torch in each of them.
    make     how a new process gets its worker, where it cannot be a copy of this one: with a GPU, or where processes do not
             fork. A function that can be pickled. Without it such a run is not supervised.
    memory   bytes that one process may fill; one that needs more is ended, and its task tried in halves.
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

    def run(self, worker: Worker, deal: Deal) -> None:
        forks = can_fork()
        if forks or self.make is not None:
            _Processes(size=self.workers, of=self, worker=worker if forks else None).work(deal)
        else:
            Here().run(worker, deal)


def can_fork() -> bool:
    """A card that this process uses is closed to its copies."""
    return sys.platform == "linux" and not torch.cuda.is_initialized()


@dataclass(eq=False, kw_only=True)
class _Process(Hand):
    process: Any
    pipe: Connection
    memory: int | None

    def give(self, task: Task) -> None:
        try:
            self.pipe.send_bytes(pickle.dumps(task))
        except OSError:
            raise self._gone() from None

    def word(self) -> Said:
        try:
            said: Said = pickle.loads(self.pipe.recv_bytes())
        except (EOFError, OSError):
            raise self._gone() from None
        return said

    def _gone(self) -> Lost:
        self.process.join()
        return Lost(ending(self.process.exitcode))

    def end(self) -> None:
        self.process.kill()
        self.process.join()
        self.pipe.close()

    def excess(self) -> str:
        if self.memory is None or memory_budget.held_bytes(self.process.pid) <= self.memory:
            return ""
        return f"it needs more than the {memory_budget.bytes_told(self.memory)} that --memory allows each process"


@dataclass(kw_only=True)
class _Processes(Crew[_Process]):
    of: Local
    worker: Worker | None  # None: every process makes its own

    def hire(self) -> _Process:
        ways: Any = multiprocessing.get_context("spawn" if self.worker is None else "fork")
        ours, theirs = ways.Pipe()
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()  # else the copy would write it again
        # A pool of threads of this process is not there in its copy, and torch would wait for it.
        begun = torch.get_num_threads() != 1 or any(name in sys.modules for name in SHARES_THREADS)
        threads = 1 if self.worker is not None and begun else self.of.threads
        if self.worker is None:
            told: tuple[Any, ...] = (theirs, self.of.make, True, threads, os.getpid(), [])
        else:  # a copy has the ends of all pipes, and none would ever be seen to close
            told = (
                theirs,
                self.worker,
                False,
                threads,
                os.getpid(),
                [ours, *(hand.pipe for hand in self.hands)],
            )
        process = ways.Process(target=_serve, args=told, daemon=True)
        # Python's warning is of threads beside a fork: the copy uses nothing that they hold.
        with ignored_warnings(DeprecationWarning), without_working_folder():
            process.start()
        theirs.close()
        return _Process(process=process, pipe=ours, memory=self.of.memory)

    def wait_for_messages(self, busy: Sequence[_Process]) -> list[_Process]:
        ready = wait([hand.pipe for hand in busy], timeout=LOOK)
        return [hand for hand in busy if hand.pipe in ready]

    def unfit(self) -> None:
        if self.of.make is None:
            raise HoldfastError(
                "torch has computed gradients in this process, so copies of it cannot: use the executor 'here'."
            )
        self.worker = None  # from now on every process builds its own


def _serve(
    pipe: Connection, whom: Any, to_make: bool, threads: int, parent: int, closing: Sequence[Connection]
) -> None:
    """The life of a worker: a task, what is found on the way, the answer, the next task."""
    follow_parent(parent)
    for other in closing:
        other.close()
    torch.set_num_threads(threads)
    worker: Worker | Failure

    def tell(records: Sequence[Record], method: str, outputs: Outputs | None = None) -> None:
        _send(pipe, Told(tuple(records), method, outputs))

    try:
        worker = whom() if to_make else whom
    except Exception as error:
        worker = failure_of(error)
    _send(pipe, Ready(to_make or _has_gradients()))
    while True:
        try:
            task: Task = pickle.loads(pipe.recv_bytes())
        except (EOFError, OSError):
            return
        word: TaskResult | Failure
        with signals.watch_signals(
            signal.SIGINT, always=True
        ):  # for those who interrupt a worker; Ctrl-C reaches the run as well
            try:
                word = worker if isinstance(worker, Failure) else worker.answer(task, tell)
            except Exception as error:
                word = failure_of(error)
            except KeyboardInterrupt as error:
                word = (
                    TaskResult((), interrupted=True)
                    if signals.has_arrived()
                    else Failure(f"it raised {type(error).__name__}")
                )
        _send(pipe, word)


def _send(pipe: Connection, word: Said) -> None:
    """All of it or nothing: half a word would keep the run waiting."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        pipe.send_bytes(pickle.dumps(word))
    except OSError:
        os._exit(1)  # nobody is there to hear it
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _has_gradients() -> bool:
    """Where torch knows GPUs it computes gradients in threads, and a copy of a process that has begun them is without."""
    try:
        x = torch.ones(1, requires_grad=True)
        torch.autograd.grad((x * x).sum(), x)
    except RuntimeError:
        return False
    return True


def follow_parent(parent: int) -> None:
    """A worker ends with the run, and where memory runs out it goes before the run does that holds as much."""
    for number in (signal.SIGINT, signal.SIGTERM):  # The run is told of them, and ends its workers.
        signal.signal(number, signal.SIG_IGN)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PARENT_GONE, signal.SIGKILL)
        with contextlib.suppress(OSError, ValueError):
            place = Path("/proc/self/oom_score_adj")
            place.write_text(str(min(1000, int(place.read_text()) + BEFORE_THE_RUN)))
    if os.getppid() != parent:
        os._exit(1)
