"""Bounds over groups of units with budgets, for chains: by what each changed unit touches.

The engine walks back over whole layers; here the first two are asked unit by unit and group by group, inside their windows. All bounds are
about changes from the centre: what no changed unit touches does not move at all.

With z and r the true values at the centre, z = W r + b and r' = f(z), every change obeys dz = W dr and
    low dz + low_offset <= dr' <= up dz + up_offset,
the planes of f on the bounds of z, moved to the centre. A bound of rows . dr' is a walk back with these planes, as in the engine. For the
second layer this walk is one step long, and is taken for all its values at once, forwards. Rounding: docs/rounding.md.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial

import torch
from torch import Tensor

from holdfast import batch, time_limit
from holdfast.bounding.relax import Relaxation, planes, value_range
from holdfast.hamming.layer_chain import Centre, Chain, TouchedPatch
from holdfast.hamming.pixel_effects import outwards
from holdfast.memory_budget import numbers
from holdfast.region.budget import Budget
from holdfast.rounding import TINY

AT_ONCE = 2**21  # float64 numbers in the largest tensor of one pass on a CPU, whose caches like small ones
ALIVE = 24  # such tensors may be alive at once
UNIT = 2.0**-53


def bound(
    chain: Chain, region: Budget, centre: Centre, inner: Tensor, rows: Tensor, offset: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """rows (batch, rows, outputs), offset (batch, rows) -> (batch, rows) <= row . output + offset over the region; (batch, *shape) the
    slopes of the linear function behind the smallest of them; and the bounds of inner layers.

    centre  the input in which nothing has changed. Where a group may change as a whole, its units may lie away from it; elsewhere the
            centre of the region is this one.
    inner   (batch, 2, inner values) float32: how far they may change, as known from a region around this one.
    """
    least, slopes, known = torch.full_like(offset, -torch.inf), torch.zeros_like(centre.x), inner.clone()
    for part in parts_of(chain, region, rows.shape[1]):
        if time_limit.has_expired():  # nothing is known of the rest
            break
        first = partial(Pass, chain, batch.take(region, part), centre.take(part), inner[part])
        found = time_limit.in_time(partial(_bound_rows, first, rows[part], offset[part]), None)
        if found is None:
            break
        one, least[part], slopes[part] = found
        left = (~(least[part] > 0).all(1)).nonzero().flatten()
        if (
            chain.inner and len(left) and not time_limit.has_expired()
        ):  # intervals of the deeper layers were not enough
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
    """The batch in parts that one pass can hold, regions of like size together."""
    units, order = (region.labels >= 0).sum(1).sort(stable=True)
    window = max(rows, 2) * chain.windows.far.shape[1]
    least = max(len(layer.bias) for layer in chain.layers) * max(rows, region.budgets.shape[1], 4)
    at_once = numbers(order.device, AT_ONCE, ALIVE)
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
class Moved:
    """low dz + low_offset <= dr <= up dz + up_offset, as middle and half distance of slopes and of offsets; (batch, n) each."""

    slope: Tensor  # (low + up) / 2
    bend: Tensor  # (low - up) / 2
    offset: Tensor
    gap: Tensor  # half the distance of the offsets, not above zero, with the price of all roundings
    mass: Tensor  # of dr
    middle: Tensor  # dr is within `half` of this
    half: Tensor


@dataclass(frozen=True, eq=False)
class GroupPatches:
    """The groups of a pass, equal ones next to each other. Lists are padded with the number of values."""

    node: Tensor  # (groups,): the region it belongs to
    item: Tensor  # (pairs,): the group of each pair
    patches: list[TouchedPatch]  # the different ones
    counts: list[int]  # how many groups have each of them
    near: Tensor  # (groups, a)
    far: Tensor  # (groups, b)
    first: Tensor  # (groups, a, elements)
    owns_near: Tensor  # (groups, a) bool: patches overlap; one of them stands for a value
    owns_far: Tensor

    def back(self, values: Tensor) -> Tensor:
        """(groups, k, far) -> (groups, k, near): through the weights of the second layer."""
        out = values.new_zeros((*values.shape[:2], self.near.shape[1]))
        for part, into, patch in zip(
            values.split(self.counts), out.split(self.counts), self.patches, strict=True
        ):
            into[..., : len(patch.near)] = part[..., : len(patch.far)] @ patch.second
        return out


class Pass:
    """One batch of regions: which units may change in which, and what is known of every layer so far.

    A pair is one region and one unit that may change in it. Pairs whose windows are of one kind lie next to each other.
    """

    def __init__(
        self, chain: Chain, region: Budget, centre: Centre, inner: Tensor, known: Sequence[Moved] = ()
    ) -> None:
        """known: of the first two layers; with it the deeper ones are looked at more closely."""
        self._begin(chain, region, centre, inner)
        self.known = dict(enumerate(known))
        for place in range(len(self.known), len(chain.layers) - 1):
            time_limit.check()
            if place < 2:
                (self._first_layer, self._second_layer)[place]()
            else:
                self._deeper_layer(place, closely=bool(known))

    def _begin(self, chain: Chain, region: Budget, centre: Centre, inner: Tensor) -> None:
        self.chain, self.region, self.centre, self.inner = chain, region, centre, inner.clone()
        self.widths = [len(layer.bias) for layer in chain.layers]
        self.known = dict[int, Moved]()
        self._list_pairs()
        self._sort_groups()

    def closer(self, nodes: Tensor) -> "Pass":
        """Some of these regions again, with walks back from the deeper layers."""
        known = [batch.take(self.known[place], nodes) for place in (0, 1)]
        return Pass(
            self.chain, batch.take(self.region, nodes), self.centre.take(nodes), self.inner[nodes], known
        )

    # ---- which units may change

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
        self.near = (
            self.node[:, None] * (self.widths[0] + 1) + w.near[self.unit]
        )  # places in padded values, flattened
        self.far = self.node[:, None] * (self.widths[1] + 1) + w.far[self.unit]
        places = self.node[:, None], w.elements[self.unit]
        x = self.centre.x[places]
        self.down, self.up = (end.flatten(1)[places].double() - x for end in (region.lower, region.upper))
        furthest = torch.maximum(self.down.abs(), self.up.abs()).amax(1)
        self.span = furthest.new_zeros(len(region)).scatter_reduce(0, self.node, furthest, "amax")

    def _sort_groups(self) -> None:
        """The pairs of groups that may change as a whole, of groups of which one unit may, and of those between."""
        budgets = self.region.budgets
        size = self.group.bincount(minlength=budgets.numel())[self.group]
        budget = budgets.flatten()[self.group]
        self.whole = (budget >= size).nonzero().flatten()
        self.single = ((budget == 1) & (size > 1)).nonzero().flatten()
        self.several = ((budget > 1) & (budget < size)).nonzero().flatten()

    def _sum(self, values: Tensor, places: Tensor, width: int) -> Tensor:
        """What each unit may add, (pairs, k) -> (batch, width): for each region the smallest sum that its budgets allow.

        places (pairs, k): where in (batch, width), flattened, each value belongs.
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
        # To topk what is no number is larger than all others, and would be left out.
        values = torch.where(values.isnan(), -torch.inf, values)
        table.view(-1).scatter_(0, (place[:, None] * width + columns).flatten(), values.flatten())
        best = table.topk(taken.shape[1], dim=1, largest=False).values
        return values.new_zeros((len(self.region), width)).index_add(
            0, node, (best * taken[..., None]).sum(1)
        )

    @cached_property
    def _several(self) -> tuple[Tensor, int, Tensor, Tensor]:
        """Of the groups of which several units may change: the row of each pair in a table of all their units, how many rows a group has
        there, (groups, most units) bool which of its smallest count, and the region of each."""
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
        """A change of a unit goes through the planes of the first function; their offsets are added once for every value."""
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
        """(pairs, k, near) -> (pairs, k, far): through the weights of the second layer, or their size."""
        kinds = zip(values.split(self.cuts), self.chain.windows.second, strict=True)
        return torch.cat([part @ (weight.abs() if size else weight) for part, weight in kinds])

    def _deeper_layer(self, place: int, *, closely: bool) -> None:
        """Intervals and what was known first; then a walk back for every value that its function could use more tightly. First for the end
        that lies across zero from the centre: where that settles it, the other need not be asked."""
        layer, before, price = self.chain.layers[place], self.known[place - 1], self.chain.price
        assert layer.function is not None
        mass = before.mass @ layer.size.t()
        middle, half = before.middle @ layer.weight.t(), before.half @ layer.size.t() + price * mass
        first = sum(self.chain.inner[: place - 2])
        known = self.inner[..., first : first + len(layer.bias)]
        least, most = (
            torch.maximum(middle - half, known[:, 0].double()),
            torch.minimum(middle + half, known[:, 1].double()),
        )
        z, room = self.centre.before[place], self.centre.before_error[place] + price * mass
        towards = torch.where(z > 0, 1.0, -1.0).double()
        for turn in (1, -1) if closely else ():
            needed = layer.function.can_tighten((z + least - room,), (z + most + room,))
            count = int(needed.sum(1).max())
            if count == 0:
                break
            chosen = needed.to(torch.uint8).topk(count, dim=1).indices
            side = turn * towards.gather(1, chosen)
            found = self._walk(place - 1, layer.weight[chosen] * side[..., None])[0] - price * mass.gather(
                1, chosen
            )
            low, high = least.gather(1, chosen), most.gather(1, chosen)
            least = least.scatter(1, chosen, torch.where(side > 0, torch.maximum(found, low), low))
            most = most.scatter(1, chosen, torch.where(side < 0, torch.minimum(-found, high), high))
        known[:, 0], known[:, 1] = outwards(least, -1), outwards(most, 1)
        self._know(place, least, most, mass, mass > 0)

    def _know(self, place: int, least: Tensor, most: Tensor, mass: Tensor, moving: Tensor) -> None:
        """Bounds and mass of dz, (batch, n) each -> the planes of the function there."""
        function, price, c = self.chain.layers[place].function, self.chain.price, self.centre
        assert function is not None
        z, error, r, after = c.before[place], c.before_error[place], c.after[place], c.after_error[place]
        room = error + price * (mass + z.abs()) + TINY
        lower, upper = z + least - room, z + most + room
        low, low_offset, up, up_offset = _planes(function, lower, upper)
        steep = torch.maximum(low.abs(), up.abs())
        missed = (
            steep * error
            + after
            + 8 * UNIT * (steep * z.abs() + low_offset.abs() + up_offset.abs() + r.abs())
            + TINY
        )
        low_offset, up_offset = low * z + low_offset - r - missed, up * z + up_offset - r + missed
        weight = steep * (mass + room) + low_offset.abs() + up_offset.abs()
        gap = (low_offset - up_offset) / 2 - price * weight
        lowest, highest = _range(function, lower, upper)
        middle, half = (
            (lowest + highest) / 2 - r,
            (highest - lowest) / 2 + after + 8 * UNIT * (lowest.abs() + highest.abs() + r.abs()),
        )
        values = (low + up) / 2, (low - up) / 2, (low_offset + up_offset) / 2, gap, weight, middle, half
        self.known[place] = Moved(*(torch.where(moving, v, 0) for v in values))

    # ---- the walk back

    def bound(self, rows: Tensor, offset: Tensor) -> tuple[Tensor, Tensor]:
        """-> (batch, rows): nothing in the region lies below; (batch, input): slopes of the linear function behind the smallest."""
        last, price = self.chain.layers[-1], self.chain.price
        z, error = self.centre.before[-1][..., None], self.centre.before_error[-1][..., None]
        mass = (self.known[len(self.chain.layers) - 2].mass @ last.size.t())[..., None]
        change, slopes = self._walk(len(self.chain.layers) - 2, rows @ last.weight)
        still = (rows @ z).squeeze(-1)
        missed = (rows.abs() @ (error + price * (z.abs() + 2 * mass))).squeeze(-1)
        least = (
            still + change + offset - missed - 16 * UNIT * (still.abs() + change.abs() + offset.abs()) - TINY
        )
        worst = torch.nan_to_num(least, nan=-torch.inf).argmin(1)[self.node]
        flat = rows.new_zeros(self.centre.x.shape)
        pairs = torch.arange(len(worst), device=worst.device)
        flat[self.node[:, None], self.chain.windows.elements[self.unit]] = slopes[pairs, worst]
        return least, flat

    def _walk(self, place: int, rows: Tensor) -> tuple[Tensor, Tensor]:
        """rows (batch, rows, values of layer `place`) -> (batch, rows) <= rows . dr, and the slopes (pairs, rows, elements) of the linear
        function below it."""
        constant = rows.new_zeros(rows.shape[:2])
        for k in range(place, 1, -1):
            time_limit.check()
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
        """Is it less work to go back group by group than through whole layers? Graphics cards multiply whole layers in less time than it
        takes to list what the groups touch."""
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
        """rows (batch, rows, values of the second layer), for each group in its patch -> constants, slopes (pairs, rows, elements)."""
        p = self.patches
        constant, rows = self._bent_by_group(
            constant, _pick_columns(rows, p.node, p.far), self.known[1], p.far, p.owns_far
        )
        constant, rows = self._bent_by_group(constant, p.back(rows), self.known[0], p.near, p.owns_near)
        slopes = rows @ p.first
        slopes = slopes.reshape(*slopes.shape[:2], -1, self.down.shape[1]).transpose(1, 2)
        return constant, slopes[p.item, self.rank]

    def _bent_by_group(
        self, constant: Tensor, rows: Tensor, moved: Moved, places: Tensor, owns: Tensor
    ) -> tuple[Tensor, Tensor]:
        """As bent, for the values of each patch, (groups, rows, places)."""
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


def _planes(function: Relaxation, lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Slope and offset below, slope and offset above."""
    sides = function.sides()
    if sides is None or (sides.at, sides.value, sides.above) != (0, 0, 1) or sides.below > 1:
        found = planes(function, (lower,), (upper,))
        return found.lower[0], found.lower_offset, found.upper[0], found.upper_offset
    # The larger of two lines through zero: each of them is below it, and on its own side of zero it is one of them.
    flat = sides.below
    low = torch.where(
        lower + upper > 0, torch.ones_like(lower), flat
    )  # of two plain numbers torch would make float32
    across = ~(lower >= 0) & ~(upper <= 0)  # also where an end is no number, which then none of these is
    up = torch.where(across, (upper - flat * lower) / (upper - lower), low)
    highest = torch.maximum(flat * lower - up * lower, upper - up * upper)
    offset = torch.where(across, highest + 8 * UNIT * (upper - lower) * (1 + up.abs() + abs(flat)), 0)
    return low, torch.zeros_like(low), up, offset


def _range(function: Relaxation, lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
    """The smallest and the largest value between two ends."""
    sides = function.sides()
    if sides is not None and min(sides.below, sides.above) >= 0:
        return function.function(lower), function.function(upper)
    return value_range(function, (lower,), (upper,))


def apply_linear_bounds(constant: Tensor, rows: Tensor, moved: Moved) -> tuple[Tensor, Tensor]:
    """Through the planes of a function: the lower one where a coefficient is positive, the upper one where it is negative."""
    size = rows.abs()
    constant = constant + (rows @ moved.offset[..., None] + size @ moved.gap[..., None]).squeeze(-1)
    return constant, (rows * moved.slope[:, None]).addcmul_(size, moved.bend[:, None])


def _pick_columns(rows: Tensor, node: Tensor, columns: Tensor) -> Tensor:
    """(batch, rows, n), (k,), (k, m) -> (k, rows, m): these columns of the rows of these nodes; zero for column n."""
    count, wider = rows.shape[1], _pad_column(rows)
    start = (node[:, None] * count + torch.arange(count, device=rows.device)) * wider.shape[2]
    return wider.take(start[..., None] + columns[:, None])


def _pad_column(values: Tensor) -> Tensor:
    """One more column, of zeros, for the places of a list that are not filled."""
    return torch.nn.functional.pad(values, (0, 1))


def _rank(item: Tensor) -> Tensor:
    """(n,) -> (n,): how many equal ones come before each."""
    order, count = item.argsort(stable=True), item.bincount()
    first = count.cumsum(0) - count
    return torch.empty_like(item).scatter(
        0, order, torch.arange(len(item), device=item.device) - first[item[order]]
    )


def _owners(node: Tensor, places: Tensor, nodes: int, width: int) -> Tensor:
    """(items,), (items, k) -> (items, k) bool: the first item of a node that holds a place has it."""
    items = torch.arange(len(node), device=node.device)[:, None].expand(places.shape)
    at = (node[:, None] * (width + 1) + places).flatten()
    owner = items.new_full((nodes * (width + 1),), len(node)).scatter_reduce(0, at, items.flatten(), "amin")
    return (owner[at].reshape(places.shape) == items) & (places < width)


def _add(out: Tensor, places: Tensor, values: Tensor) -> None:
    """out.flatten()[places] += values, in place."""
    out.view(-1).index_add_(0, places.flatten(), values.flatten())
