"""Specifications: a margin of the outputs that is positive iff the specification holds.

    property holds at y  <=>  margin(y) > 0

A margin that depends on the outputs through linear functions, margin(y) = h(A y + b) with h monotone in
bounds of its arguments, can be certified: bound propagation bounds A y + b, and `least` turns these bounds
into a certified lower bound of the margin.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from holdfast.errors import BadInput


@dataclass(frozen=True, eq=False)
class Property(ABC):
    """score > 0 iff the property holds. Zero and NaN count as failure, so a tie is never certified."""

    @abstractmethod
    def score(self, outputs: Tensor) -> Tensor:
        """Return the margin, (..., batch, outputs) -> (..., batch)."""

    @abstractmethod
    def check(self, batch: int, outputs: int) -> None:
        """Raise BadInput unless the property fits this batch size and number of outputs."""

    def fails(self, outputs: Tensor) -> Tensor:
        """(batch, outputs) -> (batch,) bool: whether the property is violated, exactly if possible."""
        return ~(self.score(outputs) > 0)

    def says(self, outputs: Tensor, classes: Sequence[str] | None = None) -> str:
        """Describe the network's answer from its outputs (outputs,) and the names of the classes."""
        place = int(outputs.argmax())
        return f"the network says {place if classes is None else classes[place]}"

    def rounding_error(self, outputs: Tensor, unit: float) -> Tensor:
        """Bound the rounding error of a score computed from outputs (batch, outputs): (batch,) float64.

        `unit` is the unit roundoff of the outputs' dtype. Zero if the property has no bound.
        """
        return torch.zeros(outputs.shape[:-1], dtype=torch.float64, device=outputs.device)


@dataclass(frozen=True, eq=False)
class BoundedProperty(Property):
    """A margin that is a function of linear functions (rows) of the outputs: it can be certified."""

    @abstractmethod
    def rows(self, outputs: int) -> tuple[Tensor, Tensor]:
        """Return (batch, rows, outputs), (batch, rows) float64: the rows and offsets that `least` needs."""

    @abstractmethod
    def least(self, values: Tensor) -> Tensor:
        """Lower-bound the score from lower bounds of the rows: (batch, rows) float64 -> (batch,).

        Rounding is included. Monotone in every bound. If a bound is NaN or -inf, the result is NaN or -inf.
        """

    @abstractmethod
    def most(self, lower: Tensor, upper: Tensor) -> Tensor:
        """Upper-bound the score, rounding included: bounds of the rows, (batch, rows) twice -> (batch,)."""

    @abstractmethod
    def slopes(self, lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
        """Bound the score's derivatives: (batch, rows) float64 twice -> low, high (batch, pieces, rows).

        The score is, locally, one of its pieces (the score itself, or the smallest of several functions). For
        rows within their bounds, low <= derivative of the piece in each row <= high. A piece that is never
        the smallest may hold zeros.
        """


@dataclass(frozen=True, eq=False)
class LinearProperty(BoundedProperty):
    """A minimum of linear functions of the outputs: score = min over rows of row . outputs + offset."""

    def least(self, values: Tensor) -> Tensor:
        return values.amin(1)

    def most(self, lower: Tensor, upper: Tensor) -> Tensor:
        return upper.amin(1)

    def rounding_error(self, outputs: Tensor, unit: float) -> Tensor:
        matrix, offset = (part.to(outputs.device) for part in self.rows(outputs.shape[-1]))
        return rounding(matrix, outputs[..., None, :], offset, unit).amax(-1)

    def slopes(self, lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
        each = torch.eye(lower.shape[1], dtype=torch.float64, device=lower.device).expand(len(lower), -1, -1)
        found = each * may_be_smallest(lower, upper)[..., None]
        return found, found


# Multiple of the unit roundoff, relative to the sizes of the terms, that covers the error of evaluating a
# network at one point (chosen by hand; generous).
EVALUATION_ERROR_UNITS = 2**12


def rounding(matrix: Tensor, outputs: Tensor, offset: Tensor, unit: float) -> Tensor:
    """Bound the error of rows . outputs, (..., outputs) each, evaluated with this unit roundoff."""
    return (
        EVALUATION_ERROR_UNITS * unit * (1 + (matrix.abs() * outputs.abs()).double().sum(-1) + offset.abs())
    )


def may_be_smallest(lower: Tensor, upper: Tensor) -> Tensor:
    """(batch, rows) twice -> (batch, rows): 1 for rows that may be the smallest, else 0."""
    return (~(lower > upper.amin(1, keepdim=True))).double()


def propagate_unknown(bound: Tensor, values: Tensor) -> Tensor:
    """Return bound (batch,), or -inf where one of its values (batch, rows) is -inf or NaN."""
    known = (values > -torch.inf).all(1)
    return torch.where(known, bound, -torch.inf)


def differences(label: Tensor, outputs: int) -> Tensor:
    """(batch,) -> (batch, outputs - 1, outputs) float64: the rows z_label - z_k for all other classes k."""
    identity = torch.eye(outputs, dtype=torch.float64, device=label.device)
    every = identity[label][:, None, :] - identity  # (batch, outputs, outputs); the label's own row is zero
    others = torch.arange(outputs, device=label.device) != label[:, None]
    return every[others].reshape(len(label), outputs - 1, outputs)


def select_output(outputs: Tensor, label: Tensor) -> Tensor:
    """Select the label's output: (..., batch, outputs), (batch,) -> (..., batch)."""
    index = label.to(outputs.device).expand(outputs.shape[:-1]).unsqueeze(-1)
    return outputs.gather(-1, index).squeeze(-1)


def margin_to_others(outputs: Tensor, label: Tensor) -> Tensor:
    """(..., batch, outputs), (batch,) -> (..., batch): the label's output minus the largest other."""
    own = (
        torch.nn.functional.one_hot(label.to(outputs.device), outputs.shape[-1]).bool().expand(outputs.shape)
    )
    return select_output(outputs, label) - outputs.masked_fill(own, -torch.inf).amax(-1)


def next_likely(outputs: Tensor, label: Tensor) -> Tensor:
    """(batch, outputs), (batch,) -> (batch,): the other class with the largest output."""
    return outputs.scatter(-1, label[:, None], -torch.inf).argmax(-1)


def least_likely(outputs: Tensor, label: Tensor) -> Tensor:
    """(batch, outputs), (batch,) -> (batch,): the other class with the smallest output."""
    return outputs.scatter(-1, label[:, None], torch.inf).argmin(-1)


class OneOutput(BadInput):
    """The network has a single output, so it has no classes.

    `values`: its outputs at the inputs, if known.
    """

    def __init__(self, values: Tensor | None = None) -> None:
        shares = values is not None and bool(((values >= 0) & (values <= 1)).all())
        found = (
            ""
            if values is None
            else f" Here it lies between {float(values.min()):.4g} and {float(values.max()):.4g}"
        )
        likely = (
            ""
            if values is None
            else f"{found}, as probabilities do."
            if shares
            else f"{found}, so it is not a probability."
        )
        super().__init__(
            "the network has 1 output, so there is no class to change. State the specification: a forecast "
            "stays near "
            f"its value (property=hf.Within('10%'), --within 10%); a score stays on its side of a threshold "
            "(property=hf.Threshold(0), --threshold 0 for logits, 0.5 for probabilities); anything else by "
            "hf.worst "
            f"with a Linear property.{likely}"
        )


def check_labels(labels: Tensor, batch: int, outputs: int, what: str) -> None:
    """Raise BadInput unless labels is (batch,) with classes that the network has."""
    if not isinstance(labels, Tensor):
        raise BadInput(f"{what} must be a tensor, one class for each input: torch.as_tensor({labels!r}).")
    if labels.dtype != torch.int64:
        raise BadInput(f"{what} must be integers of type torch.int64, got {labels.dtype}.")
    if tuple(labels.shape) != (batch,):
        raise BadInput(
            f"{what} has shape {tuple(labels.shape)}, expected ({batch},): one class for each input."
        )
    outside = (labels < 0) | (labels >= outputs)
    if bool(outside.any()):
        row = int(outside.nonzero()[0, 0])
        raise BadInput(
            f"{what} {int(labels[row])} of input {row} is out of range: the network has classes 0 to "
            f"{outputs - 1}."
        )
