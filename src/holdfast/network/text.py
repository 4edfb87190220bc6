"""From text to token ids, in the same way wherever a text comes from.

A `Tokenizer` splits a text into pieces with their tokens: `WordTokenizer` by the network's vocabulary,
`CustomTokenizer` by a function of the user, `HuggingFace` by a tokenizer.json. Only `read_texts` decides what
happens to pieces without a token, and it reports them.
"""

import contextlib
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from numbers import Integral
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from holdfast.errors import BadInput, HoldfastError, MissingExtra, UnreadableFile
from holdfast.files import LARGEST_JSON, read_text
from holdfast.foreign_text import first_line
from holdfast.network.callable_fingerprint import of_value
from holdfast.network.fingerprint import of_text
from holdfast.network.tokenizer_check import check_tokenizer

Unknown = Literal["error", "skip", "unk"]
# Usual names of the token for unknown words.
UNKNOWN_WORDS = ("<unk>", "[UNK]", "<UNK>", "unk", "UNK", "<oov>")
# Punctuation that is split from the start and the end of a word.
SIGNS = ".,;:!?…\"'()[]“”„‘’‚«»‹›¡¿"
# Number of words that a note names (chosen by hand).
EXAMPLES = 5
# Longest text in an error message, in characters (chosen by hand).
MAX_QUOTED = 40
EXPORTED = "Write it with save() of the tokenizers package, or save_pretrained() of transformers."


@dataclass(frozen=True)
class Text:
    """A text split into pieces.

    Attributes:
        ids: the token of each piece; None if it has none.
        left_out: parts of the text that belong to no piece.
    """

    pieces: tuple[str, ...]
    ids: tuple[int | None, ...]
    left_out: tuple[str, ...] = ()


class Tokenizer(ABC):
    """Splits text into tokens, deterministically.

    Attributes:
        fingerprint: hash of everything that decides which tokens a text becomes.
        unknown: the token for unknown words, if there is one.
    """

    name: str
    fingerprint: str
    unknown: int | None

    @abstractmethod
    def cut(self, text: str) -> Text:
        """The pieces of the text with their tokens. BadInput if the text cannot be split."""


def number_of(vocabulary: Iterable[str]) -> dict[str, int]:
    """The index of each word in the vocabulary; the first one if a word is repeated."""
    return {word: i for i, word in reversed(list(enumerate(vocabulary)))}


class WordTokenizer(Tokenizer):
    """The default tokenizer: splits at white space and looks words up in the vocabulary.

    A word is looked up unchanged, then in lower case, then (unchanged and in lower case) without the SIGNS at
    its start and end. Signs that are split off become tokens if the vocabulary has them, and are left out
    otherwise. Every other word is unknown.
    """

    name = "words of the vocabulary"

    def __init__(self, vocabulary: Sequence[str]) -> None:
        self.fingerprint = of_text("\n".join(("words 1", *vocabulary)))
        self.number = number_of(vocabulary)
        self.unknown = unknown_of(self.number)

    def cut(self, text: str) -> Text:
        found, left_out = list[tuple[str, int | None]](), list[str]()
        for word in text.split():
            for piece, token in self._parts(word):
                if token is None and not piece.strip(SIGNS):
                    left_out.append(piece)
                else:
                    found.append((piece, token))
        return Text(tuple(piece for piece, _ in found), tuple(token for _, token in found), tuple(left_out))

    def _parts(self, word: str) -> Iterator[tuple[str, int | None]]:
        whole, inner = self._token(word), word.strip(SIGNS)
        if whole is not None or inner == word:
            yield word, whole
            return
        before = word.index(inner) if inner else len(word)
        yield from ((sign, self._token(sign)) for sign in word[:before])
        if inner:
            yield inner, self._token(inner)
            yield from ((sign, self._token(sign)) for sign in word[before + len(inner) :])

    def _token(self, word: str) -> int | None:
        return self.number.get(word, self.number.get(word.lower()))


class CustomTokenizer(Tokenizer):
    """A function of the user: text -> words of the vocabulary, or token ids, or a mapping with token ids as
    `input_ids`."""

    def __init__(self, function: Callable[[str], Any], vocabulary: Sequence[str] | None, size: int) -> None:
        self.function, self.vocabulary, self.size = function, vocabulary, size
        self.name = str(getattr(function, "__name__", type(function).__name__))
        self.fingerprint = of_text("\n".join((of_value(function), *(vocabulary or ()))))
        self.number = number_of(vocabulary or ())
        self.unknown = unknown_of(self.number)

    def cut(self, text: str) -> Text:
        try:
            answer = self.function(text)
            answer = answer["input_ids"] if isinstance(answer, Mapping) else answer
            found = answer.tolist() if hasattr(answer, "tolist") else list(answer)
        except HoldfastError:
            raise
        except Exception as error:
            raise BadInput(
                f"the tokenizer {self.name} failed on {_short(text)} ({type(error).__name__}: "
                f"{first_line(error)})."
            ) from error
        if not isinstance(answer, str) and all(isinstance(word, str) for word in found):
            if self.vocabulary is None and found:
                raise BadInput(
                    f"the tokenizer {self.name} answers with words, which need a vocabulary "
                    f"(vocabulary=, --vocabulary FILE)."
                )
            return Text(tuple(found), tuple(self.number.get(word) for word in found))
        if isinstance(answer, str) or not all(
            isinstance(word, Integral) and not isinstance(word, bool) for word in found
        ):
            raise BadInput(
                f"the tokenizer {self.name} must answer with a list of words or of token ids; "
                f"for {_short(text)} it did not."
            )
        wrong = [int(token) for token in found if not 0 <= token < self.size]
        if wrong:
            raise BadInput(
                f"the tokenizer {self.name} answers with token {wrong[0]} for {_short(text)}, but the "
                f"network has {self.size} tokens (0 to {self.size - 1}): it belongs to another network."
            )
        pieces = tuple(str(token) if self.vocabulary is None else self.vocabulary[token] for token in found)
        return Text(pieces, tuple(None if token == self.unknown else int(token) for token in found))


PIECE = "##"  # With this WordPiece marks tokens that continue a word.
SPACES = ("Ġ", "▁")  # With these BPE and Unigram mark tokens that begin a word.


class HuggingFace(Tokenizer):
    """A tokenizer.json of the package tokenizers, with its normalisation and special tokens but without its
    padding."""

    def __init__(self, content: str, name: str, *, whole: bool = False) -> None:
        """Read the content of the file. whole: ignore the truncation length of the file."""
        library = _library()
        with _library_errors(UnreadableFile, f"{name}: is no tokenizer", EXPORTED):
            self.inner = library.Tokenizer.from_str(content)
            self.inner.no_padding()
            if whole:
                self.inner.no_truncation()
            settings = {**json.loads(content), "padding": None, **({"truncation": None} if whole else {})}
            model = settings["model"]
            by_name, self.unknown = model.get("unk_token"), model.get("unk_id")
            if by_name is not None:
                self.unknown = self.inner.token_to_id(by_name)
            self.named = {
                number: word for word, number in self.inner.get_vocab(with_added_tokens=True).items()
            }
        self.name, self.fingerprint = name, of_text(json.dumps(settings, sort_keys=True))

    @property
    def size(self) -> int:
        """One more than the largest token id."""
        return max(self.named, default=-1) + 1

    def words(self, size: int) -> tuple[str, ...]:
        """A vocabulary of this size; tokens without a name are shown by their number."""
        return tuple(self.named.get(number, f"<{number}>") for number in range(size))

    def pieces(self, word: str) -> tuple[int, ...] | None:
        """The tokens of a text without special tokens; None if one of them is unknown, or there is none."""
        with _library_errors(
            BadInput, f"the tokenizer {self.name} cannot read {_short(word)}", "Leave it out."
        ):
            found = tuple(self.inner.encode(word, add_special_tokens=False).ids)
        return None if not found or self.unknown in found else found

    def sentence(self, tokens: Sequence[int]) -> str:
        """The text that these tokens stand for, without special tokens."""
        with _library_errors(BadInput, f"the tokenizer {self.name} has no text for these tokens", EXPORTED):
            text: str = self.inner.decode(list(tokens), skip_special_tokens=True)
        return text

    @cached_property
    def marks(self) -> frozenset[int]:
        """The special tokens, such as [CLS]."""
        added = self.inner.get_added_tokens_decoder()
        return frozenset(number for number, token in added.items() if token.special)

    @cached_property
    def continuing(self) -> frozenset[int]:
        """The tokens that continue the word of the token before them."""
        names = {number: name for number, name in self.named.items() if number not in self.marks}
        if any(name.startswith(PIECE) and name != PIECE for name in names.values()):
            return frozenset(number for number, name in names.items() if name.startswith(PIECE))
        if any(name.startswith(SPACES) for name in names.values()):
            return frozenset(
                number for number, name in names.items() if not name.startswith(SPACES) and name[:1].isalnum()
            )
        return frozenset()

    def cut(self, text: str) -> Text:
        with _library_errors(
            BadInput,
            f"the tokenizer {self.name} cannot read {_short(text)}",
            "Remove the characters that it does not know.",
        ):
            found = self.inner.encode(text)
            if not len(found.ids) == len(found.tokens) == len(found.offsets) or not self.named.keys() >= set(
                found.ids
            ):
                raise ValueError("the file names tokens that it does not have")
        covered = [False] * len(text)
        for begin, end in found.offsets:
            covered[begin:end] = [True] * (end - begin)
        lost = (
            "".join(sign for sign, _ in some)
            for seen, some in groupby(zip(text, covered, strict=True), lambda pair: pair[1])
            if not seen
        )
        pieces = tuple(
            text[begin:end] or token for token, (begin, end) in zip(found.tokens, found.offsets, strict=True)
        )
        ids = tuple(
            None if token == self.unknown and piece != self.named[token] else token
            for token, piece in zip(found.ids, pieces, strict=True)
        )
        return Text(pieces, ids, tuple(word for some in lost for word in some.split()))


Given = Tokenizer | str | Path | Callable[..., Any]


def tokenizer_of(given: Given | None, vocabulary: Sequence[str] | None, size: int) -> Tokenizer | None:
    """The tokenizer of a network with `size` tokens; None if neither a tokenizer nor a vocabulary is given.

    Args:
        given: a tokenizer.json or its folder, a tokenizer of the packages tokenizers or transformers, or a
            function. None: the `WordTokenizer` of the vocabulary.
    """
    if given is None:
        return None if vocabulary is None else WordTokenizer(vocabulary)
    if isinstance(given, str | Path):
        path = Path(given) / "tokenizer.json" if Path(given).is_dir() else Path(given)
        content = read_text(path, LARGEST_JSON)
        _library()
        check_tokenizer(content, path.name, EXPORTED)
        found: Tokenizer = HuggingFace(content, path.name)
    elif isinstance(given, Tokenizer):
        found = given
    elif hasattr(given, "backend_tokenizer"):  # of transformers, which does not truncate by default
        found = HuggingFace(given.backend_tokenizer.to_str(), type(given).__name__, whole=True)
    elif hasattr(given, "to_str") and hasattr(given, "encode"):
        found = HuggingFace(given.to_str(), type(given).__name__)
    elif callable(given):
        found = CustomTokenizer(given, vocabulary, size)
    else:
        raise BadInput(
            f"tokenizer is {type(given).__name__}: give the path of a tokenizer.json, or a function of a "
            f"text."
        )
    if isinstance(found, HuggingFace) and found.size > size:
        raise BadInput(
            f"the tokenizer {found.name} has tokens 0 to {found.size - 1}, but the network's embedding has "
            f"{size} rows: it belongs to another network."
        )
    return found


def unknown_of(number: Mapping[str, int]) -> int | None:
    """The token with one of the usual names of the token for unknown words, or None."""
    return next((number[word] for word in UNKNOWN_WORDS if word in number), None)


# ---- reading


@dataclass(frozen=True)
class Texts:
    """Texts as token ids.

    Attributes:
        tokens: (length,) int64 for each text.
        pieces: the piece of the text that became each token.
        unknown: number of pieces without a token.
        left_out: number of parts of the texts that belong to no piece.
        notes: what a user should know about unknown and left-out parts.
    """

    tokens: list[Tensor]
    pieces: list[tuple[str, ...]]
    unknown: int
    left_out: int
    notes: tuple[str, ...]


def read_texts(
    tokenizer: Tokenizer,
    texts: Sequence[str],
    places: Sequence[str] | None = None,
    *,
    policy: Unknown = "unk",
    unk: int | None = None,
) -> Texts:
    """Texts as token ids.

    Args:
        places: names of the texts in error messages.
        policy: what to do with unknown pieces: raise BadInput, skip them, or replace them by the token for
            unknown words.
        unk: the token for unknown words; None: the tokenizer's own. If there is none, unknown pieces raise
            BadInput.
    """
    unknown_token = tokenizer.unknown if unk is None else unk
    names = _name_places(places, len(texts))
    cut = [_cut(tokenizer, text, where) for text, where in zip(texts, names, strict=True)]
    for text, where in zip(cut, names, strict=True):
        if None in text.ids and (policy == "error" or (policy == "unk" and unknown_token is None)):
            raise BadInput(f"{where}{_describe_unknown(text, policy)}")
        if policy == "skip" and not any(token is not None for token in text.ids):
            raise BadInput(f"{where}none of its words is known: there is nothing to read.")
    kept = [[i for i, token in enumerate(text.ids) if token is not None or policy != "skip"] for text in cut]
    tokens = [
        torch.tensor([unknown_token if text.ids[i] is None else text.ids[i] for i in some], dtype=torch.int64)
        for text, some in zip(cut, kept, strict=True)
    ]
    unknown = [
        piece for text in cut for piece, token in zip(text.pieces, text.ids, strict=True) if token is None
    ]
    lost = [piece for text in cut for piece in text.left_out]
    notes = []
    if unknown:
        share = f"{len(unknown)} of {sum(len(text.ids) for text in cut)} words are unknown to the network"
        treatment = "left out" if policy == "skip" else "read as its token for such words"
        notes.append(f"{share} and {treatment}: {_list_words(unknown)}")
    if lost:
        notes.append(f"{len(lost)} signs or words have no token and are left out: {_list_words(lost)}")
    pieces = [tuple(text.pieces[i] for i in some) for text, some in zip(cut, kept, strict=True)]
    return Texts(tokens, pieces, len(unknown), len(lost), tuple(notes))


def _cut(tokenizer: Tokenizer, text: str, where: str) -> Text:
    if not isinstance(text, str):
        raise BadInput(f"{where}expected a text, got {type(text).__name__}.")
    try:
        found = tokenizer.cut(text) if text.strip() else Text((), ())
    except BadInput as error:
        raise BadInput(f"{where}{error}") from error
    if not found.ids:
        raise BadInput(
            f"{where}the text {_short(text)} is empty, or nothing of it becomes a token: there is nothing to "
            f"read."
        )
    return found


def _name_places(places: Sequence[str] | None, count: int) -> list[str]:
    if places is None:
        return [""] if count == 1 else [f"text {i}: " for i in range(count)]
    return [f"{place}: " for place in places]


def _describe_unknown(text: Text, policy: Unknown) -> str:
    index = text.ids.index(None)
    problem = f"word {index + 1}: {text.pieces[index]!r} is not in the vocabulary"
    if policy == "error":
        return (
            f"{problem}. Fit the monitor with unknown='skip' (--unknown skip) to leave such words out, "
            f"or 'unk' for a token in their place."
        )
    return (
        f"{problem}, which has no <unk> either. Take it out of the text, add <unk> to the vocabulary if the "
        f"network has a token for unknown words, or give the network's tokenizer (tokenizer=, --tokenizer)."
    )


def _list_words(words: Sequence[str]) -> str:
    different = list(dict.fromkeys(words))
    return ", ".join(_short(word) for word in different[:EXAMPLES]) + (
        " ..." if len(different) > EXAMPLES else ""
    )


def _short(text: str) -> str:
    return repr(text if len(text) <= MAX_QUOTED else f"{text[:MAX_QUOTED]}…")


def _library() -> Any:
    try:
        import tokenizers
    except ImportError as error:
        raise MissingExtra(
            f"A tokenizer.json needs the package tokenizers ({error}): pip install 'holdfast[text]'."
        ) from error
    return tokenizers


@contextlib.contextmanager
def _library_errors(kind: type[HoldfastError], what: str, hint: str) -> Iterator[None]:
    """Raise every exception of the tokenizers package as `kind`; its panics are BaseExceptions."""
    try:
        yield
    except (HoldfastError, KeyboardInterrupt, SystemExit, MemoryError):
        raise
    except BaseException as error:
        raise kind(f"{what} ({first_line(error)}). {hint}") from error
