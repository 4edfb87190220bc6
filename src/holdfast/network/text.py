"""From text to tokens: one way, whichever door a text comes in by.

A `Tokenizer` cuts a text into pieces and says which token each is: `WordTokenizer` by the network's vocabulary,
`CustomTokenizer` by a function of the user's,
`HuggingFace` by a tokenizer.json. What happens to pieces that are no token is decided in one place, `read_texts`, and told.
"""

import contextlib
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from numbers import Integral
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from holdfast.errors import BadInput, HoldfastError, MissingExtra, UnreadableFile
from holdfast.files import LARGEST_JSON, text_of
from holdfast.foreign_text import first_line
from holdfast.network.callable_fingerprint import of_value
from holdfast.network.fingerprint import of_text
from holdfast.network.tokenizer_check import check_tokenizer

Unknown = Literal["error", "skip", "unk"]
UNKNOWN_WORDS = ("<unk>", "[UNK]", "<UNK>", "unk", "UNK", "<oov>")
SIGNS = ".,;:!?…\"'()[]“”„‘’‚«»‹›¡¿"  # those that are parted from the ends of a word
EXAMPLES = 5  # words that a note names
EXPORTED = "Write it with save() of the tokenizers package, or save_pretrained() of transformers."


@dataclass(frozen=True)
class Text:
    """A text as it was cut: each piece with its token, None where it has none, and what no piece was made of."""

    pieces: tuple[str, ...]
    ids: tuple[int | None, ...]
    left_out: tuple[str, ...] = ()


class Tokenizer(ABC):
    """Text -> tokens. The same text always gives the same ones."""

    name: str
    fingerprint: str  # of everything that decides which tokens a text becomes
    unknown: int | None  # the token that stands for what is unknown, where there is one

    @abstractmethod
    def cut(self, text: str) -> Text:
        """Piece by piece. BadInput where this text cannot be cut."""


def number_of(vocabulary: Iterable[str]) -> dict[str, int]:
    """The first place of each word."""
    return {word: i for i, word in reversed(list(enumerate(vocabulary)))}


class WordTokenizer(Tokenizer):
    """Where nothing else is said. Text is cut at white space; a word is taken as the vocabulary has it: as it stands, else in lower case,
    else (as it stands, then in lower case) without the SIGNS at its ends. Signs parted from a word that way become tokens of their own
    where the vocabulary has them, and are left out elsewhere. Every other word is unknown."""

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
    """A function of the user's: text -> words of the vocabulary as they stand there, or token ids (a mapping's input_ids too)."""

    def __init__(self, function: Callable[[str], Any], vocabulary: Sequence[str] | None, size: int) -> None:
        self.function, self.vocabulary, self.size = function, vocabulary, size
        self.name = str(getattr(function, "__name__", type(function).__name__))
        self.fingerprint = of_text("\n".join((of_value(function), *(vocabulary or ()))))
        self.number = number_of(vocabulary or ())
        self.unknown = unknown_of(self.number)

    def cut(self, text: str) -> Text:
        try:
            said = self.function(text)
            said = said["input_ids"] if isinstance(said, Mapping) else said
            found = said.tolist() if hasattr(said, "tolist") else list(said)
        except HoldfastError:
            raise
        except Exception as error:
            raise BadInput(
                f"the tokenizer {self.name} failed on {_short(text)} ({type(error).__name__}: {first_line(error)})."
            ) from error
        if not isinstance(said, str) and all(isinstance(word, str) for word in found):
            if self.vocabulary is None and found:
                raise BadInput(
                    f"the tokenizer {self.name} answers with words, which need a vocabulary (vocabulary=, --vocabulary FILE)."
                )
            return Text(tuple(found), tuple(self.number.get(word) for word in found))
        if isinstance(said, str) or not all(
            isinstance(word, Integral) and not isinstance(word, bool) for word in found
        ):
            raise BadInput(
                f"the tokenizer {self.name} must answer with a list of words or of token ids; for {_short(text)} it did not."
            )
        wrong = [int(token) for token in found if not 0 <= token < self.size]
        if wrong:
            raise BadInput(
                f"the tokenizer {self.name} answers with token {wrong[0]} for {_short(text)}, but the network has {self.size} tokens (0 to "
                f"{self.size - 1}): it belongs to another network."
            )
        pieces = tuple(str(token) if self.vocabulary is None else self.vocabulary[token] for token in found)
        return Text(pieces, tuple(None if token == self.unknown else int(token) for token in found))


class HuggingFace(Tokenizer):
    """A tokenizer.json: normalised, cut, and given special tokens as the file says; padding that it may ask for is left away."""

    def __init__(self, content: str, name: str, *, whole: bool = False) -> None:
        """whole: no text is cut off, whatever the file says."""
        library = _library()
        with _reading(UnreadableFile, f"{name}: is no tokenizer", EXPORTED):
            self.inner = library.Tokenizer.from_str(content)
            self.inner.no_padding()
            if whole:
                self.inner.no_truncation()
            said = {**json.loads(content), "padding": None, **({"truncation": None} if whole else {})}
            model = said["model"]
            by_name, self.unknown = model.get("unk_token"), model.get("unk_id")
            if by_name is not None:
                self.unknown = self.inner.token_to_id(by_name)
            self.named = {
                number: word for word, number in self.inner.get_vocab(with_added_tokens=True).items()
            }
        self.name, self.fingerprint = name, of_text(json.dumps(said, sort_keys=True))

    @property
    def size(self) -> int:
        return max(self.named, default=-1) + 1

    def words(self, size: int) -> tuple[str, ...]:
        """A vocabulary of so many; tokens without a name go by their number."""
        return tuple(self.named.get(number, f"<{number}>") for number in range(size))

    def cut(self, text: str) -> Text:
        with _reading(
            BadInput,
            f"the tokenizer {self.name} cannot read {_short(text)}",
            "Take out what it does not know.",
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
    """For a network of so many tokens: a tokenizer.json or the folder of one, a tokenizer of the packages tokenizers or transformers, or a
    function; else `WordTokenizer`, where there is a vocabulary."""
    if given is None:
        return None if vocabulary is None else WordTokenizer(vocabulary)
    if isinstance(given, str | Path):
        path = Path(given) / "tokenizer.json" if Path(given).is_dir() else Path(given)
        content = text_of(path, LARGEST_JSON)
        _library()
        check_tokenizer(content, path.name, EXPORTED)
        found: Tokenizer = HuggingFace(content, path.name)
    elif isinstance(given, Tokenizer):
        found = given
    elif hasattr(given, "backend_tokenizer"):  # of transformers, which cuts no text off unless it is told to
        found = HuggingFace(given.backend_tokenizer.to_str(), type(given).__name__, whole=True)
    elif hasattr(given, "to_str") and hasattr(given, "encode"):
        found = HuggingFace(given.to_str(), type(given).__name__)
    elif callable(given):
        found = CustomTokenizer(given, vocabulary, size)
    else:
        raise BadInput(
            f"tokenizer is {type(given).__name__}: give the path of a tokenizer.json, or a function of a text."
        )
    if isinstance(found, HuggingFace) and found.size > size:
        raise BadInput(
            f"the tokenizer {found.name} has tokens 0 to {found.size - 1}, but the network's embedding has {size} rows: it belongs to "
            f"another network."
        )
    return found


def unknown_of(number: Mapping[str, int]) -> int | None:
    """The token with one of the usual names of the unknown word."""
    return next((number[word] for word in UNKNOWN_WORDS if word in number), None)


# ---- reading


@dataclass(frozen=True)
class Texts:
    """Texts as a network reads them, (length,) int64 each; their pieces, as people wrote them; and what must be told of them."""

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
    """All texts. places: what to call each in an error. policy: for unknown pieces, `unk` the token for them, else the tokenizer's own;
    without one they are an error."""
    stands = tokenizer.unknown if unk is None else unk
    cut = [
        _cut(tokenizer, text, where)
        for text, where in zip(texts, _name_places(places, len(texts)), strict=True)
    ]
    for text, where in zip(cut, _name_places(places, len(texts)), strict=True):
        if None in text.ids and (policy == "error" or (policy == "unk" and stands is None)):
            raise BadInput(f"{where}{_strange(text, policy)}")
        if policy == "skip" and not any(token is not None for token in text.ids):
            raise BadInput(f"{where}none of its words is known: there is nothing to read.")
    kept = [[i for i, token in enumerate(text.ids) if token is not None or policy != "skip"] for text in cut]
    tokens = [
        torch.tensor([stands if text.ids[i] is None else text.ids[i] for i in some], dtype=torch.int64)
        for text, some in zip(cut, kept, strict=True)
    ]
    strange = [
        piece for text in cut for piece, token in zip(text.pieces, text.ids, strict=True) if token is None
    ]
    lost = [piece for text in cut for piece in text.left_out]
    notes = []
    if strange:
        much = f"{len(strange)} of {sum(len(text.ids) for text in cut)} words are unknown to the network"
        notes.append(
            f"{much} and {'left out' if policy == 'skip' else 'read as its token for such words'}: {_some(strange)}"
        )
    if lost:
        notes.append(f"{len(lost)} signs or words have no token and are left out: {_some(lost)}")
    pieces = [tuple(text.pieces[i] for i in some) for text, some in zip(cut, kept, strict=True)]
    return Texts(tokens, pieces, len(strange), len(lost), tuple(notes))


def _cut(tokenizer: Tokenizer, text: str, where: str) -> Text:
    if not isinstance(text, str):
        raise BadInput(f"{where}expected a text, got {type(text).__name__}.")
    try:
        found = tokenizer.cut(text) if text.strip() else Text((), ())
    except BadInput as error:
        raise BadInput(f"{where}{error}") from error
    if not found.ids:
        raise BadInput(
            f"{where}the text {_short(text)} is empty, or nothing of it becomes a token: there is nothing to read."
        )
    return found


def _name_places(places: Sequence[str] | None, count: int) -> list[str]:
    if places is None:
        return [""] if count == 1 else [f"text {i}: " for i in range(count)]
    return [f"{place}: " for place in places]


def _strange(text: Text, policy: Unknown) -> str:
    place = text.ids.index(None)
    said = f"word {place + 1}: {text.pieces[place]!r} is not in the vocabulary"
    if policy == "error":
        return f"{said}. Fit the monitor with unknown='skip' (--unknown skip) to leave such words out, or 'unk' for a token in their place."
    return (
        f"{said}, which has no <unk> either. Take it out of the text, add <unk> to the vocabulary where the network has a token for "
        f"unknown words, or say how the network's text is cut (tokenizer=, --tokenizer)."
    )


def _some(words: Sequence[str]) -> str:
    different = list(dict.fromkeys(words))
    return ", ".join(_short(word) for word in different[:EXAMPLES]) + (
        " ..." if len(different) > EXAMPLES else ""
    )


def _short(text: str) -> str:
    return repr(text if len(text) <= 40 else f"{text[:40]}…")


def _library() -> Any:
    try:
        import tokenizers
    except ImportError as error:
        raise MissingExtra(
            f"A tokenizer.json needs the package tokenizers ({error}): pip install 'holdfast[text]'."
        ) from error
    return tokenizers


@contextlib.contextmanager
def _reading(kind: type[HoldfastError], what: str, hint: str) -> Iterator[None]:
    """Whatever the tokenizers package raises, a panic of its own too, which is no Exception, as an error of the house."""
    try:
        yield
    except (HoldfastError, KeyboardInterrupt, SystemExit, MemoryError):
        raise
    except BaseException as error:
        raise kind(f"{what} ({first_line(error)}). {hint}") from error
