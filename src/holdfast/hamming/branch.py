"""The lower end, proved: no change of at most t units breaks the property, by branch and bound over groups of units.

A domain says how many units may change in each of a few groups. Where its bound does not prove it, one group is cut in two and its budget
is shared out in every way: whatever changes at most k units of the group changes at most i in one half and k - i in the other, for some i.
Where only single units are left, the values they may take are halved. A count holds once every domain that came of it is proved. The point
at which a bound is smallest is asked about as a counterexample, so both ends move.
"""

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from holdfast import batch
from holdfast.bounding.crown import linear_bound, propagate
from holdfast.bounding.graph.graph import Graph
from holdfast.bounding.graph.of_problem import ASSUMPTIONS, CHECKS, checked_graph, graph_of
from holdfast.errors import BadInput, UnsupportedLayer
from holdfast.hamming.bound import bound
from holdfast.hamming.chain import Centre, Chain, chain_of
from holdfast.method import Claims, Method
from holdfast.network import Network
from holdfast.problem import Problem
from holdfast.property import LinearProperty
from holdfast.region import Sparse
from holdfast.region.budget import Budget
from holdfast.rounding import gamma

UNITS_PER_NODE = 32  # as many units in all the domains of a step as if each had so many
ENGINE_AT_ONCE = 2**16  # values of all layers of all the domains that the crown is asked about in one step
SHRINKS = 0.6  # of what a domain loses, at best so much is left when each of its groups has been halved
LEVELS = 8  # cuts at once, at most
REMEMBERED = 1024  # values of inner layers at most that are remembered with every domain
WAITING = 2**29  # labels of units in all domains that wait, at most, before the search goes deep first


@dataclass(frozen=True, eq=False)
class Nodes:
    """Domains that are not proved yet. Groups are numbered from 0; a unit of group -1 stays as it is."""

    row: Tensor  # (n,): the row of the problem
    group: Tensor  # (n, units) int16
    budgets: Tensor  # (n, groups)
    low: Tensor  # (n, groups, elements of a unit): where the values of a group of one unit are cut off, below and above
    high: Tensor
    open: Tensor  # (n, rows) bool: the rows of the property that are not proved
    bound: Tensor  # (n,): the smallest of them, over the domain that this one was cut from
    inner: Tensor  # (n, 2, values) float32: what was proved there of inner layers

    def __len__(self) -> int:
        return len(self.row)


@dataclass(frozen=True, eq=False)
class Question:
    """What does not change during the search."""

    graph: Graph
    chain: Chain | None  # where the network is one: much faster than the crown
    centre: Centre | None
    twin: Network | None
    axes: tuple[int, ...]
    unit_shape: tuple[int, ...]
    elements: Tensor  # (units, elements of one): their places in an input
    position: Tensor  # (units, axes): where each unit lies
    x: Tensor  # (batch, units, elements) float64: the inputs
    lower: Tensor  # what a changed unit may be
    upper: Tensor
    levels: Tensor | None  # the only values a changed number may take
    free: Tensor  # (batch, units) bool
    rows: Tensor  # (batch, rows, outputs)
    offset: Tensor  # (batch, rows)
    margin: Tensor  # (batch,): the score of the input itself

    @property
    def inner(self) -> int:
        """How many values of inner layers are remembered with every domain."""
        values = sum(self.chain.inner) if self.chain is not None else 0
        return values if values <= REMEMBERED else 0


@dataclass(frozen=True, eq=False)
class Tree:
    """The state of the search: what is proved, what is found, and the domains that are open."""

    question: Question
    nodes: Nodes
    safe: Tensor  # (batch,) float64: so many changed units are proved harmless
    broken: Tensor  # (batch,) float64: so many are known to break the property
    given_up: Tensor  # (batch,) bool: some domain was too small to cut
    loss: Tensor  # (batch,): how many times its margin an input loses if all its units are in one group, by the bound
    asked: int  # domains looked at


@dataclass(frozen=True)
class Branch(Method[Tree]):
    """Every count is tried as soon as the one before it is proved.

    nodes_at_once  domains looked at in one step, over all inputs; fewer while they are large.
    queue          domains that may wait before the search goes deep first, which keeps their number small.
    finest         a value is halved until its range is this share of the domain; what is not proved then stays unknown.
    """

    long_steps: ClassVar[bool] = True
    nodes_at_once: int = 256
    queue: int = 50_000
    finest: float = 2.0**-16

    def __post_init__(self) -> None:
        for name, value in (("nodes_at_once", self.nodes_at_once), ("queue", self.queue)):
            if value < 1:
                raise BadInput(f"Branch: {name} must be at least 1, got {value}.")
        if not 0 < self.finest < 1:
            raise BadInput(f"Branch: finest is a share of the domain, between 0 and 1; got {self.finest}.")

    def obstacle(self, problem: Problem) -> str | None:
        if not isinstance(problem.region, Sparse) or problem.goal != "radius":
            return "proves how many units may change, which is not asked here"
        if not isinstance(problem.property, LinearProperty):
            return "proofs need a property in linear rows (Robustness, Targeted, Linear)"
        try:
            checked_graph(problem)
        except UnsupportedLayer as error:
            return str(error)
        return None

    def start(self, problem: Problem, seed: int) -> Tree:
        question = _question(problem)
        none = torch.zeros(len(problem), dtype=torch.float64, device=question.rows.device)
        tree = Tree(question, _no_nodes(question), none, torch.full_like(none, torch.inf), none.bool(), none, 0)
        return _planted(tree, _undecided(tree).nonzero().flatten())

    def told(self, problem: Problem, state: Tree, upper: Tensor) -> Tree:
        """A count beyond what is known to fail is not tried."""
        return _pruned(replace(state, broken=torch.minimum(state.broken, upper.to(state.broken) + 1)))

    def step(self, problem: Problem, state: Tree) -> tuple[Tree | None, Claims]:
        if not len(state.nodes):
            return None, Claims(proved=state.safe, assumptions=ASSUMPTIONS, checks=CHECKS)
        question, chosen = state.question, self._chosen(state)
        waiting = torch.ones(len(state.nodes), dtype=torch.bool, device=chosen.device).index_fill(0, chosen, False)
        tree = replace(state, nodes=batch.take(state.nodes, waiting), asked=state.asked + len(chosen))
        nodes = batch.take(state.nodes, chosen)
        region = _region(question, nodes)
        nodes, slopes = _looked_at(question, nodes, region)
        left = nodes.open.any(1).nonzero().flatten()
        witness = problem.region.centre
        if len(left):
            nodes, region, slopes = batch.take(nodes, left), batch.take(region, left), slopes[left]
            witness, broken = _counterexamples(problem, tree, nodes, region.vertex(slopes))
            children, stuck = _children(question, nodes, region, slopes, self.finest)
            tree = replace(
                tree,
                nodes=batch.concatenate([tree.nodes, children]),
                broken=broken,
                given_up=tree.given_up.index_fill(0, nodes.row[stuck], True),
                loss=_noted_loss(tree, nodes),
            )
        tree = _grown(_pruned(tree))
        claims = Claims(proved=tree.safe, witness=witness, found=tree.broken < state.broken, assumptions=ASSUMPTIONS, checks=CHECKS)
        return tree if len(tree.nodes) else None, claims

    def _chosen(self, state: Tree) -> Tensor:
        """Every row in its turn, first the domains with the smallest bounds; the newest where too many are waiting."""
        nodes, device = state.nodes, state.nodes.row.device
        count = torch.arange(len(nodes), device=device)
        deep = len(nodes) > min(self.queue, WAITING // nodes.group.shape[1])
        order = count.flip(0) if deep else nodes.bound.argsort(stable=True)
        order = order[nodes.row[order].argsort(stable=True)]
        row = nodes.row[order]
        turn = count - torch.searchsorted(row, row)
        order = order[turn.argsort(stable=True)[: self._at_once(state.question)]]
        units = (nodes.group[order] >= 0).sum(1).cumsum(0)
        return order[(units <= UNITS_PER_NODE * self.nodes_at_once) | (count[: len(order)] == 0)]

    def _at_once(self, question: Question) -> int:
        if question.chain is not None:
            return self.nodes_at_once
        return max(1, min(self.nodes_at_once, ENGINE_AT_ONCE // sum(node.size for node in question.graph.nodes)))


# ---- the question


def _question(problem: Problem) -> Question:
    region, device = problem.region, problem.region.centre.device
    assert isinstance(region, Sparse)
    assert isinstance(problem.property, LinearProperty)
    graph = graph_of(problem)
    apart = [axis for axis in range(len(region.shape)) if axis not in region.axes]
    places = torch.arange(region.centre[0].numel(), device=device).reshape(region.shape).permute(*apart, *region.axes)
    elements = places.reshape(region.units, -1)
    chain = chain_of(graph, elements)
    lower, upper = (end.flatten(1)[:, elements] for end in region.at(1).enclosing_box())
    rows, offset = problem.property.rows(graph.output.size)
    levels = region.values()
    return Question(
        graph=graph,
        chain=chain,
        centre=None if chain is None else chain.centre(region.centre),
        twin=problem.network.double(region.centre),
        axes=region.axes,
        unit_shape=region.unit_shape,
        elements=elements,
        position=torch.stack(torch.unravel_index(torch.arange(region.units, device=device), region.unit_shape), dim=1),
        x=region.centre.double().flatten(1)[:, elements],
        lower=lower,
        upper=upper,
        levels=None if levels is None else levels.to(device),
        free=region.flatten_units(region.free_units()),
        rows=rows,
        offset=offset,
        margin=problem.score(region.centre).double(),
    )


def _no_nodes(question: Question) -> Nodes:
    none = torch.zeros(0, dtype=torch.int64, device=question.rows.device)
    ends = torch.zeros((0, 0, question.elements.shape[1]), dtype=torch.float64, device=none.device)
    return Nodes(
        row=none,
        group=torch.zeros((0, len(question.elements)), dtype=torch.int16, device=none.device),
        budgets=none.reshape(0, 0),
        low=ends,
        high=ends,
        open=torch.zeros((0, question.rows.shape[1]), dtype=torch.bool, device=none.device),
        bound=none.double(),
        inner=torch.zeros((0, 2, question.inner), device=none.device),
    )


def _region(question: Question, nodes: Nodes) -> Budget:
    """The domains as regions; where the values of a unit are cut, its centre is moved to what is left of them."""
    lower, upper = question.lower[nodes.row], question.upper[nodes.row]
    if bool((nodes.low > -torch.inf).any() or (nodes.high < torch.inf).any()):
        group = nodes.group.long()[..., None].expand(lower.shape)
        low, high = (end.gather(1, group.clamp_min(0)) for end in (nodes.low, nodes.high))
        lower = torch.where(group >= 0, torch.maximum(lower, low), lower)
        upper = torch.where(group >= 0, torch.minimum(upper, high), upper)
    centre = torch.minimum(torch.maximum(question.x[nodes.row], lower), upper)
    shape, places = (len(nodes), *_input_shape(question)), question.elements.flatten()
    centre, lower, upper = (v.flatten(1)[:, places.argsort()].reshape(shape) for v in (centre, lower, upper))
    return Budget(centre, lower, upper, nodes.group.reshape(len(nodes), *question.unit_shape), nodes.budgets, axes=question.axes)


def _input_shape(question: Question) -> tuple[int, ...]:
    return tuple(question.graph.entry.shape[1:])


# ---- looking at domains


def _looked_at(question: Question, nodes: Nodes, region: Budget) -> tuple[Nodes, Tensor]:
    """The domains with what is proved now, and (n, *shape) the slopes of the linear function behind the smallest bound of each."""
    open_, worst, inner, slopes = nodes.open.clone(), nodes.bound.clone(), nodes.inner.clone(), torch.zeros_like(region.centre)
    counts = nodes.open.sum(1)
    for fewest, most in ((1, 1), (2, 3), (4, math.inf)):  # those with like many open rows together
        part = ((counts >= fewest) & (counts <= most)).nonzero().flatten()
        if not len(part):
            continue
        some = batch.take(nodes, part)
        asked = some.open.to(torch.uint8).topk(int(counts[part].max()), dim=1).indices
        matrix = question.rows[some.row].gather(1, asked[..., None].expand(-1, -1, question.rows.shape[2]))
        offset = question.offset[some.row].gather(1, asked)
        least, slopes[part], inner[part] = _bounds(question, some, batch.take(region, part), matrix, offset)
        proved = least.isfinite() & (least > 0)
        open_[part] = some.open & ~torch.zeros_like(some.open).scatter(1, asked, proved)
        worst[part] = torch.nan_to_num(torch.where(open_[part].gather(1, asked), least, torch.inf), nan=-torch.inf).amin(1)
    return replace(nodes, open=open_, bound=worst, inner=inner), slopes


def _bounds(question: Question, nodes: Nodes, region: Budget, rows: Tensor, offset: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """-> (n, rows) <= row . output + offset over the regions; the slopes of the linear function behind the smallest; inner bounds."""
    if question.chain is not None and question.centre is not None:
        nothing = _unknown(len(nodes), sum(question.chain.inner), nodes.row.device)
        inner = nodes.inner if question.inner else nothing
        least, slopes, inner = bound(question.chain, region, question.centre.take(nodes.row), inner, rows, offset)
        return least, slopes, inner if question.inner else nodes.inner
    linear = linear_bound(question.graph, propagate(question.graph, region), rows)
    least = linear.minimum(region)
    least = least + offset - 4 * gamma(1) * (least.abs() + offset.abs())
    worst = torch.nan_to_num(least, nan=-torch.inf).argmin(1)
    return least, linear.coefficients[torch.arange(len(worst), device=worst.device), worst], nodes.inner


def _counterexamples(problem: Problem, tree: Tree, nodes: Nodes, points: Tensor) -> tuple[Tensor, Tensor]:
    """points (n, *shape), one for each domain -> for each row of the problem a witness, and how many units are known to be enough."""
    every, twin = problem.region, tree.question.twin
    assert isinstance(every, Sparse)
    region, required = batch.take(every, nodes.row), batch.take(problem.property, nodes.row)
    points = region.at(nodes.budgets.sum(1)).project(points.to(every.centre))
    fails = ~(required.score(problem.network(points)) > 0)
    if twin is not None and bool(fails.any()):  # a witness must hold in both, see `replay`
        hit = fails.nonzero().flatten()
        fails[hit] = ~(batch.take(required, hit).score(twin(points[hit])) > 0)
    count = torch.where(fails, region.distance(points), torch.inf)
    broken = tree.broken.scatter_reduce(0, nodes.row, count, "amin")
    best = ((count < tree.broken[nodes.row]) & (count == broken[nodes.row])).nonzero().flatten()
    return every.centre.index_put((nodes.row[best],), points[best]), broken


# ---- cutting domains


def _children(question: Question, nodes: Nodes, region: Budget, slopes: Tensor, finest: float) -> tuple[Nodes, Tensor]:
    """Domains that together hold every point of these; and (n,) bool: which of these are too small to cut."""
    cut = _divisible(nodes).any(1)
    found, stuck = [batch.take(nodes, nodes.row[:0])], torch.zeros_like(cut)
    if bool(cut.any()):
        some = batch.take(nodes, cut)
        found.append(_cut(question, some, _gains(question, region, slopes)[cut], _levels(_loss(question, some), some)))
    if not bool(cut.all()):
        halves, stuck[~cut] = _halved(question, batch.take(nodes, ~cut), batch.take(region, ~cut), slopes[~cut], finest)
        found.append(halves)
    return batch.concatenate(found), stuck


def _members(nodes: Nodes) -> Tensor:
    """-> (n, groups, units) bool."""
    return nodes.group[:, None] == torch.arange(nodes.budgets.shape[1], device=nodes.row.device)[:, None]


def _divisible(nodes: Nodes) -> Tensor:
    """-> (n, groups) bool: the groups to cut; those that may change as a whole only if there are no others."""
    size = _members(nodes).sum(-1)
    divisible = (size > 1) & (nodes.budgets > 0)
    partial = divisible & (size > nodes.budgets)
    return torch.where(partial.any(1, keepdim=True), partial, divisible)


def _gains(question: Question, region: Budget, slopes: Tensor) -> Tensor:
    """-> (n, units): how far each unit may lower the linear function."""
    slope, centre, lower, upper = (v.flatten(1)[:, question.elements] for v in (slopes, region.centre, region.lower, region.upper))
    return torch.maximum(slope * (centre - lower), slope * (centre - upper)).sum(-1)


def _loss(question: Question, nodes: Nodes) -> Tensor:
    """-> (n,): how many times its margin the input loses, by the bound; where it is one or less, the domain is proved."""
    margin = question.margin[nodes.row].clamp_min(1e-300)
    return (margin - nodes.bound) / margin


def _levels(loss: Tensor, nodes: Nodes) -> Tensor:
    """-> (n,): how often to cut before it is worth to look again."""
    halvings = torch.nan_to_num(loss, nan=1.0).clamp_min(1).log() / -math.log(SHRINKS)
    room = max(1, WAITING // max(1, 4 * nodes.group.numel())).bit_length()
    return (nodes.budgets.sum(1) * halvings).clamp(1, min(LEVELS, room)).long()


def _cut(question: Question, nodes: Nodes, gain: Tensor, levels: Tensor) -> Nodes:
    """Each domain cut so often, always in the group with the largest gain; gain (n, units)."""
    done = [batch.take(nodes, nodes.row[:0])]
    while len(nodes):
        choice = _divisible(nodes)
        more = (levels > 0) & choice.any(1)
        done.append(batch.take(nodes, ~more))
        nodes, gain, levels, choice = batch.take(nodes, more), gain[more], levels[more], choice[more]
        if len(nodes):
            member = _members(nodes)
            group = torch.where(choice, torch.where(member, gain[:, None], 0).sum(-1), -1).argmax(1)
            half = _half(question, member[torch.arange(len(nodes), device=group.device), group])
            nodes, parent = _shared_out(nodes, group, half)
            gain, levels = gain[parent], levels[parent] - 1
    return batch.concatenate(done)


def _half(question: Question, member: Tensor) -> Tensor:
    """member (n, units) bool -> a half of each: a straight cut across the axis along which it is longest. Equal groups are cut alike, so
    the same groups come up again and again, and `Chain` remembers their patches."""
    position = question.position
    last = torch.where(member[..., None], position, -1).amax(1)
    first = torch.where(member[..., None], position, int(position.max())).amin(1)
    axis = (last - first).argmax(1)
    along = position.t()[axis]  # (n, units)
    places = torch.arange(int(position.max()) + 1, device=member.device)
    upto = torch.zeros((len(member), len(places)), device=member.device).scatter_add(1, along, member.float()).cumsum(1)
    uneven = (2 * upto - upto[:, -1:]).abs()
    first, last = first.gather(1, axis[:, None]), last.gather(1, axis[:, None])
    end = torch.where((places >= first) & (places < last), uneven, torch.inf).argmin(1)
    return member & (along <= end[:, None])


def _shared_out(nodes: Nodes, group: Tensor, half: Tensor) -> tuple[Nodes, Tensor]:
    """Each domain once for every way to share the budget of its group between the half and the rest; and which each one came from."""
    rest = (nodes.group == group[:, None]) & ~half
    sizes, others = half.sum(1), rest.sum(1)
    budget = torch.minimum(nodes.budgets.gather(1, group[:, None]).squeeze(1), sizes + others)
    spare = (nodes.budgets == 0).to(torch.uint8).argmax(1)  # a number for the rest: groups with a budget are fewer than the whole budget
    found, parents = [], []
    for some in range(int(budget.max()) + 1):
        more = budget - some
        kept = ((some <= sizes) & (more <= others) & (more >= 0)).nonzero().flatten()
        taken, own, more = batch.take(nodes, kept), group[kept], more[kept]
        other = torch.where(more > 0, spare[kept] if some else own, -1)
        labels = torch.where(rest[kept], other[:, None], taken.group.long())
        labels = torch.where(half[kept], own[:, None] if some else -1, labels)
        budgets = taken.budgets.scatter(1, own[:, None], some)
        budgets = torch.where(more[:, None] > 0, budgets.scatter(1, other.clamp_min(0)[:, None], more[:, None]), budgets)
        found.append(replace(taken, group=labels.to(torch.int16), budgets=budgets))
        parents.append(kept)
    return batch.concatenate(found), torch.cat(parents)


def _halved(question: Question, nodes: Nodes, region: Budget, slopes: Tensor, finest: float) -> tuple[Nodes, Tensor]:
    """Each domain of single units twice, with the lower and the upper half of the values of the number that matters most."""
    unit = _members(nodes).to(torch.uint8).argmax(-1)  # (n, groups)
    place = question.elements[unit].flatten(1)
    low, high, slope = (v.flatten(1).gather(1, place).reshape(nodes.low.shape) for v in (region.lower, region.upper, slopes))
    reach = (question.upper - question.lower)[nodes.row[:, None], unit].clamp_min(1e-300)
    width = torch.where((nodes.budgets > 0)[..., None] & (high - low > finest * reach), high - low, 0)
    worth = (slope.abs() * width + 1e-12 * width / reach).flatten(1)
    chosen = torch.zeros_like(worth, dtype=torch.bool).scatter(1, worth.argmax(1, keepdim=True), True).reshape(low.shape)
    below, above = _around(question, nodes, unit, low / 2 + high / 2)
    first = replace(nodes, high=torch.where(chosen, below, nodes.high))
    second = replace(nodes, low=torch.where(chosen, above, nodes.low))
    stuck = ~(worth.amax(1) > 0)
    # Between two levels there may be nothing.
    some, others = (~stuck & ~(chosen & nothing).flatten(1).any(1) for nothing in (below < low, above > high))
    return batch.concatenate([batch.take(first, some), batch.take(second, others)]), stuck


def _around(question: Question, nodes: Nodes, unit: Tensor, middle: Tensor) -> tuple[Tensor, Tensor]:
    """The largest value that a number may take up to the middle, and the smallest from there on."""
    if question.levels is None:
        return middle, middle
    own = question.x[nodes.row[:, None], unit]  # in a unit that changes, a number may also stay
    ends = middle.new_tensor([torch.inf])
    levels = torch.cat([-ends, question.levels, ends])
    place = torch.bucketize(middle, question.levels, right=True)
    below, above = levels[place], levels[place + 1]
    return torch.where(own <= middle, torch.maximum(below, own), below), torch.where(own > middle, torch.minimum(above, own), above)


# ---- the tree


def _undecided(tree: Tree) -> Tensor:
    """(batch,) bool: one unit more may still be harmless."""
    return (tree.safe + 1 < tree.broken) & (tree.safe < tree.question.free.sum(1)) & ~tree.given_up


def _pruned(tree: Tree) -> Tree:
    """Without the domains of rows that are decided."""
    keep = _undecided(tree)[tree.nodes.row]
    return tree if bool(keep.all()) else replace(tree, nodes=batch.take(tree.nodes, keep))


def _grown(tree: Tree) -> Tree:
    """Rows with no open domain hold at the count they were asked about, and go on to the next."""
    open_ = torch.zeros_like(tree.given_up).index_fill(0, tree.nodes.row, True)
    closed = _undecided(tree) & ~open_
    tree = replace(tree, safe=tree.safe + closed)
    return _planted(tree, (closed & _undecided(tree)).nonzero().flatten())


def _planted(tree: Tree, rows: Tensor) -> Tree:
    """One new domain for each of these rows: all its units in one group, with the next count as its budget."""
    if not len(rows):
        return tree
    question, count = tree.question, (tree.safe[rows] + 1).long()
    groups = max(int(count.max()), tree.nodes.budgets.shape[1])
    ends = question.lower.new_full((len(rows), groups, question.elements.shape[1]), torch.inf)
    new = Nodes(
        row=rows,
        group=torch.where(question.free[rows], 0, -1).to(torch.int16),
        budgets=torch.nn.functional.pad(count[:, None], (0, groups - 1)),
        low=-ends,
        high=ends,
        open=torch.ones((len(rows), question.rows.shape[1]), dtype=torch.bool, device=rows.device),
        bound=-ends[:, 0, 0],
        inner=_unknown(len(rows), question.inner, rows.device),
    )
    # It loses no less than with one unit fewer; if that was too much for one domain, this one need not be looked at.
    hopeless = tree.loss[rows] > 1
    cut = batch.take(new, hopeless)
    cut = _cut(question, cut, torch.ones_like(cut.group, dtype=torch.float64), _levels(tree.loss[cut.row], cut))
    return replace(tree, nodes=batch.concatenate([_widened(tree.nodes, groups), batch.take(new, ~hopeless), cut]))


def _unknown(nodes: int, values: int, device: torch.device) -> Tensor:
    """Bounds of inner values that say nothing."""
    return torch.tensor([[-torch.inf], [torch.inf]], device=device).expand(nodes, 2, values)


def _noted_loss(tree: Tree, nodes: Nodes) -> Tensor:
    """The losses of rows, with those of domains that hold all units in one group."""
    whole = ((nodes.group >= 0) == tree.question.free[nodes.row]).all(1) & ((nodes.budgets > 0).sum(1) == 1)
    return tree.loss.index_put((nodes.row[whole],), _loss(tree.question, nodes)[whole])


def _widened(nodes: Nodes, groups: int) -> Nodes:
    """Room for more groups."""
    pad, more = torch.nn.functional.pad, groups - nodes.budgets.shape[1]
    low, high = pad(nodes.low, (0, 0, 0, more), value=-torch.inf), pad(nodes.high, (0, 0, 0, more), value=torch.inf)
    return replace(nodes, budgets=pad(nodes.budgets, (0, more)), low=low, high=high)
