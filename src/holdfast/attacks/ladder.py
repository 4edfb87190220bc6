"""The search for the smallest perturbation radius at which an attack succeeds: a grid of radii in one batch,
then a finer grid around the best.
"""

import math
import time
from abc import abstractmethod
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from holdfast import time_limit
from holdfast.attacks.descent import pull_closer, select_nearest
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
    looked: bool = False  # whether the first look, one row at a time, is done or was not needed


@dataclass(frozen=True)
class Ladder(Method[LadderState]):
    """Attack at `radii` radii in one batch; keep the nearest counterexample, pull it closer, and search
    between it and the radii that failed.
    """

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

    def start(self, problem: Problem, seed: int) -> LadderState:
        centre = problem.region.centre
        rows = torch.zeros(len(problem), dtype=torch.float64, device=centre.device)
        high = problem.family.reach() if problem.goal == "radius" else rows
        return LadderState(
            rows,
            high,
            rows + torch.inf,
            centre,
            rows + torch.inf,
            0,
            RandomStreams.of(problem.keys, seed, centre.device),
        )

    def step(self, problem: Problem, state: LadderState) -> tuple[LadderState | None, Claims]:
        if not state.looked:
            state = replace(state, looked=True)
            if self._is_slow(problem):
                state = self._first_look(problem, state)
                return state, Claims(
                    witness=state.witness, found=state.distance.isfinite() | state.score.isfinite()
                )
        state = self._worst(problem, state) if problem.goal == "worst" else self._radius(problem, state)
        found = state.score.isfinite() if problem.goal == "worst" else state.distance.isfinite()
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
        many = len(problem) * (1 if problem.goal == "worst" else self.radii) * self.restarts
        return (time.monotonic() - began) * many > FIRST_LOOK_TIME_SHARE * (time_limit.deadline() - began)

    def _first_look(self, problem: Problem, state: LadderState) -> LadderState:
        """Attack one row at a time, at its largest radius only, until the deadline.

        A few rows then have counterexamples, where attacking all of them together would finish none.
        """
        witness, distance, score = state.witness.clone(), state.distance.clone(), state.score.clone()
        for place, row in enumerate(torch.arange(len(problem), device=witness.device).split(1)):
            if place and time_limit.has_expired():
                break
            part = problem.take(row)
            widest = part if problem.goal == "worst" else part.tile_radii(state.high[row][None])
            witness[row], found = self.attack(
                widest, state, state.chance.take(row).substream(FIRST_LOOK_STREAM)
            )
            if problem.goal == "worst":
                score[row] = found.double()
            else:
                distance[row] = torch.where(found > 0, torch.inf, part.family.distance(witness[row]))
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
