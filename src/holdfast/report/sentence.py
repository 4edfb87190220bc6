"""A sentence and its witness as people read them: words in shades, replaced ones marked, long texts cut around what matters."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from holdfast.report.heat_map import Heat
from holdfast.report.picture import Pictures
from holdfast.report.summary import weakest, word_name
from holdfast.result import Record
from holdfast.store import StoredInput

Array = NDArray[Any]
MOST_WORDS = 60  # of a sentence; a longer one is shown around the words that matter
MOST_SWAPS = 8  # replaced words that are told one by one
AROUND = 4  # words on either side of one that matters


def sentences(
    source: StoredInput,
    frames: Sequence[Record],
    witness: Array | None,
    vocabulary: Sequence[str],
    alone: int | None = None,
) -> Pictures:
    """The words, in shades where each was asked by itself, those of the witness with the replaced ones marked, and what became what.

    alone  the only word that the witness changes, where that is known.
    """
    tokens = np.array(source.tokens or (), dtype=np.int64)
    moved = moved_places(tokens, source.x, witness, alone)
    places, heat = shown_places(len(tokens), moved or weakest(frames)), Heat.within(frames)
    brackets = {record.key.frame: record.bracket for record in frames}
    shades = {place: heat.word(brackets[place]) for place in places if place in brackets}
    words = {k: word_name(int(tokens[k]), vocabulary) for k in places}
    spans = {k: Markup("<b{}>{}</b>").format(shades.get(k, Markup()), word) for k, word in words.items()}
    if witness is None or not moved:
        return Pictures(_join_words(spans, len(tokens)), Markup(), Markup())
    by_vectors, marked = witness.ndim > 1, set(moved)
    said = words if by_vectors else {k: word_name(int(witness[k]), vocabulary) for k in places}
    shown = {k: Markup("<mark>{}</mark>" if k in marked else "{}").format(word) for k, word in said.items()}
    seen = [k for k in places if k in marked][:MOST_SWAPS]
    before, after = _join_words(spans, len(tokens)), _join_words(shown, len(tokens))
    if by_vectors:
        told = (
            "the vectors of all words"
            if len(moved) == len(tokens) > 1
            else f"the vector of {', '.join(words[k] for k in seen)}"
        )
        more = ", …" if len(seen) < len(moved) < len(tokens) else ""
        return Pictures(before, after, Markup("<small>moves {}{}</small>").format(told, more))
    swaps = Markup().join(Markup("{} → <mark>{}</mark><br>").format(words[k], said[k]) for k in seen)
    return Pictures(
        before,
        after,
        Markup('<p class="swaps">{}<small>{} of {} words</small></p>').format(swaps, len(moved), len(tokens)),
    )


def moved_places(tokens: Array, x: Array, witness: Array | None, alone: int | None = None) -> list[int]:
    """The places of the words that a witness replaces, or whose vectors it moves: where only one may move, that one, where the vectors of
    the input were not kept, all of them."""
    if witness is None or len(witness) != len(tokens):
        return []
    if witness.ndim > 1 and alone is not None:
        return [alone]
    differs = (
        witness != tokens
        if witness.ndim == 1
        else (witness != x).reshape(len(x), -1).any(1)
        if witness.shape == x.shape
        else None
    )
    places: list[int] = list(range(len(tokens))) if differs is None else np.flatnonzero(differs).tolist()
    return places


def shown_places(count: int, important: Sequence[int]) -> list[int]:
    """All words of a sentence, or of a long one those around the important words, else its beginning."""
    if count <= MOST_WORDS or not important:
        return list(range(min(count, MOST_WORDS)))
    near = {
        k
        for place in important[: MOST_WORDS // (2 * AROUND + 1)]
        for k in range(place - AROUND, place + AROUND + 1)
    }
    return sorted(k for k in near if 0 <= k < count)


def _join_words(spans: Mapping[int, Markup], count: int) -> Markup:
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
