"""The table of inputs on the page: pictures, shaded words, and the evidence of each bound."""

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from holdfast.formatting import LEAST_SHOWN, format_bounds, shorten
from holdfast.question import Question
from holdfast.report import picture
from holdfast.report.class_probabilities import Map, map_of, pack_answers
from holdfast.report.columns import pictures_of
from holdfast.report.heat_map import Heat
from holdfast.report.picture import Pictures
from holdfast.report.sentence import edited_sentences, sentences
from holdfast.report.summary import InputRow, class_name, frame_name, word_name
from holdfast.report.verdict import is_correct, verdict, verdict_text
from holdfast.result import Bound

PICTURE_BYTES = 450_000  # Bytes of pictures on one page, so that a page of 1,000 inputs stays below 1 MB.
ATTRIBUTE = 20  # Bytes of the name and quotes of a packed attribute; counted against PICTURE_BYTES.
BY_DEFINITION = "by definition"  # Where a trivial bound is the exact answer.
LONG_NOTE = 400  # Characters of a note; longer ones are cut.
SORTED_DIGITS = 7  # Digits of the hidden bounds by which the page sorts; the shown ones have 4.
BLANK = Pictures(Markup(), Markup(), Markup())


@dataclass(frozen=True)
class InputLine:
    """One line of the table.

    verdict  at zero, for questions without a radius. low, high: bounds with more digits, still rounded
    outwards, for sorting and
    filtering. answers: packed most likely classes. picture_left_out: whether PICTURE_BYTES were used up
    before this line.
    """

    row: InputRow
    anchor: str
    label: str
    prediction: str
    wrong: bool
    verdict: str
    lower: "BoundCell"
    upper: "BoundCell"
    name: str
    note: str
    low: str
    high: str
    pictures: Pictures
    saliency: Map
    answers: str
    picture_left_out: bool


@dataclass(frozen=True)
class BoundCell:
    """One bound as text. colour: its kind of evidence, or none for a bound by definition."""

    shown: str
    colour: str
    source: str


def heat_of(rows: Sequence[InputRow], question: Question) -> Heat:
    """Return the common scale of all frames of these rows."""
    return Heat.over((record for row in rows for record in row.frames), frame_name(question))


def lines_of(
    rows: Sequence[InputRow], question: Question, heat: Heat, most: int = PICTURE_BYTES
) -> list[InputLine]:
    """Build the lines of these rows with at most `most` bytes of pictures."""
    lines: list[InputLine] = []
    answers = [pack_answers(row.answers) for row in rows]
    budget = most - min(most // 4, sum(len(packed) + ATTRIBUTE for packed in answers if packed))
    first = next((row.source for row in rows if row.source is not None), None)
    side = picture.LONGEST_SIDE if first is None else picture.side_for(first.x, len(rows), budget)
    for row, packed in zip(rows, answers, strict=True):
        pictures = _pictures(row, question, heat, side) if budget > 0 else BLANK
        saliency = map_of(row.source.saliency) if budget > 0 and row.source else Map()
        budget -= (
            len(pictures.input)
            + len(pictures.witness)
            + len(pictures.change)
            + len(saliency.png)
            + len(saliency.words)
        )
        shown, marked = (pictures, saliency) if budget > 0 else (BLANK, Map())
        lines.append(_line(row, question, shown, marked, packed, left_out=budget <= 0))
    return lines


def _line(
    row: InputRow, question: Question, pictures: Pictures, saliency: Map, answers: str, *, left_out: bool
) -> InputLine:
    label, prediction = (row.source.label, row.source.prediction) if row.source else (None, None)
    lower, upper = row.bracket.lower, row.bracket.upper
    shown_low, shown_high = format_bounds(lower.value, upper.value)
    low, high = (
        (repr(lower.value), repr(upper.value))
        if 0 < lower.value < LEAST_SHOWN
        else format_bounds(lower.value, upper.value, SORTED_DIGITS)
    )
    closed = BY_DEFINITION if row.bracket.closed else ""
    unproved, unseen = closed or "nothing proved yet", closed or f"{row.sense.missing} yet"
    return InputLine(
        row=row,
        anchor=f"i{row.index}" if row.output is None else f"i{row.index}-output-{row.output}",
        label=class_name(question, label),
        prediction=class_name(question, prediction),
        wrong=not is_correct(row),
        verdict=verdict_text(verdict(row, 0.0), question.command),
        lower=_end(lower, shown_low, unproved if row.sense.rises else unseen),
        upper=_end(upper, shown_high, unseen if row.sense.rises else unproved),
        name="" if _is_sentence(row, question) else row.display_name,
        note=shorten(row.bracket.note, LONG_NOTE),
        low=low,
        high=high,
        pictures=pictures,
        saliency=saliency,
        answers=answers,
        picture_left_out=left_out,
    )


def _is_sentence(row: InputRow, question: Question) -> bool:
    """Return whether the name of the input repeats its words."""
    vocabulary, tokens = question.model.vocabulary or (), row.source.tokens if row.source else None
    return tokens is not None and row.display_name.split() == [
        word_name(token, vocabulary) for token in tokens
    ]


def _end(bound: Bound, shown: str, unmoved: str) -> BoundCell:
    evidence = bound.evidence
    if evidence.method == "definition":  # The trivial bound is shown only where it is the answer.
        return BoundCell(shown if unmoved == BY_DEFINITION else "-", "none", unmoved)
    return BoundCell(shown, evidence.kind, f"{evidence.kind}, {evidence.method}")


def _pictures(row: InputRow, question: Question, heat: Heat, side: int) -> Pictures:
    if row.source is None:
        return BLANK
    witness = row.witness
    if row.source.tokens is not None and question.asked.norm == "edits":
        return edited_sentences(row.source, witness, question.model.vocabulary or ())
    if row.source.tokens is not None:
        return sentences(row.source, row.frames, witness, question.model.vocabulary or (), row.changed_frame)
    shown = pictures_of(row, question) or picture.show(
        row.source.x, witness, question.data.columns or (), side
    )
    return (
        Pictures(shown.input + heat.strip(row.frames), shown.witness, shown.change) if row.frames else shown
    )
