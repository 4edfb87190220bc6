"""What an edited text changes: its words in order, each kept, inserted or deleted, for every view."""

from collections.abc import Sequence
from difflib import SequenceMatcher
from typing import Any, Literal, NamedTuple

from markupsafe import Markup
from numpy.typing import NDArray

from holdfast.network.text import PIECE
from holdfast.report.summary import word_name

Change = Literal["kept", "inserted", "deleted"]
AROUND = 4  # Kept words that are shown on each side of a change in a long text.
MOST_WORDS = 60  # Words of a text that is shown whole.


class ChangedWord(NamedTuple):
    """A word of either text; its name is '…' where kept words are left out."""

    change: Change
    name: str


def text_difference(
    tokens: Sequence[int], witness: NDArray[Any], vocabulary: Sequence[str]
) -> list[ChangedWord]:
    """Return the words of both texts: a deleted one stands before what was inserted in its place."""
    after = [int(word) for word in witness.tolist()]
    found: list[ChangedWord] = []
    for kind, begin, end, start, stop in SequenceMatcher(
        None, list(tokens), after, autojunk=False
    ).get_opcodes():
        if kind == "equal":
            found += [ChangedWord("kept", word_name(word, vocabulary)) for word in after[start:stop]]
            continue
        found += [ChangedWord("deleted", word_name(int(word), vocabulary)) for word in tokens[begin:end]]
        found += [ChangedWord("inserted", word_name(word, vocabulary)) for word in after[start:stop]]
    found = _join_pieces(found)
    return found if len(found) <= MOST_WORDS else _shorten(found)


def _join_pieces(words: list[ChangedWord]) -> list[ChangedWord]:
    """Join the pieces of a word, such as awe ##some, where they have the same change."""
    found: list[ChangedWord] = []
    for one in words:
        if found and one.name.startswith(PIECE) and one.change == found[-1].change:
            found[-1] = ChangedWord(one.change, found[-1].name + one.name.removeprefix(PIECE))
        else:
            found.append(one)
    return found


def _shorten(words: list[ChangedWord]) -> list[ChangedWord]:
    """The changes with the words around them."""
    changed = [place for place, word in enumerate(words) if word.change != "kept"]
    near = {k for place in changed for k in range(place - AROUND, place + AROUND + 1)} or {*range(MOST_WORDS)}
    found: list[ChangedWord] = []
    last = -1
    for place in sorted(k for k in near if 0 <= k < len(words)):
        if place != last + 1:
            found.append(ChangedWord("kept", "…"))
        found.append(words[place])
        last = place
    return found if last + 1 == len(words) else [*found, ChangedWord("kept", "…")]


def difference_markup(words: Sequence[ChangedWord]) -> Markup:
    """The words as HTML: deleted ones struck out, inserted ones marked."""
    forms = {
        "kept": Markup("<b>{}</b>"),
        "deleted": Markup("<del>{}</del>"),
        "inserted": Markup("<ins>{}</ins>"),
    }
    parts = [forms[word.change].format(word.name) for word in words]
    return Markup('<p class="words">{}</p>').format(Markup(" ").join(parts))


def difference_text(words: Sequence[ChangedWord]) -> str:
    """The words as plain text: [-deleted-] and [+inserted+]."""
    forms = {"kept": "{}", "deleted": "[-{}-]", "inserted": "[+{}+]"}
    return " ".join(forms[word.change].format(word.name) for word in words)
