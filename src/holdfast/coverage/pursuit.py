"""The pursuit of uncovered items: the nearest to the seeds first, many at once, and everything that an input covers is counted.

Items are worked on in blocks, and a block is told of when all of it is done. What is left is then all that a search needs to go on: which
block comes next, and the random numbers that it draws, depend on nothing else.
"""

from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from holdfast import time_limit
from holdfast.coverage.activate import ActivationReach, Aims, AimState, Units
from holdfast.coverage.question import Uncovered
from holdfast.method import Claims, Method
from holdfast.problem import Problem
from holdfast.random_streams import Chance
from holdfast.result import Setting, Traits

NEAR = 32  # units changed at most in an input that is kept because it happens to cover another item than it was tried for
AIM, SURE = (
    0.5,
    0.25,
)  # margins further inside than what is claimed: where a search aims, and what it counts as covered
SHARE = 2**12  # network evaluations of a step
MADE = "made"  # beside a record: the place of the seed that its test was made from, and the item that it was made for


@dataclass(eq=False)
class Hunt:
    """The items (n,) of a problem, and the block that is in work."""

    done: Tensor  # (n,) bool
    made: Tensor  # (n, 2): see MADE; NaN where there is no test
    fewest: Tensor  # (n,): units changed in the nearest test known
    chance: Chance
    tests: int  # found so far
    block: Tensor  # places of the items in work
    attempt: int = 0
    aimed: Tensor | None = None  # those of the block that the walk is for
    walk: AimState | None = None
    hits: list["Hit"] = field(default_factory=list)  # of the block
    lucky: Tensor | None = None  # (n, *shape): inputs that were tried for another item
    fresh: Tensor | None = None  # (n,) bool: those not told of yet


@dataclass(frozen=True, eq=False)
class Hit:
    """An input that reaches what it was made for."""

    x: Tensor
    seed: int  # its place
    item: int  # the place of what it was made for
    covers: Tensor  # (n,) bool
    changed: int  # units


@dataclass(frozen=True)
class Pursuit(Method[Hunt]):
    """beam: units tried alone in each round. block: items worked on at once. changes, tests: at most so many.

    hurried  time may run out before an item's turn comes, so what is tried for one item is looked at for all.
    known    tests that an earlier part of the run found.
    """

    finds: ClassVar[str] = "witnesses"
    help: ClassVar[str] = "inputs near given ones that bring a neuron where none of those did"
    traits: ClassVar[Traits] = Traits(glass=True)

    beam: int = 16
    block: int = 32
    changes: int | None = None
    tests: int | None = None
    hurried: bool = False
    known: int = 0

    def settings(self) -> dict[str, Setting]:
        return {name: value for name, value in super().settings().items() if name != "known"}

    def obstacle(self, problem: Problem) -> str | None:
        return None if isinstance(problem, Uncovered) else "tests are made for neurons: 'holdfast testgen'"

    def start(self, problem: Problem, seed: int) -> Hunt:
        none = torch.zeros(len(problem), dtype=torch.bool, device=problem.region.centre.device)
        made = torch.full((len(problem), 2), torch.nan, dtype=torch.float64)
        chance = Chance.of(problem.keys, seed, none.device)
        hunt = Hunt(
            none,
            made,
            torch.full_like(none, torch.inf, dtype=torch.float64),
            chance,
            self.known,
            none.nonzero().flatten(),
        )
        return self._next_block(Uncovered.of(problem), hunt)

    def update_bounds(self, problem: Problem, state: Hunt, lower: Tensor, upper: Tensor) -> Hunt:
        state.fewest = torch.minimum(
            state.fewest, upper + 1
        )  # a radius is one less than the changes that break it
        return state

    def step(self, problem: Problem, state: Hunt) -> tuple[Hunt | None, Claims]:
        """A bounded share of a block; what the block found is told at its end."""
        asked, before = Uncovered.of(problem), problem.network.queries
        reach = self._reach(asked, state)
        # What was offered until the search is cut off is claimed: every witness is replayed, whatever else was half done.
        time_limit.interrupt_late(
            lambda: self._advance(asked, state, reach, before + SHARE), None, time_limit.GRACE
        )
        claims = Claims(witness=state.lucky, found=state.fresh, done=state.done, aside={MADE: state.made})
        state.lucky, state.fresh = None, None
        return (state if len(state.block) else None), claims

    def _advance(self, problem: Uncovered, state: Hunt, reach: ActivationReach, queries: int) -> None:
        """Work on the block until all of it is done, the time is up, or the network was asked so many queries in all."""
        while len(state.block):
            if state.walk is None:
                self._aim(problem, state, reach)
            if state.walk is None:
                self._settle(problem, state)
                return
            if reach.advance(state.walk):
                self._gather(problem, state, reach)
            if time_limit.has_expired() or problem.network.queries >= queries:
                return

    # ---- what comes next

    def _next_block(self, problem: Uncovered, state: Hunt) -> Hunt:
        """To the next block: the first that wait."""
        enough = self.tests is not None and state.tests >= self.tests
        waits = (
            (~state.done)
            .nonzero()
            .flatten()[: 0 if enough else min(self.block, self._reach(problem, state).rows)]
        )
        state.block, state.attempt, state.aimed, state.walk, state.hits = waits, 0, None, None, []
        return state

    def _reach(self, problem: Uncovered, state: Hunt) -> ActivationReach:
        units = Units.of(problem.near)

        def watch(x: Tensor, place: Tensor, values: Tensor) -> None:
            self._watch(problem, state, units, x, place, values)

        limit = min(self.changes or units.count, units.count)
        return ActivationReach(problem.read, units, self.beam, limit, watch if self.hurried else None)

    def _aim(self, problem: Uncovered, state: Hunt, reach: ActivationReach) -> None:
        """The next attempt: what the block has not reached, each from its next seed."""
        reached = torch.stack([torch.zeros_like(state.done), *(hit.covers for hit in state.hits)]).any(0)
        state.aimed = rows = state.block[~reached[state.block]]
        if len(rows) and state.attempt < problem.nearest.shape[1]:
            place, ends = (
                problem.nearest[rows, state.attempt],
                (end[rows].to(problem.seeds) for end in problem.outside.within(AIM)),
            )
            chance = state.chance.take(rows).apart(state.attempt)
            state.walk = reach.begin(
                Aims(place, problem.seeds[place], problem.outside.neuron[rows], *ends), chance
            )

    # ---- what was found

    def _gather(self, problem: Uncovered, state: Hunt, reach: ActivationReach) -> None:
        """The end of an attempt. What does not cover its aim in this batch too is let go."""
        assert state.walk is not None
        assert state.aimed is not None
        hit = state.walk.fewest <= reach.limit
        x, place, item = state.walk.best[hit], state.walk.aims.place[hit], state.aimed[hit]
        if len(x):
            covers = torch.cat([problem.covers(values, SURE) for values, _ in problem.read.read_values(x)])
            changed = reach.units.changed_units(x, problem.seeds[place]).sum(1)
            every = zip(x, place.tolist(), item.tolist(), covers, changed.tolist(), strict=True)
            state.hits += [found for found in (Hit(*one) for one in every) if bool(found.covers[found.item])]
        state.walk, state.attempt = None, state.attempt + 1

    def _settle(self, problem: Uncovered, state: Hunt) -> None:
        """Of the inputs that the block found those that cover something new, the most first."""
        covers = torch.stack([torch.zeros_like(state.done), *(hit.covers for hit in state.hits)])[1:]
        fresh = (covers.any(0) & ~state.done).nonzero().flatten()
        covers = covers[:, fresh]
        while bool(covers.any()) and (self.tests is None or state.tests < self.tests):
            place = int(covers.sum(1).argmax())
            best, mine = state.hits[place], fresh[covers[place]]
            self._offer(problem, state, mine[best.changed < state.fewest[mine]], best.x, best.changed)
            state.made[mine.cpu()] = torch.tensor(
                [float(best.seed), float(problem.keys[best.item].index)], dtype=torch.float64
            )
            state.done[mine] = True
            state.tests += 1
            covers = covers & ~covers[place]
        state.done[state.block] = True
        self._next_block(problem, state)

    def _offer(self, problem: Problem, state: Hunt, rows: Tensor, x: Tensor, changed: Tensor | int) -> None:
        """Inputs for some rows, to be told of at the end of the step."""
        if state.lucky is None or state.fresh is None:
            state.lucky, state.fresh = problem.region.centre.clone(), torch.zeros_like(state.done)
        state.lucky[rows], state.fresh[rows] = x, True
        state.fewest[rows] = float(changed) if isinstance(changed, int) else changed.double()

    def _watch(
        self, problem: Uncovered, state: Hunt, units: Units, x: Tensor, place: Tensor, values: Tensor
    ) -> None:
        """Inputs (m, *shape) that are tried, the places of their seeds, the values (m, neurons) of all neurons."""
        inside = problem.covers(values, AIM) & ~state.done
        rows = inside.any(1).nonzero().flatten()
        if not len(rows):
            return
        changes = units.changed_units(x[rows], problem.seeds[place[rows]]).sum(1)
        fewest, row = torch.where(inside[rows], changes[:, None], NEAR + 1).min(0)
        nearer = (fewest < state.fewest) & (fewest <= min(NEAR, self.changes or NEAR))
        if bool(nearer.any()):
            chosen = rows[row[nearer]]
            self._offer(problem, state, nearer, x[chosen], fewest[nearer])
            own = [float(problem.keys[i].index) for i in nearer.nonzero().flatten().tolist()]
            state.made[nearer.cpu()] = torch.stack(
                [place[chosen].cpu().double(), torch.tensor(own, dtype=torch.float64)], 1
            )
