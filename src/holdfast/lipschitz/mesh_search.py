"""The metric Q as the paper searches it: mesh search on the ratio itself."""

from dataclasses import dataclass, replace

from torch import Tensor

from holdfast.attacks.mads import Mads, begin, minimise
from holdfast.attacks.unit_box import chart
from holdfast.lipschitz.ratio import QueryTally
from holdfast.random_streams import Chance


@dataclass(frozen=True, eq=False)
class Meshed:
    end: int
    mads: Mads


@dataclass(frozen=True)
class MeshRatio:
    """TP-MADS from the best point so far."""

    block: int = 16

    def start(self, tally: QueryTally, end: int, chance: Chance) -> Meshed:
        box = chart(tally.problem.family.at(tally.radius))
        return Meshed(end, begin(box.place(tally.point), chance))

    def more(self, tally: QueryTally, state: Meshed) -> Meshed:
        """One block."""
        box = chart(tally.problem.family.at(tally.radius))

        def objective(t: Tensor) -> Tensor:
            return -tally.ask(box.point(t))[1]

        asked = state.mads.queries + min(self.block, state.end - tally.queries)
        return replace(state, mads=minimise(objective, state.mads, asked, self.block))
