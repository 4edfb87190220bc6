"""Certified lower bound in norm 0 by branch and bound: no change of at most t units violates the
specification.

Statement. Let D(t) be the set of inputs that differ from the centre in at most t units, each within its
range. The count t is certified once D(t) is covered by subproblems and for each of them

    min over x in the subproblem of (row . f(x) + offset) > 0   for every row of the specification

has been proved by `hamming.bound`, `pixel_interactions` or the bounding engine. A subproblem that is not
proved is split (`budget_split`). The point at which a bound is smallest is evaluated as a candidate
counterexample, so the upper bound improves too.

Reference: the question is that of W. Ruan et al., Global robustness evaluation of deep neural networks with provable
guarantees for the Hamming distance, 2019; branch and bound is not from that paper.

Assumptions: those of the bound that is used; the centre is inside its own range.
"""

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from holdfast import batch
from holdfast.bounding.branching.subproblem_queue import CandidatePoints
from holdfast.bounding.graph.problem_graph import ASSUMPTIONS, CHECKS, checked_graph
from holdfast.errors import BadInput, UnsupportedLayer
from holdfast.hamming.budget_split import (
    BudgetQuestion,
    BudgetSplit,
    Domains,
    question_of,
    relative_loss,
    root_domains,
    sparse_region,
    split_evenly,
    split_levels,
    widen_groups,
)
from holdfast.method import Claims, Method
from holdfast.network import Network
from holdfast.problem import Problem
from holdfast.property import LinearProperty
from holdfast.result import Goal, Traits

# On a GPU a step bounds this many times as many subproblems as on a CPU (chosen by hand).
GPU_BATCH_FACTOR = 16


@dataclass(frozen=True, eq=False)
class BudgetTree:
    """The state of the search: certified counts, counterexamples and open subproblems."""

    question: BudgetQuestion
    twin: Network | None
    frontier: Domains
    safe: Tensor  # (batch,) float64: largest number of changed units certified
    broken: Tensor  # (batch,) float64: number of changed units of the smallest counterexample
    # (batch,): loss of the bound with all units in one group, in multiples of the input's margin; NaN: not
    # known
    loss: Tensor

    @property
    def undecided(self) -> Tensor:
        """(batch,) bool: one more unit may still be safe, and no subproblem was too small to split."""
        may = (self.safe + 1 < self.broken) & (self.safe < self.question.free.sum(1))
        return may.index_fill(
            0, torch.tensor(list(self.frontier.given_up), dtype=torch.int64, device=may.device), False
        )


@dataclass(frozen=True)
class Branch(Method[BudgetTree]):
    """Certify counts one after the other: 1 unit, then 2, and so on.

    Attributes:
        nodes_at_once: subproblems bounded in one step over all inputs, sixteen times as many on a GPU; fewer
            if they are large.
        queue: number of queued subproblems above which the search goes depth first, which keeps the queue
            short.
        finest: values are split until their range is this share of the domain; if that is not enough, the
            count stays unknown.
    """

    finds: ClassVar[str] = "proved counts of changed units"
    help: ClassVar[str] = "branch and bound over groups of units"
    needs_graph: ClassVar[bool] = True
    traits: ClassVar[Traits] = Traits(seeded=False, glass=True)
    goals: ClassVar[tuple[Goal, ...]] = ("radius",)

    long_steps: ClassVar[bool] = True
    nodes_at_once: int = 256
    queue: int = 50_000
    finest: float = 2.0**-16

    def __post_init__(self) -> None:
        self.at_least(nodes_at_once=1, queue=1)
        if not 0 < self.finest < 1:
            raise BadInput(f"Branch: finest is a share of the domain, between 0 and 1; got {self.finest}.")

    def obstacle(self, problem: Problem) -> str | None:
        if sparse_region(problem) is None:
            return "certifies how many units may change; this problem has another region"
        if not isinstance(problem.property, LinearProperty):
            return "proofs need a property in linear rows (Robustness, Targeted, Linear)"
        try:
            checked_graph(problem)
        except UnsupportedLayer as error:
            return str(error)
        return None

    def at_once(self, device: torch.device) -> int:
        return self.nodes_at_once * (GPU_BATCH_FACTOR if device.type == "cuda" else 1)

    def start(self, problem: Problem, seed: int) -> BudgetTree:
        question = question_of(problem)
        none = torch.zeros(len(problem), dtype=torch.float64, device=question.rows.device)
        frontier, twin = (
            root_domains(question, none[:0].long(), none[:0].long(), 0),
            problem.network.double(problem.region.centre),
        )
        tree = BudgetTree(
            question, twin, frontier, none, torch.full_like(none, torch.inf), torch.full_like(none, torch.nan)
        )
        return _plant_roots(tree, tree.undecided.nonzero().flatten())

    def update_bounds(self, problem: Problem, state: BudgetTree, lower: Tensor, upper: Tensor) -> BudgetTree:
        """Skip counts that are certified already or that lie beyond a known counterexample."""
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
        tree = _advance_counts(_prune(_record_losses(replace(state, frontier=frontier, broken=broken))))
        claims = Claims(
            proved=tree.safe,
            witness=witness,
            found=broken < state.broken,
            assumptions=ASSUMPTIONS,
            checks=CHECKS,
            fallback=state.question.effects.left_out,
        )
        return tree if len(tree.frontier) else None, claims


def _counterexamples(problem: Problem, tree: BudgetTree, points: CandidatePoints) -> tuple[Tensor, Tensor]:
    """Evaluate a candidate of each subproblem; return a counterexample for each row of the problem and the
    number of units it changes.
    """
    every, row = sparse_region(problem), points.task
    assert every is not None
    if not len(row):
        return every.centre, tree.broken
    region, required = batch.take(every, row), batch.take(problem.property, row)
    x = region.at(tree.safe[row] + 1).project(points.x.to(every.centre))
    fails = ~(required.score(problem.network(x)) > 0)
    # A counterexample must hold in both networks; see `replay`.
    if tree.twin is not None and bool(fails.any()):
        hit = fails.nonzero().flatten()
        fails[hit] = ~(batch.take(required, hit).score(tree.twin(x[hit])) > 0)
    count = torch.where(fails, region.distance(x), torch.inf)
    broken = tree.broken.scatter_reduce(0, row, count, "amin")
    best = ((count < tree.broken[row]) & (count == broken[row])).nonzero().flatten()
    return every.centre.index_put((row[best],), x[best]), broken


def _record_losses(tree: BudgetTree) -> BudgetTree:
    """Store the losses of rows whose units were all in one group until now: the smallest bound of its
    subproblems bounds that group.
    """
    frontier = tree.frontier
    least = torch.full_like(tree.loss, torch.inf).scatter_reduce(0, frontier.task, frontier.bound, "amin")
    row = (tree.loss.isnan() & least.isfinite()).nonzero().flatten()
    return replace(tree, loss=tree.loss.index_put((row,), relative_loss(tree.question, row, least[row])))


def _prune(tree: BudgetTree) -> BudgetTree:
    """Drop the subproblems of decided rows."""
    keep = tree.undecided[tree.frontier.task]
    return tree if bool(keep.all()) else replace(tree, frontier=batch.take(tree.frontier, keep))


def _advance_counts(tree: BudgetTree) -> BudgetTree:
    """Certify the current count of rows without open subproblems and start their next count."""
    closed = tree.undecided.index_fill(0, tree.frontier.task, False)
    tree = replace(tree, safe=tree.safe + closed)
    return _plant_roots(tree, (closed & tree.undecided).nonzero().flatten())


def _plant_roots(tree: BudgetTree, rows: Tensor) -> BudgetTree:
    """Create one subproblem for each of these rows: all units in one group, with the next count as its
    budget.
    """
    if not len(rows):
        return tree
    question, count = tree.question, (tree.safe[rows] + 1).long()
    groups = max(int(count.max()), tree.frontier.budgets.shape[1])
    new = root_domains(question, rows, count, groups)
    # The bound loses at least as much as with one unit fewer. If that was too much for one subproblem, this
    # one is split without being bounded.
    hopeless = tree.loss[rows] > 1
    cut = batch.take(new, hopeless)
    cut = split_evenly(
        question,
        cut,
        torch.ones_like(cut.group, dtype=torch.float64),
        split_levels(question, tree.loss[cut.task], cut),
    )
    both = batch.concatenate([widen_groups(tree.frontier, groups), batch.take(new, ~hopeless), cut])
    return replace(tree, frontier=both, loss=tree.loss.index_fill(0, rows[~hopeless], torch.nan))
