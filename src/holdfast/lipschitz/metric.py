"""DeepQuant's metric Q(s, x, d, p): the largest |s(x') - s(x)| / ||x' - x|| over a region, from below, by points that show it."""

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
from holdfast.method import Claims, Method
from holdfast.problem import Problem
from holdfast.random_streams import Chance
from holdfast.result import Goal, Traits


class MetricSearch(Protocol):
    """A part of the search: `start` asks what it must, `more` goes on by a bounded number of queries; both may ask until `end`."""

    def start(self, tally: QueryTally, end: int, chance: Chance) -> Any: ...

    def more(self, tally: QueryTally, state: Any) -> Any: ...


SEARCHES: dict[str, MetricSearch] = {"rays": Rays(), "slopes": Slopes(), "mesh": MeshRatio()}
SHARES = {"rays": 0.5, "slopes": 0.5, "mesh": 0.1}  # of the queries, among the searches that are used
REPLAY = LANDMARKS + 1  # queries left to those who replay what was found
SEARCHED = "searched_radius"  # the name beside the records under which the radius of the search for Q is kept
FEWEST = 2 * REPLAY  # queries in all
STEP = 200  # queries of each row in one step


@dataclass(frozen=True, eq=False)
class MetricStep:
    """A better point on the way."""

    queries: int  # asked by then
    ratio: float
    point: Tensor  # (*shape)


@dataclass(frozen=True, eq=False)
class SteepestState:
    """What was found, who searches now and how far it is, and who comes after."""

    tally: QueryTally
    waiting: tuple[tuple[str, int], ...]  # each with its share of the queries
    chance: Chance
    name: str = ""
    end: int = 0
    state: Any = None


@dataclass(frozen=True)
class Steepest(Method[SteepestState]):
    """The largest ratio that `queries` queries for each row find, over the problem's region at its radius.

    searches  as in "rays,mesh"; None: rays and slopes; where the network or the property has no gradients, rays and mesh.
    """

    finds: ClassVar[str] = "witnesses of the steepness Q"
    help: ClassVar[str] = "DeepQuant's metric Q: rays, gradients and mesh search on the ratio"
    traits: ClassVar[Traits] = Traits()
    goals: ClassVar[tuple[Goal, ...]] = ("steepness",)

    queries: int = 2000
    searches: str | None = None

    def __post_init__(self) -> None:
        if self.queries < FEWEST:
            raise BadInput(
                f"queries: the search for Q needs at least {FEWEST} for each input, got {self.queries}."
            )
        unknown = [name for name in self._search_names() if name not in SEARCHES]
        if unknown:
            raise BadInput(f"unknown search {unknown[0]!r} for Q; there are {', '.join(SEARCHES)}.")

    def _search_names(self) -> tuple[str, ...]:
        return tuple(self.searches.split(",")) if self.searches else ()

    def obstacle(self, problem: Problem) -> str | None:
        if "slopes" in self._search_names() and not _smooth(problem):
            return "slopes need gradients, and the network or the property is a black box; use rays and mesh"
        return None

    def start(self, problem: Problem, seed: int) -> SteepestState:
        chosen = self._search_names() or (("rays", "slopes") if _smooth(problem) else ("rays", "mesh"))
        tally, whole = QueryTally(problem, self.queries - REPLAY), sum(SHARES[name] for name in chosen)
        waiting = tuple((name, int(tally.budget * SHARES[name] / whole)) for name in chosen)
        return SteepestState(tally, waiting, Chance.of(problem.keys, seed, problem.region.centre.device))

    def step(self, problem: Problem, state: SteepestState) -> tuple[SteepestState | None, Claims]:
        tally, until = state.tally, state.tally.queries + STEP
        ongoing = True
        while ongoing and tally.queries < until:
            state = (
                replace(state, state=SEARCHES[state.name].more(tally, state.state))
                if tally.queries < state.end
                else _next(state)
            )
            ongoing = bool(state.waiting) or tally.queries < state.end
            if time_limit.has_expired():
                break
        return state if ongoing else None, Claims(
            witness=tally.point, found=tally.ratio > 0, aside=_aside(tally)
        )


def _next(state: SteepestState) -> SteepestState:
    """The next search begins; the last one has all queries that are left."""
    tally, ((name, share), *others) = state.tally, state.waiting
    end = tally.queries + (min(tally.left, share) if others else tally.left)
    begun = SEARCHES[name].start(tally, end, state.chance.apart(len(others)))
    return replace(state, waiting=tuple(others), name=name, end=end, state=begun)


def _smooth(problem: Problem) -> bool:
    """Do the network and the property have gradients?"""
    net = problem.network
    if not net.differentiable:
        return False
    try:
        with torch.enable_grad():
            outputs = torch.zeros(
                len(problem), net.outputs_for(problem.region.centre), device=net.device, requires_grad=True
            )
            return problem.property.score(outputs).requires_grad
    except RuntimeError:  # numpy inside refuses tensors that ask for a gradient
        return False


def _aside(tally: QueryTally) -> dict[str, Tensor]:
    """The way to the best point: (batch, LANDMARKS, ...) each; a landmark that was never reached has ratio zero. And the radius of the ball
    in which Q was looked for, (batch,): what Q says of distances ends there."""
    queries, ratio, point = (torch.stack(part, 1) for part in zip(*tally.trail, strict=True))
    return {
        "path": point,
        "path_ratio": ratio,
        "path_queries": queries.double(),
        SEARCHED: tally.radius.double(),
    }


def searched_radius(aside: Mapping[str, Tensor]) -> float | None:
    """Of one row the d of DeepQuant's Q(s, x, d, p); None where an older run did not keep it."""
    return float(aside[SEARCHED]) if SEARCHED in aside else None


def path_of(aside: Mapping[str, Tensor]) -> tuple[MetricStep, ...]:
    """The landmarks of one row, each better than all before."""
    if "path" not in aside:
        return ()
    steps = list[MetricStep]()
    for asked, ratio, point in zip(
        aside["path_queries"].tolist(), aside["path_ratio"].tolist(), aside["path"], strict=True
    ):
        if ratio > (steps[-1].ratio if steps else 0):
            steps.append(MetricStep(int(asked), ratio, point.detach().cpu()))
    return tuple(steps)
