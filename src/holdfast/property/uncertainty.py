"""Uncertainty: the predicted distribution stays away from the uniform one, or from a given distribution q.

    margin(z) = KL(q || softmax z) - epsilon = logsumexp(z) - q . z + sum over k of q_k log q_k - epsilon

The margin is convex in z. By the Gibbs inequality, logsumexp(z) >= p . z + H(p) for every distribution p with
entropy H(p), with equality for p = softmax(z). So every p gives a sound linear lower bound.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from holdfast.derivations import (
    ENTROPY,
    SUM_OF_TWO,
)
from holdfast.errors import BadInput
from holdfast.property.base import BoundedProperty, propagate_unknown
from holdfast.property.confidence import check_classes
from holdfast.property.probability import probabilities
from holdfast.rounding import charge

# Distributions are rounded to multiples of 1 / STEPS_PER_UNIT, so that their sums are exact in float64.
STEPS_PER_UNIT = 2.0**40


@dataclass(frozen=True, eq=False)
class Uncertainty(BoundedProperty):
    """margin = KL(q || softmax z) - epsilon; q is `toward` (default: uniform).

    With v_k = z_k - q . z the logsumexp term is logsumexp(v), which increases with each v_k. The linear lower
    bounds for p = (1 - a) q + a p' only need the row (p' - q) . z. For p' = a single class these are the v_k
    themselves. For p' = `near`, one distribution for each input, they need one further row.

    Distributions are multiples of 2^-40 with a sum of exactly one, so that no row is rounded.
    """

    toward: Tensor | None = None  # (batch, outputs)
    epsilon: float = 0.0
    near: Tensor | None = None  # (batch, outputs)

    def __post_init__(self) -> None:
        for name in ("toward", "near"):
            given = getattr(self, name)
            if given is not None and _is_distribution(given):  # `check` rejects others
                object.__setattr__(self, name, in_steps(given))

    @staticmethod
    def around(outputs: Tensor, toward: Tensor | None = None, epsilon: float = 0.0) -> "Uncertainty":
        """Build the property with the tangent at the outputs at the inputs (batch, outputs)."""
        return Uncertainty(toward, epsilon, outputs.double().softmax(-1))

    def score(self, outputs: Tensor) -> Tensor:
        q = self._target(outputs.shape[-1], outputs.device)
        away = -(q.to(outputs) * outputs.log_softmax(-1)).sum(-1) - entropy(q).to(outputs)
        return away - self.epsilon

    def rows(self, outputs: int) -> tuple[Tensor, Tensor]:
        """Return z_k - q . z for every class, then (near - q) . z if there is a tangent."""
        device = self._device()
        q = self._target(outputs, device)
        rows = torch.eye(outputs, dtype=torch.float64, device=device) - q[:, None]
        if self.near is not None:
            rows = torch.cat([rows.expand(len(self.near), -1, -1), (self.near - q)[:, None]], dim=1)
        return rows, rows.new_zeros(rows.shape[:2])

    def least(self, values: Tensor) -> Tensor:
        """Return the best of logsumexp and all linear bounds; a divergence is never negative."""
        curve = self._curve(values)
        q = self._target(curve.shape[1], values.device)
        found = torch.logsumexp(curve, 1) - self._slack(curve.shape[1], curve.abs().amax(1))
        found = torch.maximum(found, self._to_a_class(curve, q))
        if self.near is not None:
            found = torch.maximum(found, self._to_near(values[:, -1], q))
        known = entropy(q)
        least = (found - known - self._slack(curve.shape[1], found.abs() + known)).clamp_min(0) - self.epsilon
        return propagate_unknown(least - charge(least.abs(), SUM_OF_TWO), values)

    def _to_a_class(self, curve: Tensor, q: Tensor) -> Tensor:
        """Linear bounds for p = (1 - a) q + a e_k: a v_k + H(p).

        H(p) is a' + (1 - a) H(q) with a' = -(1 - a) log(1 - a), except for the term of class k.
        """
        a = _shares(curve)
        rest = torch.special.entr(1 - a) + (1 - a) * entropy(q)[:, None]
        mixed: Tensor = rest - torch.special.entr((1 - a) * q) + torch.special.entr((1 - a) * q + a)
        return (a * curve + mixed - self._slack(curve.shape[1], (a * curve).abs())).amax((0, 2))

    def _to_near(self, plane: Tensor, q: Tensor) -> Tensor:
        """Linear bounds for p = (1 - a) q + a near."""
        assert self.near is not None
        a = _shares(self.near)
        mixed = entropy((1 - a) * q + a * self.near)
        return (a[..., 0] * plane + mixed - self._slack(self.near.shape[1], (a[..., 0] * plane).abs())).amax(
            0
        )

    def most(self, lower: Tensor, upper: Tensor) -> Tensor:
        curve = self._curve(upper)
        outputs, known = curve.shape[1], entropy(self._target(curve.shape[1], upper.device))
        found = torch.logsumexp(curve, 1)
        return (
            found
            - known
            - self.epsilon
            + self._slack(outputs, curve.abs().amax(1) + found.abs() + known + self.epsilon)
        )

    def slopes(self, lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
        """The derivative of logsumexp in v_k is the probability of class k."""
        low, high = probabilities(self._curve(lower), self._curve(upper))
        extra = lower.shape[1] - low.shape[1]
        return torch.nn.functional.pad(low, (0, extra))[:, None], torch.nn.functional.pad(high, (0, extra))[
            :, None
        ]

    def _curve(self, values: Tensor) -> Tensor:
        return values if self.near is None else values[:, :-1]

    @staticmethod
    def _slack(outputs: int, size: Tensor) -> Tensor:
        """Bound the rounding error of sums, logarithms and exponentials of this many numbers of this size."""
        return charge(size + 1 + math.log(outputs), ENTROPY, outputs)

    def _target(self, outputs: int, device: torch.device) -> Tensor:
        """Return q, (batch or 1, outputs) float64."""
        if self.toward is not None:
            return self.toward.to(device)
        return in_steps(torch.full((1, outputs), 1 / outputs, dtype=torch.float64, device=device))

    def _device(self) -> torch.device:
        given = self.toward if self.toward is not None else self.near
        return torch.device("cpu") if given is None else given.device

    def check(self, batch: int, outputs: int) -> None:
        check_classes(outputs)
        if not 0 <= self.epsilon < math.inf:
            raise BadInput(f"epsilon must be a number >= 0, got {self.epsilon}: it is a divergence.")
        for what, given in (
            ("the distribution `toward`", self.toward),
            ("the distribution `near`", self.near),
        ):
            if given is None:
                continue
            if tuple(given.shape) != (batch, outputs):
                raise BadInput(
                    f"{what} has shape {tuple(given.shape)}, expected ({batch}, {outputs}): one number for "
                    "each class."
                )
            if not _is_distribution(given):
                raise BadInput(f"{what} must hold numbers from 0 to 1 that add up to one for each input.")


def _is_distribution(given: Tensor) -> bool:
    fits = given.dim() == 2 and given.is_floating_point() and bool((given >= 0).all())
    return fits and bool(((given.double().sum(-1) - 1).abs() < 1e-3).all())


def in_steps(distribution: Tensor) -> Tensor:
    """Round to multiples of 2^-40 with a sum of exactly one; the largest entry takes the rest."""
    steps = (distribution.double() / distribution.double().sum(-1, keepdim=True) * STEPS_PER_UNIT).round()
    largest = steps.argmax(-1, keepdim=True)
    return steps.scatter_add(-1, largest, STEPS_PER_UNIT - steps.sum(-1, keepdim=True)) / STEPS_PER_UNIT


def _shares(like: Tensor) -> Tensor:
    """Return mixing weights (count, 1, 1) from 1 downwards, each 16 % below the one before."""
    return (2.0 ** -(torch.arange(64, dtype=torch.float64, device=like.device) / 4))[:, None, None]


def entropy(p: Tensor) -> Tensor:
    """(..., outputs) -> (...): -sum of p log p."""
    found: Tensor = torch.special.entr(p).sum(-1)
    return found
