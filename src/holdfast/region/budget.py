"""Groups of units with budgets of changes: subproblems of branch and bound for sparse perturbations.

    { x : at most b_g units of group g differ from the centre, every changed unit is in [l, u] }

A linear function is minimised exactly: a . c + sum over g of the b_g smallest gains of units in g (see
`sparse`).
"""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from holdfast.derivations import (
    BALL_MINIMUM,
)
from holdfast.errors import BadInput
from holdfast.random_streams import RandomStreams
from holdfast.region.base import EVERYWHERE, Region, check_centre
from holdfast.rounding import charge


@dataclass(frozen=True, eq=False)
class Budget(Region):
    """All x with at most budgets[g] changed units in each group g, each within [lower, upper].

    `group` is the group of every unit, -1 for a unit that stays. Units are defined by `axes` as in `Sparse`.
    A group whose budget is at least its number of units is a box: each of its units is free in [lower,
    upper].
    """

    lower: Tensor  # (batch, *shape): lower <= centre <= upper
    upper: Tensor  # (batch, *shape)
    group: Tensor  # (batch, *unit_shape), integers
    budgets: Tensor  # (batch, groups), integers
    axes: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        check_centre(self.centre, EVERYWHERE)
        units = (len(self), *(1 if axis in self.axes else size for axis, size in enumerate(self.shape)))
        if (
            self.lower.shape != self.centre.shape
            or self.upper.shape != self.centre.shape
            or tuple(self.group.shape) != units
        ):
            raise BadInput(
                f"budget: lower, upper and group have shapes {tuple(self.lower.shape)}, "
                f"{tuple(self.upper.shape)} and "
                f"{tuple(self.group.shape)}; for these inputs and unit axes they must be "
                f"{tuple(self.centre.shape)} twice "
                f"and {units}."
            )
        if self.budgets.dim() != 2 or len(self.budgets) != len(self) or bool((self.budgets < 0).any()):
            raise BadInput(
                f"budget: budgets must be ({len(self)}, groups) counts >= 0, got shape "
                f"{tuple(self.budgets.shape)}."
            )
        if bool((self.group < -1).any()) or bool((self.group >= self.budgets.shape[1]).any()):
            raise BadInput(
                f"budget: groups are numbered from 0 to {self.budgets.shape[1] - 1}, and -1 for a unit that "
                "stays."
            )
        if not bool(((self.lower <= self.centre) & (self.centre <= self.upper)).all()):
            raise BadInput("budget: a centre is outside its bounds.")

    # ---- units

    def _by_unit(self, x: Tensor) -> Tensor:
        """(..., *shape) -> (..., units, elements per unit)."""
        lead = x.dim() - len(self.shape)
        apart = [axis for axis in range(len(self.shape)) if axis not in self.axes]
        order = [*range(lead), *(lead + axis for axis in (*apart, *self.axes))]
        return x.permute(order).reshape(*x.shape[:lead], self.labels.shape[1], -1)

    def _any(self, changed: Tensor) -> Tensor:
        return changed.any(self._from_end(), keepdim=True) if self.axes else changed

    def _from_end(self) -> tuple[int, ...]:
        return tuple(axis - len(self.shape) for axis in self.axes)

    @cached_property
    def labels(self) -> Tensor:
        """(batch, units): the group of every unit, -1 if its budget allows no change."""
        flat = self.group.reshape(len(self), -1).long()
        allowed = (
            self.budgets.gather(1, flat.clamp_min(0)) > 0
            if self.budgets.shape[1]
            else torch.zeros_like(flat, dtype=torch.bool)
        )
        return torch.where(allowed, flat, -1)

    @cached_property
    def _moving(self) -> Tensor:
        """(batch, *unit_shape) bool: the units that may change."""
        return (self.labels >= 0).reshape(self.group.shape)

    @cached_property
    def _members(self) -> tuple[Tensor, Tensor]:
        """(batch, groups, width): the units of every group, padded, and a mask of valid entries."""
        labels, groups = self.labels, self.budgets.shape[1]
        inside = labels[:, None] == torch.arange(groups, device=labels.device)[:, None]
        width = max(1, int(inside.sum(-1).max())) if groups else 1
        filled, units = inside.to(torch.uint8).sort(dim=-1, descending=True, stable=True)
        return units[..., :width], filled[..., :width] > 0

    # ---- points

    def contains(self, x: Tensor) -> Tensor:
        changed = self._any(x != self.centre)
        inside = self.flatten((x >= self.lower.to(x)) & (x <= self.upper.to(x)) | ~self._moving).all(-1)
        still = ~(changed & ~self._moving).flatten(x.dim() - len(self.shape)).any(-1)
        return inside & still & (self._counts(changed) <= self.budgets).all(-1)

    def _counts(self, changed: Tensor) -> Tensor:
        """(..., batch, *unit_shape) bool -> (..., batch, groups): changed units per group."""
        flat = changed.flatten(changed.dim() - len(self.shape))
        units, filled = self._members
        lead = flat.shape[:-2]
        picked = (
            flat[..., None, :]
            .expand(*lead, *units.shape[:2], flat.shape[-1])
            .gather(-1, units.expand(*lead, *units.shape))
        )
        return (picked & filled).sum(-1)

    def _largest_units(self, weight: Tensor) -> Tensor:
        """(..., batch, *unit_shape) -> bool: the units of largest positive weight of every group."""
        flat = weight.flatten(weight.dim() - len(self.shape))
        units, filled = self._members
        lead = flat.shape[:-2]
        where = units.expand(*lead, *units.shape)
        table = torch.where(
            filled, flat[..., None, :].expand(*lead, *units.shape[:2], flat.shape[-1]).gather(-1, where), 0
        )
        rank = table.argsort(dim=-1, descending=True, stable=True).argsort(-1)
        kept = (rank < self.budgets[..., None]) & (table > 0)
        chosen = torch.zeros_like(flat, dtype=torch.uint8).scatter_add(
            -1, where.flatten(-2), kept.to(torch.uint8).flatten(-2)
        )
        return (chosen > 0).reshape(weight.shape)

    def project(self, x: Tensor) -> Tensor:
        inside = torch.minimum(torch.maximum(x, self.lower.to(x)), self.upper.to(x))
        change = (inside - self.centre.to(x)).abs()
        weight = change.amax(self._from_end(), keepdim=True) if self.axes else change
        return torch.where(self._largest_units(weight), inside, self.centre.to(x))

    def sample(self, count: int, chance: RandomStreams) -> Tensor:
        share = chance.uniform(count, self.shape, self.centre)
        extreme = chance.uniform(count, self.shape, share) < 0.7
        values = self.lower + torch.where(extreme, share.round(), share) * (self.upper - self.lower)
        weight = chance.uniform(count, self.group.shape[1:], share) + 1e-9
        values = torch.minimum(torch.maximum(values, self.lower), self.upper).to(self.centre)
        return torch.where(self._largest_units(weight), values, self.centre)

    # ---- linear functions

    def vertex(self, a: Tensor) -> Tensor:
        """Return the exact minimiser."""
        ends = torch.where(a > 0, self.lower.to(a), self.upper.to(a))
        gain = a * (self.centre.to(a) - ends)
        per_unit = gain.sum(self._from_end(), keepdim=True) if self.axes else gain
        return torch.where(self._largest_units(per_unit), ends, self.centre.to(a))

    def enclosing_box(self) -> tuple[Tensor, Tensor]:
        centre = self.centre.double()
        return torch.where(self._moving, self.lower.double(), centre), torch.where(
            self._moving, self.upper.double(), centre
        )

    def minimise_linear(self, a: Tensor) -> Tensor:
        """Return a . centre plus the best gains of every group: the exact minimum, rounded down.

        Each gain has a relative error of a few ulp. The sum of gains taken here is at least as large in
        magnitude as that of the true minimiser, so its rounding-error bound covers both.
        """
        a = a.double()
        flat, centre = self.flatten(a), self.flatten(self.centre.double())[..., None]
        best = self._best_gains(a)
        at_centre, size = (flat @ centre).squeeze(-1), (flat.abs() @ centre.abs()).squeeze(-1)
        return at_centre + best - charge(size + best.abs(), BALL_MINIMUM, flat.shape[-1])

    def _best_gains(self, a: Tensor) -> Tensor:
        """(batch, rows, *shape) -> (batch, rows): the sum over groups of the best gains of variable units."""
        if not self.budgets.shape[1] or not bool(self._moving.any()):
            return a.new_zeros(a.shape[:2])
        units, filled = self._members
        down, up = self._headrooms
        where = units.flatten(1)[:, None, :, None]
        table = self._by_unit(a)
        slopes = table.gather(2, where.expand(*table.shape[:2], where.shape[2], table.shape[-1]))
        gains = torch.minimum(slopes * down, slopes * up).sum(-1).reshape(*a.shape[:2], *units.shape[1:])
        most = min(int(self.budgets.max()), units.shape[-1])
        if most == 1:
            return (gains.amin(-1) * (self.budgets > 0)[:, None]).sum(-1)
        if bool((filled.sum(-1) <= self.budgets).all()):  # every unit may change, so no selection is needed
            return gains.sum((-1, -2))
        best = gains.topk(most, dim=-1, largest=False).values
        return (best * (torch.arange(most, device=a.device) < self.budgets[..., None])[:, None]).sum((-1, -2))

    @cached_property
    def _headrooms(self) -> tuple[Tensor, Tensor]:
        """(batch, 1, entries of `_members`, elements): how far each may decrease and increase."""
        units, filled = self._members
        where = units.flatten(1)[..., None]
        centre = self.centre.double()
        ends = []
        for end in (self.lower, self.upper):
            headroom = self._by_unit(end.double() - centre)
            ends.append(
                (
                    headroom.gather(1, where.expand(*where.shape[:2], headroom.shape[-1]))
                    * filled.flatten(1)[..., None]
                )[:, None]
            )
        return ends[0], ends[1]
