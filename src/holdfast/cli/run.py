"""The line that every measuring command walks: options, question, problems, solve into a store, show what is known."""

import os
import shlex
import sys
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from rich.console import Console

from holdfast.cli.command import Command, command_of
from holdfast.cli.reading.data import Data
from holdfast.cli.views.live import Live
from holdfast.cli.views.output import line
from holdfast.errors import BadInput, HoldfastError, StoreError
from holdfast.method import Method, known_methods
from holdfast.network import Network
from holdfast.problem import Problem
from holdfast.question import Asked, Means, Question, plain
from holdfast.question import Data as DataAsked
from holdfast.question import Model as ModelAsked
from holdfast.result import Record
from holdfast.solver import Choice, Stop
from holdfast.store import Store

OUTSIDE = ("model", "trust", "device", "vocabulary")  # of the model's options: the rest says how its inputs are prepared


@dataclass(frozen=True)
class Built:
    """A command with everything read and checked. What `solve` does not need, a command may leave out."""

    net: Network
    question: Question
    problems: list[Problem] = field(default_factory=list)
    methods: Choice = ()
    stop: Stop = field(default_factory=Stop)
    data: Data | None = None
    seed: int = 0
    batch: int | None = None
    total: int | None = None  # of the progress bar; the number of rows where nothing is said
    extra: Any = None  # whatever else a command read and needs again


def question_of(command: Command, net: Network, data: Data | None, asked: Asked, **means: Any) -> Question:
    """What the store remembers. means: those that are not what the command's options of the same name say."""
    options = command.as_json()
    told = options.get("network", {})
    prepared = {name: value for name, value in told.items() if name not in OUTSIDE and value not in (None, False, [])}
    model = ModelAsked(
        name=told.get("model", net.name), source=net.source, fingerprint=net.fingerprint, notes=tuple(net.notes),
        domain=str(net.domain), prepared=plain(prepared), vocabulary=None if net.vocabulary is None else tuple(net.vocabulary),
    )  # fmt: skip
    known = DataAsked()
    if data is not None:
        known = DataAsked(options["data"], data.fingerprint, len(data.x), None if data.classes is None else tuple(data.classes))
    used = Means(**{f.name: options[f.name] for f in fields(Means) if f.name in options} | means)
    return Question(command.name, model, known, asked, used, plain(options), os.getcwd())


def begin(command: Command, folder: Path, console: Console) -> None:
    """A new run. Everything that can be wrong is found before the folder is made."""
    built = command.build()
    with Store.create(folder, built.question) as store:
        command.keep_inputs(store, built)
        _answer(command, store, built, console)


def once(command: Command, console: Console) -> None:
    """An answer of which nothing is kept."""
    built = command.build()
    with TemporaryDirectory(prefix="holdfast-") as folder, Store.create(folder, built.question) as store:
        command.keep_inputs(store, built)
        records = _solved(command, store, built, console)
        command.show(store, built, console)
        code = 130 if _interrupted(records) else command.exit_code(store)
    if code:
        sys.exit(code)


def resume(folder: Path, console: Console) -> None:
    """A run that exists, with the very question it was begun with."""
    with Store.open(folder) as store:
        begun = store.question
        command = command_of(begun.command, begun.options)
        try:
            built = command.build()
        except StoreError:
            raise
        except HoldfastError as error:
            hint = "" if begun.begun_in in ("", os.getcwd()) else f" The run was begun in {begun.begun_in}: resume it from there."
            raise type(error)(f"{error}{hint}") from error
        same(built.question, begun)
        if not store.inputs():  # killed before they were written
            command.keep_inputs(store, built)
        if built.problems:
            done, asked = len(store.finished()), sum(len(p) for p in built.problems)
            console.print(f"{done} of {asked} finished before; {asked - done} to go.", highlight=False)
        _answer(command, store, built, console)


def same(now: Question, begun: Question) -> None:
    """StoreError where what is read now is not what the run was begun with."""
    parts = (
        ("model", "is", now.model.fingerprint, begun.model.fingerprint),
        ("vocabulary", "is", now.model.vocabulary, begun.model.vocabulary),
        ("data", "are", now.data.fingerprint, begun.data.fingerprint),
        ("substitutes", "are", now.asked.substitutes, begun.asked.substitutes),
        ("specification", "is", now.asked.specification, begun.asked.specification),
        ("question", "is", now.fingerprint, begun.fingerprint),
    )
    for what, verb, mine, theirs in parts:
        if plain(mine) != plain(theirs):
            raise StoreError(
                f"the {what} {verb} not what this run was begun with: the content has changed since. Begin a new run with another --out, "
                f"or put the old {what} back."
            )


def methods_named(text: str, problems: Sequence[Problem]) -> list[Method[Any]]:
    """'pgd,certify' -> the methods. BadInput where one is unknown, or where none of them can answer any of the problems."""
    known = known_methods()
    names = [name.strip().lower() for name in text.split(",")]
    unknown = [name for name in names if name not in known]
    if unknown:
        raise BadInput(f"method {unknown[0]!r} is unknown; there are {', '.join(known)}.")
    methods = [known[name]() for name in dict.fromkeys(names)]
    reasons = {method.name: [method.unfit(problem) for problem in problems] for method in methods}
    if problems and all(all(found) for found in reasons.values()):
        told = " ".join(f"{name}: {found[0]}" for name, found in reasons.items())
        raise BadInput(f"none of the methods can answer this. {told}")
    return methods


def keep_inputs(store: Store, built: Built) -> None:
    """The inputs of the data and what the network says of them, by their place."""
    net, data = built.net, built.data
    assert data is not None
    said: dict[int, int] = {}
    for problem in built.problems:
        first = {key.index: row for row, key in reversed(list(enumerate(problem.keys))) if key.index not in said}
        if first:
            rows = torch.tensor(list(first.values()), device=problem.region.centre.device)
            classes = net(problem.region.centre[rows]).argmax(-1).tolist()
            said.update(zip(first, classes, strict=True))
    is_text = net.vectors is not None
    store.put_inputs(
        data.rows,
        data.y.tolist(),
        [said.get(i) for i in range(len(data.x))],
        data.names,
        [x.tolist() if is_text and not x.is_floating_point() else None for x in data.rows],
    )


def _solved(command: Command, store: Store, built: Built, console: Console) -> list[Record] | None:
    """None: interrupted where `solve` could not end by itself."""
    total = sum(len(p) for p in built.problems) if built.total is None else built.total
    try:
        with warnings.catch_warnings(), Live(console, command.name, total) as live:
            warnings.filterwarnings("ignore", message="interrupted")
            return command.solve(store, built, live)
    except KeyboardInterrupt:
        return None


def _interrupted(records: list[Record] | None) -> bool:
    return records is None or any(r.status == "interrupted" for r in records)


def _answer(command: Command, store: Store, built: Built, console: Console) -> None:
    """Ctrl-C once ends the search and keeps everything; a second one ends at once what is still being written or shown."""
    for note in command.notes(built):
        line(console, "note", note, warns=True)
    records = _solved(command, store, built, console)
    interrupted = _interrupted(records)
    try:
        if not interrupted:
            command.finish(store, built)
    except KeyboardInterrupt:
        interrupted = True
    command.show(store, built, console)
    for reason in sorted({reason for r in records or store.records() for reason in r.skipped}):
        line(console, "limit", reason, warns=True)
    if interrupted:
        line(
            console,
            "interrupted",
            f"everything found so far is kept; go on with: holdfast resume {shlex.quote(str(store.folder))}",
            warns=True,
        )
        sys.exit(130)
    line(console, "run", str(store.folder))
    line(console, "next", f"holdfast report {shlex.quote(str(store.folder))}")
    if code := command.exit_code(store):
        sys.exit(code)
