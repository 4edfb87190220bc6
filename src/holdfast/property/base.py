"""What must hold: a score of the outputs that is positive exactly where all is well."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from holdfast.errors import BadInput


@dataclass(frozen=True, eq=False)
class Property(ABC):
    """score > 0: the property holds. Zero and NaN count as failure, so a tie is never called safe."""

    @abstractmethod
    def score(self, outputs: Tensor) -> Tensor:
        """(..., batch, outputs) -> (..., batch)."""

    @abstractmethod
    def check(self, batch: int, outputs: int) -> None:
        """Raise BadInput unless the property fits a batch of this size and a network with so many outputs."""

    def fails(self, outputs: Tensor) -> Tensor:
        """(batch, outputs) -> (batch,) bool: whether these outputs break the property, without any rounding where that can be told."""
        return ~(self.score(outputs) > 0)

    def says(self, outputs: Tensor, classes: Sequence[str] | None = None) -> str:
        """(outputs,) and their names -> what the network answers at one input, for people."""
        place = int(outputs.argmax())
        return f"the network says {place if classes is None else classes[place]}"

    def rounding_error(self, outputs: Tensor, unit: float) -> Tensor:
        """(batch, outputs), the unit of their arithmetic -> (batch,) float64: how far a score computed from them may lie from the truth by
        rounding. Nothing where nobody knows."""
        return torch.zeros(outputs.shape[:-1], dtype=torch.float64, device=outputs.device)


@dataclass(frozen=True, eq=False)
class BoundedProperty(Property):
    """A score that is a function of linear rows of the outputs, so that bounds of the rows bound it and bound propagation can prove it."""

    @abstractmethod
    def rows(self, outputs: int) -> tuple[Tensor, Tensor]:
        """-> (batch, rows, outputs), (batch, rows) float64: the linear functions row . outputs + offset whose bounds `least` asks for."""

    @abstractmethod
    def least(self, values: Tensor) -> Tensor:
        """(batch, rows) float64, lower bounds of the rows -> (batch,): the score is at least this, its rounding taken off.

        Rises with every value. A value that is NaN or -inf says nothing, so nothing is said: the answer is NaN or -inf.
        """

    @abstractmethod
    def most(self, lower: Tensor, upper: Tensor) -> Tensor:
        """(batch, rows) float64 twice, bounds of the rows -> (batch,): the score is at most this, its rounding added."""

    @abstractmethod
    def slopes(self, lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
        """(batch, rows) float64 twice, bounds of the rows -> low, high (batch, pieces, rows).

        Wherever the rows are within their bounds the score is, locally, one of its pieces (it has one, or is the smallest of several), and
        low <= the derivative of that piece along each row <= high. A piece that the score never is may hold zeros.
        """


@dataclass(frozen=True, eq=False)
class LinearProperty(BoundedProperty):
    """A property that is a minimum of linear functions of the outputs: score = min over rows of row . outputs + offset."""

    def least(self, values: Tensor) -> Tensor:
        return values.amin(1)

    def most(self, lower: Tensor, upper: Tensor) -> Tensor:
        return upper.amin(1)

    def rounding_error(self, outputs: Tensor, unit: float) -> Tensor:
        matrix, offset = (part.to(outputs.device) for part in self.rows(outputs.shape[-1]))
        return rounding(matrix, outputs[..., None, :], offset, unit).amax(-1)

    def slopes(self, lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
        each = torch.eye(lower.shape[1], dtype=torch.float64, device=lower.device).expand(len(lower), -1, -1)
        found = each * smallest(lower, upper)[..., None]
        return found, found


ROUNDING = (
    2**12
)  # units of the arithmetic, in the sizes of what is added: more than evaluating a network at one point misses


def rounding(matrix: Tensor, outputs: Tensor, offset: Tensor, unit: float) -> Tensor:
    """rows (..., outputs) of outputs (..., outputs) -> (...): how far evaluating them with roundings of this unit may be from the truth."""
    return ROUNDING * unit * (1 + (matrix.abs() * outputs.abs()).double().sum(-1) + offset.abs())


def smallest(lower: Tensor, upper: Tensor) -> Tensor:
    """(batch, rows) twice -> (batch, rows): 1 for those that may be the smallest of their batch row, 0 for those that are above another."""
    return (~(lower > upper.amin(1, keepdim=True))).double()


def certain(bound: Tensor, values: Tensor) -> Tensor:
    """bound (batch,), and -inf where one of the values (batch, rows) it was made of is -inf or NaN."""
    known = (values > -torch.inf).all(1)
    return torch.where(known, bound, -torch.inf)


def differences(label: Tensor, outputs: int) -> Tensor:
    """(batch,) -> (batch, outputs - 1, outputs) float64: the rows z_label - z_k, for every other class k in order."""
    identity = torch.eye(outputs, dtype=torch.float64, device=label.device)
    every = identity[label][:, None, :] - identity  # (batch, outputs, outputs); its own row is zero
    others = torch.arange(outputs, device=label.device) != label[:, None]
    return every[others].reshape(len(label), outputs - 1, outputs)


def at(outputs: Tensor, label: Tensor) -> Tensor:
    """(..., batch, outputs), (batch,) -> (..., batch)."""
    index = label.to(outputs.device).expand(outputs.shape[:-1]).unsqueeze(-1)
    return outputs.gather(-1, index).squeeze(-1)


def lead(outputs: Tensor, label: Tensor) -> Tensor:
    """(..., batch, outputs), (batch,) -> (..., batch): the label's output less the largest other."""
    own = (
        torch.nn.functional.one_hot(label.to(outputs.device), outputs.shape[-1]).bool().expand(outputs.shape)
    )
    return at(outputs, label) - outputs.masked_fill(own, -torch.inf).amax(-1)


def next_likely(outputs: Tensor, label: Tensor) -> Tensor:
    """(batch, outputs), (batch,) -> (batch,): of the other classes the one with the largest output."""
    return outputs.scatter(-1, label[:, None], -torch.inf).argmax(-1)


def least_likely(outputs: Tensor, label: Tensor) -> Tensor:
    """(batch, outputs), (batch,) -> (batch,): of the other classes the one with the smallest output."""
    return outputs.scatter(-1, label[:, None], torch.inf).argmin(-1)


class OneOutput(BadInput):
    """The network has no classes. values: what it answers at the inputs, where that is known."""

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
            else f"{found}, so it is no probability."
        )
        super().__init__(
            f"the network has 1 output, so there is no class to change. Say what must hold: of a forecast, that it stays near what it is "
            f"(property=hf.Within('10%'), --within 10%); of a single score, that it stays on its side of a threshold "
            f"(property=hf.Threshold(0), --threshold 0 for logits, 0.5 for probabilities); anything else by hf.worst with a Linear "
            f"property.{likely}"
        )


def check_labels(labels: Tensor, batch: int, outputs: int, what: str) -> None:
    """Raise unless labels is (batch,) of classes the network has."""
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
            f"{what} {int(labels[row])} of input {row} is out of range: the network has classes 0 to {outputs - 1}."
        )
