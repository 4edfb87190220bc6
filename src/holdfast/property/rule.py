"""A property that is known once the network was asked about the inputs."""

from abc import ABC, abstractmethod
from typing import Any

from torch import Tensor

from holdfast.property.base import Property


class Rule(ABC):
    """What must hold, said without numbers that only the network knows: its own forecast, its own labels."""

    @abstractmethod
    def around(self, outputs: Tensor, y: Any = None) -> Property:
        """Outputs at the inputs (batch, outputs), and what the data say of them where they say anything -> the property."""
