"""Sparse perturbations: at most k changed units (pixels, channels, frames or table features), the L0 "norm".

    S = { x : at most k units differ from the centre c, and every changed number is in [l, u] }

A linear function is minimised exactly. Units do not interact, so with the gain of unit j

    g_j = min over allowed values of unit j of a_j . (x_j - c_j) <= 0,

    min over x in S of a . x = a . c + (the sum of the k smallest g_j).
"""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from holdfast.derivations import (
    UNIT_GAINS,
)
from holdfast.errors import BadInput
from holdfast.random_streams import RandomStreams
from holdfast.region.base import Counted, Domain, check_centre
from holdfast.region.unit_choices import MAX_LEVELS, TriedValues, UnitChoices
from holdfast.rounding import charge


@dataclass(frozen=True, eq=False)
class Sparse(Counted):
    """All x in the domain that differ from the centre in at most `radius` units.

    Two elements are in the same unit if they only differ in their position on `axes`. axes=(0,): the channels
    of an image (channels, height, width) form one pixel. axes=(1,): the features of a sequence (frames,
    features) form one frame. axes=(): every number is a unit.

    Attributes:
        free: bool, broadcast to (batch, *unit_shape), the units that may change; None: all.
        levels: the values of a changed number: bytes, say, or the two bounds of the domain. None: any value
            of the domain. The centre may have other values: an unchanged number stays as it is.
    """

    changes_units: ClassVar[bool] = True

    domain: Domain
    axes: tuple[int, ...] = ()
    free: Tensor | None = None
    levels: "Levels | Tensor | None" = None

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "domain", Domain.of(self.domain))
        check_centre(self.centre, self.domain)
        if not self.domain.bounded:
            raise BadInput(
                "norm 0 needs a bounded domain (domain=, --domain): a changed unit may take any value of it."
            )
        if (
            any(not 0 <= axis < len(self.shape) for axis in self.axes)
            or len(self.axes) == len(self.shape) > 0
        ):
            raise BadInput(f"unit axes {self.axes} do not fit inputs of shape {self.shape}.")
        if self.free is not None:
            object.__setattr__(self, "free", self._checked_mask(self.free))
        if self.levels is not None:
            object.__setattr__(self, "levels", Levels.of(self.levels, self.centre.dtype, self.domain))

    def _checked_mask(self, free: object) -> Tensor:
        """Broadcast the mask to (batch, *unit_shape)."""
        want = (len(self), *self.unit_shape)
        if not isinstance(free, Tensor) or free.dtype != torch.bool:
            shown = free.dtype if isinstance(free, Tensor) else type(free).__name__
            raise BadInput(
                f"the mask of units that may change must be a bool tensor of shape {want}, got {shown}."
            )
        try:
            return free.to(self.centre.device).broadcast_to(want)
        except RuntimeError:
            raise BadInput(
                f"the mask of units that may change has shape {tuple(free.shape)}, expected {want}: "
                "one flag for each unit of each input."
            ) from None

    @property
    def unit_shape(self) -> tuple[int, ...]:
        """The shape of an input with one element for each unit: the unit's own axes have size 1."""
        return tuple(1 if axis in self.axes else size for axis, size in enumerate(self.shape))

    @property
    def unit_grid(self) -> tuple[int, ...]:
        return self.unit_shape

    @property
    def units(self) -> int:
        return math.prod(self.unit_shape)

    def free_units(self) -> Tensor:
        """Return (batch, *unit_shape) bool: the units that may change."""
        if self.free is not None:
            return self.free
        return torch.ones((len(self), *self.unit_shape), dtype=torch.bool, device=self.centre.device)

    def values(self) -> Tensor | None:
        """The allowed values of a changed number, (levels,) float64 ascending; None: the whole domain."""
        return self.levels.values if isinstance(self.levels, Levels) else None

    def value_range(self, like: Tensor) -> tuple[Tensor, Tensor]:
        """The smallest and the largest value of a changed number, each broadcastable to the inputs' shape."""
        values = self.values()
        ends = (self.domain.lower, self.domain.upper) if values is None else (values[0], values[-1])
        return ends[0].to(like), ends[1].to(like)

    def unit_choices(self, tried: TriedValues, generator: torch.Generator) -> UnitChoices:
        """Return `tried.count` evenly spaced values of the domain, or the levels, of each number.

        A unit of several parts takes every combination of their values while these are few, else corners.
        """
        ladder = self._ladder(tried.count, tried.every_level)
        free = self.flatten_units(self.free_units())
        return UnitChoices.of_ladder(self.centre, self.axes, ladder, free, generator)

    def _ladder(self, count: int, every_level: bool) -> Tensor:
        """Return (count, *shape): the values tried for each number by itself, in increasing order.

        Of many levels an evenly spaced choice that includes both bounds, unless `every_level` is set.
        """
        levels, like = self.values(), self.centre
        if levels is not None:
            most = len(levels) if every_level else min(len(levels), MAX_LEVELS)
            chosen = levels[torch.linspace(0, len(levels) - 1, most, dtype=torch.float64).round().long()]
            return chosen.to(like).reshape(-1, *(1 for _ in self.shape)).expand(-1, *self.shape)
        lower, upper = (
            end.to(like.device).expand(self.shape) for end in (self.domain.lower, self.domain.upper)
        )
        share = torch.linspace(0, 1, count, dtype=torch.float64, device=like.device)
        share = share.reshape(-1, *(1 for _ in self.shape))
        return torch.where(share < 1, lower + share * (upper - lower), upper).to(like)

    def _batch_axes(self) -> tuple[int, ...]:
        """Return the unit's axes counted from the last one, so that leading axes do not matter."""
        return tuple(axis - len(self.shape) for axis in self.axes)

    def _any(self, changed: Tensor) -> Tensor:
        """(..., *shape) bool -> (..., *unit_shape): whether any element of the unit changes."""
        return changed.any(self._batch_axes(), keepdim=True) if self.axes else changed

    def _sum(self, parts: Tensor) -> Tensor:
        """(..., *shape) -> (..., *unit_shape): sums over units."""
        return parts.sum(self._batch_axes(), keepdim=True) if self.axes else parts

    def distance(self, x: Tensor) -> Tensor:
        changed = x != self.centre
        count = self.flatten_units(self._any(changed)).sum(-1).double()
        allowed = self.domain.contains(x) & self.free_units()
        values = self.values()
        if values is not None:
            allowed = allowed & (_nearest(values, x) == x)
        return torch.where(self.flatten(allowed | ~changed).all(-1), count, torch.inf)

    def flatten_units(self, per_unit: Tensor) -> Tensor:
        return self.flatten(per_unit)

    def limit(self) -> Tensor:
        return self.flatten_units(self.free_units()).sum(-1).double()

    def _keep(self, weight: Tensor) -> Tensor:
        """(..., batch, *unit_shape) -> bool: the `radius` free units with the largest positive weights."""
        flat = self.flatten_units(torch.where(self.free_units(), weight, 0))
        rank = flat.argsort(-1, descending=True).argsort(-1)
        return ((rank < self.radius.floor()[:, None]) & (flat > 0)).reshape(weight.shape)

    def _snap_to_allowed(self, x: Tensor) -> Tensor:
        """Round every number to its nearest allowed value: in the domain, a level, or the centre's."""
        x, centre, values = self.domain.clamp(x), self.centre.to(x), self.values()
        if values is None:
            return x
        level = _nearest(values, x).to(x)
        return torch.where((x - centre).abs() < (x - level).abs(), centre, level)

    def project(self, x: Tensor) -> Tensor:
        x = self._snap_to_allowed(x)
        change = (x - self.centre).abs()
        weight = change.amax(self._batch_axes(), keepdim=True) if self.axes else change
        return torch.where(self._keep(weight), x, self.centre.to(x))

    def sample(self, count: int, chance: RandomStreams) -> Tensor:
        share = chance.uniform(count, self.shape, self.centre)
        lower, upper = self.value_range(share)
        extreme = chance.uniform(count, self.shape, share) < 0.7
        values = lower + torch.where(extreme, share.round(), share) * (upper - lower)
        weight = chance.uniform(count, self.unit_shape, share) + 1e-9
        return torch.where(self._keep(weight), self._snap_to_allowed(values), self.centre)

    def vertex(self, a: Tensor) -> Tensor:
        """The exact minimiser: change the units with the largest gains, each number to its better bound."""
        lower, upper = self.value_range(a)
        centre = self.centre.to(a)
        ends = torch.where(a > 0, lower, upper).expand(a.shape)
        # A centre beyond the levels may be better than both bounds; then the number stays.
        gain = (a * (centre - ends)).clamp_min(0)
        return torch.where(self._keep(self._sum(gain)) & (gain > 0), ends, centre)

    def enclosing_box(self) -> tuple[Tensor, Tensor]:
        centre = self.centre.double()
        moves = self.free_units() & self.per_row(self.radius >= 1)
        lower, upper = self.value_range(centre)
        return torch.where(moves, torch.minimum(centre, lower), centre), torch.where(
            moves, torch.maximum(centre, upper), centre
        )

    def minimise_linear(self, a: Tensor) -> Tensor:
        """A . centre plus the `radius` best gains, the exact minimum in real arithmetic, rounded down."""
        a, centre = a.double(), self.centre.double()[:, None]
        lower, upper = self.value_range(a)
        at_ends = torch.where(self.free_units()[:, None], torch.minimum(a * lower, a * upper), a * centre)
        gain = (at_ends - a * centre).clamp_max(0)
        ordered = self.flatten_units(self._sum(gain)).sort(-1).values
        taken = torch.arange(ordered.shape[-1], device=a.device) < self.radius.floor()[:, None, None]
        size = self.flatten((a * centre).abs() + (at_ends - a * centre).abs()).sum(-1)
        slack = charge(size, UNIT_GAINS, a[0, 0].numel())
        return self.flatten(a * centre).sum(-1) + (ordered * taken).sum(-1) - slack


@dataclass(frozen=True, eq=False)
class Levels:
    """The allowed values of a changed number. They belong to the whole batch, so slicing rows shares them."""

    values: Tensor  # (levels,) float64, ascending

    @staticmethod
    def of(levels: "Levels | Tensor", dtype: torch.dtype, domain: Domain) -> "Levels":
        """Round levels to the inputs' dtype, so that data, attacks and proofs use the same values."""
        given = levels.values if isinstance(levels, Levels) else levels
        if not isinstance(given, Tensor) or given.dim() != 1:
            shown = f"shape {tuple(given.shape)}" if isinstance(given, Tensor) else type(given).__name__
            raise BadInput(
                "levels: expected a one-dimensional tensor of the values that a changed number may take; "
                f"got {shown}."
            )
        values = given.detach().to(dtype).double().unique()
        if len(values) < 2:
            raise BadInput(f"levels: a changed number needs at least two values, got {given.tolist()}.")
        if not bool(domain.contains(values[0]).all() and domain.contains(values[-1]).all()):
            raise BadInput(
                f"levels run from {float(values[0]):g} to {float(values[-1]):g}, but the domain is {domain}."
            )
        return levels if isinstance(levels, Levels) and torch.equal(values, levels.values) else Levels(values)


def _nearest(values: Tensor, x: Tensor) -> Tensor:
    """(levels,) ascending, x of any shape -> x's shape, float64: the level nearest to each number."""
    values, exact = values.to(x.device), x.double().contiguous()
    above = torch.bucketize(exact, values).clamp_max(len(values) - 1)
    high, low = values[above], values[(above - 1).clamp_min(0)]
    return torch.where(exact - low < high - exact, low, high)
