"""Branch and bound over budgets of changes (norm 0): the splitting rule and the bounds of the subproblems.

Statement. The subproblems of a split cover their parent, so the smallest of their bounds holds over it.

A subproblem says how many units may change in each of a few groups of units. Splitting halves a group A into
B and C. A change of at most k units of A changes at most i units of B and at most k - i units of C, for some
i in 0..k:

    {|change in A| <= k}  =  union over i of {|change in B| <= i, |change in C| <= k - i},

so the k + 1 subproblems of a split cover it. If only groups of a single unit remain, the range of values of a
unit is halved instead.

Assumption: the units of a region change independently of each other, each within its own range.

Reference: the splitting rule is this project's own; see `hamming.branch` for the problem.
"""

import math
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from holdfast import batch, time_limit
from holdfast.bounding.bounder import ClosedForm
from holdfast.bounding.branching.subproblem_queue import (
    BoundedSubproblems,
    CandidatePoints,
    SubproblemQueue,
    SubproblemSearch,
    count_within_capacity,
)
from holdfast.bounding.graph.graph import Graph
from holdfast.bounding.graph.problem_graph import graph_of
from holdfast.hamming.bound import bound_chain
from holdfast.hamming.layer_chain import Centre, Chain, chain_of
from holdfast.hamming.pixel_effects import UnitEffects, compute_unit_effects, supports_unit_effects
from holdfast.hamming.pixel_interactions import bound_by_sums
from holdfast.memory_budget import elements_per_tensor, format_bytes
from holdfast.problem import Problem
from holdfast.property import LinearProperty
from holdfast.region import Sparse
from holdfast.region.budget import Budget
from holdfast.rounding import add_rounding_down

# The subproblems of a step hold together as many units as if each had this many (chosen by hand).
UNITS_PER_NODE = 32
# Largest number of neurons in all layers of all subproblems that the bounding engine gets in one step (chosen
# by hand).
ENGINE_BATCH_VALUES = 2**16
# Expected share of a subproblem's loss that remains when each of its groups has been halved (chosen by hand;
# optimistic).
LOSS_AFTER_HALVING = 0.6
# Largest number of successive splits between two bounds of a subproblem (chosen by hand).
MAX_SPLIT_LEVELS = 8
# The same where tables of single units exist, whose bounds are much tighter (chosen by hand).
MAX_SPLIT_LEVELS_WITH_TABLES = 3
# Bounds of inner layers are stored with the subproblems if these layers have at most this many neurons
# (chosen by hand).
MAX_REMEMBERED_VALUES = 1024
# Largest number of float64 numbers in the tables of all inputs on a CPU (1 GiB; chosen by hand).
MAX_TABLE_NUMBERS = 2**27
# Largest number of unit labels in all queued subproblems; beyond it the search goes depth first (chosen by
# hand).
MAX_QUEUED_LABELS = 2**29


@dataclass(frozen=True, eq=False)
class Domains(SubproblemQueue):
    """Subproblems: which units may change, and how many of each group.

    Groups are numbered from 0; a unit of group -1 does not change. A way to fail is a row of the
    specification.
    """

    group: Tensor = field(kw_only=True)  # (n, units) int16
    budgets: Tensor = field(kw_only=True)  # (n, groups)
    # (n, groups, elements of a unit): where splits cut the range of values of a single-unit group, below and
    # above
    low: Tensor = field(kw_only=True)
    high: Tensor = field(kw_only=True)
    # (n, 2, values) float32: bounds of inner values, certified for a subproblem that contains this one
    inner: Tensor = field(kw_only=True)


@dataclass(eq=False)
class GainTables:
    """The tables of single units of every input, computed on first use as long as memory is available.

    Attributes:
        left_out: why some inputs that could have tables have none; empty if all have them.
    """

    known: dict[int, UnitEffects | None] = field(default_factory=dict)
    size: int = 0
    left_out: str = ""

    def of(self, question: "BudgetQuestion", task: int) -> UnitEffects | None:
        chain, centre = question.chain, question.centre
        if task not in self.known:
            if chain is None or centre is None or not supports_unit_effects(chain):
                return None
            available = elements_per_tensor(question.x.device, MAX_TABLE_NUMBERS, 4)
            if self.size > available:
                self.left_out = (
                    "tables of single units were left out for some inputs (those of others hold "
                    f"{format_bytes(8 * self.size)}, and "
                    f"{format_bytes(8 * available)} may be used); linear bounds were used instead"
                )
                return None
            row = torch.tensor([task], device=question.x.device)
            found = compute_unit_effects(
                chain,
                centre.take(row),
                question.lower[task, :, 0].double(),
                question.upper[task, :, 0].double(),
            )
            self.known[task] = found
            if found is None:
                self.left_out = (
                    "tables of single units were left out (too many units share values of the first layer); "
                    "linear bounds were used instead"
                )
            self.size += 0 if found is None else found.numbers
        return self.known[task]


@dataclass(frozen=True, eq=False)
class BudgetQuestion:
    """The fixed data of a search."""

    graph: Graph
    chain: Chain | None  # if the network is one: much faster than the bounding engine
    centre: Centre | None
    axes: tuple[int, ...]
    unit_shape: tuple[int, ...]
    elements: Tensor  # (units, elements of a unit): indices into an input
    position: Tensor  # (units, axes): coordinates of each unit
    x: Tensor  # (batch, units, elements) float64: the inputs
    lower: Tensor  # range of values of a changed unit
    upper: Tensor
    levels: Tensor | None  # the only values that a changed number may take; None: all between the bounds
    free: Tensor  # (batch, units) bool
    rows: Tensor  # (batch, rows, outputs)
    offset: Tensor  # (batch, rows)
    margin: Tensor  # (batch,): the margin of the input itself
    effects: "GainTables"

    @property
    def levels_at_once(self) -> int:
        return (
            MAX_SPLIT_LEVELS_WITH_TABLES
            if self.chain is not None and supports_unit_effects(self.chain)
            else MAX_SPLIT_LEVELS
        )

    @property
    def inner(self) -> int:
        """Number of inner values whose bounds are stored with every subproblem."""
        values = sum(self.chain.inner) if self.chain is not None else 0
        return values if values <= MAX_REMEMBERED_VALUES else 0


@dataclass(frozen=True)
class BudgetSplit(SubproblemSearch[BudgetQuestion, Domains]):
    """Split groups in halves until another bound is worthwhile; when only single units remain, halve ranges
    of values.
    """

    nodes_at_once: int
    queue: int
    finest: float

    def at_once(self, question: BudgetQuestion) -> int:
        if question.chain is not None:
            return self.nodes_at_once
        return max(
            1, min(self.nodes_at_once, ENGINE_BATCH_VALUES // sum(node.size for node in question.graph.nodes))
        )

    def fits(self, question: BudgetQuestion, parts: Domains) -> int:
        return count_within_capacity((parts.group >= 0).sum(1), UNITS_PER_NODE * self.nodes_at_once)

    def most(self, graph: Graph) -> int:
        return min(self.queue, MAX_QUEUED_LABELS // graph.entry.size)

    def bound(self, question: BudgetQuestion, parts: Domains) -> BoundedSubproblems[Domains]:
        """Bound the subproblems; gain (n, *shape) holds the coefficients of the linear function behind the
        smallest bound of each.
        """
        region = region_of(question, parts)
        open_, worst, inner, slopes = (
            parts.open.clone(),
            parts.bound.clone(),
            parts.inner.clone(),
            torch.zeros_like(region.centre),
        )
        counts = parts.open.sum(1)
        # Subproblems with similar numbers of open rows share a batch.
        for fewest, most in ((1, 1), (2, 3), (4, math.inf)):
            part = ((counts >= fewest) & (counts <= most)).nonzero().flatten()
            if not len(part) or time_limit.has_expired():
                continue
            some = batch.take(parts, part)
            open_rows = some.open.to(torch.uint8).topk(int(counts[part].max()), dim=1).indices
            matrix = question.rows[some.task].gather(
                1, open_rows[..., None].expand(-1, -1, question.rows.shape[2])
            )
            offset = question.offset[some.task].gather(1, open_rows)
            least, slopes[part], inner[part] = _bounds(
                question, some, batch.take(region, part), matrix, offset
            )
            proved = least.isfinite() & (least > 0)
            open_[part] = some.open & ~torch.zeros_like(some.open).scatter(1, open_rows, proved)
            worst[part] = torch.nan_to_num(
                torch.where(open_[part].gather(1, open_rows), least, torch.inf), nan=-torch.inf
            ).amin(1)
        left = open_.any(1)
        points = CandidatePoints(
            region.vertex(slopes)[left], region.lower[left], region.upper[left], parts.task[left]
        )
        return BoundedSubproblems(replace(parts, open=open_, bound=worst, inner=inner), slopes, points)

    def cut(self, question: BudgetQuestion, parts: Domains, gain: Tensor) -> tuple[Domains, Tensor]:
        groups = _divisible(parts).any(1)
        found, stuck = [batch.take(parts, parts.task[:0])], torch.zeros_like(groups)
        centre, lower, upper = _value_ranges(question, parts)
        slope = gain.flatten(1)[:, question.elements]
        if bool(groups.any()):
            some = batch.take(parts, groups)
            # The largest decrease of the linear function by each unit.
            most = torch.maximum(slope * (centre - lower), slope * (centre - upper)).sum(-1)
            found.append(
                split_evenly(
                    question,
                    some,
                    most[groups],
                    split_levels(question, relative_loss(question, some.task, some.bound), some),
                )
            )
        if not bool(groups.all()):
            rest = ~groups
            halves, stuck[rest] = _halve_values(
                question, batch.take(parts, rest), lower[rest], upper[rest], slope[rest], self.finest
            )
            found.append(halves)
        return batch.concatenate(found), stuck


def sparse_region(problem: Problem) -> Sparse | None:
    """Return the region if its units take values of a box each, which these searches split; else None."""
    return problem.region if isinstance(problem.region, Sparse) else None


def question_of(problem: Problem) -> BudgetQuestion:
    """Collect the fixed data of a search."""
    region, device = sparse_region(problem), problem.region.centre.device
    assert region is not None
    assert isinstance(problem.property, LinearProperty)
    graph = graph_of(problem)
    apart = [axis for axis in range(len(region.shape)) if axis not in region.axes]
    places = (
        torch.arange(region.centre[0].numel(), device=device)
        .reshape(region.shape)
        .permute(*apart, *region.axes)
    )
    elements = places.reshape(region.units, -1)
    chain = chain_of(graph, elements)
    lower, upper = (end.flatten(1)[:, elements] for end in region.at(1).enclosing_box())
    rows, offset = problem.property.rows(graph.output.size)
    levels = region.values()
    return BudgetQuestion(
        graph=graph,
        chain=chain,
        centre=None if chain is None else chain.centre(region.centre),
        axes=region.axes,
        unit_shape=region.unit_shape,
        elements=elements,
        position=torch.stack(
            torch.unravel_index(torch.arange(region.units, device=device), region.unit_shape), dim=1
        ),
        x=region.centre.double().flatten(1)[:, elements],
        lower=lower,
        upper=upper,
        levels=None if levels is None else levels.to(device),
        free=region.flatten_units(region.free_units()),
        rows=rows,
        offset=offset,
        margin=problem.score(region.centre).double(),
        effects=GainTables(),
    )


def region_of(question: BudgetQuestion, parts: Domains) -> Budget:
    """Return the subproblems as regions; where the range of a unit is cut, its centre is moved into the
    remaining range.
    """
    shape, places = (len(parts), *question.graph.entry.shape[1:]), question.elements.flatten()
    centre, lower, upper = (
        v.flatten(1)[:, places.argsort()].reshape(shape) for v in _value_ranges(question, parts)
    )
    return Budget(
        centre,
        lower,
        upper,
        parts.group.reshape(len(parts), *question.unit_shape),
        parts.budgets,
        axes=question.axes,
    )


def _value_ranges(question: BudgetQuestion, parts: Domains) -> tuple[Tensor, Tensor, Tensor]:
    """Return the centre and the range of values of a changed unit: centre, lower, upper, (n, units, elements
    of a unit) each.
    """
    lower, upper = question.lower[parts.task], question.upper[parts.task]
    if bool((parts.low > -torch.inf).any() or (parts.high < torch.inf).any()):
        group = parts.group.long()[..., None].expand(lower.shape)
        low, high = (end.gather(1, group.clamp_min(0)) for end in (parts.low, parts.high))
        lower = torch.where(group >= 0, torch.maximum(lower, low), lower)
        upper = torch.where(group >= 0, torch.minimum(upper, high), upper)
    return torch.minimum(torch.maximum(question.x[parts.task], lower), upper), lower, upper


def _bounds(
    question: BudgetQuestion, parts: Domains, region: Budget, rows: Tensor, offset: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return lower bounds (n, rows) of row . output + offset over the regions, the coefficients behind the
    smallest, and bounds of inner values.
    """
    if question.chain is not None and question.centre is not None:
        nothing = _unknown(len(parts), sum(question.chain.inner), parts.task.device)
        inner = parts.inner if question.inner else nothing
        least, slopes, inner = _bounds_by_chain(
            question, question.chain, question.centre, parts, region, inner, rows, offset
        )
        return least, slopes, inner if question.inner else parts.inner
    least, linear = ClosedForm(question.graph).bound(region, rows)
    assert linear is not None
    least = add_rounding_down(least, offset)
    worst = torch.nan_to_num(least, nan=-torch.inf).argmin(1)
    return least, linear.coefficients[torch.arange(len(worst), device=worst.device), worst], parts.inner


def _bounds_by_chain(
    question: BudgetQuestion,
    chain: Chain,
    centre: Centre,
    parts: Domains,
    region: Budget,
    inner: Tensor,
    rows: Tensor,
    offset: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """Bound by tables of single units where they exist, else by linear bounds."""
    least, slopes, inner = torch.full_like(offset, -torch.inf), torch.zeros_like(region.centre), inner.clone()
    left = torch.ones_like(parts.task, dtype=torch.bool)
    wide = (
        (parts.low == -torch.inf).flatten(1).all(1)
        & (parts.high == torch.inf).flatten(1).all(1)
        & (parts.budgets.sum(1) > 1)
    )
    for task in parts.task[wide].unique().tolist():
        effects = question.effects.of(question, task)
        if effects is None:
            continue
        some = (wide & (parts.task == task)).nonzero().flatten()
        here = batch.take(region, some), centre.take(parts.task[some]), inner[some], rows[some], offset[some]
        least[some], slopes[some], inner[some], served = bound_by_sums(chain, effects, *here)
        left[some] = ~served
    some = left.nonzero().flatten()
    if len(some) and not time_limit.has_expired():
        here = batch.take(region, some), centre.take(parts.task[some]), inner[some], rows[some], offset[some]
        found, slopes[some], inner[some] = bound_chain(chain, *here)
        least[some] = torch.fmax(least[some], found)
    return least, slopes, inner


def _members(parts: Domains) -> Tensor:
    """Return (n, groups, units) bool: membership of units in groups."""
    return parts.group[:, None] == torch.arange(parts.budgets.shape[1], device=parts.task.device)[:, None]


def _divisible(parts: Domains) -> Tensor:
    """Return (n, groups) bool: the groups that may be split; groups that may change as a whole only if there
    is no other.
    """
    size = _members(parts).sum(-1)
    divisible = (size > 1) & (parts.budgets > 0)
    partial = divisible & (size > parts.budgets)
    return torch.where(partial.any(1, keepdim=True), partial, divisible)


def relative_loss(question: BudgetQuestion, task: Tensor, bound: Tensor) -> Tensor:
    """Return (n,): the decrease of the margin according to the bound, in multiples of the input's margin.

    The subproblem is proved if its loss is less than 1.
    """
    margin = question.margin[task].clamp_min(1e-300)
    return (margin - bound) / margin


def split_levels(question: BudgetQuestion, loss: Tensor, parts: Domains) -> Tensor:
    """Return (n,): the number of successive splits before another bound is worthwhile."""
    halvings = torch.nan_to_num(loss, nan=1.0).clamp_min(1).log() / -math.log(LOSS_AFTER_HALVING)
    available = max(1, MAX_QUEUED_LABELS // max(1, 4 * parts.group.numel())).bit_length()
    return (parts.budgets.sum(1) * halvings).clamp(1, min(question.levels_at_once, available)).long()


def split_evenly(question: BudgetQuestion, parts: Domains, gain: Tensor, levels: Tensor) -> Domains:
    """Split each subproblem `split_levels` (n,) times, always in the group with the largest gain; gain is (n,
    units).
    """
    done = [batch.take(parts, parts.task[:0])]
    while len(parts):
        choice = _divisible(parts)
        more = (levels > 0) & choice.any(1)
        done.append(batch.take(parts, ~more))
        parts, gain, levels, choice = batch.take(parts, more), gain[more], levels[more], choice[more]
        if len(parts):
            member = _members(parts)
            group = torch.where(choice, torch.where(member, gain[:, None], 0).sum(-1), -1).argmax(1)
            half = _half_of_group(question, member[torch.arange(len(parts), device=group.device), group])
            parts, parent = _share_budget(parts, group, half)
            gain, levels = gain[parent], levels[parent] - 1
    return batch.concatenate(done)


def _half_of_group(question: BudgetQuestion, member: Tensor) -> Tensor:
    """Return half of each set of units (n, units) bool: a straight cut across the axis along which the set is
    longest.

    Equal groups are cut alike, so the same groups occur again and `Chain` finds their patches in its cache.
    """
    position = question.position
    last = torch.where(member[..., None], position, -1).amax(1)
    first = torch.where(member[..., None], position, int(position.max())).amin(1)
    axis = (last - first).argmax(1)
    along = position.t()[axis]  # (n, units)
    places = torch.arange(int(position.max()) + 1, device=member.device)
    cumulative = (
        torch.zeros((len(member), len(places)), device=member.device)
        .scatter_add(1, along, member.float())
        .cumsum(1)
    )
    uneven = (2 * cumulative - cumulative[:, -1:]).abs()
    first, last = first.gather(1, axis[:, None]), last.gather(1, axis[:, None])
    end = torch.where((places >= first) & (places < last), uneven, torch.inf).argmin(1)
    return member & (along <= end[:, None])


def _share_budget(parts: Domains, group: Tensor, half: Tensor) -> tuple[Domains, Tensor]:
    """Replace each subproblem by one for every way to share the budget of its group between the half and the
    rest.

    Returns also the index of the subproblem that each of them was split from.
    """
    rest = (parts.group == group[:, None]) & ~half
    sizes, others = half.sum(1), rest.sum(1)
    budget = torch.minimum(parts.budgets.gather(1, group[:, None]).squeeze(1), sizes + others)
    # A free group number for the rest exists, since fewer groups have a budget than the whole budget has
    # units.
    spare = (parts.budgets == 0).to(torch.uint8).argmax(1)
    found, parents = [], []
    for some in range(int(budget.max()) + 1):
        more = budget - some
        kept = ((some <= sizes) & (more <= others) & (more >= 0)).nonzero().flatten()
        taken, own, more = batch.take(parts, kept), group[kept], more[kept]
        other = torch.where(more > 0, spare[kept] if some else own, -1)
        labels = torch.where(rest[kept], other[:, None], taken.group.long())
        labels = torch.where(half[kept], own[:, None] if some else -1, labels)
        budgets = taken.budgets.scatter(1, own[:, None], some)
        budgets = torch.where(
            more[:, None] > 0, budgets.scatter(1, other.clamp_min(0)[:, None], more[:, None]), budgets
        )
        found.append(replace(taken, group=labels.to(torch.int16), budgets=budgets))
        parents.append(kept)
    return batch.concatenate(found), torch.cat(parents)


def _halve_values(
    question: BudgetQuestion, parts: Domains, lower: Tensor, upper: Tensor, slopes: Tensor, finest: float
) -> tuple[Domains, Tensor]:
    """Split each subproblem of single units into the lower and the upper half of the values of its most
    influential number.

    Args:
        lower, upper, slopes: (n, units, elements of a unit).

    Returns:
        The subproblems, and which of the given ones (n,) have no range left to split.
    """
    unit = _members(parts).to(torch.uint8).argmax(-1)  # (n, groups)
    low, high, slope = (v.gather(1, unit[..., None].expand(parts.low.shape)) for v in (lower, upper, slopes))
    reach = (question.upper - question.lower)[parts.task[:, None], unit].clamp_min(1e-300)
    width = torch.where((parts.budgets > 0)[..., None] & (high - low > finest * reach), high - low, 0)
    worth = (slope.abs() * width + 1e-12 * width / reach).flatten(1)
    chosen = (
        torch.zeros_like(worth, dtype=torch.bool)
        .scatter(1, worth.argmax(1, keepdim=True), True)
        .reshape(low.shape)
    )
    below, above = _adjacent_levels(question, parts, unit, low / 2 + high / 2)
    first = replace(parts, high=torch.where(chosen, below, parts.high))
    second = replace(parts, low=torch.where(chosen, above, parts.low))
    stuck = ~(worth.amax(1) > 0)
    # Between two levels there may be no value.
    some, others = (~stuck & ~(chosen & nothing).flatten(1).any(1) for nothing in (below < low, above > high))
    return batch.concatenate([batch.take(first, some), batch.take(second, others)]), stuck


def _adjacent_levels(
    question: BudgetQuestion, parts: Domains, unit: Tensor, middle: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the largest admissible value of a number up to the middle, and the smallest from there on."""
    if question.levels is None:
        return middle, middle
    own = question.x[parts.task[:, None], unit]  # A number may stay the same in a unit that changes.
    ends = middle.new_tensor([torch.inf])
    levels = torch.cat([-ends, question.levels, ends])
    place = torch.bucketize(middle, question.levels, right=True)
    below, above = levels[place], levels[place + 1]
    return torch.where(own <= middle, torch.maximum(below, own), below), torch.where(
        own > middle, torch.minimum(above, own), above
    )


def root_domains(question: BudgetQuestion, rows: Tensor, count: Tensor, groups: int) -> Domains:
    """Create one subproblem for each of these rows: all units in one group, with this count as its budget."""
    ends = question.lower.new_full((len(rows), groups, question.elements.shape[1]), torch.inf)
    return Domains(
        rows,
        torch.ones((len(rows), question.rows.shape[1]), dtype=torch.bool, device=rows.device),
        torch.full_like(rows, -torch.inf, dtype=torch.float64),
        group=torch.where(question.free[rows], 0, -1).to(torch.int16),
        budgets=torch.nn.functional.pad(count[:, None], (0, groups - 1)),
        low=-ends,
        high=ends,
        inner=_unknown(len(rows), question.inner, rows.device),
    )


def _unknown(parts: int, values: int, device: torch.device) -> Tensor:
    """Return trivial bounds (infinite) of inner values."""
    return torch.tensor([[-torch.inf], [torch.inf]], device=device).expand(parts, 2, values)


def widen_groups(parts: Domains, groups: int) -> Domains:
    """Pad the subproblems so that they can hold `groups` groups."""
    pad, more = torch.nn.functional.pad, groups - parts.budgets.shape[1]
    low, high = (
        pad(parts.low, (0, 0, 0, more), value=-torch.inf),
        pad(parts.high, (0, 0, 0, more), value=torch.inf),
    )
    return replace(parts, budgets=pad(parts.budgets, (0, more)), low=low, high=high)
