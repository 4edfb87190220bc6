"""A run's question in words."""

import json
from collections.abc import Mapping
from dataclasses import fields

from holdfast.question import Question
from holdfast.report.summary import norm_name, short

LONG_LIST = 12
HEADLINES = {
    "worst": "How low can the score of {model} fall in the region around {inputs} of {data}?",
    "verify": "Can what {instances} happen to {model}? sat: an input shows it. unsat: it is proved never to happen.",
    "reach": "Between which values do the outputs of {model} lie, over {boxes}?",
    "risk": "What can go wrong with {model} near {inputs} of {data}{norm}: how badly, how far away, how fast?",
    "saliency": "How far can the margin of {model} fall when one place of {inputs} of {data} changes?",
    "testgen": "How few changes make neurons of {model} do what they never did on {data}?",
    "smoothing": "How far may {inputs} of {data} move{norm}, before the smoothed {model} changes its answer?",
    "monitor": "How likely does {model} keep its answer when {inputs} of {data} are changed, place by place?",
}


def headline(question: Question, count: int) -> str:
    model, data = short(question.model.name) or "the network", short(question.data.name) or "the data"
    inputs, asked = "the input" if count == 1 else f"each of the {count} inputs", question.asked
    command = question.command.split(" ")[0]
    if command in HEADLINES:
        norm = f" in the {norm_name(asked.norm)} norm" if asked.norm is not None else ""
        boxes, instances = ("the box", "the instance describes") if count == 1 else (f"{count} boxes", f"the {count} instances describe")
        return HEADLINES[command].format(model=model, data=data, inputs=inputs, boxes=boxes, instances=instances, norm=norm)
    words = asked.norm == "words"
    alone = f", one {'word' if words else 'frame'} at a time" if asked.frames == "each" else ""
    change = "reaches the target class" if asked.targets else "changes its answer"
    if words:
        return f"How many words of {inputs} of {data} may be replaced{alone}, before {model} {change}?"
    norm = f", in the {norm_name(asked.norm)} norm" if asked.norm is not None else ""
    return f"How far may {inputs} of {data} move{alone}{norm}, before {model} {change}?"


def hashes(question: Question) -> list[tuple[str, str]]:
    """By which the model, the data and the question are known again."""
    model = question.model
    told = [("model", model.fingerprint), ("tokenizer", model.tokenizer)]
    told += [("data", question.data.fingerprint), ("question", question.fingerprint)]
    return [(part, value) for part, value in told if value]


def shown(question: Question) -> dict[str, object]:
    """The question for people: what was said, without what only a resumed run needs or what would fill the page."""
    told: dict[str, object] = {"command": question.command, "model": question.model.name, "data": question.data.name}
    told |= {"domain": question.model.domain, **dict(question.model.prepared), "notes": "; ".join(question.model.notes)}
    told |= {f.name: getattr(question.asked, f.name) for f in fields(question.asked) if f.name != "substitutes"}
    told |= {f.name: getattr(question.means, f.name) for f in fields(question.means)}
    return {name: value for name, value in told.items() if value not in (None, "")}


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
