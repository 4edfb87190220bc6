"""The largest radius that bound propagation proves, by trying several radii at once."""

from dataclasses import dataclass
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from holdfast.bounds.engine import lower_bound, propagate
from holdfast.bounds.graph import Graph, build
from holdfast.errors import UnsupportedLayer
from holdfast.method import Claims, Method
from holdfast.network import Network
from holdfast.problem import Problem
from holdfast.property import LinearProperty, Robustness, Targeted
from holdfast.region.normed import NormFamily
from holdfast.region.norms import dual, norm

ASSUMPTIONS = (
    "the network computes in real arithmetic with its weights as stored",
    "constants that it computes from its weights alone are what float64 makes of them",
)


@dataclass(frozen=True)
class Search:
    """Row by row: proved at `low`, not proved at `high`."""

    low: Tensor  # (batch,)
    high: Tensor  # (batch,)
    round: int


@dataclass(frozen=True)
class Certify(Method[Search]):
    """Backward linear bounds with closed-form planes; `radii` sizes in one batch, `rounds` times, each between the best and the next."""

    rounds: int = 4
    radii: int = 3

    def obstacle(self, problem: Problem) -> str | None:
        if not isinstance(problem.property, LinearProperty):
            return "proofs need a property in linear rows (Robustness, Targeted, Linear)"
        try:
            graph_of(problem)
        except UnsupportedLayer as error:
            return str(error)
        return None

    def start(self, problem: Problem, seed: int) -> Search:
        rows = torch.zeros(len(problem), dtype=torch.float64, device=problem.region.centre.device)
        return Search(rows, first_guess(problem) if problem.goal == "radius" else rows, 0)

    def step(self, problem: Problem, state: Search) -> tuple[Search | None, Claims]:
        if problem.goal == "worst":
            return None, Claims(proved=proved_score(problem), assumptions=ASSUMPTIONS)
        family = problem.family
        count = self.radii if state.round else 2 * self.radii  # the first look has the most sizes to cover
        radii = torch.minimum(family.between(state.low, state.high, count), family.limit())
        tiled = problem.tiled(radii)
        radii = tiled.family.radius.double().reshape(radii.shape)  # what was asked, in the arithmetic of the family's radius
        scores = proved_score(tiled).reshape(radii.shape)
        proved = scores.isfinite() & (scores > 0)
        best = torch.where(proved, radii, 0.0).amax(0)
        low = torch.maximum(state.low, torch.minimum(best, family.limit()))  # beyond the limit the region grows no more
        high = torch.where(~proved & (radii > low), radii, state.high).amin(0)
        done = state.round + 1 >= self.rounds
        return None if done else Search(low, high, state.round + 1), Claims(proved=low, assumptions=ASSUMPTIONS)


def proved_score(problem: Problem) -> Tensor:
    """-> (batch,): the property's score is at least this everywhere in the region; NaN or -inf where nothing is known."""
    assert isinstance(problem.property, LinearProperty)
    graph = graph_of(problem)
    matrix, offset = problem.property.rows(graph.output.size)
    return lower_bound(graph, propagate(graph, problem.region), matrix, offset).amin(1)


def first_guess(problem: Problem) -> Tensor:
    """-> (batch,): a radius hardly any proof will reach: twice the distance at which the score would vanish if it were linear."""
    family = problem.family
    if not isinstance(family, NormFamily):
        return family.reach() + 1
    score, gradient = problem.score_and_gradient(family.centre)
    slope: Tensor = (norm(family.grouped(gradient.double()), dual(family.p)) * family.free()).sum(-1)
    return torch.minimum(2 * score.double() / slope.clamp_min(1e-300), 2 * family.reach())


_graphs: "WeakKeyDictionary[Network, dict[tuple[object, ...], Graph]]" = WeakKeyDictionary()


def graph_of(problem: Problem) -> Graph:
    """The network's graph for inputs of the problem's shape, built once. How far a class holds depends on the order of the outputs only."""
    known = _graphs.setdefault(problem.network, {})
    ranking = problem.goal == "radius" and isinstance(problem.property, Robustness | Targeted)
    key = (problem.region.shape, ranking)
    if key not in known:
        known[key] = build(problem.network, problem.region.centre, ranking=ranking)
    return known[key]
