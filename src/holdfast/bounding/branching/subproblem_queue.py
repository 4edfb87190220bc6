"""Branch and bound: one frontier of parts that are not settled yet, whatever they are parts of and however they are cut.

A step chooses some of the parts, bounds them, drops what is settled, cuts the rest, and says at which points a failure is most likely.
What is particular is a rule: how its parts are bounded, and how they are cut (halve an input, decide a sign, share a budget of changes).
The parts that a cut makes of one must cover it; then what is left always covers all failures, and once nothing is left there is none.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Generic, Protocol, TypeVar

import torch
from torch import Tensor

from holdfast import batch, time_limit
from holdfast.bounding.graph.graph import Graph
from holdfast.memory_budget import is_out_of_memory
from holdfast.property import Avoid
from holdfast.region import Region

NUMBERS = 2**26  # in all parts that wait


@dataclass(frozen=True, eq=False)
class Frontier:
    """The parts that are not settled, however they were cut."""

    task: Tensor  # (n,) the row of the batch that this is a part of
    open: Tensor  # (n, ways) bool: the ways to fail that are not ruled out here, such as the polytopes of `Avoid`
    bound: Tensor  # (n,): the score is at least this here
    lost: float = torch.inf  # the least bound of parts that were given up, since nothing is left to cut
    given_up: frozenset[int] = frozenset()  # the tasks of these
    looked: int = 0  # parts that were bounded so far
    turn: tuple[int, ...] = ()  # in the last step, so many of each task

    def __len__(self) -> int:
        return len(self.bound)

    @property
    def least(self) -> float:
        """No score on what is not settled is below this."""
        return min(float(self.bound.min()), self.lost) if len(self) else self.lost


@dataclass(frozen=True, eq=False)
class Points:
    """Places where a failure is most likely, each with the box around it that is left to search."""

    x: Tensor  # (n, *shape)
    lower: Tensor  # (n, *shape)
    upper: Tensor
    task: Tensor  # (n,)


F = TypeVar("F", bound=Frontier)


@dataclass(frozen=True, eq=False)
class Seen(Generic[F]):
    """Parts with what is known of them now. Those of which nothing is open are settled."""

    parts: F
    gain: Tensor  # (n, ...): what a cut at each place may win, in the words of the rule
    points: Points  # in those that are not settled


class SearchSettings(Protocol):
    """What does not change during a search."""

    @property
    def graph(self) -> Graph: ...


Q = TypeVar("Q", bound=SearchSettings)


class SubproblemSearch(ABC, Generic[Q, F]):
    """A rule, and the search with it: every task in its turn, worst parts first; while too many wait, those nearest to being settled,
    which keeps the memory bounded."""

    @abstractmethod
    def bound(self, question: Q, parts: F) -> Seen[F]:
        """What is known of every part; of what the clock leaves no time for, what was known before."""

    @abstractmethod
    def cut(self, question: Q, parts: F, gain: Tensor) -> tuple[F, Tensor]:
        """Parts that together hold every point of these but of the ones, (n,) bool, with nothing left to cut."""

    @abstractmethod
    def at_once(self, question: Q) -> int:
        """How many parts may be looked at together."""

    @abstractmethod
    def most(self, graph: Graph) -> int:
        """How many may wait."""

    def fits(self, question: Q, parts: F) -> int:
        """How many of these, from the first on, may be looked at together."""
        return len(parts)

    @torch.no_grad()
    def advance(self, question: Q, frontier: F) -> tuple[F, Points]:
        """Look at some of the parts."""
        chosen = self._chosen(question, frontier)
        parts = batch.take(frontier, chosen)
        count = self.fits(question, parts)
        chosen, parts = (
            (chosen, parts)
            if count == len(chosen)
            else (chosen[:count], batch.take(frontier, chosen[:count]))
        )
        seen = self._bound_if_memory_allows(question, parts)
        while seen is None:  # half as many may fit
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

    def _bound_if_memory_allows(self, question: Q, parts: F) -> tuple[F, Points] | None:
        """None: there is no room for so many."""
        try:
            return self.look(question, parts)
        except (RuntimeError, MemoryError) as error:
            if len(parts) == 1 or not is_out_of_memory(error):
                raise
        torch.cuda.empty_cache()  # after what the failed attempt held is gone
        return None

    def look(self, question: Q, parts: F) -> tuple[F, Points]:
        """Bound every part: what is left of them, cut further, and the points to try."""
        seen = self.bound(question, parts)
        left = seen.parts.open.any(1)
        bound = torch.fmax(
            seen.parts.bound, parts.bound
        )  # what holds of a part holds of all that was cut from it
        kept = batch.take(replace(seen.parts, bound=bound), left)
        if time_limit.has_expired() or not len(kept):  # no one will look at what a cut would make
            return kept, seen.points
        cut, stuck = self.cut(question, kept, seen.gain[left])
        if not bool(stuck.any()):
            return cut, seen.points
        lost, whose = min(parts.lost, float(kept.bound[stuck].min())), frozenset(kept.task[stuck].tolist())
        return replace(cut, lost=lost, given_up=parts.given_up | whose), seen.points

    def _chosen(self, question: Q, frontier: F) -> Tensor:
        count, room = len(frontier), self.at_once(question)
        order = torch.arange(count, device=frontier.bound.device)
        deep = count > self.most(question.graph)
        if count > room and bool((frontier.task == frontier.task[0]).all()):
            order = frontier.bound.topk(room, largest=deep).indices
        elif count > room:
            order = order.flip(0) if deep else order  # of equal ones the newest
            order = order[frontier.bound[order].argsort(descending=deep, stable=True)]
            order = order[frontier.task[order].argsort(stable=True)]
            task = frontier.task[order]
            turn = torch.arange(count, device=order.device) - torch.searchsorted(task, task)
            order = order[turn.argsort(stable=True)[:room]]
        return order


def upto(costs: Tensor, room: int) -> int:
    """(n,) -> how many of these, from the first on, cost no more than this together; at least one."""
    return max(1, int((costs.cumsum(0) <= room).sum()))


@dataclass(frozen=True, eq=False)
class PolytopeQuestion:
    """Where in the regions, one for each row, is a polytope met?"""

    graph: Graph
    region: Region
    rules: Avoid


class Branching(SubproblemSearch[PolytopeQuestion, F], Generic[F]):
    """The search for points of regions whose outputs lie in one of the polytopes of `Avoid`."""

    @abstractmethod
    def start(self, graph: Graph, region: Region, rules: Avoid) -> F:
        """The whole region of every row of the batch, uncut."""

    def step(
        self, graph: Graph, region: Region, rules: Avoid, frontier: F, deadline: float = math.inf
    ) -> tuple[F, Points]:
        """Look at some of the parts. What takes long ends at the deadline (of the monotonic clock) with what it has."""
        with time_limit.within(deadline):
            return self.advance(PolytopeQuestion(graph, region, rules), frontier)


def all_open(rules: Avoid) -> Tensor:
    """-> (batch, polytopes): nothing is ruled out yet."""
    return torch.ones(rules.offset.shape[:2], dtype=torch.bool, device=rules.offset.device)
