"""Fit, open and export monitors, and read the sequences to score."""

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal

from rich.console import Console

from holdfast.cli.commands.monitor import Fit
from holdfast.cli.options import ModelOptions
from holdfast.cli.parse import norm_option, numbers, one_of
from holdfast.cli.reading.model import load_network
from holdfast.cli.views.output import check_folder, line
from holdfast.datasets import helpdesk
from holdfast.errors import BadInput, StoreError, UnreadableFile
from holdfast.files import explained_errors, read_json, read_text, require_file
from holdfast.monitor import Bins, Classes, Groups, Monitor, Mutation, Noise, Output, Tolerance, Typos
from holdfast.monitor.monitor import Mode
from holdfast.monitor.reading import Reader, has_unknown, unknown_token
from holdfast.monitor.saving import JSON
from holdfast.network import Network
from holdfast.network.text import Unknown
from holdfast.reading.data import PLAIN, load_data, load_substitutes, read_texts
from holdfast.reading.read_settings import ReadSettings
from holdfast.reading.source import OWN, import_only

EMBEDDED = "helpdesk"
LONGEST = 4096  # Longest sequence of a monitor fitted here, in elements (a choice; bounds memory).
DEFAULT_MODEL_NOTE = (
    "no model given: using the help desk LSTM that ships with holdfast, with its sets of substitutes"
)
HOW = "model.json"
CONFIRM = "If you trust the author of this monitor, add --trust."
MADE = "It must be as 'holdfast monitor fit' wrote it: fit the monitor again."


@dataclass(frozen=True)
class OpenedMonitor:
    """A monitor with the names of its classes; embedded: it is the one that ships with holdfast."""

    monitor: Monitor
    classes: list[str] | None
    embedded: bool

    def name_of(self, label: int) -> str:
        return self.classes[label] if self.classes and 0 <= label < len(self.classes) else str(label)


@dataclass(frozen=True)
class SequenceRows:
    """Sequences as the network reads them, their names, and the tokens of each text."""

    sequences: list[Any]
    names: list[str]
    classes: list[str] | None = None
    pieces: list[tuple[str, ...]] | None = None


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
        return _limit_rows(_embed_split("train"), q.limit)
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


def check_mutation(text: str | None, *, embedded: bool) -> None:
    """Raise BadInput for a malformed --mutation, before the model is loaded."""
    if text is None and not embedded:
        raise BadInput(
            "give the mutations of an element: --mutation sets.json, vectors, typos, or noise:0.1."
        )
    if text is None or text == "typos" or re.fullmatch(r"vectors(:[0-9.eE-]+)?", text):
        return
    if text.startswith("noise:"):
        noise_of(text)
    elif text.endswith(".json"):
        require_file(Path(text))
    else:
        raise BadInput(
            f"mutation {text!r}: use a .json file of sets, vectors, vectors:0.7, typos, noise:0.1 or "
            "noise:0.1,inf."
        )


def mutation_of(text: str | None, net: Network) -> Mutation:
    if text is None:
        return Groups.of_sets(helpdesk.sets(), vocabulary=net.vocabulary)
    if text.startswith("noise:"):
        return noise_of(text)
    if net.vectors is None:
        raise BadInput(
            f"mutation {text!r} is for words, but {net.name} reads frames of numbers: use noise:0.1."
        )
    if text == "typos":
        if net.vocabulary is None:
            raise BadInput(f"typos need the words of {net.name}: --vocabulary FILE, one word a line.")
        return Typos(net.vocabulary, unknown=unknown_token(net, None) if has_unknown(net) else None)
    if text.startswith("vectors"):
        cosine = numbers(text.partition(":")[2] or "0.65", "vectors")
        assert cosine is not None
        return Groups.of_vectors(net.vectors, cosine=cosine[0])
    sets = load_substitutes(text, net)
    if isinstance(sets, list):
        raise BadInput(
            f'{text}: the monitor takes one set for each word, as in {{"good": ["fine", "great"]}}.'
        )
    return Groups.of_sets({own: [own, *others] for own, others in sets.items()})


def noise_of(text: str) -> Noise:
    radius, _, norm = text.removeprefix("noise:").partition(",")
    found = numbers(radius, "noise")
    assert found is not None
    return Noise(found[0], norm_option(norm) if norm else 2.0)


def output_of(text: str) -> Output:
    kind, _, rest = text.partition(":")
    found = numbers(rest, kind) if rest else None
    if kind == "classes" and found is None:
        return Classes()
    if kind == "bins" and found:
        return Bins(tuple(found))
    if kind == "tolerance" and found and len(found) == 1:
        return Tolerance(found[0])
    raise BadInput(f"answer {text!r}: use classes, bins:0.5 (or bins:0,1,2), or tolerance:0.1.")


# ---- sequences


def load_rows(source: str, reader: Reader, limit: int | None, how: ReadSettings = PLAIN) -> SequenceRows:
    """Read a .txt file of sentences, or anything that `load_data` reads."""
    if source.endswith(".txt"):
        lines = [
            (place, text) for place, text in enumerate(read_text(Path(source)).split("\n"), 1) if text.strip()
        ]
        if not lines:
            raise BadInput(f"{source}: holds no sentence.")
        return of_texts(
            [text for _, text in lines[:limit]],
            reader,
            source,
            [f"{source}, line {place}" for place, _ in lines[:limit]],
        )
    data = load_data(source, reader.net, how=how, reading=reader.texts)
    return _limit_rows(SequenceRows(list(data.rows), data.names, data.classes), limit)


def of_texts(
    texts: Sequence[str], reader: Reader, source: str = "", places: Sequence[str] | None = None
) -> SequenceRows:
    found = read_texts(reader.net, texts, source, places, reader.texts)
    return SequenceRows(found.tokens, [text.strip() for text in texts], None, found.pieces)


def _embed_split(split: helpdesk.Split) -> SequenceRows:
    found = helpdesk.sentences(split)
    return SequenceRows(found.tokens, list(found.text), list(helpdesk.INTENTS))


def _limit_rows(rows: SequenceRows, limit: int | None) -> SequenceRows:
    return (
        rows if limit is None else replace(rows, sequences=rows.sequences[:limit], names=rows.names[:limit])
    )


def rows_for(
    opened: OpenedMonitor, data: str | None, limit: int | None, console: Console, how: ReadSettings = PLAIN
) -> SequenceRows:
    """The sequences for a fitted monitor; without data, the test sentences of the help desk."""
    if data is not None:
        return load_rows(data, opened.monitor.reader, limit, how)
    if not opened.embedded:
        raise BadInput("give the sequences: --data FILE.")
    line(console, "note", "no data given: using the test sentences of the help desk")
    return _limit_rows(_embed_split("test"), limit)


# ---- folders


def _keep(folder: Path, network: ModelOptions | None, classes: list[str] | None) -> None:
    """Save how to read the model again; paths stay as given."""
    content = {"model": EMBEDDED if network is None else asdict(network), "classes": classes}
    try:
        (folder / HOW).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        raise StoreError(f"{folder / HOW}: cannot be written ({error}).") from error


def open_monitor(
    folder: str, console: Console, device: str | None = None, *, trust: bool = False
) -> OpenedMonitor:
    """Open a monitor that `fit` wrote, with its model; `helpdesk` names the one that ships with holdfast.

    device: replaces the device given to `fit`. trust: import the code that the folder names, and open .pt2
    files.
    """
    if folder == EMBEDDED and not Path(folder).exists():
        line(console, "note", DEFAULT_MODEL_NOTE)
        net, rows = helpdesk.network(device or "cpu"), _embed_split("train")
        return OpenedMonitor(
            Monitor.fit(net, rows.sequences[:6], mutation_of(None, net), unknown="unk"), rows.classes, True
        )
    path = Path(folder) / HOW
    if not Path(folder).is_dir():
        raise UnreadableFile(
            f"{folder}: no such folder. Create a monitor with 'holdfast monitor fit', or use helpdesk, which "
            "ships with holdfast."
        )
    content = read_json(path, MADE)
    with explained_errors(path, "damaged", MADE):
        model, classes = content["model"], content["classes"]
        question = None if model == EMBEDDED else _model_options(model)
    if question is None:
        net = helpdesk.network(device or "cpu")
    else:
        with import_only(None if trust else (), CONFIRM):
            net = load_network(
                replace(question, trust=trust, device=question.device if device is None else device)
            )
    return OpenedMonitor(Monitor.load(folder, net), classes, question is None)


def _model_options(stored: Mapping[str, Any]) -> ModelOptions:
    """Raise TypeError unless every value has the type that the command line gives it."""
    found = ModelOptions(**stored)
    for option in fields(found):
        value = getattr(found, option.name)
        kinds = bool if option.default is False else str if option.default is MISSING else str | None
        if not (
            all(isinstance(text, str) for text in value)
            if isinstance(option.default_factory, type)
            else isinstance(value, kinds)
        ):
            raise TypeError(f"{option.name} is {value!r}")
    return found


# ---- export


def export_prism(
    folder: str,
    data: str | None,
    to: Path,
    limit: int | None,
    theta: float,
    seed: int,
    device: str | None,
    console: Console,
    how: ReadSettings,
    *,
    trust: bool = False,
) -> None:
    from holdfast.monitor.abstract.marble import Marble, Refinement
    from holdfast.monitor.abstract.prism import write
    from holdfast.monitor.abstract.traces import profile

    if not (theta > 0 and math.isfinite(theta)):
        raise BadInput(f"theta {theta}: the allowed error must be a number above 0.")
    check_folder(to, "marble.tra")
    opened = open_monitor(folder, console, device, trust=trust)
    rows = (
        _limit_rows(_embed_split("train"), limit)
        if data is None and opened.embedded
        else rows_for(opened, data, limit, console, how)
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
    mdp = Marble.fit(traces, Refinement(theta=theta, seed=seed)).mdp
    written = write(mdp, to, labels=opened.classes)
    line(
        console,
        "abstract model",
        f"{mdp.states} states, {mdp.inputs} abstract inputs, from {len(traces)} transitions",
    )
    line(console, "written", ", ".join(str(path) for path in written))
