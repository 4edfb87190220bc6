"""Gradient ascent (Adam) on the free coefficients of bounds, with a state that can be saved and resumed.

Any coefficients are sound, so this module proves nothing.
"""

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

OptimiserState = dict[str, Any]  # Adam's state_dict

# The settings were chosen by hand.
MOMENTUM_AFTER_BACKTRACK = 0.3  # Factor on Adam's first moment of rows that are moved back.
CLIPPING_START_STEP = 4  # Gradients are clipped from this step on, when their root mean square is known.
MIN_GRADIENT_LIMIT = 1e-6  # Gradients are never clipped below this size.


class CoefficientAscent:
    """Adam's ascent on copies of some tensors."""

    def __init__(
        self,
        values: Sequence[Tensor],
        betas: tuple[float, float] = (0.9, 0.999),
        memory: OptimiserState | None = None,
        *,
        usual: float | None = None,
    ) -> None:
        """Start at `values`.

        Args:
            memory: a saved `memory` from which to resume.
            usual: clip gradients at this multiple of their root mean square, so that a single large gradient,
                as near a barrier, does not shrink all later steps; default: no clipping.
        """
        self.values = [value.detach().clone().requires_grad_() for value in values]
        on_gpu = any(value.is_cuda for value in self.values)  # there a step may be recorded as a CUDA graph
        self._usual, self._fade = usual, betas[1]
        self._adam = torch.optim.Adam(
            self.values, betas=betas, maximize=True, capturable=on_gpu, fused=on_gpu or None
        )
        if memory is not None:
            self._adam.load_state_dict(copy.deepcopy(memory))

    @property
    def memory(self) -> OptimiserState:
        """The optimiser's state."""
        return self._adam.state_dict()

    def backtrack(self, to: Sequence[Tensor], rows: Tensor) -> None:
        """Move some rows, (rows,) bool, half of the way to the values `to`, with less momentum."""
        for value, other in zip(self.values, to, strict=True):
            mine = rows.reshape(-1, *(1,) * (value.ndim - 1))
            value.copy_(torch.where(mine, (value + other) / 2, value))
            if "exp_avg" in self._adam.state[value]:
                self._adam.state[value]["exp_avg"].mul_(torch.where(mine, MOMENTUM_AFTER_BACKTRACK, 1.0))

    def step(self, gradients: Sequence[Tensor], rate: float | Tensor) -> None:
        """Take a step along the gradients; NaN and infinite entries count as zero.

        A `rate` that is a tensor on the values' device may change between replays of a recorded step.
        """
        for value, gradient in zip(self.values, gradients, strict=True):
            value.grad = self._limit_gradient(value, torch.nan_to_num(gradient, 0.0, 0.0, 0.0))
        self._adam.param_groups[0]["lr"] = rate
        self._adam.step()

    def _limit_gradient(self, value: Tensor, gradient: Tensor) -> Tensor:
        state = self._adam.state[value]
        if self._usual is None or not state or state["step"] < CLIPPING_START_STEP:
            return gradient
        most = (
            self._usual * (state["exp_avg_sq"] / (1 - self._fade ** state["step"])).sqrt()
            + MIN_GRADIENT_LIMIT
        )
        return torch.minimum(torch.maximum(gradient, -most), most)
