"""The mutation function mu (Definition 2.4 of MARBLE), as a finite set or a sampler.

Every set contains the original, first. One element is replaced at a time; the rest of the sequence stays.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from holdfast.errors import BadInput

SUM_TOLERANCE = 1e-6  # Tolerance of the sum of probabilities, which are then normalised (chosen by hand).


@dataclass(frozen=True)
class ElementChoices:
    """The possible values of an element, the original first, with their probabilities."""

    values: Tensor  # (k,) ids, or (k, ...) frames
    probability: Tensor  # (k,) float64

    @staticmethod
    def of(
        element: int | Tensor, values: Sequence[Any] | Tensor, probability: Sequence[float] | None = None
    ) -> "ElementChoices":
        """Validate and merge duplicates, original first; uniform without probabilities."""
        weight = (
            [1 / max(1, len(values))] * len(values)
            if probability is None
            else [float(p) for p in probability]
        )
        _check_probability(weight, len(values), element)
        if isinstance(element, int):
            return _of_ids(element, [int(value) for value in values], weight)
        given = (
            values
            if isinstance(values, Tensor)
            else torch.stack([torch.as_tensor(value) for value in values])
        )
        same = (given == element.to(given)).reshape(len(given), -1).all(1)
        if not bool(same.any()):
            raise BadInput(_missing(element))
        flat, place = torch.unique(given.reshape(len(given), -1), dim=0, return_inverse=True)
        merged = torch.zeros(len(flat), dtype=torch.float64).index_add_(
            0, place, torch.tensor(weight, dtype=torch.float64) / sum(weight)
        )
        order = (torch.arange(len(flat)) != place[same][0]).int().argsort(stable=True)
        return ElementChoices(flat[order].reshape(-1, *given.shape[1:]), merged[order])


def _of_ids(own: int, values: list[int], weight: list[float]) -> ElementChoices:
    """As `ElementChoices.of` for ids, in plain Python for speed on large vocabularies."""
    if own not in values:
        raise BadInput(_missing(own))
    merged = {own: 0.0}
    for value, share in zip(values, weight, strict=True):
        merged[value] = merged.get(value, 0.0) + share
    probability = torch.tensor(list(merged.values()), dtype=torch.float64)
    return ElementChoices(torch.tensor(list(merged)), probability / probability.sum())


def _check_probability(weight: list[float], count: int, element: Any) -> None:
    if not count:
        raise BadInput(_missing(element))
    if len(weight) != count:
        raise BadInput(
            f"{count} mutations of {_shown(element)}, but {len(weight)} probabilities: give one for each."
        )
    if not (all(p >= 0 for p in weight) and abs(sum(weight) - 1) <= SUM_TOLERANCE):
        raise BadInput(
            f"the probabilities of {_shown(element)} sum to {sum(weight):.9g}; they must be >= 0 and sum to "
            "1."
        )


def _missing(element: Any) -> str:
    return (
        f"the mutations of {_shown(element)} do not contain the original: add it, with probability 0 if it "
        "never stays."
    )


def _shown(element: Any) -> str:
    return (
        f"a frame of shape {tuple(element.shape)}"
        if isinstance(element, Tensor) and element.dim()
        else f"element {element}"
    )


@dataclass(frozen=True)
class ChoiceTable:
    """Concatenated choices: element i has start[i] to start[i + 1], the original first."""

    start: Tensor  # (n + 1,) int64
    values: Tensor  # (m,) int64, or (m, ...) frames
    probability: Tensor  # (m,) float64

    @staticmethod
    def of(rows: Iterable[ElementChoices]) -> "ChoiceTable":
        every = list(rows)
        counts = torch.tensor([0, *(len(row.probability) for row in every)])
        return ChoiceTable(
            counts.cumsum(0),
            torch.cat([row.values for row in every]),
            torch.cat([row.probability for row in every]),
        )

    @staticmethod
    def concatenate(tables: Sequence["ChoiceTable"]) -> "ChoiceTable":
        """Concatenate tables."""
        counts = torch.cat([torch.zeros(1, dtype=torch.int64), *(table.counts for table in tables)])
        return ChoiceTable(
            counts.cumsum(0),
            torch.cat([table.values for table in tables]),
            torch.cat([table.probability for table in tables]),
        )

    @property
    def counts(self) -> Tensor:
        return self.start.diff()

    def to(self, device: torch.device) -> "ChoiceTable":
        return ChoiceTable(self.start.to(device), self.values.to(device), self.probability.to(device))


class Mutation(ABC):
    """A distribution over the replacements of one element."""

    finite: ClassVar[bool] = True  # whether `choices` lists everything; otherwise only `sample` works
    kind: ClassVar[str]

    @abstractmethod
    def choices(self, element: Any) -> ElementChoices:
        """Return all values with their probabilities, the original first; only if `finite`."""

    def sample(self, element: Any, count: int, generator: torch.Generator) -> Tensor:
        """Draw `count` independent values, (count, ...)."""
        every = self.choices(element)
        return every.values[
            torch.multinomial(every.probability, count, replacement=True, generator=generator)
        ]

    def table(self, elements: Sequence[Any] | Tensor) -> ChoiceTable:
        """Return the choices of each element."""
        if isinstance(elements, Tensor) and are_ids(elements):
            return ChoiceTable.of(self.choices(element) for element in elements.tolist())
        return ChoiceTable.of(self.choices(element) for element in elements)

    def tables(self, elements: Tensor, length: Tensor) -> tuple[ChoiceTable, Tensor]:
        """Return the choices of concatenated sequences, and for each element (n,) its row in them."""
        if not are_ids(elements):
            return self.table(elements), torch.arange(len(elements))
        distinct, row = elements.unique(return_inverse=True)
        return self.table(distinct), row

    def abstract(self, elements: Tensor) -> Tensor:
        """(n, ...) -> (n,) int64: the abstract input of each element.

        Ids are their own; all frames are the same.
        """
        return (
            elements.long()
            if are_ids(elements)
            else torch.zeros(len(elements), dtype=torch.int64, device=elements.device)
        )

    @abstractmethod
    def settings(self) -> dict[str, Any]:
        """Return the JSON form; with `tensors` it is enough to rebuild the mutation.

        BadInput if it cannot be saved.
        """

    def tensors(self) -> dict[str, Tensor]:
        return {}


def are_ids(elements: Sequence[Any] | Tensor) -> bool:
    return isinstance(elements, Tensor) and not elements.is_floating_point() and elements.dim() == 1


def check_ids(
    ids: Tensor,
    words: int,
    message: str = "a mutation produces a token that the network does not have: ids run from 0 to {last}.",
) -> None:
    """BadInput unless all are ids of a vocabulary of this size."""
    if not are_ids(ids) or not bool(((ids >= 0) & (ids < words)).all()):
        raise BadInput(message.format(last=words - 1))


class Still(Mutation):
    """The identity: no replacement."""

    kind: ClassVar[str] = "still"

    def choices(self, element: Any) -> ElementChoices:
        return ElementChoices(torch.as_tensor(element)[None], torch.ones(1, dtype=torch.float64))

    def table(self, elements: Sequence[Any] | Tensor) -> ChoiceTable:
        values = torch.as_tensor(elements)
        return ChoiceTable(
            torch.arange(len(values) + 1), values, torch.ones(len(values), dtype=torch.float64)
        )

    def settings(self) -> dict[str, Any]:
        return {"kind": self.kind}
