"""Tables of the effect of every single unit, and of the interaction of pairs of units beyond the sum of their
effects (norm 0).

The tables belong to one input and serve all subproblems around it.

Statement. The tables bound f(z + sum of s_i) - f(z) - sum over i of (f(z + s_i) - f(z)), as follows.

Assumptions. Each of the first two layers ends in f(v) = v for v >= 0 and f(v) = b v for v < 0, with 0 <= b
<= 1 (`below` in the code; b = 0 for ReLU). Let z be a pre-activation at the centre, d = |z|, and m the
slope of f at z (m = 1 if z > 0, else b). When unit i changes, the pre-activation moves by s_i. Let t_i =
-s_i if z > 0 and t_i = s_i otherwise: the component of s_i towards zero. With x+ = max(x, 0) define

    reach_i = min(t_i+, d),   over_i = (t_i - d)+,   away_i = (-t_i)+.

One unit changes:

    f(z + s) - f(z) = m s + (1 - b) (t - d)+.

Several units change: the terms m s_i add up, so the interaction, that is the joint effect minus the sum of
the single effects, is

    I = (1 - b) ((sum t_i - d)+ - sum (t_i - d)+),

and it satisfies

    -(1 - b) min(sum over_i, sum away_i)  <=  I  <=  (1 - b) (sum reach_i - d)+.

Proof of the upper bound: (sum t_i - d)+ - sum (t_i - d)+ does not decrease in t_i up to t_i = d and does not
increase beyond it, so t_i may be replaced by min(t_i, d) <= reach_i; the second sum is then zero. Proof of
the lower bound: (sum t_i - d)+ >= 0 gives -sum over_i. Moreover (. - d)+ falls no faster than its argument
and is superadditive on numbers >= 0, so (sum t_i - d)+ >= (sum t_i+ - d)+ - sum away_i >= sum over_i - sum
away_i. If a single unit changes, both bounds are zero.

The range of values of a unit is divided into cells. In each cell the effect of the unit differs from the
linear interpolation between its values at the edges of the cell by at most a stored number (`missed`).

Reference: the question (the maximal safe radius in the Hamming distance) is that of W. Ruan et al., Global robustness
evaluation of deep neural networks with provable guarantees for the Hamming distance, 2019; these bounds are
not from that paper.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from holdfast.derivations import (
    LAYER_CHAIN,
    PIXEL_EFFECTS,
)
from holdfast.hamming.layer_chain import Centre, Chain
from holdfast.rounding import TINY, charge

CELLS = 4  # Number of cells into which the range of values of a unit is divided (chosen by hand).
UNITS_AT_ONCE = 64  # Number of units whose tables are computed in one batch (chosen by hand).
# Largest number of values in the tables of pairs of one input; with more, the input gets no tables (chosen by
# hand).
MAX_PAIR_NUMBERS = 2**24


@dataclass(frozen=True, eq=False)
class UnitEffects:
    """The tables of one input. Lists are padded like those of `Windows`. All bounds hold for the network in
    real arithmetic: rounding errors are included.
    """

    edges: Tensor  # (units, cells + 1): values at the edges of the cells
    # (units, cells + 1, n): change of the pre-activations of the third activation at the edges, if only this
    # unit changes
    third: Tensor
    # (units, cells, n): largest distance of the true change from the linear interpolation in the cell
    missed: Tensor
    lowest: Tensor  # (units, n), <= 0: lower bound of the change of these pre-activations
    highest: Tensor  # (units, n), >= 0: upper bound of the change
    reach: Tensor  # (units, far): upper bounds of reach at the pre-activations of the second activation
    over: Tensor  # (units, far): upper bounds of over
    away: Tensor  # (units, far): upper bounds of away
    # (units, most): units that share a value of the first layer with this one, padded with the number of
    # units
    neighbour: Tensor
    pair: Tensor  # (units, most): index of the pair in the tables of `concatenate_nodes`
    together: "PairInteractions"

    @property
    def numbers(self) -> int:
        """Number of float64 numbers in all tables, including those of the pairs, which are computed later."""
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


def supports_unit_effects(chain: Chain) -> bool:
    """Whether the first two activations are f as above, another layer follows, and units have a single number
    each.
    """
    if len(chain.layers) < 4 or chain.windows.elements.shape[1] > 1:
        return False
    sides = [layer.function.sides() if layer.function is not None else None for layer in chain.layers[:2]]
    return all(s is not None and (s.at, s.value, s.above) == (0, 0, 1) and 0 <= s.below <= 1 for s in sides)


def compute_unit_effects(chain: Chain, centre: Centre, lower: Tensor, upper: Tensor) -> UnitEffects | None:
    """Compute the tables of one input (a batch of one); None if too many pairs of units share values of the
    first layer.

    Args:
        lower, upper: (units,), the range of values of a changed unit.
    """
    first, second = (_ActivationAtCentre.of(chain, centre, place) for place in (0, 1))
    neighbours = _neighbours(chain)
    if neighbours is None:
        return None
    share = torch.linspace(0, 1, CELLS + 1, dtype=torch.float64, device=lower.device)
    edges = torch.where(share < 1, lower[:, None] + share * (upper - lower)[:, None], upper[:, None])
    move = edges - centre.x[0, chain.windows.elements]
    parts = torch.arange(len(edges), device=edges.device).split(UNITS_AT_ONCE)
    tables = [
        torch.cat(each)
        for each in zip(
            *(_single_unit_tables(chain, first, second, units, move[units]) for units in parts), strict=True
        )
    ]
    neighbour, pair, one, other = neighbours
    third, missed, lowest, highest, reach, over, away = tables
    together = PairInteractions(chain, first, one, other, move)
    return UnitEffects(edges, third, missed, lowest, highest, reach, over, away, neighbour, pair, together)


@dataclass(frozen=True, eq=False)
class _ActivationAtCentre:
    """An activation layer of the form f at the centre: its pre-activations, padded with one more entry."""

    z: Tensor  # (n + 1,)
    error: Tensor  # (n + 1,): error bounds of z
    total: Tensor  # (n + 1,): sums of the absolute weights of the layer before
    below: float
    terms: int  # the largest number of terms of a sum

    @staticmethod
    def of(chain: Chain, centre: Centre, place: int) -> "_ActivationAtCentre":
        layer = chain.layers[place]
        assert layer.function is not None
        sides = layer.function.sides()
        assert sides is not None
        values = centre.before[place][0], centre.before_error[place][0], layer.size.sum(1)
        z, error, total = (torch.nn.functional.pad(v, (0, 1)) for v in values)
        return _ActivationAtCentre(z, error, total, sides.below, chain.terms)

    def rounding_error(self, places: Tensor, most: Tensor) -> Tensor:
        """Bound the rounding error of computed changes of the pre-activations of size at most `most`, (units,
        1) -> (units, k); 0 for padding.
        """
        z = self.z[places]
        size = z.abs() + self.total[places] * most
        error = self.error[places] + charge(size, LAYER_CHAIN, self.terms) + TINY
        return torch.where(places < len(self.z) - 1, error, 0)

    def toward(self, places: Tensor, change: Tensor) -> Tensor:
        """Return t: the component of the change towards zero."""
        return torch.where(self.z[places] > 0, -change, change)

    def value_change(self, places: Tensor, change: Tensor) -> Tensor:
        """Return f(z + s) - f(z) for changes s (units, cells + 1, k) of the pre-activations `places` (units,
        k).
        """
        places = places[:, None]
        z = self.z[places]
        # torch.where of two Python numbers would return float32.
        slope = torch.where(z > 0, torch.ones_like(z), self.below)
        return slope * change + (1 - self.below) * (self.toward(places, change) - z.abs()).clamp_min(0)

    def bulge(self, places: Tensor, change: Tensor) -> Tensor:
        """Upper-bound how far f lies below its chord in each cell."""
        ends = self.toward(places[:, None], change) - self.z[places].abs()[:, None]
        over = torch.maximum(ends[:, 1:], ends[:, :-1]).clamp_min(0)
        under = (-torch.minimum(ends[:, 1:], ends[:, :-1])).clamp_min(0)
        # over * under / (over + under) is computed in this order since the product over * under might
        # underflow.
        return (1 - self.below) * over * (under / (over + under).clamp_min(TINY))

    def parts(self, places: Tensor, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return upper bounds of reach, over and away for changes between two bounds, (units, k) each."""
        up, d = self.z[places] > 0, self.z[places].abs()
        toward, away = torch.where(up, -low, high).clamp_min(0), torch.where(up, high, -low).clamp_min(0)
        return torch.minimum(toward, d), (toward - d).clamp_min(0), away


def _single_unit_tables(
    chain: Chain, first: _ActivationAtCentre, second: _ActivationAtCentre, units: Tensor, move: Tensor
) -> tuple[Tensor, ...]:
    """Compute the fields of `UnitEffects` from `third` to `away` for units (k,) with changes move (k, cells +
    1).
    """
    w, layer = chain.windows, chain.layers[2]
    near, far = w.near[units], w.far[units]
    onwards, furthest = w.second[w.kind[units]], move.abs().amax(1, keepdim=True)
    # First layer: its pre-activations are linear in the value of the unit; its activations lie at most `down`
    # below and `up` above their chords.
    change = w.first[units] * move[..., None]
    value, error = first.value_change(near, change), 3 * first.rounding_error(near, furthest)
    down, up = first.bulge(near, change) + error[:, None], error[:, None].expand(-1, CELLS, -1)
    # Second layer: linear combinations of these.
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
    # Third layer.
    weight = torch.nn.functional.pad(layer.weight, (0, 1))[:, far].permute(1, 2, 0)
    third, middle, half = value @ weight, (up - down) / 2 @ weight, (up + down) / 2 @ weight.abs()
    largest = value.abs().amax((1, 2)) + down.amax((1, 2)) + up.amax((1, 2))
    size = layer.size.sum(1) * largest[:, None, None]
    missed = middle.abs() + half + charge(size, PIXEL_EFFECTS, chain.terms) + TINY
    lowest = (torch.minimum(third[:, 1:], third[:, :-1]) - missed).amin(1).clamp_max(0)
    highest = (torch.maximum(third[:, 1:], third[:, :-1]) + missed).amax(1).clamp_min(0)
    return third, missed, lowest, highest, *second.parts(far, low, high)


# ---- pairs of units that share values of the first layer


def _neighbours(chain: Chain) -> tuple[Tensor, Tensor, Tensor, Tensor] | None:
    """Return the neighbours of each unit and the indices of the pairs, (units, most) both, and the two units
    of each pair, (pairs,) both.
    """
    w = chain.windows
    units, width = len(w.near), len(chain.layers[0].bias)
    touches = torch.zeros((units, width + 1), device=w.near.device).scatter(1, w.near, 1.0)[:, :width]
    meet = touches @ touches.t() > 0
    one, other = meet.triu(1).nonzero(as_tuple=True)
    if 2 * len(one) * w.far.shape[1] > MAX_PAIR_NUMBERS:
        return None
    number = torch.full((units, units), -1, device=meet.device).index_put(
        (one, other), torch.arange(len(one), device=meet.device)
    )
    found, places = (number >= 0).to(torch.uint8).sort(dim=1, descending=True, stable=True)
    most = max(1, int(found.sum(1).max()))
    places, found = places[:, :most], found[:, :most] > 0
    return torch.where(found, places, units), torch.where(found, number.gather(1, places), 0), one, other


@dataclass(eq=False)
class PairInteractions:
    """Bounds of the interaction of two units that share values of the first layer, at the pre-activations of
    the second layer.

    The tables depend on r, the largest number of units that change and touch the same value of the first
    layer. With r units the interaction is at most the sum over the pairs: since every unit is in r - 1 of the
    r (r - 1) / 2 pairs,

        (sum_i reach_i - d)+ <= sum over pairs {i, j} of (reach_i + reach_j - 2 d / r)+ / (r - 1).

    No unit has both over_i > 0 and away_i > 0, so also

        min(sum_i over_i, sum_i away_i)
            <= sum over pairs {i, j} of max(min(over_i, away_j), min(over_j, away_i)).
    """

    chain: Chain
    first: _ActivationAtCentre
    one: Tensor  # (pairs,)
    other: Tensor  # (pairs,)
    move: Tensor  # (units, cells + 1)
    known: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)

    def table(self, most: int) -> tuple[Tensor, Tensor]:
        """Return the lower and upper bounds (pairs, far of the first unit), float32, valid if at most `most`
        changed units touch one value.
        """
        if most not in self.known:
            self.known[most] = self._build(most)
        return self.known[most]

    @property
    def numbers(self) -> int:
        """Number of float64 numbers of the tables for two, three and four units."""
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
                size = total * (up + down).amax(1, keepdim=True)
                half = half + charge(size, PIXEL_EFFECTS, self.chain.terms) + TINY
                least[chosen], largest[chosen] = (
                    round_outwards(middle - half, -1),
                    round_outwards(middle + half, 1),
                )
        return least, largest

    def _first(self, chosen: Tensor, most: int) -> tuple[Tensor, Tensor]:
        """For the chosen pairs, (pairs, near of the first unit), bound how far the joint change lies below
        and above the sum of both.
        """
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


def round_outwards(values: Tensor, side: int) -> Tensor:
    """Round to float32, downwards for side -1 and upwards for side 1."""
    near = values.float()
    return torch.nextafter(near, torch.full_like(near, side * torch.inf))
