"""The terminal table of a run. Only the command line imports this module, because importing rich is slow."""

import math
from collections.abc import Callable, Sequence

from rich.console import Group
from rich.table import Table
from rich.text import Text

from holdfast.formatting import capitalise, format_bounds, format_nearest
from holdfast.question import Question
from holdfast.report.columns import changes_of, format_changes
from holdfast.report.streaming import by_input, summary_parts
from holdfast.report.summary import (
    DEEPTRE_NOTE,
    UNANSWERED,
    InputRow,
    QuestionPart,
    Totals,
    class_name,
    estimate_kind,
    frame_name,
    is_unbreakable,
    parts_of,
    rows_of,
    totals_of,
    weakest_frames,
    word_name,
)
from holdfast.report.verdict import tally, verdict, verdict_text
from holdfast.report.wording import Quantity
from holdfast.result import Bracket, Record
from holdfast.store import Store

STYLE = {"proved": "blue", "witnessed": "dark_orange"}
LONGEST_NAME = 24  # Characters of a file name in the table: what 80 columns leave next to the bounds.


def table(source: Store | Sequence[Record], *, most: int = 20, fragile_first: bool = False) -> Group:
    """Build one table for each part, with one line for each of the first `most` inputs and the totals of
    all.

    fragile_first: the inputs with the smallest upper bound first (for values that should be small: the largest
    lower bound).
    """
    parts = summary_parts(source, most)[0] if isinstance(source, Store) else parts_of(rows_of(source))
    question = source.question if isinstance(source, Store) else Question()
    return Group(
        *(
            _table(
                part,
                question,
                _fragile_rows(part, source, most) if fragile_first else part.rows[:most],
                title=capitalise(part.heading) if len(parts) > 1 else None,
            )
            for part in parts
        )
    )


def _fragile_rows(part: QuestionPart, source: Store | Sequence[Record], most: int) -> list[InputRow]:
    """The most fragile rows of a part, each with its input and counterexample."""

    def fragility(row: InputRow) -> tuple[float, float, int]:
        sign = 1.0 if part.sense.rises else -1.0
        found, proved = part.sense.witnessed_bound(row.bracket), part.sense.proved_bound(row.bracket)
        return sign * found.value, sign * proved.value, row.index

    chosen = sorted(part.rows, key=fragility)[:most]
    if not isinstance(source, Store):
        return chosen
    return [
        next(
            (
                whole
                for _, rows in by_input(source, row.index, row.index)
                for whole in rows
                if (whole.part, whole.output) == (row.part, row.output)
            ),
            row,
        )
        for row in chosen
    ]


def _table(part: QuestionPart, question: Question, shown: Sequence[InputRow], title: str | None) -> Group:
    """The table, and below it, as wide as the terminal, what is to say of single inputs and of all."""
    view = Table(title=title, title_justify="left")
    columns = [(heading, [cell(row, question) for row in shown]) for heading, cell in COLUMNS]
    needed = ("lower", "upper", "status") if question.command != "verify" else ("verdict", "status")
    kept = [
        (heading, cells)
        for heading, cells in columns
        if heading in ("input", *needed) or (heading in MAYBE and any(cells))
    ]
    for heading, _ in kept:
        view.add_column(
            heading,
            justify="right" if heading in ("input", "lower", "upper") else "left",
            no_wrap=heading in ("label", "lower", "upper"),
        )
    for cells in zip(*(cells for _, cells in kept), strict=True):
        view.add_row(*cells)
    hidden = len(part.rows) - len(shown)
    more = [Text(f"... and {hidden} more")] if hidden else []
    below = Text(
        _counts(part, question) if question.command == "verify" else _means(totals_of(part.rows), part.sense)
    )
    return Group(view, *more, *_notes(shown, question), below)


def _notes(rows: Sequence[InputRow], question: Question) -> list[Text]:
    """Return the notes of inputs; inputs with the same note share a line."""
    groups: dict[str, tuple[list[str], Text]] = {}
    for row in rows:
        if note := _note_text(row, question):
            groups.setdefault(note.markup, ([], note))[0].append(row.name)
    return [Text.assemble((", ".join(names), "bold"), ": ", note) for names, note in groups.values()]


def _label(row: InputRow, question: Question) -> Text:
    """Return the label, and the prediction if it differs or there is no label."""
    if row.source is None:
        return Text()
    label, said = (class_name(question, number) for number in (row.source.label, row.source.prediction))
    return (
        Text(label)
        if said in (label, "")
        else Text("\n").join(Text(part) for part in (label, f"says {said}") if part)
    )


def _name(name: str) -> str:
    """The name of an input, without the beginning of a long path."""
    return name if len(name) <= LONGEST_NAME else f"…{name[1 - LONGEST_NAME :]}"


def _status(row: InputRow, question: Question) -> Text:
    text = row.status if row.measured or row.status in UNANSWERED else f"{row.status}, not measured"
    return Text(text, style="red" if row.status in ("interrupted", "failed", "refuted") else "")


def _estimates(row: InputRow, question: Question) -> Text:
    return Text("\n").join(
        Text.assemble(
            f"{format_nearest(e.value)} ",
            (estimate_kind(row.bracket, e), "red" if row.bracket.refutes(e) else "green"),
            "" if (sure := e.evidence.confidence) is None else f", {sure:.6g}",
        )
        for e in row.bracket.estimates
    )


def _note_text(row: InputRow, question: Question) -> Text:
    changed = Text(format_changes(changes_of(row, question) or ()))
    return Text("\n").join(part for part in (_weakest(row, question), changed, Text(_note(row))) if part)


COLUMNS: tuple[tuple[str, Callable[[InputRow, Question], Text]], ...] = (
    ("input", lambda row, _: Text(row.name)),
    ("label", _label),
    ("name", lambda row, _: Text(_name(row.display_name))),
    ("verdict", lambda row, question: Text(verdict_text(verdict(row, 0.0), question.command))),
    ("lower", lambda row, _: _end(row.bracket, 0)),
    ("upper", lambda row, _: _end(row.bracket, 1)),
    ("estimates", _estimates),
    ("status", _status),
)
MAYBE = ("label", "name", "estimates")  # Columns that are left out if all their cells are empty.


def _note(row: InputRow) -> str:
    """Return the note, unless it repeats that no frame can be broken."""
    return "" if row.frames and is_unbreakable(row.bracket) else row.bracket.note


def _weakest(row: InputRow, question: Question) -> Text:
    """Return the weakest frames, and for words the sentence with these marked."""
    if not row.frames or not (row.bracket.lower.known or row.bracket.upper.known):
        return Text()
    places, tokens = weakest_frames(row.frames), row.source.tokens if row.source else None
    words = (
        None if tokens is None else [word_name(token, question.model.vocabulary or ()) for token in tokens]
    )
    kind = "words" if words is not None else f"{frame_name(question)}s"
    if not places:
        return Text(f"none of {len(row.frames)} {kind} breaks it")
    found = Text(
        f"weakest of {len(row.frames)} {kind}: "
        f"{', '.join(str(k) if words is None else words[k] for k in places)}"
    )
    if words is None:
        return found
    sentence = Text(" ").join(
        Text(word, style="bold underline" if k in places else "") for k, word in enumerate(words)
    )
    return Text("\n").join([found, sentence])


def _end(bracket: Bracket, side: int) -> Text:
    bound, shown = (
        (bracket.lower, bracket.upper)[side],
        format_bounds(bracket.lower.value, bracket.upper.value)[side],
    )
    if not bound.known:
        return Text(shown if bracket.closed else bracket.missing[side], style="dim")
    return Text.assemble(shown, " ", (bound.evidence.kind, STYLE.get(bound.evidence.kind, "")))


def _counts(part: QuestionPart, question: Question) -> str:
    found = tally(part.rows, 0.0)
    counts = (
        f"{found.certified} {verdict_text('certified', question.command)}",
        f"{found.broken} {verdict_text('broken', question.command)}",
    )
    return ", ".join((*counts, found.unknown_text))


def _means(totals: Totals, sense: Quantity) -> str:
    """Return the bounds of the mean, its number of inputs, and the inputs left out."""
    low, high = totals.mean_lower, totals.mean_upper
    parts = []
    if totals.averaged or not totals.rows:
        lower, upper = format_bounds(low, high)
        mean = f"mean of {totals.averaged}: " + (lower if low == high else f"lower {lower}, upper {upper}")
        if totals.deeptre_interval is not None:
            centre, radius = totals.deeptre_interval
            mean += f", centre {format_nearest(centre)} +- {format_nearest(radius)} ({DEEPTRE_NOTE})"
        elif math.isfinite(low) and math.isfinite(high) and low != high:
            mean += f", centre {format_nearest((low + high) / 2)} +- {format_nearest((high - low) / 2)}"
        if 0 < totals.open_above < totals.averaged:
            mean += f" ({totals.open_above} open, {sense.missing}; the others {format_nearest(totals.mean_found)})"
        parts.append(mean)
    parts += [
        f"{count} of {totals.rows} {what}"
        for count, what in (
            (totals.unbreakable, "cannot be broken"),
            (totals.still, "hold because nothing may change"),
            (totals.failed, "failed"),
            (totals.refuted, "refuted"),
            (totals.not_measured, "not measured (the run ended before anything was proved of them)"),
        )
        if count
    ]
    return "; ".join(parts)
