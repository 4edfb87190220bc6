"""The lp ball ||x - centre||_p <= radius around each input, clipped to the domain."""

from dataclasses import dataclass

import torch
from torch import Tensor

from holdfast.region.normed import NormFamily


@dataclass(frozen=True, eq=False)
class Ball(NormFamily):
    """All x with ||x - centre||_p <= radius, inside the domain."""

    def group_features(self, x: Tensor) -> Tensor:
        return self.flatten(x).unsqueeze(-2)

    def free(self) -> Tensor:
        return torch.ones((len(self), 1), dtype=torch.float64, device=self.centre.device)
