"""One HTML file that shows a run: it loads nothing from anywhere, and can be mailed, archived and printed."""

import contextlib
import json
import os
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, Template
from markupsafe import Markup

from holdfast.errors import StoreError
from holdfast.report.lines import HEAT_LEVELS, lines_of
from holdfast.report.plots import band, convergence, share
from holdfast.report.summary import about, at_least, at_most, norm_name, rows_of, totals_of
from holdfast.result import Bound, Record
from holdfast.store import Store

MOST_ROWS = 1000
LONG_LIST = 12

INTERNAL = ("asked", "begun_in", "substitutes", "vocabulary")  # what only a resumed run needs, or what would fill the page
EVIDENCE = (
    ("proved", "holds for every point of the region, by bound propagation, enumeration or definition."),
    ("witnessed", "is shown by a concrete input, which was replayed through the model under test before it was kept."),
    ("sampled", "holds with the confidence that is named beside it."),
    ("estimated", "comes without any guarantee, stands beside a bracket and never moves one of its ends."),
)
STATUSES = (
    ("closed", "both ends are equal: the truth is known"),
    ("finished", "every method has done all it can, or the gap asked for is reached"),
    ("stopped", "the budget ran out; resuming goes on"),
    ("interrupted", "the run was ended early; resuming takes it up again"),
)


def write(html: str, path: Path) -> Path:
    """The whole file or none of it."""
    part = path.with_name(path.name + ".part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part.write_text(html, encoding="utf-8", errors="replace")  # a broken character in a name breaks no report
        os.replace(part, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            part.unlink()
        raise StoreError(f"{path}: the report cannot be written ({error}). Choose another place.") from error
    return path


def render(store: Store) -> str:
    """The run as one HTML document."""
    question, records, inputs = store.question, store.records(), store.inputs()
    rows = rows_of(records, inputs)
    brackets = [row.bracket for row in rows]
    asked = max(len(inputs), len(rows))
    each = any(row.frames for row in rows)
    quantity = "worst score" if question.get("command") == "worst" else "radius"
    lines = lines_of(rows[:MOST_ROWS], question)
    return _template().render(
        vocabulary=len(question.get("vocabulary") or ()),
        settings={name: value for name, value in question.items() if name not in INTERNAL},
        headline=_headline(question, asked),
        quantity=quantity,
        each=each,
        folder=str(store.folder),
        asked=asked,
        totals=totals_of(rows),
        lines=lines,
        left_out=len(rows) - len(lines),
        without_picture=sum(line.picture_left_out for line in lines),
        has_estimates=any(bracket.estimates for bracket in brackets),
        heat_levels=HEAT_LEVELS,
        band=Markup(band.draw(brackets, quantity)),
        share=Markup(share.draw(brackets, quantity)),
        convergence=Markup(convergence.draw(store.history(), quantity, "frames" if each else "inputs")),
        evidence=EVIDENCE,
        sources=_sources(records),
        skipped=Counter(reason for record in records for reason in record.skipped).most_common(),
        statuses=[(name, meaning, sum(row.status == name for row in rows)) for name, meaning in STATUSES],
        provenance=store.provenance,
    )


def _template() -> Template:
    environment = Environment(
        loader=PackageLoader("holdfast.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(at_least=at_least, at_most=at_most, about=about, setting=_setting)
    return environment.get_template("report.html.j2")


def _headline(question: Mapping[str, Any], count: int) -> str:
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
    return str(name) if name else otherwise


def _setting(value: object) -> str:
    """Any value of the question or of a method's settings, on one line."""
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_setting(part)}" for name, part in value.items()) or "none"
    if isinstance(value, list | tuple):
        shown = ", ".join(_setting(part) for part in value[:LONG_LIST])
        return f"{shown}, … ({len(value)} in all)" if len(value) > LONG_LIST else shown or "none"
    if value is None:
        return "none"
    return value if isinstance(value, str) else json.dumps(value, default=str)


@dataclass(frozen=True)
class Source:
    """One way in which ends or estimates of this run were found."""

    role: str
    kind: str
    method: str
    settings: str
    seed: str
    dtype: str
    confidence: str
    assumptions: str


def _sources(records: Iterable[Record]) -> list[tuple[Source, int]]:
    """Every way with how many numbers it found; the most frequent first."""
    found: Counter[Source] = Counter()
    for record in records:
        bracket = record.bracket
        ends = [("lower", bracket.lower), ("upper", bracket.upper), *(("estimate", e) for e in bracket.estimates)]
        found.update(_source(role, bound) for role, bound in ends)
    order = ("lower", "upper", "estimate")
    return sorted(found.items(), key=lambda item: (order.index(item[0].role), -item[1]))


def _source(role: str, bound: Bound) -> Source:
    evidence = bound.evidence
    return Source(
        role=role,
        kind=evidence.kind,
        method=evidence.method,
        settings=_setting(evidence.settings),
        seed="" if evidence.seed is None else str(evidence.seed),
        dtype=(evidence.dtype or "").removeprefix("torch."),
        confidence="" if evidence.confidence is None else f"{evidence.confidence:.6g}",
        assumptions=" ".join(f"{sentence.rstrip('.')}." for sentence in evidence.assumptions),
    )
