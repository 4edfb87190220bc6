"""Branch and bound: a queue of open subproblems, independent of how they are bounded and split.

A step takes some subproblems from the queue, bounds them, drops the decided ones, splits the others,
and returns candidate points for counterexamples. A rule defines how subproblems are bounded and split (halve
an input, decide a sign, share a budget of changes).

Statement. The open subproblems cover all counterexamples at any time, so once none is left there is no
counterexample.

Assumption: the children of a split cover their parent, and only subproblems without a counterexample are
dropped.

Reference: Bunel et al., "Branch and bound for piecewise linear neural network verification" (2020).
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Generic, Protocol, TypeVar

import torch
from torch import Tensor

from holdfast import batch, time_limit
from holdfast.bounding.alpha_beta_crown import RowTask
from holdfast.bounding.crown_with_fixed_bounds import take_rows
from holdfast.bounding.graph.graph import Graph
from holdfast.bounding.node_bounds import Boxes
from holdfast.memory_budget import is_out_of_memory
from holdfast.property import Avoid
from holdfast.region import Region

# Largest number of values in all open subproblems of a search, which bounds its memory (chosen by hand).
MAX_QUEUE_VALUES = 2**26


@dataclass(frozen=True, eq=False)
class SubproblemQueue:
    """The open subproblems; subclasses add how they were split."""

    task: Tensor  # (n,): the row of the batch to which each belongs
    open: Tensor  # (n, ways) bool: ways to fail that are not excluded, such as the polytopes of `Avoid`
    bound: Tensor  # (n,): a certified lower bound of the score
    lost: float = torch.inf  # the smallest bound of subproblems that cannot be split further and were dropped
    given_up: frozenset[int] = frozenset()  # the tasks of these subproblems
    looked: int = 0  # number of subproblems bounded until now
    turn: tuple[int, ...] = ()  # number of subproblems of each task in the last step

    def __len__(self) -> int:
        return len(self.bound)

    @property
    def least(self) -> float:
        """A lower bound of the score over all open or dropped subproblems."""
        return min(float(self.bound.min()), self.lost) if len(self) else self.lost


@dataclass(frozen=True, eq=False)
class CandidatePoints:
    """Candidate points for counterexamples, each with the box that may be searched around it."""

    x: Tensor  # (n, *shape)
    lower: Tensor  # (n, *shape)
    upper: Tensor
    task: Tensor  # (n,)


F = TypeVar("F", bound=SubproblemQueue)


@dataclass(frozen=True, eq=False)
class BoundedSubproblems(Generic[F]):
    """Subproblems after bounding. Those without any open way to fail are decided."""

    parts: F
    gain: Tensor  # (n, ...): an estimate of the gain of each possible split, as the rule defines it
    points: CandidatePoints  # candidates in the open subproblems


class SearchSettings(Protocol):
    """What stays fixed during a search."""

    @property
    def graph(self) -> Graph: ...


Q = TypeVar("Q", bound=SearchSettings)


class SubproblemSearch(ABC, Generic[Q, F]):
    """A branching rule together with its search.

    Tasks take turns, each with its worst subproblems first. While the queue is too long, the subproblems
    nearest to being decided come first, which bounds the memory.
    """

    @abstractmethod
    def bound(self, question: Q, parts: F) -> BoundedSubproblems[F]:
        """Bound every subproblem; after the deadline, subproblems keep their old bounds."""

    @abstractmethod
    def cut(self, question: Q, parts: F, gain: Tensor) -> tuple[F, Tensor]:
        """Split subproblems.

        Returns children that cover the given subproblems, except for subproblems that cannot be split, which
        the second result marks, (n,) bool.
        """

    @abstractmethod
    def at_once(self, question: Q) -> int:
        """How many subproblems may be bounded together."""

    @abstractmethod
    def most(self, graph: Graph) -> int:
        """How many subproblems the queue may hold before it counts as too long."""

    def fits(self, question: Q, parts: F) -> int:
        """How many of these, counted from the first, may be bounded together."""
        return len(parts)

    @torch.no_grad()
    def advance(self, question: Q, frontier: F) -> tuple[F, CandidatePoints]:
        """One step of the search: the new queue, and candidate points."""
        chosen = self._chosen(question, frontier)
        parts = batch.take(frontier, chosen)
        count = self.fits(question, parts)
        chosen, parts = (
            (chosen, parts)
            if count == len(chosen)
            else (chosen[:count], batch.take(frontier, chosen[:count]))
        )
        seen = self._bound_if_memory_allows(question, parts)
        while seen is None:  # out of memory: try half as many
            chosen = chosen[: len(chosen) // 2]
            parts = batch.take(frontier, chosen)
            seen = self._bound_if_memory_allows(question, parts)
        left, points = seen
        rest = torch.ones_like(frontier.bound, dtype=torch.bool)
        rest[chosen] = False
        both = batch.concatenate([batch.take(frontier, rest), left])
        turn = tuple(parts.task.bincount().tolist())
        return replace(
            both, lost=left.lost, given_up=left.given_up, looked=frontier.looked + len(chosen), turn=turn
        ), points

    def _bound_if_memory_allows(self, question: Q, parts: F) -> tuple[F, CandidatePoints] | None:
        """The result of `look`, or None if memory does not suffice."""
        try:
            return self.look(question, parts)
        except (RuntimeError, MemoryError) as error:
            if len(parts) == 1 or not is_out_of_memory(error):
                raise
        torch.cuda.empty_cache()  # after the failed attempt's tensors were freed
        return None

    def look(self, question: Q, parts: F) -> tuple[F, CandidatePoints]:
        """Bound and split subproblems: the open children, and candidate points."""
        seen = self.bound(question, parts)
        left = seen.parts.open.any(1)
        bound = torch.fmax(seen.parts.bound, parts.bound)  # a bound of a subproblem holds for its children
        kept = batch.take(replace(seen.parts, bound=bound), left)
        if time_limit.has_expired() or not len(kept):  # no time is left to bound the children
            return kept, seen.points
        cut, stuck = self.cut(question, kept, seen.gain[left])
        if not bool(stuck.any()):
            return cut, seen.points
        lost = min(parts.lost, float(kept.bound[stuck].min()))
        lost_tasks = frozenset(kept.task[stuck].tolist())
        return replace(cut, lost=lost, given_up=parts.given_up | lost_tasks), seen.points

    def _chosen(self, question: Q, frontier: F) -> Tensor:
        """The indices of the subproblems of the next step."""
        count, capacity = len(frontier), self.at_once(question)
        order = torch.arange(count, device=frontier.bound.device)
        deep = count > self.most(question.graph)
        if count > capacity and bool((frontier.task == frontier.task[0]).all()):
            order = frontier.bound.topk(capacity, largest=deep).indices
        elif count > capacity:
            order = order.flip(0) if deep else order  # of equal bounds the newest first
            order = order[frontier.bound[order].argsort(descending=deep, stable=True)]
            order = order[frontier.task[order].argsort(stable=True)]
            task = frontier.task[order]
            turn = torch.arange(count, device=order.device) - torch.searchsorted(task, task)
            order = order[turn.argsort(stable=True)[:capacity]]
        return order


def count_within_capacity(costs: Tensor, capacity: int) -> int:
    """The number of leading entries of costs (n,) with a sum of at most `capacity`; at least one."""
    return max(1, int((costs.cumsum(0) <= capacity).sum()))


@dataclass(frozen=True, eq=False)
class PolytopeQuestion:
    """Where in the regions, one for each row of the batch, does the output lie in one of the polytopes?"""

    graph: Graph
    region: Region
    rules: Avoid

    def rows_of(self, known: Boxes, part: Tensor, task: Tensor, polytope: Tensor, signs: Tensor) -> RowTask:
        """The rows of pairs of a subproblem and a polytope, (pairs,) each, as a question to train.

        Args:
            known: intermediate bounds of the subproblems.
            task: the row of the batch of each pair. signs: (pairs, pre-activations), their ReLU splits.
        """
        matrix, offset = self.rules.matrix[task, polytope], self.rules.offset[task, polytope]
        return RowTask(self.graph, take_rows(known, part), self.graph.output, matrix, offset, signs)


class Branching(SubproblemSearch[PolytopeQuestion, F], Generic[F]):
    """The search for points of regions with outputs in one of the polytopes of `Avoid`."""

    @abstractmethod
    def start(self, graph: Graph, region: Region, rules: Avoid) -> F:
        """The initial queue: one subproblem for each row of the batch, the whole region."""

    def step(
        self, graph: Graph, region: Region, rules: Avoid, frontier: F, deadline: float = math.inf
    ) -> tuple[F, CandidatePoints]:
        """One step of the search, which ends early at the deadline (of the monotonic clock)."""
        with time_limit.within(deadline):
            return self.advance(PolytopeQuestion(graph, region, rules), frontier)


def all_open(rules: Avoid) -> Tensor:
    """(batch, polytopes) bool: all true, no polytope is excluded yet."""
    return torch.ones(rules.offset.shape[:2], dtype=torch.bool, device=rules.offset.device)
