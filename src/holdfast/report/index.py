"""An index page of several results: the answer, the question and a picture of each, with a link to its page."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from markupsafe import Markup

from holdfast.formatting import format_lower, format_upper
from holdfast.question import Question
from holdfast.question_text import describe_question
from holdfast.report.answer_sentence import answer_of
from holdfast.report.compare import Comparison
from holdfast.report.compare_table import comparison_sentence
from holdfast.report.heat_map import HEAT_LEVELS
from holdfast.report.input_table import heat_of, lines_of
from holdfast.report.page_shape import shape_of
from holdfast.report.plots import curves, share
from holdfast.report.streaming import summary_parts
from holdfast.report.summary import Brackets, QuestionPart, Totals, totals_of
from holdfast.report.template import template
from holdfast.report.writing import write_document
from holdfast.store import Store

LOOKED_AT = 50  # Inputs among which one with a counterexample is sought for the picture; chosen by hand.


@dataclass(frozen=True)
class IndexEntry:
    """One result of the index.

    answer: its first sentence. headline: the question, or how to read it. link: its page relative to the
    index, empty for a result without one. figures: captions and pictures. charts: as wide as the page, and
    for a phone. sentences: coloured words. parts: each part of a run with its totals.
    """

    title: str
    answer: str
    headline: str
    link: str = ""
    figures: Sequence[tuple[str, Markup]] = ()
    charts: Sequence[Markup] = ()
    sentences: Sequence[Markup] = ()
    parts: Sequence[tuple[QuestionPart, Totals]] = ()


def write_index(
    title: str, runs: Sequence[tuple[str, Path]], path: Path, further: Sequence[IndexEntry] = ()
) -> Path:
    """Write the index page and return its path.

    Args:
        runs: title and folder of each run. The folders hold report.html and lie below the folder of the page.
        further: results that follow the runs.

    Raises StoreError if the page cannot be written.
    """
    entries = [_run_entry(name, folder, path.parent, place) for place, (name, folder) in enumerate(runs)]
    return write_document(
        template("index.html.j2").render(
            title=title,
            entries=[*entries, *further],
            written=datetime.now(UTC).isoformat(timespec="seconds"),
        ),
        path,
    )


def comparison_entry(title: str, found: Comparison, headline: str, link: str) -> IndexEntry:
    """Return the entry of a comparison of runs: one sentence, and the share of inputs that hold in each."""
    names = [side.name for side in found.sides]
    drawn = found.measured_columns
    wide, narrow = (Markup(curves.draw(names, drawn, narrow=small)) for small in (False, True))
    return IndexEntry(title, comparison_sentence(found), headline, link, charts=(wide, narrow))


def word_scores(words: Sequence[tuple[str, float | None]], answer: str) -> Markup:
    """Return a sentence whose words are shaded by their scores between 0 (dark) and 1.

    words: each word with its score; None if it has no substitute, or its score is undefined.
    """
    shown = Markup(" ").join(
        Markup("{}").format(word)
        if score is None
        else Markup('<b class="h{}">{} <small>{}</small></b>').format(
            min(HEAT_LEVELS - 1, int((1 - score) * HEAT_LEVELS)), word, f"{score:.2f}"
        )
        for word, score in words
    )
    return Markup("{} → {}").format(shown, answer)


def _run_entry(title: str, folder: Path, below: Path, place: int) -> IndexEntry:
    with Store.read(folder) as store:
        parts, _ = summary_parts(store, LOOKED_AT)
        first = parts[0] if parts else None
        return IndexEntry(
            title,
            answer_of(store),
            describe_question(store.question),
            (folder / "report.html").relative_to(below).as_posix(),
            () if first is None else _figures(first, store.question),
            () if first is None else _charts(first, store.question, place),
            parts=[(part, totals_of(part.rows)) for part in parts],
        )


def _figures(part: QuestionPart, question: Question) -> list[tuple[str, Markup]]:
    """An input with its counterexample and the change between them, of the first inputs that have one."""
    seen = part.rows[:LOOKED_AT]
    rows = [row for row in seen if row.source is not None]
    chosen = next((row for row in rows if row.witness is not None and not row.fails_at_once), None)
    if chosen is None:
        return []
    (line,) = lines_of([chosen], question, heat_of([chosen], question))
    end = part.sense.witnessed_bound(chosen.bracket).value
    rounded = format_upper(end) if part.sense.rises else format_lower(end)
    shown = [
        (f"input {chosen.name}", line.pictures.input, ""),
        (part.sense.found, line.pictures.witness, f"{part.sense.quantity} {rounded}"),
        ("change", line.pictures.change, ""),
    ]
    return [
        (caption, picture + (Markup("<small>{}</small>").format(note) if note else ""))
        for caption, picture, note in shown
        if picture
    ]


def _charts(part: QuestionPart, question: Question, place: int) -> list[Markup]:
    """The share of inputs that hold, where the report of this run has that chart and it has several points."""
    if "share" not in shape_of(question).plots or len(part.rows) < 2:
        return []
    return [Markup(share.draw(Brackets(part.rows), part.sense, name=f"share-of-run-{place}"))]
