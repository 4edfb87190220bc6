"""A sentence and its witness as people read them: words in shades, replaced ones marked, long texts cut around what matters."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from holdfast.report.heat import Heat
from holdfast.report.picture import Pictures
from holdfast.report.summary import short, weakest, word_name
from holdfast.result import Record
from holdfast.store import StoredInput

Array = NDArray[Any]
MOST_WORDS = 60  # of a sentence; a longer one is shown around the words that matter
AROUND = 4  # words on either side of one that matters


def sentences(source: StoredInput, frames: Sequence[Record], witness: Array | None, vocabulary: Sequence[str], heat: Heat) -> Pictures:
    """The words, in shades where each was asked by itself, and those of the witness with the replaced ones marked."""
    tokens = np.array(source.tokens or (), dtype=np.int64)
    moved = moved_places(tokens, source.x, witness)
    places = shown_places(len(tokens), moved or weakest(frames))
    brackets = {record.key.frame: record.bracket for record in frames}
    shades = {place: heat.word(brackets[place]) for place in places if place in brackets}
    spans = {k: Markup("<b{}>{}</b>").format(shades.get(k, Markup()), word_name(int(tokens[k]), vocabulary)) for k in places}
    if witness is None or not moved:
        return Pictures(_joined(spans, len(tokens)), Markup(), Markup())
    if witness.ndim > 1:  # vectors moved, not words
        told = Markup("<small>moves word {}</small>").format(short(", ".join(map(str, moved))))
        return Pictures(_joined(spans, len(tokens)), told, Markup())
    marks = {k: Markup("<mark>{}</mark>" if k in set(moved) else "{}").format(word_name(int(witness[k]), vocabulary)) for k in places}
    return Pictures(
        _joined(spans, len(tokens)), _joined(marks, len(tokens)), Markup("<small>{} of {} words</small>").format(len(moved), len(tokens))
    )


def moved_places(tokens: Array, x: Array, witness: Array | None) -> list[int]:
    """The places of the words that a witness replaces, or whose vectors it moves."""
    if witness is None or len(witness) != len(tokens):
        return []
    if witness.ndim == 1:
        places: list[int] = np.flatnonzero(witness != tokens).tolist()
        return places
    if witness.shape != x.shape:
        return []
    changed: list[int] = np.flatnonzero((witness != x).reshape(len(x), -1).any(1)).tolist()
    return changed


def shown_places(count: int, important: Sequence[int]) -> list[int]:
    """All words of a sentence, or of a long one those around the important words, else its beginning."""
    if count <= MOST_WORDS or not important:
        return list(range(min(count, MOST_WORDS)))
    near = {k for place in important[: MOST_WORDS // (2 * AROUND + 1)] for k in range(place - AROUND, place + AROUND + 1)}
    return sorted(k for k in near if 0 <= k < count)


def _joined(spans: Mapping[int, Markup], count: int) -> Markup:
    """Words in their order, with a sign wherever some are left out."""
    parts: list[Markup] = []
    last = -1
    for place, span in spans.items():
        if place != last + 1:
            parts.append(Markup("…"))
        parts.append(span)
        last = place
    if last + 1 < count:
        parts.append(Markup("… ({} words)").format(count))
    return Markup('<p class="words">{}</p>').format(Markup(" ").join(parts))
