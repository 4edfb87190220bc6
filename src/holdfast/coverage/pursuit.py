"""The pursuit of uncovered items: the nearest to the seeds first, many at once, and everything that an input covers is counted."""

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from holdfast.coverage.activate import Aims, Reach
from holdfast.coverage.criteria import Items
from holdfast.coverage.neurons import Neurons

NEAR = 32  # units changed at most in an input that is kept because it happens to cover another item than it was tried for
AIM = 1.5  # margins inside the interval, so that what is reached is inside by one in any batch


@dataclass(frozen=True, eq=False)
class Test:
    """One test found; items by their place among the open ones."""

    x: Tensor
    seed: int
    item: int
    covers: Tensor


@dataclass(eq=False)
class Seen:
    """Inputs that were tried for one item and cover another: the nearest for each open item."""

    place: Tensor  # (open,): where it stands below, -1 for none
    changes: Tensor  # (open,): units changed in it; more than NEAR for none
    x: Tensor  # (kept, *shape)
    seed: Tensor  # (kept,)

    def keep(self, item: Tensor, changes: Tensor, row: Tensor, x: Tensor, seed: Tensor) -> None:
        """For some items the rows of x that cover them."""
        used, at = row.unique(return_inverse=True)
        self.place[item], self.changes[item] = at + len(self.x), changes
        self.x, self.seed = torch.cat([self.x, x[used]]), torch.cat([self.seed, seed[used]])

    def forget(self, item: Tensor) -> None:
        """These items, and inputs that no other one needs."""
        self.place[item], self.changes[item] = -1, NEAR + 1
        used, at = self.place[self.place >= 0].unique(return_inverse=True)
        self.place[self.place >= 0] = at
        self.x, self.seed = self.x[used], self.seed[used]


@dataclass(eq=False)
class Search:
    """The items that no seed covers, and what has become of them."""

    reach: Reach
    wanted: Items
    seeds: Tensor
    before: Tensor  # (neurons, kinds) bool: covered by the seeds
    place: Tensor  # (neurons, kinds): the place of an item among the open ones, -1 if it is none of them
    neuron: Tensor  # (open,)
    kind: Tensor  # (open,)
    lower: Tensor  # (open,): what is aimed at
    upper: Tensor  # (open,)
    nearest: Tensor  # (tries, open): seeds, the nearest first
    order: Tensor  # (open,): the nearest items first
    tried: Tensor  # (open,): seeds tried so far
    reached: Tensor  # (open,) bool
    seen: Seen
    found: list[Test] = field(default_factory=list)

    @staticmethod
    def begin(reach: Reach, wanted: Items, seeds: Tensor, tries: int, hurried: bool) -> "Search":
        """hurried: time may run out, so what is tried for one item is looked at for all."""
        before = torch.stack([wanted.covered(values) for values, _ in reach.neurons.read(seeds)]).any(0)
        neuron, kind = (wanted.exist & ~before).nonzero(as_tuple=True)
        place = torch.full_like(before, -1, dtype=torch.int64)
        place[neuron, kind] = torch.arange(len(neuron), device=neuron.device)
        lower, upper = (end[neuron, kind] for end in wanted.within(AIM))
        nearest, gap = _nearest(reach.neurons, wanted, seeds, neuron, kind, min(tries, len(seeds)))
        order, none = gap.argsort(stable=True), torch.zeros_like(neuron)
        seen = Seen(none - 1, none + NEAR + 1, seeds[:0], none[:0])
        begun = Search(reach, wanted, seeds, before, place, neuron, kind, lower, upper, nearest, order, none, none.bool(), seen)
        begun.reach = replace(reach, watch=begun.watch if hurried else None)
        return begun

    @property
    def items(self) -> int:
        return int(self.wanted.exist.sum())

    @property
    def covered(self) -> int:
        return int(self.before.sum()) + int(self.reached.sum())

    def waiting(self) -> bool:
        return bool((~self.reached & (self.tried < len(self.nearest))).any())

    def step(self, batch: int, count: int | None) -> None:
        """Work on the nearest items that wait, those tried least before the others."""
        waits = self.order[(~self.reached & (self.tried < len(self.nearest)))[self.order]]
        chosen = waits[self.tried[waits].argsort(stable=True)][: min(batch, self.reach.rows)]
        start = self.nearest[self.tried[chosen], chosen]
        hit, x = self.reach(Aims(start, self.seeds[start], self.neuron[chosen], self.lower[chosen], self.upper[chosen]))
        self.tried[chosen] += 1
        if bool(hit.any()):
            self._keep(x[hit], start[hit], chosen[hit], count)

    def finish(self, count: int | None) -> None:
        """Where time is over before an item's turn came, an input that was tried for another one and covers it will do."""
        item = (~self.reached & (self.seen.place >= 0)).nonzero().flatten()
        if len(item):
            at = self.seen.place[item]
            self._keep(self.seen.x[at], self.seen.seed[at], item, count)

    def watch(self, x: Tensor, start: Tensor, values: Tensor) -> None:
        """Inputs (n, *shape) that are tried, the places of their seeds, the values (n, neurons) of all neurons."""
        item = (~self.reached).nonzero().flatten()
        value = values[:, self.neuron[item]]
        inside = (value >= self.lower[item]) & (value < self.upper[item])
        rows = inside.any(1).nonzero().flatten()
        if not len(rows):
            return
        changes = self.reach.units.changed(x[rows], self.seeds[start[rows]]).sum(1)
        fewest, row = torch.where(inside[rows], changes[:, None], NEAR + 1).min(0)
        nearer = (fewest < self.seen.changes[item]) & (fewest <= self.reach.limit)
        if bool(nearer.any()):
            self.seen.keep(item[nearer], fewest[nearer], row[nearer], x[rows], start[rows])

    def _keep(self, x: Tensor, start: Tensor, item: Tensor, count: int | None) -> None:
        """Of new inputs those that cover something new, the most first."""
        row, open_item = self._covers(x).unbind(1)
        sure = torch.bincount(row[open_item == item[row]], minlength=len(x)) > 0  # covers what it was made for, in this batch too
        row, open_item = row[sure[row]], open_item[sure[row]]
        while count is None or len(self.found) < count:
            fresh = torch.bincount(row[~self.reached[open_item]], minlength=len(x))
            best = int(fresh.argmax())
            if not int(fresh[best]):
                break
            mine = open_item[row == best]
            self.found.append(Test(x[best], int(start[best]), int(item[best]), mine))
            self.reached[mine] = True
        self.seen.forget(self.reached.nonzero().flatten())

    def _covers(self, x: Tensor) -> Tensor:
        """(n, *shape) -> (pairs, 2): a row, and an open item that it covers."""
        found, done = [], 0
        for values, _ in self.reach.neurons.read(x):
            row, neuron, kind = self.wanted.firmly(values).unbind(1)
            place = self.place[neuron, kind]
            found.append(torch.stack([row + done, place], dim=1)[place >= 0])
            done += len(values)
        return torch.cat(found)


def _nearest(neurons: Neurons, wanted: Items, seeds: Tensor, neuron: Tensor, kind: Tensor, tries: int) -> tuple[Tensor, Tensor]:
    """-> (tries, open) the seeds whose drive comes nearest to each item, (open,) how near the nearest comes, in the layer's scale."""
    lower, upper, scale = wanted.lower[neuron, kind], wanted.upper[neuron, kind], wanted.scale[neuron]
    gaps, rows, done = torch.empty(0, len(neuron)).to(lower), torch.empty(0, len(neuron), dtype=torch.int64, device=lower.device), 0
    for _, drives in neurons.read(seeds):
        drive = drives[:, neuron]
        here = torch.arange(done, done + len(drive), device=lower.device)[:, None].expand_as(drive)
        gaps, rows = torch.cat([gaps, torch.maximum(lower - drive, drive - upper)]), torch.cat([rows, here])
        gaps, best = gaps.topk(min(tries, len(gaps)), dim=0, largest=False)
        rows, done = rows.gather(0, best), done + len(drive)
    return rows, gaps[0] / scale.clamp_min(torch.finfo(scale.dtype).tiny)


def needed(found: list[Test], open_items: int) -> list[Test]:
    """Without tests whose every item another test covers; those that cover least go first."""
    if not found:
        return []
    times = torch.bincount(torch.cat([test.covers for test in found]), minlength=open_items)
    kept = set(range(len(found)))
    for place in sorted(kept, key=lambda p: len(found[p].covers)):
        covers = found[place].covers
        if bool((times[covers] > 1).all()):
            times[covers] -= 1
            kept.remove(place)
    return [found[place] for place in sorted(kept)]
