"""Word substitutions: at most k positions of a sentence take another word of their substitution set.

    S = { (v(w_1), ..., v(w_n)) : w_t in S_t, at most k of the w_t differ from the sentence }

where v is the embedding. Positions do not interact, so a linear function is minimised exactly: with the gain
of position t, g_t = min over w in S_t of a_t . (v(w) - v(own word)) <= 0, the minimum is a . c + (the sum of
the k smallest g_t).
"""

from collections.abc import Iterable, Mapping, Sequence, Sized
from dataclasses import dataclass, replace
from numbers import Integral
from typing import ClassVar

import torch
from torch import Tensor

from holdfast.derivations import (
    WORD_GAINS,
)
from holdfast.errors import BadInput
from holdfast.random_streams import RandomStreams
from holdfast.region.base import Counted
from holdfast.region.unit_choices import TriedValues, UnitChoices
from holdfast.rounding import charge

Substitutes = Mapping[int, Sequence[int]] | Sequence[Sequence[Sequence[int]]]


def position_sets(
    sentences: Sequence[Sequence[int]], substitutes: Substitutes, size: int
) -> list[list[list[int]]]:
    """List, for each position of each sentence, the allowed words: its own first, no duplicates.

    Args:
        substitutes: token id -> ids of its substitutes, at any position; or, for each sentence, a list of ids
            per position.
        size: number of words in the vocabulary.
    """
    if isinstance(substitutes, Mapping):
        known = {_token(word, size): _tokens(others, size) for word, others in substitutes.items()}
        places: Sequence[Sequence[Sequence[int]]] = [
            [known.get(own, ()) for own in sentence] for sentence in sentences
        ]
    else:
        places = substitutes
    if not isinstance(places, Sized) or len(places) != len(sentences):
        count = len(places) if isinstance(places, Sized) else "no"
        raise BadInput(
            f"substitutes for {count} sentences, but there are {len(sentences)}: give a list for each "
            "sentence, "
            "or a mapping from token id to ids for all."
        )
    sets = []
    for place, (sentence, sides) in enumerate(zip(sentences, places, strict=True)):
        if not isinstance(sides, Sized) or len(sides) != len(sentence):
            count = len(sides) if isinstance(sides, Sized) else "no"
            raise BadInput(
                f"sentence {place} has {len(sentence)} words, but substitutes for {count} positions: "
                "give one list for each word."
            )
        pairs = zip(sentence, sides, strict=True)
        sets.append(
            [list(dict.fromkeys([_token(own, size), *_tokens(others, size)])) for own, others in pairs]
        )
    return sets


def _tokens(words: object, size: int) -> list[int]:
    if not isinstance(words, Iterable):
        raise BadInput(f"substitutes of a word must be a list of token ids, got {words!r}.")
    return [_token(word, size) for word in words]


def _token(word: object, size: int) -> int:
    """Return a token id of the vocabulary. BadInput if it is none."""
    plain = word.item() if isinstance(word, Tensor) else word
    if not isinstance(plain, Integral):
        raise BadInput(
            f"substitutes must be token ids, got {plain!r}; look words up in your vocabulary first."
        )
    if not 0 <= int(plain) < size:
        raise BadInput(
            f"token id {int(plain)} does not exist: the vocabulary has {size} words (0 to {size - 1})."
        )
    return int(plain)


@dataclass(frozen=True, eq=False)
class Words(Counted):
    """All sentences in which at most `radius` positions have another word of their substitution set.

    Points are word vectors: centre is (batch, length, dim), choices (batch, length, sets) are token ids
    padded with the word itself, vectors (vocabulary, dim) is the network's embedding. Distances count changed
    positions.
    """

    embedded: ClassVar[bool] = True
    changes_units: ClassVar[bool] = True

    tokens: Tensor  # (batch, length) int64
    choices: Tensor  # (batch, length, sets) int64; choices[..., 0] is the word itself
    vectors: "Vectors"

    @staticmethod
    def around(
        tokens: Tensor, substitutes: Substitutes, vectors: Tensor, radius: float | None = None
    ) -> "Words":
        """Build the region from tokens (batch, length) and substitutes as in `position_sets`.

        radius None: every position may change.
        """
        if tokens.dim() != 2 or tokens.is_floating_point():
            raise BadInput(
                f"words: tokens must be integers of shape (batch, length), "
                f"got {tokens.dtype} of {tuple(tokens.shape)}."
            )
        if tokens.numel() == 0:
            raise BadInput("words: the data are empty: there is no sentence to analyse.")
        sets = position_sets(tokens.tolist(), substitutes, len(vectors))
        widest = max(len(words) for sentence in sets for words in sentence)
        choices = torch.tensor(
            [[words + words[:1] * (widest - len(words)) for words in sentence] for sentence in sets]
        )
        if not bool(vectors[choices].isfinite().all()):
            raise BadInput(
                "words: the vector of a word holds NaN or infinity; robustness around it is undefined."
            )
        reach = float(tokens.shape[1]) if radius is None else float(radius)
        return Words(
            vectors[tokens].detach(),
            torch.full((tokens.shape[0],), reach, dtype=torch.float64, device=vectors.device),
            tokens.to(vectors.device),
            choices.to(vectors.device),
            Vectors(vectors.detach()),
        )

    def only(self, places: Tensor) -> "Words":
        """Restrict the region: only positions with places (batch, length) bool true may change."""
        return replace(self, choices=torch.where(places[..., None], self.choices, self.tokens[..., None]))

    def _choice_vectors(self) -> Tensor:
        """Return the vectors of all choices, (batch, length, sets, dim)."""
        return self.vectors.table[self.choices]

    def _changeable(self) -> Tensor:
        """Return (batch, length) bool: whether the position has a substitute."""
        return (self.choices != self.tokens[..., None]).any(-1)

    def decode(self, x: Tensor) -> Tensor:
        """(..., batch, length, dim) -> (..., batch, length) token ids; -1 if it is not in the set."""
        same = (x[..., None, :] == self._choice_vectors().to(x)).all(-1)
        index = same.int().argmax(-1)
        chosen = self.choices.expand(*x.shape[:-1], -1).gather(-1, index[..., None]).squeeze(-1)
        return torch.where(same.any(-1), chosen, -1)

    def as_data(self, x: Tensor) -> Tensor:
        return self.decode(x)

    def from_data(self, data: Tensor) -> Tensor | None:
        known, places = len(self.vectors.table), self.tokens.shape[1:]
        fits = not data.is_floating_point() and data.shape[-1:] == places
        if not fits or not bool(((data >= 0) & (data < known)).all()):
            return None
        return self.vectors.table[data.to(self.centre.device)]

    def substitutes(self, row: int) -> dict[int, list[int]]:
        own, choices = self.tokens[row].tolist(), self.choices[row].tolist()
        found = {place: sorted(set(words) - {own[place]}) for place, words in enumerate(choices)}
        return {place: words for place, words in found.items() if words}

    @property
    def unit_grid(self) -> tuple[int, ...]:
        return self.shape[:1]

    def unit_choices(self, tried: TriedValues, generator: torch.Generator) -> UnitChoices:
        """Return the whole substitution set of every position."""
        table = self.vectors.table[self.choices].to(self.centre)
        free = torch.ones(table.shape[:2], dtype=torch.bool, device=table.device)
        return UnitChoices.of_table(self.centre, (1,), table, free, sampled=False)

    def with_vectors(self, vectors: Tensor) -> "Words":
        """Return the same sentences with another embedding table, (vocabulary, dim)."""
        return replace(self, centre=vectors[self.tokens], vectors=Vectors(vectors))

    def distance(self, x: Tensor) -> Tensor:
        found = self.decode(x)
        changed = (found != self.tokens).sum(-1).double()
        return torch.where((found >= 0).all(-1), changed, torch.inf)

    def limit(self) -> Tensor:
        return self._changeable().sum(-1).double()

    def project(self, x: Tensor) -> Tensor:
        """Map each position to the nearest word of its set; keep the `radius` changes that moved furthest."""
        options = self._choice_vectors().to(x)
        nearest = (x[..., None, :] - options).square().sum(-1).argmin(-1)
        word = self.choices.expand(*x.shape[:-1], -1).gather(-1, nearest[..., None]).squeeze(-1)
        return self.vectors.table.to(x)[self._keep_budget(word, (x - self.centre.to(x)).square().sum(-1))]

    def _keep_budget(self, word: Tensor, weight: Tensor) -> Tensor:
        """Keep at most `radius` changed positions, those of the largest weights."""
        weight = torch.where(word == self.tokens, -1.0, weight.double())
        rank = weight.argsort(-1, descending=True).argsort(-1)
        return torch.where(rank < self.radius.floor()[:, None], word, self.tokens)

    def sample(self, count: int, chance: RandomStreams) -> Tensor:
        pick = chance.uniform(count, self.choices.shape[1:], self.centre).argmax(-1)
        word = self.choices.expand(count, *self.choices.shape).gather(-1, pick[..., None]).squeeze(-1)
        weight = chance.uniform(count, word.shape[2:], self.centre)
        return self.vectors.table[self._keep_budget(word, weight)]

    def vertex(self, a: Tensor) -> Tensor:
        """Return the exact minimiser: the `radius` replacements that lower a . x the most."""
        value = torch.einsum("...ld,...lsd->...ls", a, self._choice_vectors().to(a))
        best = value.argmin(-1, keepdim=True)
        word = self.choices.expand(*a.shape[:-1], -1).gather(-1, best).squeeze(-1)
        return self.vectors.table.to(a)[self._keep_budget(word, value[..., 0] - value.amin(-1))]

    def enclosing_box(self) -> tuple[Tensor, Tensor]:
        options, centre = self._choice_vectors().double(), self.centre.double()
        free = self.per_row(self.radius >= 1)
        return torch.where(free, options.amin(2), centre), torch.where(free, options.amax(2), centre)

    def minimise_linear(self, a: Tensor) -> Tensor:
        """Return a . centre plus the `radius` best single replacements: the exact minimum, rounded down."""
        a = a.double()
        at_choice = torch.einsum("brld,blsd->brls", a, self._choice_vectors().double())
        gain = (at_choice.amin(-1) - at_choice[..., 0]).clamp_max(0)
        ordered = gain.sort(-1).values
        taken = torch.arange(ordered.shape[-1], device=a.device) < self.radius.floor()[:, None, None]
        magnitude = torch.einsum("brld,bld->br", a.abs(), self._choice_vectors().double().abs().amax(2))
        return (
            at_choice[..., 0].sum(-1)
            + (ordered * taken).sum(-1)
            - charge(magnitude, WORD_GAINS, a[0, 0].numel())
        )


@dataclass(frozen=True, eq=False)
class Vectors:
    """An embedding table. It belongs to the whole batch, so slicing rows shares it."""

    table: Tensor
