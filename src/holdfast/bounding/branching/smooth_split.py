"""Branch and bound over the input of smooth networks: boxes bounded by Taylor models, dozens in the time of one affine form.

What a model does not know falls with the third power of a box's side, where that of planes falls with the second. Large boxes are bounded
better by affine forms (`InputSplit`). They are asked where nothing is known of a box yet, and where a model knows less than how far its
linear part reaches, unless all the boxes that halving every input makes cost less than one form.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from holdfast import batch, time_limit
from holdfast.bounding import taylor
from holdfast.bounding.branching.input_split import (
    BoxParts,
    BoxPlanes,
    InputSplit,
    candidate_points,
    noises,
    shrink_box,
)
from holdfast.bounding.branching.subproblem_queue import PolytopeQuestion, Seen
from holdfast.bounding.graph.graph import Graph
from holdfast.rounding import gamma

NUMBERS = 2**19  # in the model of a node for one batch of boxes: few enough to stay near the processor


@dataclass(frozen=True)
class SmoothSplit(InputSplit):
    """Halves of boxes: for networks of smooth functions with few inputs."""

    def at_once(self, question: PolytopeQuestion) -> int:
        graph = question.graph
        if taylor.obstacle(graph) is not None:
            return super().at_once(question)
        lower, upper = question.region.enclosing_box()
        moving = int((lower < upper).flatten(1).sum(1).max())
        return max(
            1, min(self.batch, NUMBERS // (max(node.size for node in graph.nodes) * taylor.columns(moving)))
        )

    def bound(self, question: PolytopeQuestion, parts: BoxParts) -> Seen[BoxParts]:
        if taylor.obstacle(question.graph) is not None:
            return super().bound(question, parts)
        rules, lower, upper = question.rules, parts.lower.flatten(1), parts.upper.flatten(1)
        matrix, offset = rules.matrix[parts.task], rules.offset[parts.task]
        found = taylor.below(question.graph, lower, upper, matrix.flatten(1, 2))
        least, constant = (
            _sum(value.reshape(offset.shape), offset) for value in (found.least, found.constant)
        )
        planes = BoxPlanes(found.slope.reshape(*offset.shape, -1), constant)
        cut = shrink_box(planes, lower, upper, parts.open, torch.where(least.isfinite(), least, -torch.inf))
        gain = found.share * torch.nan_to_num((cut.upper - cut.lower) / (upper - lower), 0.0)
        low, high = (end.reshape(parts.lower.shape) for end in (cut.lower, cut.upper))
        smaller, left = replace(parts, open=cut.open, bound=cut.bound, lower=low, upper=high), cut.open.any(1)
        seen = Seen(
            smaller,
            torch.nan_to_num(gain, 0.0, 0.0),
            candidate_points(batch.take(smaller, left), planes.slope[left]),
        )
        vague = ~(found.rest <= found.spread).any(1) & _dear(question.graph, lower, upper)
        large = left & (vague | (parts.bound == -torch.inf))
        return self._with_forms(question, seen, large.nonzero().flatten()) if bool(large.any()) else seen

    def _with_forms(self, question: PolytopeQuestion, seen: Seen[BoxParts], which: Tensor) -> Seen[BoxParts]:
        """What forms say of some of the parts too."""
        before, rows, gain, points = seen.parts, [], [], [seen.points]
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
        return Seen(parts, torch.cat([seen.gain[others], *gain])[back], batch.concatenate(points))


def _dear(graph: Graph, lower: Tensor, upper: Tensor) -> Tensor:
    """(boxes,): where models of all the boxes that halving every input makes cost more than a form, with half of its noises on average."""
    moving = (lower < upper).sum(1)
    return 2.0**moving * 2 * taylor.columns(int(moving.max())) > noises(graph)


def _sum(value: Tensor, offset: Tensor) -> Tensor:
    """From below."""
    return value + offset - 2 * gamma(1) * (value.abs() + offset.abs())
