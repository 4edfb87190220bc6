"""The table of inputs on the page, line by line: pictures, words with shades, and where each end comes from."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from markupsafe import Markup

from holdfast.report import picture
from holdfast.report.picture import Pictures
from holdfast.report.summary import Row, at_least, at_most, by_lower_end, class_name, unbreakable, word_name
from holdfast.result import Bound, Bracket, Record
from holdfast.store import StoredInput

PICTURE_BYTES = 700_000  # for all lines together; those that come too late go without
HEAT_LEVELS = 10
BLANK = Pictures(Markup(), Markup(), Markup())


@dataclass(frozen=True)
class Line:
    """One line of the table, ready to be shown."""

    row: Row
    label: str
    prediction: str
    wrong: bool
    lower: "End"
    upper: "End"
    pictures: Pictures
    picture_left_out: bool  # the page would grow too large


@dataclass(frozen=True)
class End:
    """An end of a bracket for people."""

    shown: str
    colour: str  # a kind of evidence, or none: what holds by definition has nothing to boast of
    source: str


def lines_of(rows: Sequence[Row], question: Mapping[str, Any]) -> list[Line]:
    heat = Heat.over(record for row in rows for record in row.frames)
    lines: list[Line] = []
    room = PICTURE_BYTES
    for row in rows:
        pictures = _pictures(row, question.get("vocabulary") or (), heat)
        size = len(pictures.input) + len(pictures.witness) + len(pictures.change)
        fits = size <= room
        room -= size if fits else 0
        lines.append(_line(row, question, pictures if fits else BLANK, left_out=not fits))
    return lines


def _line(row: Row, question: Mapping[str, Any], pictures: Pictures, *, left_out: bool) -> Line:
    label, prediction = (row.source.label, row.source.prediction) if row.source else (None, None)
    lower, upper = row.bracket.lower, row.bracket.upper
    closed = "by definition" if row.bracket.closed else ""
    return Line(
        row=row,
        label=class_name(question, label),
        prediction=class_name(question, prediction),
        wrong=label is not None and prediction is not None and label != prediction,
        lower=_end(lower, at_least(lower.value), closed or "nothing proved yet"),
        upper=_end(upper, at_most(upper.value), closed or "no witness yet"),
        pictures=pictures,
        picture_left_out=left_out,
    )


def _end(bound: Bound, shown: str, unmoved: str) -> End:
    evidence = bound.evidence
    if evidence.method == "definition":
        return End(shown, "none", unmoved)
    return End(shown, evidence.kind, f"{evidence.kind}, {evidence.method}")


def _pictures(row: Row, vocabulary: Sequence[str], heat: "Heat") -> Pictures:
    if row.source is None:
        return BLANK
    found = row.bracket.upper.evidence.witness
    witness = None if found is None else found.numpy()
    shown = picture.show(row.source.x, witness)
    if row.source.tokens is not None:
        moved = _moved_words(row.source, witness, vocabulary)
        return Pictures(_sentence(row.source.tokens, row.frames, vocabulary, heat), moved, Markup())
    return Pictures(shown.input + heat.strip(row.frames), shown.witness, shown.change) if row.frames else shown


def _sentence(tokens: Sequence[int], frames: Sequence[Record], vocabulary: Sequence[str], heat: "Heat") -> Markup:
    """The words, in shades where each was asked by itself."""
    brackets = {record.key.frame: record.bracket for record in frames}
    words = [word_name(token, vocabulary) for token in tokens]
    shades = [heat.word(brackets[place]) if place in brackets else Markup() for place in range(len(words))]
    spans = (Markup("<b{}>{}</b>").format(shade, word) for shade, word in zip(shades, words, strict=True))
    return Markup('<p class="words">{}</p>').format(Markup(" ").join(spans))


def _moved_words(source: StoredInput, witness: "np.ndarray[Any, Any] | None", vocabulary: Sequence[str]) -> Markup:
    """The sentence of a witness with its replaced words marked; where vectors moved instead, the places of their words."""
    if witness is None or source.tokens is None or len(witness) != len(source.tokens):
        return Markup()
    if witness.ndim == 1:
        spans = (
            Markup("<mark>{}</mark>" if new != old else "{}").format(word_name(new, vocabulary))
            for new, old in zip(witness.tolist(), source.tokens, strict=True)
        )
        return Markup('<p class="words">{}</p>').format(Markup(" ").join(spans))
    if witness.shape != source.x.shape:
        return Markup()
    places = ", ".join(str(place) for place in np.flatnonzero((witness != source.x).any(-1)))
    return Markup("<small>moves word {}</small>").format(places) if places else Markup()


@dataclass(frozen=True)
class Heat:
    """Radii as shades: h9 is the smallest radius, which breaks first, h0 the largest, or one that nothing breaks; 'open' an unknown one."""

    scale: float
    by_lower: bool  # a word has one shade: of its lower or of its upper end

    @staticmethod
    def over(records: Iterable[Record]) -> "Heat":
        """One scale for all, so that inputs can be compared; the largest twentieth shares the lightest shade."""
        known = list(records)
        values = sorted(v for r in known for v in (r.bracket.lower.value, r.bracket.upper.value) if math.isfinite(v))
        scale = values[int(0.95 * (len(values) - 1))] if values else 1.0
        return Heat(scale, by_lower_end(known))

    def level(self, end: Bound, bracket: Bracket) -> str:
        value = end.value
        if math.isinf(value):
            return "h0" if unbreakable(bracket) else "open"
        share = min(1.0, max(0.0, value / self.scale)) if self.scale > 0 else 0.0
        return f"h{min(HEAT_LEVELS - 1, int((1 - share) * HEAT_LEVELS))}"

    def word(self, bracket: Bracket) -> Markup:
        end = bracket.lower if self.by_lower else bracket.upper
        return Markup(' class="{}" title="{}"').format(self.level(end, bracket), _range(bracket))

    def strip(self, frames: Sequence[Record]) -> Markup:
        """Two rows of cells, one cell a frame: lower ends above, upper ends below."""
        cells = []
        for record in frames:
            lower, upper = (self.level(end, record.bracket) for end in (record.bracket.lower, record.bracket.upper))
            title = f"frame {record.key.frame}: {_range(record.bracket)}"
            cells.append(Markup('<u title="{}"><i class="{}"></i><i class="{}"></i></u>').format(title, lower, upper))
        return Markup('<div class="strip">{}</div>').format(Markup().join(cells))


def _range(bracket: Bracket) -> str:
    return f"{at_least(bracket.lower.value)} to {at_most(bracket.upper.value)}"
