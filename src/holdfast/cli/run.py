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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from rich.console import Console

from holdfast import memory_budget, signals, time_limit
from holdfast.cli.measuring import view_of
from holdfast.cli.prove import certify_finished_run
from holdfast.cli.views.live import LiveProgress
from holdfast.cli.views.output import line
from holdfast.commands.built import Built, check_same_question, keep_predictions
from holdfast.commands.command import RUNNING_OPTIONS, Command, command_of
from holdfast.commands.options import ModelOptions, Running, TableRunning
from holdfast.commands.parse import bytes_option, check_order
from holdfast.commands.stored_claims import check_given_names, keep_claims
from holdfast.errors import BadInput, HoldfastError, StoreError
from holdfast.execution import Executor, InProcess, Local, Task, TaskResult, Worker
from holdfast.execution.asking import NotAnswered, query_in_subprocess
from holdfast.execution.task import Tell
from holdfast.execution.worker_pool import GRACE_SECONDS
from holdfast.network.recording import calls_in_order
from holdfast.reading.source import OWN, import_only
from holdfast.result import DONE, Key, Record
from holdfast.solver import RunOutcome
from holdfast.store import Store

USUAL = Running()
FEW = 5  # Failed inputs that are printed one by one; of the others only the number is printed.
SOME_FAILED = 3  # Exit code: some inputs have no result because the model or a method failed.
CONFIRM = "If you trust the author of this run, add --trust."
# Options that may name code.
CODE = "model", "tokenizer", "data", "property", "train", "input_scaler", "output_scaler"


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
        view_of(command).show_question(command, built, console)
        began = time.monotonic()
        ended = _solve_command(command, store, built, console, executor)
        until = math.inf if built.stop.seconds is None else began + built.stop.seconds
        with (
            query_in_subprocess(closing_seconds(until))
            if not isinstance(executor, InProcess)
            else contextlib.nullcontext()
        ):
            view_of(command).show(command, store, built, console)
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
        ready = time_limit.interrupt_late(lambda: _build_command(command), None)
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


def _build_command(command: Command) -> Built:
    """The command with everything read and checked, its names of inputs and outputs included."""
    built = command.build()
    check_given_names(built, getattr(command, "names", None))
    return built


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


def _solve_command(
    command: Command, store: Store, built: Built, console: Console, executor: Executor
) -> RunOutcome | None:
    """Solve with progress on the terminal; None: interrupted before `solve` could end by itself."""
    total = sum(len(p) for p in built.problems) if built.total is None else built.total
    if isinstance(executor, Local) and built.net.differentiable and not calls_in_order(built.net.module):
        with contextlib.suppress(ImportError):
            # Takes more than a second; forked workers inherit it.
            importlib.import_module("torch.export._trace")
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
    view_of(command).show_question(command, built, console)
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
                    if hasattr(command, "names") and built.problems:
                        keep_claims(store, built, command.names)
                    command.finish(store, built)
                    view_of(command).write_files(command, store, built)
        except NotAnswered as error:
            line(
                console,
                "note",
                f"predictions and classes of the results are not complete: {error}",
                warns=True,
            )
        except KeyboardInterrupt:
            interrupted = True
        view_of(command).show(command, store, built, console)
    if not interrupted and getattr(command, "certificates", False):
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
