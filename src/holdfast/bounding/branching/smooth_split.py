"""Branch and bound over the input of smooth networks: boxes bounded by Taylor models, hundreds in the time of one walk or form.

What a model does not know falls with the third power of a box's side, where that of planes falls with the second. Large boxes are bounded
better by affine forms (`InputSplit`), which cost as much as many models. So forms are asked where nothing is known of a box yet, and where
the models do not even know as much as how far their linear part reaches and halving every input would cost more.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from holdfast import batch
from holdfast.bounding import taylor
from holdfast.bounding.branching.frontier import Question, Seen
from holdfast.bounding.branching.input_split import BoxParts, InputSplit, Planes, noises, reduced, tried
from holdfast.bounding.graph.graph import Graph
from holdfast.rounding import gamma

NUMBERS = 2**19  # in the model of a node for one batch of boxes: few enough to stay near the processor


@dataclass(frozen=True)
class SmoothSplit(InputSplit):
    """Halves of boxes: for networks of smooth functions with few inputs."""

    def at_once(self, question: Question) -> int:
        graph = question.graph
        return max(1, min(self.batch, NUMBERS // (max(node.size for node in graph.nodes) * taylor.columns(graph.entry.size))))

    def bound(self, question: Question, parts: BoxParts) -> Seen[BoxParts]:
        graph, rules = question.graph, question.rules
        matrix, offset = rules.matrix[parts.task], rules.offset[parts.task]
        lower, upper = parts.lower.flatten(1), parts.upper.flatten(1)
        found = taylor.below(graph, lower, upper, matrix.flatten(1, 2))
        shape = offset.shape
        least, constant = (_sum(value.reshape(shape), offset) for value in (found.least, found.constant))
        planes = Planes(found.slope.reshape(*shape, -1), constant)
        cut = reduced(planes, lower, upper, parts.open, torch.nan_to_num(least, -torch.inf, -torch.inf, -torch.inf))
        gain = found.share * torch.nan_to_num((cut.upper - cut.lower) / (upper - lower), 0.0)
        low, high = (end.reshape(parts.lower.shape) for end in (cut.lower, cut.upper))
        smaller = replace(parts, open=cut.open, bound=cut.bound, lower=low, upper=high)
        left = cut.open.any(1)
        seen = Seen(smaller, gain, tried(batch.take(smaller, left), planes.slope[left]))
        return seen


def _sum(value: Tensor, offset: Tensor) -> Tensor:
    """From below."""
    return value + offset - 2 * gamma(1) * (value.abs() + offset.abs())
