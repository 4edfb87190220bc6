"""Upper bound in norm 0: greedy search with a beam for few changed units that violate the specification, then
exchange of units.

The search first evaluates every change of a single unit. Sets of changed units then grow by one unit at a
time; the best sets are kept, and their extensions are ranked again. When a set is a counterexample, units
that are not needed are restored, and the search continues among sets with one unit less: one unit is restored
and another one changed, as long as the margin decreases. Where gradients exist they select the candidates.

Networks for large inputs answer few queries in a second, so there the search begins with the cheapest questions: units
are accumulated along the gradient (`accumulation`), then a narrow search with a beam of NARROW_BEAM sets tries few
candidates exactly, and only then the search described above begins, among sets smaller than the best one.

The nearest class by margin does not always need the fewest units, so each input is searched along several
lanes at once: one lane minimises the score of the specification, each other lane the margin to a single
class. Lanes of an input share their counterexamples.
"""

import functools
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from holdfast import batch
from holdfast.errors import BadInput
from holdfast.hamming.accumulation import Accumulation, accumulate_units, start_accumulation
from holdfast.hamming.directions import Lanes, create_lanes
from holdfast.hamming.judge_outputs import judge_outputs
from holdfast.hamming.top_sets import occurring_groups, select_best
from holdfast.method import Claims, Method
from holdfast.problem import Problem
from holdfast.property import Property
from holdfast.region.unit_choices import QUERY_NUMBERS, TriedValues, UnitChoices, replace_unit
from holdfast.result import Traits

# Without gradients this many times as many candidates are tried behind each set (chosen by hand).
BLIND_FACTOR = 8
# Sets and candidates of the narrow search that comes first for large inputs (chosen by hand).
NARROW_BEAM = 2
NARROW_CANDIDATES = 8
# Single changes that are evaluated for large inputs, as the numbers in all these inputs: 445 changes of 224 x 224 pixels
# in colour (chosen by hand).
SWEEP_NUMBERS = 2**26
PATIENCE_UNITS = 16  # Stop growing a set after this many added units without a lower score (chosen by hand).


@dataclass(frozen=True)
class Sets:
    """Inputs with some changed units, any number of them for each lane."""

    lane: Tensor  # (n,)
    x: Tensor  # (n, units, parts)
    score: Tensor  # (n,) objective of the lane
    margin: Tensor  # (n,) score of the specification
    fails: Tensor  # (n,) bool

    def take(self, which: Tensor) -> "Sets":
        return Sets(self.lane[which], self.x[which], self.score[which], self.margin[which], self.fails[which])

    @staticmethod
    def concatenate(first: "Sets", second: "Sets") -> "Sets":
        return Sets(
            *(
                torch.cat([getattr(first, name), getattr(second, name)])
                for name in ("lane", "x", "score", "margin", "fails")
            )
        )


@dataclass(frozen=True)
class GreedyState:
    """The state of the search."""

    choices: UnitChoices
    lanes: Lanes
    mark: Tensor  # (units,) int64, random: sums of these identify sets of units
    order: Tensor  # the single changes to evaluate first, as indices into (units * values)
    asked: int  # number of single changes evaluated
    # (lanes, units * values): the objective after each single change, infinite where it is not known
    ranking: Tensor
    turn: int  # the input that moves next, if not all fit into a step
    beam: Sets
    growing: Tensor  # (batch,) bool: sets may still grow
    open: Tensor  # (lanes,) bool: not done
    stalled: Tensor  # (lanes,) number of steps since the lowest objective last decreased
    lowest: Tensor  # (lanes,) lowest objective
    witness: Tensor  # (batch, units, parts)
    best: Tensor  # (batch,) float64: number of changed units of the witness; for goal `worst` its score
    seed: int
    # The steps that come first for large inputs: None if there are none, or once they are done.
    accumulation: Accumulation | None = None
    narrow: bool = False


@dataclass(frozen=True)
class Greedy(Method[GreedyState]):
    """Greedy search for few changed units; it needs outputs only, gradients make it faster.

    Attributes:
        beam: sets of units kept for each input, shared among its lanes.
        lanes: lanes of each input, if the specification has as many rows: one for its score, the others for
            the rows nearest to violation.
        candidates: changes tried behind each set: this many by gradient and this many by their rank among
            single changes. Without gradients eight times as many by rank.
        values: values tried for each number, evenly spaced over the domain; a region with levels has its own.
        sweep: single changes evaluated first; of more than these a random choice.
    """

    finds: ClassVar[str] = "witnesses with few changed units or words"
    help: ClassVar[str] = "greedy search with a beam, then exchange"
    traits: ClassVar[Traits] = Traits(glass=True)
    has_opening: ClassVar[bool] = True

    beam: int = 12
    lanes: int = 6
    candidates: int = 16
    values: int = 2
    sweep: int = 20_000

    def __post_init__(self) -> None:
        self.at_least(beam=1, lanes=1, candidates=1, sweep=1)
        if self.values < 2:
            raise BadInput(f"Greedy: values must be at least 2, the bounds of the domain; got {self.values}.")

    def obstacle(self, problem: Problem) -> str | None:
        return (
            None
            if problem.region.changes_units
            else "searches few changed units; the radius of this region is not a count of units"
        )

    def start(self, problem: Problem, seed: int) -> GreedyState:
        table = self._choices(problem, torch.Generator().manual_seed(seed))
        none = torch.full((len(problem),), torch.inf, dtype=torch.float64, device=table.centre.device)
        if not (
            table.large
            and problem.region.unit_grid is not None
            and not problem.region.embedded
            and problem.network.differentiable
            and problem.bounds_radius
        ):
            return self._start_search(problem, seed, table.centre, none)
        state = self._narrow()._start_search(problem, seed, table.centre, none, sweep=False)
        return replace(state, accumulation=start_accumulation(table, _max_units(problem) >= 1), narrow=True)

    def _choices(self, problem: Problem, generator: torch.Generator) -> UnitChoices:
        trees = problem.network.trees
        thresholds = None if trees is None else trees.thresholds
        return problem.region.unit_choices(TriedValues(self.values, thresholds=thresholds), generator)

    def _narrow(self) -> "Greedy":
        """The search with few sets and candidates, which comes first for large inputs."""
        return replace(
            self,
            beam=min(self.beam, NARROW_BEAM),
            lanes=1,
            candidates=min(self.candidates, NARROW_CANDIDATES),
        )

    def _start_search(
        self, problem: Problem, seed: int, witness: Tensor, best: Tensor, *, sweep: bool = True
    ) -> GreedyState:
        """The state before the first step, with the counterexamples that are known.

        sweep: begin with single changes.
        """
        generator = torch.Generator().manual_seed(seed)
        table = self._choices(problem, generator)
        places = table.units * table.values
        most = self.sweep
        if table.large:
            most = min(most, max(1, SWEEP_NUMBERS // table.centre[0].numel()))
        order = (
            torch.arange(places)
            if places <= most
            else self._steepest_changes(problem, table)[:most]
            if table.large and problem.network.differentiable
            else torch.randperm(places, generator=generator)[:most]
        )
        lanes = create_lanes(problem, self.lanes)
        count, like = len(lanes.whole), problem.region.centre
        lane, infinite = torch.arange(count, device=like.device), like.new_full((count,), torch.inf)
        may_change = _size_limit(problem, best) >= 1
        return GreedyState(
            choices=table,
            lanes=lanes,
            mark=torch.randint(-(2**62), 2**62, (table.units,), generator=generator).to(like.device),
            order=order[: None if sweep else 0].to(like.device),
            asked=0,
            ranking=like.new_full((count, places), torch.inf),
            turn=0,
            beam=Sets(lane, table.centre.repeat_interleave(lanes.each, 0), infinite, infinite, lane < 0),
            growing=may_change,
            open=may_change.repeat_interleave(lanes.each),
            stalled=torch.zeros_like(lane),
            lowest=infinite,
            witness=witness,
            best=best,
            seed=seed,
        )

    def _steepest_changes(self, problem: Problem, table: UnitChoices) -> Tensor:
        """Return (units * values,): indices of all single changes, the largest linearised decrease first.

        The order is common to all inputs: of each change the largest decrease among them counts.
        """
        fall = table.centre.new_full((table.units * table.values,), torch.inf)
        for row in torch.arange(len(problem), device=fall.device).split(1):
            prop = batch.take(problem.property, row)
            slope = problem.network.score_and_gradient(table.as_inputs(table.centre[row]), prop.score)[1]
            change = (table.table[row] - table.centre[row][:, :, None]) * table.as_units(slope)[
                :, :, None
            ].to(fall)
            fall = torch.minimum(fall, change.sum(-1).masked_fill(~table.open[row], torch.inf).flatten())
        return fall.argsort(stable=True)

    def is_opening(self, state: GreedyState) -> bool:
        return state.accumulation is not None and bool(state.accumulation.open.any())

    def step(self, problem: Problem, state: GreedyState) -> tuple[GreedyState | None, Claims]:
        if state.accumulation is not None and self.is_opening(state):
            state = self._accumulate(problem, state, state.accumulation)
        elif state.narrow:
            state = self._search_narrowly(problem, state)
        else:
            state = self._search(problem, state)
        claims = Claims(witness=state.choices.as_inputs(state.witness), found=state.best.isfinite())
        return state if state.narrow or bool(state.open.any()) else None, claims

    def _accumulate(self, problem: Problem, state: GreedyState, accumulation: Accumulation) -> GreedyState:
        accumulation, found = accumulate_units(
            problem, state.choices, accumulation, state.best, state.witness
        )
        if found is not None:
            lane, margin = torch.tensor([found.row], device=state.best.device), found.margin[None]
            sets = Sets(lane, found.x[None], margin, margin, torch.ones_like(lane, dtype=torch.bool))
            state = self._record_witness(problem, state, sets)
        if not bool(accumulation.open.any()):
            begun = self._narrow()._start_search(problem, state.seed, state.witness, state.best, sweep=False)
            return replace(begun, narrow=True)
        return replace(state, accumulation=accumulation)

    def _search_narrowly(self, problem: Problem, state: GreedyState) -> GreedyState:
        """One step of the narrow search; once it is done, begin the wide one with its counterexamples."""
        if bool(state.open.any()):
            state = self._narrow()._search(problem, state)
        if bool(state.open.any()):
            return state
        return self._start_search(problem, state.seed, state.witness, state.best)

    def _search(self, problem: Problem, state: GreedyState) -> GreedyState:
        return self._sweep(problem, state) if state.asked < len(state.order) else self._move(problem, state)

    def _sweep(self, problem: Problem, state: GreedyState) -> GreedyState:
        """Evaluate the next single changes of every input, whatever their rank: one may be a
        counterexample.
        """
        table, each = state.choices, state.lanes.each
        part = state.order[state.asked :][: max(1, table.per_step * each // max(1, int(state.open.sum())))]
        row, index = (table.open.flatten(1)[:, part] & state.open[::each, None]).nonzero(as_tuple=True)
        state = replace(state, asked=state.asked + len(part))
        if not len(row):
            return state
        place = part[index]
        unit, value = place // table.values, table.table.flatten(1, 2)[row, place]
        lanes = row[:, None] * each + torch.arange(each, device=row.device)
        score, margin, fails = self._evaluate_changes(problem, state, lanes, table.centre, row, unit, value)
        best = select_best(row, place, margin, fails, 1)
        found = Sets(
            row[best] * each,
            replace_unit(table.centre[row[best]], unit[best], value[best]),
            margin[best],
            margin[best],
            fails[best],
        )
        return replace(
            self._record_witness(problem, state, found),
            ranking=state.ranking.index_put((lanes, place[:, None]), score),
            open=state.open & ~occurring_groups(row[fails], len(problem)).repeat_interleave(each),
        )

    def _move(self, problem: Problem, state: GreedyState) -> GreedyState:
        """Grow growing sets by one unit and exchange a unit of the others; shrink sets that are
        counterexamples.
        """
        table, each = state.choices, state.lanes.each
        now, turn = self._turn(problem, state)
        waiting = state.beam.take((state.open & ~now)[state.beam.lane])
        live = state.beam.take((state.open & now)[state.beam.lane])
        grows = state.growing[live.lane // each]
        member, removed = (table.changed_units(live.lane // each, live.x) & ~grows[:, None]).nonzero(
            as_tuple=True
        )
        grown = self._children(problem, state, live, grows.nonzero().flatten(), None)
        sets = self._keep_best(
            state, Sets.concatenate(grown, self._children(problem, state, live, member, removed))
        )
        least = _lowest_objective(sets, len(state.open))
        stalled = torch.where(least < state.lowest, 0, state.stalled + now.int())
        growing = state.growing.repeat_interleave(each)
        goes_on = torch.where(growing, least.isfinite() & (stalled < PATIENCE_UNITS), stalled == 0)
        row = sets.lane // each
        full = row[table.changed_units(row, sets.x).sum(-1) >= _size_limit(problem, state.best)[row]]
        broken = occurring_groups(row[sets.fails], len(problem))
        state = replace(
            self._record_witness(problem, state, sets),
            turn=turn,
            beam=Sets.concatenate(waiting, sets.take(~broken[row])),
            growing=state.growing & ~occurring_groups(full, len(problem)),
            open=state.open & (goes_on | broken.repeat_interleave(each) | ~now),
            stalled=stalled,
            lowest=torch.minimum(least, state.lowest),
        )
        return self._shrink_sets(problem, state, sets.take(broken[row]))

    def _turn(self, problem: Problem, state: GreedyState) -> tuple[Tensor, int]:
        """Return the lanes (lanes,) bool that move in this step, and the input that comes next: a step takes
        as many inputs as fit.
        """
        table, each, count = state.choices, state.lanes.each, len(problem)
        row = state.beam.lane // each
        bases = (
            torch.where(state.growing[row], 1, table.changed_units(row, state.beam.x).sum(-1))
            * state.open[state.beam.lane]
        )
        tries = (2 if problem.network.differentiable else BLIND_FACTOR) * self.candidates
        cost = torch.zeros(count, dtype=torch.int64, device=row.device).index_add(0, row, bases * tries)
        order = (torch.arange(count, device=row.device) + state.turn) % count
        chosen = order[cost[order].cumsum(0) - cost[order] < table.per_step]
        return occurring_groups(chosen, count).repeat_interleave(each), int(chosen[-1] + 1) % count

    def _shrink_sets(self, problem: Problem, state: GreedyState, sets: Sets) -> GreedyState:
        """Restore one unit of each counterexample after the other until no set of the input is a
        counterexample.
        """
        table, each = state.choices, state.lanes.each
        every_single = len(state.order) == table.units * table.values
        while len(sets.lane):
            sets = self._restore_one_unit(problem, state, sets)
            state = self._record_witness(problem, state, sets)
            row = sets.lane // each
            broken = occurring_groups(row[sets.fails], len(problem))
            ended = occurring_groups(row, len(problem)) & ~broken
            held = sets.take(ended[row])
            # No smaller set than a pair remains to be found, since every single change was evaluated.
            done = ended & (state.best <= (2 if every_single else 1))
            lanes = ended.repeat_interleave(each)
            state = replace(
                state,
                beam=Sets.concatenate(state.beam, held),
                growing=state.growing & ~ended,
                open=state.open & ~done.repeat_interleave(each),
                lowest=torch.where(lanes, _lowest_objective(held, len(lanes)), state.lowest),
            )
            sets = sets.take(broken[row])
        return state

    def _restore_one_unit(self, problem: Problem, state: GreedyState, sets: Sets) -> Sets:
        """Return the best sets with one changed unit less."""
        table, found = state.choices, []
        for which, x in table.restored_variants(sets.lane // state.lanes.each, sets.x):
            lane = sets.lane[which]
            score, margin, fails = self._judge_sets(problem, state, lane[:, None], x)
            found.append(self._keep_best(state, Sets(lane, x, score.squeeze(1), margin, fails)))
        return self._keep_best(state, functools.reduce(Sets.concatenate, found))

    def _judge_sets(
        self, problem: Problem, state: GreedyState, lane: Tensor, x: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Evaluate inputs (n, units, parts) for lanes (n, k): objectives (n, k), scores of the specification
        (n,) and failures (n,).
        """
        outputs = problem.network(state.choices.as_inputs(x))
        margin, fails = judge_outputs(problem, lane[:, 0] // state.lanes.each, outputs)
        return state.lanes.score(lane, outputs, margin), margin, fails

    def _evaluate_changes(
        self,
        problem: Problem,
        state: GreedyState,
        lane: Tensor,
        x: Tensor,
        base: Tensor,
        unit: Tensor,
        value: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Do the same as `_judge_sets` for inputs x[base] in which one unit has a new value; base, unit (n,),
        value (n, parts).
        """
        pieces = zip(*(part.split(state.choices.at_once) for part in (lane, base, unit, value)), strict=True)
        answers = [
            self._judge_sets(problem, state, lanes, replace_unit(x[b], u, v)) for lanes, b, u, v in pieces
        ]
        score, margin, fails = (torch.cat(part) for part in zip(*answers, strict=True))
        return score, margin, fails

    def _keep_best(self, state: GreedyState, sets: Sets) -> Sets:
        """Return the best sets of each lane."""
        key = (state.choices.changed_units(sets.lane // state.lanes.each, sets.x) * state.mark).sum(-1)
        return sets.take(select_best(sets.lane, key, sets.score, sets.fails, self._sets_per_lane(state)))

    def _sets_per_lane(self, state: GreedyState) -> int:
        """Number of sets kept for each lane."""
        return -(-self.beam // state.lanes.each)

    def _record_witness(self, problem: Problem, state: GreedyState, sets: Sets) -> GreedyState:
        """Store the best of these sets where it is better than the known counterexample."""
        if problem.bounds_radius:
            sets = sets.take(sets.fails)
            # Of two sets of equal size prefer the one that fails by more.
            sets = sets.take(sets.margin.argsort(stable=True))
        row = sets.lane // state.lanes.each
        value = (
            state.choices.changed_units(row, sets.x).sum(-1).double()
            if problem.bounds_radius
            else sets.margin.double()
        )
        best = select_best(row, torch.arange(len(row), device=row.device), value, sets.fails, 1)
        best = best[value[best] < state.best[row[best]]]
        row = row[best]
        return replace(
            state,
            witness=state.witness.index_put((row,), sets.x[best]),
            best=state.best.index_put((row,), value[best]),
        )

    def _children(
        self, problem: Problem, state: GreedyState, sets: Sets, member: Tensor, removed: Tensor | None
    ) -> Sets:
        """Return the best sets with one more changed unit than sets[member], after the unit `removed` of each
        was restored.
        """
        at_once = max(1, 32 * QUERY_NUMBERS // state.choices.table[0].numel())
        found = [sets.take(member[:0])]
        for start in range(0, len(member), at_once):
            part = slice(start, start + at_once)
            found.append(
                self._few_children(
                    problem, state, sets.take(member[part]), None if removed is None else removed[part]
                )
            )
        return functools.reduce(Sets.concatenate, found)

    def _few_children(
        self, problem: Problem, state: GreedyState, bases: Sets, removed: Tensor | None
    ) -> Sets:
        table, lane, x = state.choices, bases.lane, bases.x
        row = lane // state.lanes.each
        options, allowed = table.table[row], table.open[row] & ~table.changed_units(row, x)[..., None]
        if removed is not None:  # The restored unit may change again, but not to its former value.
            here = torch.arange(len(row), device=row.device)
            allowed[here, removed] = table.open[row, removed] & (
                options[here, removed] != x[here, removed, None]
            ).any(-1)
            x = replace_unit(x, removed, table.centre[row, removed])
        ranking = state.ranking[lane].reshape(allowed.shape)
        if problem.network.differentiable:
            slope = self._slopes(problem, state, lane, x)
            if table.sampled:
                corner = _corners(problem, table, row, slope)
                options = torch.cat([options, corner[:, :, None]], 2)
                allowed = torch.cat([allowed, (allowed.any(-1) & (corner != x).any(-1))[..., None]], 2)
                ranking = torch.nn.functional.pad(ranking, (0, 1), value=torch.inf)
            rise = ((options - x[:, :, None]) * slope[:, :, None]).sum(-1)
            orders = (rise, ranking) if len(state.order) else (rise,)
            base, place = _pick_candidates(orders, allowed, self.candidates)
        else:
            base, place = _pick_candidates((ranking,), allowed, BLIND_FACTOR * self.candidates)
        if not len(base):
            return bases.take(base)
        unit, value = place // options.shape[2], options.flatten(1, 2)[base, place]
        scores, margin, fails = self._evaluate_changes(problem, state, lane[base, None], x, base, unit, value)
        score = scores.squeeze(1)
        key = (table.changed_units(row, x) * state.mark).sum(-1)[base] + state.mark[unit]
        best = select_best(lane[base], key, score, fails, self._sets_per_lane(state))
        chosen = base[best]
        return Sets(
            lane[chosen],
            replace_unit(x[chosen], unit[best], value[best]),
            score[best],
            margin[best],
            fails[best],
        )

    def _slopes(self, problem: Problem, state: GreedyState, lane: Tensor, x: Tensor) -> Tensor:
        """Return the gradient of each lane's objective, (n, units, parts), at x (n, units, parts) for lanes
        (n,).
        """
        table, slopes = state.choices, []
        for lanes, some in zip(lane.split(table.at_once), x.split(table.at_once), strict=True):
            prop = batch.take(problem.property, lanes // state.lanes.each)

            def score(outputs: Tensor, lanes: Tensor = lanes, prop: Property = prop) -> Tensor:
                return state.lanes.score(lanes[:, None], outputs, prop.score(outputs)).squeeze(1)

            slopes.append(table.as_units(problem.network.score_and_gradient(table.as_inputs(some), score)[1]))
        return torch.cat(slopes).to(x)


def _max_units(problem: Problem) -> Tensor:
    """Return (batch,): the largest number of units that a set may change."""
    limit = problem.family.limit()
    return limit if problem.bounds_radius else torch.minimum(limit, problem.family.radius.floor())


def _size_limit(problem: Problem, best: Tensor) -> Tensor:
    """Return (batch,): the largest number of units of a set that would improve on `best`."""
    limit = _max_units(problem)
    return torch.minimum(limit, best.to(limit) - 1) if problem.bounds_radius else limit


def _corners(problem: Problem, table: UnitChoices, row: Tensor, slope: Tensor) -> Tensor:
    """Return the values of each unit that decrease the linearised objective most, (n, units, parts)."""
    region = batch.take(problem.family, row)
    return table.as_units(region.at(region.limit()).vertex(table.as_inputs(slope)))


def _pick_candidates(orders: tuple[Tensor, ...], allowed: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Select the `count` smallest allowed entries of each order in turn, none twice; orders and allowed are
    (n, units, values).

    Returns rows and indices, (m,) each.
    """
    left = allowed.flatten(1)
    picked = torch.zeros_like(left)
    for order in orders:
        place = (
            order.flatten(1)
            .masked_fill(~left, torch.inf)
            .topk(min(count, left.shape[1]), dim=1, largest=False)
            .indices
        )
        picked = picked.scatter(1, place, True)
        left = left & ~picked
    base, place = (picked & allowed.flatten(1)).nonzero(as_tuple=True)
    return base, place


def _lowest_objective(sets: Sets, lanes: int) -> Tensor:
    """Return (lanes,): the lowest objective of each lane, infinite if it has no set."""
    return sets.score.new_full((lanes,), torch.inf).scatter_reduce(0, sets.lane, sets.score, "amin")
