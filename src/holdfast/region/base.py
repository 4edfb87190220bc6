"""Perturbation sets: a set R of inputs around each centre of a batch.

All methods of this package need the same few operations on R. The essential one is the concretization of
linear bounds,

    minimise_linear(a) <= min over x in R of a . x,

in float64 with rounding included. A `Family` is a set R(r) that grows with a radius: r <= s implies R(r) is a
subset of R(s).
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from numbers import Real
from typing import Self

import torch
from torch import Tensor

from holdfast.errors import BadInput
from holdfast.random_streams import RandomStreams


@dataclass(frozen=True, eq=False)
class Domain:
    """The values of an input in the user's units: lower <= x <= upper, broadcast over the input's shape.

    `of` rounds the bounds outwards to float32 numbers, so that float32 data, attacks on them and proofs in
    float64 all refer to the same set.
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
            raise BadInput(
                f"domain: every lower bound must be below its upper bound, got {lower} and {upper}."
            )
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
        """Elementwise: whether x is in the domain."""
        return (x >= self.lower.to(x)) & (x <= self.upper.to(x))

    def __str__(self) -> str:
        if not self.bounded and not (self.lower.isfinite().any() or self.upper.isfinite().any()):
            return "unbounded"
        return f"[{float(self.lower.min()):g}, {float(self.upper.max()):g}]"


def _outwards(end: float | Tensor, towards: float) -> Tensor:
    """The nearest float32 number at or beyond `end`, as float64; numbers outside of float32 are kept."""
    exact = torch.as_tensor(end, dtype=torch.float64)
    near = exact.float()
    inwards = near.double() < exact if towards > 0 else near.double() > exact
    beyond = torch.where(inwards, torch.nextafter(near, torch.full_like(near, towards)), near).double()
    return torch.where(beyond.isfinite(), beyond, exact)


EVERYWHERE = Domain.of(None)


@dataclass(frozen=True, eq=False)
class Region(ABC):
    """A set of inputs for each row of a batch.

    Points may have any number of leading axes before the batch: x is (..., batch, *shape). All methods work
    row by row.
    """

    centre: Tensor  # (batch, *shape)

    def __len__(self) -> int:
        return int(self.centre.shape[0])

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.centre.shape[1:])

    @property
    def boxed(self) -> bool:
        """Whether the region equals its enclosing box."""
        return False

    def flatten(self, x: Tensor) -> Tensor:
        """(..., *shape) -> (..., n)."""
        return x.flatten(x.dim() - len(self.shape)) if self.shape else x.unsqueeze(-1)

    def per_row(self, value: Tensor) -> Tensor:
        """(batch,) -> (batch, 1, ..., 1), to broadcast against (..., batch, *shape)."""
        return value.reshape(-1, *(1 for _ in self.shape))

    @abstractmethod
    def contains(self, x: Tensor) -> Tensor:
        """Return whether each point is in the region: (..., batch, *shape) -> (..., batch) bool."""

    @abstractmethod
    def project(self, x: Tensor) -> Tensor:
        """Map points into the region, (..., batch, *shape) -> the same shape.

        A point of the region is unchanged.
        """

    def stand_ins(self, x: Tensor) -> Tensor:
        """(batch, *shape) -> (k, batch, *shape): all points at which a property must fail for x to be a
        counterexample."""
        return x[None]

    def assumptions(self, row: int) -> tuple[str, ...]:
        """Return the assumptions that a witness in this row rests on."""
        return ()

    @abstractmethod
    def sample(self, count: int, chance: RandomStreams) -> Tensor:
        """Draw (count, batch, *shape) extreme and interior points, by each row's own random stream."""

    @abstractmethod
    def enclosing_box(self) -> tuple[Tensor, Tensor]:
        """Lower, upper, each (batch, *shape) float64, with lower <= x <= upper for all x in the region."""

    @abstractmethod
    def vertex(self, a: Tensor) -> Tensor:
        """(..., batch, *shape) -> the same shape: a point with small a . x, a minimiser where possible."""

    @abstractmethod
    def minimise_linear(self, a: Tensor) -> Tensor:
        """(batch, rows, *shape) -> (batch, rows): result <= a . x for all x, rounding included."""

    def condense(self) -> "tuple[Region, Tensor] | None":
        """Return the region over its few variable features, and their indices (batch, features), or None.

        None means that the region does not support this, or that it would not help.
        """
        return None


@dataclass(frozen=True, eq=False)
class Family(Region):
    """A region with a radius r that is monotone: R(r) is a subset of R(s) if r <= s."""

    radius: Tensor  # (batch,); the constructor also accepts one number for all rows

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
        """Return the region with this radius, (batch,) or one number for all rows."""
        value = torch.as_tensor(radius, dtype=self.radius.dtype, device=self.radius.device)
        return replace(self, radius=value.expand(len(self)).clone())

    @abstractmethod
    def distance(self, x: Tensor) -> Tensor:
        """(..., batch, *shape) -> (..., batch) float64: the smallest radius that contains x, rounded up.

        Infinite if no radius does.
        """

    @abstractmethod
    def limit(self) -> Tensor:
        """Return (batch,) float64: the radius beyond which the region does not grow.

        Zero if nothing may change, infinite if the region never stops growing.
        """

    def reach(self) -> Tensor:
        """Return (batch,), finite: a radius at which a search can start; the limit if it is finite."""
        return self.limit()

    def between(self, low: Tensor, high: Tensor, count: int) -> Tensor:
        """(batch,), (batch,) -> (count, batch), ascending radii between `low` and `high`, geometric."""
        share = torch.arange(1, count + 1, device=low.device, dtype=torch.float64)[:, None] / (count + 1)
        doubling = high * 2.0 ** -torch.arange(count, 0, -1, device=low.device, dtype=torch.float64)[:, None]
        return torch.where(low > 0, low * (high / low.clamp_min(1e-300)) ** share, doubling)

    def evenly(self, low: Tensor, high: Tensor, count: int) -> Tensor:
        """(batch,), (batch,) -> (count, batch), ascending: equidistant radii between `low` and `high`."""
        share = torch.arange(1, count + 1, device=low.device, dtype=torch.float64)[:, None] / (count + 1)
        return low + share * (high - low)

    def below(self, distance: Tensor) -> Tensor:
        """Return the largest certified radius that a counterexample at this distance leaves possible."""
        return distance


@dataclass(frozen=True, eq=False)
class Counted(Family):
    """Families whose radius counts changes: a counterexample with k changes bounds it by k - 1."""

    def contains(self, x: Tensor) -> Tensor:
        return self.distance(x) <= self.radius

    def below(self, distance: Tensor) -> Tensor:
        return distance - 1

    def between(self, low: Tensor, high: Tensor, count: int) -> Tensor:
        return super().between(low.clamp_min(0.5), high, count).round().clamp_min(1)

    def evenly(self, low: Tensor, high: Tensor, count: int) -> Tensor:
        return super().evenly(low, high, count).round().clamp_min(1)


def check_centre(centre: Tensor, domain: Domain) -> None:
    """Raise BadInput unless every centre is finite and in the domain."""
    if centre.numel() == 0:
        raise BadInput("the data are empty: there is no input to analyse.")
    finite = centre.isfinite().reshape(len(centre), -1).all(1)
    if not bool(finite.all()):
        row = int((~finite).nonzero()[0, 0])
        raise BadInput(
            f"input {row} holds NaN or infinity. Remove it or repair it; robustness around it is undefined."
        )
    inside = domain.contains(centre).reshape(len(centre), -1).all(1)
    if not bool(inside.all()):
        row = int((~inside).nonzero()[0, 0])
        values = centre[row]
        raise BadInput(
            f"input {row} has values from {float(values.min()):g} to {float(values.max()):g}, "
            f"but the domain is {domain}. "
            f"Scale the data as the model expects, or give the domain that they are in (domain=, --domain)."
        )


def check_norm(p: object) -> float:
    """Return the norm p as a float. BadInput unless p >= 1."""
    if not isinstance(p, Real) or not float(p) >= 1:
        shown = f"{float(p):g}" if isinstance(p, Real) else repr(p)
        raise BadInput(
            f"norm {shown}: a norm needs a number p >= 1 (1, 2, math.inf, ...); for changed pixels or "
            "frames use norm 0."
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
    """Return centre + delta in the dtype of `like`, each element rounded towards the centre.

    So |result - centre| <= |delta| elementwise, and no norm of the perturbation grows by rounding.
    """
    c = centre.double()
    moved = (c + delta.double()).to(like.dtype)
    too_far = (moved.double() - c).abs() > delta.abs()
    return torch.where(too_far, torch.nextafter(moved, centre.to(moved).expand_as(moved)), moved)
