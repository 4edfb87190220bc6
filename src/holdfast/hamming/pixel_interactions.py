"""Bounds over regions of norm 0 from tables of single units: the effect of several units is the sum of their
single effects plus an interaction.

Statement. For a function g of the pre-activations of the third layer and a set S of changed units,

    g(S) >= g(centre) + sum over i in S of effect_i - interaction,

where the single effects are tables of the input (`pixel_effects`), propagated through the first two layers.
The interaction is an interval for every value of the second layer that several units of S touch; the proof is
in `pixel_effects`. Only a few changed units may touch the same value of the first layer; other regions are
left to `bound`. From the third layer on linear bounds are propagated backwards as in `bound`, and are
evaluated with the tables.

Assumption: the network is a chain of layers whose first two have piecewise-linear activations with a kink
at zero.

Reference: see `pixel_effects`.
"""

from dataclasses import dataclass
from functools import cached_property, partial

import torch
from torch import Tensor

from holdfast import batch, time_limit
from holdfast.derivations import (
    LAYER_CHAIN,
)
from holdfast.hamming.bound import UNIT_ROUNDOFF, Pass, apply_linear_bounds, parts_of
from holdfast.hamming.layer_chain import Centre, Chain
from holdfast.hamming.pixel_effects import UnitEffects, round_outwards
from holdfast.region.budget import Budget
from holdfast.rounding import TINY, charge

# Largest number of changed units that may touch one value of the first layer together (chosen by hand).
MAX_TOUCHING = 4
# In regions of at most this many units, three of which touch one value, linear bounds may be tighter than the
# tables, so `bound` is evaluated too (chosen by hand).
MAX_DENSE_UNITS = 64


def bound_by_sums(
    chain: Chain,
    effects: UnitEffects,
    region: Budget,
    centre: Centre,
    inner: Tensor,
    rows: Tensor,
    offset: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Compute the same as `bound` for regions around one input whose units may take all their values.

    Returns also which of the regions `bound` need not be evaluated for, (batch,) bool.
    """
    least, slopes, known = torch.full_like(offset, -torch.inf), torch.zeros_like(centre.x), inner.clone()
    served = torch.zeros(len(region), dtype=torch.bool, device=offset.device)
    # The pairs that share values need as much memory as four rows.
    for part in parts_of(chain, region, max(rows.shape[1], 4)):
        if time_limit.has_expired():
            break
        begun = PixelSums(chain, effects, batch.take(region, part), centre.take(part), inner[part])
        few = begun.touching <= MAX_TOUCHING
        if not bool(few.any()):
            continue
        if not bool(few.all()):
            part = part[few]
            begun = PixelSums(chain, effects, batch.take(region, part), centre.take(part), inner[part])
        found = time_limit.in_time(partial(begun.bound_rows, rows[part], offset[part]), None)
        if found is not None:
            least[part], slopes[part], known[part] = *found, begun.inner
            dense = (begun.touching > 2) & ((begun.region.labels >= 0).sum(1) <= MAX_DENSE_UNITS)
            served[part] = (least[part] > 0).all(1) | ~dense
    return least, slopes.reshape(region.centre.shape), known, served


@dataclass(frozen=True, eq=False)
class _Meeting:
    """Pairs of changed units that share values of the first layer. Pairs of the same two groups of a region
    share a slot.
    """

    slot: Tensor  # (pairs,)
    far: Tensor  # (pairs, far): the values of the second layer that they may touch
    low: Tensor  # (pairs, far): what they change there beyond the sum of both, from
    high: Tensor  # and to
    node: Tensor  # (slots,): the region
    times: Tensor  # (slots,): largest number of pairs of the slot that change at the same time


class PixelSums(Pass):
    """The bounds of one batch of regions around one input."""

    def __init__(
        self, chain: Chain, effects: UnitEffects, region: Budget, centre: Centre, inner: Tensor
    ) -> None:
        self._begin(chain, region, centre, inner)
        self.effects = effects

    @cached_property
    def touching(self) -> Tensor:
        """(batch,): the largest number of units that may change together and touch one value of the first
        layer, at least 2.
        """
        if int(self.region.budgets.sum(1).max()) < 3:
            return torch.full((len(self.region),), 2, device=self.node.device)
        touched = (self.chain.windows.near[self.unit] < self.widths[0]).double()
        return self._most(touched, self.near, self.widths[0]).amax(1).round().long().clamp_min(2)

    def bound_rows(self, rows: Tensor, offset: Tensor) -> tuple[Tensor, Tensor]:
        self._third_layer()
        for place in range(3, len(self.chain.layers) - 1):
            self._deeper_layer(place, closely=True)
        return self.bound(rows, offset)

    def _most(self, values: Tensor, places: Tensor, width: int) -> Tensor:
        """Map (pairs, k) >= 0 to (batch, width): the largest sum that the budgets allow."""
        return -self._sum(-values, places, width + 1)[:, :width]

    # ---- interactions of units

    @cached_property
    def _meetings(self) -> "_Meeting":
        """The pairs of units that may change together and share values of the first layer."""
        e, region, unit = self.effects, self.region, self.unit
        labels, groups = torch.nn.functional.pad(region.labels, (0, 1), value=-1), region.budgets.shape[1]
        group, own = labels[self.node[:, None], e.neighbour[unit]], (self.group - self.node * groups)[:, None]
        apart = (group != own) | (region.budgets.flatten()[self.group] > 1)[:, None]
        which, place = ((group >= 0) & apart).nonzero(as_tuple=True)
        one, other, node = own[which, 0], group[which, place], self.node[which]
        slots, slot = (
            (node * groups + torch.minimum(one, other)) * groups + torch.maximum(one, other)
        ).unique(return_inverse=True)
        node, one, other = slots // groups**2, slots // groups % groups, slots % groups
        here, there = region.budgets[node, one], region.budgets[node, other]
        times = torch.where(one == other, here * (here - 1) // 2, here * there).double()
        pair, far = e.pair[unit[which], place], self.chain.windows.far[unit[which]]
        low, high = (torch.zeros(far.shape, device=far.device) for _ in range(2))
        most = self.touching[self.node[which]]
        for count in most.unique().tolist():
            chosen = (most == count).nonzero().flatten()
            low[chosen], high[chosen] = (table[pair[chosen]] for table in e.together.table(count))
        return _Meeting(slot, far, low, high, node, times)

    @cached_property
    def _beyond(self) -> tuple[Tensor, Tensor]:
        """Bounds of the interactions of all pairs at the pre-activations of the second layer: lower and
        upper, (batch, second layer) each.
        """
        m, width = self._meetings, self.widths[1] + 1
        at, found = (m.slot[:, None] * width + m.far).flatten(), []
        for values, way in ((m.low, "amin"), (m.high, "amax")):
            best = (
                values.new_zeros(len(m.node) * width)
                .scatter_reduce(0, at, values.flatten(), way)
                .reshape(len(m.node), width)
            )
            total = self.first.new_zeros((len(self.region), width - 1))
            found.append(total.index_add(0, m.node, best[:, :-1].double() * m.times[:, None]))
        return found[0], found[1]

    @cached_property
    def _interplay(self) -> tuple[Tensor, Tensor]:
        """The interaction at the values of the second layer, as middle and half width, (batch, second layer)
        each; proof in `pixel_effects`.
        """
        e, width, z, slack = self.effects, self.widths[1], self.centre.before[1], self.centre.before_error[1]
        function = self.chain.layers[1].function
        sides = None if function is None else function.sides()
        assert sides is not None
        slope_change, up, d = 1 - sides.below, z > 0, z.abs()
        touched = (self.chain.windows.far[self.unit] < width).double()
        values = touched, e.reach[self.unit], e.over[self.unit], e.away[self.unit]
        count, reach, over, away = (self._most(each, self.far, width) for each in values)
        low, high = self._beyond
        toward, backward = torch.where(up, -low, high), torch.where(up, high, -low)
        # torch.where of two Python numbers would return float32.
        slope = torch.where(up, torch.ones_like(z), sides.below)
        several = count > 1.5
        # The interaction of the pairs counts as one more change of the pre-activation, or it moves the value
        # by at most itself since the activation is 1-Lipschitz.
        most = torch.minimum(
            slope * high + slope_change * (reach + toward - d).clamp_min(0),
            high + slope_change * (reach - d).clamp_min(0),
        )
        least = torch.maximum(
            slope * low - slope_change * torch.minimum(over, away + backward),
            low - slope_change * torch.minimum(over, away),
        )
        size = d + reach + over + away + toward + backward
        error = (count + 2) * (slack + charge(size, LAYER_CHAIN, self.chain.terms)) + TINY
        middle, half = (most + least) / 2, (most - least) / 2 + error
        return torch.where(several, middle, 0), torch.where(several, half, 0)

    # ---- layer by layer

    def _third_layer(self) -> None:
        layer, width = self.chain.layers[2], self.widths[2]
        middle, half = self._interplay
        places = self.node[:, None] * (width + 1) + torch.arange(width, device=self.node.device)
        fall = self._most(-self.effects.lowest[self.unit], places, width)
        rise = self._most(self.effects.highest[self.unit], places, width)
        mass = fall + rise + (middle.abs() + half) @ layer.size.t()
        shift, spread = middle @ layer.weight.t(), half @ layer.size.t()
        spread = spread + charge(mass, LAYER_CHAIN, self.chain.terms)
        known = self.inner[..., :width]
        least = torch.maximum(shift - spread - fall, known[:, 0].double())
        most = torch.minimum(shift + spread + rise, known[:, 1].double())
        known[:, 0], known[:, 1] = round_outwards(least, -1), round_outwards(most, 1)
        self._know(2, least, most, mass, ~(mass <= 0))  # True also for NaN.

    def _walk(self, place: int, rows: Tensor) -> tuple[Tensor, Tensor]:
        constant = rows.new_zeros(rows.shape[:2])
        for k in range(place, 1, -1):
            time_limit.raise_if_expired()
            constant, rows = apply_linear_bounds(constant, rows, self.known[k])
            if k > 2:
                rows = rows @ self.chain.layers[k].weight
        backward = rows @ self.chain.layers[2].weight
        middle, half = self._interplay
        constant = constant + (backward @ middle[..., None] - backward.abs() @ half[..., None]).squeeze(-1)
        rows = rows[self.node].transpose(1, 2)  # (pairs, third layer, rows)
        edges = self.effects.third[self.unit] @ rows
        gains = (
            (torch.minimum(edges[:, 1:], edges[:, :-1]) - self.effects.missed[self.unit] @ rows.abs())
            .amin(1)
            .clamp_max(0)
        )
        places = self.node[:, None] * gains.shape[1] + torch.arange(gains.shape[1], device=gains.device)
        return constant + self._sum(gains, places, gains.shape[1]), self._slopes(edges, gains)

    def _slopes(self, edges: Tensor, gains: Tensor) -> Tensor:
        """Return (pairs, rows, 1): the slopes of a linear function with the same gain at the bound of the
        unit next to the lowest edge.
        """
        lowest = self.effects.edges[self.unit].gather(1, edges.argmin(1))
        end = torch.where(lowest > self.centre.x[self.node, self.unit_places][:, None], self.up, self.down)
        return torch.where(end.abs() > UNIT_ROUNDOFF, gains / end, 0)[..., None]

    @cached_property
    def unit_places(self) -> Tensor:
        """(pairs,): the index of each unit's number in the input."""
        return self.chain.windows.elements[self.unit, 0]
