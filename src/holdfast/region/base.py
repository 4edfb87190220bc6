"""What may change: a set of inputs around a batch of centres."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from numbers import Real
from typing import Self

import torch
from torch import Tensor

from holdfast.errors import BadInput
from holdfast.random_streams import Chance


@dataclass(frozen=True, eq=False)
class Domain:
    """The values an input can take, in the user's units: lower <= x <= upper, broadcast over the input's shape.

    `of` rounds the ends outwards to float32 numbers, so that float32 data, attacks on them and proofs in float64 all mean the same set.
    """

    lower: Tensor
    upper: Tensor

    @staticmethod
    def of(domain: "tuple[float | Tensor, float | Tensor] | Domain | None") -> "Domain":
        if isinstance(domain, Domain):
            return domain
        lower, upper = (-torch.inf, torch.inf) if domain is None else domain
        ends = Domain(_outwards(lower, -torch.inf), _outwards(upper, torch.inf))
        if not bool((ends.lower < ends.upper).all()):
            raise BadInput(f"domain: every lower end must be below its upper end, got {lower} and {upper}.")
        return ends

    @property
    def bounded(self) -> bool:
        return bool(self.lower.isfinite().all() and self.upper.isfinite().all())

    @property
    def endless(self) -> bool:
        return bool(self.lower.isinf().all() and self.upper.isinf().all())

    def clamp(self, x: Tensor) -> Tensor:
        return torch.minimum(torch.maximum(x, self.lower.to(x)), self.upper.to(x))

    def contains(self, x: Tensor) -> Tensor:
        """Elementwise."""
        return (x >= self.lower.to(x)) & (x <= self.upper.to(x))

    def __str__(self) -> str:
        if not self.bounded and not (self.lower.isfinite().any() or self.upper.isfinite().any()):
            return "unbounded"
        return f"[{float(self.lower.min()):g}, {float(self.upper.max()):g}]"


def _outwards(end: float | Tensor, towards: float) -> Tensor:
    """The nearest float32 number at or beyond `end`, as float64; what float32 cannot reach stays as it is."""
    exact = torch.as_tensor(end, dtype=torch.float64)
    near = exact.float()
    inwards = near.double() < exact if towards > 0 else near.double() > exact
    beyond = torch.where(inwards, torch.nextafter(near, torch.full_like(near, towards)), near).double()
    return torch.where(beyond.isfinite(), beyond, exact)


EVERYWHERE = Domain.of(None)


@dataclass(frozen=True, eq=False)
class Region(ABC):
    """A set of inputs, one for each row of a batch.

    Points carry any number of leading axes before the batch: x is (..., batch, *shape). Every method answers row by row.
    """

    centre: Tensor  # (batch, *shape)

    def __len__(self) -> int:
        return int(self.centre.shape[0])

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.centre.shape[1:])

    @property
    def boxed(self) -> bool:
        """Is it all of the box around it?"""
        return False

    def flatten(self, x: Tensor) -> Tensor:
        """(..., *shape) -> (..., n)."""
        return x.flatten(x.dim() - len(self.shape)) if self.shape else x.unsqueeze(-1)

    def per_row(self, value: Tensor) -> Tensor:
        """(batch,) -> (batch, 1, ..., 1), to stand against (..., batch, *shape)."""
        return value.reshape(-1, *(1 for _ in self.shape))

    @abstractmethod
    def contains(self, x: Tensor) -> Tensor:
        """(..., batch, *shape) -> (..., batch) bool."""

    @abstractmethod
    def project(self, x: Tensor) -> Tensor:
        """(..., batch, *shape) -> the same shape; the result is in self, and is x wherever x is in self already."""

    def stand_ins(self, x: Tensor) -> Tensor:
        """(batch, *shape) -> (k, batch, *shape): all that must be asked about a point: itself, where it can be written as a number."""
        return x[None]

    def assumptions(self, row: int) -> tuple[str, ...]:
        """What a witness in this row takes for granted."""
        return ()

    @abstractmethod
    def sample(self, count: int, chance: Chance) -> Tensor:
        """-> (count, batch, *shape), points of self that reach its extremes as well as its inside; those of a row by its chance alone."""

    @abstractmethod
    def enclosing_box(self) -> tuple[Tensor, Tensor]:
        """-> lower, upper, each (batch, *shape) float64; lower <= x <= upper for all x in self."""

    @abstractmethod
    def vertex(self, a: Tensor) -> Tensor:
        """(..., batch, *shape) -> the same shape; a point of self that makes a.x small: the next place to look."""

    @abstractmethod
    def minimise_linear(self, a: Tensor) -> Tensor:
        """(batch, rows, *shape) float64 -> (batch, rows); result <= a.x for all x in self, rounding included."""

    def condense(self) -> "tuple[Region, Tensor] | None":
        """Where few features can move: the region over these alone, and which they are, (batch, features), counted in x flattened."""
        return None


@dataclass(frozen=True, eq=False)
class Family(Region):
    """Regions that grow with one number, so that one can ask how far they may grow. at(r) is inside at(s) if r <= s."""

    radius: Tensor  # (batch,); one number for all is taken too

    def __post_init__(self) -> None:
        if not isinstance(self.centre, Tensor):
            raise BadInput(
                f"the centre must be a torch tensor (batch, *shape), got {type(self.centre).__name__}."
            )
        radius = torch.as_tensor(
            self.radius,
            dtype=None if isinstance(self.radius, Tensor) else torch.float64,
            device=self.centre.device,
        )
        radius = radius.to(torch.float64) if not radius.is_floating_point() else radius
        object.__setattr__(self, "radius", radius.expand(len(self)) if radius.dim() == 0 else radius)
        check_radius(self.radius, len(self))

    def at(self, radius: Tensor | float) -> Self:
        """The member of the family with this radius, (batch,) or one number for all."""
        value = torch.as_tensor(radius, dtype=self.radius.dtype, device=self.radius.device)
        return replace(self, radius=value.expand(len(self)).clone())

    @abstractmethod
    def distance(self, x: Tensor) -> Tensor:
        """(..., batch, *shape) -> (..., batch) float64; the smallest radius whose region holds x, rounded up.

        Infinite where no radius does.
        """

    @abstractmethod
    def limit(self) -> Tensor:
        """-> (batch,) float64: the radius from which the region grows no more, so that what holds there holds at every radius.

        Zero where nothing may change, infinite where the region never stops growing.
        """

    def reach(self) -> Tensor:
        """-> (batch,), finite: a radius large enough to begin a search with; the whole domain where it is bounded."""
        return self.limit()

    def between(self, low: Tensor, high: Tensor, count: int) -> Tensor:
        """(batch,), (batch,) -> (count, batch), rising: radii worth trying above `low` and below `high`."""
        share = torch.arange(1, count + 1, device=low.device, dtype=torch.float64)[:, None] / (count + 1)
        doubling = high * 2.0 ** -torch.arange(count, 0, -1, device=low.device, dtype=torch.float64)[:, None]
        return torch.where(low > 0, low * (high / low.clamp_min(1e-300)) ** share, doubling)

    def evenly(self, low: Tensor, high: Tensor, count: int) -> Tensor:
        """(batch,), (batch,) -> (count, batch), rising: radii evenly between low and high."""
        share = torch.arange(1, count + 1, device=low.device, dtype=torch.float64)[:, None] / (count + 1)
        return low + share * (high - low)

    def below(self, distance: Tensor) -> Tensor:
        """The largest safe radius that a failure at this distance leaves possible."""
        return distance


@dataclass(frozen=True, eq=False)
class Counted(Family):
    """Families whose radius counts changes: whole numbers, and a failure at so many leaves one fewer possible."""

    def contains(self, x: Tensor) -> Tensor:
        return self.distance(x) <= self.radius

    def below(self, distance: Tensor) -> Tensor:
        return distance - 1

    def between(self, low: Tensor, high: Tensor, count: int) -> Tensor:
        return super().between(low.clamp_min(0.5), high, count).round().clamp_min(1)

    def evenly(self, low: Tensor, high: Tensor, count: int) -> Tensor:
        return super().evenly(low, high, count).round().clamp_min(1)


def check_centre(centre: Tensor, domain: Domain) -> None:
    """Raise unless every centre is finite and in the domain."""
    if centre.numel() == 0:
        raise BadInput("the data are empty: there is no input to ask about.")
    finite = centre.isfinite().reshape(len(centre), -1).all(1)
    if not bool(finite.all()):
        row = int((~finite).nonzero()[0, 0])
        raise BadInput(
            f"input {row} holds NaN or infinity. Remove it or repair it; robustness around it has no meaning."
        )
    inside = domain.contains(centre).reshape(len(centre), -1).all(1)
    if not bool(inside.all()):
        row = int((~inside).nonzero()[0, 0])
        values = centre[row]
        raise BadInput(
            f"input {row} has values from {float(values.min()):g} to {float(values.max()):g}, but the domain is {domain}. "
            f"Scale the data as the model expects, or state the domain they live in (domain=, --domain)."
        )


def check_norm(p: object) -> float:
    """The norm as a plain number."""
    if not isinstance(p, Real) or not float(p) >= 1:
        shown = f"{float(p):g}" if isinstance(p, Real) else repr(p)
        raise BadInput(
            f"norm {shown}: a norm needs a number p >= 1 (1, 2, math.inf, ...); for changed pixels or frames use norm 0."
        )
    return float(p)


def check_radius(radius: Tensor, batch: int) -> None:
    if tuple(radius.shape) != (batch,):
        raise BadInput(
            f"radius has shape {tuple(radius.shape)}, expected one number for each of the {batch} inputs."
        )
    if bool((radius < 0).any()) or bool(radius.isnan().any()):
        raise BadInput("a radius must not be negative or NaN.")


def step_from(centre: Tensor, delta: Tensor, like: Tensor) -> Tensor:
    """centre + delta in the arithmetic of `like`, each element rounded towards the centre.

    No element moves further than asked, so no norm of the change grows by rounding.
    """
    c = centre.double()
    moved = (c + delta.double()).to(like.dtype)
    too_far = (moved.double() - c).abs() > delta.abs()
    return torch.where(too_far, torch.nextafter(moved, centre.to(moved).expand_as(moved)), moved)
