"""A margin that the user defines."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from holdfast.errors import BadInput
from holdfast.property.base import Property


@dataclass(frozen=True, eq=False)
class Custom(Property):
    """A user function (n, outputs) -> (n,) that is positive iff the specification holds.

    If it is written in torch it is differentiable, and gradient attacks use it. It cannot be certified, since
    it has no linear bounds.
    """

    function: Callable[[Tensor], Tensor]

    def score(self, outputs: Tensor) -> Tensor:
        flat = outputs.reshape(-1, outputs.shape[-1])
        scores = torch.as_tensor(self.function(flat))
        if tuple(scores.shape) != (len(flat),):
            raise BadInput(
                f"the property's function returned shape {tuple(scores.shape)} for outputs of shape "
                f"{tuple(flat.shape)}; "
                f"it must return one score for each row."
            )
        return scores.reshape(outputs.shape[:-1])

    def check(self, batch: int, outputs: int) -> None:
        self.score(torch.zeros(batch, outputs))
