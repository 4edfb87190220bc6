"""Attack on sums of decision trees: steps from leaf to nearby leaf.

Trees are constant between their thresholds, so gradients and small steps carry no information. One step moves
the point just across the thresholds of one leaf, by the smallest perturbation that reaches it; of many such
steps the one with the lowest score is taken. A counterexample is then moved as close to the input as possible
without leaving its cell, in which no tree changes its value.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from holdfast import batch, time_limit
from holdfast.attacks.descent import select_nearest
from holdfast.attacks.ladder import Ladder, LadderState
from holdfast.network.trees import Trees
from holdfast.problem import Problem
from holdfast.random_streams import RandomStreams
from holdfast.region import Region
from holdfast.result import Traits

# Number of leaves that are candidates for a step; larger ensembles are subsampled (chosen by hand).
CANDIDATE_LEAVES = 4096


@dataclass(frozen=True)
class Steps(Ladder):
    """Take `moves` steps one after the other at every radius, each to the best of `leaves` leaves drawn at
    random from those within the radius.
    """

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
        return None if problem.region.finds_nearest else "steps among rows of a table"

    def attack(self, problem: Problem, rung: LadderState, chance: RandomStreams) -> tuple[Tensor, Tensor]:
        trees, region = problem.network.trees, problem.family
        assert trees is not None
        copies = len(problem) // len(rung.witness)
        x = region.project(rung.witness.repeat(copies, 1))
        score = problem.score(x)
        some = (
            torch.arange(len(trees.tree))
            if len(trees.tree) <= CANDIDATE_LEAVES
            else torch.linspace(0, len(trees.tree) - 1, CANDIDATE_LEAVES).long()
        )
        # How far away a leaf is does not depend on the radius.
        own = batch.take(region, torch.arange(len(rung.witness)))
        away = own.distance(
            own.nearest_in(trees.lower[some][:, None], trees.upper[some][:, None]).to(x)
        ).repeat(1, copies)
        for move in range(self.moves):
            if time_limit.has_expired():
                break
            # Draw different leaves at random, those within the radius first; a NaN distance counts as out of
            # reach.
            order = chance.substream(move).uniform(len(some), (), x).double() + ~(away <= region.radius)
            leaf = some[order.topk(min(self.leaves, len(some)), dim=0, largest=False).indices]
            moved = region.project(torch.minimum(torch.maximum(x, trees.lower[leaf]), trees.upper[leaf]))
            x, score = select_nearest(
                region, torch.cat([x[None], moved]), torch.cat([score[None], problem.score(moved)])
            )
        drawn = region.project(_nearest_in_cell(region, trees, x))
        return select_nearest(region, torch.stack([drawn, x]), torch.stack([problem.score(drawn), score]))


def _nearest_in_cell(region: Region, trees: Trees, x: Tensor) -> Tensor:
    """Return (batch, features): the member of each point's cell that is nearest to the centre."""
    found = region.nearest_in(*trees.cell(x))
    return torch.where(found.isnan().any(-1, keepdim=True), x, found)
