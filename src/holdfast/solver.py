"""The solver: problems in, records out; every improvement is stored as soon as it is found.

`solve` prepares the questions, splits them into units (batches that share a network and a shape), has the
scheduler (`holdfast.execution.scheduler`) distribute the units to workers, and collects their records.
"""

import contextlib
import math
import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import torch

from holdfast import time_limit
from holdfast.batch_solver import BatchWorker, Choice, apply_other_records
from holdfast.batch_state import Stop, Work
from holdfast.errors import BadInput, HoldfastError, StoreError
from holdfast.execution import InProcess
from holdfast.execution.asking import NotAnswered, query_in_subprocess
from holdfast.execution.scheduler import InMemorySink, Progress, RunOutcome, Scheduler, Sink, Unit, Workload
from holdfast.execution.task import Executor, Outputs, Task, TaskResult, Tell
from holdfast.execution.worker_pool import GRACE_SECONDS
from holdfast.network.model_identity import NAME_IT
from holdfast.problem import Problem
from holdfast.result import DONE, Bracket, Goal, Key, Record, trivial_bound

__all__ = [
    "BatchSettings",
    "Choice",
    "Progress",
    "RunOutcome",
    "Sink",
    "Stop",
    "answer_in_turn",
    "ask",
    "solve",
]
AT_ONCE = 1024  # Records read from the store at once, which bounds memory; chosen by hand.
# Time kept for replaying the counterexamples of each part for the others, as a share of the budget and in checks of the
# model, which are a forward pass of two inputs where the model was checked before. Each of three parts replays two
# counterexamples in float32 and float64. Chosen by hand.
COMBINING_SHARE = 0.1
COMBINING_CHECKS = 4


@dataclass(frozen=True)
class BatchSettings:
    """How questions are solved in batches.

    Attributes:
        seed: decides every random number.
        rows: of a batch at most. None: 128, on a GPU 1,024.
        hashed: records hold the hash of their question, by which a store recognises them.
    """

    seed: int = 0
    rows: int | None = None
    hashed: bool = True

    def __post_init__(self) -> None:
        if self.rows is not None and self.rows < 1:
            raise BadInput(f"batch must be at least 1, got {self.rows}.")


def solve(
    problems: Iterable[Problem],
    methods: Choice,
    stop: Stop | None = None,
    *,
    seed: int = 0,
    batch: int | None = None,
    store: Sink | None = None,
    progress: Callable[[Progress], None] | None = None,
    executor: Executor | None = None,
) -> list[Record]:
    """Answer every problem with every applicable method, or with the methods that `methods` chooses for it.

    Problems that share a network and a shape are solved in batches of at most `batch` rows (default: 128, on
    a GPU 1,024), on the given executor (default: in this process). The scheduler retries a failed batch (out
    of memory, for example) in halves. An input that fails alone is skipped, and its record gives the reason.

    Rows that the store holds as finished are not solved again; interrupted rows resume from their stored
    bounds. A store with answers to other questions is refused. Ctrl-C ends the search, keeps all results, and
    marks unfinished rows as interrupted. If the proof and the counterexample of a row contradict each other,
    a Contradiction is raised after all other rows are done and stored.

    Args:
        problems: what to answer.
        methods: instances of `Method`, or a function that chooses them for a problem.
        stop: when to give up. None: when every method has done all it can.
        seed: decides every random number.
        batch: rows of a batch at most.
        store: keeps every record while it is made: `Store.create(folder)`.
        progress: called with every report.
        executor: where batches are solved.

    Returns:
        One record for each row of each problem, in order.
    """
    asked, found = list(problems), InMemorySink(store)
    ask(
        asked,
        methods,
        stop,
        BatchSettings(seed, batch, hashed=store is not None),
        store=found,
        progress=progress,
        executor=executor,
    )
    keys = [key for problem in asked for key in problem.keys]
    records = found.load_known(keys)
    return [records[key] for key in keys]


def ask(
    problems: Sequence[Problem],
    methods: Choice,
    stop: Stop | None = None,
    settings: BatchSettings | None = None,
    *,
    store: Sink,
    progress: Callable[[Progress], None] | None = None,
    executor: Executor | None = None,
    outputs: Callable[[Outputs], None] | None = None,
) -> RunOutcome:
    """Like `solve`, but write the records to the store only, so that memory does not grow with their number.

    Args:
        outputs: Called with the model's outputs at the inputs of each batch, as soon as they are known.
    """
    stop, settings = stop or Stop(), settings or BatchSettings()
    stop = stop if stop.began is not None else stop.begin()
    until = math.inf if stop.seconds is None else time.monotonic() + (stop.remaining_seconds() or 0.0)

    def prepare() -> tuple[BatchWorker, set[Key], float]:
        check_seconds = 0.0
        for problem in problems:
            began = time.monotonic()
            problem.check()
            check_seconds = time.monotonic() - began
        worker = BatchWorker(problems, methods, stop, settings.seed, hashed=settings.hashed)
        if len(worker) != sum(len(problem) for problem in problems):
            raise BadInput("two questions share a key; give every row of every problem its own key.")
        return worker, _done(worker, store), check_seconds

    with time_limit.within(until + time_limit.PREPARATION):
        prepared = time_limit.interrupt_late(prepare, None)
    if prepared is None:
        time_limit.raise_if_expired()  # The budget is the one of a caller that can do without the result.
        names = ", ".join(dict.fromkeys(problem.network.name for problem in problems))
        raise BadInput(
            f"{names}: the model was not evaluated on two inputs, traced and hashed within "
            f"{time_limit.PREPARATION:g} s after the budget was used up. Give a larger budget, or a "
            "smaller model."
        )
    worker, done, check_seconds = prepared
    related = _related_keys(problems)
    seconds = stop.remaining_seconds()
    if related and seconds is not None:
        seconds -= min(COMBINING_SHARE * seconds, COMBINING_CHECKS * len(worker) * check_seconds)
    dealer = Scheduler(
        worker,
        Workload(worker.units(done, settings.rows), len(worker), len(done), related),
        store,
        progress=progress,
        outputs=outputs,
        seconds=seconds,
    )
    ended = dealer.run(executor)
    faults = list(ended.faults)
    if related:
        supervised = executor is not None and not isinstance(executor, InProcess)
        closing = max(until, time.monotonic()) + (GRACE_SECONDS if supervised else 0.0)
        nothing: list[HoldfastError] = []
        with (
            time_limit.within(closing),
            query_in_subprocess(closing - time.monotonic()) if supervised else contextlib.nullcontext(),
        ):
            faults += time_limit.interrupt_late(lambda: _combine_parts(problems, store, related), nothing)
    if ended.interrupted:
        warnings.warn(
            "interrupted: all results so far are kept, the rest is marked as interrupted.", stacklevel=2
        )
    if faults:
        more = f" The same is true of {len(faults) - 1} more." if len(faults) > 1 else ""
        raise type(faults[0])(f"{faults[0]}{more}")
    return ended


def _done(worker: BatchWorker, store: Sink) -> set[Key]:
    """The keys that the store holds as finished with the same methods and settings.

    Raises:
        StoreError: The store holds an answer to another question.
    """
    done: set[Key] = set()
    for problem in worker.problems:
        if problem.keys:
            # This traces the network, so that forked workers need not.
            worker.question_hashes(problem.keys[0])
        for at in range(0, len(problem), AT_ONCE):
            for key, record in store.load_known(problem.keys[at : at + AT_ONCE]).items():
                if not problem.network.fingerprint:
                    raise StoreError(
                        f"the store holds an answer for input {key}, but {problem.network.name} cannot be "
                        "hashed, so it cannot be checked that the answer is for the same network. "
                        f"Use another store (--out), and {NAME_IT}."
                    )
                question, means = worker.question_hashes(key)
                _same(record, question)
                if record.status in DONE and record.means == means:
                    done.add(key)
    return done


def _same(record: Record, question: str) -> None:
    if record.question != question:
        raise StoreError(
            f"the store holds an answer for input {record.key} that belongs to another question: the "
            "network, the input, the region or the property differs"
            f"{'' if record.question else ' (it was written by an older version)'}. "
            "Use another store (--out), or repeat the stored question."
        )


def _related_keys(problems: Sequence[Problem]) -> Callable[[Key], Sequence[Key]] | None:
    """A function from a key to the keys of all parts of the same question, or None if no question has several
    parts.
    """
    if not any(problem.keys and problem.keys[0].part for problem in problems):
        return None
    places: dict[tuple[int, int | None], list[Key]] = {}
    for problem in problems:
        for key in problem.keys:
            places.setdefault((key.index, key.frame), []).append(key)
    return lambda key: places[key.index, key.frame]


def _combine_parts(
    problems: Sequence[Problem], store: Sink, related: Callable[[Key], Sequence[Key]]
) -> list[HoldfastError]:
    """Replay each part's counterexamples for the other parts of its question: a late one may improve an early
    record.
    """
    faults: list[HoldfastError] = []
    for problem in problems:
        for at in range(0, len(problem) if problem.keys[0].part else 0, AT_ONCE):
            every = store.load_known(
                [other for key in problem.keys[at : at + AT_ONCE] for other in related(key)]
            )
            rows = range(at, min(at + AT_ONCE, len(problem)))
            some = [
                row
                for row in rows
                if problem.keys[row] in every and every[problem.keys[row]].status not in ("refuted", "failed")
            ]
            if some:
                asked = problem.take(torch.tensor(some, device=problem.region.centre.device))
                try:
                    better, wrong = _collect_records(
                        asked, [every[key] for key in asked.keys], every.values()
                    )
                except NotAnswered:  # The records stay as they are.
                    continue
                store.write(better)
                faults += wrong
    return faults


def _collect_records(
    asked: Problem, known: Sequence[Record], others: Iterable[Record]
) -> tuple[list[Record], list[HoldfastError]]:
    brackets, others = [record.oriented for record in known], list(others)
    shown = any(
        bound.evidence.witness is not None
        for record in others
        for bound in (record.bracket.lower, record.bracket.upper)
    )
    twin = asked.network.double(asked.region.centre) if shown else None
    work = Work(asked.lowest(), (asked.goal,) * len(asked), brackets, twin=twin)
    faults = apply_other_records(work, others)
    heard = zip(known, work.records("finished"), strict=True)
    return [
        replace(old, bracket=new.bracket, status=new.status if new.status != "finished" else old.status)
        for old, new in heard
    ], faults


def answer_in_turn(
    worker: "SequentialQuestions",
    places: Sequence[int],
    stop: Stop,
    *,
    store: Sink,
    progress: Callable[[Progress], None] | None = None,
    executor: Executor | None = None,
) -> RunOutcome:
    """Answer the questions with these indices one after the other, with `solve`'s guarantees on stores,
    budgets and Ctrl-C.

    Questions that were not reached have no record.
    """
    units, done, total = list[Unit](), 0, 0
    for keys, question in (worker.questions[place] for place in places):
        found = store.load_known(list(keys))
        for record in found.values():
            _same(record, question)
        finished = sum(record.status in DONE for record in found.values())
        done, total = done + finished, total + len(keys)
        if finished < len(keys):
            units.append(
                Unit(tuple(keys), whole=True, seconds=float("inf") if stop.each is None else stop.each)
            )
    return Scheduler(
        worker,
        Workload(units, total, done),
        store,
        seconds=stop.remaining_seconds(),
        progress=progress,
        blanks=False,
    ).run(executor)


@dataclass(frozen=True)
class SequentialQuestions:
    """Questions that are no `Problem`, such as the scores of a sequence, and the function that answers the
    one at an index.

    questions  for each question its keys and its hash.
    """

    questions: Sequence[tuple[Sequence[Key], str]]
    reply: Callable[[int], Sequence[Record]]
    goal: Goal

    def answer(self, task: Task, tell: Tell) -> TaskResult:
        nothing: Sequence[Record] = ()  # An interrupted question has no record yet; a resumed run repeats it.
        with time_limit.within(time.monotonic() + task.seconds):
            records = time_limit.in_time(lambda: self.reply(task.keys[0].index), nothing)
        return TaskResult(tuple(replace(record, question=self.question(record.key)) for record in records))

    def question(self, key: Key) -> str:
        return self.questions[key.index][1]

    def unknown(self, keys: Sequence[Key]) -> list[Record]:
        nothing = Bracket(trivial_bound(0.0), trivial_bound(1.0))
        return [
            Record(key, nothing, "stopped", 0.0, 0, question=self.question(key), goal=self.goal)
            for key in keys
        ]
