"""Search for a large Q as DeepQuant does: mesh search (TP-MADS) on the ratio itself."""

from dataclasses import dataclass, replace

from torch import Tensor

from holdfast.attacks.mads import Mads, begin_search, minimise
from holdfast.lipschitz.ratio import QueryTally
from holdfast.random_streams import RandomStreams


@dataclass(frozen=True, eq=False)
class MeshSearchState:
    """The state of the mesh search; it ends when every row has made `end` queries."""

    end: int
    mads: Mads


@dataclass(frozen=True)
class MeshRatio:
    """Run TP-MADS from the best point found so far, `block` points of each row in one query."""

    block: int = 16

    def start(self, tally: QueryTally, end: int, chance: RandomStreams) -> MeshSearchState:
        box = tally.problem.family.at(tally.radius).box_map()
        return MeshSearchState(end, begin_search(box.place(tally.point), chance))

    def advance(self, tally: QueryTally, state: MeshSearchState) -> MeshSearchState:
        """Query one block of points."""
        box = tally.problem.family.at(tally.radius).box_map()

        def objective(t: Tensor) -> Tensor:
            return -tally.query(box.point(t))[1]

        total_queries = state.mads.queries + min(self.block, state.end - tally.queries)
        return replace(state, mads=minimise(objective, state.mads, total_queries, self.block))
