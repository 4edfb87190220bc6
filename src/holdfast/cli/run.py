"""One run from question to table: build the network and the problems, solve into the store, show what is known."""

import json
import os
import shlex
import sys
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from holdfast.api.radius import default_methods, measured, radius_problems
from holdfast.attacks import CLEVER, PGD, CarliniWagner, Corners, Mesh
from holdfast.certify import Certify, Enumerate, Smoothing, Split, Tighten
from holdfast.cli.aside import check_saliency, keep_answers, keep_saliency
from holdfast.cli.data import Data, load_data, load_mask, load_substitutes
from holdfast.cli.live import Live
from holdfast.cli.model import load_network
from holdfast.cli.output import line
from holdfast.cli.question import RadiusQuestion, frames_option, numbers, targets_option, values_option
from holdfast.errors import BadInput, HoldfastError, StoreError
from holdfast.hamming import Branch, Greedy, Grid
from holdfast.method import Method
from holdfast.network import Network
from holdfast.network.fingerprint import of_text
from holdfast.problem import Problem
from holdfast.report.table import table
from holdfast.solver import Stop, solve
from holdfast.store import Store

METHODS: dict[str, type[Method[Any]]] = {
    "certify": Certify, "tighten": Tighten, "split": Split, "enumerate": Enumerate,
    "greedy": Greedy, "branch": Branch, "grid": Grid, "pgd": PGD, "carlini": CarliniWagner, "corners": Corners, "clever": CLEVER,
    "mesh": Mesh, "smoothing": Smoothing,
}  # fmt: skip


@dataclass(frozen=True)
class Built:
    """A question with everything read and checked."""

    question: RadiusQuestion
    net: Network
    data: Data
    problems: list[Problem]
    methods: list[Method[Any]]
    stop: Stop
    about: dict[str, Any]  # what the store remembers


def begin(question: RadiusQuestion, folder: Path, console: Console) -> None:
    """A new run. Everything that can be wrong is found before the folder is made."""
    built = _build(question)
    with Store.create(folder, built.about) as store:
        _keep_inputs(store, built)
        _solve(store, built, console)


def resume(folder: Path, console: Console) -> None:
    """A run that exists, with the very question it was begun with."""
    with Store.open(folder) as store:
        about = store.question
        question = RadiusQuestion.from_json(about.get("asked", {}))
        try:
            built = _build(question, about)
        except StoreError:
            raise
        except HoldfastError as error:
            elsewhere = about.get("begun_in", os.getcwd())
            hint = "" if elsewhere == os.getcwd() else f" The run was begun in {elsewhere}: resume it from there."
            raise type(error)(f"{error}{hint}") from error
        if not store.inputs():  # killed before they were written
            _keep_inputs(store, built)
        done, asked = len(store.finished()), sum(len(p) for p in built.problems)
        console.print(f"{done} of {asked} finished before; {asked - done} to go.", highlight=False)
        _solve(store, built, console)


def _build(q: RadiusQuestion, begun: Mapping[str, Any] | None = None) -> Built:
    """`begun`: what the store remembers of a run that is resumed; the same things must be there again."""
    stop = Stop(q.seconds, q.queries, q.gap)
    frames, scale = frames_option(q.frames), numbers(q.frame_scale, "frame-scale")
    targets_option(q.targets, 1)  # a word that is none is told before the model is read
    values = values_option(q.values)
    net = load_network(q.network)
    methods = _methods(q, net)
    words = None if net.vocabulary is None else list(net.vocabulary)
    about: dict[str, Any] = {
        "command": "radius",
        "asked": q.as_json(),
        "begun_in": os.getcwd(),
        "model": {"name": q.network.model, "source": net.source, "fingerprint": net.fingerprint, "notes": list(net.notes)},
        "vocabulary": words,
    }
    _same(about, begun, "model")
    _same(about, begun, "vocabulary")
    data = load_data(q.data, net, scale=q.scale).limited(q.limit)
    about["data"] = {"name": q.data, "fingerprint": data.fingerprint, "count": len(data.x)}
    _same(about, begun, "data")
    if q.saliency:
        check_saliency(q, net, data)
    sets = None if q.substitutes is None else load_substitutes(q.substitutes, net)
    about["substitutes"] = sorted([word, sorted(many)] for word, many in sets.items()) if isinstance(sets, dict) else sets
    _same(about, begun, "substitutes")
    problems = radius_problems(
        net, data.x, data.y, norm=q.norm, frames=frames, shares=scale, targets=targets_option(q.targets, len(data.x)),
        substitutes=sets[: q.limit] if isinstance(sets, list) else sets, unit=q.unit,
        free=None if q.free is None else load_mask(q.free, data.x), values=values, lengths=data.lengths,
    )  # fmt: skip
    if q.methods is not None:
        _check_methods(methods, problems)
    about |= {
        "norm": "words" if q.substitutes else f"{q.norm:g}",
        "frames": q.frames,
        "frame_scale": q.frame_scale,
        "unit": q.unit,
        "targets": q.targets,
        "tier": q.tier,
        "seed": q.seed,
        "classes": data.classes,
        "domain": str(net.domain),
        "stop": {"seconds": q.seconds, "queries": q.queries, "gap": q.gap},
    }
    asked = {name: value for name, value in about["asked"].items() if name != "saliency"}  # a map beside the answer is no other question
    spec = json.dumps([asked, about["substitutes"], words], sort_keys=True)
    about["spec"] = {"fingerprint": of_text(spec)}
    return Built(q, net, data, problems, methods, stop, about)


def _same(about: Mapping[str, Any], begun: Mapping[str, Any] | None, what: str) -> None:
    if begun is None:
        return
    now, then = (side.get(what) for side in (about, begun))
    if isinstance(now, dict) and isinstance(then, dict):
        now, then = now["fingerprint"], then.get("fingerprint")
    if now != then:
        verb = "are" if what in ("data", "substitutes") else "is"
        raise StoreError(
            f"the {what} {verb} not what this run was begun with: the content has changed since. Begin a new run with another --out, or "
            f"put the old {what} back."
        )


def _methods(q: RadiusQuestion, net: Network) -> list[Method[Any]]:
    if q.methods is None:
        return default_methods(net, "radius", q.tier, what=measured(q.norm, q.substitutes), mode=q.mode, arithmetic=q.arithmetic)
    names = [name.strip().lower() for name in q.methods.split(",")]
    unknown = [name for name in names if name not in METHODS]
    if unknown:
        raise BadInput(f"method {unknown[0]!r} is unknown; there are {', '.join(METHODS)}.")
    return [METHODS[name]() for name in dict.fromkeys(names)]


def _check_methods(methods: list[Method[Any]], problems: list[Problem]) -> None:
    """Chosen methods of which none applies would run to an empty answer."""
    reasons = {method.name: [method.obstacle(problem) for problem in problems] for method in methods}
    if all(all(found) for found in reasons.values()):
        told = " ".join(f"{name}: {found[0]}" for name, found in reasons.items())
        raise BadInput(f"none of the methods can answer this. {told}")


def _keep_inputs(store: Store, built: Built) -> None:
    """The inputs and what the network says of them, by their place in the data."""
    net, data = built.net, built.data
    said: dict[int, int] = {}
    for problem in built.problems:
        first = {key.index: row for row, key in reversed(list(enumerate(problem.keys)))}
        rows = torch.tensor(list(first.values()), device=problem.region.centre.device)
        classes = net(problem.region.centre[rows]).argmax(-1).tolist()
        said.update(zip(first, classes, strict=True))
    rows_of = data.x if data.lengths is None else [x[:n] for x, n in zip(data.x, data.lengths, strict=True)]
    is_text = net.vectors is not None
    store.put_inputs(
        rows_of,
        data.y.tolist(),
        [said[i] for i in range(len(rows_of))],
        data.names,
        [x.tolist() if is_text and not x.is_floating_point() else None for x in rows_of],
    )


def _solve(store: Store, built: Built, console: Console) -> None:
    for note in built.net.notes:
        line(console, "note", note, warns=True)
    total = sum(len(p) for p in built.problems)
    q, interrupted = built.question, False
    try:
        with warnings.catch_warnings(), Live(console, "radius", total) as live:
            warnings.filterwarnings("ignore", message="interrupted")
            records = solve(built.problems, built.methods, built.stop, seed=q.seed, batch=q.batch, store=store, progress=live)
        keep_answers(store, built.problems, q.batch)
        if q.saliency and not any(r.status == "interrupted" for r in records):
            keep_saliency(store, q, built.net, built.data)
    except KeyboardInterrupt:  # a second one, or one before the first step
        records, interrupted = store.records(), True
    console.print(table(store), highlight=False)
    for reason in sorted({reason for r in records for reason in r.skipped}):
        line(console, "not used", reason, warns=True)
    if interrupted or any(r.status == "interrupted" for r in records):
        line(
            console,
            "interrupted",
            f"everything found so far is kept; go on with: holdfast resume {shlex.quote(str(store.folder))}",
            warns=True,
        )
        sys.exit(130)
    line(console, "run", str(store.folder))
    line(console, "next", f"holdfast report {shlex.quote(str(store.folder))}")
