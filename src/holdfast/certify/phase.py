"""What the phases of tier `tight` share: their interface, and the search over radii of phases without
training.

A phase is one proof technique with its state. `Tighten` composes the phases and carries the certified bounds
from one to the next. All states are immutable values: a step returns a new one.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from holdfast.method import Claims
from holdfast.problem import Problem

# Training starts at this multiple of the certified radius: slightly beyond what is certified (chosen by
# hand).
TRAINING_START = 1.03


@dataclass(frozen=True)
class PhaseStep:
    """The result of one step of a phase.

    Attributes:
        low: (batch,), the certified bounds (a radius or a score) after the step.
        phase: the phase after the step.
        finished: the phase has nothing more to do.
        claims: further claims of the step; its bounds are those of `low`.
    """

    low: Tensor
    phase: "Phase"
    finished: bool
    claims: Claims | None = None


class Phase(ABC):
    """One proof technique of tier `tight`, with its state."""

    @abstractmethod
    def step(self, problem: Problem, low: Tensor, upper: Tensor | None) -> PhaseStep:
        """Try to raise the certified bounds low (batch,); upper (batch,) are bounds of counterexamples, if
        known.
        """

    def raise_bounds(self, problem: Problem, lower: Tensor, upper: Tensor, better: Tensor) -> "Phase":
        """Return the phase after another method certified `lower` in the rows `better` (batch,) bool."""
        return self


@dataclass(frozen=True)
class RadiusTrial:
    """The search for the largest radius that a proof without training certifies, row by row.

    Attributes:
        high: (batch,), the smallest radius at which the proof failed, infinite before that.
        low_score: (batch,), lower bound of the score at the certified radius; NaN if another method certified
            it.
        high_score: (batch,), lower bound of the score at `high`.
        round: number of radii tried.
        growth: factor to the next radius as long as no radius has failed.
        close: quotient of `high` and the certified radius below which a row is done.
    """

    high: Tensor
    low_score: Tensor
    high_score: Tensor
    round: int
    growth: float
    close: float

    @staticmethod
    def above(low: Tensor, growth: float, close: float) -> "RadiusTrial":
        """Begin the search above the certified radii low (batch,)."""
        unknown = torch.full_like(low, torch.nan)
        return RadiusTrial(torch.full_like(low, torch.inf), unknown, unknown, 0, growth, close)

    def next_radius(self, low: Tensor) -> Tensor:
        """Return (batch,): the radius to try next, interpolated between the known scores where both are
        known.
        """
        share = (self.low_score / (self.low_score - self.high_score)).clamp(0.2, 0.8).nan_to_num(0.5)
        return torch.where(self.high.isinf(), self.growth * low, low + (self.high - low) * share)

    def add_score(self, radius: Tensor, score: Tensor) -> "RadiusTrial":
        """Record the lower bounds of the score at these radii; rows with NaN had no time and are tried
        again.
        """
        certified, failed = score > 0, ~(score > 0) & ~score.isnan()
        return replace(
            self,
            high=torch.where(failed, radius, self.high),
            low_score=torch.where(certified, score, self.low_score),
            high_score=torch.where(failed, score, self.high_score),
            round=self.round + int(not score.isnan().any()),
        )

    def forget_low_scores(self, rows: Tensor) -> "RadiusTrial":
        """Return this for rows (batch,) bool whose radius another method has certified."""
        return replace(self, low_score=torch.where(rows, torch.nan, self.low_score))

    def is_open(self, low: Tensor) -> Tensor:
        """Return (batch,) bool: the rows whose radius is not yet known closely enough."""
        return self.high > self.close * low

    def is_done(self, low: Tensor, rounds: int) -> bool:
        return self.round >= rounds or not bool(self.is_open(low).any())
