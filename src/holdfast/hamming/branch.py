"""The lower bound, proved: no change of at most t units breaks the property, by branch and bound over groups of units.

Where the bound of a domain does not prove it, it is cut (`budget_split`). A count holds once every domain that came of it is proved. The
point at which a bound is smallest is asked about as a counterexample, so both bounds move.
"""

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from holdfast import batch
from holdfast.bounding.branching.subproblem_queue import Points
from holdfast.bounding.graph.problem_graph import ASSUMPTIONS, CHECKS, checked_graph
from holdfast.errors import BadInput, UnsupportedLayer
from holdfast.hamming.budget_split import (
    BudgetQuestion,
    BudgetSplit,
    Domains,
    levels,
    loss,
    question_of,
    split_evenly,
    whole,
    widen_groups,
)
from holdfast.method import Claims, Method
from holdfast.network import Network
from holdfast.problem import Problem
from holdfast.property import LinearProperty
from holdfast.region import Sparse
from holdfast.result import Traits

ON_A_CARD = 16  # times as many domains at once


@dataclass(frozen=True, eq=False)
class BudgetTree:
    """The state of the search: what is proved, what is found, and the domains that are open."""

    question: BudgetQuestion
    twin: Network | None
    frontier: Domains
    safe: Tensor  # (batch,) float64: so many changed units are proved harmless
    broken: Tensor  # (batch,) float64: so many are known to break the property
    loss: Tensor  # (batch,): how many times its margin an input loses if all its units are in one group, by the bound; NaN: not known

    @property
    def undecided(self) -> Tensor:
        """(batch,) bool: one unit more may still be harmless, and no domain was too small to cut."""
        may = (self.safe + 1 < self.broken) & (self.safe < self.question.free.sum(1))
        return may.index_fill(
            0, torch.tensor(list(self.frontier.given_up), dtype=torch.int64, device=may.device), False
        )


@dataclass(frozen=True)
class Branch(Method[BudgetTree]):
    """Every count is tried as soon as the one before it is proved.

    nodes_at_once  domains looked at in one step, over all inputs, and on a GPU sixteen times as many; fewer while they are large.
    queue          domains that may wait before the search goes deep first, which keeps their number small.
    finest         a value is halved until its range is this share of the domain; what is not proved then stays unknown.
    """

    finds: ClassVar[str] = "proved counts of changed units"
    help: ClassVar[str] = "branch and bound over groups of units"
    traits: ClassVar[Traits] = Traits(seeded=False, glass=True)

    long_steps: ClassVar[bool] = True
    nodes_at_once: int = 256
    queue: int = 50_000
    finest: float = 2.0**-16

    def __post_init__(self) -> None:
        self.at_least(nodes_at_once=1, queue=1)
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

    def at_once(self, device: torch.device) -> int:
        return self.nodes_at_once * (ON_A_CARD if device.type == "cuda" else 1)

    def start(self, problem: Problem, seed: int) -> BudgetTree:
        question = question_of(problem)
        none = torch.zeros(len(problem), dtype=torch.float64, device=question.rows.device)
        frontier, twin = (
            whole(question, none[:0].long(), none[:0].long(), 0),
            problem.network.double(problem.region.centre),
        )
        tree = BudgetTree(
            question, twin, frontier, none, torch.full_like(none, torch.inf), torch.full_like(none, torch.nan)
        )
        return _plant_roots(tree, tree.undecided.nonzero().flatten())

    def update_bounds(self, problem: Problem, state: BudgetTree, lower: Tensor, upper: Tensor) -> BudgetTree:
        """A count that is proved already is not asked about, nor one beyond what is known to fail."""
        state = replace(state, broken=torch.minimum(state.broken, upper.to(state.broken) + 1))
        proved = torch.minimum(lower.to(state.safe).floor(), state.question.free.sum(1))
        raised = proved > state.safe
        if not bool(raised.any()):
            return _prune(state)
        frontier = batch.take(state.frontier, ~raised[state.frontier.task])
        frontier = replace(frontier, given_up=frontier.given_up - set(raised.nonzero().flatten().tolist()))
        tree = _prune(replace(state, frontier=frontier, safe=torch.where(raised, proved, state.safe)))
        return _plant_roots(tree, (raised & tree.undecided).nonzero().flatten())

    def step(self, problem: Problem, state: BudgetTree) -> tuple[BudgetTree | None, Claims]:
        if not len(state.frontier):
            return None, Claims(proved=state.safe, assumptions=ASSUMPTIONS, checks=CHECKS)
        rule = BudgetSplit(self.at_once(state.safe.device), self.queue, self.finest)
        frontier, points = rule.advance(state.question, state.frontier)
        witness, broken = _counterexamples(problem, state, points)
        tree = _grown(_prune(_record_losses(replace(state, frontier=frontier, broken=broken))))
        claims = Claims(
            proved=tree.safe, witness=witness, found=broken < state.broken, assumptions=ASSUMPTIONS, checks=CHECKS,
            fallback=state.question.effects.left_out,
        )  # fmt: skip
        return tree if len(tree.frontier) else None, claims


def _counterexamples(problem: Problem, tree: BudgetTree, points: Points) -> tuple[Tensor, Tensor]:
    """One for each domain -> for each row of the problem a witness, and how many units are known to be enough."""
    every, row = problem.region, points.task
    assert isinstance(every, Sparse)
    if not len(row):
        return every.centre, tree.broken
    region, required = batch.take(every, row), batch.take(problem.property, row)
    x = region.at(tree.safe[row] + 1).project(points.x.to(every.centre))
    fails = ~(required.score(problem.network(x)) > 0)
    if tree.twin is not None and bool(fails.any()):  # a witness must hold in both, see `replay`
        hit = fails.nonzero().flatten()
        fails[hit] = ~(batch.take(required, hit).score(tree.twin(x[hit])) > 0)
    count = torch.where(fails, region.distance(x), torch.inf)
    broken = tree.broken.scatter_reduce(0, row, count, "amin")
    best = ((count < tree.broken[row]) & (count == broken[row])).nonzero().flatten()
    return every.centre.index_put((row[best],), x[best]), broken


def _record_losses(tree: BudgetTree) -> BudgetTree:
    """With the losses of rows of which one domain held all units until now: its bound is that of all that was cut from it."""
    frontier = tree.frontier
    least = torch.full_like(tree.loss, torch.inf).scatter_reduce(0, frontier.task, frontier.bound, "amin")
    row = (tree.loss.isnan() & least.isfinite()).nonzero().flatten()
    return replace(tree, loss=tree.loss.index_put((row,), loss(tree.question, row, least[row])))


def _prune(tree: BudgetTree) -> BudgetTree:
    """Without the domains of rows that are decided."""
    keep = tree.undecided[tree.frontier.task]
    return tree if bool(keep.all()) else replace(tree, frontier=batch.take(tree.frontier, keep))


def _grown(tree: BudgetTree) -> BudgetTree:
    """Rows with no open domain hold at the count they were asked about, and go on to the next."""
    closed = tree.undecided.index_fill(0, tree.frontier.task, False)
    tree = replace(tree, safe=tree.safe + closed)
    return _plant_roots(tree, (closed & tree.undecided).nonzero().flatten())


def _plant_roots(tree: BudgetTree, rows: Tensor) -> BudgetTree:
    """One new domain for each of these rows: all its units in one group, with the next count as its budget."""
    if not len(rows):
        return tree
    question, count = tree.question, (tree.safe[rows] + 1).long()
    groups = max(int(count.max()), tree.frontier.budgets.shape[1])
    new = whole(question, rows, count, groups)
    # It loses no less than with one unit fewer; if that was too much for one domain, this one need not be looked at.
    hopeless = tree.loss[rows] > 1
    cut = batch.take(new, hopeless)
    cut = split_evenly(
        question,
        cut,
        torch.ones_like(cut.group, dtype=torch.float64),
        levels(question, tree.loss[cut.task], cut),
    )
    both = batch.concatenate([widen_groups(tree.frontier, groups), batch.take(new, ~hopeless), cut])
    return replace(tree, frontier=both, loss=tree.loss.index_fill(0, rows[~hopeless], torch.nan))
