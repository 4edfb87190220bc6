"""The lp ball ||x - centre||_p <= radius around each input, clipped to the domain."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from holdfast.region.base import Domain
from holdfast.region.normed import NormFamily


@dataclass(frozen=True, eq=False)
class Ball(NormFamily):
    """All x with ||x - centre||_p <= radius, inside the domain; p is `norm`."""

    if TYPE_CHECKING:  # what may be given; `__post_init__` converts it to what the fields hold

        def __init__(
            self,
            centre: Tensor,
            radius: float | Tensor | Sequence[float],
            norm: float = math.inf,
            domain: tuple[float | Tensor, float | Tensor] | Domain | None = None,
        ) -> None: ...

    def group_features(self, x: Tensor) -> Tensor:
        return self.flatten(x).unsqueeze(-2)

    def free(self) -> Tensor:
        return torch.ones((len(self), 1), dtype=torch.float64, device=self.centre.device)
