"""The search for the smallest perturbation radius at which an attack succeeds: a grid of radii in one batch,
then a finer grid around the best.

Before that, large inputs and inputs of slow networks are looked at one by one, so that each has a first upper bound
early. Where there are gradients, the first look is the fast gradient sign method (I. Goodfellow et al., Explaining and
harnessing adversarial examples, 2015) for the norm of the region: the points that minimise the score linearised at the
input, at radii found by halving. It takes one gradient and about LOOK_ROUNDS * LOOK_RADII queries.
"""

import math
import time
from abc import abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from holdfast import time_limit
from holdfast.attacks.descent import pull_closer, select_nearest
from holdfast.memory_budget import LARGE_INPUT_NUMBERS
from holdfast.method import Claims, Method
from holdfast.problem import Problem
from holdfast.random_streams import RandomStreams
from holdfast.region import Family

# Rows are attacked one at a time if a single query of all rows at all radii would take more than this share
# of the time left until the deadline (chosen by hand).
FIRST_LOOK_TIME_SHARE = 0.1
# Index of the random stream of the first look. It lies above the indices of all rounds, so no round draws the
# same numbers.
FIRST_LOOK_STREAM = 1 << 16
LOOK_ROUNDS = 3  # Grids of radii in the first look along the gradient (chosen by hand).
LOOK_RADII = 8  # Radii in each of these grids (chosen by hand).


@dataclass(frozen=True)
class LadderState:
    """The state of a ladder search, row by row."""

    low: Tensor  # (batch,) the largest radius below `distance` at which the attack failed
    high: Tensor  # (batch,) the largest radius to try as long as there is no counterexample
    distance: Tensor  # (batch,) distance of the nearest counterexample, infinite before the first
    witness: Tensor  # (batch, *shape)
    score: Tensor  # (batch,) lowest score found; for goal `worst` this is the objective
    round: int
    chance: RandomStreams
    # number of rows that had their first look, all of them if none is needed; None: the first step decides whether
    # the network is so slow that it is
    looked: int | None = None


@dataclass(frozen=True)
class Ladder(Method[LadderState]):
    """Attack at `radii` radii in one batch; keep the nearest counterexample, pull it closer, and search
    between it and the radii that failed.
    """

    has_opening: ClassVar[bool] = True
    rounds: int = 6
    radii: int = 8
    restarts: int = 1

    def __post_init__(self) -> None:
        self.at_least(rounds=1, radii=1, restarts=1)

    @abstractmethod
    def attack(self, problem: Problem, rung: LadderState, chance: RandomStreams) -> tuple[Tensor, Tensor]:
        """Return points of the problem's region (batch, *shape) and their scores (batch,), as low as the
        attack can find.

        Args:
            chance: the random streams of the rows for this round; the only source of random numbers.
        """

    def is_opening(self, state: LadderState) -> bool:
        return state.looked is not None and state.looked < len(state.low)

    def start(self, problem: Problem, seed: int) -> LadderState:
        centre = problem.region.centre
        rows = torch.zeros(len(problem), dtype=torch.float64, device=centre.device)
        high = problem.family.reach() if problem.bounds_radius else rows
        return LadderState(
            rows,
            high,
            rows + torch.inf,
            centre,
            rows + torch.inf,
            0,
            RandomStreams.of(problem.keys, seed, centre.device),
            looked=0 if _is_large(problem) and problem.network.differentiable else None,
        )

    def step(self, problem: Problem, state: LadderState) -> tuple[LadderState | None, Claims]:
        rows, looked = len(problem), state.looked
        if looked is None:
            looked = 0 if self._is_slow(problem) else rows
        if looked < rows:
            # Large inputs report one by one; the others together, as many as the time allows.
            last = looked + 1 if _is_large(problem) else rows
            state = replace(self._first_look(problem, state, range(looked, last)), looked=last)
            return state, Claims(
                witness=state.witness, found=state.distance.isfinite() | state.score.isfinite()
            )
        state = replace(state, looked=rows)
        state = self._radius(problem, state) if problem.bounds_radius else self._worst(problem, state)
        found = (state.distance if problem.bounds_radius else state.score).isfinite()
        last = state.round >= self.rounds
        return None if last else state, Claims(witness=state.witness, found=found)

    def _is_slow(self, problem: Problem) -> bool:
        """Whether the deadline could pass before a single gradient of all rows at all radii is computed."""
        if math.isinf(time_limit.deadline()):
            return False
        began, row = (
            time.monotonic(),
            problem.take(torch.zeros(1, dtype=torch.int64, device=problem.region.centre.device)),
        )
        row.score(row.region.centre)
        many = len(problem) * (self.radii if problem.bounds_radius else 1) * self.restarts
        return (time.monotonic() - began) * many > FIRST_LOOK_TIME_SHARE * (time_limit.deadline() - began)

    def _first_look(self, problem: Problem, state: LadderState, rows: Iterable[int]) -> LadderState:
        """Look along the gradient of one row at a time, or attack it at its largest radius, until the deadline.

        A few rows then have counterexamples, where attacking all of them together would finish none.
        """
        witness, distance, score = state.witness.clone(), state.distance.clone(), state.score.clone()
        for place, row in enumerate(torch.tensor([row], device=witness.device) for row in rows):
            if place and time_limit.has_expired():
                break
            part = problem.take(row)
            if problem.network.differentiable:
                if not problem.bounds_radius:
                    witness[row], score[row] = _lowest_along_gradient(part)
                    continue
                witness[row], distance[row] = _nearest_along_gradient(part, state.high[row])
            if bool(distance[row].isfinite()) or (place and time_limit.has_expired()):
                continue
            widest = part.tile_radii(state.high[row][None]) if problem.bounds_radius else part
            own = replace(state, witness=state.witness[row])
            witness[row], found = self.attack(
                widest, own, state.chance.take(row).substream(FIRST_LOOK_STREAM)
            )
            if problem.bounds_radius:
                distance[row] = torch.where(found > 0, torch.inf, part.family.distance(witness[row]))
            else:
                score[row] = found.double()
        return replace(state, witness=witness, distance=distance, score=score)

    def _worst(self, problem: Problem, state: LadderState) -> LadderState:
        point, score = self.attack(problem, state, state.chance.substream(state.round))
        witness, lowest = select_nearest(
            problem.region, torch.stack([state.witness, point]), torch.stack([state.score, score.double()])
        )
        return replace(state, witness=witness, score=lowest, round=state.round + 1)

    def _radius(self, problem: Problem, state: LadderState) -> LadderState:
        family: Family = problem.family
        top = torch.where(state.distance.isfinite(), state.distance, state.high * (1 + 1e-9))
        radii = family.between(state.low, top, self.radii)
        if state.round == 0:
            radii = torch.cat([radii[1:], top[None]])  # The first round reaches the largest radius.
        point, score = self.attack(
            problem.tile_radii(radii), state, state.chance.substream(state.round).tile(self.radii)
        )
        fails = ~(score > 0).reshape(radii.shape)
        points = point.reshape(self.radii, *state.witness.shape)
        away = torch.where(fails, family.distance(points), torch.inf)
        close, distance = select_nearest(family, points, away)
        close, distance = pull_closer(problem, close, distance.isfinite())
        witness, best = select_nearest(
            family, torch.stack([state.witness, close]), torch.stack([state.distance, distance])
        )
        failed = torch.where(~fails & (radii < best), radii, 0.0).amax(0)
        # In an unbounded domain the smallest adversarial radius may lie above the grid, so the grid is
        # extended.
        high = torch.where(best.isinf() & torch.tensor(state.round > 0), state.high * 10, state.high)
        return replace(
            state,
            low=torch.maximum(torch.where(state.low < best, state.low, 0.0), failed),
            high=high,
            distance=best,
            witness=witness,
            round=state.round + 1,
        )


def _is_large(problem: Problem) -> bool:
    return math.prod(problem.region.shape) >= LARGE_INPUT_NUMBERS


def _nearest_along_gradient(problem: Problem, high: Tensor) -> tuple[Tensor, Tensor]:
    """Return the nearest counterexample found among the minimisers of the linearised score at radii up to `high`
    (1,), and its distance (1,), infinite if there is none. The problem has one row.
    """
    family = problem.family
    _, gradient = problem.score_and_gradient(family.centre)
    low, best = torch.zeros_like(high), torch.full_like(high, torch.inf)
    witness = family.centre
    for turn in range(LOOK_ROUNDS):
        if turn and (time_limit.has_expired() or bool(best.isinf().all())):
            break
        top = torch.where(best.isfinite(), best, high)
        radii = family.between(low, top, LOOK_RADII)
        radii = torch.cat([radii, top[None]]) if turn == 0 else radii
        tiled = problem.tile_radii(radii)
        points = tiled.region.vertex(gradient.repeat(len(radii), *(1 for _ in family.shape)))
        fails = ~(tiled.score(points) > 0)[:, None]
        points = points.reshape(len(radii), *witness.shape)
        away = torch.where(fails, family.distance(points), torch.inf)
        witness, best = select_nearest(
            family, torch.cat([witness[None], points]), torch.cat([best[None], away.to(best)])
        )
        low = torch.where(~fails & (radii < best), radii, low).amax(0)
    return witness, best


def _lowest_along_gradient(problem: Problem) -> tuple[Tensor, Tensor]:
    """Return the point with the lowest score found on the way to the minimiser of the linearised score, and the score;
    the problem has one row.
    """
    region = problem.region
    _, gradient = problem.score_and_gradient(region.centre)
    target = region.vertex(gradient)
    if region.counted:  # a set of words or pixels has nothing in between
        points = target[None]
    else:
        shares = 2.0 ** -torch.arange(LOOK_RADII, dtype=target.dtype, device=target.device)
        shares = shares.reshape(-1, 1, *(1 for _ in region.shape))
        points = region.project(region.centre + shares * (target - region.centre))
    return select_nearest(region, points, problem.score(points).double())
