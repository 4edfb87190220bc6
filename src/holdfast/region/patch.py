"""A patch perturbation: |x_i - c_i| <= radius for features i in a mask, x_i = c_i elsewhere."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from holdfast.derivations import (
    PATCH_LIMIT,
)
from holdfast.errors import BadInput
from holdfast.random_streams import RandomStreams
from holdfast.region.ball import Ball
from holdfast.region.base import EVERYWHERE, Domain, Family, check_centre
from holdfast.region.normed import furthest, minimise_over_box
from holdfast.region.norms import norm_above
from holdfast.rounding import round_up


@dataclass(frozen=True, eq=False)
class Patch(Family):
    """All x with |x - centre| <= radius where the mask is true and x = centre elsewhere, inside the domain.

    An infinite radius lets the patch take any value of the domain (an adversarial patch). mask is (batch,
    *shape) bool.
    """

    has_slope: ClassVar[bool] = True

    mask: Tensor
    domain: Domain = EVERYWHERE

    if TYPE_CHECKING:  # what may be given; `__post_init__` converts it to what the fields hold

        def __init__(
            self,
            centre: Tensor,
            radius: float | Tensor | Sequence[float],
            mask: Tensor,
            domain: tuple[float | Tensor, float | Tensor] | Domain | None = None,
        ) -> None: ...

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "domain", Domain.of(self.domain))
        check_centre(self.centre, self.domain)
        if self.mask.shape != self.centre.shape or self.mask.dtype != torch.bool:
            raise BadInput(
                f"patch: the mask must be bool of shape {tuple(self.centre.shape)}, "
                f"got {self.mask.dtype} of {tuple(self.mask.shape)}."
            )

    @staticmethod
    def square(centre: Tensor, *, top: int, left: int, size: int, domain: Domain = EVERYWHERE) -> "Patch":
        """A square patch in images (..., height, width) that may take any value of the domain."""
        mask = torch.zeros_like(centre, dtype=torch.bool)
        mask[..., top : top + size, left : left + size] = True
        if not bool(mask.any()):
            raise BadInput(
                f"patch: a square of {size} at ({top}, {left}) is outside images of shape "
                f"{tuple(centre.shape[1:])}."
            )
        return Patch(
            centre,
            torch.full((centre.shape[0],), torch.inf, dtype=torch.float64, device=centre.device),
            mask,
            domain,
        )

    def _ball(self) -> Ball:
        return Ball(self.centre, self.radius, torch.inf, self.domain)

    @property
    def boxed(self) -> bool:
        return True

    def distance(self, x: Tensor) -> Tensor:
        still = self.flatten((x == self.centre) | self.mask).all(-1)
        return torch.where(still, self._ball().distance(x), torch.inf)

    def contains(self, x: Tensor) -> Tensor:
        distance = self.distance(x)
        return (distance <= self.radius) & distance.isfinite()

    def project(self, x: Tensor) -> Tensor:
        return torch.where(self.mask, self._ball().project(x), self.centre.to(x))

    def sample(self, count: int, chance: RandomStreams) -> Tensor:
        lower, upper = (end.clamp(-1e3, 1e3).to(self.centre) for end in self.enclosing_box())
        share = chance.uniform(count, self.shape, self.centre)
        corner = chance.uniform(count, (1 for _ in self.shape), share) < 0.5
        share = torch.where(corner, share.round(), share)
        return self.project(lower + share * (upper - lower))

    def limit(self) -> Tensor:
        # Distances are rounded up, so the limit is rounded up too.
        away = round_up(furthest(self.centre, self.domain), PATCH_LIMIT, self.centre[0].numel())
        return self.flatten(torch.where(self.mask, away, 0)).amax(-1)

    def reach(self) -> Tensor:
        limit = self.limit()
        return torch.where(limit.isfinite(), limit, self._ball().reach())

    def vertex(self, a: Tensor) -> Tensor:
        return torch.where(self.mask, self._ball().vertex(a), self.centre.to(a))

    def enclosing_box(self) -> tuple[Tensor, Tensor]:
        lower, upper = self._ball().enclosing_box()
        centre = self.centre.double()
        return torch.where(self.mask, lower, centre), torch.where(self.mask, upper, centre)

    def greatest_slope(self, gradient: Tensor, norm: float) -> Tensor:
        return norm_above(gradient.flatten(2), 1.0)

    def minimise_linear(self, a: Tensor) -> Tensor:
        return minimise_over_box(a, *self.enclosing_box())
