"""Sampled scores for infinite or very large sets, with Clopper-Pearson intervals.

For h hits among n draws the interval is [BetaInv(a/2; h, n - h + 1), BetaInv(1 - a/2; h + 1, n - h)]. It
contains the true probability with confidence at least 1 - a. This holds for each score separately, not for
all scores at once.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from holdfast.errors import BadInput
from holdfast.monitor.mutation.choices import ChoiceTable, ElementChoices, Mutation, are_ids


def interval(hits: Tensor | int, count: int, confidence: float) -> tuple[Tensor, Tensor]:
    """Return the Clopper-Pearson interval: it contains the true probability with at least this confidence."""
    from scipy.special import betaincinv

    k, outside = np.asarray(hits, dtype=np.float64), (1 - confidence) / 2
    low = np.where(k > 0, betaincinv(np.maximum(k, 1), count - k + 1, outside), 0.0)
    high = np.where(k < count, betaincinv(k + 1, np.maximum(count - k, 1), 1 - outside), 1.0)
    return torch.from_numpy(low), torch.from_numpy(high)


@dataclass(frozen=True)
class Drawn(Mutation):
    """`count` draws of another mutation as a finite set, each of probability 1 / count.

    The original is in the set with the probability of its own draws.

    Attributes:
        rows: only these frames are mutated, so that long sequences can be processed in parts.
        alike: every sequence uses the same random numbers, so its scores do not depend on the other sequences
            in the call.
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
        if own.dim() == 0:  # a token may be drawn repeatedly, but is run once
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
        raise BadInput("draws cannot be saved; save the mutation that they are drawn from.")
