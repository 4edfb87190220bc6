"""Train slopes with the engine and write them in the checker's numbering. Any slopes are sound, so nothing here is
trusted.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from holdfast.bounding.alpha_beta_crown import (
    RowTask,
    TrainedBounds,
    relu_preactivations,
    split_by_node,
    tighten_intermediate_bounds,
)
from holdfast.bounding.branching.split_score import neuron_costs
from holdfast.bounding.crown_with_fixed_bounds import propagate, take_rows
from holdfast.bounding.graph.graph import Node
from holdfast.bounding.node_bounds import Boxes
from holdfast.certificates.matching import MatchedActivations, smallest_integers
from holdfast.region import Region

STEPS, PACE = 60, 0.1  # Adam steps and learning rate for the rows of a claim.
ENDS = 256  # Pre-activations of a layer whose intermediate bounds are optimised: the ones that lose most.
END_STEPS, END_PACE = 20, 0.2  # Adam steps and learning rate for intermediate bounds.
AT_ONCE = 216  # Rows that are optimised together.
# Extra margin, relative to the rows at the centre: covers the checker's rounding and slopes as bytes.
SLACK = 1e-4
Array = np.ndarray[Any, Any]


@dataclass(frozen=True, eq=False)
class TrainedPlanes:
    """The engine's bounds of a region of one row, and the arrays of a proof file: `at/K`, `rows/K`, `ends/T`,
    `ends/K/T`.
    """

    known: Boxes
    arrays: dict[str, Array]


def search_trained_slopes(
    match: MatchedActivations, region: Region, matrix: Array, offset: Array
) -> Iterator[TrainedPlanes]:
    """Yield trained slopes for rows that should be positive over a region with one input.

    First with the given intermediate bounds, then with optimised intermediate bounds of the pre-activations
    that lose most.
    """
    graph = match.graph
    known, empty = propagate(graph, region)
    if bool(empty.any()):
        return
    rows = _rows(match, known, matrix, offset)
    yield TrainedPlanes(known, _arrays(match, known, rows, {}))
    share = torch.where(rows.least > 0, 0, -rows.least)
    entering = torch.nan_to_num(rows.entering * share[:, None], 0.0, 0.0).sum(0, keepdim=True)
    worth = {}
    for node, cost in split_by_node(graph, neuron_costs(graph, known, entering)).items():
        flat = cost.flatten(1)
        worth[node] = ((flat > 0) & (flat >= flat.topk(min(ENDS, node.size), dim=1).values[:, -1:])).reshape(
            cost.shape
        )
    heard: dict[Node, list[tuple[Tensor, Tensor]]] = {}

    def hear(node: Node, chosen: Tensor, found: TrainedBounds) -> None:
        heard.setdefault(node, []).append((chosen[:, 1], found.slope.reshape(2, len(chosen), -1)))

    ends = {node: (known.lower[node], known.upper[node]) for node in relu_preactivations(graph)}
    with torch.no_grad():
        held = tighten_intermediate_bounds(
            graph, region, END_STEPS, END_PACE, AT_ONCE, worth=worth, known=ends, heard=hear
        )
    known, empty = propagate(graph, region, within=held)
    if heard and not bool(empty.any()):
        ends_of = {
            node: (torch.cat([some for some, _ in found]), torch.cat([slope for _, slope in found], 1))
            for node, found in heard.items()
        }
        yield TrainedPlanes(known, _arrays(match, known, _rows(match, known, matrix, offset), ends_of))


def _rows(match: MatchedActivations, known: Boxes, matrix: Array, offset: Array) -> TrainedBounds:
    some = torch.zeros(len(matrix), dtype=torch.int64)
    none = torch.zeros((len(matrix), match.width), dtype=torch.float64)
    rows = torch.from_numpy(matrix).double()[:, None], torch.from_numpy(offset).double()[:, None]
    with torch.no_grad():
        return RowTask(match.graph, take_rows(known, some), match.graph.output, *rows, none).train(
            none * torch.nan, none, STEPS, PACE
        )


def _arrays(
    match: MatchedActivations, known: Boxes, rows: TrainedBounds, ends: dict[Node, Any]
) -> dict[str, Array]:
    at = match.unstable_elements(known)
    arrays = {**at, **{f"rows/{place}": array[None] for place, array in match.slopes(rows.slope, at).items()}}
    nodes = relu_preactivations(match.graph)
    starts = dict(zip(nodes, np.cumsum([0, *(node.size for node in nodes)]), strict=False))
    for node, (chosen, slopes) in ends.items():
        own = match.elements[starts[node] + chosen.cpu().numpy()]
        by_bound = slopes.reshape(2, len(chosen), -1)
        for target in np.unique(own[:, 0]).tolist():
            some = own[:, 0] == target
            arrays[f"ends/{target}"] = smallest_integers(own[some, 1])
            some_slopes = by_bound[:, torch.from_numpy(some).to(by_bound.device)]
            for place, array in match.slopes(some_slopes.flatten(0, 1), at).items():
                if place < target:
                    arrays[f"ends/{place}/{target}"] = array.reshape(2, int(some.sum()), -1)
    return arrays
