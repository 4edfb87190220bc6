"""A sentence and its counterexample as HTML: shaded words, replaced ones marked, long texts shortened."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from holdfast.report.heat_map import Heat
from holdfast.report.picture import Pictures
from holdfast.report.summary import weakest_frames, word_name
from holdfast.report.text_difference import difference_markup, text_difference
from holdfast.result import Record
from holdfast.store import StoredInput

Array = NDArray[Any]
MOST_WORDS = 60  # Words of a sentence in a cell; a longer one is shown around its important words.
MOST_SWAPS = 8  # Replaced words listed one by one; 8 lines are as high as a row may be.
AROUND = 4  # Words shown on each side of an important one.


def sentences(
    source: StoredInput,
    frames: Sequence[Record],
    witness: Array | None,
    vocabulary: Sequence[str],
    alone: int | None = None,
) -> Pictures:
    """Render the words (shaded where each was queried alone), the counterexample with replaced words
    marked, and the list of replacements.

    alone: the position of the only word that the counterexample changes, if known.
    """
    tokens = np.array(source.tokens or (), dtype=np.int64)
    moved = changed_positions(tokens, source.x, witness, alone)
    places, heat = shown_positions(len(tokens), moved or weakest_frames(frames)), Heat.within(frames)
    brackets = {record.key.frame: record.bracket for record in frames}
    shades = {place: heat.word(brackets[place]) for place in places if place in brackets}
    words = {k: word_name(int(tokens[k]), vocabulary) for k in places}
    spans = {k: Markup("<b{}>{}</b>").format(shades.get(k, Markup()), word) for k, word in words.items()}
    if witness is None or not moved:
        return Pictures(_join_words(spans, len(tokens)), Markup(), Markup())
    by_vectors, marked = witness.ndim > 1, set(moved)
    others = words if by_vectors else {k: word_name(int(witness[k]), vocabulary) for k in places}
    shown = {k: Markup("<mark>{}</mark>" if k in marked else "{}").format(word) for k, word in others.items()}
    seen = [k for k in places if k in marked][:MOST_SWAPS]
    before, after = _join_words(spans, len(tokens)), _join_words(shown, len(tokens))
    if by_vectors:
        moved_words = (
            "the vectors of all words"
            if len(moved) == len(tokens) > 1
            else f"the vector of {', '.join(words[k] for k in seen)}"
        )
        more = ", …" if len(seen) < len(moved) < len(tokens) else ""
        return Pictures(before, after, Markup("<small>moves {}{}</small>").format(moved_words, more))
    swaps = Markup().join(Markup("{} → <mark>{}</mark><br>").format(words[k], others[k]) for k in seen)
    return Pictures(
        before,
        after,
        Markup('<p class="swaps">{}<small>{} of {} words</small></p>').format(swaps, len(moved), len(tokens)),
    )


def edited_sentences(source: StoredInput, witness: Array | None, vocabulary: Sequence[str]) -> Pictures:
    """Render a text, the edited text that is its counterexample, and what was inserted and deleted."""
    tokens = source.tokens or ()
    places = shown_positions(len(tokens), ())
    before = _join_words(
        {k: Markup("<b>{}</b>").format(word_name(int(tokens[k]), vocabulary)) for k in places}, len(tokens)
    )
    if witness is None:
        return Pictures(before, Markup(), Markup())
    words = text_difference(tokens, witness, vocabulary)
    after = difference_markup([word for word in words if word.change != "deleted"])
    return Pictures(before, after, difference_markup(words))


def changed_positions(tokens: Array, x: Array, witness: Array | None, alone: int | None = None) -> list[int]:
    """Return the positions of the words that a counterexample replaces, or whose vectors it changes.

    If only one word may change, that one; if the vectors of the input were not stored, all of them.
    """
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


def shown_positions(count: int, important: Sequence[int]) -> list[int]:
    """Return the positions to show: all, or of a long sentence those around important words, else its
    beginning.
    """
    if count <= MOST_WORDS or not important:
        return list(range(min(count, MOST_WORDS)))
    near = {
        k
        for place in important[: MOST_WORDS // (2 * AROUND + 1)]
        for k in range(place - AROUND, place + AROUND + 1)
    }
    return sorted(k for k in near if 0 <= k < count)


def _join_words(spans: Mapping[int, Markup], count: int) -> Markup:
    """Join words in order, with … where words are left out."""
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
