"""Robustness scores with their evidence."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from holdfast.errors import BadInput
from holdfast.result import Evidence

Steps = int | Literal["final"]  # number of elements after which the label is compared


@dataclass(frozen=True, slots=True)
class Score:
    """The probability that the label stays when one element is replaced: 1 is robust, NaN if it is undefined.

    Attributes:
        low, high: bounds that the evidence supports; equal to the value if all mutants were run and no label
            was close.
        label: the network's label.
        support: number of mutants, samples or training transitions behind the value.
    """

    value: float
    low: float
    high: float
    label: int
    support: int
    evidence: Evidence


@dataclass(frozen=True, eq=False)
class Scores:
    """One score for each element of a sequence."""

    values: Tensor  # (n,) float64; NaN if the sequence ends before the step that is compared
    low: Tensor
    high: Tensor
    labels: Tensor  # (n,) int64: the label that should stay; -1 if there is none
    support: Tensor  # (n,) int64
    attackable: Tensor  # (n,) bool: the element has a mutant other than itself
    evidence: Evidence
    k: Steps = 0
    gamma: Tensor | None = None  # (n, labels) float64: distribution of labels under mutation, if known
    words: tuple[str, ...] | None = None

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, place: int) -> Score:
        value, low, high = float(self.values[place]), float(self.low[place]), float(self.high[place])
        return Score(value, low, high, int(self.labels[place]), int(self.support[place]), self.evidence)

    def __iter__(self) -> Iterator[Score]:
        return (self[place] for place in range(len(self)))

    @property
    def least(self) -> int | None:
        """Index of the least robust attackable element, the first of equals; None if there is none."""
        return self._place(torch.where(self._known, self.values, torch.inf).argmin())

    @property
    def most(self) -> int | None:
        """Index of the most robust attackable element."""
        return self._place(torch.where(self._known, self.values, -torch.inf).argmax())

    @property
    def lowest(self) -> float:
        """The smallest score of the sequence; 1 if no element is attackable."""
        return min((v for v in self.values.tolist() if not math.isnan(v)), default=1.0)

    @property
    def attack_success(self) -> Tensor:
        """(n,): the probability that a mutation of the element changes the final label."""
        if self.k != "final":
            raise BadInput(
                "the success of an attack is about the final label: use score(..., k='final'), not "
                f"k={self.k!r}."
            )
        return 1 - self.values

    @property
    def _known(self) -> Tensor:
        return self.attackable & ~self.values.isnan()

    def _place(self, found: Tensor) -> int | None:
        return int(found) if bool(self._known.any()) else None
