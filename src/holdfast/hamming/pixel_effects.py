"""What every unit does when it alone changes, and what two do beyond the sum of both: tables of one input, made once for all its domains.

The first two functions are two lines that meet at zero, f(v) = v above and below * v under it, 0 <= below <= 1. A change s of an argument
z moves f by
    f(z + s) - f(z) = slope s + (1 - below) (toward - d)+,
with the slope at z, d = |z| and toward = the part of s that leads across zero. The first term adds up over several changes, the second is
what makes a change of several units more or less than the sum of their single changes:
    0 <= ... of the sum - sum of ...   is at most (1 - below) (sum of min(toward, d) - d)+, since the difference rises with each toward up
         to d and not beyond, and
    it is at least -(1 - below) min(sum of (toward - d)+, sum of what leads away from zero), since (. - d)+ of a sum of numbers >= 0 is at
         least the sum, and falls no faster than its argument.
With one change alone both are zero.

Values between the ends of a unit lie in cells. On each, what the two layers do is within a known distance of the straight line between its
edges.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from holdfast.hamming.layer_chain import Centre, Chain
from holdfast.rounding import TINY

CELLS = 4  # of the values of a unit
UNITS_AT_ONCE = 64
NUMBERS = 2**24  # in the tables of pairs of one input, at most


@dataclass(frozen=True, eq=False)
class Effects:
    """Lists are padded as those of the windows. Every number holds for the true network: what rounding may miss is in it."""

    edges: Tensor  # (units, cells + 1): of the values
    third: Tensor  # (units, cells + 1, n): changes of the arguments of the third function at the edges, when this unit alone changes
    missed: Tensor  # (units, cells, n): the truth is within this of the straight line between
    lowest: Tensor  # (units, n), at most zero: no change is below
    highest: Tensor  # (units, n)
    reach: Tensor  # (units, far): of the arguments of the second function, min(toward, d) at most
    over: Tensor  # (units, far): (toward - d)+ at most
    away: Tensor  # (units, far): what leads away from zero, at most
    neighbour: Tensor  # (units, most): units that touch a value of the first layer together with this one, padded with their number
    pair: Tensor  # (units, most): the row of both in the tables of the next
    together: "Meetings"

    @property
    def numbers(self) -> int:
        """Of float64, in all tables when those of the pairs are made too."""
        own = (
            self.edges,
            self.third,
            self.missed,
            self.lowest,
            self.highest,
            self.reach,
            self.over,
            self.away,
            self.neighbour,
            self.pair,
        )
        return sum(v.numel() for v in own) + self.together.numbers


def has_effects(chain: Chain) -> bool:
    """Two functions of two lines that meet at zero, another one behind them, and units of one number each."""
    if len(chain.layers) < 4 or chain.windows.elements.shape[1] > 1:
        return False
    sides = [layer.function.sides() if layer.function is not None else None for layer in chain.layers[:2]]
    return all(s is not None and (s.at, s.value, s.above) == (0, 0, 1) and 0 <= s.below <= 1 for s in sides)


def effects_of(chain: Chain, centre: Centre, lower: Tensor, upper: Tensor) -> Effects | None:
    """Of one input, a batch of one; lower and upper (units,): what a changed unit may be. None: too many units meet."""
    first, second = (_Kink.of(chain, centre, place) for place in (0, 1))
    neighbours = _neighbours(chain)
    if neighbours is None:
        return None
    share = torch.linspace(0, 1, CELLS + 1, dtype=torch.float64, device=lower.device)
    edges = torch.where(share < 1, lower[:, None] + share * (upper - lower)[:, None], upper[:, None])
    move = edges - centre.x[0, chain.windows.elements]
    parts = torch.arange(len(edges), device=edges.device).split(UNITS_AT_ONCE)
    tables = [
        torch.cat(each)
        for each in zip(*(_alone(chain, first, second, units, move[units]) for units in parts), strict=True)
    ]
    neighbour, pair, one, other = neighbours
    third, missed, lowest, highest, reach, over, away = tables
    together = Meetings(chain, first, one, other, move)
    return Effects(edges, third, missed, lowest, highest, reach, over, away, neighbour, pair, together)


@dataclass(frozen=True, eq=False)
class _Kink:
    """The arguments of a function at the centre, padded with one more."""

    z: Tensor  # (n + 1,)
    room: Tensor  # (n + 1,): they may be off by this
    total: Tensor  # (n + 1,): sum of the sizes of the weights before
    below: float
    price: float

    @staticmethod
    def of(chain: Chain, centre: Centre, place: int) -> "_Kink":
        layer = chain.layers[place]
        assert layer.function is not None
        sides = layer.function.sides()
        assert sides is not None
        values = centre.before[place][0], centre.before_error[place][0], layer.size.sum(1)
        z, room, total = (torch.nn.functional.pad(v, (0, 1)) for v in values)
        return _Kink(z, room, total, sides.below, chain.price)

    def rounding_error(self, places: Tensor, most: Tensor) -> Tensor:
        """How far what is computed here of changes up to `most` may be from the truth, (units, 1) -> (units, k); 0 where none is."""
        z = self.z[places]
        error = self.room[places] + self.price * (z.abs() + self.total[places] * most) + TINY
        return torch.where(places < len(self.z) - 1, error, 0)

    def toward(self, places: Tensor, change: Tensor) -> Tensor:
        return torch.where(self.z[places] > 0, -change, change)

    def value_change(self, places: Tensor, change: Tensor) -> Tensor:
        """places (units, k), change (units, cells + 1, k) -> of the values."""
        places = places[:, None]
        z = self.z[places]
        slope = torch.where(
            z > 0, torch.ones_like(z), self.below
        )  # of two plain numbers torch would make float32
        return slope * change + (1 - self.below) * (self.toward(places, change) - z.abs()).clamp_min(0)

    def bulge(self, places: Tensor, change: Tensor) -> Tensor:
        """How far the function is below its chord in each cell, at most."""
        ends = self.toward(places[:, None], change) - self.z[places].abs()[:, None]
        over = torch.maximum(ends[:, 1:], ends[:, :-1]).clamp_min(0)
        under = (-torch.minimum(ends[:, 1:], ends[:, :-1])).clamp_min(0)
        return (
            (1 - self.below) * over * (under / (over + under).clamp_min(TINY))
        )  # a product of both might underflow

    def parts(self, places: Tensor, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Of changes between two ends, (units, k) each: min(toward, d), (toward - d)+ and what leads away, at most."""
        up, d = self.z[places] > 0, self.z[places].abs()
        toward, away = torch.where(up, -low, high).clamp_min(0), torch.where(up, high, -low).clamp_min(0)
        return torch.minimum(toward, d), (toward - d).clamp_min(0), away


def _alone(chain: Chain, first: _Kink, second: _Kink, units: Tensor, move: Tensor) -> tuple[Tensor, ...]:
    """units (k,), move (k, cells + 1) -> the fields of `Effects` from `third` to `away`, of these units."""
    w, price, layer = chain.windows, chain.price, chain.layers[2]
    near, far = w.near[units], w.far[units]
    onwards, furthest = w.second[w.kind[units]], move.abs().amax(1, keepdim=True)
    # The first layer is a straight function of the value; its function is within `down` below and `up` above of the chords.
    change = w.first[units] * move[..., None]
    value, error = first.value_change(near, change), 3 * first.rounding_error(near, furthest)
    down, up = first.bulge(near, change) + error[:, None], error[:, None].expand(-1, CELLS, -1)
    # The second: sums of these.
    change, middle, half = value @ onwards, (up - down) / 2 @ onwards, (up + down) / 2 @ onwards.abs()
    largest = value.abs().amax((1, 2))[:, None] + down.amax((1, 2))[:, None]
    error = 3 * second.rounding_error(far, largest)
    below, above = (
        (half - middle).clamp_min(0) + error[:, None],
        (half + middle).clamp_min(0) + error[:, None],
    )
    low = (torch.minimum(change[:, 1:], change[:, :-1]) - below).amin(1).clamp_max(0)
    high = (torch.maximum(change[:, 1:], change[:, :-1]) + above).amax(1).clamp_min(0)
    value, down = second.value_change(far, change), second.bulge(far, change) + below + error[:, None]
    up = above + error[:, None]
    # The third.
    weight = torch.nn.functional.pad(layer.weight, (0, 1))[:, far].permute(1, 2, 0)
    third, middle, half = value @ weight, (up - down) / 2 @ weight, (up + down) / 2 @ weight.abs()
    largest = value.abs().amax((1, 2)) + down.amax((1, 2)) + up.amax((1, 2))
    missed = middle.abs() + half + 4 * price * layer.size.sum(1) * largest[:, None, None] + TINY
    lowest = (torch.minimum(third[:, 1:], third[:, :-1]) - missed).amin(1).clamp_max(0)
    highest = (torch.maximum(third[:, 1:], third[:, :-1]) + missed).amax(1).clamp_min(0)
    return third, missed, lowest, highest, *second.parts(far, low, high)


# ---- two units that meet


def _neighbours(chain: Chain) -> tuple[Tensor, Tensor, Tensor, Tensor] | None:
    """-> (units, most) the neighbours of each, and the number of the pair; (pairs,) twice both units of it, the first before the other."""
    w = chain.windows
    units, width = len(w.near), len(chain.layers[0].bias)
    touches = torch.zeros((units, width + 1), device=w.near.device).scatter(1, w.near, 1.0)[:, :width]
    meet = touches @ touches.t() > 0
    one, other = meet.triu(1).nonzero(as_tuple=True)
    if 2 * len(one) * w.far.shape[1] > NUMBERS:
        return None
    number = torch.full((units, units), -1, device=meet.device).index_put(
        (one, other), torch.arange(len(one), device=meet.device)
    )
    found, places = (number >= 0).to(torch.uint8).sort(dim=1, descending=True, stable=True)
    most = max(1, int(found.sum(1).max()))
    places, found = places[:, :most], found[:, :most] > 0
    return torch.where(found, places, units), torch.where(found, number.gather(1, places), 0), one, other


@dataclass(eq=False)
class Meetings:
    """What two units that touch values of the first layer together change in the second beyond the sum of both; for changes of which at
    most so many touch one value. Of a sum over r units, with x the sum of two of their min(toward, d),
        (sum - d)+ <= sum over pairs of (x - 2 d / r)+ / (r - 1),
    since every unit is in r - 1 pairs; and min(sum of over, sum of away) <= sum over pairs of min(over, away)."""

    chain: Chain
    first: _Kink
    one: Tensor  # (pairs,)
    other: Tensor  # (pairs,)
    move: Tensor  # (units, cells + 1)
    known: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)

    def table(self, most: int) -> tuple[Tensor, Tensor]:
        """(pairs, far of the first of both) float32, from and to; for values touched by so many units at most."""
        if most not in self.known:
            self.known[most] = self._build(most)
        return self.known[most]

    @property
    def numbers(self) -> int:
        """Of float64, of the tables for two units, three and four."""
        return 3 * len(self.one) * self.chain.windows.far.shape[1]

    def _build(self, most: int) -> tuple[Tensor, Tensor]:
        w = self.chain.windows
        least, largest = (torch.zeros((len(self.one), w.far.shape[1]), device=w.far.device) for _ in range(2))
        kinds, total = w.kind[self.one], self.chain.layers[1].size.sum(1).max()
        for kind in kinds.unique().tolist():
            onwards = w.second[kind]
            for chosen in (kinds == kind).nonzero().flatten().split(16 * UNITS_AT_ONCE):
                down, up = self._first(chosen, most)
                middle, half = (up - down) / 2 @ onwards, (up + down) / 2 @ onwards.abs()
                half = half + 4 * self.chain.price * total * (up + down).amax(1, keepdim=True) + TINY
                least[chosen], largest[chosen] = outwards(middle - half, -1), outwards(middle + half, 1)
        return least, largest

    def _first(self, chosen: Tensor, most: int) -> tuple[Tensor, Tensor]:
        """-> (chosen pairs, near of the first of both): how far below and above the sum of both."""
        w, first, both = self.chain.windows, self.first, (self.one[chosen], self.other[chosen])
        near, low, high = w.near[both[0]], self.move.amin(1), self.move.amax(1)
        weight, size = (
            torch.nn.functional.pad(m, (0, 0, 0, 1))
            for m in (self.chain.layers[0].weight, self.chain.layers[0].size)
        )
        weights, sizes = ([matrix[near, w.elements[unit]] for unit in both] for matrix in (weight, size))
        ends = [
            (own * low[unit, None], own * high[unit, None]) for own, unit in zip(weights, both, strict=True)
        ]
        (reach, over, away), (others_reach, others_over, others_away) = (
            first.parts(near, torch.minimum(*pair), torch.maximum(*pair)) for pair in ends
        )
        furthest = torch.maximum(*(torch.maximum(high[unit], -low[unit]) for unit in both))[:, None]
        error = 2 * most * first.rounding_error(near, furthest)
        d, both_reach = first.z[near].abs(), reach + others_reach
        beyond = torch.stack(
            [(both_reach - 2 * d / r).clamp_min(0) / (r - 1) for r in range(2, most + 1)]
        ).amax(0)
        crossed = torch.maximum(torch.minimum(over, others_away), torch.minimum(others_over, away))
        meet = (sizes[0] != 0) & (sizes[1] != 0)
        up, down = ((1 - first.below) * part + error for part in (beyond, crossed))
        return torch.where(meet, down, 0), torch.where(meet, up, 0)


def outwards(values: Tensor, side: int) -> Tensor:
    """In float32, rounded down or up."""
    near = values.float()
    return torch.nextafter(near, torch.full_like(near, side * torch.inf))
