"""How every measuring command runs: build the problems, solve into a store, show the results."""

import contextlib
import importlib
import math
import os
import re
import shlex
import sys
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from rich.console import Console

from holdfast import memory_budget, signals, time_limit
from holdfast.cli.command import RUNNING_OPTIONS, Command, command_of
from holdfast.cli.options import ModelOptions, Running, TableRunning
from holdfast.cli.parse import bytes_option, check_order
from holdfast.cli.views.live import LiveProgress
from holdfast.cli.views.output import line
from holdfast.errors import BadInput, HoldfastError, StoreError
from holdfast.execution import Executor, InProcess, Local, Task, TaskResult, Worker
from holdfast.execution.asking import NotAnswered, query_in_subprocess
from holdfast.execution.task import Outputs, Tell
from holdfast.execution.worker_pool import GRACE_SECONDS
from holdfast.method import Method, known_methods
from holdfast.network import Network
from holdfast.network.model_identity import NAME_IT
from holdfast.network.text import WordTokenizer
from holdfast.problem import Problem
from holdfast.question import ClassLabel, Means, Question, Request, plain
from holdfast.question import DataDescription as DataAsked
from holdfast.question import ModelDescription as ModelAsked
from holdfast.reading.data import Data
from holdfast.reading.source import OWN, import_only
from holdfast.result import DONE, Key, Record
from holdfast.solver import Choice, RunOutcome, Stop
from holdfast.store import Store

USUAL = Running()
AT_ONCE = 1024  # Inputs in one batch when the classes of inputs are computed (a choice; bounds memory).
FEW = 5  # Failed inputs that are printed one by one; of the others only the number is printed.
SOME_FAILED = 3  # Exit code: some inputs have no result because the model or a method failed.
CONFIRM = "If you trust the author of this run, add --trust."
CODE = "model", "tokenizer", "data", "property", "train"  # Options that may name code.
# Options of the model that do not describe the preparation of inputs.
OUTSIDE = ("model", "trust", "device", "vocabulary", "classes", "fingerprint")


@dataclass(frozen=True)
class Built:
    """A command with everything read and checked.

    A command may omit the fields that its `solve` does not use.
    """

    net: Network
    question: Question
    problems: list[Problem] = field(default_factory=list)
    methods: Choice = ()
    stop: Stop = field(default_factory=Stop)
    data: Data | None = None
    seed: int = 0
    batch: int | None = None
    total: int | None = None  # Total of the progress bar; None: the number of rows.
    extra: Any = None  # Anything else that a command read and needs later.
    afterwards: float = 0.0  # Seconds of the budget reserved for `finish`.
    sort: str = "input"  # Order of the table on the terminal.
    at: float | None = None  # Radius of the sentence below that table; None: `decisive_radius`.
    shard: tuple[int, int] = (0, 1)  # Index of the part to work on (from 0), and the number of parts.

    def mine(self, index: int) -> bool:
        """Whether the input belongs to this shard."""
        return index % self.shard[1] == self.shard[0]


def question_of(command: Command, net: Network, data: Data | None, asked: Request, **means: Any) -> Question:
    """The question as the store keeps it; means: values that differ from the options of the same name."""
    options = command.as_json()
    network = options.get("network", {})
    prepared = {
        name: value
        for name, value in network.items()
        if name not in OUTSIDE and value not in (None, False, [])
    }
    model = ModelAsked(
        name=network.get("model", net.name),
        source=net.source,
        fingerprint=net.fingerprint,
        notes=tuple(net.notes),
        domain=str(net.domain),
        prepared=plain(prepared),
        vocabulary=None if net.vocabulary is None else tuple(net.vocabulary),
        tokenizer=None
        if net.tokenizer is None or isinstance(net.tokenizer, WordTokenizer)
        else net.tokenizer.fingerprint,
    )
    known = DataAsked(classes=net.classes)
    if data is not None:
        names = net.classes if data.classes is None else data.classes
        classes, columns = (None if given is None else tuple(given) for given in (names, data.columns))
        known = DataAsked(options["data"], data.fingerprint, len(data.x), classes, columns)
    asked = asked if net.columns is None else replace(asked, columns=net.columns.to_json())
    used = Means(**{f.name: options[f.name] for f in fields(Means) if f.name in options} | means)
    return Question(command.name, model, known, asked, used, plain(options), os.getcwd())


def begin(command: Command, folder: Path, console: Console, running: Running = USUAL) -> None:
    """Begin a new run. Every error in the options is raised before the folder is created."""
    executor = executor_of(command, running)
    built = _built(command, running)
    with Store.create(folder, built.question) as store:
        command.keep_inputs(store, built)
        _answer(command, store, built, console, executor)


def run_without_saving(command: Command, console: Console, running: Running = USUAL) -> None:
    """Run the command without saving anything."""
    executor = executor_of(command, running)
    built = _built(command, running)
    with TemporaryDirectory(prefix="holdfast-") as folder, Store.create(folder, built.question) as store:
        command.keep_inputs(store, built)
        command.show_question(built, console)
        began = time.monotonic()
        ended = _solve_command(command, store, built, console, executor)
        until = math.inf if built.stop.seconds is None else began + built.stop.seconds
        with (
            query_in_subprocess(closing_seconds(until))
            if not isinstance(executor, InProcess)
            else contextlib.nullcontext()
        ):
            command.show(store, built, console)
        code = signals.exit_code() if ended is None or ended.interrupted else _code(command, store, ended)
    if code:
        sys.exit(code)


def resume(
    folder: Path,
    console: Console,
    running: Running = USUAL,
    seconds: float | None = None,
    *,
    trust: bool = False,
) -> None:
    """Continue a run with the question it was begun with; seconds: a new limit for the search.

    trust: import the code that the folder names, and open .pt2 files: the user trusts the author of the
    folder.
    """
    with Store.open(folder) as store:
        begun = store.question
        options = dict(begun.options) | ({} if seconds is None else {"seconds": seconds})
        if isinstance(options.get("network"), Mapping):
            options["network"] = {**options["network"], "trust": trust}
        if "trust" in options:  # A command that opens a saved monitor.
            options["trust"] = trust
        command = command_of(begun.command, options)
        kept = {
            name: begun.options[name]
            for name in RUNNING_OPTIONS
            if getattr(running, name) is None and name in begun.options
        }
        running = replace(running, **kept)
        executor = executor_of(command, running)
        try:
            with import_only(None if trust else (), CONFIRM):
                built = _built(command, running)
        except StoreError:
            raise
        except HoldfastError as error:
            hint = (
                ""
                if begun.begun_in in ("", os.getcwd())
                else f" The run was begun in {begun.begun_in}: resume it from there."
            )
            raise type(error)(f"{error}{hint}") from error
        check_same_question(built.question, begun)
        if not store.has_inputs():  # The run was killed before it saved its inputs.
            command.keep_inputs(store, built)
        if built.problems:
            done, asked = (
                sum(store.counts().get(status, 0) for status in DONE),
                sum(len(p) for p in built.problems),
            )
            console.print(f"{done} of {asked} finished before; {asked - done} to go.", highlight=False)
        _answer(command, store, built, console, executor)


def _trust_of(command: Command) -> str:
    """' --trust' if `resume` needs it, because the run names code or a .pt2 file."""
    options = command.as_json()
    network = options.get("network") or {}
    given = [str(network.get(name, options.get(name))) for name in CODE]
    code = (
        network.get("trust")
        or options.get("trust")
        or any(":" in name and not name.startswith(OWN) and not Path(name).exists() for name in given)
    )
    return " --trust" if code else ""


def _built(command: Command, running: Running) -> Built:
    """The command with everything read and checked, restricted to its shard."""
    sort, at = (running.sort, running.at) if isinstance(running, TableRunning) else ("input", None)
    check_order(sort, at)
    shard = part_of(running.shard)
    if shard[1] > 1 and not command.parts:
        raise BadInput(
            f"'holdfast {command.name}' is a single problem that cannot be divided: leave --shard out."
        )
    seconds = getattr(command, "seconds", None)
    with time_limit.within(
        math.inf if seconds is None else time.monotonic() + seconds + time_limit.PREPARATION
    ):
        ready = time_limit.interrupt_late(command.build, None)
    if ready is None:
        raise BadInput(
            "reading the model and the data and evaluating the model were not complete "
            f"{time_limit.PREPARATION:g} s after --seconds {seconds:g} had passed. Does the model hang?"
        )
    built = ready
    stored = {name: value for name in RUNNING_OPTIONS if (value := getattr(running, name)) is not None}
    built = replace(
        built,
        shard=shard,
        sort=sort,
        at=at,
        stop=replace(built.stop, each=running.seconds_each),
        question=replace(built.question, options={**built.question.options, **stored}),
    )
    if shard[1] == 1:
        return built
    rows = [
        torch.tensor([row for row, key in enumerate(p.keys) if built.mine(key.index)], dtype=torch.int64)
        for p in built.problems
    ]
    asked = [
        p.take(some.to(p.region.centre.device))
        for p, some in zip(built.problems, rows, strict=True)
        if len(some)
    ]
    if built.problems and not asked:
        raise BadInput(f"--shard {running.shard}: there are fewer inputs than parts, so this one is empty.")
    return replace(built, problems=asked)


def part_of(text: str | None) -> tuple[int, int]:
    """'3/16' -> (2, 16)."""
    if text is None:
        return 0, 1
    found = re.fullmatch(r"(\d+)/(\d+)", text)
    place, many = (int(number) for number in found.groups()) if found else (0, 0)
    if not 1 <= place <= many:
        raise BadInput(
            f"--shard {text!r}: write which part of how many, as in 3/16; parts are counted from 1."
        )
    return place - 1, many


def executor_of(command: Command, running: Running) -> Executor:
    """The executor that --executor names. Its workers share the threads of this process."""
    where, make = (
        running.executor,
        partial(worker_of, command.name, command.as_json(), replace(running, executor="here"), os.getcwd()),
    )
    if where == "here":
        return InProcess()
    if where == "local":
        threads, workers = torch.get_num_threads(), running.workers or 1
        torch.set_num_threads(
            1
        )  # This process starts no thread pool, so that forked workers can start theirs.
        most = bytes_option(running.memory)
        return Local(workers, max(1, threads // workers), make if command.parts else None, most)
    if where == "ray" or where.startswith("ray://"):
        if not command.parts:
            raise BadInput(
                f"'holdfast {command.name}' is a single problem that cannot be divided: use --executor local."
            )
        from holdfast.execution.ray import Ray

        network: ModelOptions | None = getattr(command, "network", None)
        on_card = network is not None and network.device.startswith("cuda")
        return Ray(make, None if where == "ray" else where, running.workers, on_card)
    raise BadInput(f"--executor {where!r} is unknown; there are local, ray, ray://HOST:PORT and here.")


def worker_of(name: str, options: Mapping[str, Any], running: Running, folder: str) -> Worker:
    """The worker of another process, which reads the model and the data again, once."""
    if os.path.isdir(folder):
        os.chdir(folder)
    command, most = command_of(name, options), bytes_option(running.memory)
    with memory_budget.within(memory_budget.remaining_bytes(most)):
        return MemoryLimitedWorker(command.worker(_built(command, running)), most)


def check_same_question(now: Question, begun: Question) -> None:
    """Raise StoreError unless model, data and options equal those of the run."""
    parts = (
        ("model", "is", now.model.fingerprint, begun.model.fingerprint),
        ("vocabulary", "is", now.model.vocabulary, begun.model.vocabulary),
        ("tokenizer", "is", now.model.tokenizer, begun.model.tokenizer),
        ("data", "are", now.data.fingerprint, begun.data.fingerprint),
        ("substitutes", "are", now.asked.substitutes, begun.asked.substitutes),
        ("specification", "is", now.asked.specification, begun.asked.specification),
        ("question", "is", now.fingerprint, begun.fingerprint),
    )
    if "" in (now.model.fingerprint, begun.model.fingerprint):
        raise StoreError(
            "the model of this run cannot be hashed, so it cannot be compared with the model given now, and "
            f"the run cannot be continued. Begin a new one with another --out, and {NAME_IT}."
        )
    for what, verb, mine, theirs in parts:
        if plain(mine) != plain(theirs):
            raise StoreError(
                f"the {what} {verb} not what this run was begun with: the content has changed since. Begin a "
                f"new run with another --out, or restore the old {what}."
            )


@dataclass(frozen=True)
class MemoryLimitedWorker:
    """A worker whose process has a memory limit; it plans for the memory that is left."""

    worker: Worker
    memory: int | None

    def answer(self, task: Task, tell: Tell) -> TaskResult:
        with memory_budget.within(memory_budget.remaining_bytes(self.memory)):
            return self.worker.answer(task, tell)

    def unknown(self, keys: Sequence[Key]) -> list[Record]:
        return self.worker.unknown(keys)

    def question(self, key: Key) -> str:
        return self.worker.question(key)


def methods_named(text: str, problems: Sequence[Problem]) -> list[Method[Any]]:
    """'pgd,certify' -> the methods. BadInput if one is unknown, or if none applies to any of the problems."""
    known = known_methods()
    names = [name.strip().lower() for name in text.split(",")]
    unknown = [name for name in names if name not in known]
    if unknown:
        raise BadInput(f"method {unknown[0]!r} is unknown; there are {', '.join(known)}.")
    methods = [known[name]() for name in dict.fromkeys(names)]
    reasons = {method.name: [method.unfit(problem) for problem in problems] for method in methods}
    if problems and all(all(found) for found in reasons.values()):
        reason = " ".join(f"{name}: {found[0]}" for name, found in reasons.items())
        raise BadInput(f"none of the methods can answer this. {reason}")
    return methods


def keep_inputs(store: Store, built: Built) -> None:
    """Save the inputs of the data by index."""
    net, data = built.net, built.data
    assert data is not None
    is_text = net.vectors is not None
    tokens = [x.tolist() if is_text and not x.is_floating_point() else None for x in data.rows]
    nothing = [None] * len(data.rows)
    store.put_inputs(data.rows, _labels(data, built.question.asked) or nothing, nothing, data.names, tokens)


def _labels(data: Data, asked: Request) -> list[ClassLabel] | None:
    """The class of each input; None if outputs are not classes."""
    if not data.labelled or asked.within is not None:
        return None
    if data.y.dim() == 2 and asked.threshold is not None:
        return _true_outputs(data.y > 0)
    return list(data.y.tolist()) if data.y.dim() == 1 and not data.y.is_floating_point() else None


def _true_outputs(yes: torch.Tensor) -> list[ClassLabel]:
    """(n, outputs) bool -> for each row the indices of the true outputs."""
    return [tuple(k for k, one in enumerate(row) if one) for row in yes.tolist()]


def keep_outputs(store: Store, built: Built) -> Callable[[Outputs], None] | None:
    """A callback that saves the predictions computed when the search begins.

    None if another network is searched.
    """
    if built.data is None or any(problem.network is not built.net for problem in built.problems):
        return None

    def keep(outputs: Outputs) -> None:
        rows = [
            row
            for row, answered in enumerate(outputs.values.isfinite().flatten(1).all(1).tolist())
            if answered
        ]
        classes = _classes(outputs.values[rows], built.question.asked) if rows else None
        if classes is not None:
            store.put_predictions(
                {outputs.keys[row].index: said for row, said in zip(rows, classes, strict=True)}
            )

    return keep


def keep_predictions(store: Store, built: Built) -> None:
    """Compute the predictions that are missing, for inputs that the model could evaluate."""
    missing = store.inputs_without_prediction()
    if missing:
        ask_predictions(store, built, missing & store.queried_inputs())


def ask_predictions(store: Store, built: Built, missing: set[int]) -> None:
    """Compute and save the predictions of these inputs."""
    for problem in built.problems:
        first = {
            key.index: row for row, key in reversed(list(enumerate(problem.keys))) if key.index in missing
        }
        for at in range(0, len(first), AT_ONCE):
            some = dict(list(first.items())[at : at + AT_ONCE])
            rows = torch.tensor(list(some.values()), device=problem.region.centre.device)
            classes = _classes(built.net(problem.region.centre[rows]), built.question.asked)
            store.put_predictions(dict(zip(some, classes, strict=True)) if classes is not None else {})
        missing -= first.keys()


def _classes(outputs: torch.Tensor, asked: Request) -> list[ClassLabel] | None:
    """(n, outputs) -> the class of each row; None if outputs are not classes."""
    if asked.threshold is not None:
        yes = outputs > asked.threshold
        return _true_outputs(yes) if outputs.shape[-1] > 1 else list(yes[:, 0].long().tolist())
    return list(outputs.argmax(-1).tolist()) if asked.within is None and outputs.shape[-1] > 1 else None


def _solve_command(
    command: Command, store: Store, built: Built, console: Console, executor: Executor
) -> RunOutcome | None:
    """Solve with progress on the terminal; None: interrupted before `solve` could end by itself."""
    total = sum(len(p) for p in built.problems) if built.total is None else built.total
    if isinstance(executor, Local) and built.net.differentiable:
        with contextlib.suppress(ImportError):
            importlib.import_module(
                "torch.export._trace"
            )  # Takes more than a second; forked workers inherit it.
    try:
        with (
            warnings.catch_warnings(),
            memory_budget.within(memory_budget.remaining_bytes()),
            LiveProgress(console, command.name, total) as live,
        ):
            warnings.filterwarnings("ignore", message="interrupted")
            return command.solve(store, built, live, executor)
    except KeyboardInterrupt:
        return None


def closing_seconds(until: float) -> float:
    """Seconds for evaluating the model after a search: until the deadline plus GRACE."""
    return max(until - time.monotonic(), 0.0) + GRACE_SECONDS


def _code(command: Command, store: Store, ended: RunOutcome) -> int:
    return command.exit_code(store) or (SOME_FAILED if ended.failed else 0)


def _answer(command: Command, store: Store, built: Built, console: Console, executor: Executor) -> None:
    """Run the search and show its results.

    The first Ctrl-C ends the search and saves everything; a second one ends the writing and showing that
    follows.
    """
    command.show_question(built, console)
    for note in command.notes(built):
        line(console, "note", note, warns=True)
    begun = time.monotonic()
    until = math.inf if built.stop.seconds is None else begun + built.stop.seconds + built.afterwards
    ended = _solve_command(command, store, built, console, executor)
    interrupted = ended is None or ended.interrupted
    with (
        query_in_subprocess(closing_seconds(until))
        if not isinstance(executor, InProcess)
        else contextlib.nullcontext()
    ):
        try:
            if command.predicts and built.data is not None:
                keep_predictions(store, built)
            if not interrupted:
                with time_limit.within(until):
                    command.finish(store, built)
        except NotAnswered as error:
            line(
                console,
                "note",
                f"predictions and classes of the results are not complete: {error}",
                warns=True,
            )
        except KeyboardInterrupt:
            interrupted = True
        command.show(store, built, console)
    if not interrupted and getattr(command, "certificates", False):
        from holdfast.cli.prove import certify_finished_run

        try:
            certify_finished_run(command, built, store, begun, console)
        except KeyboardInterrupt:
            interrupted = True
    reasons, failed = set[str](), dict[int, str]()
    for record in store.stream(light=True):
        reasons.update(record.skipped)
        if record.status == "failed":
            failed.setdefault(record.key.index, record.bracket.note)
    for reason in sorted(reasons):
        line(console, "limit", reason, warns=True)
    for index, why in list(failed.items())[:FEW]:
        line(console, "failed", f"input {index}: {why}", warns=True)
    if len(failed) > FEW:
        line(
            console,
            "failed",
            f"and {len(failed) - FEW} more inputs; their records hold the reasons",
            warns=True,
        )
    if interrupted:
        line(
            console,
            "interrupted",
            "everything found is saved; continue with: holdfast resume "
            f"{shlex.quote(str(store.folder))}{_trust_of(command)}",
            warns=True,
        )
        sys.exit(signals.exit_code())
    line(console, "run", str(store.folder))
    line(console, "next", f"holdfast report {shlex.quote(str(store.folder))}")
    if ended is not None and (code := _code(command, store, ended)):
        sys.exit(code)
