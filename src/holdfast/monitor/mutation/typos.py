"""Keyboard typos."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

import torch

from holdfast.errors import BadInput
from holdfast.monitor.mutation.choices import ElementChoices, Mutation
from holdfast.network.text import number_of

TYPOS = ("swap", "delete", "insert", "keyboard")
ROWS = ("1234567890", "qwertyuiop", "asdfghjkl", "zxcvbnm")
LETTERS = "abcdefghijklmnopqrstuvwxyz"


def _neighbouring_keys() -> dict[str, str]:
    """Return the adjacent keys on a QWERTY keyboard: left, right, and the two above and below."""
    at = {key: (row, column + 0.5 * row) for row, keys in enumerate(ROWS) for column, key in enumerate(keys)}
    touch = {
        a: [b for b in at if b != a and abs(at[a][0] - at[b][0]) <= 1 and abs(at[a][1] - at[b][1]) <= 1]
        for a in at
    }
    return {key: "".join(keys) for key, keys in touch.items()}


KEYS = _neighbouring_keys()


def misspellings(word: str, kinds: Sequence[str] = TYPOS) -> set[str]:
    """All words with one typo: adjacent letters swapped, a letter omitted, inserted or mistyped."""
    found: set[str] = set()
    if "swap" in kinds:
        found |= {word[:i] + word[i + 1] + word[i] + word[i + 2 :] for i in range(len(word) - 1)}
    if "delete" in kinds and len(word) > 1:
        found |= {word[:i] + word[i + 1 :] for i in range(len(word))}
    if "insert" in kinds:
        found |= {word[:i] + letter + word[i:] for i in range(len(word) + 1) for letter in LETTERS}
    if "keyboard" in kinds:
        found |= {
            word[:i] + key + word[i + 1 :]
            for i, letter in enumerate(word)
            for key in KEYS.get(letter.lower(), "")
        }
    return found - {word}


@dataclass(frozen=True, eq=False)
class Typos(Mutation):
    """A word becomes one of its misspellings; all spellings, the correct one included, are equally likely.

    A misspelling in the vocabulary becomes that word, any other one the `unknown` token; without such a token
    it is dropped. characters=True: tokens are characters, and one is replaced by those on adjacent keys (a
    sequence keeps its length).
    """

    vocabulary: tuple[str, ...]
    unknown: int | None = None
    kinds: tuple[str, ...] = TYPOS
    characters: bool = False
    kind: ClassVar[str] = "typos"

    def __post_init__(self) -> None:
        object.__setattr__(self, "vocabulary", tuple(self.vocabulary))
        object.__setattr__(self, "kinds", ("keyboard",) if self.characters else tuple(self.kinds))
        if strange := set(self.kinds) - set(TYPOS):
            raise BadInput(f"no such typos: {', '.join(sorted(strange))}; choose among {', '.join(TYPOS)}.")
        if self.unknown is not None and not 0 <= self.unknown < len(self.vocabulary):
            raise BadInput(
                f"unknown={self.unknown} is not a token: the vocabulary has {len(self.vocabulary)} words."
            )
        place = number_of(self.vocabulary)
        object.__setattr__(
            self, "_choices", lru_cache(maxsize=2**16)(lambda own: self._make_choices(own, place))
        )

    def choices(self, element: Any) -> ElementChoices:
        made: ElementChoices = self._choices(int(element))  # type: ignore[attr-defined]
        return made

    def _make_choices(self, own: int, place: Mapping[str, int]) -> ElementChoices:
        if not 0 <= own < len(self.vocabulary):
            return ElementChoices(torch.tensor([own]), torch.ones(1, dtype=torch.float64))
        spelled = (
            place.get(word, self.unknown) for word in sorted(misspellings(self.vocabulary[own], self.kinds))
        )
        return ElementChoices.of(own, [own, *(i for i in spelled if i is not None)])

    def settings(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "vocabulary": list(self.vocabulary),
            "unknown": self.unknown,
            "kinds": list(self.kinds),
            "characters": self.characters,
        }
