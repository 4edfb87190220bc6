"""DeepTRE (Ruan et al. 2019): the sensitivity of every set of t units over a grid of values, computed in
batches.

The solution of a set S of t units is its grid point with the lowest score; the sensitivity of S is the
decrease of the score there:

    sensitivity(S) = score(centre) - min over grid points x that change only S of score(x).

Lower bound: if no grid point of any set of t units violates the specification, t is reported as an estimate;
nothing is known between the grid points. Upper bound: the solutions are laid over each other, most sensitive
first, until the specification is violated; then units that are not needed are restored.

Two corrections to the paper. It evaluates the most sensitive solution only, although another one may be a
counterexample; here every evaluated grid point counts. It ranks by the confidence in the class; here the
margin to the next class is the default, and rule="confidence" is the paper's.

Reference: W. Ruan et al., Global robustness evaluation of deep neural networks with provable guarantees for
the Hamming distance, 2019.
"""

import math
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from holdfast.errors import BadInput
from holdfast.hamming.judge_outputs import judge_outputs
from holdfast.hamming.top_sets import occurring_groups, select_best
from holdfast.method import Claims, Method
from holdfast.problem import Problem
from holdfast.property import Robustness, Targeted
from holdfast.property.probability import are_probabilities
from holdfast.region.unit_choices import TriedValues, UnitChoices, index_product
from holdfast.result import Goal, Traits

Rule = Literal["margin", "confidence"]
BYTES_PER_GRID_POINT = 128  # Memory planned for each grid point of a step, in bytes (chosen by hand).
OVERLAYS_PER_QUERY = 16  # Number of overlays of each row that are evaluated in one batch (chosen by hand).


@dataclass(frozen=True)
class Top:
    """The most sensitive sets of each row, in decreasing order; minus infinity where there are fewer."""

    sensitivity: Tensor  # (batch, kept)
    place: Tensor  # (batch, kept): index of the set
    value: Tensor  # (batch, kept): index of its combination of values


@dataclass(frozen=True)
class GridState:
    """The state of the enumeration."""

    choices: UnitChoices
    at_centre: Tensor  # (batch,) what the rule measures at the input
    size: int  # number of units in the sets being evaluated
    next: int  # index of the first set that was not evaluated
    order: Tensor  # (batch, units): the order in which units form sets
    single: Tensor  # (batch, units): sensitivities of single units
    top: Top
    open: Tensor  # (batch,) bool: no counterexample was found, and there may be one
    witness: Tensor  # (batch, units, parts)
    changed: Tensor  # (batch,) float64: number of changed units of the witness


@dataclass(frozen=True)
class Grid(Method[GridState]):
    """Evaluate all sets of one unit, then of two, up to `t`.

    Attributes:
        levels: values for each number, evenly spaced over the domain; a region with levels has its own, and
            all are tried.
        rule: what the sensitivity measures: the margin, or the confidence in the class as in the paper.
        keep: sets of each row that are stored for the upper bound.
        memory: MiB for the data of a step; the network's own activations are not included.
    """

    finds: ClassVar[str] = "DeepTRE's estimates and witnesses"
    help: ClassVar[str] = "DeepTRE: sensitivities of all sets of up to two units over a grid"
    traits: ClassVar[Traits] = Traits(glass=False)
    goals: ClassVar[tuple[Goal, ...]] = ("radius",)

    t: int = 2
    levels: int = 2
    rule: Rule = "margin"
    keep: int = 4096
    memory: int = 256

    def __post_init__(self) -> None:
        self.at_least(t=1, levels=2, keep=1, memory=1)
        if self.rule not in ("margin", "confidence"):
            raise BadInput(f"Grid: rule {self.rule!r} is unknown; there are margin, confidence.")

    def obstacle(self, problem: Problem) -> str | None:
        if problem.region.unit_grid is None:
            return "counts changed units; this problem has another region"
        if self.rule == "confidence" and not isinstance(problem.property, Robustness | Targeted):
            return "rule 'confidence' needs a property of a class"
        return None

    def start(self, problem: Problem, seed: int) -> GridState:
        region, rows = problem.region, len(problem)
        generator = torch.Generator().manual_seed(seed)
        table = region.unit_choices(TriedValues(self.levels, every_level=True), generator)
        if self.t > table.units:
            raise BadInput(
                f"Grid: sets of t={self.t} units, but the inputs have only {table.units}; choose a smaller t."
            )
        if self._pairs(table, self.t) < 1:
            raise BadInput(
                f"Grid: {table.values} values for each of {self.t} units are {table.values**self.t} inputs "
                "for every set, more than "
                f"{self.memory} MiB hold. Choose a smaller t, fewer values, or more memory."
            )
        row = torch.arange(rows, device=table.centre.device)
        outputs = problem.network(region.centre)
        return GridState(
            choices=table,
            at_centre=self._sensitivity(problem, row, outputs, judge_outputs(problem, row, outputs)[0]),
            size=1,
            next=0,
            order=torch.arange(table.units, device=row.device).expand(rows, -1),
            single=table.centre.new_full((rows, table.units), -torch.inf),
            top=_nothing(table, row[:0]),
            open=table.open.flatten(1).any(1),
            witness=table.centre,
            changed=torch.full((rows,), torch.inf, dtype=torch.float64, device=row.device),
        )

    def step(self, problem: Problem, state: GridState) -> tuple[GridState | None, Claims]:
        table, total = state.choices, math.comb(state.choices.units, state.size)
        row = state.open.nonzero().flatten()
        count = min(total - state.next, max(1, table.per_step // (len(row) * table.values**state.size)))
        place = torch.arange(state.next, state.next + count, device=row.device)
        found = _nothing(table, place)
        pairs = torch.cartesian_prod(row, torch.arange(count, device=row.device)).reshape(-1, 2)
        for part in pairs.split(self._pairs(table, state.size)):
            state, found = self._query_sets(problem, state, found, part[:, 0], part[:, 1])
        if state.size == 1:
            state = replace(state, single=state.single.index_copy(1, place, found.sensitivity))
        state = replace(state, next=state.next + count, top=_merge_top(state.top, found, self.keep))
        if state.next == total:
            return self._level_done(problem, state)
        return state if bool(state.open.any()) else None, _claims(state)

    def _pairs(self, table: UnitChoices, size: int) -> int:
        """Number of sets of this size that one batch holds."""
        return self.memory * 2**20 // (BYTES_PER_GRID_POINT * int(table.values**size))

    def _query_sets(
        self, problem: Problem, state: GridState, found: Top, row: Tensor, index: Tensor
    ) -> tuple[GridState, Top]:
        """Evaluate the sets found.place[row, index] at all their grid points; rows with a counterexample are
        done.
        """
        table = state.choices
        unit = state.order[row[:, None], subsets(found.place[row, index], state.size, table.units)]
        whole = table.open.any(-1)[row[:, None], unit].all(-1)  # No unit of the set is locked.
        row, index, unit = row[whole], index[whole], unit[whole]
        digit = index_product(table.values, state.size).to(row.device)
        allowed = _distinct(table)[row[:, None, None], unit[:, None], digit].all(-1)  # (pairs, points)
        pair, point = allowed.nonzero(as_tuple=True)
        measure = state.single.new_full(allowed.shape, torch.inf)
        for some, values in zip(pair.split(table.at_once), point.split(table.at_once), strict=True):
            if not len(some):
                continue
            x = _lay_out_values(table, row[some], unit[some], digit[values])
            outputs = problem.network(table.as_inputs(x))
            margin, fails = judge_outputs(problem, row[some], outputs)
            measure[some, values] = self._sensitivity(problem, row[some], outputs, margin)
            broken = row[some[fails]]
            state = replace(
                _record_witness(state, broken, x[fails]),
                open=state.open & ~occurring_groups(broken, len(problem)),
            )
        least, value = measure.min(1) if len(row) else (measure.sum(1), index)
        fall = (state.at_centre[row] - least).nan_to_num(nan=-torch.inf)
        return state, replace(
            found,
            sensitivity=found.sensitivity.index_put((row, index), fall),
            value=found.value.index_put((row, index), value),
        )

    def _sensitivity(self, problem: Problem, row: Tensor, outputs: Tensor, margin: Tensor) -> Tensor:
        """Return (n,): the quantity whose decrease is the sensitivity."""
        if self.rule == "margin":
            return margin
        assert isinstance(problem.property, Robustness | Targeted)
        shares = are_probabilities(outputs)[:, None]  # The network ends in a softmax.
        confidence = torch.where(shares, outputs, outputs.softmax(-1))
        return confidence.gather(1, problem.property.label[row][:, None]).squeeze(1)

    def _level_done(self, problem: Problem, state: GridState) -> tuple[GridState | None, Claims]:
        """Finish a size: rows without a counterexample get an estimate and an upper bound."""
        table = state.choices
        units = table.open.any(-1).sum(1)
        held = state.open
        state = self._overlay_solutions(problem, state)
        open = held & (state.changed > state.size + 1) & (units > state.size)
        claims = replace(
            _claims(state),
            estimate=torch.where(held, units.clamp_max(state.size).double(), torch.nan),
            assumptions=(
                f"every set of up to {state.size} units was evaluated at {table.values} values for each "
                "unit, and at no value between them",
            ),
        )
        if state.size == self.t or not bool(open.any()):
            return None, claims
        order = state.single.argsort(dim=1, descending=True) if state.size == 1 else state.order
        none = _nothing(table, torch.zeros(0, dtype=torch.int64, device=order.device))
        return replace(state, open=open, size=state.size + 1, next=0, order=order, top=none), claims

    def _overlay_solutions(self, problem: Problem, state: GridState) -> GridState:
        """Lay the solutions over each other until the specification is violated, then restore units that are
        not needed.
        """
        table = state.choices
        for row in state.open.nonzero().flatten().split(max(1, 8 * table.at_once // OVERLAYS_PER_QUERY)):
            stage, target = _stages(state, row)
            for first in range(0, table.units, OVERLAYS_PER_QUERY):
                # (rows, units, overlays)
                later = stage[..., None] > torch.arange(first, first + OVERLAYS_PER_QUERY, device=row.device)
                x = torch.where(later.mT[..., None], table.centre[row][:, None], target[:, None])
                every = row.repeat_interleave(OVERLAYS_PER_QUERY)
                _, fails = judge_outputs(problem, every, problem.network(table.as_inputs(x.flatten(0, 1))))
                fails = fails.reshape(len(row), OVERLAYS_PER_QUERY)
                broken = fails.any(1)
                which = broken.nonzero().flatten()
                earliest = x[which, fails.int().argmax(1)[which]]
                state = _record_witness(
                    state, row[which], drop_needless_changes(problem, table, row[which], earliest)
                )
                go_on = ~broken & ((stage > first + OVERLAYS_PER_QUERY) & (stage < table.units)).any(1)
                row, stage, target = row[go_on], stage[go_on], target[go_on]
                if not len(row):
                    break
        return state


def _claims(state: GridState) -> Claims:
    """Return the claims of the best counterexamples found."""
    return Claims(witness=state.choices.as_inputs(state.witness), found=state.changed.isfinite())


def _nothing(table: UnitChoices, place: Tensor) -> Top:
    """Return an entry for these sets (sets,) whose sensitivities are not known."""
    rows = len(table.centre)
    fall = table.centre.new_full((rows, len(place)), -torch.inf)
    return Top(fall, place.expand(rows, -1), place.new_zeros(rows, len(place)))


def _merge_top(top: Top, found: Top, keep: int) -> Top:
    """Return the most sensitive sets of both."""
    both = Top(
        *(
            torch.cat([getattr(top, name), getattr(found, name)], 1)
            for name in ("sensitivity", "place", "value")
        )
    )
    best = both.sensitivity.topk(min(keep, both.place.shape[1]), dim=1).indices
    return Top(both.sensitivity.gather(1, best), both.place.gather(1, best), both.value.gather(1, best))


def _distinct(table: UnitChoices) -> Tensor:
    """Return (batch, units, values) bool: the values that change the unit, and once the unit's own value."""
    same = ~table.open
    return table.open | (same & (same.cumsum(-1) == 1))


def _lay_out_values(table: UnitChoices, row: Tensor, unit: Tensor, digit: Tensor) -> Tensor:
    """Return the inputs (n, units, parts) in which units (n, size) take these values."""
    here = torch.arange(len(row), device=row.device)[:, None]
    return table.centre[row].index_put((here, unit), table.table[row[:, None], unit, digit])


def _stages(state: GridState, row: Tensor) -> tuple[Tensor, Tensor]:
    """Return for rows (n,) after how many overlays each unit changes, (n, units), `units` if never, and its
    value then, (n, units, parts).
    """
    table, top = state.choices, state.top
    # (n, kept, size)
    unit = state.order[row[:, None, None], subsets(top.place[row], state.size, table.units)]
    digit = index_product(table.values, state.size).to(row.device)[top.value[row]]
    kept = unit.shape[1]
    moves = table.open[row[:, None, None], unit, digit] & (top.sensitivity[row] > -torch.inf)[..., None]
    rank = torch.where(moves, torch.arange(kept, device=row.device)[:, None], kept).flatten(1)
    unit, digit = unit.flatten(1), digit.flatten(1)
    first = torch.full((len(row), table.units), kept, device=row.device).scatter_reduce(1, unit, rank, "amin")
    which, entry = ((rank == first.gather(1, unit)) & (rank < kept)).nonzero(as_tuple=True)
    value = torch.zeros_like(first).index_put((which, unit[which, entry]), digit[which, entry])
    target = table.table[row[:, None], torch.arange(table.units, device=row.device), value]
    # Skip overlays that change no further unit.
    ordered, place = first.sort(1)
    dense = torch.nn.functional.pad((ordered.diff(dim=1) != 0).cumsum(1), (1, 0))
    return torch.where(first < kept, torch.zeros_like(first).scatter(1, place, dense), table.units), target


def _record_witness(state: GridState, row: Tensor, x: Tensor) -> GridState:
    """Store failing inputs x (n, units, parts) that change fewer units than the known counterexamples."""
    changed = state.choices.changed_units(row, x).sum(1).double()
    best = select_best(
        row, torch.arange(len(row), device=row.device), changed, torch.ones_like(row, dtype=torch.bool), 1
    )
    best = best[changed[best] < state.changed[row[best]]]
    return replace(
        state,
        witness=state.witness.index_put((row[best],), x[best]),
        changed=state.changed.index_put((row[best],), changed[best]),
    )


def drop_needless_changes(problem: Problem, table: UnitChoices, row: Tensor, x: Tensor) -> Tensor:
    """Restore units of failing inputs (n, units, parts) as long as they still fail: always the unit that
    leaves the lowest score.
    """
    x, live = x.clone(), torch.arange(len(row), device=row.device)
    while len(live):
        pieces = []
        for which, back in table.restored_variants(row[live], x[live]):
            margin, fails = judge_outputs(problem, row[live[which]], problem.network(table.as_inputs(back)))
            pieces.append((live[which[fails]], margin[fails], back[fails]))
        member, margin, back = (torch.cat(part) for part in zip(*pieces, strict=True))
        best = select_best(
            member,
            torch.arange(len(member), device=row.device),
            margin,
            torch.ones_like(member, dtype=torch.bool),
            1,
        )
        live = member[best]
        x[live] = back[best]
    return x


def subsets(place: Tensor, size: int, units: int) -> Tensor:
    """Map indices (...,) to sets (..., size) in the list of all sets of `size` units; sets of the first units
    come first.
    """
    # The number of sets of one unit below each unit, then of two units, and so on.
    below = torch.arange(units + 1, device=place.device)
    tables = [below]
    for _ in range(1, size):
        below = torch.nn.functional.pad(below.cumsum(0)[:-1], (1, 0))
        tables.append(below)
    members = []
    for table in reversed(tables):
        member = torch.searchsorted(table, place.contiguous(), right=True) - 1
        place = place - table[member]
        members.append(member)
    return torch.stack(members, -1)
