"""Which range is worth halving? What the final bound gains, to the first order, from narrower ends of an input or of an argument.

By second-order models: the gradient of the bound along the ends, through everything that is computed from them, so later layers count. A
half keeps one end, so the worse half gains half the width times the smaller of the two slopes. By planes, where there are no models: how
much closer the two planes of a function come over the halves, times the weight with which they enter the bound (GenBaB, Shi et al. 2024).

Nothing here proves anything: it only chooses.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from holdfast.bounding.alpha_beta_crown import apart, together
from holdfast.bounding.crown import linear_bound
from holdfast.bounding.graph.graph import Graph, Node, Relaxed
from holdfast.bounding.node_bounds import Boxes
from holdfast.bounding.quadratic_models import Bends, Quadratic, QuadraticPropagation, range_of
from holdfast.bounding.relax import LinearBounds, planes
from holdfast.bounding.traversal import forward
from holdfast.region import Box, Region

AWAY = 0.25  # of its width: a function turns at zero, and is cut there unless that is nearer to an end


def cut_points(low: Tensor, high: Tensor) -> Tensor:
    """Where ranges are cut: at zero, where sigmoidal functions turn, or in the middle."""
    away = AWAY * (high - low)
    return torch.where((low < -away) & (high > away), 0.0, low / 2 + high / 2)


def by_models(
    view: Quadratic, known: Boxes, rows: Tensor, offset: Tensor, open_: Tensor, bends: Bends
) -> tuple[Tensor, Tensor]:
    """rows (n, rows, outputs), of which those count that are open (n, rows) -> for each input (n, inputs), zero where the region is no box,
    and for each argument (n, arguments)."""
    region, dtype = known.region, next(iter(bends.values())).dtype
    nodes, ends = (
        arguments_of(view.graph),
        [torch.nan_to_num(end.to(dtype)).requires_grad_() for end in region.enclosing_box()],
    )
    lift = torch.zeros(
        (2, len(region), sum(node.size for node in nodes)),
        dtype=dtype,
        device=ends[0].device,
        requires_grad=True,
    )
    with torch.enable_grad():
        models = _Lifted(view, Box.between(*ends) if region.boxed else region, bends, known, nodes, lift)
        forward((step.node for step in view.steps), models.visit)
        least = models.least({view.graph.output: rows}, offset)
        worst = torch.where(open_, least, torch.inf).amin(1)
        wanted = [lift, *(ends if region.boxed else [])]
        found = torch.autograd.grad(worst[worst.isfinite()].sum(), wanted, allow_unused=True)
    slopes = [
        torch.zeros_like(end) if slope is None else slope
        for end, slope in zip([lift, *ends], [*found, None, None], strict=False)
    ]
    low, high = (together(view.graph, side, nodes) for side in (known.lower, known.upper))
    inputs, arguments = (
        _worse(slopes[1], slopes[2], ends[1].detach() - ends[0].detach()),
        _worse(slopes[0][0], slopes[0][1], high - low),
    )
    return inputs.flatten(1), arguments


def _worse(rising: Tensor, falling: Tensor, width: Tensor) -> Tensor:
    return torch.nan_to_num(torch.minimum(rising, -falling) * width / 2, 0.0, 0.0, 0.0).double()


class _Lifted(QuadraticPropagation):
    """Models over the ranges that are known; their ends follow those of the models in the gradient only, and are lifted by zero."""

    def __init__(
        self, view: Quadratic, region: Region, bends: Bends, known: Boxes, nodes: Sequence[Node], lift: Tensor
    ) -> None:
        super().__init__(view.steps, region, bends, None)
        self.known = known
        self.lifts = [apart(view.graph, side, nodes) for side in lift]

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


def by_planes(
    graph: Graph, known: Boxes, rows: Tensor, offset: Tensor, open_: Tensor
) -> tuple[Tensor, Tensor]:
    """The same, of planes."""
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
    nodes = arguments_of(graph)
    gain = {node: torch.zeros_like(known.upper[node]) for node in nodes}
    for node, up, down in zip(functions, slopes[: len(functions)], slopes[len(functions) :], strict=True):
        if up is None or down is None:
            continue
        for place, source in enumerate(node.inputs):
            if source in gain:
                gain[source] += (up - down) / 2 * _closer(node, known, place)
    lower, upper = known.region.enclosing_box()
    slope = found.coefficients.detach()[torch.arange(len(row), device=row.device), row]
    inputs = slope.abs() * (upper - lower) / 4 if known.region.boxed else torch.zeros_like(lower)
    return torch.nan_to_num(inputs.flatten(1), 0.0, 0.0, 0.0), torch.nan_to_num(
        together(graph, gain, nodes), 0.0, 0.0, 0.0
    )


def arguments_of(graph: Graph) -> list[Node]:
    """What functions read, the input itself left out."""
    return list(
        dict.fromkeys(
            s
            for node in graph.nodes
            if isinstance(node, Relaxed)
            for s in node.inputs
            if s is not graph.entry
        )
    )


def _closer(node: Relaxed, known: Boxes, place: int) -> Tensor:
    """-> (n, *shape): by how much the planes of a function come closer over the worse half of one of its arguments."""
    lower, upper = ([side[s] for s in node.inputs] for side in (known.lower, known.upper))
    point = cut_points(lower[place], upper[place])
    halves = [
        ([*lower[:place], low, *lower[place + 1 :]], [*upper[:place], high, *upper[place + 1 :]])
        for low, high in ((lower[place], point), (point, upper[place]))
    ]
    first, second = (
        _gap(planes(node.relaxation, tuple(low), tuple(high)), low, high) for low, high in halves
    )
    return (_gap(known.planes[node], lower, upper) - torch.maximum(first, second)).clamp_min(0)


def _gap(found: LinearBounds, lower: Sequence[Tensor], upper: Sequence[Tensor]) -> Tensor:
    """The largest difference of the two planes."""
    gap = found.upper_offset - found.lower_offset
    for below, above, low, high in zip(found.lower, found.upper, lower, upper, strict=True):
        gap = gap + torch.maximum((above - below) * low, (above - below) * high)
    return gap
