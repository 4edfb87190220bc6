"""A comparison of runs as one HTML file, in the style of the report."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from markupsafe import Markup

from holdfast.formatting import norm_name
from holdfast.question import Question
from holdfast.report import picture
from holdfast.report.compare import Comparison
from holdfast.report.compare_table import comparison_sentence, explain_numbers, pair_table, run_table
from holdfast.report.plots import curves
from holdfast.report.question import class_list, command_line, displayed_settings, preparation
from holdfast.report.sentence import sentences
from holdfast.report.summary import InputRow, bracket_text, class_name
from holdfast.report.template import template
from holdfast.report.verdict import is_correct
from holdfast.report.wording import RADIUS
from holdfast.store import Store

MOST_ROWS = 10_000  # Rows of the page at most, which bounds its size; chosen by hand.
PICTURE_BYTES = 300_000  # Bytes of pictures on the page; later inputs have none.


@dataclass(frozen=True)
class Shown:
    """The first cells of a row: index, name, label and picture of an input."""

    place: str
    name: str
    label: str
    picture: Markup


def thumbnails(store: Store) -> dict[int, Markup]:
    """Return pictures of the first inputs of a run, up to PICTURE_BYTES."""
    found: dict[int, Markup] = {}
    budget, vocabulary = PICTURE_BYTES, store.question.model.vocabulary or ()
    for stored in store.stream_inputs():
        made = (
            picture.show(stored.x, None) if stored.tokens is None else sentences(stored, (), None, vocabulary)
        ).input
        budget -= len(made)
        if budget < 0:
            break
        found[stored.index] = made
    return found


def _unit_of_norm(norm: str | None) -> str:
    """What a radius counts or measures."""
    counted = {None: "", "words": "replaced words", "edits": "edits"}
    return counted[norm] if norm in counted else f"{norm_name(norm)} norm"


def render(found: Comparison, pictures: Mapping[int, Markup] | None = None) -> str:
    """Return the page. pictures: thumbnails of the inputs of the first run by index."""
    names = [side.name for side in found.sides]
    quantity = found.sense.quantity
    question = found.runs[0].question
    norm = question.asked.norm
    drawn = found.measured_columns
    rows = [_cells(found, place, pictures or {}) for place in range(min(len(found.pairs), MOST_ROWS))]
    return template("compare.html.j2").render(
        answer=comparison_sentence(found),
        headline=f"{len(names)} runs on the same {len(found.pairs)} inputs: {_describe_question(found)}?",
        norm=_unit_of_norm(norm),
        names=names,
        quantity=quantity,
        rises=found.sense.rises,
        sides=run_table(found),
        duels=pair_table(found),
        explained=explain_numbers(found),
        notes=found.notes,
        curves=Markup(curves.draw(names, drawn)),
        narrow=Markup(curves.draw(names, drawn, narrow=True)),
        labelled=any(shown.label for shown, _, _ in rows),
        pictured=bool(pictures),
        rows=rows,
        left_out=max(0, len(found.pairs) - MOST_ROWS),
        pairs=[f"{duel.first} / {duel.second}" for duel in found.duels],
        runs=[
            (
                run.name,
                displayed_settings(run.question),
                run.provenance,
                command_line(run.question, run.name),
                preparation(run.question),
            )
            for run in found.runs
        ],
        classes=class_list(question),
        written=datetime.now(UTC).isoformat(timespec="seconds"),
    )


def _describe_question(found: Comparison) -> str:
    if found.sense == RADIUS:
        return "which network holds longer"
    return f"which network has the {'larger' if found.sense.rises else 'smaller'} {found.sense.quantity}"


def _cells(
    found: Comparison, place: int, pictures: Mapping[int, Markup]
) -> tuple[Shown, list[str], list[str]]:
    """Return an input, its brackets, and the winner of each pair of runs."""
    pair = found.pairs[place]
    first = pair[0]
    label = class_name(found.runs[0].question, first.source.label) if first.source else ""
    shown = Shown(first.name, first.display_name, label, pictures.get(first.index, Markup()))
    brackets = [_bracket(row, run.question) for row, run in zip(pair, found.runs, strict=True)]
    return shown, brackets, [_winner(duel.outcomes[place], duel.first, duel.second) for duel in found.duels]


def _bracket(row: InputRow, question: Question) -> str:
    """Format a bracket, with the prediction if it is not the label."""
    ends = bracket_text(row.bracket) if row.measured else f"{bracket_text(row.bracket)}, not measured"
    if is_correct(row):
        return ends
    said = "" if row.source is None else class_name(question, row.source.prediction)
    return f"{ends}, misclassified{f': says {said}' if said else ''}"


def _winner(outcome: str, first: str, second: str) -> str:
    return {"first": first, "second": second}.get(outcome, outcome)
