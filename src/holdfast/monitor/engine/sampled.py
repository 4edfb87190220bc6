"""Scores from draws, where the set is infinite or too large: a share of hits with its Clopper-Pearson interval.

Each interval holds with its confidence on its own, not all of them at once.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from scipy.special import betaincinv
from torch import Tensor

from holdfast.errors import BadInput
from holdfast.monitor.mutation.choices import ChoiceTable, ElementChoices, Mutation, are_ids


def interval(hits: Tensor | int, count: int, confidence: float) -> tuple[Tensor, Tensor]:
    """Clopper-Pearson: the true share lies within with at least this confidence, whatever it is."""
    k, outside = np.asarray(hits, dtype=np.float64), (1 - confidence) / 2
    low = np.where(k > 0, betaincinv(np.maximum(k, 1), count - k + 1, outside), 0.0)
    high = np.where(k < count, betaincinv(k + 1, np.maximum(count - k, 1), 1 - outside), 1.0)
    return torch.from_numpy(low), torch.from_numpy(high)


@dataclass(frozen=True)
class Drawn(Mutation):
    """`count` draws of another mutation as a finite set: each draw has probability 1 / count, the original only that of its draws.

    rows: only these frames of those asked for are mutated, so that long sequences can be taken in parts.
    alike: every sequence is drawn from where the generator stands, so that its scores do not depend on what it is asked beside.
    """

    mutation: Mutation
    count: int
    generator: torch.Generator
    rows: range | None = None
    alike: bool = False
    kind: ClassVar[str] = "drawn"

    def choices(self, element: Any) -> ElementChoices:
        own = torch.as_tensor(element)
        draws = self.mutation.sample(element, self.count, self.generator).to(own.dtype)
        if own.dim() == 0:  # a token is drawn many times, and run once
            values, times = draws.unique(return_counts=True)
            other = values != own
            return ElementChoices(
                torch.cat([own[None], values[other]]),
                torch.cat([times[~other].sum()[None], times[other]]).double() / self.count,
            )
        share = torch.full((self.count + 1,), 1 / self.count, dtype=torch.float64)
        share[0] = 0
        return ElementChoices(torch.cat([own[None], draws]), share)

    def table(self, elements: Any) -> ChoiceTable:
        if self.rows is None or are_ids(elements):
            return super().table(elements)
        alone = torch.ones(1, dtype=torch.float64)
        return ChoiceTable.of(
            self.choices(x) if row in self.rows else ElementChoices(x[None], alone)
            for row, x in enumerate(elements)
        )

    def tables(self, elements: Tensor, length: Tensor) -> tuple[ChoiceTable, Tensor]:
        if not self.alike:
            return super().tables(elements, length)
        state, parts = self.generator.get_state(), []
        for sequence in elements.split(length.tolist()):
            self.generator.set_state(state)
            parts.append(super().tables(sequence, length))
        tables, rows = zip(*parts, strict=True)
        count = torch.tensor([0, *(len(table.counts) for table in tables)]).cumsum(0)
        return ChoiceTable.concatenate(tables), torch.cat(
            [row + first for row, first in zip(rows, count.tolist(), strict=False)]
        )

    def abstract(self, elements: Tensor) -> Tensor:
        return self.mutation.abstract(elements)

    def settings(self) -> dict[str, Any]:
        raise BadInput("draws are not saved; save the mutation they come from.")
