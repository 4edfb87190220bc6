"""Perturbation sets: a set R of inputs around each centre of a batch.

All methods of this package need the same few operations on R. The essential one is the concretization of
linear bounds,

    minimise_linear(a) <= min over x in R of a . x,

in float64 with rounding included. A `Family` is a set R(r) that grows with a radius: r <= s implies R(r) is a
subset of R(s).
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from numbers import Real
from typing import TYPE_CHECKING, ClassVar, Self

import torch
from torch import Tensor

from holdfast.errors import BadInput
from holdfast.random_streams import RandomStreams
from holdfast.region.unit_box import BoxMap

if TYPE_CHECKING:
    from holdfast.region.normed import NormFamily
    from holdfast.region.unit_choices import TriedValues, UnitChoices


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
        if domain is not None and not (isinstance(domain, tuple | list) and len(domain) == 2):
            raise BadInput(
                "domain: expected the lowest and the highest value of an input, as in (0, 1), got "
                f"{domain!r:.60}."
            )
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

    The abstract methods are enough for every search and proof that accepts any region. The others have
    defaults; specialised methods ask by them what a region offers.

    Class attributes:
        grows: it has a radius (`Family`).
        counted: its radius counts changes (`Counted`).
        embedded: its points are word vectors; users give, read and store token ids.
        changes_units: `unit_choices` lists the values of its units.
        has_slope: `greatest_slope` bounds how fast a function changes per unit of distance.
        finds_nearest: `nearest_in` and `reach_boxes` are available.
        changes_length: its points are texts of different lengths (`texts_read`); only methods that say so apply.
    """

    grows: ClassVar[bool] = False
    counted: ClassVar[bool] = False
    embedded: ClassVar[bool] = False
    changes_units: ClassVar[bool] = False
    has_slope: ClassVar[bool] = False
    finds_nearest: ClassVar[bool] = False
    changes_length: ClassVar[bool] = False

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

    # ---- what users give and read

    def as_data(self, x: Tensor) -> Tensor:
        """(..., batch, *shape) -> points as users give and read them: token ids for words, else x."""
        return x

    def from_data(self, data: Tensor) -> Tensor | None:
        """Return the points of data (..., *data shape), such as stored witnesses; None if they are no inputs."""
        fits = (
            data.is_floating_point() and data.shape[data.dim() - len(self.shape) :] == self.centre.shape[1:]
        )
        return data.to(self.centre) if fits else None

    def trim(self, data: Tensor) -> Tensor:
        """Return one point as users read it, (*data shape), without what only fills up a row."""
        return data

    def texts_read(self, x: Tensor) -> "list[tuple[int, ...]]":
        """Return the token ids that the network reads at each point, where points differ in length."""
        raise NotImplementedError(f"{type(self).__name__} has inputs of one length (`changes_length`).")

    # ---- what specialised methods need

    @property
    def is_single_point(self) -> bool:
        """Whether every row holds its centre alone because its radius is 0."""
        return False

    def widen(self) -> "Region":
        """Return the region itself, or at its reach where it is a single point."""
        return self

    def as_norm_family(self) -> "NormFamily | None":
        """Return the region as groups of features with a norm each; None if it is none."""
        return None

    def box_map(self) -> BoxMap:
        """Return a map from the unit box onto the region: here its enclosing box, then the projection."""
        lower, upper = self.enclosing_box()
        return BoxMap(self, self.flatten(lower), self.flatten(upper))

    def scale_perturbation(self, x: Tensor, factor: float) -> Tensor | None:
        """Multiply the perturbation by `factor` inside the domain; None if perturbations have no size."""
        return None

    def only(self, places: Tensor) -> "Region | None":
        """Restrict the region to perturbations of these frames or positions, (batch, count) bool; None if it
        has none.
        """
        return None

    def greatest_slope(self, gradient: Tensor, norm: float) -> Tensor:
        """Map bounds of a gradient, (batch, pieces, *shape) >= 0, to bounds of the slope, (batch, pieces).

        The slope is the change of a function per unit of distance inside the region, rounded up. norm: the
        norm of distances where the region has none of its own.
        """
        raise NotImplementedError(f"{type(self).__name__} has no bounds of slopes (`has_slope`).")

    def nearest_in(self, lower: Tensor, upper: Tensor) -> Tensor:
        """Return the point of each box that is nearest to the centre, at any radius; NaN if there is none.

        lower, upper: (..., batch or 1, features) float64, the bounds of the boxes. Result: (..., batch,
        features) float64.
        """
        raise NotImplementedError(f"{type(self).__name__} has no nearest points (`finds_nearest`).")

    def reach_boxes(self, lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
        """Return the radius from which on each box may be reached, rounded down, and the nearest points.

        lower, upper: (boxes, features) float64. Results: (batch, boxes) float64, infinite where no member of
        the region is in the box, and (boxes, batch, features).
        """
        raise NotImplementedError(f"{type(self).__name__} has no radii at which boxes are reached.")

    @property
    def unit_grid(self) -> tuple[int, ...] | None:
        """The shape of the grid of units that may change one by one; None if they form no grid."""
        return None

    def unit_choices(self, tried: "TriedValues", generator: torch.Generator) -> "UnitChoices":
        """Return the values that searches over changed units try.

        Args:
            tried: how many values of a number, and which of its levels.
            generator: draws corners of units with many parts.
        """
        raise NotImplementedError(f"{type(self).__name__} has no units to change (`changes_units`).")

    def substitutes(self, row: int) -> Mapping[int, list[int]] | None:
        """Return position -> the other words that it may take in this row; None if the set is not finite."""
        return None


@dataclass(frozen=True, eq=False)
class Family(Region):
    """A region with a radius r that is monotone: R(r) is a subset of R(s) if r <= s."""

    grows: ClassVar[bool] = True

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

    @property
    def is_single_point(self) -> bool:
        return not bool(self.radius.any())

    def widen(self) -> "Family":
        return self.at(torch.nan_to_num(self.reach(), posinf=1.0)) if self.is_single_point else self

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

    def strictly_below(self, distance: Tensor) -> Tensor:
        """Return the largest radius of a region without the points at this distance."""
        return torch.nextafter(distance, torch.zeros_like(distance))

    def slope(self, gradient: Tensor) -> Tensor | None:
        """(batch, *shape) -> (batch,): the rate at which a linear function decreases with the radius.

        None: it is not known, or the radius is a count.
        """
        return None

    def count_moving_frames(self) -> Tensor | None:
        """Return (batch,): how many frames of each input may move; None if they do not move separately."""
        return None


@dataclass(frozen=True, eq=False)
class Counted(Family):
    """Families whose radius counts changes: a counterexample with k changes bounds it by k - 1."""

    counted: ClassVar[bool] = True

    def contains(self, x: Tensor) -> Tensor:
        return self.distance(x) <= self.radius

    def below(self, distance: Tensor) -> Tensor:
        return distance - 1

    def strictly_below(self, distance: Tensor) -> Tensor:
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
    for end in (domain.lower, domain.upper):
        sizes = zip(reversed(end.shape), reversed(centre.shape), strict=False)
        if end.dim() > centre.dim() or any(own not in (1, size) for own, size in sizes):
            raise BadInput(
                f"domain: bounds of shape {tuple(end.shape)} do not fit inputs of shape "
                f"{tuple(centre.shape[1:])}. Give two numbers, or a bound for each number of an input."
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
