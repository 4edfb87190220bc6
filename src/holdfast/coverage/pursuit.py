"""The search for uncovered items: the nearest to the seeds first, many in one batch; everything that an input
covers is counted.

Items are processed in blocks, and the results of a block are reported when all of it is done. The remaining
items are then the whole state of the search: the next block and the random numbers that it draws depend on
nothing else.
"""

from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from holdfast import time_limit
from holdfast.coverage.activate import ActivationReach, Aims, AimState, Units
from holdfast.coverage.question import UncoveredItems
from holdfast.method import Claims, Method
from holdfast.problem import Problem
from holdfast.random_streams import RandomStreams
from holdfast.result import Setting, Traits

# An input is kept as a test of an item that it happens to cover only if it changes at most this many units
# (chosen by hand).
MAX_INCIDENTAL_UNITS = 32
# Additional margins inside the interval: where a search aims, and from where on it counts an item as covered
# (chosen by hand; AIM > SURE so that a found test stays valid in a batch of another size).
AIM, SURE = 0.5, 0.25
QUERIES_PER_STEP = 2**12  # Number of network evaluations after which a step ends (chosen by hand).
# The name of the extra of a record that holds the index of the seed of its test and the item that the test
# was made for.
PROVENANCE_KEY = "made"


@dataclass(eq=False)
class PursuitState:
    """The state of the search: the items (n,) of a problem, and the block that is being processed."""

    done: Tensor  # (n,) bool
    made: Tensor  # (n, 2): see MADE; NaN where there is no test
    fewest: Tensor  # (n,): number of units changed in the nearest test known
    chance: RandomStreams
    tests: int  # number of tests found
    block: Tensor  # indices of the items being processed
    attempt: int = 0
    aimed: Tensor | None = None  # the items of the block that the current attempt is for
    walk: AimState | None = None
    hits: list["Hit"] = field(default_factory=list)  # hits of the block
    lucky: Tensor | None = None  # (n, *shape): tests to report at the end of the step
    fresh: Tensor | None = None  # (n,) bool: the rows that have one


@dataclass(frozen=True, eq=False)
class Hit:
    """An input that reaches the item it was made for."""

    x: Tensor
    seed: int  # index of the seed
    item: int  # index of the item
    covers: Tensor  # (n,) bool
    changed: int  # number of changed units


@dataclass(frozen=True)
class Pursuit(Method[PursuitState]):
    """Search for inputs that cover the items.

    Attributes:
        beam: units tried alone in each round.
        block: items processed in one batch.
        changes: largest number of changed units; None: no limit.
        tests: largest number of tests; None: no limit.
        hurried: time may run out before an item's turn comes, so every input tried for one item is checked
            for all items.
        known: number of tests found by an earlier part of the run.
    """

    finds: ClassVar[str] = "witnesses"
    help: ClassVar[str] = "inputs near given ones that cover what the given ones do not"
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
        return (
            None if isinstance(problem, UncoveredItems) else "tests are made for neurons: 'holdfast testgen'"
        )

    def start(self, problem: Problem, seed: int) -> PursuitState:
        none = torch.zeros(len(problem), dtype=torch.bool, device=problem.region.centre.device)
        made = torch.full((len(problem), 2), torch.nan, dtype=torch.float64)
        chance = RandomStreams.of(problem.keys, seed, none.device)
        hunt = PursuitState(
            none,
            made,
            torch.full_like(none, torch.inf, dtype=torch.float64),
            chance,
            self.known,
            none.nonzero().flatten(),
        )
        return self._next_block(UncoveredItems.of(problem), hunt)

    def update_bounds(
        self, problem: Problem, state: PursuitState, lower: Tensor, upper: Tensor
    ) -> PursuitState:
        # The radius is one less than the smallest number of changes that violates the specification.
        state.fewest = torch.minimum(state.fewest, upper + 1)
        return state

    def step(self, problem: Problem, state: PursuitState) -> tuple[PursuitState | None, Claims]:
        """Process a bounded part of a block; its results are reported at the end of the block."""
        uncovered, before = UncoveredItems.of(problem), problem.network.queries
        reach = self._reach(uncovered, state)
        # Everything offered before a cut-off is claimed: every witness is replayed, even if the rest of the
        # block is incomplete.
        time_limit.interrupt_late(
            lambda: self._advance(uncovered, state, reach, before + QUERIES_PER_STEP), None, time_limit.GRACE
        )
        claims = Claims(
            witness=state.lucky, found=state.fresh, done=state.done, aside={PROVENANCE_KEY: state.made}
        )
        state.lucky, state.fresh = None, None
        return (state if len(state.block) else None), claims

    def _advance(
        self, problem: UncoveredItems, state: PursuitState, reach: ActivationReach, queries: int
    ) -> None:
        """Process the block until it is done, the time is up, or the network has answered this number of
        queries in total.
        """
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

    # ---- choosing what comes next

    def _next_block(self, problem: UncoveredItems, state: PursuitState) -> PursuitState:
        """Select the next block: the first items that are not done."""
        enough = self.tests is not None and state.tests >= self.tests
        waits = (
            (~state.done)
            .nonzero()
            .flatten()[: 0 if enough else min(self.block, self._reach(problem, state).rows)]
        )
        state.block, state.attempt, state.aimed, state.walk, state.hits = waits, 0, None, None, []
        return state

    def _reach(self, problem: UncoveredItems, state: PursuitState) -> ActivationReach:
        units = Units.of(problem.near)

        def watch(x: Tensor, place: Tensor, values: Tensor) -> None:
            self._watch(problem, state, units, x, place, values)

        limit = min(self.changes or units.count, units.count)
        return ActivationReach(problem.read, units, self.beam, limit, watch if self.hurried else None)

    def _aim(self, problem: UncoveredItems, state: PursuitState, reach: ActivationReach) -> None:
        """Start the next attempt: the items of the block not yet reached, each from its next seed."""
        reached = torch.stack([torch.zeros_like(state.done), *(hit.covers for hit in state.hits)]).any(0)
        state.aimed = rows = state.block[~reached[state.block]]
        if len(rows) and state.attempt < problem.nearest.shape[1]:
            place, ends = (
                problem.nearest[rows, state.attempt],
                (end[rows].to(problem.seeds) for end in problem.outside.within(AIM)),
            )
            chance = state.chance.take(rows).substream(state.attempt)
            state.walk = reach.begin(
                Aims(place, problem.seeds[place], problem.outside.neuron[rows], *ends), chance
            )

    # ---- collecting results

    def _gather(self, problem: UncoveredItems, state: PursuitState, reach: ActivationReach) -> None:
        """Finish an attempt. A result that does not cover its aim again in this batch is dropped."""
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

    def _settle(self, problem: UncoveredItems, state: PursuitState) -> None:
        """Select tests among the block's hits; hits that cover more new items come first."""
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

    def _offer(
        self, problem: Problem, state: PursuitState, rows: Tensor, x: Tensor, changed: Tensor | int
    ) -> None:
        """Store inputs for some rows, to be reported at the end of the step."""
        if state.lucky is None or state.fresh is None:
            state.lucky, state.fresh = problem.region.centre.clone(), torch.zeros_like(state.done)
        state.lucky[rows], state.fresh[rows] = x, True
        state.fewest[rows] = float(changed) if isinstance(changed, int) else changed.double()

    def _watch(
        self,
        problem: UncoveredItems,
        state: PursuitState,
        units: Units,
        x: Tensor,
        place: Tensor,
        values: Tensor,
    ) -> None:
        """Check inputs (m, *shape) tried for one item against all items, given their seeds' indices and the
        values (m, neurons) of all neurons.
        """
        inside = problem.covers(values, AIM) & ~state.done
        rows = inside.any(1).nonzero().flatten()
        if not len(rows):
            return
        changes = units.changed_units(x[rows], problem.seeds[place[rows]]).sum(1)
        fewest, row = torch.where(inside[rows], changes[:, None], MAX_INCIDENTAL_UNITS + 1).min(0)
        nearer = (fewest < state.fewest) & (
            fewest <= min(MAX_INCIDENTAL_UNITS, self.changes or MAX_INCIDENTAL_UNITS)
        )
        if bool(nearer.any()):
            chosen = rows[row[nearer]]
            self._offer(problem, state, nearer, x[chosen], fewest[nearer])
            own = [float(problem.keys[i].index) for i in nearer.nonzero().flatten().tolist()]
            state.made[nearer.cpu()] = torch.stack(
                [place[chosen].cpu().double(), torch.tensor(own, dtype=torch.float64)], 1
            )
