"""Specifications that depend on the network's outputs at the inputs."""

from abc import ABC, abstractmethod
from typing import Any

from torch import Tensor

from holdfast.property.base import Property


class Rule(ABC):
    """A specification that becomes a `Property` once the outputs at the inputs are known."""

    @abstractmethod
    def around(self, outputs: Tensor, y: Any = None) -> Property:
        """Build the property from outputs at the inputs (batch, outputs) and labels `y`, if any."""

    def with_spread(self, spread: Tensor | None) -> "Rule":
        """The rule for outputs whose usual size is known, (outputs,) or (1,); rules that need none return themselves."""
        return self
