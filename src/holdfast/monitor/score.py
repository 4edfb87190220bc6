"""Scores of robustness, each with the reason to believe it."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from holdfast.errors import BadInput
from holdfast.result import Evidence

Steps = int | Literal["final"]  # after how many further elements the label is looked at


@dataclass(frozen=True, slots=True)
class Score:
    """How likely the label stays when one element is replaced: 1 is robust, NaN where there is none.

    low, high  what the evidence vouches for: equal to the value where all cases were asked and none was a close call.
    label      what the network says; support: how many cases (mutants, samples, training transitions) are behind the value.
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

    values: Tensor  # (n,) float64; NaN where the sequence ends before the step that is looked at
    low: Tensor
    high: Tensor
    labels: Tensor  # (n,) int64: the label that should stay; -1 where there is none
    support: Tensor  # (n,) int64
    attackable: Tensor  # (n,) bool: something else may stand here
    evidence: Evidence
    k: Steps = 0
    gamma: Tensor | None = None  # (n, labels) float64: how likely each label is, where that is known
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
        """The least robust place among the attackable ones, the first of equals; None where there is none."""
        return self._place(torch.where(self._known, self.values, torch.inf).argmin())

    @property
    def most(self) -> int | None:
        """The most robust place among the attackable ones."""
        return self._place(torch.where(self._known, self.values, -torch.inf).argmax())

    @property
    def lowest(self) -> float:
        """The smallest score of the sequence; 1 where nothing can be attacked."""
        return min((v for v in self.values.tolist() if not math.isnan(v)), default=1.0)

    @property
    def attack_success(self) -> Tensor:
        """(n,): how likely a mutation here changes the final label."""
        if self.k != "final":
            raise BadInput(
                f"the success of an attack is about the last label: ask for score(..., k='final'), not k={self.k!r}."
            )
        return 1 - self.values

    @property
    def _known(self) -> Tensor:
        return self.attackable & ~self.values.isnan()

    def _place(self, found: Tensor) -> int | None:
        return int(found) if bool(self._known.any()) else None
