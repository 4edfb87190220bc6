"""One run from question to table: build the network and the problems, solve into the store, show what is known."""

import sys
import warnings
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from holdfast.api import default_methods, radius_problems
from holdfast.attacks import CLEVER, PGD, CarliniWagner, Corners
from holdfast.certify import Certify
from holdfast.cli.live import Live
from holdfast.cli.load import Data, load_data, load_network, load_substitutes
from holdfast.cli.question import RadiusQuestion, frames_option, whole_numbers
from holdfast.errors import BadInput, StoreError
from holdfast.method import Method
from holdfast.network import Network
from holdfast.problem import Problem
from holdfast.report.table import table
from holdfast.result import Record
from holdfast.solver import Stop, solve
from holdfast.store import Store

METHODS: dict[str, type[Method[Any]]] = {"pgd": PGD, "carlini": CarliniWagner, "corners": Corners, "clever": CLEVER, "certify": Certify}


def begin(question: RadiusQuestion, folder: Path, console: Console) -> list[Record]:
    """A new run. Everything that can be wrong is found before the folder is made."""
    net, data, problems, methods = _build(question)
    about = {"command": "radius", "asked": question.as_json(), **describe(question, net, data)}
    with Store.create(folder, about) as store:
        _keep_inputs(store, net, data, problems)
        return _solve(store, question, net, problems, methods, console)


def resume(folder: Path, console: Console) -> list[Record]:
    """A run that exists, with the very question it was begun with."""
    with Store.open(folder) as store:
        about = store.question
        question = RadiusQuestion.from_json(about["asked"])
        net, data, problems, methods = _build(question)
        for what, now in (("model", net.fingerprint), ("data", data.fingerprint)):
            if about[what]["fingerprint"] != now:
                raise StoreError(
                    f"{folder}: the {what} {about[what]['name']} is not the one this run was begun with (its fingerprint differs). "
                    f"Begin a new run, or put the old {what} back."
                )
        done, asked = len(store.finished()), sum(len(p) for p in problems)
        console.print(f"{done} of {asked} finished before; {asked - done} to go.")
        return _solve(store, question, net, problems, methods, console)


def _build(q: RadiusQuestion) -> tuple[Network, Data, list[Problem], list[Method[Any]]]:
    net = load_network(q.network)
    data = load_data(q.data, net, scale=q.scale).limited(q.limit)
    targets = whole_numbers(q.targets, "targets")
    if targets is not None and len(targets) == 1:
        targets = targets * len(data.x)
    sets = None if q.substitutes is None else load_substitutes(q.substitutes, net)
    problems = radius_problems(
        net,
        data.x,
        data.y,
        norm=q.norm,
        frames=frames_option(q.frames),
        targets=targets,
        substitutes=sets,
        lengths=data.lengths,
    )
    return net, data, problems, _methods(q, net)


def _methods(q: RadiusQuestion, net: Network) -> list[Method[Any]]:
    if q.methods is None:
        return default_methods(net, "radius", q.tier, words=q.substitutes is not None)
    names = [name.strip().lower() for name in q.methods.split(",")]
    unknown = [name for name in names if name not in METHODS]
    if unknown:
        raise BadInput(f"method {unknown[0]!r} is unknown; there are {', '.join(METHODS)}.")
    return [METHODS[name]() for name in names]


def describe(q: RadiusQuestion, net: Network, data: Data) -> dict[str, Any]:
    """What a reader of the run wants to know, beside the question itself."""
    return {
        "model": {
            "name": q.network.model,
            "source": net.source,
            "fingerprint": net.fingerprint,
            "notes": list(net.notes),
        },
        "data": {"name": q.data, "fingerprint": data.fingerprint, "count": len(data.x)},
        "norm": "words" if q.substitutes else str(q.norm),
        "frames": q.frames,
        "targets": q.targets,
        "tier": q.tier,
        "seed": q.seed,
        "classes": data.classes,
        "vocabulary": None if net.vocabulary is None else list(net.vocabulary),
        "domain": str(net.domain),
        "stop": {"seconds": q.seconds, "queries": q.queries, "gap": q.gap},
    }


def _keep_inputs(store: Store, net: Network, data: Data, problems: list[Problem]) -> None:
    """The inputs and what the network says of them, by their place in the data."""
    said: dict[int, int] = {}
    for problem in problems:
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


def _solve(
    store: Store, q: RadiusQuestion, net: Network, problems: list[Problem], methods: list[Method[Any]], console: Console
) -> list[Record]:
    for note in net.notes:
        console.print(f"[yellow]note:[/] {note}")
    stop = Stop(q.seconds, q.queries, q.gap)
    with warnings.catch_warnings(record=True) as caught, Live(console, "radius") as live:
        warnings.simplefilter("always")
        records = solve(problems, methods, stop, seed=q.seed, batch=q.batch, store=store, progress=live)
    console.print(table(store))
    for reason in sorted({reason for r in records for reason in r.skipped}):
        console.print(f"[yellow]not used:[/] {reason}", highlight=False)
    if any("interrupted" in str(w.message) for w in caught):
        console.print(f"interrupted: everything found so far is kept; go on with: holdfast resume {store.folder}", soft_wrap=True)
        sys.exit(130)
    console.print(f"run: {store.folder}   next: holdfast report {store.folder}", soft_wrap=True)
    return records
