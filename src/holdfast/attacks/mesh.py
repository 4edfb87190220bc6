"""Mesh search as a method: the lowest score in a region by TP-MADS, from nothing but the network's answers."""

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor

from holdfast.attacks.descent import nearest
from holdfast.attacks.ladder import Ladder, Rung
from holdfast.attacks.lagrangian import descend_lagrangian
from holdfast.attacks.mads import begin, minimise
from holdfast.attacks.unit_box import chart
from holdfast.errors import BadInput
from holdfast.problem import Problem
from holdfast.random_streams import Chance
from holdfast.region.normed import NormFamily
from holdfast.result import Traits

Form = Literal["radial", "lagrangian"]


@dataclass(frozen=True)
class Mesh(Ladder):
    """Every input, restart and radius is a search of its own, and one block of them all is one batched query.

    queries   of each restart at each radius, in each round; exactly so many
    block     points asked at once by each search
    form      for balls that are no boxes: radial (the cube stretched onto the ball), or the paper's augmented Lagrangian
    """

    finds: ClassVar[str] = "witnesses by mesh search, also in a black box"
    help: ClassVar[str] = "mesh adaptive direct search (TP-MADS), no gradients"
    traits: ClassVar[Traits] = Traits(glass=False)

    rounds: int = 3
    radii: int = 6
    queries: int = 256
    block: int = 16
    form: Form = "radial"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.at_least(queries=1, block=1)
        if self.form not in ("radial", "lagrangian"):
            raise BadInput(f"{self.name}: form is {self.form!r}; there are 'radial' and 'lagrangian'.")

    def obstacle(self, problem: Problem) -> str | None:
        if problem.goal == "worst" and not all(
            bool(end.isfinite().all()) for end in problem.region.enclosing_box()
        ):
            return "needs a bounded region: a mesh has to end somewhere"
        return None

    def attack(self, problem: Problem, rung: Rung, chance: Chance) -> tuple[Tensor, Tensor]:
        """The first restart begins at the best point so far, the others anywhere."""
        region, copies = problem.region, len(problem) // len(rung.witness)
        start = region.sample(self.restarts, chance)
        start[0] = region.project(rung.witness.repeat(copies, *(1 for _ in region.shape)))
        if self.form == "lagrangian" and isinstance(region, NormFamily) and not math.isinf(region.p):
            points, scores = descend_lagrangian(problem, start, self.queries, self.block, chance)
        else:
            points, scores = descend_mesh(problem, start, self.queries, self.block, chance)
        return nearest(region, points, scores)


def descend_mesh(
    problem: Problem, start: Tensor, queries: int, block: int, chance: Chance
) -> tuple[Tensor, Tensor]:
    """start (restarts, batch, *shape), chance of the batch -> the lowest points met, and their scores (restarts, batch)."""
    box, lead = chart(problem.region), start.shape[:2]

    def objective(t: Tensor) -> Tensor:
        return problem.score(box.point(t.unflatten(1, lead))).flatten(1)

    state = minimise(
        objective, begin(box.place(start).flatten(0, 1), chance.tile(len(start))), queries, block
    )
    return box.point(state.best.unflatten(0, lead)), state.least.unflatten(0, lead)
