"""Check a stored run: compare it with its model and data, and recompute its bounds.

The folder is not changed.
"""

import contextlib
import itertools
import json
import math
import random
import secrets
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

from holdfast.api.check import Doubt, prove_again, replay_witnesses
from holdfast.batch_solver import BatchWorker
from holdfast.commands.built import Built, ask_predictions
from holdfast.commands.command import Command, command_of
from holdfast.errors import BadInput, Contradiction, HoldfastError, StoreError
from holdfast.evidence.finding import Finding, State
from holdfast.problem import Problem
from holdfast.question import Question, plain
from holdfast.reading.source import import_only
from holdfast.result import Key, Record, has_proof, has_witness
from holdfast.solver import BatchSettings, Stop
from holdfast.store import Store, StoredInput, database

SUMMARY: dict[State, str] = {
    "ok": "all held",
    "differs": "something differs",
    "unchecked": "not all of it could be checked",
}
AT_ONCE = 128  # Counterexamples in one batch (a choice; bounds memory).
# Results of commands that are stored outside the records.
NOT_IN_RECORDS = {"saliency": "saliency maps", "testgen": "tests and coverage"}
CONFIRM = "If you trust it, name it yourself (--model, --data, --with OPTION=NAME)."
ELSEWHERE = {"verify": "spec"}  # Commands whose data are another option than `data`.


@dataclass(frozen=True)
class CheckSettings:
    """What to check, and against which files.

    files: the model, data and other files of the run where they are now, by option.
    sample: number of proved bounds to recompute; None: all.
    trust: open .pt2 files, which can run code.
    """

    files: Mapping[str, str]
    sample: int | None = 25
    seed: int = field(default_factory=lambda: secrets.randbelow(2**31))
    seconds: float | None = None
    tolerance: float = 1e-3
    trust: bool = False


@dataclass(frozen=True)
class CheckResult:
    """The findings; true if everything agrees."""

    findings: tuple[Finding, ...]

    @property
    def state(self) -> State:
        """The state of the worst finding."""
        states = {one.state for one in self.findings}
        return "differs" if "differs" in states else "unchecked" if "unchecked" in states else "ok"

    def __bool__(self) -> bool:
        return self.state == "ok"

    def __str__(self) -> str:
        return "\n".join([*(str(one) for one in self.findings), f"check: {SUMMARY[self.state]}"])


def check(
    folder: str | Path,
    *,
    model: str | None = None,
    data: object = None,
    files: Mapping[str, str] | None = None,
    trust: bool = False,
    sample: int | None = 25,
    tolerance: float = 1e-3,
    stop: Stop | None = None,
) -> CheckResult:
    """Check a run as `holdfast check` does: seals, hashes, every counterexample, and proved bounds again.

    Args:
        folder: the run folder.
        model, data: where they are now, as `--model` and `--data` take them; None: where the run found them.
        files: other files of the run, by option.
        trust: whether a model file may be opened that can run code (.pt2), as in `hf.Network.from_export`.
        sample: number of proved bounds to recompute, drawn at random; None: all.
        tolerance: accept a recomputed bound that is smaller by at most this fraction.
        stop: its seconds limit the recomputation; None: as long as the run took.
    """
    if data is not None and not isinstance(data, str | Path):
        raise BadInput(
            f"data is {type(data).__name__}: a run is checked against the file or package.module:function "
            "that it was given."
        )
    given = {name: str(value) for name, value in (("model", model), ("data", data)) if value is not None}
    seconds = None if stop is None else stop.seconds
    wanted = CheckSettings(
        {**given, **(files or {})}, sample, seconds=seconds, tolerance=tolerance, trust=trust
    )
    return CheckResult(tuple(findings(Path(folder), wanted)))


def findings(run: Path, wanted: CheckSettings | None) -> Iterator[Finding]:
    """The findings, in the order of the checks. wanted: None checks the run alone, without its model.

    StoreError if there is no readable run.
    """
    if not (run / database.FILE).is_file():
        raise StoreError(f"{run}: no run here ({database.FILE} is missing).")
    with TemporaryDirectory(prefix="holdfast-check-") as place:
        for name in (database.FILE, database.LOG):
            if (run / name).is_file():
                shutil.copyfile(run / name, Path(place) / name)
        try:
            file = Path(place) / database.FILE
            with (
                database.report_damage(file),
                contextlib.closing(database.connect_reader(file)) as connection,
            ):
                database.check_pages(connection, file)
            store = Store.read(place)
        except HoldfastError as error:
            yield Finding("seals", "differs", str(error).replace(place, str(run)))
            return
        with store:
            for one in _of_store(store, wanted):
                details = tuple(text.replace(place, str(run)) for text in one.details)
                yield replace(one, told=one.told.replace(place, str(run)), details=details)


def _of_store(store: Store, wanted: CheckSettings | None) -> Iterator[Finding]:
    whole, wrong, excluded = dict[Key, Record](), list[str](), list[str]()
    for found in store.iterate_readable():
        if isinstance(found, Record):
            whole[found.key] = found
        else:
            (excluded if isinstance(found, Contradiction) else wrong).append(str(found))
    inputs = 0
    try:
        inputs = sum(1 for _ in store.stream_inputs(light=True))
    except StoreError as error:
        wrong.append(str(error))
    if excluded:
        yield Finding(
            "contradiction",
            "differs",
            "a proved bound and a counterexample contradict each other",
            tuple(excluded),
        )
    text = f"{inputs} inputs and {len(whole)} records are as they were written"
    yield Finding(
        "seals",
        "differs" if wrong else "ok",
        f"{text}; {len(wrong)} are not" if wrong else text,
        tuple(wrong),
    )

    if wanted is None:
        return
    begun = store.question
    try:
        command, built = build_again(begun, wanted.files, wanted.trust)
    except HoldfastError as error:
        yield Finding(
            "question",
            "unchecked",
            f"the question cannot be rebuilt: {error}{_where(begun, wanted.files)}",
        )
        return
    yield from _hashes(built.question, begun, wanted.files)
    if inputs:
        yield _inputs(command, built, store)
    if not built.problems and command.name != "verify":
        yield Finding(
            "records",
            "unchecked",
            f"the numbers of 'holdfast {command.name}' are not bounds with a counterexample or a proof",
        )
        return
    yield from _records(store, command, built, whole, wanted)


def build_again(begun: Question, files: Mapping[str, str], trust: bool) -> tuple[Command, Built]:
    """The command of the run, with the files where they are now, and everything that it reads.

    Only code that the caller names is run, never code that the run names.
    """
    command = _command_again(begun, files, trust)
    with import_only(files.values(), CONFIRM):
        return command, command.build()


def _command_again(begun: Question, files: Mapping[str, str], trust: bool) -> Command:
    options: dict[str, Any] = json.loads(json.dumps(plain(begun.options)))
    network = options.get("network") if isinstance(options.get("network"), dict) else None
    for name, file in files.items():
        own = ELSEWHERE.get(begun.command, name) if name == "data" else name
        if network is not None and own in network:
            network[own] = [file] if isinstance(network[own], list) else file
        elif own in options and own != "network":
            options[own] = file
        else:
            raise BadInput(
                f"'holdfast {begun.command}' has no {own}, so {file} has no meaning for this run. Leave it "
                "out."
            )
    if network is not None:
        network["trust"] = trust
    if "trust" in options:  # A command that opens a saved monitor.
        options["trust"] = trust
    return command_of(begun.command, options)


def _where(begun: Question, files: Mapping[str, str]) -> str:
    """A hint for a file that was not found."""
    away = f" The run was begun in {begun.begun_in}." if begun.begun_in else ""
    return (
        f"{away} Say where its files are now: --model, --data, and --with OPTION=FILE for others."
        if len(files) < 2
        else away
    )


def _hashes(now: Question, begun: Question, files: Mapping[str, str]) -> Iterator[Finding]:
    hashes = {
        "model": (now.model.fingerprint, begun.model.fingerprint),
        "data": (now.data.fingerprint, begun.data.fingerprint),
    }
    for what, (own, text) in hashes.items():
        if own is None and text is None:
            continue
        if not own or not text:
            yield Finding(what, "unchecked", "it was not hashed, so it cannot be compared")
        elif own == text:
            yield Finding(what, "ok", f"same as in the run, sha256 {own}")
        else:
            yield Finding(what, "differs", f"the run has {text}, this is {own}")
    mine, theirs = _bare(now), _bare(begun)
    if mine.fingerprint == theirs.fingerprint:
        yield Finding("question", "ok", "options and files define the question of the run")
        return
    name, here, there = mine.differs(theirs) or (
        "how the model is read",
        mine.model.prepared,
        theirs.model.prepared,
    )
    yield Finding(
        "question",
        "differs",
        f"{name} is {_short(there)} in the run, {_short(here)} by its options and files",
    )


def _bare(question: Question) -> Question:
    """The question without the hashes of model and data, and without the names of instances."""
    model, data, asked = question.model, question.data, question.asked
    contents = None if asked.specification is None else [instance[2:] for instance in asked.specification]
    asked = replace(asked, specification=contents)
    return replace(
        question, model=replace(model, fingerprint=None), data=replace(data, fingerprint=None), asked=asked
    )


def _short(value: Any) -> str:
    text = str(plain(value))
    return text if len(text) <= 80 else f"{text[:80]}…"


def _inputs(command: Command, built: Built, store: Store) -> Finding:
    """Compare the stored inputs with the inputs and predictions computed now."""
    with (
        TemporaryDirectory(prefix="holdfast-check-") as folder,
        Store.create(folder, built.question) as rebuilt,
    ):
        command.keep_inputs(rebuilt, built)
        try:
            if command.predicts and built.data is not None:
                ask_predictions(rebuilt, built, rebuilt.inputs_without_prediction())
        except HoldfastError as error:
            return Finding("inputs", "unchecked", f"the model cannot be evaluated at them: {error}")
        fresh = itertools.chain(rebuilt.stream_inputs(), itertools.repeat(None))
        wrong = [
            text
            for one, other in zip(store.stream_inputs(), fresh, strict=False)
            if (text := _other(one, other))
        ]
    text = (
        "stored inputs and predictions agree with data and model"
        if not wrong
        else f"{len(wrong)} differ from the stored ones"
    )
    return Finding("inputs", "differs" if wrong else "ok", text, tuple(wrong))


def _other(one: StoredInput, other: StoredInput | None) -> str:
    """How a stored input differs from that of the data; empty if it does not."""
    if (
        other is None
        or one.index != other.index
        or not np.array_equal(one.x, other.x)
        or one.tokens != other.tokens
    ):
        return f"input {one.index}: its values differ from the data"
    if (one.label, one.name) != (other.label, other.name):
        stored, given = f"labelled {one.label}, named {one.name!r}", f"{other.label}, {other.name!r}"
        return f"input {one.index}: {stored}; in the data {given}"
    if one.prediction not in (None, other.prediction):
        return f"input {one.index}: the network predicts {other.prediction}, not {one.prediction}"
    return ""


def _records(
    store: Store, command: Command, built: Built, whole: Mapping[Key, Record], wanted: CheckSettings
) -> Iterator[Finding]:
    able = sorted(key for key, record in whole.items() if has_proof(record))
    few = wanted.sample is None or wanted.sample >= len(able)
    chosen = set(able if few else random.Random(wanted.seed).sample(able, wanted.sample or 0))
    until = math.inf if wanted.seconds is None else time.monotonic() + wanted.seconds
    strange, doubts, met, total = list[str](), list[Doubt](), 0, 0
    seen, tried = set[Key](), set[Key]()
    try:
        for part in command.portions(built):
            held: dict[Key, bool] = {}
            total += sum(map(len, part.problems))
            worker = BatchWorker(part.problems, part.methods, part.stop, part.seed)
            for problem in part.problems:
                for some, records in stored_rows(store, problem, whole):
                    seen.update(record.key for record in records)
                    strange += [
                        f"input {r.key}"
                        for r in records
                        if worker.question(r.key) != r.question or r.goal != problem.goal
                    ]
                    rows = [row for row, record in enumerate(records) if has_witness(record)]
                    shown = [records[row] for row in rows]
                    device = problem.region.centre.device
                    found = list(replay_witnesses(problem.take(some[rows].to(device)), shown)) if rows else []
                    met += len(rows)
                    doubts += found
                    held |= {record.key: True for record in shown} | {doubt.key: False for doubt in found}
            mine = [key for problem in part.problems for key in problem.keys if key in chosen]
            if mine:
                usual = math.inf if part.stop.seconds is None else part.stop.seconds
                seconds = (
                    usual
                    if wanted.seconds is None
                    else max(0.0, until - time.monotonic()) * len(mine) / len(chosen - tried)
                )
                doubts += prove_again(
                    part.problems,
                    part.methods,
                    part.stop,
                    store.load_known(mine),
                    BatchSettings(part.seed, part.batch),
                    held=held,
                    tolerance=wanted.tolerance,
                    seconds=seconds,
                )
                tried.update(mine)
        strange += [f"input {key}: not a part of the question" for key in whole if key not in seen]
        yield _questions(store, strange, len(whole), total)
    except HoldfastError as error:
        yield Finding("records", "unchecked", f"the model cannot be evaluated as in the run: {error}")
    yield from _judge(doubts, met, tried, len(able), wanted)
    estimates = any(record.bracket.estimates for record in whole.values())
    unchecked = NOT_IN_RECORDS.get(
        command.name, "estimates, which prove nothing" if estimates and not (met or able) else ""
    )
    if unchecked:
        yield Finding(
            "the rest", "unchecked", f"this command's results are {unchecked}: they are not checked"
        )


def stored_rows(
    store: Store, problem: Problem, whole: Mapping[Key, Record]
) -> Iterator[tuple[torch.Tensor, list[Record]]]:
    """The rows of a problem that have an intact record, with the records, batch by batch."""
    every = torch.tensor([row for row, key in enumerate(problem.keys) if key in whole], dtype=torch.int64)
    for some in every.split(AT_ONCE) if len(every) else ():
        keys = [problem.keys[row] for row in some.tolist()]
        known = store.load_known(keys)
        yield some, [known[key] for key in keys]


def _questions(store: Store, strange: Sequence[str], many: int, total: int) -> Finding:
    if not strange:
        silent = f"; {total - many} of {total} inputs have none" if many < total else ""
        return Finding(
            "records",
            "ok",
            f"all {many} belong to this model, these data and these options{silent}",
        )
    versions = store.provenance.get("torch"), torch.__version__
    text = f"{len(strange)} of {many} belong to another model, other data or other options"
    if versions[0] != versions[1]:
        text += f"; but the run used torch {versions[0]}, and torch {versions[1]} may export it differently"
    return Finding("records", "unchecked" if versions[0] != versions[1] else "differs", text, tuple(strange))


def _judge(
    doubts: Sequence[Doubt], met: int, tried: set[Key], able: int, wanted: CheckSettings
) -> Iterator[Finding]:
    by_kind = {
        kind: tuple(str(doubt) for doubt in doubts if doubt.kind == kind)
        for kind in ("contradiction", "witness", "unproved")
    }
    if by_kind["contradiction"]:
        text = (
            "a counterexample contradicts a proved bound: one of them is wrong, or the model is another one. "
            "Trust neither"
        )
        yield Finding("contradiction", "differs", text, by_kind["contradiction"])
    missed = by_kind["witness"]
    text = (
        f"{met - len(missed)} of {met} lie in their region and change the result as claimed"
        if met
        else "none are claimed"
    )
    yield Finding("witnesses", "differs" if missed else "ok", text, missed)
    if not tried:
        text = f"none of {able} were proved again, as requested" if able else "none are claimed"
        yield Finding("proofs", "unchecked" if able else "ok", text)
        return
    again = tried - {doubt.key for doubt in doubts if doubt.kind != "witness"}
    drawn = f", drawn with seed {wanted.seed} from {able}" if len(tried) < able else ""
    text = f"{len(again)} of {len(tried)} were proved again{drawn}"
    more = (
        "; this does not refute the others: give more --seconds, or use the machine of the run"
        if by_kind["unproved"]
        else ""
    )
    yield Finding("proofs", "differs" if by_kind["unproved"] else "ok", text + more, by_kind["unproved"])
