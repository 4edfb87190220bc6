"""Random points on the surface and at the corners of the region: queries outputs only, so it attacks any
black box.
"""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from holdfast.attacks.descent import select_nearest
from holdfast.attacks.ladder import Ladder, LadderState
from holdfast.problem import Problem
from holdfast.random_streams import RandomStreams
from holdfast.result import Traits


@dataclass(frozen=True)
class Corners(Ladder):
    """Return the lowest-scoring of `restarts` random extreme points in every round."""

    finds: ClassVar[str] = "witnesses, also in a black box"
    help: ClassVar[str] = "corners and random points of the region"
    traits: ClassVar[Traits] = Traits(glass=False)

    rounds: int = 10
    restarts: int = 32

    def obstacle(self, problem: Problem) -> str | None:
        return None

    def attack(self, problem: Problem, rung: LadderState, chance: RandomStreams) -> tuple[Tensor, Tensor]:
        points = problem.region.sample(self.restarts, chance)
        return select_nearest(problem.region, points, problem.score(points))
