"""Replacement of tokens by others of a set: user-defined, similar vectors, or neighbours."""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, ClassVar

import torch
from torch import Tensor

from holdfast.errors import BadInput
from holdfast.monitor.mutation.choices import ChoiceTable, ElementChoices, Mutation
from holdfast.monitor.mutation.linkage import complete_linkage
from holdfast.network.text import number_of


@dataclass(frozen=True, eq=False)
class Groups(Mutation):
    """Each token id becomes a member of its set. Tokens without a set stay."""

    sets: ChoiceTable  # one row for each id from 0 on; larger ids stay
    kind: ClassVar[str] = "groups"
    _group: list[int] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        """Number the abstract inputs: tokens with the same set share the number of the first of them."""
        seen: dict[Hashable, int] = {}
        start, values = self.sets.start.tolist(), self.sets.values.tolist()
        rows = (frozenset(values[a:b]) for a, b in pairwise(start))
        object.__setattr__(self, "_group", [seen.setdefault(row, own) for own, row in enumerate(rows)])

    @classmethod
    def of_sets(
        cls,
        sets: Mapping[Any, Sequence[Any]],
        *,
        vocabulary: Sequence[str] | None = None,
        probability: Mapping[Any, Sequence[float]] | None = None,
    ) -> "Groups":
        """Build groups from a mapping: token -> its replacements, itself included.

        Tokens are words if a vocabulary is given, else ids. probability: token -> one number for each member
        of its set; uniform if it has none.
        """
        place = number_of(vocabulary) if vocabulary is not None else None
        rows = {}
        for own, others in sets.items():
            weight = probability.get(own) if probability is not None else None
            rows[_id(own, place)] = ElementChoices.of(
                _id(own, place), [_id(other, place) for other in others], weight
            )
        return cls._of_rows(rows)

    @classmethod
    def of_vectors(
        cls,
        vectors: Tensor,
        *,
        cosine: float = 0.65,
        antonyms: Iterable[tuple[int, int]] = (),
        among: Sequence[int] | None = None,
    ) -> "Groups":
        """Group words by complete linkage of their vectors (V, d): any two have at least this cosine.

        Args:
            antonyms: pairs of ids that never share a group, although their vectors are close (north, south).
            among: restrict the groups to these words.
        """

        if not 0 < cosine <= 1:
            raise BadInput(f"cosine={cosine}: the similarity of a group must be in (0, 1].")
        words = torch.arange(len(vectors)) if among is None else torch.as_tensor(among).unique()
        place = {word: i for i, word in enumerate(words.tolist())}
        apart = [(place[a], place[b]) for a, b in antonyms if a in place and b in place]
        alike = [words[group] for group in complete_linkage(vectors[words], cosine, apart)]
        return cls._of_rows(
            {int(own): ElementChoices.of(int(own), group) for group in alike for own in group}
        )

    @classmethod
    def of_neighbours(cls, words: Sequence[str], neighbours: Mapping[str, Sequence[str]]) -> "Groups":
        """Build groups from lists of neighbours (counter-fitted vectors, say).

        words: the vocabulary in order. neighbours: word -> words that may replace it. Neighbours outside the
        vocabulary are dropped, and every word may stay.
        """
        place = number_of(words)
        near = {
            word: [place[other] for other in neighbours.get(word, ()) if other in place] for word in words
        }
        return cls._of_rows(
            {
                place[own]: ElementChoices.of(place[own], [place[own], *others])
                for own, others in near.items()
                if others
            }
        )

    @classmethod
    def _of_rows(cls, rows: Mapping[int, ElementChoices]) -> "Groups":
        alone = torch.ones(1, dtype=torch.float64)
        size = 1 + max(rows, default=-1)
        return cls(
            ChoiceTable.of(
                [rows.get(own) or ElementChoices(torch.tensor([own]), alone) for own in range(max(1, size))]
            )
        )

    def choices(self, element: Any) -> ElementChoices:
        own = int(element)
        if not 0 <= own < len(self._group):
            return ElementChoices(torch.tensor([own]), torch.ones(1, dtype=torch.float64))
        begin, end = int(self.sets.start[own]), int(self.sets.start[own + 1])
        return ElementChoices(self.sets.values[begin:end], self.sets.probability[begin:end])

    def table(self, elements: Sequence[Any] | Tensor) -> ChoiceTable:
        """Select rows of the stored sets without a Python loop, in the order of the elements."""
        if isinstance(elements, Tensor) and elements.is_floating_point():
            raise BadInput(
                "groups replace token ids, but the sequences hold numbers: use Noise or Own for frames."
            )
        own = torch.as_tensor(elements, dtype=torch.int64)
        known = (own >= 0) & (own < len(self._group))
        row = torch.where(known, own, 0)
        counts = torch.where(known, self.sets.counts[row], 1)
        start = torch.cat([torch.zeros(1, dtype=torch.int64), counts.cumsum(0)])
        at = (
            torch.arange(int(start[-1]))
            - start[:-1].repeat_interleave(counts)
            + self.sets.start[row].repeat_interleave(counts)
        )
        kept = known.repeat_interleave(counts)
        values = torch.where(
            kept, self.sets.values[at.clamp_max(len(self.sets.values) - 1)], own.repeat_interleave(counts)
        )
        return ChoiceTable(
            start,
            values,
            torch.where(kept, self.sets.probability[at.clamp_max(len(self.sets.values) - 1)], 1.0),
        )

    def abstract(self, elements: Tensor) -> Tensor:
        own = elements.long()
        group = torch.tensor(self._group).to(own.device)
        return torch.where((own >= 0) & (own < len(group)), group[own.clamp(0, len(group) - 1)], own)

    def settings(self) -> dict[str, Any]:
        return {"kind": self.kind}

    def tensors(self) -> dict[str, Tensor]:
        return {"start": self.sets.start, "values": self.sets.values, "probability": self.sets.probability}


def _id(token: Any, place: Mapping[str, int] | None) -> int:
    if isinstance(token, str):
        if place is None:
            raise BadInput(
                f"{token!r} is a word; give the vocabulary too (vocabulary=net.vocabulary), or token ids."
            )
        if token not in place:
            raise BadInput(
                f"{token!r} is not in the vocabulary, so it can replace nothing; leave it out of the sets."
            )
        return place[token]
    return int(token)
