"""Training of free coefficients of bounds: Adam (torch.optim), as a value that can be put away and taken up again.

Any coefficients are sound, so nothing here proves anything.
"""

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

Memory = dict[str, Any]  # what the optimiser remembers of the steps before: its state_dict

SLOWER = 0.3  # times the momentum of what went too far
FIRST, TINIEST = 4, 1e-6  # steps until a usual size is known; and what none is below


class CoefficientAscent:
    """Some tensors on their way up; those given stay as they are."""

    def __init__(
        self,
        values: Sequence[Tensor],
        betas: tuple[float, float] = (0.9, 0.999),
        memory: Memory | None = None,
        *,
        usual: float | None = None,
    ) -> None:
        """usual: how many times its usual size a gradient may be, lest a single one, as beside a barrier, stop all later steps."""
        self.values = [value.detach().clone().requires_grad_() for value in values]
        on_card = any(value.is_cuda for value in self.values)  # where a step may be recorded
        self._usual, self._fade = usual, betas[1]
        self._adam = torch.optim.Adam(
            self.values, betas=betas, maximize=True, capturable=on_card, fused=on_card or None
        )
        if memory is not None:
            self._adam.load_state_dict(copy.deepcopy(memory))

    @property
    def memory(self) -> Memory:
        return self._adam.state_dict()

    def back(self, to: Sequence[Tensor], rows: Tensor) -> None:
        """Half of the way back to other values in some rows, (rows,) bool, with less of what carried them on."""
        for value, other in zip(self.values, to, strict=True):
            mine = rows.reshape(-1, *(1,) * (value.ndim - 1))
            value.copy_(torch.where(mine, (value + other) / 2, value))
            if "exp_avg" in self._adam.state[value]:
                self._adam.state[value]["exp_avg"].mul_(torch.where(mine, SLOWER, 1.0))

    def step(self, gradients: Sequence[Tensor], rate: float | Tensor) -> None:
        """What is no number moves nothing. A rate that is a tensor of the values' device may change while a recorded step is played."""
        for value, gradient in zip(self.values, gradients, strict=True):
            value.grad = self._limit_gradient(value, torch.nan_to_num(gradient, 0.0, 0.0, 0.0))
        self._adam.param_groups[0]["lr"] = rate
        self._adam.step()

    def _limit_gradient(self, value: Tensor, gradient: Tensor) -> Tensor:
        state = self._adam.state[value]
        if self._usual is None or not state or state["step"] < FIRST:
            return gradient
        most = self._usual * (state["exp_avg_sq"] / (1 - self._fade ** state["step"])).sqrt() + TINIEST
        return torch.minimum(torch.maximum(gradient, -most), most)
