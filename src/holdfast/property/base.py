"""What must hold: a score of the outputs that is positive exactly where all is well."""

from abc import ABC, abstractmethod
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


@dataclass(frozen=True, eq=False)
class LinearProperty(Property):
    """A property that is a minimum of linear functions of the outputs, so that bound propagation can prove it."""

    @abstractmethod
    def rows(self, outputs: int) -> tuple[Tensor, Tensor]:
        """-> (batch, rows, outputs), (batch, rows) float64; score = min over rows of row . outputs + offset."""


def check_labels(labels: Tensor, batch: int, outputs: int, what: str) -> None:
    """Raise unless labels is (batch,) of classes the network has."""
    if labels.dtype != torch.int64:
        raise BadInput(f"{what} must be integers of type torch.int64, got {labels.dtype}.")
    if tuple(labels.shape) != (batch,):
        raise BadInput(f"{what} has shape {tuple(labels.shape)}, expected ({batch},): one class for each input.")
    outside = (labels < 0) | (labels >= outputs)
    if bool(outside.any()):
        row = int(outside.nonzero()[0, 0])
        raise BadInput(f"{what} {int(labels[row])} of input {row} is out of range: the network has classes 0 to {outputs - 1}.")
