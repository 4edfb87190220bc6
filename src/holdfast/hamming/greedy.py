"""The upper bound: few changed units that break the property, by greedy search on the margin with a beam, then by exchange.

Every change of one unit is asked about first. Then sets of changed units grow one unit at a time; the best are kept, and what may follow is
ranked again behind each. When a set breaks the property, units that are not needed are put back, and the search goes on among sets of
one unit less: one unit is put back, another is changed, as long as the margin falls. Where there are gradients, they choose what to try.

The way to the nearest class is not always the shortest, so each input is searched along several lanes at once: one heads for whatever
class is nearest, the others each for one class. They share what they find.
"""

import functools
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from holdfast import batch
from holdfast.errors import BadInput
from holdfast.hamming.choices import ELEMENTS, MOST, UnitChoices, choices, column_choices, judge_outputs, put
from holdfast.hamming.directions import Lanes, lanes_of
from holdfast.hamming.top_sets import lowest, occur
from holdfast.method import Claims, Method
from holdfast.problem import Problem
from holdfast.property import Property
from holdfast.region import ChangedColumns, Sparse, Words
from holdfast.result import Traits

BLIND = 8  # times as many candidates where there is no gradient to choose them
COLUMN_VALUES = 9  # of a number in a table that are tried at least
PATIENCE = 16  # units that a set may grow by without a lower score


@dataclass(frozen=True)
class Sets:
    """Inputs with some changed units, any number of them for each lane."""

    lane: Tensor  # (n,)
    x: Tensor  # (n, units, parts)
    score: Tensor  # (n,) what the lane makes small
    margin: Tensor  # (n,) the property's score
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
    """What is known so far."""

    choices: UnitChoices
    lanes: Lanes
    mark: Tensor  # (units,) int64, random: their sums tell sets of units apart
    order: Tensor  # the single changes asked about first, as places in (units * values)
    asked: int  # how many of them were
    ranking: (
        Tensor  # (lanes, units * values): the score behind each single change, infinite where it is not known
    )
    turn: int  # the input that moves next, where not all fit into a step
    beam: Sets
    growing: Tensor  # (batch,) bool: sets may become larger
    open: Tensor  # (lanes,) bool: not done
    stalled: Tensor  # (lanes,) for how many steps the lowest score has not fallen
    lowest: Tensor  # (lanes,) that score
    witness: Tensor  # (batch, units, parts)
    best: Tensor  # (batch,) float64: the changed units of the witness; for goal `worst` its score


@dataclass(frozen=True)
class Greedy(Method[GreedyState]):
    """Needs nothing but answers; gradients make it faster.

    beam        sets of units kept for each input, shared among its lanes.
    lanes       of each input, where the property has as many rows: one for its score, the others for the rows nearest to breaking.
    candidates  changes tried behind each set: so many by gradient, so many by their rank among single changes. Without gradients
                eight times as many by rank.
    values      tried for each number, evenly over the domain with both bounds; a region with levels has its own.
    sweep       single changes asked about at first; of more than these a random choice.
    """

    finds: ClassVar[str] = "witnesses with few changed units or words"
    help: ClassVar[str] = "greedy search with a beam, then exchange"
    traits: ClassVar[Traits] = Traits(glass=True)

    beam: int = 12
    lanes: int = 6
    candidates: int = 16
    values: int = 2
    sweep: int = 20_000

    def __post_init__(self) -> None:
        self.at_least(beam=1, lanes=1, candidates=1, sweep=1)
        if self.values < 2:
            raise BadInput(f"Greedy: values must be at least 2, the ends of the domain; got {self.values}.")

    def obstacle(self, problem: Problem) -> str | None:
        return (
            None
            if isinstance(problem.region, Sparse | Words | ChangedColumns)
            else "looks for few changed units, which this region does not count"
        )

    def start(self, problem: Problem, seed: int) -> GreedyState:
        region = problem.region
        assert isinstance(region, Sparse | Words | ChangedColumns)
        generator = torch.Generator().manual_seed(seed)
        if isinstance(region, ChangedColumns):
            table: UnitChoices = column_choices(
                region, max(self.values, COLUMN_VALUES), problem.network.trees
            )
        else:
            table = choices(region, self.values, generator)
        places = table.units * table.values
        order = (
            torch.arange(places)
            if places <= self.sweep
            else torch.randperm(places, generator=generator)[: self.sweep]
        )
        lanes = lanes_of(problem, self.lanes)
        count, like = len(lanes.whole), region.centre
        lane, infinite = torch.arange(count, device=like.device), like.new_full((count,), torch.inf)
        may_change = _most(problem) >= 1
        return GreedyState(
            choices=table,
            lanes=lanes,
            mark=torch.randint(-(2**62), 2**62, (table.units,), generator=generator).to(like.device),
            order=order.to(like.device),
            asked=0,
            ranking=like.new_full((count, places), torch.inf),
            turn=0,
            beam=Sets(lane, table.centre.repeat_interleave(lanes.each, 0), infinite, infinite, lane < 0),
            growing=may_change,
            open=may_change.repeat_interleave(lanes.each),
            stalled=torch.zeros_like(lane),
            lowest=infinite,
            witness=table.centre,
            best=torch.full((len(problem),), torch.inf, dtype=torch.float64, device=like.device),
        )

    def step(self, problem: Problem, state: GreedyState) -> tuple[GreedyState | None, Claims]:
        state = self._sweep(problem, state) if state.asked < len(state.order) else self._move(problem, state)
        claims = Claims(witness=state.choices.as_inputs(state.witness), found=state.best.isfinite())
        return state if bool(state.open.any()) else None, claims

    def _sweep(self, problem: Problem, state: GreedyState) -> GreedyState:
        """The next single changes of every input, whatever is thought of them: one may be enough."""
        table, each = state.choices, state.lanes.each
        part = state.order[state.asked :][: max(1, table.per_step * each // max(1, int(state.open.sum())))]
        row, index = (table.open.flatten(1)[:, part] & state.open[::each, None]).nonzero(as_tuple=True)
        state = replace(state, asked=state.asked + len(part))
        if not len(row):
            return state
        place = part[index]
        unit, value = place // table.values, table.table.flatten(1, 2)[row, place]
        lanes = row[:, None] * each + torch.arange(each, device=row.device)
        score, margin, fails = self._answers(problem, state, lanes, table.centre, row, unit, value)
        best = lowest(row, place, margin, fails, 1)
        found = Sets(
            row[best] * each,
            put(table.centre[row[best]], unit[best], value[best]),
            margin[best],
            margin[best],
            fails[best],
        )
        return replace(
            self._record_witness(problem, state, found),
            ranking=state.ranking.index_put((lanes, place[:, None]), score),
            open=state.open & ~occur(row[fails], len(problem)).repeat_interleave(each),
        )

    def _move(self, problem: Problem, state: GreedyState) -> GreedyState:
        """One more unit for growing sets, an exchange for the others; where the property breaks, sets are made smaller."""
        table, each = state.choices, state.lanes.each
        now, turn = self._turn(problem, state)
        waiting = state.beam.take((state.open & ~now)[state.beam.lane])
        live = state.beam.take((state.open & now)[state.beam.lane])
        grows = state.growing[live.lane // each]
        member, removed = (table.changed_units(live.lane // each, live.x) & ~grows[:, None]).nonzero(
            as_tuple=True
        )
        grown = self._children(problem, state, live, grows.nonzero().flatten(), None)
        sets = self._chosen(
            state, Sets.concatenate(grown, self._children(problem, state, live, member, removed))
        )
        least = _least(sets, len(state.open))
        stalled = torch.where(least < state.lowest, 0, state.stalled + now.int())
        growing = state.growing.repeat_interleave(each)
        goes_on = torch.where(growing, least.isfinite() & (stalled < PATIENCE), stalled == 0)
        row = sets.lane // each
        full = row[table.changed_units(row, sets.x).sum(-1) >= _most(problem)[row]]
        broken = occur(row[sets.fails], len(problem))
        state = replace(
            self._record_witness(problem, state, sets),
            turn=turn,
            beam=Sets.concatenate(waiting, sets.take(~broken[row])),
            growing=state.growing & ~occur(full, len(problem)),
            open=state.open & (goes_on | broken.repeat_interleave(each) | ~now),
            stalled=stalled,
            lowest=torch.minimum(least, state.lowest),
        )
        return self._shrunk(problem, state, sets.take(broken[row]))

    def _turn(self, problem: Problem, state: GreedyState) -> tuple[Tensor, int]:
        """The lanes (lanes,) that move now, bool, and the input whose turn is next: a step takes as many inputs as fit."""
        table, each, count = state.choices, state.lanes.each, len(problem)
        row = state.beam.lane // each
        bases = (
            torch.where(state.growing[row], 1, table.changed_units(row, state.beam.x).sum(-1))
            * state.open[state.beam.lane]
        )
        tries = (2 if problem.network.differentiable else BLIND) * self.candidates
        cost = torch.zeros(count, dtype=torch.int64, device=row.device).index_add(0, row, bases * tries)
        order = (torch.arange(count, device=row.device) + state.turn) % count
        chosen = order[cost[order].cumsum(0) - cost[order] < table.per_step]
        return occur(chosen, count).repeat_interleave(each), int(chosen[-1] + 1) % count

    def _shrunk(self, problem: Problem, state: GreedyState, sets: Sets) -> GreedyState:
        """Inputs whose property broke: a unit of each set is put back, again and again until none of the sets breaks it any more."""
        table, each = state.choices, state.lanes.each
        every_single = len(state.order) == table.units * table.values
        while len(sets.lane):
            sets = self._smaller(problem, state, sets)
            state = self._record_witness(problem, state, sets)
            row = sets.lane // each
            broken = occur(row[sets.fails], len(problem))
            ended = occur(row, len(problem)) & ~broken
            held = sets.take(ended[row])
            # Behind a pair there is nothing to look for: every single change was asked about.
            done = ended & (state.best <= (2 if every_single else 1))
            lanes = ended.repeat_interleave(each)
            state = replace(
                state,
                beam=Sets.concatenate(state.beam, held),
                growing=state.growing & ~ended,
                open=state.open & ~done.repeat_interleave(each),
                lowest=torch.where(lanes, _least(held, len(lanes)), state.lowest),
            )
            sets = sets.take(broken[row])
        return state

    def _smaller(self, problem: Problem, state: GreedyState, sets: Sets) -> Sets:
        """The best sets with one changed unit less."""
        table, found = state.choices, []
        for which, x in table.one_put_back(sets.lane // state.lanes.each, sets.x):
            lane = sets.lane[which]
            score, margin, fails = self._judge_sets(problem, state, lane[:, None], x)
            found.append(self._chosen(state, Sets(lane, x, score.squeeze(1), margin, fails)))
        return self._chosen(state, functools.reduce(Sets.concatenate, found))

    def _judge_sets(
        self, problem: Problem, state: GreedyState, lane: Tensor, x: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """(n, k) lanes of one input each, (n, units, parts) -> scores of the lanes (n, k) and of the property (n,), failures (n,)."""
        outputs = state.choices.ask(problem, x)
        margin, fails = judge_outputs(problem, lane[:, 0] // state.lanes.each, outputs)
        return state.lanes.score(lane, outputs, margin), margin, fails

    def _answers(
        self, problem: Problem, state: GreedyState, lane: Tensor, x: Tensor, base: Tensor, unit: Tensor, value: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
        """As `_judge_sets`, of inputs x[base] in which a unit has a new value; base, unit (n,), value (n, parts)."""
        pieces = zip(*(part.split(state.choices.at_once) for part in (lane, base, unit, value)), strict=True)
        answers = [self._judge_sets(problem, state, lanes, put(x[b], u, v)) for lanes, b, u, v in pieces]
        score, margin, fails = (torch.cat(part) for part in zip(*answers, strict=True))
        return score, margin, fails

    def _chosen(self, state: GreedyState, sets: Sets) -> Sets:
        """The best sets of each lane."""
        key = (state.choices.changed_units(sets.lane // state.lanes.each, sets.x) * state.mark).sum(-1)
        return sets.take(lowest(sets.lane, key, sets.score, sets.fails, self._sets_per_lane(state)))

    def _sets_per_lane(self, state: GreedyState) -> int:
        """How many sets of one lane."""
        return -(-self.beam // state.lanes.each)

    def _record_witness(self, problem: Problem, state: GreedyState, sets: Sets) -> GreedyState:
        """With the best of these sets, where it is better than what was known."""
        if problem.goal == "radius":
            sets = sets.take(sets.fails)
            sets = sets.take(sets.margin.argsort(stable=True))  # of two as small, the one that fails by more
        row = sets.lane // state.lanes.each
        value = (
            state.choices.changed_units(row, sets.x).sum(-1).double()
            if problem.goal == "radius"
            else sets.margin.double()
        )
        best = lowest(row, torch.arange(len(row), device=row.device), value, sets.fails, 1)
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
        """The best sets with one more changed unit than sets[member], after the unit `removed` of each was put back."""
        at_once = max(1, 32 * ELEMENTS // state.choices.table[0].numel())
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
        if removed is not None:  # it may change again, but not to what it was
            here = torch.arange(len(row), device=row.device)
            allowed[here, removed] = table.open[row, removed] & (
                options[here, removed] != x[here, removed, None]
            ).any(-1)
            x = put(x, removed, table.centre[row, removed])
        ranking = state.ranking[lane].reshape(allowed.shape)
        if problem.network.differentiable:
            slope = self._slopes(problem, state, lane, x)
            if (
                isinstance(problem.region, Sparse) and 2 ** x.shape[-1] > MOST
            ):  # the table holds but a few of so many corners
                corner = _corners(problem, table, row, slope)
                options = torch.cat([options, corner[:, :, None]], 2)
                allowed = torch.cat([allowed, (allowed.any(-1) & (corner != x).any(-1))[..., None]], 2)
                ranking = torch.nn.functional.pad(ranking, (0, 1), value=torch.inf)
            rise = ((options - x[:, :, None]) * slope[:, :, None]).sum(-1)
            base, place = _pick_candidates((rise, ranking), allowed, self.candidates)
        else:
            base, place = _pick_candidates((ranking,), allowed, BLIND * self.candidates)
        if not len(base):
            return bases.take(base)
        unit, value = place // options.shape[2], options.flatten(1, 2)[base, place]
        scores, margin, fails = self._answers(problem, state, lane[base, None], x, base, unit, value)
        score = scores.squeeze(1)
        key = (table.changed_units(row, x) * state.mark).sum(-1)[base] + state.mark[unit]
        best = lowest(lane[base], key, score, fails, self._sets_per_lane(state))
        chosen = base[best]
        return Sets(
            lane[chosen], put(x[chosen], unit[best], value[best]), score[best], margin[best], fails[best]
        )

    def _slopes(self, problem: Problem, state: GreedyState, lane: Tensor, x: Tensor) -> Tensor:
        """(n,), (n, units, parts) -> the gradient of each lane's score, (n, units, parts)."""
        table, slopes = state.choices, []
        for lanes, some in zip(lane.split(table.at_once), x.split(table.at_once), strict=True):
            prop = batch.take(problem.property, lanes // state.lanes.each)

            def score(outputs: Tensor, lanes: Tensor = lanes, prop: Property = prop) -> Tensor:
                return state.lanes.score(lanes[:, None], outputs, prop.score(outputs)).squeeze(1)

            slopes.append(table.as_units(problem.network.score_and_gradient(table.as_inputs(some), score)[1]))
        return torch.cat(slopes).to(x)


def _most(problem: Problem) -> Tensor:
    """-> (batch,): how many units a set may change."""
    limit = problem.family.limit()
    return limit if problem.goal == "radius" else torch.minimum(limit, problem.family.radius.floor())


def _corners(problem: Problem, table: UnitChoices, row: Tensor, slope: Tensor) -> Tensor:
    """(n,), (n, units, parts) -> what each unit must become to fall furthest along the slope."""
    region = batch.take(problem.family, row)
    return table.as_units(region.at(region.limit()).vertex(table.as_inputs(slope)))


def _pick_candidates(orders: tuple[Tensor, ...], allowed: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Orders and allowed (n, units, values) -> (m,) rows and places: the `count` smallest of each order in turn, none twice."""
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


def _least(sets: Sets, lanes: int) -> Tensor:
    """-> (lanes,): the lowest score of each, infinite where it has no set."""
    return sets.score.new_full((lanes,), torch.inf).scatter_reduce(0, sets.lane, sets.score, "amin")
