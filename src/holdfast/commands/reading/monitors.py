"""Open a stored monitor, and read the sequences to score."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, replace
from pathlib import Path
from typing import Any

from holdfast.commands.options import ModelOptions
from holdfast.commands.parse import norm_option, numbers
from holdfast.commands.reading.model import load_network
from holdfast.datasets import helpdesk
from holdfast.errors import BadInput, UnreadableFile
from holdfast.files import explained_errors, read_json, read_text, require_file
from holdfast.monitor import Bins, Classes, Groups, Monitor, Mutation, Noise, Output, Tolerance, Typos
from holdfast.monitor.reading import Reader, has_unknown, unknown_token
from holdfast.network import Network
from holdfast.reading.data import PLAIN, load_data, load_substitutes, read_texts
from holdfast.reading.read_settings import ReadSettings
from holdfast.reading.source import import_only

EMBEDDED = "helpdesk"
HOW = "model.json"
CONFIRM = "If you trust the author of this monitor, add --trust."
MADE = "It must be as 'holdfast monitor fit' wrote it: fit the monitor again."
DEFAULT_MODEL_NOTE = (
    "no model given: using the help desk LSTM that ships with holdfast, with its sets of substitutes"
)
Note = Callable[[str], None]  # Receives what the user should know.


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
    return limit_rows(SequenceRows(list(data.rows), data.names, data.classes), limit)


def of_texts(
    texts: Sequence[str], reader: Reader, source: str = "", places: Sequence[str] | None = None
) -> SequenceRows:
    found = read_texts(reader.net, texts, source, places, reader.texts)
    return SequenceRows(found.tokens, [text.strip() for text in texts], None, found.pieces)


def embedded_sequences(split: helpdesk.Split) -> SequenceRows:
    found = helpdesk.sentences(split)
    return SequenceRows(found.tokens, list(found.text), list(helpdesk.INTENTS))


def limit_rows(rows: SequenceRows, limit: int | None) -> SequenceRows:
    return (
        rows if limit is None else replace(rows, sequences=rows.sequences[:limit], names=rows.names[:limit])
    )


def rows_for(
    opened: OpenedMonitor, data: str | None, limit: int | None, note: Note, how: ReadSettings = PLAIN
) -> SequenceRows:
    """The sequences for a fitted monitor; without data, the test sentences of the help desk."""
    if data is not None:
        return load_rows(data, opened.monitor.reader, limit, how)
    if not opened.embedded:
        raise BadInput("give the sequences: --data FILE.")
    note("no data given: using the test sentences of the help desk")
    return limit_rows(embedded_sequences("test"), limit)


def open_monitor(folder: str, note: Note, device: str | None = None, *, trust: bool = False) -> OpenedMonitor:
    """Open a monitor that `fit` wrote, with its model; `helpdesk` names the one that ships with holdfast.

    device: replaces the device given to `fit`. trust: import the code that the folder names, and open .pt2
    files.
    """
    if folder == EMBEDDED and not Path(folder).exists():
        note(DEFAULT_MODEL_NOTE)
        net, rows = helpdesk.network(device or "cpu"), embedded_sequences("train")
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
