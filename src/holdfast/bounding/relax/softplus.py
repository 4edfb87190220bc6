"""Softplus, log(1 + exp(beta v)) / beta: convex, with derivative sigmoid(beta v)."""

from dataclasses import dataclass

import torch
from torch import Tensor

from holdfast.bounding.relax.base import Point, Relaxation, chord, clamp


@dataclass(frozen=True)
class Softplus(Relaxation):
    """As torch computes it: v itself where beta v > threshold. The function drops there, by log(1 + exp(-threshold)) / beta."""

    beta: float = 1.0
    threshold: float = 20.0

    def function(self, *v: Tensor) -> Tensor:
        return torch.where(v[0] * self.beta > self.threshold, v[0], self._smooth(v[0]))

    def _smooth(self, v: Tensor) -> Tensor:
        return (torch.relu(v * self.beta) + torch.log1p(torch.exp(-(v * self.beta).abs()))) / self.beta

    def magnitude(self, lower: Point, upper: Point) -> Tensor:
        return self._smooth(upper[0]) + max(-self.threshold / self.beta, 0.0)

    def candidates(self, lower: Point, upper: Point, slope: Point) -> list[Point]:
        """Ends, where sigmoid(beta v) = slope, and both sides of the drop wherever the box comes within rounding of it."""
        (low,), (high,) = lower, upper
        drop = min(self.threshold / self.beta, 1e300)
        aside = abs(drop) * 2.0**-50 + 1e-300
        level = (torch.logit(slope[0].clamp(1e-300, 1 - 2.0**-53)) / self.beta).clamp_max(drop - aside)
        near = (low - 2 * aside <= drop) & (drop <= high + 2 * aside)
        sides = [(torch.where(near, side, low),) for side in (drop - aside, drop + aside)]
        return [lower, upper, (clamp(level, low, high),), *sides]

    def slopes(self, lower: Point, upper: Point) -> tuple[Point, Point]:
        """Below: the tangent in the middle. Above: the chord."""
        (low,), (high,) = lower, upper
        tangent = torch.sigmoid(self.beta * (low / 2 + high / 2))
        return (tangent,), (chord(self.function(low), self.function(high), low, high, tangent),)
