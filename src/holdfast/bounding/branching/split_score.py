"""Branching scores of unstable neurons: what the linear upper bound of each neuron costs the final bound.

Raising a linear upper bound by d lowers the final bound by d times the weight of that linear bound. It also
widens the intermediate bounds of every later unstable neuron and so raises linear upper bounds there: on
average over the pre-activation's interval, by half the change of one bound times the share of the other in
the width. These weights are propagated back layer by layer, from the last to the first. Without the indirect
part, a search would decide the last layer first, which has the largest direct cost and helps no other layer.

Scores prove nothing; they only choose.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from holdfast.bounding.alpha_beta_crown import (
    concatenate_nodes,
    relu_like_functions,
    relu_preactivations,
    split_by_node,
)
from holdfast.bounding.crown import BackwardWalk, _rows_at_once
from holdfast.bounding.graph.graph import Graph, Node, Relaxed
from holdfast.bounding.node_bounds import Boxes

# Number of neurons of a layer, those with the largest weights, for which the indirect cost is computed
# (chosen by hand).
MAX_FOLLOWED_NEURONS = 128


def neuron_costs(graph: Graph, known: Boxes, entering: Tensor, *, through_ends: bool = True) -> Tensor:
    """(n, arguments): the loss of the final bound because a neuron is unstable; zero for stable neurons.

    Args:
        entering: (n, arguments), the weight of each linear upper bound in the final bound.
        through_ends: include the indirect cost, for searches that compute intermediate bounds again.
    """
    lower, upper = (concatenate_nodes(graph, side) for side in (known.lower, known.upper))
    above = concatenate_nodes(
        graph, {node.inputs[0]: known.planes[node].upper_offset for node in relu_like_functions(graph)}
    )
    weight = _influence(graph, known, entering) if through_ends else entering
    loss = weight * above + 1e-9 * (upper - lower)
    return torch.where((lower < 0) & (upper > 0), loss, 0)


def _influence(graph: Graph, known: Boxes, entering: Tensor) -> Tensor:
    """(n, arguments): the direct plus indirect weight of each linear upper bound in the final bound."""
    total = {node: weight.flatten(1) for node, weight in split_by_node(graph, entering).items()}
    first = min((function.place for function in relu_like_functions(graph)), default=0)
    for node in reversed(relu_preactivations(graph)):
        if node.place < first:
            continue  # no activation precedes it
        for function, weight in _through_ends(graph, known, node, total[node]).items():
            if function.inputs[0] in total:
                total[function.inputs[0]] = total[function.inputs[0]] + weight
    return concatenate_nodes(graph, total)


def _through_ends(graph: Graph, known: Boxes, node: Node, weight: Tensor) -> Mapping[Relaxed, Tensor]:
    """The indirect weights of all earlier linear upper bounds through the bounds of one node.

    weight (n, size) are those of the node's own linear upper bounds; the result is (n, size) for each earlier
    activation.
    """
    lower, upper = known.lower[node].flatten(1), known.upper[node].flatten(1)
    undecided = (lower < 0) & (upper > 0)
    width = torch.where(undecided, upper - lower, 1)
    weight, which = torch.where(undecided, weight, 0).topk(
        min(MAX_FOLLOWED_NEURONS, int(undecided.sum(1).max())), dim=1
    )
    weights: dict[Relaxed, Tensor] = {}
    for chosen, chosen_weight in zip(
        *(t.split(max(1, _rows_at_once(graph, known, node) // 2), dim=1) for t in (which, weight)),
        strict=True,
    ):
        low, high = ((end / width / 2).gather(1, chosen) * chosen_weight for end in (upper, -lower))
        rows = torch.zeros((*chosen.shape, node.size), dtype=torch.float64, device=chosen.device).scatter_(
            2, chosen.unsqueeze(-1), 1.0
        )
        walk = _Weighing(graph, known, torch.cat([low, high], dim=1))
        walk.arrive(
            node, torch.cat([rows, -rows], dim=1).reshape(len(rows), -1, *node.shape), slice(0, len(rows))
        )
        walk.back_from(node.place)
        for function, value in walk.weights.items():
            weights[function] = value if function not in weights else weights[function] + value
    return weights


class _Weighing(BackwardWalk):
    """A backward pass that sums up the weights of all linear upper bounds it passes, with row weights."""

    def __init__(self, graph: Graph, boxes: Boxes, weight: Tensor) -> None:
        super().__init__(graph, boxes, weight.shape[1])
        self.weight = weight  # (n, rows)
        self.weights: dict[Relaxed, Tensor] = {}

    def through_function(self, node: Relaxed, coefficients: Tensor) -> None:
        moving = self.boxes.moving[node]
        value = self.weight.new_zeros((len(self.weight), node.size))
        value[moving] = torch.einsum(
            "br,brn->bn", self.weight[moving], (-coefficients).clamp_min(0).flatten(2)
        )
        self.weights[node] = value
        super().through_function(node, coefficients)
