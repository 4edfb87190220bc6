"""Supervised processes on this machine: one that raises, hangs, runs out of memory or crashes costs its own task and no other."""

import contextlib
import ctypes
import io
import multiprocessing
import os
import pickle
import signal
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import torch

from holdfast.errors import BadInput, HoldfastError
from holdfast.execution.here import Here
from holdfast.execution.task import Answer, Deal, Failure, Task, Worker, ending, said
from holdfast.result import Record

FIRST = 10.0  # seconds, or a fifth of its time if that is more, in which a model must have answered at the inputs
GRACE = 5.0  # seconds, and a tenth of its time, after which a worker that should have ended is taken to hang
PARENT_GONE = 1  # PR_SET_PDEATHSIG


@dataclass(frozen=True)
class Local:
    """workers  processes at a time.
    threads  of torch in each of them.
    make     how a new process gets its worker, where it cannot be a copy of this one: with a graphics card, or where processes do not
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
        if not forks and self.make is None:
            Here().run(worker, deal)
            return
        crew = _Crew(self, worker if forks else None)
        try:
            while crew.fill(deal):
                crew.listen(deal)
        except KeyboardInterrupt:
            deal.interrupt()  # what the workers told is kept
        finally:
            crew.dismiss()


def can_fork() -> bool:
    """A card that this process uses is closed to its copies."""
    return sys.platform == "linux" and not torch.cuda.is_initialized()


@dataclass
class _Hand:
    """One process, what it is at, and since when."""

    process: Any
    pipe: Connection
    task: Task | None = None
    since: float = 0.0
    ready: bool = False  # it has its worker
    answered: bool = False  # the model did, at the inputs of the task

    def overdue(self, now: float) -> bool:
        assert self.task is not None
        passed, allowed = now - self.since, self.task.seconds
        too_long = passed > allowed + GRACE + allowed / 10 or (not self.answered and passed > max(FIRST, allowed / 5))
        return self.ready and too_long

    def resident(self) -> int:
        with contextlib.suppress(OSError, IndexError, ValueError):
            return int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        return 0


@dataclass
class _Crew:
    of: Local
    worker: Worker | None  # None: every process makes its own
    hands: list[_Hand] = field(default_factory=list)

    def fill(self, deal: Deal) -> bool:
        """Give everyone something to do. False: there is nothing left, and nothing in work."""
        for hand in self.hands:
            if hand.task is None and (task := deal.next()) is not None:
                self._give(hand, task, deal)
        while len(self.hands) < self.of.workers and (task := deal.next()) is not None:
            self.hands.append(self._hired())
            self._give(self.hands[-1], task, deal)
        return any(hand.task is not None for hand in self.hands)

    def listen(self, deal: Deal) -> None:
        """Wait for the next word of anyone, or until somebody is overdue."""
        busy = [hand for hand in self.hands if hand.task is not None]
        ready = wait([hand.pipe for hand in busy], timeout=0.5)
        for hand in busy:
            assert hand.task is not None
            if hand.pipe in ready:
                self._hear(hand, hand.task, deal)
            elif hand.overdue(time.monotonic()):
                late = f"it had not come back after {time.monotonic() - hand.since:.0f} s and was ended"
                self._lose(hand, deal, Failure(late, late=hand.answered))
            elif self.of.memory is not None and hand.resident() > self.of.memory:
                self._lose(hand, deal, Failure(f"it needs more than the {self.of.memory / 2**30:.3g} GiB of --memory"))

    def dismiss(self) -> None:
        for hand in list(self.hands):
            self._end(hand)

    def _hired(self) -> _Hand:
        ways: Any = multiprocessing.get_context("spawn" if self.worker is None else "fork")
        ours, theirs = ways.Pipe()
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()  # else the copy would write it once more
        # A pool of threads of this process is not there in its copy, and torch would wait for it.
        threads = self.of.threads if self.worker is None or torch.get_num_threads() == 1 else 1
        if self.worker is None:
            told: tuple[Any, ...] = (theirs, self.of.make, True, threads, os.getpid(), [])
        else:  # a copy has the ends of all pipes, and none would ever be seen to close
            told = (theirs, self.worker, False, threads, os.getpid(), [ours, *(hand.pipe for hand in self.hands)])
        process = ways.Process(target=_serve, args=told, daemon=True)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # Python's, of threads beside a fork: the copy uses nothing that they hold
            process.start()
        theirs.close()
        return _Hand(process, ours)

    def _give(self, hand: _Hand, task: Task, deal: Deal) -> None:
        hand.task, hand.since, hand.answered = task, time.monotonic(), False
        try:
            hand.pipe.send_bytes(pickle.dumps(task))
        except OSError:
            self._lose(hand, deal, None)

    def _hear(self, hand: _Hand, task: Task, deal: Deal) -> None:
        try:
            word = pickle.loads(hand.pipe.recv_bytes())
        except (EOFError, OSError):
            self._lose(hand, deal, None)
            return
        if isinstance(word, _Ready):
            hand.ready, hand.since = True, time.monotonic()
            if not word.fit:
                self._begin_anew(hand, task, deal)
            return
        if isinstance(word, Told):
            hand.answered = True
            deal.heard(task, word.records, word.method)
            return
        hand.task = None
        if isinstance(word, Answer):
            deal.ended(task, word)
        else:
            assert isinstance(word, Failure)
            deal.failed(task, word)

    def _begin_anew(self, hand: _Hand, task: Task, deal: Deal) -> None:
        """Copies of this process cannot compute gradients: from now on every process builds its own worker."""
        if self.of.make is None:
            raise HoldfastError("torch has computed gradients in this process, so copies of it cannot: use the executor 'here'.")
        self.worker = None
        self._end(hand)
        self.hands.append(self._hired())
        self._give(self.hands[-1], task, deal)

    def _lose(self, hand: _Hand, deal: Deal, failure: Failure | None) -> None:
        """Its process is gone, or has to go."""
        assert hand.task is not None
        if failure is None:
            hand.process.join()
            failure = Failure(ending(hand.process.exitcode))
        self._end(hand)
        deal.failed(hand.task, failure)

    def _end(self, hand: _Hand) -> None:
        self.hands.remove(hand)
        hand.process.kill()
        hand.process.join()
        hand.pipe.close()


@dataclass(frozen=True)
class _Ready:
    """Where a process builds its worker itself, that takes a while. fit: it can compute gradients."""

    fit: bool


@dataclass(frozen=True)
class Told:
    records: tuple[Record, ...]
    method: str


def _serve(pipe: Connection, whom: Any, to_make: bool, threads: int, parent: int, closing: Sequence[Connection]) -> None:
    """The life of a worker: a task, what is found on the way, the answer, the next task."""
    _follow(parent)
    for other in closing:
        other.close()
    torch.set_num_threads(threads)
    worker: Worker | Failure
    try:
        worker = whom() if to_make else whom
    except Exception as error:
        worker = failure_of(error)
    _send(pipe, _Ready(to_make or _has_gradients()))
    while True:
        try:
            task: Task = pickle.loads(pipe.recv_bytes())
        except (EOFError, OSError):
            return
        word: Answer | Failure
        signal.signal(signal.SIGINT, signal.default_int_handler)  # for those who interrupt a worker; Ctrl-C reaches the run as well
        try:
            word = worker if isinstance(worker, Failure) else worker.answer(task, lambda *told: _send(pipe, Told(tuple(told[0]), told[1])))
        except Exception as error:
            word = failure_of(error)
        except KeyboardInterrupt:
            word = Answer((), interrupted=True)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        _send(pipe, word)


def failure_of(error: Exception) -> Failure:
    with contextlib.suppress(Exception):
        pickle.load(io.BytesIO(pickle.dumps(error)))
        return Failure(said(error), error=error)
    return Failure(said(error))


def _send(pipe: Connection, word: object) -> None:
    """All of it or nothing: half a word would keep the run waiting."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        pipe.send_bytes(pickle.dumps(word))
    except OSError:
        os._exit(1)  # nobody is there to hear it
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _has_gradients() -> bool:
    """Where torch knows graphics cards it computes gradients in threads, and a copy of a process that has begun them is without."""
    try:
        x = torch.ones(1, requires_grad=True)
        torch.autograd.grad((x * x).sum(), x)
    except RuntimeError:
        return False
    return True


def _follow(parent: int) -> None:
    """A worker ends with the run and is the first to go where memory runs out."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PARENT_GONE, signal.SIGKILL)
        with contextlib.suppress(OSError):
            Path("/proc/self/oom_score_adj").write_text("1000")
    if os.getppid() != parent:
        os._exit(1)
