"""The search for the smallest radius at which an attack succeeds: several radii at once, then closer around the best."""

import math
import time
from abc import abstractmethod
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from holdfast import time_limit
from holdfast.attacks.descent import nearest, shrink
from holdfast.method import Claims, Method
from holdfast.problem import Problem
from holdfast.random_streams import Chance
from holdfast.region import Family

SHARE = 0.1  # of the time that is left: what takes longer is cut up
FIRST = 1 << 16  # the number of the first look, apart from those of all rounds


@dataclass(frozen=True)
class Rung:
    """What a ladder search knows so far, row by row."""

    low: Tensor  # (batch,) the largest radius below `distance` at which the attack failed
    high: Tensor  # (batch,) where to look next if nothing was found yet
    distance: Tensor  # (batch,) of the best witness, infinite before the first
    witness: Tensor  # (batch, *shape)
    score: Tensor  # (batch,) lowest score met; for goal `worst` this is what counts
    round: int
    chance: Chance
    looked: bool = False  # a few rows at a time, before the first round


@dataclass(frozen=True)
class Ladder(Method[Rung]):
    """Attack at `radii` sizes in one batch; keep the nearest success, pull it closer, go on between it and the failures."""

    rounds: int = 6
    radii: int = 8
    restarts: int = 1

    def __post_init__(self) -> None:
        self.at_least(rounds=1, radii=1, restarts=1)

    @abstractmethod
    def attack(self, problem: Problem, rung: Rung, chance: Chance) -> tuple[Tensor, Tensor]:
        """Points of the problem's region (batch, *shape) and their scores (batch,), as low as the attack can find.

        chance: of each row, for this round; the only source of random numbers.
        """

    def start(self, problem: Problem, seed: int) -> Rung:
        centre = problem.region.centre
        rows = torch.zeros(len(problem), dtype=torch.float64, device=centre.device)
        high = problem.family.reach() if problem.goal == "radius" else rows
        return Rung(
            rows,
            high,
            rows + torch.inf,
            centre,
            rows + torch.inf,
            0,
            Chance.of(problem.keys, seed, centre.device),
        )

    def step(self, problem: Problem, state: Rung) -> tuple[Rung | None, Claims]:
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
        """Could the time be up before a single gradient of all rows at all radii is known?"""
        if math.isinf(time_limit.deadline()):
            return False
        began, row = (
            time.monotonic(),
            problem.take(torch.zeros(1, dtype=torch.int64, device=problem.region.centre.device)),
        )
        row.score(row.region.centre)
        many = len(problem) * (1 if problem.goal == "worst" else self.radii) * self.restarts
        return (time.monotonic() - began) * many > SHARE * (time_limit.deadline() - began)

    def _first_look(self, problem: Problem, state: Rung) -> Rung:
        """Row by row at the largest size alone, until the time is up: a few have witnesses then, where all together would have none."""
        witness, distance, score = state.witness.clone(), state.distance.clone(), state.score.clone()
        for place, row in enumerate(torch.arange(len(problem), device=witness.device).split(1)):
            if place and time_limit.has_expired():
                break
            part = problem.take(row)
            widest = part if problem.goal == "worst" else part.tile_radii(state.high[row][None])
            witness[row], found = self.attack(widest, state, state.chance.take(row).apart(FIRST))
            if problem.goal == "worst":
                score[row] = found.double()
            else:
                distance[row] = torch.where(found > 0, torch.inf, part.family.distance(witness[row]))
        return replace(state, witness=witness, distance=distance, score=score)

    def _worst(self, problem: Problem, state: Rung) -> Rung:
        point, score = self.attack(problem, state, state.chance.apart(state.round))
        witness, lowest = nearest(
            problem.region, torch.stack([state.witness, point]), torch.stack([state.score, score.double()])
        )
        return replace(state, witness=witness, score=lowest, round=state.round + 1)

    def _radius(self, problem: Problem, state: Rung) -> Rung:
        family: Family = problem.family
        top = torch.where(state.distance.isfinite(), state.distance, state.high * (1 + 1e-9))
        radii = family.between(state.low, top, self.radii)
        if state.round == 0:
            radii = torch.cat([radii[1:], top[None]])  # the first look goes all the way out
        point, score = self.attack(
            problem.tile_radii(radii), state, state.chance.apart(state.round).tile(self.radii)
        )
        fails = ~(score > 0).reshape(radii.shape)
        points = point.reshape(self.radii, *state.witness.shape)
        away = torch.where(fails, family.distance(points), torch.inf)
        close, distance = nearest(family, points, away)
        close, distance = shrink(problem, close, distance.isfinite())
        witness, best = nearest(
            family, torch.stack([state.witness, close]), torch.stack([state.distance, distance])
        )
        failed = torch.where(~fails & (radii < best), radii, 0.0).amax(0)
        # An unbounded domain may need a longer ladder.
        high = torch.where(best.isinf() & torch.tensor(state.round > 0), state.high * 10, state.high)
        return replace(
            state, low=torch.maximum(torch.where(state.low < best, state.low, 0.0), failed), high=high, distance=best, witness=witness,
            round=state.round + 1,
        )  # fmt: skip
