"""A box lower <= x <= upper; min of a . x = sum over i of min(a_i lower_i, a_i upper_i)."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from holdfast.errors import BadInput
from holdfast.random_streams import RandomStreams
from holdfast.region.base import EVERYWHERE, Region, check_centre, check_norm
from holdfast.region.normed import minimise_over_box
from holdfast.region.norms import dual, norm_above


@dataclass(frozen=True, eq=False)
class Box(Region):
    """All x with lower <= x <= upper.

    The centre is any point of the box; `Box.between` takes its midpoint.
    """

    has_slope: ClassVar[bool] = True

    lower: Tensor  # (batch, *shape)
    upper: Tensor  # (batch, *shape)

    def __post_init__(self) -> None:
        if self.lower.shape != self.centre.shape or self.upper.shape != self.centre.shape:
            raise BadInput(
                f"box: the bounds have shapes {tuple(self.lower.shape)} and {tuple(self.upper.shape)}, the "
                "inputs "
                f"{tuple(self.centre.shape)}; all three must be (batch, *shape)."
            )
        check_centre(self.centre, EVERYWHERE)
        wrong = ~(self.lower <= self.upper)
        if bool(wrong.any()):
            where = tuple(int(i) for i in wrong.nonzero()[0])
            raise BadInput(
                f"box: at {where} the lower bound {self.lower[where]:g} is above the upper bound "
                f"{self.upper[where]:g}."
            )
        if not bool(self.contains(self.centre).all()):
            raise BadInput("box: a centre is outside its box.")

    @staticmethod
    def between(lower: Tensor, upper: Tensor) -> "Box":
        """All inputs between `lower` and `upper`, both (batch, *shape); its centre is their mean."""
        if lower.shape != upper.shape:
            raise BadInput(
                f"box: the bounds have different shapes, {tuple(lower.shape)} and {tuple(upper.shape)}."
            )
        middle = lower / 2 + upper / 2
        return Box(torch.minimum(torch.maximum(middle, lower), upper), lower, upper)

    @property
    def boxed(self) -> bool:
        return True

    def contains(self, x: Tensor) -> Tensor:
        return self.flatten((x >= self.lower) & (x <= self.upper)).all(-1)

    def project(self, x: Tensor) -> Tensor:
        return torch.minimum(torch.maximum(x, self.lower.to(x)), self.upper.to(x))

    def sample(self, count: int, chance: RandomStreams) -> Tensor:
        share = chance.uniform(count, self.shape, self.centre)
        corner = chance.uniform(count, (1 for _ in self.shape), share) < 0.5
        share = torch.where(corner, share.round(), share)
        return self.project(self.lower + share * (self.upper - self.lower))

    def vertex(self, a: Tensor) -> Tensor:
        return torch.where(a > 0, self.lower.to(a), torch.where(a < 0, self.upper.to(a), self.centre.to(a)))

    def enclosing_box(self) -> tuple[Tensor, Tensor]:
        return self.lower.double(), self.upper.double()

    def minimise_linear(self, a: Tensor) -> Tensor:
        return minimise_over_box(a, *self.enclosing_box())

    def greatest_slope(self, gradient: Tensor, norm: float) -> Tensor:
        return norm_above(gradient.flatten(2), dual(check_norm(norm)))

    def numbers(self, dtype: torch.dtype) -> "Box":
        """Return the box of all numbers of a dtype in this box, or the number nearest to the centre if there
        is none."""
        return numbers_between(self.lower, self.upper, self.centre, dtype)


def numbers_between(lower: Tensor, upper: Tensor, middle: Tensor, dtype: torch.dtype) -> Box:
    """As `Box.numbers`, for bounds and middle of shape (batch, *shape) float64."""
    low, high = lower.to(dtype), upper.to(dtype)
    low = torch.where(low.double() < lower, torch.nextafter(low, torch.full_like(low, torch.inf)), low)
    high = torch.where(high.double() > upper, torch.nextafter(high, torch.full_like(high, -torch.inf)), high)
    largest = torch.finfo(dtype).max
    empty, nearest = low > high, middle.clamp(-largest, largest).to(dtype)
    return Box.between(torch.where(empty, nearest, low), torch.where(empty, nearest, high))
