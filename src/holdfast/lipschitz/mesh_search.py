"""The metric Q as the paper searches it: mesh search on the ratio itself."""

from dataclasses import dataclass

import torch
from torch import Tensor

from holdfast.attacks.mads import begin, minimise
from holdfast.attacks.unit_box import chart
from holdfast.lipschitz.ratio import Tally


@dataclass(frozen=True)
class MeshRatio:
    """TP-MADS from the best point so far."""

    block: int = 16

    def run(self, tally: Tally, queries: int, generator: torch.Generator) -> None:
        """Spend `queries` more queries of each row."""
        family = tally.problem.family
        box = chart(family.at(tally.radius))

        def objective(t: Tensor) -> Tensor:
            return -tally.ask(box.point(t))[1]

        seed = int(torch.randint(2**62, (1,), generator=generator))
        minimise(objective, begin(box.place(tally.point), seed), queries, self.block)
