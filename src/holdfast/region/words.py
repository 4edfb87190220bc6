"""Words replaced by words from given sets."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from holdfast.errors import BadInput
from holdfast.region.base import Family
from holdfast.rounding import TINY, gamma


@dataclass(frozen=True, eq=False)
class Words(Family):
    """All sentences in which at most `radius` positions hold another word of their substitution set.

    Points are word vectors: centre is (batch, length, dim), choices (batch, length, sets) are token ids padded with the
    word itself, vectors (vocabulary, dim) is the network's embedding. Distances count changed positions.
    """

    tokens: Tensor  # (batch, length) int64
    choices: Tensor  # (batch, length, sets) int64; choices[..., 0] is the word itself
    vectors: "Vectors"

    @staticmethod
    def around(tokens: Tensor, substitutes: Mapping[int, Sequence[int]], vectors: Tensor, radius: float | None = None) -> "Words":
        """tokens (batch, length), substitutes: token id -> ids it may become. radius None: every position at once."""
        if tokens.dim() != 2 or tokens.is_floating_point():
            raise BadInput(f"words: tokens must be integers of shape (batch, length), got {tokens.dtype} of {tuple(tokens.shape)}.")
        if tokens.numel() == 0:
            raise BadInput("words: the data are empty: there is no sentence to ask about.")
        size = vectors.shape[0]
        used = {int(t) for t in tokens.unique()} | {int(s) for many in substitutes.values() for s in many}
        if min(used) < 0 or max(used) >= size:
            raise BadInput(f"words: token ids run from {min(used)} to {max(used)}, but the vocabulary has {size} words (0 to {size - 1}).")
        sets = {int(t): [int(t), *(int(s) for s in substitutes.get(int(t), ()) if int(s) != int(t))] for t in tokens.unique()}
        widest = max(len(s) for s in sets.values())
        choices = torch.tensor([[(s := sets[t]) + [t] * (widest - len(s)) for t in row] for row in tokens.tolist()])
        reach = float(tokens.shape[1]) if radius is None else float(radius)
        return Words(
            vectors[tokens].detach(),
            torch.full((tokens.shape[0],), reach, dtype=torch.float64, device=vectors.device),
            tokens.to(vectors.device),
            choices.to(vectors.device),
            Vectors(vectors.detach()),
        )

    def _choice_vectors(self) -> Tensor:
        """(batch, length, sets, dim)."""
        return self.vectors.table[self.choices]

    def _changeable(self) -> Tensor:
        """(batch, length) bool: the set holds more than the word itself."""
        return (self.choices != self.tokens[..., None]).any(-1)

    def decode(self, x: Tensor) -> Tensor:
        """(..., batch, length, dim) -> (..., batch, length) token ids; -1 where the vector is no word of the set."""
        same = (x[..., None, :] == self._choice_vectors().to(x)).all(-1)
        index = same.int().argmax(-1)
        chosen = self.choices.expand(*x.shape[:-1], -1).gather(-1, index[..., None]).squeeze(-1)
        return torch.where(same.any(-1), chosen, -1)

    def distance(self, x: Tensor) -> Tensor:
        found = self.decode(x)
        changed = (found != self.tokens).sum(-1).double()
        return torch.where((found >= 0).all(-1), changed, torch.inf)

    def contains(self, x: Tensor) -> Tensor:
        return self.distance(x) <= self.radius

    def limit(self) -> Tensor:
        return self._changeable().sum(-1).double()

    def below(self, distance: Tensor) -> Tensor:
        return distance - 1

    def project(self, x: Tensor) -> Tensor:
        """Each position to the nearest word of its set; of the changed ones, those that moved furthest are kept."""
        options = self._choice_vectors().to(x)
        nearest = (x[..., None, :] - options).square().sum(-1).argmin(-1)
        word = self.choices.expand(*x.shape[:-1], -1).gather(-1, nearest[..., None]).squeeze(-1)
        return self.vectors.table.to(x)[self._budgeted(word, (x - self.centre.to(x)).square().sum(-1))]

    def _budgeted(self, word: Tensor, weight: Tensor) -> Tensor:
        """Keep at most `radius` changed positions, by weight."""
        weight = torch.where(word == self.tokens, -1.0, weight.double())
        rank = weight.argsort(-1, descending=True).argsort(-1)
        return torch.where(rank < self.radius.floor()[:, None], word, self.tokens)

    def sample(self, count: int, generator: torch.Generator) -> Tensor:
        pick = torch.rand((count, *self.choices.shape), generator=generator).to(self.centre).argmax(-1)
        word = self.choices.expand(count, *self.choices.shape).gather(-1, pick[..., None]).squeeze(-1)
        weight = torch.rand(word.shape, generator=generator).to(self.centre)
        return self.vectors.table[self._budgeted(word, weight)]

    def between(self, low: Tensor, high: Tensor, count: int) -> Tensor:
        return super().between(low.clamp_min(0.5), high, count).round().clamp_min(1)

    def evenly(self, low: Tensor, high: Tensor, count: int) -> Tensor:
        return super().evenly(low, high, count).round().clamp_min(1)

    def vertex(self, a: Tensor) -> Tensor:
        """The replacements that lower a.x the most, which is exact."""
        value = torch.einsum("...ld,...lsd->...ls", a, self._choice_vectors().to(a))
        best = value.argmin(-1, keepdim=True)
        word = self.choices.expand(*a.shape[:-1], -1).gather(-1, best).squeeze(-1)
        return self.vectors.table.to(a)[self._budgeted(word, value[..., 0] - value.amin(-1))]

    def enclosing_box(self) -> tuple[Tensor, Tensor]:
        options, centre = self._choice_vectors().double(), self.centre.double()
        free = self.per_row(self.radius >= 1)
        return torch.where(free, options.amin(2), centre), torch.where(free, options.amax(2), centre)

    def minimise_linear(self, a: Tensor) -> Tensor:
        """a.centre plus the `radius` best single replacements, exact for a linear function."""
        a = a.double()
        at_choice = torch.einsum("brld,blsd->brls", a, self._choice_vectors().double())
        gain = (at_choice.amin(-1) - at_choice[..., 0]).clamp_max(0)
        ordered = gain.sort(-1).values
        taken = torch.arange(ordered.shape[-1], device=a.device) < self.radius.floor()[:, None, None]
        magnitude = torch.einsum("brld,bld->br", a.abs(), self._choice_vectors().double().abs().amax(2))
        return at_choice[..., 0].sum(-1) + (ordered * taken).sum(-1) - 6 * gamma(a[0, 0].numel()) * magnitude - TINY


@dataclass(frozen=True, eq=False)
class Vectors:
    """An embedding table held by reference: it belongs to the whole batch, not to a row of it."""

    table: Tensor
