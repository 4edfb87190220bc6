"""The question of a run as text: its settings, its command line, its preparation of data."""

import json
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import fields

from holdfast.formatting import capitalise, format_nearest, shorten
from holdfast.property import Within
from holdfast.property.band import read_outputs
from holdfast.question import Question, Request
from holdfast.question_text import describe_question

LONG_LIST = 12  # Entries of a list on one line; more are counted.
# Arguments of commands that are given without an option name.
POSITIONAL = {
    "verify": ("model", "spec"),
    "reach": ("model",),
    "monitor evaluate": ("folder",),
}
# Commands without a radius, whose pages therefore need not say what its units are.
WITHOUT_RADII = ("verify", "reach", "monitor", "saliency")
OPTIONS = {
    "epsilon": "--margin",
    "networks": "--net",
    "constants": "--constant",
}  # Options whose name differs from that of their field.


def band_of(asked: Request, forecast: float, output: int) -> str:
    """Return the band around the forecast of an output as '11.07 to 13.53'; empty if the output is not part of the
    question.
    """
    if asked.within is None:
        return ""
    levels = None if asked.quantiles is None else [float(k) for k in asked.quantiles.strip("[] ").split(",")]
    rule = Within(asked.within.strip("[] ").replace("'", ""), read_outputs(asked.outputs), levels)
    counting = rule.places_up_to(output)
    if output not in counting:
        return ""
    widths = rule.widths()
    share, width = widths[counting.index(output) if len(widths) > 1 else 0]
    away = share * abs(forecast) + width
    return f"{format_nearest(forecast - away)} to {format_nearest(forecast + away)}"


def hashes(question: Question) -> list[tuple[str, str]]:
    """Return the names and hashes of model, tokenizer, data and question."""
    model = question.model
    found = [
        ("model", "not hashed" if model.fingerprint == "" else model.fingerprint),
        ("tokenizer", model.tokenizer),
    ]
    found += [("data", question.data.fingerprint), ("question", question.fingerprint)]
    return [(part, value) for part, value in found if value]


def displayed_settings(question: Question) -> dict[str, object]:
    """Return the settings of a question for the page, without the settings that only `resume` needs."""
    settings: dict[str, object] = {
        "asked": describe_question(question),
        "command": question.command,
        "model": question.model.name,
        "data": question.data.name,
    }
    settings |= {
        "domain": question.model.domain,
        **dict(question.model.prepared),
        "notes": "; ".join(question.model.notes),
    }
    settings |= {
        f.name: getattr(question.asked, f.name) for f in fields(question.asked) if f.name != "substitutes"
    }
    settings |= {f.name: getattr(question.means, f.name) for f in fields(question.means)}
    return {name: value for name, value in settings.items() if value not in (None, "")}


def preparation(question: Question) -> str:
    """Describe how numbers of the data become inputs of the network."""
    prepared, options = question.model.prepared, question.options
    parts = []
    if (scale := options.get("scale")) is not None:
        parts.append(f"the data are divided by {setting(scale)}")
    mean, std = prepared.get("mean"), prepared.get("std")
    if mean is not None or std is not None:
        parts.append(
            f"the network receives (x - mean) / std with mean {setting(mean or 0)} and std "
            f"{setting(std or 1)}"
        )
    if (scaler := prepared.get("input_scaler")) is not None:
        parts.append(f"the network receives x scaled by {setting(scaler)}")
    shift, factor = prepared.get("output_mean"), prepared.get("output_std")
    if shift is not None or factor is not None:
        parts.append(f"outputs are y * {setting(factor or 1)} + {setting(shift or 0)}")
    if (scaler := prepared.get("output_scaler")) is not None:
        parts.append(f"outputs are in the units of the targets, by the inverse of {setting(scaler)}")
    if question.command.split(" ")[0] in WITHOUT_RADII:
        return capitalise("; ".join(parts or ["the network receives the data unchanged"])) + "."
    units = (
        f"radii are in units of x, whose domain is {question.model.domain}"
        if question.model.domain
        else "radii are in units of x"
    )
    return capitalise("; ".join([*(parts or ["the network receives the data unchanged"]), units])) + "."


def class_list(question: Question) -> str:
    """Return the class names by number, the first LONG_LIST of them; empty without names, or where they are
    these numbers.
    """
    names = question.data.classes or ()
    if all(name == str(number) for number, name in enumerate(names)):
        return ""
    more = f" and {len(names) - LONG_LIST} more" if len(names) > LONG_LIST else ""
    return ", ".join(f"{number} {shorten(name, 30)}" for number, name in enumerate(names[:LONG_LIST])) + more


def command_line(question: Question, folder: object) -> str:
    """Return the command line that repeats the run into another folder; empty for a run made by a program."""
    if not question.options:
        return ""
    given = dict(_flat(question.options))
    words = [
        "holdfast",
        *question.command.split(),
        *(str(given.pop(name)) for name in POSITIONAL.get(question.command, ()) if name in given),
    ]
    for name, value in given.items():
        option = OPTIONS.get(name, f"--{name.replace('_', '-')}")
        for one in value if isinstance(value, list) else [value]:
            text = str(one)
            words += (
                [option] if one is True else [f"{option}={text}"] if text.startswith("-") else [option, text]
            )
    return shlex.join([*words, "--out", f"{folder}-again"])


def _flat(options: Mapping[str, object]) -> Iterator[tuple[str, object]]:
    """Yield the options of the model and of the command that were given."""
    for name, value in options.items():
        if isinstance(value, Mapping):
            yield from _flat(value)
        elif name == "softmax" and value is False:
            yield "no_softmax", True
        elif value is not None and value is not False and value not in ("", []):
            yield name, value


def setting(value: object) -> str:
    """Format a value of the question or of a method's settings on one line."""
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {setting(part)}" for name, part in value.items()) or "none"
    if isinstance(value, list | tuple):
        shown = ", ".join(setting(part) for part in value[:LONG_LIST])
        return f"{shown}, … ({len(value)} in all)" if len(value) > LONG_LIST else shown or "none"
    if value is None:
        return "none"
    return value if isinstance(value, str) else json.dumps(value, default=str)
