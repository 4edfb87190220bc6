"""Search for a large Q as DeepQuant does: mesh search (TP-MADS) on the ratio itself."""

from dataclasses import dataclass, replace

from torch import Tensor

from holdfast.attacks.mads import Mads, begin, minimise
from holdfast.attacks.unit_box import chart
from holdfast.lipschitz.ratio import QueryTally
from holdfast.random_streams import Chance


@dataclass(frozen=True, eq=False)
class Meshed:
    """The state of the mesh search; it ends when every row has made `end` queries."""

    end: int
    mads: Mads


@dataclass(frozen=True)
class MeshRatio:
    """Run TP-MADS from the best point found so far, `block` points of each row in one query."""

    block: int = 16

    def start(self, tally: QueryTally, end: int, chance: Chance) -> Meshed:
        box = chart(tally.problem.family.at(tally.radius))
        return Meshed(end, begin(box.place(tally.point), chance))

    def more(self, tally: QueryTally, state: Meshed) -> Meshed:
        """Query one block of points."""
        box = chart(tally.problem.family.at(tally.radius))

        def objective(t: Tensor) -> Tensor:
            return -tally.ask(box.point(t))[1]

        total_queries = state.mads.queries + min(self.block, state.end - tally.queries)
        return replace(state, mads=minimise(objective, state.mads, total_queries, self.block))
