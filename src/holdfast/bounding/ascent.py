"""Training of free coefficients of bounds: Adam (torch.optim), as a value that can be put away and taken up again.

Any coefficients are sound, so nothing here proves anything.
"""

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

Memory = dict[str, Any]  # what the optimiser remembers of the steps before: its state_dict


class Ascent:
    """Some tensors on their way up; those given stay as they are."""

    def __init__(self, values: Sequence[Tensor], betas: tuple[float, float] = (0.9, 0.999), memory: Memory | None = None) -> None:
        self.values = [value.detach().clone().requires_grad_() for value in values]
        on_card = any(value.is_cuda for value in self.values)  # where a step may be recorded
        self._adam = torch.optim.Adam(self.values, betas=betas, maximize=True, capturable=on_card, fused=on_card or None)
        if memory is not None:
            self._adam.load_state_dict(copy.deepcopy(memory))

    @property
    def memory(self) -> Memory:
        return self._adam.state_dict()

    def step(self, gradients: Sequence[Tensor], rate: float | Tensor) -> None:
        """What is no number moves nothing. A rate that is a tensor of the values' device may change while a recorded step is played."""
        for value, gradient in zip(self.values, gradients, strict=True):
            value.grad = torch.nan_to_num(gradient, 0.0, 0.0, 0.0)
        self._adam.param_groups[0]["lr"] = rate
        self._adam.step()
