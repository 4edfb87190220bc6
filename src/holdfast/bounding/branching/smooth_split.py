"""Branch and bound by input splits for smooth networks: boxes are bounded by Taylor models.

Statement. The two halves of a box cover it, so a bound that holds over all open boxes holds over the region.

Taylor models take a small part of the time of affine forms. Their remainder is of third order in the side of
a box, the error of linear bounds of second order, so models are better on small boxes and affine forms
(`InputSplit`) on large ones. Affine forms are used for boxes without any bound yet, and for boxes on which
the model's remainder exceeds its linear part, unless all 2^n boxes that result from halving every input cost
less than one form.

Assumption: every activation has a Taylor model (`taylor`); the region is a box.

Reference: see `taylor`; Moore, "Interval analysis" (1966), for bounds over the parts of a box.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from holdfast import batch, time_limit
from holdfast.bounding import taylor
from holdfast.bounding.branching.input_split import (
    BoxLinearBounds,
    BoxSubproblems,
    InputSplit,
    candidate_points,
    count_noise_symbols,
    shrink_box,
)
from holdfast.bounding.branching.subproblem_queue import BoundedSubproblems, PolytopeQuestion
from holdfast.bounding.graph.graph import Graph
from holdfast.rounding import add_rounding_down

# Largest number of values in the model of a node for one batch of boxes, to stay in the caches (chosen by
# hand).
MAX_MODEL_VALUES = 2**19


@dataclass(frozen=True)
class SmoothSplit(InputSplit):
    """Input splits for networks of smooth activations with few inputs."""

    def at_once(self, question: PolytopeQuestion) -> int:
        graph = question.graph
        if taylor.obstacle(graph) is not None:
            return super().at_once(question)
        lower, upper = question.region.enclosing_box()
        moving = int((lower < upper).flatten(1).sum(1).max())
        return max(
            1,
            min(
                self.batch,
                MAX_MODEL_VALUES // (max(node.size for node in graph.nodes) * taylor.count_columns(moving)),
            ),
        )

    def bound(self, question: PolytopeQuestion, parts: BoxSubproblems) -> BoundedSubproblems[BoxSubproblems]:
        if taylor.obstacle(question.graph) is not None:
            return super().bound(question, parts)
        rules = question.rules
        lower = parts.lower.flatten(1)
        upper = parts.upper.flatten(1)
        matrix, offset = rules.matrix[parts.task], rules.offset[parts.task]
        found = taylor.lower_bound_rows(question.graph, lower, upper, matrix.flatten(1, 2))
        least, constant = (
            add_rounding_down(value.reshape(offset.shape), offset) for value in (found.least, found.constant)
        )
        planes = BoxLinearBounds(found.slope.reshape(*offset.shape, -1), constant)
        cut = shrink_box(planes, lower, upper, parts.open, torch.where(least.isfinite(), least, -torch.inf))
        gain = found.share * torch.nan_to_num((cut.upper - cut.lower) / (upper - lower), 0.0)
        low, high = (end.reshape(parts.lower.shape) for end in (cut.lower, cut.upper))
        smaller, left = replace(parts, open=cut.open, bound=cut.bound, lower=low, upper=high), cut.open.any(1)
        seen = BoundedSubproblems(
            smaller,
            torch.nan_to_num(gain, 0.0, 0.0),
            candidate_points(batch.take(smaller, left), planes.slope[left]),
        )
        vague = ~(found.rest <= found.spread).any(1) & _models_cost_more(question.graph, lower, upper)
        large = left & (vague | (parts.bound == -torch.inf))
        return self._with_forms(question, seen, large.nonzero().flatten()) if bool(large.any()) else seen

    def _with_forms(
        self, question: PolytopeQuestion, seen: BoundedSubproblems[BoxSubproblems], which: Tensor
    ) -> BoundedSubproblems[BoxSubproblems]:
        """Bound some of the boxes by affine forms as well."""
        before = seen.parts
        rows = []
        gain = []
        points = [seen.points]
        for some in which.split(InputSplit.at_once(self, question)):
            if time_limit.has_expired():
                break
            better = InputSplit.bound(self, question, batch.take(before, some))
            rows.append(replace(better.parts, bound=torch.fmax(better.parts.bound, before.bound[some])))
            gain.append(better.gain)
            points.append(better.points)
        count = sum(len(row) for row in rows)
        others = torch.ones(len(before), dtype=torch.bool, device=which.device).index_fill(
            0, which[:count], False
        )
        back = torch.cat([others.nonzero().flatten(), which[:count]]).argsort()
        parts = batch.take(batch.concatenate([batch.take(before, others), *rows]), back)
        return BoundedSubproblems(
            parts, torch.cat([seen.gain[others], *gain])[back], batch.concatenate(points)
        )


def _models_cost_more(graph: Graph, lower: Tensor, upper: Tensor) -> Tensor:
    """(boxes,) bool: whether models of all 2^n boxes, every input halved, cost more than one affine form.

    A form is assumed to have half of its noise symbols on average.
    """
    moving = (lower < upper).sum(1)
    return 2.0**moving * 2 * taylor.count_columns(int(moving.max())) > count_noise_symbols(graph)
