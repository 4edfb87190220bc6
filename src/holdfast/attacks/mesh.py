"""Mesh search (TP-MADS) as an attack: minimises the score over a region by queries of the network's outputs
alone.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor

from holdfast.attacks.descent import select_nearest
from holdfast.attacks.ladder import Ladder, LadderState
from holdfast.attacks.lagrangian import descend_lagrangian
from holdfast.attacks.mads import begin_search, minimise
from holdfast.errors import BadInput
from holdfast.problem import Problem
from holdfast.random_streams import RandomStreams
from holdfast.result import Traits

Form = Literal["radial", "lagrangian"]


@dataclass(frozen=True)
class Mesh(Ladder):
    """Run one mesh search for every input, restart and radius; one block of all searches is one batched
    query.

    Attributes:
        queries: queries of each restart at each radius in each round, used exactly.
        block: points that each search queries at once.
        form: for balls that are no boxes, radial (the cube is stretched onto the ball) or the paper's
            augmented Lagrangian.
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
        if not problem.bounds_radius and not all(
            bool(end.isfinite().all()) for end in problem.region.enclosing_box()
        ):
            return "needs a bounded region: the mesh covers its bounding box"
        return None

    def attack(self, problem: Problem, rung: LadderState, chance: RandomStreams) -> tuple[Tensor, Tensor]:
        """Start the first restart at the best point found in earlier rounds and all others at random
        points.
        """
        region, copies = problem.region, len(problem) // len(rung.witness)
        start = region.sample(self.restarts, chance)
        start[0] = region.project(rung.witness.repeat(copies, *(1 for _ in region.shape)))
        if self.form == "lagrangian" and region.as_norm_family() is not None and not region.boxed:
            points, scores = descend_lagrangian(problem, start, self.queries, self.block, chance)
        else:
            points, scores = descend_mesh(problem, start, self.queries, self.block, chance)
        return select_nearest(region, points, scores)


@dataclass(frozen=True)
class MeshLagrangian(Mesh):
    """Mesh search with the augmented Lagrangian of DeepQuant (its Algorithm 2) for balls that are no boxes;
    for boxes it is Mesh.
    """

    help: ClassVar[str] = "mesh with DeepQuant's augmented Lagrangian for norms 1 and 2 (Algorithm 2)"
    keyword: ClassVar[str] = "mesh-lagrangian"

    form: Form = "lagrangian"


def descend_mesh(
    problem: Problem, start: Tensor, queries: int, block: int, chance: RandomStreams
) -> tuple[Tensor, Tensor]:
    """Minimise the score from start (restarts, batch, *shape), with the random streams of the batch.

    Returns the lowest-scoring points and their scores (restarts, batch).
    """
    box, lead = problem.region.box_map(), start.shape[:2]

    def objective(t: Tensor) -> Tensor:
        return problem.score(box.point(t.unflatten(1, lead))).flatten(1)

    state = minimise(
        objective, begin_search(box.place(start).flatten(0, 1), chance.tile(len(start))), queries, block
    )
    return box.point(state.best.unflatten(0, lead)), state.least.unflatten(0, lead)
