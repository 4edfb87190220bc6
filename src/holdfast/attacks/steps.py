"""Search among the leaves of trees: a point is moved into leaves near it, by as little as each asks for, and drawn back within its cell.

Trees are constant between their thresholds, so nothing is learnt from small steps. A step goes just across the thresholds of one leaf; of
many such steps the one after which the score is lowest is taken. What breaks is then moved as near to the input as the trees allow without
any of them changing its answer.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from holdfast import batch, time_limit
from holdfast.attacks.descent import nearest
from holdfast.attacks.ladder import Ladder, Rung
from holdfast.network.trees import Trees
from holdfast.problem import Problem
from holdfast.random_streams import Chance
from holdfast.region import ChangedColumns, Rows
from holdfast.result import Traits

MOST = 4096  # leaves looked at for one step


@dataclass(frozen=True)
class Steps(Ladder):
    """At every radius `moves` steps one after the other, each the best of `leaves` leaves drawn at random from those within reach."""

    finds: ClassVar[str] = "witnesses of trees and their sums"
    help: ClassVar[str] = "steps across the thresholds of trees"
    traits: ClassVar[Traits] = Traits(glass=True)

    rounds: int = 5
    moves: int = 6
    leaves: int = 48

    def __post_init__(self) -> None:
        super().__post_init__()
        self.at_least(moves=1, leaves=1)

    def obstacle(self, problem: Problem) -> str | None:
        if problem.network.trees is None:
            return "steps from leaf to leaf, and the model is no sum of trees that could be read"
        return None if isinstance(problem.region, Rows | ChangedColumns) else "steps among rows of a table"

    def attack(self, problem: Problem, rung: Rung, chance: Chance) -> tuple[Tensor, Tensor]:
        trees, region = problem.network.trees, problem.region
        assert trees is not None
        assert isinstance(region, Rows | ChangedColumns)
        copies = len(problem) // len(rung.witness)
        x = region.project(rung.witness.repeat(copies, 1))
        score = problem.score(x)
        some = (
            torch.arange(len(trees.tree))
            if len(trees.tree) <= MOST
            else torch.linspace(0, len(trees.tree) - 1, MOST).long()
        )
        own = batch.take(
            region, torch.arange(len(rung.witness))
        )  # how far a leaf is does not depend on the radius
        away = own.distance(
            own.nearest_in(trees.lower[some][:, None], trees.upper[some][:, None]).to(x)
        ).repeat(1, copies)
        for move in range(self.moves):
            if time_limit.has_expired():
                break
            # Different leaves at random, those within the radius first; NaN is far.
            order = chance.apart(move).uniform(len(some), (), x).double() + ~(away <= region.radius)
            leaf = some[order.topk(min(self.leaves, len(some)), dim=0, largest=False).indices]
            moved = region.project(torch.minimum(torch.maximum(x, trees.lower[leaf]), trees.upper[leaf]))
            x, score = nearest(
                region, torch.cat([x[None], moved]), torch.cat([score[None], problem.score(moved)])
            )
        drawn = region.project(_drawn_back(region, trees, x))
        return nearest(region, torch.stack([drawn, x]), torch.stack([problem.score(drawn), score]))


def _drawn_back(region: Rows | ChangedColumns, trees: Trees, x: Tensor) -> Tensor:
    """(batch, features): the member of each point's cell that is nearest to the centre."""
    found = region.nearest_in(*trees.cell(x))
    return torch.where(found.isnan().any(-1, keepdim=True), x, found)
