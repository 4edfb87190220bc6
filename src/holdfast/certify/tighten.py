"""Tighter proofs: second-order models whose free coefficients are trained, at a radius that grows as they improve.

Training works in float32, since any coefficients are sound; what it reaches is then proved in float64 with every rounding paid for.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from holdfast import clock
from holdfast.bounding.ascent import Ascent, Memory
from holdfast.bounding.crown import propagate
from holdfast.bounding.graph.graph import Graph
from holdfast.bounding.graph.of_problem import ASSUMPTIONS, CHECKS, graph_of
from holdfast.bounding.second_order import Bends, Quadratic
from holdfast.certify.certify import Certify, Search
from holdfast.memory import free_bytes
from holdfast.method import Claims, Method
from holdfast.problem import Problem
from holdfast.property import LinearProperty
from holdfast.region import Region, Sparse, Words
from holdfast.result import Traits

FURTHER = 1.03  # times what is proved, where training begins

FURTHER = 1.03  # times what is proved, where training begins


@dataclass(frozen=True)
class Training:
    """Row by row: proved at `low` (a radius, or the score); `trying` is the radius in training, `reached` the best it passed."""

    search: Search | None  # as long as the first planes are not done
    low: Tensor  # (batch,)
    trying: Tensor  # (batch,)
    reached: Tensor  # (batch,)
    bends: Bends
    best: Bends  # those with which `reached` was passed
    step: int
    memory: Memory | None = None  # of Adam


@dataclass(frozen=True)
class Tighten(Method[Training]):
    """First what Certify does, then `steps` steps of Adam on parabolas, proved anew after every `block` of them."""

    finds: ClassVar[str] = "larger proved lower ends"
    help: ClassVar[str] = "linear bounds, then second-order models with trained coefficients"
    traits: ClassVar[Traits] = Traits(seeded=False, glass=True)

    steps: int = 80
    block: int = 20
    rate: float = 0.015
    push: float = 0.01  # how much further to try once a radius has been passed

    def obstacle(self, problem: Problem) -> str | None:
        if not isinstance(problem.property, LinearProperty):
            return "proofs by training need a property in linear rows (Robustness, Targeted, Linear)"
        return Certify().obstacle(problem)

    def start(self, problem: Problem, seed: int) -> Training:
        none = torch.zeros(len(problem), dtype=torch.float64, device=problem.region.centre.device)
        low = none if problem.goal == "radius" else none - torch.inf
        return Training(Certify().start(problem, seed), low, none, none, {}, {}, 0)

    def told(self, problem: Problem, state: Training, lower: Tensor, upper: Tensor) -> Training:
        """Training goes on beyond what is proved."""
        better = lower.isfinite() & (lower > state.low)
        if not bool(better.any()):
            return state
        search = None if state.search is None else Certify().told(problem, state.search, lower, upper)
        trying = torch.where(better & (problem.goal == "radius"), torch.maximum(state.trying, FURTHER * lower), state.trying)
        return replace(state, search=search, low=torch.where(better, lower, state.low), trying=trying)

    def step(self, problem: Problem, state: Training) -> tuple[Training | None, Claims]:
        state, claims = self.advance(problem, state)
        return None if self.done(problem, state) else state, claims

    def done(self, problem: Problem, state: Training) -> bool:
        return state.search is None and (not state.bends or state.step >= self.steps)

    def advance(self, problem: Problem, state: Training) -> tuple[Training, Claims]:
        if state.search is not None:
            search, claims = Certify().step(problem, state.search)
            assert claims.proved is not None
            return self._opened(problem, replace(state, search=search, low=torch.fmax(state.low, claims.proved))), claims
        state = self._train(problem, state)
        state = replace(state, low=torch.fmax(state.low, self._prove(problem, state)))
        return state, Claims(proved=state.low, assumptions=ASSUMPTIONS, checks=CHECKS)

    def _opened(self, problem: Problem, state: Training) -> Training:
        """Once the first planes are done, the coefficients to train, if the network has second-order models."""
        view = quadratic_of(problem)
        if state.search is not None or view.obstacle is not None or isinstance(problem.region, Sparse | Words):
            return state
        bends = view.bends(len(problem), torch.float32)
        return replace(state, trying=FURTHER * state.low, reached=state.low, bends=bends, best=bends)

    def _train(self, problem: Problem, state: Training) -> Training:
        """`block` steps of Adam, every row at its own radius; fewer where the clock says so."""
        view = quadratic_of(problem)
        ascent = Ascent(list(state.bends.values()), memory=state.memory)
        bends = dict(zip(state.bends, ascent.values, strict=True))
        best = {k: v.clone() for k, v in state.best.items()}
        trying, reached = state.trying.clone(), state.reached.clone()
        parts = [(rows, problem.take(rows)) for rows in _chunks(problem, view)]
        step, last = state.step, min(self.steps, state.step + self.block)
        while step < last:
            slopes = [torch.zeros_like(value) for value in ascent.values]
            for rows, part in parts:
                if clock.passed():
                    last = step
                    break
                region = part.family.at(trying[rows]) if part.goal == "radius" else part.region
                mine = {k: v.detach()[:, rows].requires_grad_() for k, v in bends.items()}
                score, gradients = _climb(view, part, region, mine)
                better = score > 0 if part.goal == "radius" else score > reached[rows]
                reached[rows] = torch.where(better, trying[rows] if part.goal == "radius" else score, reached[rows])
                trying[rows] = torch.where(better, trying[rows] * (1 + self.push), trying[rows])
                for slope, gradient, (key, value) in zip(slopes, gradients, mine.items(), strict=True):
                    slope[:, rows] = gradient
                    best[key][:, rows] = torch.where(better[:, None], value.detach(), best[key][:, rows])
            else:
                ascent.step(slopes, self.rate * 0.1 ** (step / self.steps))
                step += 1
        trained = {k: v.detach() for k, v in bends.items()}
        return replace(state, trying=trying, reached=reached, bends=trained, best=best, memory=ascent.memory, step=step)

    def _prove(self, problem: Problem, state: Training) -> Tensor:
        """-> (batch,): the largest of a few radii around the one reached that holds in float64, or the score."""
        view = quadratic_of(problem)
        proved = torch.full_like(state.low, -torch.inf)
        shares = (0.0, 0.5, 0.95, 1.0) if problem.goal == "radius" else (1.0,)
        for rows in _chunks(problem, view):
            part, bends = problem.take(rows), {k: v[:, rows].double() for k, v in state.best.items()}
            assert isinstance(part.property, LinearProperty)
            matrix, offset = part.property.rows(view.graph.output.size)
            for share in shares:
                if share != shares[0] and clock.passed():
                    break
                if part.goal == "radius":
                    radius = state.reached[rows] * (1 + self.push * (share - 0.05))
                    part = replace(part, region=part.family.at(radius))
                    radius = part.family.radius.double()
                boxes = propagate(view.graph, part.region)
                score = view.least(part.region, matrix, offset, bends, boxes).amin(1)
                score = torch.where(score.isfinite(), score, -torch.inf)  # what overflows proves nothing
                found = torch.where(score > 0, radius, -torch.inf) if part.goal == "radius" else score
                proved[rows] = torch.fmax(proved[rows], found)
        return proved


def _climb(view: Quadratic, part: Problem, region: Region, bends: Bends) -> tuple[Tensor, tuple[Tensor, ...]]:
    """-> (rows,): the scores with these coefficients, in their arithmetic; and the way up for each of them."""
    assert isinstance(part.property, LinearProperty)
    matrix, offset = part.property.rows(view.graph.output.size)
    with torch.enable_grad():
        margins = view.least(region, matrix, offset, bends)
        gain = margins.amin(1).sum() + margins.clamp_max(0).sum()  # the worst row, and all that are not proved yet
    return margins.detach().amin(1).double(), torch.autograd.grad(gain, list(bends.values()))


def _chunks(problem: Problem, view: Quadratic) -> Iterator[Tensor]:
    """Rows that may be held in memory together, alike in what moves: models hold only that."""
    region = problem.family.at(1.0) if problem.goal == "radius" else problem.region  # at radius 0, where searches begin, nothing moves
    lower, upper = region.enclosing_box()
    kinds = (upper > lower).flatten(1).unique(dim=0, return_inverse=True)[1]
    at_once = boxes_at_once(problem, view)
    for kind in kinds.unique():
        yield from (kinds == kind).nonzero().flatten().split(at_once)


def boxes_at_once(problem: Problem, view: Quadratic) -> int:
    """How many inputs may be trained together: all their models are kept until the gradient is known."""
    return max(1, free_bytes(problem.region.centre.device) // (view.elements * 64))


_views: "WeakKeyDictionary[Graph, Quadratic]" = WeakKeyDictionary()


def quadratic_of(problem: Problem) -> Quadratic:
    graph = graph_of(problem)
    if graph not in _views:
        _views[graph] = Quadratic(graph)
    return _views[graph]
