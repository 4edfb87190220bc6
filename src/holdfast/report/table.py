"""The run in the terminal. Only the command line imports this module, because rich takes its time."""

import math
from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from holdfast.question import Question
from holdfast.report.summary import Row, Totals, about, at_least, at_most, class_name, rows_of, totals_of, unbreakable, weakest, word_name
from holdfast.result import Bound, Record
from holdfast.store import Store

STYLE = {"proved": "blue", "witnessed": "dark_orange"}


def table(source: Store | Sequence[Record], *, most: int = 20) -> Table:
    """One line for each input, at most `most` of them; the averages below speak of all."""
    stored = isinstance(source, Store)
    rows = rows_of(source.records(), source.inputs()) if isinstance(source, Store) else rows_of(source)
    question = source.question if isinstance(source, Store) else Question()
    view = Table(caption=_caption(totals_of(rows), len(rows) - most), caption_justify="left")
    view.add_column("input", justify="right")
    if stored:
        view.add_column("label")
    view.add_column("lower", justify="right", no_wrap=True)
    view.add_column("upper", justify="right", no_wrap=True)
    view.add_column("status")
    view.add_column("note")
    for row in rows[:most]:
        cells = _cells(row, question)
        view.add_row(*(cell for place, cell in enumerate(cells) if stored or place != 1))
    return view


def _cells(row: Row, question: Question) -> list[Text]:
    return [
        Text(str(row.index)),
        Text(class_name(question, row.source.label) if row.source else ""),
        _end(row.bracket.lower, at_least(row.bracket.lower.value), row.bracket.closed),
        _end(row.bracket.upper, at_most(row.bracket.upper.value), row.bracket.closed),
        Text(row.status, style="red" if row.status == "interrupted" else ""),
        Text("\n").join(part for part in (_weakest(row, question.model.vocabulary or ()), Text(_note(row))) if part),
    ]


def _note(row: Row) -> str:
    """That nothing breaks any of the frames is said already."""
    return "" if row.frames and unbreakable(row.bracket) else row.bracket.note


def _weakest(row: Row, vocabulary: Sequence[str]) -> Text:
    """The frames that break first, and where they are words, the sentence with these marked."""
    if not row.frames:
        return Text()
    places, tokens = weakest(row.frames), row.source.tokens if row.source else None
    words = None if tokens is None else [word_name(token, vocabulary) for token in tokens]
    kind = "frames" if words is None else "words"
    if not places:
        return Text(f"none of {len(row.frames)} {kind} breaks it")
    found = Text(f"weakest of {len(row.frames)} {kind}: {', '.join(str(k) if words is None else words[k] for k in places)}")
    if words is None:
        return found
    sentence = Text(" ").join(Text(word, style="bold underline" if k in places else "") for k, word in enumerate(words))
    return Text("\n").join([found, sentence])


def _end(bound: Bound, shown: str, closed: bool) -> Text:
    if bound.evidence.method == "definition":
        return Text(shown if closed or not bound.value else f"{shown} nothing yet", style="dim")
    return Text.assemble(shown, " ", (bound.evidence.kind, STYLE.get(bound.evidence.kind, "")))


def _caption(totals: Totals, left_out: int) -> Text:
    more = f"... and {left_out} more\n" if left_out > 0 else ""
    count = totals.rows - totals.unbreakable
    mean = f"mean of {count}: lower {at_least(totals.mean_lower)}, upper {at_most(totals.mean_upper)}" if count or not totals.rows else ""
    if math.isfinite(totals.mean_upper):
        mean += f", centre {about((totals.mean_lower + totals.mean_upper) / 2)} +- {about((totals.mean_upper - totals.mean_lower) / 2)}"
    if 0 < totals.open_above < count:
        mean += f" ({totals.open_above} without a witness; the others {about(totals.mean_found_upper)})"
    unbreakable = f"{totals.unbreakable} of {totals.rows} cannot be broken" if totals.unbreakable else ""
    return Text(more + "; ".join(part for part in (mean, unbreakable) if part))
