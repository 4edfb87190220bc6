"""Confidence: the label leads another class, or all others, by more than epsilon (DeepQuant).

margin(z) = f_c(z) - max over j != c of f_j(z) - epsilon    (or a single given j),   f = softmax(z) or z
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from holdfast.derivations import (
    PROBABILITY_SLOPE,
    SUM_OF_TWO,
)
from holdfast.errors import BadInput
from holdfast.property.base import (
    BoundedProperty,
    OneOutput,
    check_labels,
    differences,
    margin_to_others,
    may_be_smallest,
    propagate_unknown,
    select_output,
)
from holdfast.property.probability import (
    drop_label,
    insert_label,
    least_leads,
    most_leads,
    probabilities,
    probabilities_or_outputs,
)
from holdfast.rounding import TINY, charge


@dataclass(frozen=True, eq=False)
class Confidence(BoundedProperty):
    """margin = f_label - f_other - epsilon; without `other`, the minimum over all other classes.

    f is softmax(outputs), or with softmax=False the outputs themselves. With a single `other` a third class
    may become the largest unnoticed. Without it the label leads by more than epsilon wherever the property
    holds.
    """

    label: Tensor  # (batch,) int64
    other: Tensor | None = None  # (batch,) int64
    epsilon: float = 0.0
    softmax: bool = True

    @staticmethod
    def runner_up(outputs: Tensor, epsilon: float = 0.0, softmax: bool = True) -> "Confidence":
        """From outputs at the inputs (batch, outputs): the largest class against the second (case 1)."""
        label, other = outputs.topk(2, dim=-1).indices.unbind(-1)
        return Confidence(label, other, epsilon, softmax)

    @staticmethod
    def against(outputs: Tensor, other: Tensor, epsilon: float = 0.0, softmax: bool = True) -> "Confidence":
        """From outputs at the inputs (batch, outputs): the largest class against a given one (case 2)."""
        return Confidence(outputs.argmax(-1), other, epsilon, softmax)

    @staticmethod
    def least_likely(outputs: Tensor, epsilon: float = 0.0, softmax: bool = True) -> "Confidence":
        """From outputs at the inputs (batch, outputs): the largest class against the smallest (case 3)."""
        return Confidence(outputs.argmax(-1), outputs.argmin(-1), epsilon, softmax)

    def score(self, outputs: Tensor) -> Tensor:
        f = probabilities_or_outputs(outputs, self.softmax)
        ahead = (
            margin_to_others(f, self.label)
            if self.other is None
            else select_output(f, self.label) - select_output(f, self.other)
        )
        return ahead - self.epsilon

    def rows(self, outputs: int) -> tuple[Tensor, Tensor]:
        """Return z_label - z_k for every other class k; with softmax also the negatives."""
        rows = differences(self.label, outputs)
        rows = torch.cat([rows, -rows], dim=1) if self.softmax else rows
        return rows, rows.new_zeros(rows.shape[:2])

    def least(self, values: Tensor) -> Tensor:
        lower, upper = self.ends(values, None)
        leads = least_leads(lower, upper) if self.softmax else lower
        found = self._competing_leads(leads).amin(1)
        return propagate_unknown(
            found - self.epsilon - charge(found.abs() + self.epsilon, SUM_OF_TWO) - TINY, values
        )

    def most(self, lower: Tensor, upper: Tensor) -> Tensor:
        low, high = self.ends(lower, upper)
        leads = most_leads(low, high) if self.softmax else high
        found = self._competing_leads(leads).amin(1)
        return found - self.epsilon + charge(found.abs() + self.epsilon, SUM_OF_TWO) + TINY

    def slopes(self, lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
        """d(p_c - p_j) / dd_k = p_k (p_c - p_j) for d_k = z_c - z_k, and p_j more for k = j."""
        low, high = self.ends(lower, upper)
        if not self.softmax:
            found = (
                self._pieces(low.shape[1])
                * may_be_smallest(self._competing_leads(low), self._competing_leads(high))[..., None]
            )
            return found, found
        leads = self._competing_leads(least_leads(low, high)), self._competing_leads(most_leads(low, high))
        alive = may_be_smallest(*leads)[..., None]
        p = probabilities(insert_label(self.label, -high), insert_label(self.label, -low))
        p_low, p_high = (drop_label(self.label, end)[:, None] for end in p)
        lead_low, lead_high = (end.clamp(-1, 1)[..., None] for end in leads)
        own = self._pieces(low.shape[1])
        least = torch.minimum(p_low * lead_low, p_high * lead_low) + own * p_low
        most = torch.maximum(p_low * lead_high, p_high * lead_high) + own * p_high
        none = torch.zeros_like(least)
        slack = charge(p_high, PROBABILITY_SLOPE)
        return torch.cat([(least - slack) * alive, none], dim=2), torch.cat(
            [(most + slack) * alive, none], dim=2
        )

    def ends(self, lower: Tensor, upper: Tensor | None) -> tuple[Tensor, Tensor]:
        """Extract lower and upper bounds of z_label - z_k from the bounds of all rows."""
        if not self.softmax:
            return lower, lower if upper is None else upper
        half = lower.shape[1] // 2
        return lower[:, :half], -lower[:, half:]

    def _competing_leads(self, leads: Tensor) -> Tensor:
        """(batch, others) -> the leads over the competing classes: (batch, others) or (batch, 1)."""
        return leads if self.other is None else leads.gather(1, self._place()[:, None])

    def _pieces(self, count: int) -> Tensor:
        """Return (batch, pieces, others): which d_k each piece of the minimum is about."""
        each = torch.eye(count, dtype=torch.float64, device=self.label.device)
        return each.expand(len(self.label), -1, -1) if self.other is None else each[self._place()][:, None]

    def _place(self) -> Tensor:
        """Return the index of the other class among the rows."""
        assert self.other is not None
        return self.other - (self.other > self.label).long()

    def check(self, batch: int, outputs: int) -> None:
        check_epsilon(self.epsilon, self.softmax)
        check_classes(outputs)
        check_labels(self.label, batch, outputs, "label")
        if self.other is None:
            return
        check_labels(self.other, batch, outputs, "other class")
        same = self.label == self.other
        if bool(same.any()):
            row = int(same.nonzero()[0, 0])
            raise BadInput(
                f"the other class {int(self.other[row])} of input {row} is its own label; choose a "
                "different class."
            )


def check_classes(outputs: int) -> None:
    if outputs < 2:
        raise OneOutput()


def check_epsilon(epsilon: float, softmax: bool) -> None:
    """Raise BadInput unless epsilon >= 0, and below 1 if it is a difference of probabilities."""
    if not 0 <= epsilon < (1 if softmax else torch.inf):
        most = "in [0, 1)" if softmax else "a number >= 0"
        raise BadInput(
            f"epsilon must be {most}, got {epsilon}: it is the difference of two "
            f"{'probabilities' if softmax else 'outputs'}."
        )
