"""A run's question in words."""

import json
from collections.abc import Mapping
from typing import Any

from holdfast.report.summary import norm_name, short

LONG_LIST = 12


def headline(question: Mapping[str, Any], count: int) -> str:
    model, data = _name(question, "model", "the network"), _name(question, "data", "the data")
    inputs = "the input" if count == 1 else f"each of the {count} inputs"
    if question.get("command") == "worst":
        return f"How low can the score of {model} fall in the region around {inputs} of {data}?"
    words = question.get("norm") == "words"
    alone = f", one {'word' if words else 'frame'} at a time" if question.get("frames") == "each" else ""
    change = "reaches the target class" if question.get("targets") else "changes its answer"
    if words:
        return f"How many words of {inputs} of {data} may be replaced{alone}, before {model} {change}?"
    norm = f", in the {norm_name(question['norm'])} norm" if question.get("norm") is not None else ""
    return f"How far may {inputs} of {data} move{alone}{norm}, before {model} {change}?"


def _name(question: Mapping[str, Any], part: str, otherwise: str) -> str:
    told = question.get(part)
    name = told.get("name") if isinstance(told, Mapping) else told
    return short(name) if name else otherwise


def hashes(question: Mapping[str, Any]) -> list[tuple[str, str]]:
    """By which the model, the data and the question are known again."""
    told = [(part, question.get(part)) for part in ("model", "data", "spec")]
    return [(part, str(value["fingerprint"])) for part, value in told if isinstance(value, Mapping) and value.get("fingerprint")]


def setting(value: object) -> str:
    """Any value of the question or of a method's settings, on one line."""
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {setting(part)}" for name, part in value.items()) or "none"
    if isinstance(value, list | tuple):
        shown = ", ".join(setting(part) for part in value[:LONG_LIST])
        return f"{shown}, … ({len(value)} in all)" if len(value) > LONG_LIST else shown or "none"
    if value is None:
        return "none"
    return value if isinstance(value, str) else json.dumps(value, default=str)
