"""`holdfast show RUN --input N`: one input of a run in the terminal."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.columns import Columns
from rich.console import Console, Group
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from holdfast.errors import BadInput
from holdfast.formatting import format_bounds, format_nearest, format_percent, shorten
from holdfast.question import Question
from holdfast.question_text import describe_question
from holdfast.report import terminal_pictures
from holdfast.report.class_probabilities import flatten_map, not_measured, words_of
from holdfast.report.columns import changes_of, columns_of
from holdfast.report.evidence_sources import sentences
from holdfast.report.picture import describe_change
from holdfast.report.question import band_of
from holdfast.report.sentence import changed_positions
from holdfast.report.standard import tags_of
from holdfast.report.streaming import by_input
from holdfast.report.summary import (
    InputRow,
    QuestionPart,
    class_name,
    estimate_kind,
    frame_name,
    is_unbreakable,
    parts_of,
    weakest_frames,
    word_name,
)
from holdfast.report.text_difference import difference_text, text_difference
from holdfast.report.verdict import is_labelled, verdict, verdict_text
from holdfast.result import Answers, Bound, Bracket
from holdfast.store import Store

STYLE = {"proved": "blue", "witnessed": "dark_orange"}
MOST_FRAMES = 40  # Frames or columns in a table: one screen.
LONGEST_BAR = 24  # Characters of the longest bar: what 80 columns leave next to the numbers.


def show_input(folder: Path, number: int, console: Console) -> None:
    with Store.read(folder) as store:
        question, known = store.question, store.answered_inputs()
        parts = parts_of(row for _, rows in by_input(store, number, number) for row in rows)
    shown = [row for part in parts for row in part.rows]
    if not shown:
        told = (
            f"it has results for {len(known)} inputs, from {known[0]} to {known[-1]}"
            if known
            else "it has no results yet"
        )
        raise BadInput(f"{folder}: no result for input {number}; {told}.")
    title = f"input {number}" + (f", {shown[0].display_name}" if shown[0].display_name else "")
    console.rule(Text(title, style="bold"))
    console.print(Text(describe_question(question)))
    for part in parts:
        if len(parts) > 1:
            console.rule(Text(part.heading), align="left")
        if len(part.rows) > 1:
            console.print(_outputs(part), highlight=False)
        for row in part.rows if len(part.rows) == 1 else ():
            _show(row, question, console)


def _show(row: InputRow, question: Question, console: Console) -> None:
    if row.source is not None:
        if columns_of(question) is not None:
            console.print(_columns(row, question), highlight=False)
        else:
            vocabulary = question.model.vocabulary or ()
            if question.asked.norm == "edits":
                console.print(_mark_edits(row, vocabulary))
            else:
                console.print(_pictures(row, vocabulary, colour=console.color_system is not None))
        if is_labelled(row):
            console.print(
                _answer(class_name(question, row.source.label), class_name(question, row.source.prediction)),
                highlight=False,
            )
    if row.answers is not None:
        console.print(_likely(row.answers, question), highlight=False)
    console.print(_evidence(row), highlight=False)
    if row.frames:
        console.print(_frames(row, question), highlight=False)
    said = f"{verdict_text(verdict(row, 0.0), question.command)}, " if question.command == "verify" else ""
    note = f"; {shorten(row.bracket.note, 400)}" if row.bracket.note else ""
    console.print(
        Text(f"{said}{row.status}, {format_nearest(row.seconds)} s, {row.queries} network evaluations{note}")
    )


def _outputs(part: QuestionPart) -> Table:
    """A table of many outputs: each bound with the method that found it."""
    view = Table("output", "lower", "", "upper", "", "status")
    for row in part.rows:
        lower, upper = row.bracket.lower, row.bracket.upper
        cells = [
            (shown, f"{end.evidence.kind}, {end.evidence.method}", STYLE.get(end.evidence.kind, ""))
            for shown, end in zip(format_bounds(lower.value, upper.value), (lower, upper), strict=True)
        ]
        texts = [text for shown, why, style in cells for text in (Text(shown, "bold"), Text(why, style))]
        view.add_row(str(row.output), *texts, row.status)
    return view


def _pictures(row: InputRow, vocabulary: Sequence[str], *, colour: bool) -> Group | Columns:
    assert row.source is not None
    x, witness = row.source.x, row.witness
    if row.source.tokens is not None:
        return _sentences(row, vocabulary)
    if witness is None or witness.shape != x.shape:
        return Columns(
            [
                Panel(terminal_pictures.picture(x, colour=colour), title="input", expand=False),
                *_map(row.source.saliency, colour=colour),
            ]
        )
    size = describe_change(witness.astype(float) - x.astype(float))
    changed = Group(terminal_pictures.change(x, witness, colour=colour), Text(size, style="dim"))
    views = (
        ("input", terminal_pictures.picture(x, witness, colour=colour)),
        ("witness", terminal_pictures.picture(witness, x, colour=colour)),
        ("change", changed),
    )
    return Columns(
        [
            *(Panel(view, title=name, expand=False) for name, view in views),
            *_map(row.source.saliency, colour=colour),
        ]
    )


def _columns(row: InputRow, question: Question) -> Table:
    """A table of the columns, changed ones first; of many unchanged ones only their number."""
    columns = columns_of(question)
    assert columns is not None
    assert row.source is not None
    changed = {name: (was, now) for name, was, now in changes_of(row, question) or ()}
    view = Table("column", "input", *(("witness",) if row.witness is not None else ()))
    values = {
        c.name: c.describe_numbers([float(row.source.x[i]) for i in own])
        for c, own in zip(columns.each, columns.places, strict=True)
    }
    ordered = sorted(values, key=lambda name: name not in changed)
    shown = ordered[: max(MOST_FRAMES, len(changed))]
    for name in shown:
        was, now = changed.get(name, (values[name], ""))
        view.add_row(
            Text(shorten(name)),
            Text(shorten(was)),
            *([Text(shorten(now), "bold dark_orange")] if row.witness is not None else []),
        )
    view.caption = (
        None if len(shown) == len(ordered) else f"and {len(ordered) - len(shown)} columns that stay"
    )
    return view


def _map(found: NDArray[Any] | None, *, colour: bool) -> list[Panel]:
    """The saliency map: light where one change lowers the margin most."""
    if found is None or not found.size:
        return []
    said = (
        words_of(found, "blue" if colour else terminal_pictures.NOT_MEASURED) if not_measured(found) else ""
    )
    drawn = terminal_pictures.heat_map(flatten_map(found), colour=colour)
    return [Panel(Group(drawn, Text(said, style="dim")) if said else drawn, title="saliency", expand=False)]


def _sentences(row: InputRow, vocabulary: Sequence[str]) -> Group:
    assert row.source is not None
    assert row.source.tokens is not None
    witness = row.witness
    moved = changed_positions(np.array(row.source.tokens), row.source.x, witness, row.changed_frame)
    lines = [
        Text.assemble(
            ("input:", "bold"), terminal_pictures.sentence(row.source.tokens, vocabulary, row.frames, moved)
        )
    ]
    if witness is not None and moved and witness.ndim == 1:
        lines.append(
            Text.assemble(
                ("witness:", "bold"), terminal_pictures.sentence(witness.tolist(), vocabulary, (), moved)
            )
        )
    elif moved:
        words = ", ".join(f"{k} ({word_name(row.source.tokens[k], vocabulary)})" for k in moved)
        lines.append(Text.assemble(("witness:", "bold"), f" moves the vector of word {shorten(words)}"))
    return Group(*lines)


def _mark_edits(row: InputRow, vocabulary: Sequence[str]) -> Group:
    """A text, and its counterexample with [+inserted+] and [-deleted-] words."""
    assert row.source is not None
    tokens = row.source.tokens or ()
    lines = [Text.assemble(("input:", "bold"), terminal_pictures.sentence(tokens, vocabulary))]
    if row.witness is not None:
        styles = {"kept": "", "inserted": "bold underline", "deleted": "dim strike"}
        words = [
            (difference_text([word]), styles[word.change])
            for word in text_difference(tokens, row.witness, vocabulary)
        ]
        spaced = [part for word in words for part in (" ", word)]
        lines.append(Text.assemble(("witness:", "bold"), *spaced))
    return Group(*lines)


def _answer(label: str, prediction: str) -> Text:
    wrong = bool(label and prediction) and label != prediction
    return Text.assemble(
        ("label ", "dim"), label or "–", ("  says ", "dim"), (prediction or "–", "bold red" if wrong else "")
    )


def _likely(answers: Answers, question: Question) -> Table:
    """The most likely classes at the input and at the counterexample."""
    sides = [side for side in (answers.before, answers.after) if side]
    if all(math.isnan(one.share) for one in answers.before):  # Outputs that are not classes.
        band = ("band",) if question.asked.within is not None else ()
        view = Table("output", "at the input", *band, *(("at the witness",) if answers.after else ()))
        for pair in zip(*sides, strict=True):
            ends = [band_of(question.asked, pair[0].output, pair[0].label)] if band else []
            name = class_name(question, pair[0].label)
            view.add_row(
                *map(
                    Text,
                    (
                        name,
                        format_nearest(pair[0].output),
                        *ends,
                        *(format_nearest(one.output) for one in pair[1:]),
                    ),
                )
            )
        return view
    view = Table(
        "says of the input",
        "share",
        "output",
        *(("of the witness", "share", "output") if answers.after else ()),
    )
    for pair in zip(*sides, strict=True):
        view.add_row(
            *(
                Text(part)
                for one in pair
                for part in (
                    class_name(question, one.label),
                    format_percent(one.share),
                    format_nearest(one.output),
                )
            )
        )
    return view


def _evidence(row: InputRow) -> Table:
    """The evidence, with a column for each bound and estimate."""
    lower, upper = row.bracket.lower, row.bracket.upper
    low, high = format_bounds(lower.value, upper.value)
    named = [("lower", lower, low), ("upper", upper, high)]
    named += [("estimate", bound, format_nearest(bound.value)) for bound in row.bracket.estimates]
    view = Table("", *(name for name, _, _ in named))
    columns = [[Text(shown, "bold"), *_why(bound, row.bracket)] for _, bound, shown in named]
    for heading, *cells in zip(
        ("value", "kind", "method", "settings", "seed", "assumes", "checked", "ISO/IEC 24029-2"),
        *columns,
        strict=True,
    ):
        view.add_row(heading, *cells)
    return view


def _why(bound: Bound, bracket: Bracket) -> list[Text]:
    e = bound.evidence
    settings = ", ".join(f"{name} {value}" for name, value in e.settings.items())
    parts = (
        e.method,
        settings,
        "" if e.seed is None else str(e.seed),
        sentences(e.assumptions),
        sentences(e.checks),
        str(tags_of(e)),
    )
    return [Text(estimate_kind(bracket, bound), STYLE.get(e.kind, "green")), *map(Text, parts)]


def _frames(row: InputRow, question: Question) -> Table:
    """One line for each frame or word (of many, the weakest), with a bar for its bounds."""
    tokens = row.source.tokens if row.source else None
    finite = [
        end
        for r in row.frames
        for end in (r.bracket.lower.value, r.bracket.upper.value)
        if abs(end) < math.inf
    ]
    most = max(finite, default=0.0) or 1.0
    left_out = f"the weakest {MOST_FRAMES} of {len(row.frames)}" if len(row.frames) > MOST_FRAMES else None
    view = Table("word" if tokens else frame_name(question), "lower", "upper", "", caption=left_out)
    chosen = (
        set(weakest_frames(row.frames, MOST_FRAMES))
        if len(row.frames) > MOST_FRAMES
        else {record.key.frame for record in row.frames}
    )
    for record in (record for record in row.frames if record.key.frame in chosen):
        place, bracket = record.key.frame or 0, record.bracket
        name = (
            f"{place} {word_name(tokens[place], question.model.vocabulary or ())}"
            if tokens and place < len(tokens)
            else str(place)
        )
        told = Text("nothing breaks it") if is_unbreakable(bracket) else _bar(bracket, most)
        view.add_row(Text(name), *format_bounds(bracket.lower.value, bracket.upper.value), told)
    return view


def _bar(bracket: Bracket, most: float) -> Text:
    """A bar: a line up to the lower bound, dots for the gap, and a stop at the counterexample."""
    low, high = (LONGEST_BAR * max(0.0, min(1.0, end.value / most)) for end in (bracket.lower, bracket.upper))
    stop = "┃" if bracket.upper.value < math.inf else ""
    return Text.assemble(
        ("━" * round(low), "blue"), ("╌" * (round(high) - round(low)), "dim"), (stop, "dark_orange")
    )
