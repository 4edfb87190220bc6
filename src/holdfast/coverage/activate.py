"""Search for the fewest changed units that bring a neuron's value into an interval, for many neurons in one
batch.

Units of the seed are set to a bound of the domain one after another, those first whose move changes the
neuron's drive most (by its gradient, or by trying where there is none); the ranking is repeated after every
step. Afterwards units are restored as long as the value stays inside. The tests found are near to the seeds;
it is not proved that there are no nearer ones.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from holdfast.batch import take
from holdfast.coverage.neurons import Neurons
from holdfast.random_streams import RandomStreams
from holdfast.region import Sparse

BATCH_NUMBERS = 2**25  # Largest number of values in all inputs evaluated in one batch (chosen by hand).
STRIDES = 8  # An aim that needs many units is approached in about this many steps (chosen by hand).
HALVINGS = 20  # Number of bisections of a move that jumps over the interval (chosen by hand).
DRAWN_UNITS = 128  # Number of units tried in a step without a gradient (chosen by hand).


@dataclass(frozen=True, eq=False)
class Units:
    """What counts as one change: all elements that share a position on the axes that are not named, as in
    `region.Sparse`.
    """

    place: Tensor  # (*shape): the index of each element's unit
    count: int
    low: Tensor  # (*shape): bounds between which an element may move
    high: Tensor

    @staticmethod
    def of(region: Sparse) -> "Units":
        place = (
            torch.arange(region.units, device=region.centre.device)
            .reshape(region.unit_shape)
            .expand(region.shape)
        )
        low, high = (end.expand(region.shape) for end in region.value_range(region.centre))
        return Units(place, region.units, low, high)

    def elements(self, units: Tensor) -> Tensor:
        """Map (..., count) to (..., *shape): expand values of units to their elements."""
        return units[..., self.place]

    def totals(self, elements: Tensor) -> Tensor:
        """Map (n, *shape) to (n, count): sums over the elements of each unit."""
        flat = elements.flatten(1)
        return flat.new_zeros(len(flat), self.count).index_add_(1, self.place.flatten(), flat)

    def changed_units(self, x: Tensor, seed: Tensor) -> Tensor:
        """Map x and seed (n, *shape) to (n, count) bool: whether a unit differs."""
        return self.totals((x != seed).float()) > 0


@dataclass(frozen=True, eq=False)
class Aims:
    """For each row a seed, a neuron, and the interval for its value: lower <= value < upper."""

    place: Tensor  # (n,): index of the seed
    seed: Tensor  # (n, *shape)
    neuron: Tensor  # (n,)
    lower: Tensor  # (n,)
    upper: Tensor  # (n,)

    def inside(self, value: Tensor) -> Tensor:
        """Map values (n, moves) to bool: whether they are in the interval."""
        return (value >= self.lower[:, None]) & (value < self.upper[:, None])

    def gap(self, drive: Tensor) -> Tensor:
        """Map drives (n, moves) to their distances from the interval."""
        return torch.maximum(self.lower[:, None] - drive, drive - self.upper[:, None]).clamp_min(0)


@dataclass(eq=False)
class AimState:
    """The state of the search for a batch of aims."""

    aims: Aims
    chance: RandomStreams
    now: Tensor  # (n, *shape): the current inputs
    drive: Tensor  # (n,): the drives there
    best: Tensor  # (n, *shape): the nearest input found with a value inside
    fewest: Tensor  # (n,): number of its changed units; above the limit if there is none
    blind: Tensor  # (n,) bool: the gradient did not help, or there is none
    stuck: Tensor  # (n,) bool: no move helped
    turn: int = 0  # number of rounds
    # (n,) bool: rows whose units are still being restored; None while units are still being changed
    back: Tensor | None = None


@dataclass(frozen=True)
class ActivationReach:
    """The search itself.

    Attributes:
        beam: units tried alone in every round.
        limit: largest number of units that may change.
    """

    neurons: Neurons
    units: Units
    beam: int
    limit: int
    # called with the inputs tried, the indices of their seeds, and the values of all neurons
    watch: Callable[[Tensor, Tensor, Tensor], None] | None = None

    @property
    def rows(self) -> int:
        """Number of aims that fit into memory."""
        return max(1, BATCH_NUMBERS // (2 * DRAWN_UNITS * self.units.place.numel()))

    def begin(self, aims: Aims, chance: RandomStreams) -> AimState:
        none, far = (
            torch.zeros_like(aims.neuron, dtype=torch.bool),
            torch.full_like(aims.neuron, self.limit + 1),
        )
        drive = self.neurons.at(aims.seed, aims.neuron)[1]
        return AimState(
            aims,
            chance,
            aims.seed.clone(),
            drive,
            aims.seed.clone(),
            far,
            none | (not self.neurons.guided),
            none.clone(),
        )

    def advance(self, walk: AimState) -> bool:
        """Run one round; return True when the search is over. `best` is a test wherever `fewest` is at most
        the limit.
        """
        walk.turn += 1
        if walk.back is None:
            size = self.units.changed_units(walk.now, walk.aims.seed).sum(1)
            live = ((size + 1 < walk.fewest) & ~walk.stuck).nonzero().flatten()
            for rows in (live[~walk.blind[live]], live[walk.blind[live]]):
                if len(rows):
                    self._change_units(take(walk.aims, rows), walk, rows)
            if not len(live):
                walk.back = walk.fewest <= self.limit
        else:
            self._restore_units(walk, walk.back)
        return walk.back is not None and not bool(walk.back.any())

    # ---- changing units

    def _change_units(self, aims: Aims, walk: AimState, rows: Tensor) -> None:
        """Try moves for some rows, all with or all without a gradient; store the smallest that gets inside
        and continue from the closest.
        """
        here, drive, blind = walk.now[rows], walk.drive[rows], bool(walk.blind[rows[0]])
        chance = walk.chance.substream(walk.turn).take(rows)
        corner, score = (
            self._rank_by_sampling(aims, here, drive, chance)
            if blind
            else self._rank_by_gradient(aims, here, drive)
        )
        masks, sizes = self._moves(score)
        tried = torch.where(self.units.elements(masks), corner[:, None], here[:, None])
        value, drives = self._evaluate_moves(aims, tried)
        rising = (drive < aims.lower)[:, None]
        over = torch.where(rising, drives > aims.upper[:, None], drives < aims.lower[:, None]) & ~aims.inside(
            value
        )
        if bool(over.any()):
            size, column = torch.where(over, sizes, torch.inf).min(1)
            between = self._bisect_move(aims, here, _column(tried, column), rising[:, 0], over.any(1))[
                :, None
            ]
            tried, sizes = torch.cat([tried, between], 1), torch.cat([sizes, size[:, None]], 1)
            value, drives = (
                torch.cat(pair, 1)
                for pair in zip((value, drives), self._evaluate_moves(aims, between), strict=True)
            )
        changes = self._changes(aims, tried)
        allowed = changes <= self.limit
        inside = aims.inside(value) & allowed
        count, column = torch.where(inside, changes, self.limit + 1).min(1)
        better = count < walk.fewest[rows]
        walk.best[rows[better]], walk.fewest[rows[better]] = _column(tried, column)[better], count[better]
        # Move several units at once only if the aim is far.
        need = torch.where(inside, sizes, torch.inf).amin(1, keepdim=True)
        short = sizes <= torch.where(need.isinf(), need, (need / STRIDES).floor().clamp_min(1))
        closest, column = torch.where(short & allowed, aims.gap(drives), torch.inf).min(1)
        gained = closest < aims.gap(drive[:, None])[:, 0] * (1 - 1e-6)
        walk.now[rows[gained]], walk.drive[rows[gained]] = (
            _column(tried, column)[gained],
            _column(drives, column)[gained],
        )
        walk.stuck[rows] = ~gained & blind
        walk.blind[rows] = ~gained | (not self.neurons.guided)

    def _rank_by_gradient(self, aims: Aims, here: Tensor, drive: Tensor) -> tuple[Tensor, Tensor]:
        """Return the bound of the domain to which each element should move, (n, *shape), and the first-order
        gain of each unit, (n, units).
        """
        towards = torch.where(drive < aims.lower, 1, -1).to(here)
        gradient = self.neurons.gradient(here, aims.neuron) * _wide(towards, here)
        corner = torch.where(gradient > 0, self.units.high, self.units.low)
        return corner, self.units.totals(gradient * (corner - here))

    def _rank_by_sampling(
        self, aims: Aims, here: Tensor, drive: Tensor, chance: RandomStreams
    ) -> tuple[Tensor, Tensor]:
        """Do the same without a gradient: draw some units, and try each at a random corner and at the
        opposite one.
        """
        many, none = (
            min(DRAWN_UNITS, self.units.count),
            torch.zeros(len(here), self.units.count, device=here.device, dtype=here.dtype),
        )
        unit = chance.uniform(1, (self.units.count,), here)[0].argsort(1)[:, :many]
        bits = chance.uniform(1, here.shape[1:], here)[0] < 0.5
        corners = [torch.where(high, self.units.high, self.units.low) for high in (bits, ~bits)]
        alone = self.units.elements(one_hot(unit, self.units.count).bool())
        asked = [
            self._evaluate_moves(aims, torch.where(alone, corner[:, None], here[:, None]))[1]
            for corner in corners
        ]
        gains = torch.stack([aims.gap(drive[:, None]) - aims.gap(drives) for drives in asked])
        gain, which = gains.max(0)
        first = self.units.elements(none.scatter(1, unit, which.to(none))) == 0
        return torch.where(first, corners[0], corners[1]), none.scatter(1, unit, gain.to(none))

    def _moves(self, score: Tensor) -> tuple[Tensor, Tensor]:
        """Return moves (n, moves, units) bool and their sizes (n, moves) by score (n, units): the best units
        alone, then the best 2, 4, 8, ... together.
        """
        rank = score.argsort(dim=1, descending=True, stable=True).argsort(dim=1)[:, None]
        most = min(self.limit, self.units.count)
        alone = torch.arange(min(self.beam, self.units.count), device=score.device)
        together = torch.tensor(
            [*(2**k for k in range(1, most.bit_length()) if 2**k < most), most], device=score.device
        )
        masks = torch.cat([rank == alone[:, None], rank < together[:, None]], dim=1) & (score > 0)[:, None]
        return masks, masks.sum(-1).to(score)

    def _bisect_move(self, aims: Aims, here: Tensor, far: Tensor, rising: Tensor, over: Tensor) -> Tensor:
        """Return a point inside on the segment from here to far where it leads over the interval: a
        continuous network passes through it.
        """
        point = here.clone()
        part, start, step, rising = take(aims, over), here[over], (far - here)[over], rising[over]
        low, high = torch.zeros_like(part.lower), torch.ones_like(part.lower)
        for _ in range(HALVINGS):
            share = (low + high) / 2
            point[over] = torch.minimum(
                torch.maximum(start + _wide(share, start) * step, self.units.low), self.units.high
            )
            value, drive = self.neurons.at(point[over], part.neuron)
            done = part.inside(value[:, None])[:, 0]
            if bool(done.all()):
                break
            short = torch.where(rising, drive < part.lower, drive >= part.upper)
            low, high = torch.where(short & ~done, share, low), torch.where(~short & ~done, share, high)
        return point

    def _evaluate_moves(self, aims: Aims, tried: Tensor) -> tuple[Tensor, Tensor]:
        """Evaluate inputs (n, moves, *shape): their values and drives, (n, moves) each."""
        x, neuron, place = (
            tried.flatten(0, 1),
            *(part.repeat_interleave(tried.shape[1]) for part in (aims.neuron, aims.place)),
        )

        def watch(values: Tensor, first: int) -> None:
            if self.watch is not None:
                rows = slice(first, first + len(values))
                self.watch(x[rows], place[rows], values)

        value, drive = self.neurons.at(x, neuron, watch)
        return value.reshape(tried.shape[:2]), drive.reshape(tried.shape[:2])

    def _changes(self, aims: Aims, tried: Tensor) -> Tensor:
        seeds = aims.seed.repeat_interleave(tried.shape[1], dim=0)
        return self.units.changed_units(tried.flatten(0, 1), seeds).sum(1).reshape(tried.shape[:2])

    # ---- restoring units

    def _restore_units(self, walk: AimState, back: Tensor) -> None:
        """Restore units, those first that matter least, several at once if the value stays inside."""
        score = self._score_restorable(walk.aims, walk.best, back)
        back &= (score > 0).any(1)
        if bool(back.any()):
            walk.best[back] = self._restore_together(take(walk.aims, back), walk.best[back], score[back])

    def _score_restorable(self, aims: Aims, x: Tensor, going: Tensor) -> Tensor:
        """Return (n, units): positive for changed units that could be restored alone; larger if the value
        stays further inside.
        """
        score = torch.zeros(len(x), self.units.count, dtype=x.dtype, device=x.device)
        changed = (self.units.changed_units(x, aims.seed) & going[:, None]).nonzero()
        for row, unit in (
            pairs.unbind(1) for pairs in changed.split(max(1, BATCH_NUMBERS // self.units.place.numel()))
        ):
            alone = self.units.elements(one_hot(unit, self.units.count).bool())
            part = take(aims, row)
            value = self.neurons.at(torch.where(alone, part.seed, x[row]), part.neuron)[0]
            slack = torch.minimum(value - part.lower, part.upper - value).clamp_max(1e30)
            inside = part.inside(value[:, None])[:, 0]
            score[row[inside], unit[inside]] = 1 + slack[inside].to(score)
        return score

    def _restore_together(self, aims: Aims, x: Tensor, score: Tensor) -> Tensor:
        """Restore as many of the units with a score as can be restored together, at least the best."""
        masks, sizes = self._moves(score)
        tried = torch.where(self.units.elements(masks), aims.seed[:, None], x[:, None])
        inside = aims.inside(self._evaluate_moves(aims, tried)[0])
        inside[:, 0] = True  # This unit was evaluated alone before; another batch may round differently.
        return _column(tried, torch.where(inside, sizes, -1).argmax(1))


def _wide(value: Tensor, like: Tensor) -> Tensor:
    """Reshape (n,) to (n, 1, ..., 1), so that it broadcasts against (n, *shape)."""
    return value.reshape(-1, *(1 for _ in like.shape[1:]))


def _column(moves: Tensor, column: Tensor) -> Tensor:
    """Map (n, moves, ...), (n,) to (n, ...): one move of each row."""
    return moves[torch.arange(len(moves), device=moves.device), column]
