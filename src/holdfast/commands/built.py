"""A measuring command with everything read and checked: the network, the data and the problems."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import torch

from holdfast.commands.command import Command
from holdfast.errors import BadInput, StoreError
from holdfast.execution.task import Outputs
from holdfast.formatting import suggest
from holdfast.method import Method, known_methods
from holdfast.network import Network
from holdfast.network.model_identity import NAME_IT
from holdfast.network.text import WordTokenizer
from holdfast.problem import Problem
from holdfast.question import ClassLabel, Means, Question, Request, plain
from holdfast.question import DataDescription as DataAsked
from holdfast.question import ModelDescription as ModelAsked
from holdfast.reading.data import Data
from holdfast.solver import Choice, Stop
from holdfast.store import Store

AT_ONCE = 1024  # Inputs in one batch when the classes of inputs are computed (a choice; bounds memory).
# Options of the model that do not describe the preparation of inputs.
WITH_CHANNELS = (
    "radius",
    "worst",
    "risk",
)  # Commands whose perturbations are measured in the scales of channels.
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
        columns = columns if net.channels is None else tuple(net.channels.titles)
        known = DataAsked(options["data"], data.fingerprint, len(data.x), classes, columns)
    asked = asked if net.columns is None else replace(asked, columns=net.columns.to_json())
    if net.channels is not None:
        if command.name not in WITH_CHANNELS:
            raise BadInput(
                f"--columns describes the features of windows, whose scales have no meaning for 'holdfast {command.name}': "
                "leave it out."
            )
        asked = replace(asked, channels=net.channels.to_json())
    used = Means(**{f.name: options[f.name] for f in fields(Means) if f.name in options} | means)
    return Question(command.name, model, known, asked, used, plain(options), os.getcwd())


def check_same_question(now: Question, begun: Question) -> None:
    """Raise StoreError unless model, data and options equal those of the run."""
    parts = (
        ("model", "is", now.model.fingerprint, begun.model.fingerprint),
        ("vocabulary", "is", now.model.vocabulary, begun.model.vocabulary),
        ("tokenizer", "is", now.model.tokenizer, begun.model.tokenizer),
        ("data", "are", now.data.fingerprint, begun.data.fingerprint),
        ("substitutes", "are", now.asked.substitutes, begun.asked.substitutes),
        ("edits", "are", now.asked.edits, begun.asked.edits),
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


def methods_named(text: str, problems: Sequence[Problem]) -> list[Method[Any]]:
    """'pgd,certify' -> the methods. BadInput if one is unknown, or if none applies to any of the problems."""
    known = known_methods()
    names = [name.strip().lower() for name in text.split(",")]
    unknown = [name for name in names if name not in known]
    if unknown:
        raise BadInput(
            f"method {unknown[0]!r} is unknown; there are {', '.join(known)}.{suggest(unknown[0], list(known))}"
        )
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
