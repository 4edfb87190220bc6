"""The search for the smallest radius at which an attack succeeds: several radii at once, then closer around the best."""

from abc import abstractmethod
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from holdfast.attacks.descent import nearest, shrink
from holdfast.chance import Chance
from holdfast.method import Claims, Method
from holdfast.problem import Problem
from holdfast.region import Family


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
        return Rung(rows, high, rows + torch.inf, centre, rows + torch.inf, 0, Chance.of(problem.keys, seed, centre.device))

    def step(self, problem: Problem, state: Rung) -> tuple[Rung | None, Claims]:
        state = self._worst(problem, state) if problem.goal == "worst" else self._radius(problem, state)
        found = state.score.isfinite() if problem.goal == "worst" else state.distance.isfinite()
        last = state.round >= self.rounds
        return None if last else state, Claims(witness=state.witness, found=found)

    def _worst(self, problem: Problem, state: Rung) -> Rung:
        point, score = self.attack(problem, state, state.chance.apart(state.round))
        witness, lowest = nearest(problem.region, torch.stack([state.witness, point]), torch.stack([state.score, score.double()]))
        return replace(state, witness=witness, score=lowest, round=state.round + 1)

    def _radius(self, problem: Problem, state: Rung) -> Rung:
        family: Family = problem.family
        top = torch.where(state.distance.isfinite(), state.distance, state.high * (1 + 1e-9))
        radii = family.between(state.low, top, self.radii)
        if state.round == 0:
            radii = torch.cat([radii[1:], top[None]])  # the first look goes all the way out
        point, score = self.attack(problem.tiled(radii), state, state.chance.apart(state.round).tiled(self.radii))
        fails = ~(score > 0).reshape(radii.shape)
        points = point.reshape(self.radii, *state.witness.shape)
        away = torch.where(fails, family.distance(points), torch.inf)
        close, distance = nearest(family, points, away)
        close, distance = shrink(problem, close, distance.isfinite())
        witness, best = nearest(family, torch.stack([state.witness, close]), torch.stack([state.distance, distance]))
        failed = torch.where(~fails & (radii < best), radii, 0.0).amax(0)
        # An unbounded domain may need a longer ladder.
        high = torch.where(best.isinf() & torch.tensor(state.round > 0), state.high * 10, state.high)
        return replace(
            state, low=torch.maximum(torch.where(state.low < best, state.low, 0.0), failed), high=high, distance=best, witness=witness,
            round=state.round + 1,
        )  # fmt: skip
