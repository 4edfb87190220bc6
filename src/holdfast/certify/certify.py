"""The largest radius that bound propagation proves, by trying several radii at once."""

from dataclasses import dataclass
from typing import Literal
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from holdfast.bounding.engine import lower_bound, propagate
from holdfast.bounding.graph import Graph, Relaxed, build
from holdfast.bounding.relax import LeakyRelu, Product, Sigmoid, SigmoidTanh, SigmoidTimes, Tanh
from holdfast.errors import UnsupportedLayer
from holdfast.method import Claims, Method
from holdfast.network import Network
from holdfast.problem import Problem
from holdfast.property import LinearProperty, Robustness, Targeted
from holdfast.region import Family, Sparse, Words
from holdfast.region.normed import NormFamily
from holdfast.region.norms import dual, norm

ASSUMPTIONS = (
    "the network computes in real arithmetic with its weights as stored",
    "constants that it computes from its weights alone are what float64 makes of them",
)

AS_EXECUTED = (
    "the network computes as its graph says, sums in any order, without TF32 or transforms that trade rounding for speed",
    "its activations are within twenty units of rounding",
)
EXECUTED = (LeakyRelu, Product, Sigmoid, SigmoidTanh, SigmoidTimes, Tanh)  # functions whose rounding is that well known
Arithmetic = Literal["real", "executed"]
USUAL = 0.1  # of the first guess: about what planes prove for a recurrent network


@dataclass(frozen=True)
class Search:
    """Row by row: proved at `low`, not proved at `high`, and the scores there, halved for an end that was not the last to move."""

    low: Tensor  # (batch,)
    high: Tensor  # (batch,)
    low_score: Tensor
    high_score: Tensor
    moved: Tensor  # (batch,) +1: the last radius was proved, -1: it was not, 0: none yet
    round: int


@dataclass(frozen=True)
class Certify(Method[Search]):
    """Backward linear bounds with closed-form planes, at `rounds` radii one after the other.

    The next radius lies where the line between the two known scores crosses zero, over the logarithm of the radius; an end that
    stays twice has its score halved, so that both ends close in (the Illinois rule). A row is done
    when they are `close`, most after six or seven rounds.
    """

    rounds: int = 12
    close: float = 0.002  # share of the radius to which it is found
    arithmetic: Arithmetic = "real"  # or the network as it runs, in its own arithmetic

    def obstacle(self, problem: Problem) -> str | None:
        if not isinstance(problem.property, LinearProperty):
            return "proofs need a property in linear rows (Robustness, Targeted, Linear)"
        try:
            graph = graph_of(problem, self.arithmetic)
        except UnsupportedLayer as error:
            return str(error)
        return _obstacle_as_executed(problem, graph) if self.arithmetic == "executed" else None

    def start(self, problem: Problem, seed: int) -> Search:
        none = torch.zeros(len(problem), dtype=torch.float64, device=problem.region.centre.device)
        high = first_guess(problem) if problem.goal == "radius" else none
        score = problem.score(problem.region.centre).double() if problem.goal == "radius" else none
        return Search(none, high, score, torch.full_like(none, torch.nan), none, 0)

    def step(self, problem: Problem, state: Search) -> tuple[Search | None, Claims]:
        if problem.goal == "worst":
            return None, self._claims(problem, proved_score(problem, self.arithmetic))
        radius = torch.minimum(_next_radius(problem.family, state), problem.family.limit())
        score = torch.full_like(radius, torch.nan)
        near = state.high <= state.low * (1 + self.close)
        radius, open_ = torch.where(near, state.high, radius), (~near).nonzero().flatten()
        if len(open_):
            asked = problem.take(open_)
            asked = asked.tiled(radius[open_][None])
            radius[open_] = asked.family.radius.double()  # what was asked, in the arithmetic of the family's radius
            score[open_] = proved_score(asked, self.arithmetic)
        search = _narrowed(state, radius, score)
        done = search.round >= self.rounds or not len(open_)
        return None if done else search, self._claims(problem, search.low)

    def _claims(self, problem: Problem, proved: Tensor) -> Claims:
        if self.arithmetic == "real":
            return Claims(proved=proved, assumptions=ASSUMPTIONS)
        return Claims(proved=proved, assumptions=AS_EXECUTED, dtype=str(problem.network.dtype))


def _obstacle_as_executed(problem: Problem, graph: Graph) -> str | None:
    """Why nothing is known about the rounding of this network as it runs."""
    if problem.network.dtype not in (torch.float32, torch.float64):
        return f"a proof about the network as executed needs float32 or float64, and this one is {problem.network.dtype}"
    if graph.folded:
        return f"{graph.folded[0]}: computes a constant from weights, whose rounding as executed is not bounded here"
    unknown = [n for n in graph.nodes if isinstance(n, Relaxed) and not isinstance(n.relaxation, EXECUTED)]
    if unknown:
        return f"{unknown[0].name}: the rounding of {type(unknown[0].relaxation).__name__} as executed is not bounded here"
    return None


def _next_radius(family: Family, state: Search) -> Tensor:
    plain: Tensor = family.between(state.low, state.high, 1)[0]
    if isinstance(family, Sparse | Words):  # radii that count
        return plain
    if state.round == 0:
        return state.high * USUAL
    # Far beyond what can be proved a score may be anything; it is not let to hold the next radius back.
    share = state.low_score / (state.low_score - state.high_score)
    wild = state.high_score < -8 * state.low_score
    crossing = state.low * (state.high / state.low) ** torch.where(wild, share.clamp_min(0.2), share.clamp(0.02, 0.98))
    upwards = torch.where(state.high_score.isnan(), torch.minimum(2 * state.low, plain), torch.where(crossing.isfinite(), crossing, plain))
    return torch.where(state.low > 0, upwards, state.high * torch.nan_to_num(share, 0.5).clamp(0.1, 0.5))


def _narrowed(state: Search, radius: Tensor, score: Tensor) -> Search:
    proved = score.isfinite() & (score > 0)
    lost = ~proved & (radius < state.high)
    low_score = torch.where(proved, score, torch.where(state.moved < 0, state.low_score / 2, state.low_score))
    high_score = torch.where(lost, score, torch.where(state.moved > 0, state.high_score / 2, state.high_score))
    low, high = torch.where(proved, torch.maximum(radius, state.low), state.low), torch.where(lost, radius, state.high)
    return Search(low, high, low_score, high_score, torch.where(proved, 1, -1).to(low), state.round + 1)


def proved_score(problem: Problem, arithmetic: Arithmetic = "real") -> Tensor:
    """-> (batch,): the property's score is at least this everywhere in the region; NaN or -inf where nothing is known."""
    assert isinstance(problem.property, LinearProperty)
    graph = graph_of(problem, arithmetic)
    matrix, offset = problem.property.rows(graph.output.size)
    boxes = propagate(graph, problem.region, None if arithmetic == "real" else problem.network.dtype)
    return lower_bound(graph, boxes, matrix, offset).amin(1)


def first_guess(problem: Problem) -> Tensor:
    """-> (batch,): a radius hardly any proof will reach: twice the distance at which the score would vanish if it were linear."""
    family = problem.family
    if not isinstance(family, NormFamily):
        return family.reach() + 1
    score, gradient = problem.score_and_gradient(family.centre)
    slope: Tensor = (norm(family.grouped(gradient.double()), dual(family.p)) * family.free()).sum(-1)
    return torch.minimum(2 * score.double() / slope.clamp_min(1e-300), 2 * family.reach())


_graphs: "WeakKeyDictionary[Network, dict[tuple[object, ...], Graph]]" = WeakKeyDictionary()


def graph_of(problem: Problem, arithmetic: Arithmetic = "real") -> Graph:
    """The network's graph for inputs of the problem's shape, built once. How far a class holds depends on the order of the outputs only,
    which a last softmax keeps; but rounding may make two of its outputs equal."""
    known = _graphs.setdefault(problem.network, {})
    ranking = problem.goal == "radius" and isinstance(problem.property, Robustness | Targeted) and arithmetic == "real"
    key = (problem.region.shape, ranking)
    if key not in known:
        known[key] = build(problem.network, problem.region.centre, ranking=ranking)
    return known[key]
