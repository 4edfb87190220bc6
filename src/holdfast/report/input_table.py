"""The table of inputs on the page, line by line: pictures, words with shades, and where each end comes from."""

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from holdfast.formatting import LEAST_SHOWN, ends, short
from holdfast.question import Question
from holdfast.report import picture
from holdfast.report.class_probabilities import Map, map_of, pack_answers
from holdfast.report.columns import pictures_of
from holdfast.report.heat_map import Heat
from holdfast.report.picture import Pictures
from holdfast.report.sentence import sentences
from holdfast.report.summary import InputRow, class_name, frame_name, word_name
from holdfast.report.verdict import right, spoken, verdict
from holdfast.result import Bound

PICTURE_BYTES = 450_000  # for all lines together; those that come too late go without
ATTRIBUTE = 20  # signs around what rides on a row
LONG_NOTE = 400
SORTED_DIGITS = 7
BLANK = Pictures(Markup(), Markup(), Markup())


@dataclass(frozen=True)
class InputLine:
    """One line of the table, ready to be shown."""

    row: InputRow
    anchor: str
    label: str
    prediction: str
    wrong: bool
    verdict: str  # at zero, where that is all that was asked
    lower: "BoundCell"
    upper: "BoundCell"
    name: str
    note: str
    low: str  # the ends in more digits, still rounded outwards, for sorting and filtering
    high: str
    pictures: Pictures
    saliency: Map
    answers: str  # the likeliest classes before and after, packed
    picture_left_out: bool  # the page would grow too large


@dataclass(frozen=True)
class BoundCell:
    """An end of a bracket for people."""

    shown: str
    colour: str  # a kind of evidence, or none: what holds by definition has nothing to boast of
    source: str


def heat_of(rows: Sequence[InputRow], question: Question) -> Heat:
    return Heat.over((record for row in rows for record in row.frames), frame_name(question))


def lines_of(
    rows: Sequence[InputRow], question: Question, heat: Heat, most: int = PICTURE_BYTES
) -> list[InputLine]:
    """`most` bytes of pictures."""
    lines: list[InputLine] = []
    answers = [pack_answers(row.answers) for row in rows]
    room = most - min(most // 4, sum(len(said) + ATTRIBUTE for said in answers if said))
    for row, said in zip(rows, answers, strict=True):
        pictures = _pictures(row, question, heat) if room > 0 else BLANK
        saliency = map_of(row.source.saliency) if room > 0 and row.source else Map()
        room -= (
            len(pictures.input)
            + len(pictures.witness)
            + len(pictures.change)
            + len(saliency.png)
            + len(saliency.words)
        )
        shown, marked = (pictures, saliency) if room > 0 else (BLANK, Map())
        lines.append(_line(row, question, shown, marked, said, left_out=room <= 0))
    return lines


def _line(
    row: InputRow, question: Question, pictures: Pictures, saliency: Map, answers: str, *, left_out: bool
) -> InputLine:
    label, prediction = (row.source.label, row.source.prediction) if row.source else (None, None)
    lower, upper = row.bracket.lower, row.bracket.upper
    shown_low, shown_high = ends(lower.value, upper.value)
    low, high = (
        (repr(lower.value), repr(upper.value))
        if 0 < lower.value < LEAST_SHOWN
        else ends(lower.value, upper.value, SORTED_DIGITS)
    )
    closed = "by definition" if row.bracket.closed else ""
    unproved, unseen = closed or "nothing proved yet", closed or f"{row.sense.missing} yet"
    return InputLine(
        row=row,
        anchor=f"i{row.index}" if row.output is None else f"i{row.index}-output-{row.output}",
        label=class_name(question, label),
        prediction=class_name(question, prediction),
        wrong=not right(row),
        verdict=spoken(verdict(row, 0.0), question.command),
        lower=_end(lower, shown_low, unproved if row.sense.rises else unseen),
        upper=_end(upper, shown_high, unseen if row.sense.rises else unproved),
        name="" if _is_sentence(row, question) else row.called,
        note=short(row.bracket.note, LONG_NOTE),
        low=low,
        high=high,
        pictures=pictures,
        saliency=saliency,
        answers=answers,
        picture_left_out=left_out,
    )


def _is_sentence(row: InputRow, question: Question) -> bool:
    """Is the name what the words say already?"""
    vocabulary, tokens = question.model.vocabulary or (), row.source.tokens if row.source else None
    return tokens is not None and row.called.split() == [word_name(token, vocabulary) for token in tokens]


def _end(bound: Bound, shown: str, unmoved: str) -> BoundCell:
    evidence = bound.evidence
    if evidence.method == "definition":
        return BoundCell(shown, "none", unmoved)
    return BoundCell(shown, evidence.kind, f"{evidence.kind}, {evidence.method}")


def _pictures(row: InputRow, question: Question, heat: Heat) -> Pictures:
    if row.source is None:
        return BLANK
    witness = row.witness
    if row.source.tokens is not None:
        return sentences(row.source, row.frames, witness, question.model.vocabulary or (), row.moved)
    shown = pictures_of(row, question) or picture.show(row.source.x, witness)
    return (
        Pictures(shown.input + heat.strip(row.frames), shown.witness, shown.change) if row.frames else shown
    )
