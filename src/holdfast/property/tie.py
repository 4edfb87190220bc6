"""No tie: the two largest outputs (or probabilities) differ by more than epsilon."""

from dataclasses import dataclass

import torch
from torch import Tensor

from holdfast.derivations import (
    MARGIN,
)
from holdfast.errors import BadInput
from holdfast.property.base import BoundedProperty, check_labels, propagate_unknown
from holdfast.property.confidence import Confidence, check_classes, check_epsilon
from holdfast.property.probability import insert_label, probabilities, probabilities_or_outputs
from holdfast.rounding import charge


@dataclass(frozen=True, eq=False)
class Tie(BoundedProperty):
    """margin = f_(1) - f_(2) - epsilon, where f_(1) >= f_(2) are the two largest entries of f.

    f is softmax(outputs), or with softmax=False the outputs themselves. On a continuous path from one class
    to another the two largest are equal somewhere. So in a connected region a tie is no further away than an
    adversarial example. `label`, the class at the input, is used by proofs only: if it leads all others by
    more than zero, it is the largest, and the margin equals that of `Confidence`. Everywhere the margin is at
    least -epsilon.
    """

    label: Tensor  # (batch,) int64
    epsilon: float
    softmax: bool = True

    @property
    def _ahead(self) -> Confidence:
        return Confidence(self.label, None, self.epsilon, self.softmax)

    def score(self, outputs: Tensor) -> Tensor:
        first, second = probabilities_or_outputs(outputs, self.softmax).topk(2, dim=-1).values.unbind(-1)
        return first - second - self.epsilon

    def rows(self, outputs: int) -> tuple[Tensor, Tensor]:
        """Return z_label - z_k with both signs, so that both bounds of each are available."""
        return self._ahead.rows(outputs)

    def least(self, values: Tensor) -> Tensor:
        """If the label leads everywhere, its lead bounds the margin; else the margin is >= -epsilon."""
        return propagate_unknown(self._ahead.least(values).clamp_min(-self.epsilon), values)

    def most(self, lower: Tensor, upper: Tensor) -> Tensor:
        """The largest entry is at most the largest upper bound, the second >= the second lower bound."""
        low, high = self._ahead.ends(lower, upper)
        f = insert_label(self.label, -high), insert_label(self.label, -low)
        f_low, f_high = probabilities(*f) if self.softmax else f
        first, second = f_high.amax(1), f_low.topk(2, dim=1).values[:, 1]
        size = first.abs() + second.abs() + self.epsilon
        gap = first - second - self.epsilon + charge(size, MARGIN)
        return torch.where(self._on_top(lower), torch.minimum(gap, self._ahead.most(lower, upper)), gap)

    def slopes(self, lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
        """The slopes of the label's lead if it is certainly the largest; otherwise nothing is known."""
        unknown = ~self._on_top(lower)[:, None, None]
        low, high = self._ahead.slopes(lower, upper)
        return torch.where(unknown, -torch.inf, low), torch.where(unknown, torch.inf, high)

    def _on_top(self, lower: Tensor) -> Tensor:
        return self._ahead.least(lower) > -self.epsilon

    def check(self, batch: int, outputs: int) -> None:
        check_epsilon(self.epsilon, self.softmax)
        check_classes(outputs)
        check_labels(self.label, batch, outputs, "label")
        if not self.epsilon > 0:
            raise BadInput(
                "epsilon must be above zero: a search never finds classes that are exactly equal, however "
                "close they are."
            )
