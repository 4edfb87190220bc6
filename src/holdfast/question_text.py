"""Write a question as one sentence, from the stored question alone, for every place that shows its numbers.

    The sentence has the request, every restriction, and the hashes of model and data:

    How far may each of the 3 inputs of windows.npz move, in the L∞ norm, as a drift (one offset for each
    feature, the same in every frame), feature k by the radius times share k of 0.1,1,0.5, before fan.onnx
    changes its answer? (domain [0, 1]; model 51b70fd8, data 03cb4a11)

No restriction may be left out, because the numbers depend on all of them. Every option of `Request` declares
its clause; a field without one is shown with its value, and so is every option of the command that no field
covers, except those of NOT_SAID. Two questions with different fingerprints have different sentences:
tests/test_question_text.py checks all fields of a question and all options of all commands.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import fields

from holdfast.formatting import shorten
from holdfast.question import Json, Means, Question, Request
from holdfast.question_words import hash_of, short_hash, value_text
from holdfast.request import options_of

INTERVAL = re.compile(r"\[[-+.\w]+, [-+.\w]+\]")

NOT_SAID = {  # Options that do not change the meaning of a number, each with the reason.
    "model": "the sentence names the model and its hash",
    "data": "the sentence names the data and their hash",
    "spec": "the specification of the question names it, with its hash",
    "folder": "the mutation of the question holds the hash of all that the monitor's scores depend on",
    "trust": "it decides whether a .pt2 file is opened; its content is the same",
    "device": "it changes where the result is computed, not the result",
    "fingerprint": "these files are part of the hash of the model",
    "vocabulary": "the sentence has the hash of the words",
    "classes": "they name outputs; the outputs are the same",
    "tier": "a search setting: each number names the method that found it",
    "methods": "search settings: each number names the method that found it",
    "seed": "the results of a search hold for any random numbers",
    "seconds": "a budget: with less time the brackets are wider and still valid",
    "seconds_each": "a budget, as seconds",
    "queries": "a budget, as seconds",
    "gap": "it decides when the search stops: the brackets are wider and still valid",
    "samples": "a budget: with fewer the sampled radius is smaller, at the same confidence",
    "choosing": "a budget, as samples",
    "batch": "how many inputs are processed at once",
    "pictures": "how many pictures are drawn",
    "saliency": "an additional map; the results are the same",
    "certificates": "additional files; the results are the same",
    "names": "labels of inputs and outputs; the claims are the same",
    "key": "known answers for a comparison",
}
USUAL = {"arithmetic": "real", "mode": "prove"}  # defaults, which the sentence leaves out
COVERED = {  # Options whose values are part of another field, where that field is set.
    "layers": "criterion",
    "per": "criterion",
    "sections": "criterion",
    "threshold": "criterion",
    "toward": "property",
    "train": "criterion",
}

LEADS = {
    "worst": "How low can the score of {model} fall in the region around {inputs}",
    "verify": "Can {instances} give an output that its property forbids",
    "reach": "Between which values do the outputs of {model} lie, over {boxes}",
    "risk": "What can go wrong with {model} near {inputs}: how badly, how far away, how fast",
    "saliency": "How far can the margin of {model} fall when one place of {inputs} changes",
    "testgen": "How few changes make neurons of {model} do what they never did on {inputs}",
    "smoothing": "How far may {inputs} move",
    "monitor": "How likely does {model} keep its answer when one place of {inputs} changes",
}


def describe_question(question: Question) -> str:
    """Return the question as a sentence with every restriction that its numbers depend on."""
    lead, ending = _frame(question)
    asked = ", ".join([lead, *_clauses(question)])
    circumstances = "; ".join(_circumstances(question))
    text = f"{asked}{ending}?" + (f" ({circumstances})" if circumstances else "")
    return text.encode("utf-8", "replace").decode()  # File names may contain surrogates.


def _frame(question: Question) -> tuple[str, str]:
    """Return the beginning and the end of the sentence."""
    model = _name(question.model.name) or "the network"
    inputs, command = _inputs(question), _command(question)
    if command in LEADS:
        many = len(question.asked.specification or ())
        instances = model if many == 1 else f"any of the {many or ''} instances of {model}".replace("  ", " ")
        boxes = f"boxes around {inputs}" if question.data.count or question.data.name else "the box"
        lead = LEADS[command].format(model=model, inputs=inputs, instances=instances, boxes=boxes)
        return lead, f", before the smoothed {model} changes its answer" if command == "smoothing" else ""
    if question.asked.norm == "words":
        lead = f"How many words of {inputs} may be replaced"
    elif question.asked.norm == "edits":
        lead = f"How many edits may be made in {inputs}"
    elif question.asked.norm == "0":
        units = UNITS.get(question.asked.unit or "", "units (pixels of images, else numbers)")
        lead = f"How many {units} of {inputs} may change"
    else:
        lead = f"How far may {inputs} move"
    return lead, f", before {model} {_change(question.asked)}"


UNITS = {"pixel": "pixels", "frame": "frames", "number": "numbers"}


def _change(asked: Request) -> str:
    """Return what has to change at the radius."""
    if asked.within is not None:
        return f"forecasts what is further than {value_text(asked.within)} from its forecast"
    if asked.threshold is not None:
        return f"crosses {value_text(asked.threshold)} with an output"
    return (
        "changes its answer"
        if asked.targets is None
        else f"changes its answer to the target {value_text(asked.targets)}"
    )


def _inputs(question: Question) -> str:
    data, count = _name(question.data.name) or "the data", question.data.count
    each = "the input" if count == 1 else f"each of the {count} inputs" if count else "each input"
    return f"{each} of {data}"


def _command(question: Question) -> str:
    return question.command.split(" ")[0]


CLAUSES = {name: option.clause for name, option in options_of(Request).items()}


def _clauses(question: Question) -> Iterator[str]:
    """Yield the restrictions in the order of CLAUSES, then the fields without a clause."""
    asked, radius = question.asked, _command(question) not in LEADS
    elsewhere = {"within", "threshold", "targets"} if radius else set()
    for name in [*CLAUSES, *(f.name for f in fields(Request) if f.name not in CLAUSES)]:
        value = getattr(asked, name)
        in_lead = radius and (
            (name == "unit" and asked.norm == "0" and value in UNITS)
            or (name == "norm" and value in ("words", "edits"))
        )
        if value is None or in_lead or name in _ending_of(asked) & elsewhere:
            continue
        words = CLAUSES[name](value, question) if name in CLAUSES else f"{name} {value_text(value)}"
        if words:
            yield words


def _ending_of(asked: Request) -> set[str]:
    """Return the name of the field that `_change` uses."""
    return {
        next((name for name in ("within", "threshold", "targets") if getattr(asked, name) is not None), "")
    }


def _circumstances(question: Question) -> Iterator[str]:
    """Yield what else the numbers depend on: preprocessing, arithmetic, and the hashes of model and data."""
    model, means = question.model, question.means
    if model.domain is not None:
        yield f"domain {model.domain if INTERVAL.fullmatch(model.domain) else value_text(model.domain)}"
    for name, value in sorted(model.prepared.items()):
        if name != "domain" or _domain(value) != model.domain:
            yield f"{_words(name)} {value_text(value)}"
    said = {f.name: getattr(means, f.name) for f in fields(Means)}
    yield from (
        f"{_words(name)} {value_text(value)}"
        for name, value in said.items()
        if _unusual(name, value) is not None
    )
    yield from (f"{_words(name)} {value_text(value)}" for name, value in _options(question))
    if not question.options:
        yield "asked by a program, of which only this was recorded"
    known = [
        ("model", model.fingerprint),
        ("vocabulary", None if model.vocabulary is None else hash_of(model.vocabulary)),
    ]
    known += [("tokenizer", model.tokenizer), ("data", question.data.fingerprint)]
    hashes = [
        f"{what} {'not hashed' if value == '' else short_hash(value)}"
        for what, value in known
        if value is not None
    ]
    if hashes:
        yield ", ".join(hashes)


def _domain(option: Json) -> str:
    """Return '0,1' as '[0, 1]', the text of a domain."""
    return f"[{', '.join(part.strip() for part in str(option).split(','))}]"


def _options(question: Question) -> Iterator[tuple[str, Json]]:
    """Yield the given options that no field of the question covers."""
    for name, value in _flat(question.options):
        own = getattr(question.asked, name, None) if name in CLAUSES else None
        holds = COVERED.get(name)
        covered = (
            own is not None
            or name in question.model.prepared
            or (name == "domain" and question.model.domain is not None)
        )
        covered |= holds is not None and getattr(question.asked, holds) is not None
        covered |= getattr(question.means, name, None) is not None and name in USUAL
        if not covered and _unusual(name, value) is not None:
            yield name, value


def _flat(options: Mapping[str, Json]) -> Iterator[tuple[str, Json]]:
    for name, value in options.items():
        if name == "network" and isinstance(value, Mapping):
            yield from value.items()
        else:
            yield name, value


def _unusual(name: str, value: Json) -> Json:
    """Return the value; None for a default, an empty value or an option of NOT_SAID."""
    nothing = value is None or value is False or value == "" or value == [] or value == USUAL.get(name)
    return None if nothing or name in NOT_SAID else value


def _words(name: str) -> str:
    return "only the part of the inputs" if name == "shard" else name.replace("_", " ")


def _name(text: str) -> str:
    """Return the name of a model or of data, shortened."""
    return shorten(text)
