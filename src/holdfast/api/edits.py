"""`hf.Edits`: which edits of a text count, in the user's words, and the rules in token ids that they become."""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from numbers import Integral
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from holdfast.api.arguments import show
from holdfast.errors import BadInput
from holdfast.files import read_json
from holdfast.formatting import suggest
from holdfast.network import Network
from holdfast.network.classes import list_names
from holdfast.network.output_comparison import same_by_rounding
from holdfast.network.text import HuggingFace, number_of
from holdfast.region import EditedTexts, EditRules, Family
from holdfast.region.edits import KINDS, Text

Word = str | int
Words = Sequence[Word] | Literal["all"] | None
# Edits of one text beyond this are no longer small changes, and every bound takes a step for each (chosen by hand).
MOST_EDITS = 50
CHECKED_TEXTS = 64  # Padded texts whose answers are compared with those of the texts alone (chosen by hand).
EXPECTED = (
    'expected the edits as a JSON object, {"delete": 1, "insert": 1, "insertions": ["the", "a"]}, or as text: '
    "delete=1,insert=1,insertions=the|a"
)
LISTS = ("insertions", "deletable", "duplicable", "fixed")


@dataclass(frozen=True, kw_only=True)
class Edits:
    """Which edits of a text count: how many of each kind, and with which words.

    An edit acts on a token: a word, or a character of a character model. Each token of the text takes part in one edit
    at most, and a text keeps at least one token.

    Attributes:
        substitute: the largest number of words that are replaced.
        insert: the largest number of words that are inserted.
        delete: the largest number of words that are deleted.
        swap: the largest number of pairs of neighbours that are swapped.
        duplicate: the largest number of words that are written twice.
        total: the largest number of edits in all. Default: the sum of the others.
        substitutes: a mapping, word -> words that may replace it, or a list of words that may replace any word;
            "all": the whole vocabulary. With a tokenizer that splits words, the words of a mapping are whole words:
            all tokens of one are replaced by all of the other.
        insertions: the words that may be inserted; "all": the whole vocabulary.
        deletable: the words that may be deleted. Default: every word.
        duplicable: the words that may be duplicated. Default: every word.
        fixed: words that no edit touches, such as [CLS]; nothing is inserted outside of those at the ends.
        length: the network reads the first `length` tokens of a text, so an insertion may push the last ones out.
        padding: the word that fills shorter texts up to `length`, if the network reads them so.

    Words are names of the vocabulary or token ids.
    """

    substitute: int = 0
    insert: int = 0
    delete: int = 0
    swap: int = 0
    duplicate: int = 0
    total: int | None = None
    substitutes: Mapping[str, Sequence[str]] | Mapping[int, Sequence[int]] | Words = None
    insertions: Words = None
    deletable: Sequence[Word] | None = None
    duplicable: Sequence[Word] | None = None
    fixed: Sequence[Word] = ()
    length: int | None = None
    padding: Word | None = None

    def __post_init__(self) -> None:
        for name in (*KINDS, "total", "length"):
            self._check_number(name, getattr(self, name), least=1 if name in ("total", "length") else 0)
        for name in LISTS:
            self._check_list(name, getattr(self, name))
        if not any(self.budgets):
            raise BadInput(
                "edits: no edit is allowed. Give at least one number, as in hf.Edits(delete=1, swap=1)."
            )
        self._check_substitutes()
        if self.insert and self.insertions is None:
            raise BadInput(
                "edits: insert needs the words that may be inserted: insertions=['the', 'a'], or 'all' for the "
                "whole vocabulary."
            )
        if self.padding is not None and self.length is None:
            raise BadInput("edits: padding fills texts up to a length: give that too, as in length=32.")
        if min(sum(self.budgets), self.total or sum(self.budgets)) > MOST_EDITS:
            raise BadInput(f"edits: at most {MOST_EDITS} edits in all; give total={MOST_EDITS} or less.")

    @property
    def budgets(self) -> tuple[int, ...]:
        """The largest number of edits of each kind, in the order of `KINDS`."""
        return tuple(int(getattr(self, name)) for name in KINDS)

    def _check_number(self, name: str, value: object, *, least: int) -> None:
        if value is None and name in ("total", "length"):
            return
        if isinstance(value, bool) or not isinstance(value, Integral):
            raise BadInput(f"edits: {name} must be a whole number, got {show(value)}.")
        if int(value) < least:
            raise BadInput(f"edits: {name} must be at least {least}, got {value}.")

    def _check_list(self, name: str, value: object) -> None:
        if value is None or (value == "all" and name == "insertions"):
            return
        if isinstance(value, str) or not isinstance(value, Sequence):
            raise BadInput(f"edits: {name} is a list of words, as in ['the', 'a'], got {show(value)}.")
        if not value and name != "fixed":
            raise BadInput(
                f"edits: the list {name} is empty: leave it out"
                + (", or give at least one word." if name == "insertions" else " to allow every word.")
            )

    def _check_substitutes(self) -> None:
        given = self.substitutes
        if given is None:
            if self.substitute:
                raise BadInput(
                    "edits: substitute needs words: substitutes={'good': ['fine', 'great']}, a list of words that "
                    "may replace any word, or 'all'."
                )
            return
        if isinstance(given, str) and given != "all":
            raise BadInput(
                f"edits: substitutes is a mapping, a list of words, or 'all', got the text {show(given)}."
            )
        if not isinstance(given, Mapping | Sequence):
            raise BadInput(f"edits: substitutes is a mapping or a list of words, got {show(given)}.")
        if not given:
            raise BadInput("edits: substitutes is empty: no word could be replaced.")
        for word, others in given.items() if isinstance(given, Mapping) else ():
            if isinstance(others, str) or not isinstance(others, Sequence):
                raise BadInput(
                    f"edits: the substitutes of {word!r} are a list of words, as in ['fine'], got {show(others)}."
                )

    # ---- token ids

    def rules(self, net: Network) -> EditRules:
        """Return the rules in token ids of this network."""
        if net.vectors is None:
            raise BadInput(
                f"edits are of tokens, and {net.name} reads numbers: build the network with tokens=True or "
                "vocabulary=[...]."
            )
        known = _Vocabulary.of(net)
        by_word: tuple[tuple[int, Text], ...] = ()
        any_word: Text = ()
        phrases = _phrases(net, self.substitutes)
        if phrases:
            pass
        elif isinstance(self.substitutes, Mapping):
            each = {
                known.id_of("substitutes", word): known.ids_of("substitutes", others)
                for word, others in self.substitutes.items()
            }
            by_word = tuple(sorted(each.items()))
        elif self.substitutes is not None:
            any_word = known.ids_of("substitutes", self.substitutes)
        padding = None if self.padding is None else known.id_of("padding", self.padding)
        fixed = frozenset(known.ids_of("fixed", self.fixed))
        never = fixed if padding is None else fixed | {padding}
        insertions = () if self.insertions is None else known.ids_of("insertions", self.insertions)
        if self.insertions == "all":
            insertions = tuple(word for word in insertions if word not in never)
        if self.substitutes == "all":
            any_word = tuple(word for word in any_word if word not in never)
        total = sum(self.budgets) if self.total is None else min(self.total, sum(self.budgets))
        return EditRules(
            self.budgets,
            total,
            by_word,
            any_word,
            insertions,
            None if self.deletable is None else frozenset(known.ids_of("deletable", self.deletable)),
            None if self.duplicable is None else frozenset(known.ids_of("duplicable", self.duplicable)),
            fixed,
            None if self.length is None else int(self.length),
            padding,
            phrases,
            net.tokenizer.continuing if phrases and isinstance(net.tokenizer, HuggingFace) else frozenset(),
            net.tokenizer.marks if phrases and isinstance(net.tokenizer, HuggingFace) else frozenset(),
        )

    def families(self, net: Network, rows: list[Tensor]) -> list[tuple[list[int], Family]]:
        """Return the regions around texts, one for each length, with the places of their texts."""
        rules = self.rules(net)
        assert net.vectors is not None
        groups: dict[int, list[int]] = {}
        texts: list[Text] = []
        for place, row in enumerate(rows):
            if row.is_floating_point() or row.dim() != 1:
                raise BadInput(
                    f"edits: input {place} is {row.dtype} of shape {tuple(row.shape)}; give texts or token ids."
                )
            text = rules.strip(tuple(row.tolist()))
            if not text:
                raise BadInput(f"edits: text {place} is empty: there is nothing to edit.")
            if min(text) < 0 or max(text) >= len(net.vectors):
                raise BadInput(
                    f"edits: text {place} has token ids from {min(text)} to {max(text)}, but the embedding has "
                    f"{len(net.vectors)} words."
                )
            texts.append(text)
            groups.setdefault(len(text), []).append(place)
        found: list[tuple[list[int], Family]] = []
        for members in groups.values():
            region = EditedTexts.around(torch.tensor([texts[i] for i in members]), rules, net.vectors)
            found.append((members, region))
        return found

    def stored(self) -> dict[str, Any]:
        """Return the edits as a run stores them: what was left out is not there."""
        found: dict[str, Any] = {}
        for one in fields(self):
            value = getattr(self, one.name)
            if value is None or (one.name in KINDS and value == 0) or value == ():
                continue
            if isinstance(value, Mapping):
                found[one.name] = {str(word): list(others) for word, others in value.items()}
            else:
                found[one.name] = value if isinstance(value, str | int) else list(value)
        return found


def _phrases(
    net: Network, substitutes: object, *, warn: bool = True
) -> tuple[tuple[Text, tuple[Text, ...]], ...]:
    """Return the tokens of whole words and of the words that may replace them; empty where words are single tokens.

    A tokenizer may write a word otherwise behind a space, so both forms are taken. Words that it cannot write are left out,
    with a warning.
    """
    tokenizer = net.tokenizer
    by_word = isinstance(substitutes, Mapping) and all(isinstance(word, str) for word in substitutes)
    if not by_word or not isinstance(tokenizer, HuggingFace):
        return ()
    assert isinstance(substitutes, Mapping)
    found: dict[Text, dict[Text, None]] = {}
    lost: list[str] = []
    for word, others in substitutes.items():
        for space in ("", " "):
            own = tokenizer.pieces(space + word)
            texts = {str(other): tokenizer.pieces(space + str(other)) for other in others}
            lost += [other for other, text in texts.items() if text is None and not space]
            if own is not None:
                found.setdefault(own, {}).update((text, None) for text in texts.values() if text is not None)
    if not tokenizer.continuing and all(
        len(text) == 1 for own, others in found.items() for text in (own, *others)
    ):
        return ()  # Every word is one token, so a token is a whole word.
    if not any(found.values()):
        raise BadInput(f"substitutes: the tokenizer {tokenizer.name} can write none of these words.")
    if lost and warn:
        warnings.warn(
            f"substitutes: {len(lost)} hold characters that the tokenizer {tokenizer.name} does not know, and are left "
            f"out ({', '.join(lost[:3])} ...).",
            stacklevel=2,
        )
    return tuple(sorted((own, tuple(sorted(others))) for own, others in found.items() if others))


def whole_word_edits(net: Network, substitutes: object) -> Edits | None:
    """Return the edits that replace whole words, where a word or a substitute is several tokens; else None."""
    if not isinstance(substitutes, Mapping) or not all(
        isinstance(others, list | tuple) for others in substitutes.values()
    ):
        return None
    phrases = _phrases(net, substitutes, warn=False)
    several = any(len(text) > 1 for own, others in phrases for text in (own, *others))
    return Edits(substitute=MOST_EDITS, substitutes=substitutes) if several else None


def check_padding(net: Network, x: Any, rows: Sequence[Tensor], edits: Edits) -> None:
    """Raise BadInput if the network answers padded texts otherwise than the texts alone.

    Regions hold texts without padding, so their answers must equal the answers to padded texts; where the
    edits name the padding, the network reads it.
    """
    if edits.padding is not None or net.token_model is None:
        return
    for place, (given, row) in enumerate(zip(x, rows[:CHECKED_TEXTS], strict=False)):
        padded = torch.as_tensor(given)
        if len(padded) == len(row):
            continue
        outputs = net.ask_tokens(padded[None]), net.ask_tokens(row[None])
        if not same_by_rounding(*outputs):
            raise BadInput(
                f"{net.name} answers text {place} differently with and without its padding, so edited texts have no "
                "answer of their own. Say how it reads them: hf.Edits(..., length=N, padding=word), with the number "
                "of tokens that it reads and the word that fills them up."
            )


@dataclass(frozen=True)
class _Vocabulary:
    """The words of a network by name and number."""

    net: Network
    numbers: Mapping[str, int]
    size: int

    @staticmethod
    def of(net: Network) -> "_Vocabulary":
        assert net.vectors is not None
        return _Vocabulary(net, {} if net.vocabulary is None else number_of(net.vocabulary), len(net.vectors))

    def ids_of(self, name: str, words: Sequence[Word]) -> Text:
        """Return the token ids of a list of words, each once; "all": the whole vocabulary."""
        if isinstance(words, str):
            return tuple(range(self.size))
        return tuple(dict.fromkeys(self.id_of(name, word) for word in words))

    def id_of(self, name: str, word: object) -> int:
        if isinstance(word, Tensor):
            word = word.item()
        if isinstance(word, str) and not self.numbers and word.isdecimal():
            word = int(word)  # Keys of JSON objects, and words on the command line, are texts.
        if isinstance(word, Integral):
            if not 0 <= int(word) < self.size:
                raise BadInput(
                    f"edits: {name} has the token id {int(word)}, but the vocabulary has {self.size} words (0 to "
                    f"{self.size - 1})."
                )
            return int(word)
        if not isinstance(word, str):
            raise BadInput(f"edits: {name} holds {show(word)}: give words or token ids.")
        if not self.numbers:
            raise BadInput(
                f"edits: {name} has the word {word!r}, and {self.net.name} has no vocabulary. Build it with "
                "vocabulary=[...], or give token ids."
            )
        found = self.numbers.get(word, self.numbers.get(word.lower()))
        if found is None:
            raise BadInput(
                f"edits: {name} has the word {word!r}, which is not in the vocabulary of {self.net.name} "
                f"({list_names(list(self.numbers)[:5])}, ...).{suggest(word, list(self.numbers))}"
            )
        return found


# ---- the command line


def read_edits(text: str) -> Edits:
    """Return the edits of a JSON file, or of a text such as delete=1,insert=1,insertions=the|a."""
    if "=" not in text or Path(text).is_file():
        given = read_json(Path(text), EXPECTED)
        if not isinstance(given, dict):
            raise BadInput(f"{text}: {EXPECTED}.")
        where = text
    else:
        given, where = dict[str, Any](), "--edits"
        for part in text.split(","):
            name, equals, value = (side.strip() for side in part.partition("="))
            if not equals:
                raise BadInput(f"--edits: {part!r} is no name=value; {EXPECTED}.")
            given[name] = _typed_value(name, value)
    names = [one.name for one in fields(Edits)]
    for name in given:
        if name not in names:
            raise BadInput(
                f"{where}: {name!r} is unknown; there are {list_names(names)}.{suggest(name, names)}"
            )
    return Edits(**given)


def _typed_value(name: str, value: str) -> Any:
    """Return the value of an option in a text: a number, 'all', or a list of words."""
    if name in (*KINDS, "total", "length"):
        try:
            return int(value)
        except ValueError:
            raise BadInput(f"--edits: {name} must be a whole number, got {value!r}.") from None
    if name == "padding":
        return value
    if value == "all" and name in ("insertions", "substitutes"):
        return value
    return [word for word in value.split("|") if word]
