"""Projected gradient descent (PGD) with restarts, at many radii at once.

Reference: A. Madry et al., Towards deep learning models resistant to adversarial attacks, 2018. The search
over radii is not part of it.
"""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from holdfast.attacks.descent import descend, select_nearest
from holdfast.attacks.ladder import Ladder, LadderState
from holdfast.problem import Problem
from holdfast.random_streams import RandomStreams
from holdfast.result import Traits


@dataclass(frozen=True)
class PGD(Ladder):
    """Descend along the gradient inside the region.

    Every restart begins at a random point, except the first restart of every second round, which begins at
    the input.
    """

    finds: ClassVar[str] = "witnesses"
    help: ClassVar[str] = "projected gradient descent with restarts"
    traits: ClassVar[Traits] = Traits(glass=True)

    steps: int = 20

    def obstacle(self, problem: Problem) -> str | None:
        return None if problem.network.differentiable else "needs gradients, and the network is a black box"

    def attack(self, problem: Problem, rung: LadderState, chance: RandomStreams) -> tuple[Tensor, Tensor]:
        region = problem.region
        start = region.sample(self.restarts, chance)
        if rung.round % 2 == 0:
            start[0] = region.centre
        points, scores = descend(problem, start, self.steps)
        return select_nearest(region, points, scores)
