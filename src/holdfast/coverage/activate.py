"""The fewest changed units that bring a neuron's value into an interval, for many neurons at once.

Units are laid over the seed one after another, those first whose move to an end of the domain changes the neuron's drive most (by its
gradient, or by trying where there is none), ranked again after every step; then they are taken back while the value stays inside. So what
is found is near, and nothing proves that nothing is nearer.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from holdfast.batch import take
from holdfast.coverage.neurons import Neurons
from holdfast.random_streams import Chance
from holdfast.region import Sparse

ELEMENTS = 2**25  # numbers in all the inputs that are tried at once
STRIDES = 8  # an aim many units away is walked to in about so many steps
HALVINGS = 20  # of a move that jumps over the interval
DRAWS = 128  # units tried in a step without a gradient


@dataclass(frozen=True, eq=False)
class Units:
    """What counts as one change: everything that shares a position on the axes not named, as in region.Sparse."""

    place: Tensor  # (*shape): the number of each element's unit
    count: int
    low: Tensor  # (*shape): the ends between which an element may move
    high: Tensor

    @staticmethod
    def of(region: Sparse) -> "Units":
        place = (
            torch.arange(region.units, device=region.centre.device)
            .reshape(region.unit_shape)
            .expand(region.shape)
        )
        low, high = (end.expand(region.shape) for end in region.ends(region.centre))
        return Units(place, region.units, low, high)

    def elements(self, units: Tensor) -> Tensor:
        """(..., count) -> (..., *shape): what holds of a unit holds of its elements."""
        return units[..., self.place]

    def totals(self, elements: Tensor) -> Tensor:
        """(n, *shape) -> (n, count): sums over the elements of each unit."""
        flat = elements.flatten(1)
        return flat.new_zeros(len(flat), self.count).index_add_(1, self.place.flatten(), flat)

    def changed_units(self, x: Tensor, seed: Tensor) -> Tensor:
        """(n, *shape), (n, *shape) -> (n, count) bool."""
        return self.totals((x != seed).float()) > 0


@dataclass(frozen=True, eq=False)
class Aims:
    """For each row a seed, a neuron, and the interval that its value must get into: lower <= value < upper."""

    place: Tensor  # (n,): of the seed among all
    seed: Tensor  # (n, *shape)
    neuron: Tensor  # (n,)
    lower: Tensor  # (n,)
    upper: Tensor  # (n,)

    def inside(self, value: Tensor) -> Tensor:
        """(n, moves) -> bool."""
        return (value >= self.lower[:, None]) & (value < self.upper[:, None])

    def gap(self, drive: Tensor) -> Tensor:
        """(n, moves) -> how far outside."""
        return torch.maximum(self.lower[:, None] - drive, drive - self.upper[:, None]).clamp_min(0)


@dataclass(eq=False)
class AimState:
    """Where the rows of a batch of aims stand."""

    aims: Aims
    chance: Chance
    now: Tensor  # (n, *shape)
    drive: Tensor  # (n,) there
    best: Tensor  # (n, *shape): the nearest input inside, so far
    fewest: Tensor  # (n,): units changed in it; more than are allowed where there is none
    blind: Tensor  # (n,) bool: the gradient did not help, or there is none
    stuck: Tensor  # (n,) bool: nothing did
    turn: int = 0  # rounds so far
    back: Tensor | None = (
        None  # (n,) bool: rows of which units are still taken back; None: units are still laid over
    )


@dataclass(frozen=True)
class ActivationReach:
    """beam: units tried alone in every round. limit: units that may change at most."""

    neurons: Neurons
    units: Units
    beam: int
    limit: int
    watch: Callable[[Tensor, Tensor, Tensor], None] | None = (
        None  # sees inputs, their seeds' places, and the values of all neurons
    )

    @property
    def rows(self) -> int:
        """How many aims memory holds at once."""
        return max(1, ELEMENTS // (2 * DRAWS * self.units.place.numel()))

    def begin(self, aims: Aims, chance: Chance) -> AimState:
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
        """One round further; True: it is over, and `best` is near wherever `fewest` is at most the limit."""
        walk.turn += 1
        if walk.back is None:
            size = self.units.changed_units(walk.now, walk.aims.seed).sum(1)
            live = ((size + 1 < walk.fewest) & ~walk.stuck).nonzero().flatten()
            for rows in (live[~walk.blind[live]], live[walk.blind[live]]):
                if len(rows):
                    self._lay(take(walk.aims, rows), walk, rows)
            if not len(live):
                walk.back = walk.fewest <= self.limit
        else:
            self._take_back(walk, walk.back)
        return walk.back is not None and not bool(walk.back.any())

    # ---- laying over

    def _lay(self, aims: Aims, walk: AimState, rows: Tensor) -> None:
        """Try moves for some rows, all blind or none; keep the smallest that gets inside, go on from the one that comes closest."""
        here, drive, blind = walk.now[rows], walk.drive[rows], bool(walk.blind[rows[0]])
        chance = walk.chance.apart(walk.turn).take(rows)
        corner, score = self._drawn(aims, here, drive, chance) if blind else self._uphill(aims, here, drive)
        masks, sizes = self._moves(score)
        tried = torch.where(self.units.elements(masks), corner[:, None], here[:, None])
        value, drives = self._ask(aims, tried)
        rising = (drive < aims.lower)[:, None]
        over = torch.where(rising, drives > aims.upper[:, None], drives < aims.lower[:, None]) & ~aims.inside(
            value
        )
        if bool(over.any()):
            size, column = torch.where(over, sizes, torch.inf).min(1)
            between = self._between(aims, here, _column(tried, column), rising[:, 0], over.any(1))[:, None]
            tried, sizes = torch.cat([tried, between], 1), torch.cat([sizes, size[:, None]], 1)
            value, drives = (
                torch.cat(pair, 1) for pair in zip((value, drives), self._ask(aims, between), strict=True)
            )
        changes = self._changes(aims, tried)
        allowed = changes <= self.limit
        inside = aims.inside(value) & allowed
        count, column = torch.where(inside, changes, self.limit + 1).min(1)
        better = count < walk.fewest[rows]
        walk.best[rows[better]], walk.fewest[rows[better]] = _column(tried, column)[better], count[better]
        # Several units at once only where the aim is far.
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

    def _uphill(self, aims: Aims, here: Tensor, drive: Tensor) -> tuple[Tensor, Tensor]:
        """-> (n, *shape) the end of the domain to which each element should go, (n, units) what that gains to the first order."""
        towards = torch.where(drive < aims.lower, 1, -1).to(here)
        gradient = self.neurons.gradient(here, aims.neuron) * _wide(towards, here)
        corner = torch.where(gradient > 0, self.units.high, self.units.low)
        return corner, self.units.totals(gradient * (corner - here))

    def _drawn(self, aims: Aims, here: Tensor, drive: Tensor, chance: Chance) -> tuple[Tensor, Tensor]:
        """The same without a gradient: some units drawn, each tried at a random corner and at the opposite one."""
        many, none = (
            min(DRAWS, self.units.count),
            torch.zeros(len(here), self.units.count, device=here.device, dtype=here.dtype),
        )
        unit = chance.uniform(1, (self.units.count,), here)[0].argsort(1)[:, :many]
        bits = chance.uniform(1, here.shape[1:], here)[0] < 0.5
        corners = [torch.where(high, self.units.high, self.units.low) for high in (bits, ~bits)]
        alone = self.units.elements(one_hot(unit, self.units.count).bool())
        asked = [self._ask(aims, torch.where(alone, corner[:, None], here[:, None]))[1] for corner in corners]
        gains = torch.stack([aims.gap(drive[:, None]) - aims.gap(drives) for drives in asked])
        gain, which = gains.max(0)
        first = self.units.elements(none.scatter(1, unit, which.to(none))) == 0
        return torch.where(first, corners[0], corners[1]), none.scatter(1, unit, gain.to(none))

    def _moves(self, score: Tensor) -> tuple[Tensor, Tensor]:
        """(n, units) -> (n, moves, units) bool, (n, moves): the best units alone, then the best 2, 4, 8, ... together; their sizes."""
        rank = score.argsort(dim=1, descending=True, stable=True).argsort(dim=1)[:, None]
        most = min(self.limit, self.units.count)
        alone = torch.arange(min(self.beam, self.units.count), device=score.device)
        together = torch.tensor(
            [*(2**k for k in range(1, most.bit_length()) if 2**k < most), most], device=score.device
        )
        masks = torch.cat([rank == alone[:, None], rank < together[:, None]], dim=1) & (score > 0)[:, None]
        return masks, masks.sum(-1).to(score)

    def _between(self, aims: Aims, here: Tensor, far: Tensor, rising: Tensor, over: Tensor) -> Tensor:
        """A point inside on the way from here to there, where that way leads over the interval: a continuous network passes it."""
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

    def _ask(self, aims: Aims, tried: Tensor) -> tuple[Tensor, Tensor]:
        """(n, moves, *shape) -> value, drive (n, moves)."""
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

    # ---- taking back

    def _take_back(self, walk: AimState, back: Tensor) -> None:
        """Units go back to the seed, those first that matter least, several at once where the value stays inside."""
        score = self._spare(walk.aims, walk.best, back)
        back &= (score > 0).any(1)
        if bool(back.any()):
            walk.best[back] = self._taken_back(take(walk.aims, back), walk.best[back], score[back])

    def _spare(self, aims: Aims, x: Tensor, going: Tensor) -> Tensor:
        """-> (n, units): positive for changed units that could go back alone, the more the better inside the value stays."""
        score = torch.zeros(len(x), self.units.count, dtype=x.dtype, device=x.device)
        changed = (self.units.changed_units(x, aims.seed) & going[:, None]).nonzero()
        for row, unit in (
            pairs.unbind(1) for pairs in changed.split(max(1, ELEMENTS // self.units.place.numel()))
        ):
            alone = self.units.elements(one_hot(unit, self.units.count).bool())
            part = take(aims, row)
            value = self.neurons.at(torch.where(alone, part.seed, x[row]), part.neuron)[0]
            slack = torch.minimum(value - part.lower, part.upper - value).clamp_max(1e30)
            inside = part.inside(value[:, None])[:, 0]
            score[row[inside], unit[inside]] = 1 + slack[inside].to(score)
        return score

    def _taken_back(self, aims: Aims, x: Tensor, score: Tensor) -> Tensor:
        """As many of the units with a score as can go together, at least the best."""
        masks, sizes = self._moves(score)
        tried = torch.where(self.units.elements(masks), aims.seed[:, None], x[:, None])
        inside = aims.inside(self._ask(aims, tried)[0])
        inside[:, 0] = True  # it was asked alone before; another batch may round otherwise
        return _column(tried, torch.where(inside, sizes, -1).argmax(1))


def _wide(value: Tensor, like: Tensor) -> Tensor:
    """(n,) -> (n, 1, ..., 1), to stand against (n, *shape)."""
    return value.reshape(-1, *(1 for _ in like.shape[1:]))


def _column(moves: Tensor, column: Tensor) -> Tensor:
    """(n, moves, ...), (n,) -> (n, ...): one move of each row."""
    return moves[torch.arange(len(moves), device=moves.device), column]
