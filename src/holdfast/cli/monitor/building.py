"""Fit and export monitors."""

import json
import math
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Literal

from rich.console import Console

from holdfast.cli.commands.monitor import ExportPrism, Fit
from holdfast.cli.views.output import check_folder, line
from holdfast.commands.options import ModelOptions
from holdfast.commands.parse import one_of
from holdfast.commands.reading.model import load_network
from holdfast.commands.reading.monitors import (
    DEFAULT_MODEL_NOTE,
    EMBEDDED,
    HOW,
    SequenceRows,
    check_mutation,
    embedded_sequences,
    limit_rows,
    load_rows,
    mutation_of,
    open_monitor,
    output_of,
    rows_for,
)
from holdfast.datasets import helpdesk
from holdfast.errors import BadInput, StoreError
from holdfast.monitor import Monitor, Mutation
from holdfast.monitor.abstract.marble import Marble, Refinement
from holdfast.monitor.abstract.prism import write
from holdfast.monitor.abstract.traces import profile
from holdfast.monitor.monitor import Mode
from holdfast.monitor.reading import Reader, has_unknown, unknown_token
from holdfast.monitor.saving import JSON
from holdfast.network import Network
from holdfast.network.text import Unknown
from holdfast.reading.read_settings import ReadSettings
from holdfast.reading.source import OWN

LONGEST = 4096  # Longest sequence of a monitor fitted here, in elements (a choice; bounds memory).


# ---- fit


def fit_monitor(q: Fit, folder: Path, console: Console) -> None:
    mode, unknown = one_of(q.mode, "mode", Literal["auto", Mode]), one_of(q.unknown, "unknown", Unknown)
    output = output_of(q.answer)
    check_mutation(q.mutation, embedded=q.network is None)
    check_folder(folder, JSON)
    if q.network is None:
        line(console, "note", DEFAULT_MODEL_NOTE)
    net = helpdesk.network() if q.network is None else load_network(q.network)
    mutation = mutation_of(q.mutation, net)
    if net.vectors is None or (unknown == "unk" and not has_unknown(net)):
        unknown = "error"  # There is no token for unknown words.
    rows = _training(q, Reader(net, unknown, unknown_token(net, None) if unknown == "unk" else None, LONGEST))
    made = Monitor.fit(
        net,
        rows.sequences,
        mutation,
        answer=output,
        mode=mode,
        unknown=unknown,
        samples=q.samples,
        confidence=q.confidence,
        seed=q.seed,
        max_length=LONGEST,
        omega=q.omega,
        theta=q.theta,
    )
    made.save(folder)
    print_notes(net, console)
    _keep(folder, q.network, rows.classes if net.classes is None else list(net.classes))
    line(
        console,
        "monitor",
        f"{type(mutation).__name__} for {net.name}, mode {made.settings.mode}{_attackable(mutation, net)}",
    )
    line(
        console,
        "written",
        f"{folder}; now: holdfast monitor score {folder} "
        + ("--trust " if _needs_trust(q.network) else "")
        + ('"some text"' if net.vocabulary else "sequences.npz"),
    )


def _needs_trust(network: ModelOptions | None) -> bool:
    """Whether opening the monitor needs --trust: its model is code or a .pt2 file."""
    named = () if network is None else (network.model, network.tokenizer or "")
    return any(":" in name and not name.startswith(OWN) for name in named) or (
        network is not None and network.trust
    )


def print_notes(net: Network, console: Console) -> None:
    for note in net.notes:
        line(console, "note", note, warns=True)


def _training(q: Fit, reader: Reader) -> SequenceRows:
    if q.data is None and q.network is None:
        return limit_rows(embedded_sequences("train"), q.limit)
    if q.data is None:
        if q.mode in ("abstract", "marble"):
            raise BadInput(f"mode {q.mode} learns from sequences: give them with --data.")
        return SequenceRows([], [])
    return load_rows(
        q.data, reader, q.limit, ReadSettings(text_column=q.text_column, label_column=q.label_column)
    )


def _attackable(mutation: Mutation, net: Network) -> str:
    if not mutation.finite or net.vectors is None:
        return ""
    counts = mutation.table(range(len(net.vectors))).counts
    return f"; {int((counts > 1).sum())} of {len(counts)} tokens have substitutes"


# ---- folders


def _keep(folder: Path, network: ModelOptions | None, classes: list[str] | None) -> None:
    """Save how to read the model again; paths stay as given."""
    content = {"model": EMBEDDED if network is None else asdict(network), "classes": classes}
    try:
        (folder / HOW).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        raise StoreError(f"{folder / HOW}: cannot be written ({error}).") from error


# ---- export


def export_prism(q: ExportPrism, console: Console) -> None:
    if not (q.theta > 0 and math.isfinite(q.theta)):
        raise BadInput(f"theta {q.theta}: the allowed error must be a number above 0.")
    check_folder(q.prism, "marble.tra")
    note = partial(line, console, "note")
    opened = open_monitor(q.folder, note, q.device, trust=q.trust)
    how = ReadSettings(text_column=q.text_column, label_column=q.label_column)
    rows = (
        limit_rows(embedded_sequences("train"), q.limit)
        if q.data is None and opened.embedded
        else rows_for(opened, q.data, q.limit, note, how)
    )
    monitor = opened.monitor
    if not monitor.mutation.finite or monitor.view is None:
        raise BadInput(
            "the abstract model needs a finite mutation and a recurrent layer with readable states in "
            f"{monitor.net.name}."
        )
    traces = profile(
        monitor.net,
        [monitor.read(s) for s in rows.sequences],
        monitor.mutation,
        monitor.outputs,
        monitor.view,
    )
    mdp = Marble.fit(traces, Refinement(theta=q.theta, seed=q.seed)).mdp
    written = write(mdp, q.prism, labels=opened.classes)
    line(
        console,
        "abstract model",
        f"{mdp.states} states, {mdp.inputs} abstract inputs, from {len(traces)} transitions",
    )
    line(console, "written", ", ".join(str(path) for path in written))
