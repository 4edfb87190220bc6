"""Linear bounds over regions of norm 0 (groups of units with budgets), for networks that are chains of
layers.

Statement. A region allows at most k_g units of each group g to change, each within its own interval. For
every point of the region

    rows . output + offset >= result,

rounding errors included. All quantities are changes from the centre, so values that no changed unit touches
do not move.

Let z and r be the pre-activations and activations at the centre, z = W r + b, r' = f(z). A change obeys dz =
W dr, and linear bounds of f on the bounds of z, shifted to the centre, give

    low dz + low_offset <= dr' <= up dz + up_offset.

A linear function rows . dr' is bounded by substituting these inequalities layer by layer backwards (CROWN: H.
Zhang et al., Efficient neural network robustness certification with general activation functions, 2018). At
the input the minimum over a region is a sum of the smallest effects of units that the budgets allow. The
bounding engine would propagate through whole layers; here the first two layers are treated unit by unit and
group by group, inside the values that they touch. For the second layer the backward pass has a single step,
which is computed forwards for all values at once. Rounding: docs/rounding.md.

Assumption: the network is a chain of affine layers and activations with linear bounds (`layer_chain`).

Reference: Zhang et al. 2018, as above.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial

import torch
from torch import Tensor

from holdfast import batch, time_limit
from holdfast.bounding.relax import Relaxation, planes, value_range
from holdfast.derivations import (
    CHANGE_BOUND,
    CHANGE_INTERCEPTS,
    LAYER_CHAIN,
)
from holdfast.hamming.layer_chain import Centre, Chain, TouchedPatch
from holdfast.hamming.pixel_effects import round_outwards
from holdfast.memory_budget import elements_per_tensor
from holdfast.region.budget import Budget
from holdfast.rounding import TINY, charge

# Largest number of float64 numbers in one tensor of a pass on a CPU (chosen by hand: small tensors stay in
# its caches).
PASS_NUMBERS = 2**21
LIVE_TENSORS = 24  # Number of tensors of that size that may be alive at the same time (chosen by hand).
UNIT_ROUNDOFF = 2.0**-53  # Unit roundoff of float64.


def bound_chain(
    chain: Chain, region: Budget, centre: Centre, inner: Tensor, rows: Tensor, offset: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Lower-bound linear functions of the outputs over regions: result[b, i] <= rows[b, i] . output +
    offset[b, i].

    Args:
        centre: the input in which nothing has changed. If a group may change as a whole, its units in the
            region's centre may differ from this input; everywhere else both agree.
        inner: (batch, 2, inner values) float32, bounds of the changes of inner values, known from a region
            that contains this one.
        rows: (batch, rows, outputs).
        offset: (batch, rows).

    Returns:
        The lower bounds (batch, rows), the coefficients of the linear function behind the smallest of them
            (batch, *shape), and the bounds of inner values.
    """
    least, slopes, known = torch.full_like(offset, -torch.inf), torch.zeros_like(centre.x), inner.clone()
    for part in parts_of(chain, region, rows.shape[1]):
        if time_limit.has_expired():  # No bound is computed for the remaining regions.
            break
        first = partial(Pass, chain, batch.take(region, part), centre.take(part), inner[part])
        found = time_limit.in_time(partial(_bound_rows, first, rows[part], offset[part]), None)
        if found is None:
            break
        one, least[part], slopes[part] = found
        left = (~(least[part] > 0).all(1)).nonzero().flatten()
        # The intervals of the deeper layers were not sufficient, so these are bounded by backward passes.
        if chain.inner and len(left) and not time_limit.has_expired():
            part = part[left]
            found = time_limit.in_time(
                partial(_bound_rows, partial(one.closer, left), rows[part], offset[part]), None
            )
            if found is None:
                break
            one, least[part], slopes[part] = found
            known[part] = one.inner
    return least, slopes.reshape(region.centre.shape), known


def _bound_rows(begun: "Callable[[], Pass]", rows: Tensor, offset: Tensor) -> "tuple[Pass, Tensor, Tensor]":
    one = begun()
    return one, *one.bound(rows, offset)


def parts_of(chain: Chain, region: Budget, rows: int) -> Iterator[Tensor]:
    """Divide the batch into parts that one pass can hold; regions of similar size share a part."""
    units, order = (region.labels >= 0).sum(1).sort(stable=True)
    window = max(rows, 2) * chain.windows.far.shape[1]
    least = max(len(layer.bias) for layer in chain.layers) * max(rows, region.budgets.shape[1], 4)
    at_once = elements_per_tensor(order.device, PASS_NUMBERS, LIVE_TENSORS)
    part, total = list[int](), 0
    for place, count in zip(order.tolist(), units.tolist(), strict=True):
        cost = max(count * window, least)
        if part and total + cost > at_once:
            yield torch.tensor(part, device=order.device)
            part, total = [], 0
        part.append(place)
        total += cost
    yield torch.tensor(part, device=order.device)


@dataclass(frozen=True, eq=False)
class ShiftedRelaxation:
    """Linear bounds low dz + low_offset <= dr <= up dz + up_offset, stored as means and half differences,
    (batch, n) each.
    """

    slope: Tensor  # (low + up) / 2
    bend: Tensor  # (low - up) / 2
    offset: Tensor
    gap: Tensor  # half the difference of the offsets, not above zero, with all rounding errors subtracted
    mass: Tensor  # an upper bound of the size of the terms of dr, by which rounding errors are bounded
    middle: Tensor  # dr lies within `half` of `middle`
    half: Tensor


@dataclass(frozen=True, eq=False)
class GroupPatches:
    """The groups of a pass, equal ones next to each other, and the values that they touch. Lists are padded
    with the number of values.
    """

    node: Tensor  # (groups,): the region that the group belongs to
    item: Tensor  # (pairs,): the group of each pair
    patches: list[TouchedPatch]  # the distinct patches
    counts: list[int]  # number of groups with each of them
    near: Tensor  # (groups, a)
    far: Tensor  # (groups, b)
    first: Tensor  # (groups, a, elements)
    owns_near: Tensor  # (groups, a) bool: patches overlap; exactly one of them owns each value
    owns_far: Tensor

    def back(self, values: Tensor) -> Tensor:
        """Map (groups, k, far) to (groups, k, near): propagate backwards through the weights of the second
        layer.
        """
        out = values.new_zeros((*values.shape[:2], self.near.shape[1]))
        for part, into, patch in zip(
            values.split(self.counts), out.split(self.counts), self.patches, strict=True
        ):
            into[..., : len(patch.near)] = part[..., : len(patch.far)] @ patch.second
        return out


class Pass:
    """The bounds of one batch of regions, layer by layer.

    A pair is a region and a unit that may change in it. Pairs whose windows have the same weights lie next to
    each other.
    """

    def __init__(
        self,
        chain: Chain,
        region: Budget,
        centre: Centre,
        inner: Tensor,
        known: Sequence[ShiftedRelaxation] = (),
    ) -> None:
        """Compute the linear bounds of all layers.

        Args:
            known: linear bounds of the first two layers; if given, the deeper layers are bounded by backward
                passes.
        """
        self._begin(chain, region, centre, inner)
        self.known = dict(enumerate(known))
        for place in range(len(self.known), len(chain.layers) - 1):
            time_limit.raise_if_expired()
            if place < 2:
                (self._first_layer, self._second_layer)[place]()
            else:
                self._deeper_layer(place, closely=bool(known))

    def _begin(self, chain: Chain, region: Budget, centre: Centre, inner: Tensor) -> None:
        self.chain, self.region, self.centre, self.inner = chain, region, centre, inner.clone()
        self.widths = [len(layer.bias) for layer in chain.layers]
        self.known = dict[int, ShiftedRelaxation]()
        self._list_pairs()
        self._sort_groups()

    def closer(self, nodes: Tensor) -> "Pass":
        """Return a pass over some of these regions in which the deeper layers are bounded by backward
        passes.
        """
        known = [batch.take(self.known[place], nodes) for place in (0, 1)]
        return Pass(
            self.chain, batch.take(self.region, nodes), self.centre.take(nodes), self.inner[nodes], known
        )

    # ---- units that may change

    def _list_pairs(self) -> None:
        w, region = self.chain.windows, self.region
        node, unit = (region.labels >= 0).nonzero(as_tuple=True)
        group = node * region.budgets.shape[1] + region.labels[node, unit]
        order = w.kind[unit].argsort(stable=True)
        self.node, self.unit, self.group, self.rank = (
            node[order],
            unit[order],
            group[order],
            _rank(group)[order],
        )
        self.cuts = w.kind[self.unit].bincount(minlength=len(w.second)).tolist()
        self.first = w.first[self.unit]  # (pairs, elements, near)
        # Indices into padded values, flattened.
        self.near = self.node[:, None] * (self.widths[0] + 1) + w.near[self.unit]
        self.far = self.node[:, None] * (self.widths[1] + 1) + w.far[self.unit]
        places = self.node[:, None], w.elements[self.unit]
        x = self.centre.x[places]
        self.down, self.up = (end.flatten(1)[places].double() - x for end in (region.lower, region.upper))
        furthest = torch.maximum(self.down.abs(), self.up.abs()).amax(1)
        self.span = furthest.new_zeros(len(region)).scatter_reduce(0, self.node, furthest, "amax")

    def _sort_groups(self) -> None:
        """Sort the pairs by their group: the whole group may change, one unit of it may change, or a number
        between.
        """
        budgets = self.region.budgets
        size = self.group.bincount(minlength=budgets.numel())[self.group]
        budget = budgets.flatten()[self.group]
        self.whole = (budget >= size).nonzero().flatten()
        self.single = ((budget == 1) & (size > 1)).nonzero().flatten()
        self.several = ((budget > 1) & (budget < size)).nonzero().flatten()

    def _sum(self, values: Tensor, places: Tensor, width: int) -> Tensor:
        """Return (batch, width): for each region the smallest sum of the units' effects that its budgets
        allow.

        Args:
            values: (pairs, k), the effects of each unit.
            places: (pairs, k), the index of each effect in (batch, width), flattened.
        """
        out = values.new_zeros((len(self.region), width))
        if len(self.whole):
            _add(out, places[self.whole], values[self.whole])
        if len(self.single):
            groups = self.region.budgets.shape[1]
            best = values.new_zeros((len(self.region) * groups, width))
            shift = (self.group - self.node)[self.single, None] * width
            best.view(-1).scatter_reduce_(
                0, (places[self.single] + shift).flatten(), values[self.single].flatten(), "amin"
            )
            out += best.reshape(len(self.region), groups, width).sum(1)
        if len(self.several):
            out += self._best_of_several(
                values[self.several], places[self.several] - self.node[self.several, None] * width, width
            )
        return out

    def _best_of_several(self, values: Tensor, columns: Tensor, width: int) -> Tensor:
        place, rows, taken, node = self._several
        table = values.new_zeros((len(taken), rows, width))
        # topk treats NaN as larger than all numbers and would drop it.
        values = torch.where(values.isnan(), -torch.inf, values)
        table.view(-1).scatter_(0, (place[:, None] * width + columns).flatten(), values.flatten())
        best = table.topk(taken.shape[1], dim=1, largest=False).values
        return values.new_zeros((len(self.region), width)).index_add(
            0, node, (best * taken[..., None]).sum(1)
        )

    @cached_property
    def _several(self) -> tuple[Tensor, int, Tensor, Tensor]:
        """Index tables of the groups in which several, but not all units may change.

        Returns the row of each pair in a table of all units of these groups, the number of rows of a group,
        (groups, most units) bool which of the smallest values of a group count, and the region of each group.
        """
        which, place = self.group[self.several].unique(return_inverse=True)
        rank, budgets = self.rank[self.several], self.region.budgets.flatten()[which]
        rows, most = int(rank.max()) + 1, int(budgets.max())
        taken = torch.arange(most, device=place.device) < budgets[:, None]
        return place * rows + rank, rows, taken, which // self.region.budgets.shape[1]

    # ---- layer by layer

    def _first_layer(self) -> None:
        width = self.widths[0]
        down, up = self.first * self.down[..., None], self.first * self.up[..., None]
        least = self._sum(torch.minimum(down, up).sum(1), self.near, width + 1)[:, :width]
        most = -self._sum(-torch.maximum(down, up).sum(1), self.near, width + 1)[:, :width]
        moving = torch.zeros((len(self.region), width + 1), dtype=torch.bool, device=least.device)
        moving.view(-1)[self.near] = True
        self._know(0, least, most, self.chain.layers[0].size.sum(1) * self.span[:, None], moving[:, :width])

    def _second_layer(self) -> None:
        """Propagate each unit's change through the linear bounds of the first activation; their offsets are
        added once for every value.
        """
        width, moved = self.widths[1], self.known[0]
        values = moved.slope, moved.bend, moved.offset, moved.gap, moved.middle, moved.half
        slope, bend, offset, gap, centre, half = (_pad_column(v).view(-1)[self.near] for v in values)
        owns = _owners(self.node, self.chain.windows.near[self.unit], len(self.region), self.widths[0])
        middle, spread = (
            self._onwards(self.first * slope[:, None]),
            self._onwards(self.first * bend[:, None], size=True),
        )
        fixed = self._onwards(torch.stack([offset, centre], dim=1) * owns[:, None])
        apart = self._onwards(torch.stack([gap, -half], dim=1) * owns[:, None], size=True)
        lower, upper, down, up = middle + spread, middle - spread, self.down[..., None], self.up[..., None]
        least = self._sum(torch.minimum(lower * down, lower * up).sum(1), self.far, width + 1)
        most = -self._sum(-torch.maximum(upper * down, upper * up).sum(1), self.far, width + 1)
        lowest, highest = torch.zeros_like(least), torch.zeros_like(most)
        for k, (low, high) in enumerate(((least, most), (lowest, highest))):
            _add(low, self.far, fixed[:, k] + apart[:, k])
            _add(high, self.far, fixed[:, k] - apart[:, k])
        least, most = torch.maximum(least, lowest), torch.minimum(most, highest)
        moving = torch.zeros_like(least, dtype=torch.bool)
        moving.view(-1)[self.far] = True
        mass = self.chain.layers[1].size.sum(1) * moved.mass.amax(1, keepdim=True)
        self._know(1, least[:, :width], most[:, :width], mass, moving[:, :width])

    def _onwards(self, values: Tensor, *, size: bool = False) -> Tensor:
        """Map (pairs, k, near) to (pairs, k, far) by the weights of the second layer or by their absolute
        values.
        """
        kinds = zip(values.split(self.cuts), self.chain.windows.second, strict=True)
        return torch.cat([part @ (weight.abs() if size else weight) for part, weight in kinds])

    def _deeper_layer(self, place: int, *, closely: bool) -> None:
        """Bound a deeper layer: by intervals and known bounds first, then by a backward pass for every
        pre-activation that could be tightened.

        The bound on the opposite side of zero from the centre is computed first: if it shows that the neuron
        is stable, the other one is not needed.
        """
        layer, before, terms = (
            self.chain.layers[place],
            self.known[place - 1],
            self.chain.terms,
        )
        assert layer.function is not None
        mass = before.mass @ layer.size.t()
        missed = charge(mass, LAYER_CHAIN, terms)
        middle, half = before.middle @ layer.weight.t(), before.half @ layer.size.t() + missed
        first = sum(self.chain.inner[: place - 2])
        known = self.inner[..., first : first + len(layer.bias)]
        least, most = (
            torch.maximum(middle - half, known[:, 0].double()),
            torch.minimum(middle + half, known[:, 1].double()),
        )
        z, slack = self.centre.before[place], self.centre.before_error[place] + missed
        towards = torch.where(z > 0, 1.0, -1.0).double()
        for turn in (1, -1) if closely else ():
            needed = layer.function.can_tighten((z + least - slack,), (z + most + slack,))
            count = int(needed.sum(1).max())
            if count == 0:
                break
            chosen = needed.to(torch.uint8).topk(count, dim=1).indices
            side = turn * towards.gather(1, chosen)
            found, _ = self._walk(place - 1, layer.weight[chosen] * side[..., None])
            found = found - missed.gather(1, chosen)
            low, high = least.gather(1, chosen), most.gather(1, chosen)
            least = least.scatter(1, chosen, torch.where(side > 0, torch.maximum(found, low), low))
            most = most.scatter(1, chosen, torch.where(side < 0, torch.minimum(-found, high), high))
        known[:, 0], known[:, 1] = round_outwards(least, -1), round_outwards(most, 1)
        self._know(place, least, most, mass, mass > 0)

    def _know(self, place: int, least: Tensor, most: Tensor, mass: Tensor, moving: Tensor) -> None:
        """Store the linear bounds of an activation, given bounds and mass of dz, (batch, n) each."""
        function, terms, c = self.chain.layers[place].function, self.chain.terms, self.centre
        assert function is not None
        z, error, r, after = c.before[place], c.before_error[place], c.after[place], c.after_error[place]
        slack = error + charge(mass + z.abs(), LAYER_CHAIN, terms) + TINY
        lower, upper = z + least - slack, z + most + slack
        low, low_offset, up, up_offset = _linear_bounds(function, lower, upper)
        steep = torch.maximum(low.abs(), up.abs())
        size = steep * z.abs() + low_offset.abs() + up_offset.abs() + r.abs()
        missed = steep * error + after + charge(size, CHANGE_INTERCEPTS) + TINY
        low_offset, up_offset = low * z + low_offset - r - missed, up * z + up_offset - r + missed
        weight = steep * (mass + slack) + low_offset.abs() + up_offset.abs()
        gap = (low_offset - up_offset) / 2 - charge(weight, LAYER_CHAIN, terms)
        lowest, highest = _value_range(function, lower, upper)
        size = lowest.abs() + highest.abs() + r.abs()
        middle = (lowest + highest) / 2 - r
        half = (highest - lowest) / 2 + after + charge(size, CHANGE_INTERCEPTS)
        values = (low + up) / 2, (low - up) / 2, (low_offset + up_offset) / 2, gap, weight, middle, half
        self.known[place] = ShiftedRelaxation(*(torch.where(moving, v, 0) for v in values))

    # ---- the backward pass

    def bound(self, rows: Tensor, offset: Tensor) -> tuple[Tensor, Tensor]:
        """Return lower bounds (batch, rows) over the region and the coefficients (batch, input) of the linear
        function behind the smallest one.
        """
        last = self.chain.layers[-1]
        z, error = self.centre.before[-1][..., None], self.centre.before_error[-1][..., None]
        mass = (self.known[len(self.chain.layers) - 2].mass @ last.size.t())[..., None]
        change, slopes = self._walk(len(self.chain.layers) - 2, rows @ last.weight)
        still = (rows @ z).squeeze(-1)
        within = error + charge(z.abs() + 2 * mass, LAYER_CHAIN, self.chain.terms)
        missed = (rows.abs() @ within).squeeze(-1)
        size = still.abs() + change.abs() + offset.abs()
        least = still + change + offset - missed - charge(size, CHANGE_BOUND)
        worst = torch.nan_to_num(least, nan=-torch.inf).argmin(1)[self.node]
        flat = rows.new_zeros(self.centre.x.shape)
        pairs = torch.arange(len(worst), device=worst.device)
        flat[self.node[:, None], self.chain.windows.elements[self.unit]] = slopes[pairs, worst]
        return least, flat

    def _walk(self, place: int, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Lower-bound rows . dr by a backward pass from layer `place`.

        Args:
            rows: (batch, rows, values of the layer).

        Returns:
            The bounds (batch, rows) and the coefficients (pairs, rows, elements) of the linear function
                below.
        """
        constant = rows.new_zeros(rows.shape[:2])
        for k in range(place, 1, -1):
            time_limit.raise_if_expired()
            constant, rows = apply_linear_bounds(constant, rows, self.known[k])
            rows = rows @ self.chain.layers[k].weight
        if place and self._local:
            return self._gain(*self._back_by_group(constant, rows))
        for k in range(min(place, 1), -1, -1):
            constant, rows = apply_linear_bounds(constant, rows, self.known[k])
            rows = rows @ self.chain.layers[k].weight
        elements = self.chain.windows.elements[self.unit]
        return self._gain(constant, rows.transpose(1, 2)[self.node[:, None], elements].transpose(1, 2))

    @cached_property
    def _local(self) -> bool:
        """Whether a backward pass group by group takes less work than one through whole layers.

        On a GPU it never does: multiplying whole layers takes less time than listing what the groups touch.
        """
        if self.region.labels.is_cuda:
            return False
        whole = sum(layer.weight.numel() for layer in self.chain.layers[:2])
        fewest = len(self.group.unique()) * self.chain.windows.second[0].numel()
        largest = int(self.rank.max()) if len(self.rank) else len(self.chain.windows.elements)
        if 4 * largest >= len(self.chain.windows.elements) or 2 * fewest >= whole * len(self.region):
            return False
        parts = sum(
            count * p.second.numel()
            for count, p in zip(self.patches.counts, self.patches.patches, strict=True)
        )
        return 2 * parts < whole * len(self.region)

    @cached_property
    def patches(self) -> GroupPatches:
        groups, item = self.group.unique(return_inverse=True)
        member = torch.zeros((len(groups), self.region.labels.shape[1]), dtype=torch.bool, device=item.device)
        member[item, self.unit] = True
        each = self.chain.patches(member)
        kinds = {id(patch): (k, patch) for k, patch in enumerate(dict.fromkeys(each))}
        kind = torch.tensor([kinds[id(patch)][0] for patch in each], device=item.device)
        order = kind.argsort(stable=True)
        node, each = (groups // self.region.budgets.shape[1])[order], [each[k] for k in order.tolist()]
        near, far = (
            torch.nn.utils.rnn.pad_sequence(lists, batch_first=True, padding_value=width)
            for lists, width in zip(
                ([p.near for p in each], [p.far for p in each]), self.widths, strict=False
            )
        )
        first = torch.zeros(
            (*near.shape, max(p.first.shape[1] for p in each)), dtype=torch.float64, device=item.device
        )
        for into, patch in zip(first, each, strict=True):
            into[: patch.first.shape[0], : patch.first.shape[1]] = patch.first
        owns = [
            _owners(node, places, len(self.region), width)
            for places, width in zip((near, far), self.widths, strict=False)
        ]
        different = [patch for _, patch in kinds.values()]
        return GroupPatches(
            node, order.argsort()[item], different, kind.bincount().tolist(), near, far, first, *owns
        )

    def _back_by_group(self, constant: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Map rows (batch, rows, values of the second layer) to constants and coefficients (pairs, rows,
        elements), patch by patch.
        """
        p = self.patches
        constant, rows = self._apply_linear_bounds_by_group(
            constant, _pick_columns(rows, p.node, p.far), self.known[1], p.far, p.owns_far
        )
        constant, rows = self._apply_linear_bounds_by_group(
            constant, p.back(rows), self.known[0], p.near, p.owns_near
        )
        slopes = rows @ p.first
        slopes = slopes.reshape(*slopes.shape[:2], -1, self.down.shape[1]).transpose(1, 2)
        return constant, slopes[p.item, self.rank]

    def _apply_linear_bounds_by_group(
        self, constant: Tensor, rows: Tensor, moved: ShiftedRelaxation, places: Tensor, owns: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Do the same as `apply_linear_bounds` for the values of each patch, (groups, rows, places)."""
        node = self.patches.node
        slope, bend, offset, gap = (
            _pad_column(v)[node[:, None], places] for v in (moved.slope, moved.bend, moved.offset, moved.gap)
        )
        size = rows.abs()
        fixed = (rows @ (offset * owns)[..., None] + size @ (gap * owns)[..., None]).squeeze(-1)
        return constant.index_add(0, node, fixed), (rows * slope[:, None]).addcmul_(size, bend[:, None])

    def _gain(self, constant: Tensor, slopes: Tensor) -> tuple[Tensor, Tensor]:
        gains = torch.minimum(slopes * self.down[:, None], slopes * self.up[:, None]).sum(-1)
        places = self.node[:, None] * gains.shape[1] + torch.arange(gains.shape[1], device=gains.device)
        return constant + self._sum(gains, places, gains.shape[1]), slopes


def _linear_bounds(
    function: Relaxation, lower: Tensor, upper: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the linear bounds of a function on [lower, upper]: slope and offset below, slope and offset
    above.
    """
    sides = function.sides()
    if sides is None or (sides.at, sides.value, sides.above) != (0, 0, 1) or sides.below > 1:
        found = planes(function, (lower,), (upper,))
        return found.lower[0], found.lower_offset, found.upper[0], found.upper_offset
    # The function is the maximum of two lines through zero: both lie below it, and on its own side of zero
    # each equals it.
    flat = sides.below
    # torch.where of two Python numbers would return float32.
    low = torch.where(lower + upper > 0, torch.ones_like(lower), flat)
    across = ~(lower >= 0) & ~(upper <= 0)  # True also for NaN bounds, for which both comparisons are false
    up = torch.where(across, (upper - flat * lower) / (upper - lower), low)
    highest = torch.maximum(flat * lower - up * lower, upper - up * upper)
    offset = torch.where(
        across, highest + charge((upper - lower) * (1 + up.abs() + abs(flat)), CHANGE_INTERCEPTS), 0
    )
    return low, torch.zeros_like(low), up, offset


def _value_range(function: Relaxation, lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
    """Return the smallest and the largest value on [lower, upper]."""
    sides = function.sides()
    if sides is not None and min(sides.below, sides.above) >= 0:
        return function.function(lower), function.function(upper)
    return value_range(function, (lower,), (upper,))


def apply_linear_bounds(constant: Tensor, rows: Tensor, moved: ShiftedRelaxation) -> tuple[Tensor, Tensor]:
    """Substitute the linear bounds of an activation: the lower one where a coefficient is positive, the upper
    one where it is negative.
    """
    size = rows.abs()
    constant = constant + (rows @ moved.offset[..., None] + size @ moved.gap[..., None]).squeeze(-1)
    return constant, (rows * moved.slope[:, None]).addcmul_(size, moved.bend[:, None])


def _pick_columns(rows: Tensor, node: Tensor, columns: Tensor) -> Tensor:
    """Map (batch, rows, n), (k,), (k, m) to (k, rows, m): these columns of the rows of these nodes; zero for
    column n.
    """
    count, wider = rows.shape[1], _pad_column(rows)
    start = (node[:, None] * count + torch.arange(count, device=rows.device)) * wider.shape[2]
    return wider.take(start[..., None] + columns[:, None])


def _pad_column(values: Tensor) -> Tensor:
    """Append a column of zeros, which unused entries of index lists refer to."""
    return torch.nn.functional.pad(values, (0, 1))


def _rank(item: Tensor) -> Tensor:
    """Map (n,) to (n,): the number of equal entries before each entry."""
    order, count = item.argsort(stable=True), item.bincount()
    first = count.cumsum(0) - count
    return torch.empty_like(item).scatter(
        0, order, torch.arange(len(item), device=item.device) - first[item[order]]
    )


def _owners(node: Tensor, places: Tensor, nodes: int, width: int) -> Tensor:
    """Map (items,), (items, k) to (items, k) bool: of the items of a node that hold an index, the first owns
    it.
    """
    items = torch.arange(len(node), device=node.device)[:, None].expand(places.shape)
    at = (node[:, None] * (width + 1) + places).flatten()
    owner = items.new_full((nodes * (width + 1),), len(node)).scatter_reduce(0, at, items.flatten(), "amin")
    return (owner[at].reshape(places.shape) == items) & (places < width)


def _add(out: Tensor, places: Tensor, values: Tensor) -> None:
    """Compute out.flatten()[places] += values in place."""
    out.view(-1).index_add_(0, places.flatten(), values.flatten())
