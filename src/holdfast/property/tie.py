"""The network stays decided: no two classes share the top."""

from dataclasses import dataclass

import torch
from torch import Tensor

from holdfast.errors import BadInput
from holdfast.property.base import BoundedProperty, certain, check_labels
from holdfast.property.confidence import Confidence, check_classes, check_epsilon
from holdfast.property.probability import among, probabilities, share
from holdfast.rounding import TINY, gamma


@dataclass(frozen=True, eq=False)
class Tie(BoundedProperty):
    """f_first - f_second - epsilon stays positive, whichever classes are first and second.

    f is softmax(outputs), or with softmax=False the outputs themselves. On a path from one class to another the first two are equal
    somewhere, so where every path may be walked a tie is no further than an adversarial example. The label, the class at the
    input, is for proofs only: where it leads all others by more than zero it is the first, and the score is that of `Confidence`; anywhere
    the score is at least -epsilon.
    """

    label: Tensor  # (batch,) int64
    epsilon: float
    softmax: bool = True

    @property
    def _ahead(self) -> Confidence:
        return Confidence(self.label, None, self.epsilon, self.softmax)

    def score(self, outputs: Tensor) -> Tensor:
        first, second = share(outputs, self.softmax).topk(2, dim=-1).values.unbind(-1)
        return first - second - self.epsilon

    def rows(self, outputs: int) -> tuple[Tensor, Tensor]:
        """Both signs of z_label - z_k, so that both bounds of each are known."""
        return self._ahead.rows(outputs)

    def least(self, values: Tensor) -> Tensor:
        """A lead of the label above `found + epsilon` > 0 everywhere keeps it on top; else the gap is not negative."""
        return certain(self._ahead.least(values).clamp_min(-self.epsilon), values)

    def most(self, lower: Tensor, upper: Tensor) -> Tensor:
        """The first is at most the largest upper bound, the second at least the second largest lower bound."""
        low, high = self._ahead.ends(lower, upper)
        f = among(self.label, -high), among(self.label, -low)
        f_low, f_high = probabilities(*f) if self.softmax else f
        first, second = f_high.amax(1), f_low.topk(2, dim=1).values[:, 1]
        gap = (
            first - second - self.epsilon + 8 * gamma(1) * (first.abs() + second.abs() + self.epsilon) + TINY
        )
        return torch.where(self._on_top(lower), torch.minimum(gap, self._ahead.most(lower, upper)), gap)

    def slopes(self, lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
        """Those of the label's lead where it is on top for sure; else nothing is known."""
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
                "epsilon must be above zero: classes that are exactly equal are never met by a search, however close they come."
            )
