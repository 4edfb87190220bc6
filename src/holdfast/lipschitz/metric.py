"""Search for DeepQuant's Lipschitz metric Q, which yields a lower bound that is shown by a concrete point:

    Q(s, x, d, p) = max over x' with 0 < ||x' - x||_p <= d of |s(x') - s(x)| / ||x' - x||_p.

Reference: P. Xu, W. Ruan, X. Huang, Quantifying safety risks of deep neural networks. `metric_bound` proves
an upper bound of Q.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor

from holdfast import time_limit
from holdfast.errors import BadInput
from holdfast.lipschitz.gradient_search import Slopes
from holdfast.lipschitz.mesh_search import MeshRatio
from holdfast.lipschitz.ratio import LANDMARKS, QueryTally
from holdfast.lipschitz.ray_search import Rays
from holdfast.memory_budget import LARGE_INPUT_NUMBERS
from holdfast.method import Claims, Method
from holdfast.problem import Problem
from holdfast.random_streams import RandomStreams
from holdfast.result import Goal, Traits


class MetricSearch(Protocol):
    """One search strategy.

    `start` makes the queries needed to begin, `advance` continues by a bounded number of queries; neither may
    exceed `end` queries of each row.
    """

    def start(self, tally: QueryTally, end: int, chance: RandomStreams) -> Any: ...

    def advance(self, tally: QueryTally, state: Any) -> Any: ...


SEARCHES: dict[str, MetricSearch] = {"rays": Rays(), "slopes": Slopes(), "mesh": MeshRatio()}
# Weights by which the queries are divided among the searches that are used; the sum need not be 1 (chosen by
# hand).
SEARCH_WEIGHTS = {"rays": 0.5, "slopes": 0.5, "mesh": 0.1}
# Queries of each row that are reserved for replaying what was found: the best point and every landmark.
REPLAY_QUERIES = LANDMARKS + 1
# The name of the extra of a record that holds the radius of the ball in which Q was searched.
SEARCHED_RADIUS_KEY = "searched_radius"
# The smallest budget, in queries of each row: half of it for the search, half for the replay.
MIN_QUERIES = 2 * REPLAY_QUERIES
QUERIES_PER_STEP = 200  # Queries of each row in one step of the method (chosen by hand).
# The same for large inputs, whose queries take long: a first ratio is reported after these (chosen by hand).
LARGE_QUERIES_PER_STEP = 25


@dataclass(frozen=True, eq=False)
class MetricStep:
    """One improvement of the search."""

    queries: int  # queries of the row when the point was found
    ratio: float
    point: Tensor  # (*shape)


@dataclass(frozen=True, eq=False)
class SteepestState:
    """The best points found, the search that is running with its state, and the searches that follow it."""

    tally: QueryTally
    waiting: tuple[tuple[str, int], ...]  # the searches still to come, each with its number of queries
    chance: RandomStreams
    name: str = ""
    end: int = 0
    state: Any = None


@dataclass(frozen=True)
class Steepest(Method[SteepestState]):
    """The largest ratio that `queries` queries of each row find over the problem's region at its radius.

    Attributes:
        searches: a list such as "rays,mesh". Default: rays and slopes; where the network or the score has no
            gradients, rays and mesh.
    """

    finds: ClassVar[str] = "witnesses of the steepness Q"
    help: ClassVar[str] = "DeepQuant's metric Q: rays, gradients and mesh search on the ratio"
    traits: ClassVar[Traits] = Traits()
    goals: ClassVar[tuple[Goal, ...]] = ("steepness",)

    queries: int = 2000
    searches: str | None = None

    def __post_init__(self) -> None:
        if self.queries < MIN_QUERIES:
            raise BadInput(
                f"queries: the search for Q needs at least {MIN_QUERIES} for each input, got {self.queries}."
            )
        unknown = [name for name in self._search_names() if name not in SEARCHES]
        if unknown:
            raise BadInput(f"unknown search {unknown[0]!r} for Q; there are {', '.join(SEARCHES)}.")

    def _search_names(self) -> tuple[str, ...]:
        return tuple(self.searches.split(",")) if self.searches else ()

    def obstacle(self, problem: Problem) -> str | None:
        if "slopes" in self._search_names() and not _has_gradients(problem):
            return "slopes need gradients, and the network or the property is a black box; use rays and mesh"
        return None

    def start(self, problem: Problem, seed: int) -> SteepestState:
        chosen = self._search_names() or (("rays", "slopes") if _has_gradients(problem) else ("rays", "mesh"))
        tally, whole = (
            QueryTally(problem, self.queries - REPLAY_QUERIES),
            sum(SEARCH_WEIGHTS[name] for name in chosen),
        )
        waiting = tuple((name, int(tally.budget * SEARCH_WEIGHTS[name] / whole)) for name in chosen)
        return SteepestState(
            tally, waiting, RandomStreams.of(problem.keys, seed, problem.region.centre.device)
        )

    def step(self, problem: Problem, state: SteepestState) -> tuple[SteepestState | None, Claims]:
        large = math.prod(problem.region.shape) >= LARGE_INPUT_NUMBERS
        until = state.tally.queries + (LARGE_QUERIES_PER_STEP if large else QUERIES_PER_STEP)
        tally = state.tally
        ongoing = True
        while ongoing and tally.queries < until:
            state = (
                replace(state, state=SEARCHES[state.name].advance(tally, state.state))
                if tally.queries < state.end
                else _start_next_search(state)
            )
            ongoing = bool(state.waiting) or tally.queries < state.end
            if time_limit.has_expired():
                break
        return state if ongoing else None, Claims(
            witness=tally.point, found=tally.ratio > 0, aside=_extras(tally)
        )


def _start_next_search(state: SteepestState) -> SteepestState:
    """Start the next search; the last one receives all remaining queries."""
    tally, ((name, share), *others) = state.tally, state.waiting
    end = tally.queries + (min(tally.left, share) if others else tally.left)
    begun = SEARCHES[name].start(tally, end, state.chance.substream(len(others)))
    return replace(state, waiting=tuple(others), name=name, end=end, state=begun)


def _has_gradients(problem: Problem) -> bool:
    """Whether the network and the score of the specification have gradients."""
    net = problem.network
    if not net.differentiable:
        return False
    try:
        with torch.enable_grad():
            outputs = torch.zeros(
                len(problem), net.outputs_for(problem.region.centre), device=net.device, requires_grad=True
            )
            return problem.property.score(outputs).requires_grad
    except RuntimeError:  # A score that uses numpy rejects tensors that require a gradient.
        return False


def _extras(tally: QueryTally) -> dict[str, Tensor]:
    """Return the extras of the records: the improvements found on the way to the best point, and the radius
    of the searched ball.

    The improvements are tensors (batch, LANDMARKS, ...); a landmark that was not reached has ratio zero. Q
    says nothing about distances beyond the searched radius, (batch,).
    """
    queries, ratio, point = (torch.stack(part, 1) for part in zip(*tally.trail, strict=True))
    return {
        "path": point,
        "path_ratio": ratio,
        "path_queries": queries.double(),
        SEARCHED_RADIUS_KEY: tally.radius.double(),
    }


def searched_radius(aside: Mapping[str, Tensor]) -> float | None:
    """Return the radius d of Q(s, x, d, p) from the extras of one row; None if an older run did not store
    it.
    """
    return float(aside[SEARCHED_RADIUS_KEY]) if SEARCHED_RADIUS_KEY in aside else None


def path_of(aside: Mapping[str, Tensor]) -> tuple[MetricStep, ...]:
    """Return the landmarks of one row, each with a larger ratio than all before."""
    if "path" not in aside:
        return ()
    steps = list[MetricStep]()
    for asked, ratio, point in zip(
        aside["path_queries"].tolist(), aside["path_ratio"].tolist(), aside["path"], strict=True
    ):
        if ratio > (steps[-1].ratio if steps else 0):
            steps.append(MetricStep(int(asked), ratio, point.detach().cpu()))
    return tuple(steps)
