"""A norm ball in every chosen frame of a sequence: one pixel row, one word vector, one slice of sound."""

from dataclasses import dataclass

import torch
from torch import Tensor

from holdfast.errors import BadInput
from holdfast.region.normed import NormFamily


@dataclass(frozen=True, eq=False)
class Frames(NormFamily):
    """All x with ||x_k - centre_k||_p <= radius for every chosen frame k and x_k = centre_k for the others.

    Inputs are (frames, *rest); mask is (batch, frames) bool, true where a frame may move; left out, every frame may. Inside the domain.
    """

    mask: Tensor | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.shape:
            raise BadInput("frames need inputs of shape (batch, frames, ...); these inputs are single numbers.")
        if self.mask is None:
            object.__setattr__(self, "mask", torch.ones(self.centre.shape[:2], dtype=torch.bool, device=self.centre.device))
        elif tuple(self.mask.shape) != (len(self), self.shape[0]) or self.mask.dtype != torch.bool:
            raise BadInput(
                f"the frame mask is {self.mask.dtype} of shape {tuple(self.mask.shape)}, expected bool of {(len(self), self.shape[0])}: "
                f"one flag for each frame of each input."
            )

    def grouped(self, x: Tensor) -> Tensor:
        rest = len(self.shape) - 1
        return x.flatten(x.dim() - rest) if rest else x.unsqueeze(-1)

    def free(self) -> Tensor:
        assert self.mask is not None
        return self.mask
