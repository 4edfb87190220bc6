"""Branching scores of input and pre-activation ranges: which range to split?

With quadratic models, the score is the gradient of the final bound along the bounds of a range, through
everything computed from them, so the effect on later layers counts. A half of a range keeps one of its
bounds, so the worse half gains half of the width times the smaller of the two slopes. With linear bounds
alone, the score is the reduction of the largest gap between an activation's linear bounds over the halves,
times the weight of these bounds in the final bound.

Scores prove nothing; they only choose. Reference: Shi et al., "Neural network verification with
branch-and-bound for general nonlinearities" (GenBaB, 2024).
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from holdfast.bounding.alpha_beta_crown import concatenate_nodes, split_by_node
from holdfast.bounding.crown import linear_bound
from holdfast.bounding.graph.graph import Graph, Node, Relaxed
from holdfast.bounding.node_bounds import Boxes
from holdfast.bounding.quadratic_models import ParabolaCoefficients, Quadratic, QuadraticPropagation, range_of
from holdfast.bounding.relax import LinearBounds, planes
from holdfast.bounding.traversal import forward
from holdfast.region import Box, Region

# A range is split at zero, where sigmoidal functions have their inflection, if zero is at least this share of
# the width away from both bounds; otherwise in the middle (chosen by hand).
MIN_DISTANCE_SHARE = 0.25


def split_points(low: Tensor, high: Tensor) -> Tensor:
    """The points at which ranges are split: zero, the inflection of sigmoidal functions, or the middle."""
    away = MIN_DISTANCE_SHARE * (high - low)
    return torch.where((low < -away) & (high > away), 0.0, low / 2 + high / 2)


def score_by_quadratic_models(
    view: Quadratic,
    known: Boxes,
    rows: Tensor,
    offset: Tensor,
    open_: Tensor,
    coefficients: ParabolaCoefficients,
) -> tuple[Tensor, Tensor]:
    """Scores by quadratic models.

    Args:
        rows: (n, rows, outputs).
        open_: (n, rows) bool, the rows that count.

    Returns:
        (n, inputs), zero if the region is no box, and (n, arguments) for the pre-activations.
    """
    region, dtype = known.region, next(iter(coefficients.values())).dtype
    nodes = preactivations_of(view.graph)
    ends = [torch.nan_to_num(end.to(dtype)).requires_grad_() for end in region.enclosing_box()]
    lift = torch.zeros(
        (2, len(region), sum(node.size for node in nodes)),
        dtype=dtype,
        device=ends[0].device,
        requires_grad=True,
    )
    with torch.enable_grad():
        models = _Lifted(
            view, Box.between(*ends) if region.boxed else region, coefficients, known, nodes, lift
        )
        forward((step.node for step in view.steps), models.visit)
        least = models.least({view.graph.output: rows}, offset)
        worst = torch.where(open_, least, torch.inf).amin(1)
        wanted = [lift, *(ends if region.boxed else [])]
        found = torch.autograd.grad(worst[worst.isfinite()].sum(), wanted, allow_unused=True)
    slopes = [
        torch.zeros_like(end) if slope is None else slope
        for end, slope in zip([lift, *ends], [*found, None, None], strict=False)
    ]
    low, high = (concatenate_nodes(view.graph, side, nodes) for side in (known.lower, known.upper))
    inputs = _worse_half_gain(slopes[1], slopes[2], ends[1].detach() - ends[0].detach())
    arguments = _worse_half_gain(slopes[0][0], slopes[0][1], high - low)
    return inputs.flatten(1), arguments


def _worse_half_gain(rising: Tensor, falling: Tensor, width: Tensor) -> Tensor:
    """The gain of the worse half: the smaller slope times half of the width."""
    return torch.nan_to_num(torch.minimum(rising, -falling) * width / 2, 0.0, 0.0, 0.0).double()


class _Lifted(QuadraticPropagation):
    """Models over known ranges.

    In the gradient only, the ranges follow those of the models plus `lift`, which is zero.
    """

    def __init__(
        self,
        view: Quadratic,
        region: Region,
        coefficients: ParabolaCoefficients,
        known: Boxes,
        nodes: Sequence[Node],
        lift: Tensor,
    ) -> None:
        super().__init__(view.steps, region, coefficients, None)
        self.known = known
        self.lifts = [split_by_node(view.graph, side, nodes) for side in lift]

    def ranges_of(self, node: Relaxed) -> list[tuple[Tensor, Tensor]]:
        for source in self.steps[node].inputs:
            if source not in self.ranges:
                sides = zip(
                    range_of(self.models[source], source, None),
                    (self.known.lower, self.known.upper),
                    self.lifts,
                    strict=True,
                )
                low, high = (
                    end + (side[source].flatten(1).to(end) - end).detach() + lift[source].flatten(1)
                    if source in lift
                    else end
                    for end, side, lift in sides
                )
                self.ranges[source] = low, high
        return [self.ranges[s] for s in self.steps[node].inputs]


def score_by_linear_bounds(
    graph: Graph, known: Boxes, rows: Tensor, offset: Tensor, open_: Tensor
) -> tuple[Tensor, Tensor]:
    """Scores by linear bounds; arguments and results as in `score_by_quadratic_models`."""
    functions = [node for node in graph.nodes if isinstance(node, Relaxed)]
    lifts = [[torch.zeros_like(known.upper[node]).requires_grad_() for node in functions] for _ in range(2)]
    with torch.enable_grad():
        lifted = {
            node: replace(
                known.planes[node],
                lower_offset=known.planes[node].lower_offset + up,
                upper_offset=known.planes[node].upper_offset + down,
            )
            for node, up, down in zip(functions, *lifts, strict=True)
        }
        found = linear_bound(graph, replace(known, planes=lifted, tilts={}), rows)
        least = found.minimum(known.region) + offset
        worst, row = torch.where(open_, least, torch.inf).min(1)
        slopes: Sequence[Tensor | None] = torch.autograd.grad(
            worst[worst.isfinite()].sum(), [*lifts[0], *lifts[1]], allow_unused=True
        )
    nodes = preactivations_of(graph)
    gain = {node: torch.zeros_like(known.upper[node]) for node in nodes}
    for node, up, down in zip(functions, slopes[: len(functions)], slopes[len(functions) :], strict=True):
        if up is None or down is None:
            continue
        for place, source in enumerate(node.inputs):
            if source in gain:
                gain[source] += (up - down) / 2 * _gap_reduction(node, known, place)
    lower, upper = known.region.enclosing_box()
    slope = found.coefficients.detach()[torch.arange(len(row), device=row.device), row]
    inputs = slope.abs() * (upper - lower) / 4 if known.region.boxed else torch.zeros_like(lower)
    return torch.nan_to_num(inputs.flatten(1), 0.0, 0.0, 0.0), torch.nan_to_num(
        concatenate_nodes(graph, gain, nodes), 0.0, 0.0, 0.0
    )


def preactivations_of(graph: Graph) -> list[Node]:
    """The pre-activations of all activations, without the input itself."""
    return list(
        dict.fromkeys(
            s
            for node in graph.nodes
            if isinstance(node, Relaxed)
            for s in node.inputs
            if s is not graph.entry
        )
    )


def _gap_reduction(node: Relaxed, known: Boxes, place: int) -> Tensor:
    """(n, *shape): how much the largest gap between the linear bounds shrinks over the worse half."""
    lower, upper = ([side[s] for s in node.inputs] for side in (known.lower, known.upper))
    point = split_points(lower[place], upper[place])
    halves = [
        ([*lower[:place], low, *lower[place + 1 :]], [*upper[:place], high, *upper[place + 1 :]])
        for low, high in ((lower[place], point), (point, upper[place]))
    ]
    first, second = (
        _largest_gap(planes(node.relaxation, tuple(low), tuple(high)), low, high) for low, high in halves
    )
    return (_largest_gap(known.planes[node], lower, upper) - torch.maximum(first, second)).clamp_min(0)


def _largest_gap(found: LinearBounds, lower: Sequence[Tensor], upper: Sequence[Tensor]) -> Tensor:
    """The largest difference between the upper and the lower linear bound."""
    gap = found.upper_offset - found.lower_offset
    for below, above, low, high in zip(found.lower, found.upper, lower, upper, strict=True):
        gap = gap + torch.maximum((above - below) * low, (above - below) * high)
    return gap
