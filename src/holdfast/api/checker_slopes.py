"""Translate the engine's trained slopes into the checker's numbering. Any slopes are sound, so nothing here
is trusted.
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
    relu_like_functions,
    relu_preactivations,
    split_by_node,
    tighten_intermediate_bounds,
)
from holdfast.bounding.branching.split_score import neuron_costs
from holdfast.bounding.crown_with_fixed_bounds import propagate, take_rows
from holdfast.bounding.graph.graph import Graph, Node, Relaxed
from holdfast.bounding.graph.problem_graph import graph_of
from holdfast.bounding.node_bounds import Boxes
from holdfast.errors import HoldfastError
from holdfast.problem import Problem
from holdfast.region import Region
from holdfast_check.functions import PiecewiseLinear
from holdfast_check.steps import FunctionStep, Program

STEPS, PACE = 60, 0.1  # Adam steps and learning rate for the rows of a claim.
ENDS = 256  # Pre-activations of a layer whose intermediate bounds are optimised: the ones that lose most.
END_STEPS, END_PACE = 20, 0.2  # Adam steps and learning rate for intermediate bounds.
AT_ONCE = 216  # Rows that are optimised together.
# Extra margin, relative to the rows at the centre: covers the checker's rounding and slopes as bytes.
SLACK = 1e-4
Array = np.ndarray[Any, Any]


@dataclass(frozen=True, eq=False)
class MatchedActivations:
    """An engine graph whose ReLU-like activations correspond one by one to the checker's piecewise-linear
    functions.
    """

    graph: Graph
    program: Program
    places: dict[Relaxed, int]  # steps

    @staticmethod
    def of(part: Problem, program: Program) -> "MatchedActivations | None":
        """Return the match, or None if the activations are of other kinds or differ from the checker's."""
        try:
            graph = graph_of(part)
        except HoldfastError:
            return None
        places = [
            place
            for place, step in enumerate(program.steps)
            if isinstance(step, FunctionStep) and isinstance(step.function, PiecewiseLinear)
        ]
        bending = relu_like_functions(graph)
        if not bending or [node.size for node in bending] != [program.steps[place].size for place in places]:
            return None
        return MatchedActivations(graph, program, dict(zip(bending, places, strict=True)))

    @property
    def width(self) -> int:
        """The number of pre-activations."""
        return sum(node.size for node in relu_preactivations(self.graph))

    def elements(self) -> Array:
        """Return the checker's step and element of each pre-activation, (pre-activations, 2)."""
        found: dict[Node, Array] = {}
        for node, place in self.places.items():
            [read] = self.program.steps[place].parts
            found.setdefault(node.inputs[0], np.stack([np.full(node.size, read.source), read.take], 1))
        return np.concatenate([found[node] for node in relu_preactivations(self.graph)])

    def unstable_elements(self, known: Boxes) -> dict[str, Array]:
        """Return the arrays `at/K`: the unstable elements of a region of one row, whose slopes are free."""
        found = {}
        for node, place in self.places.items():
            lower, upper = (side[node.inputs[0]].flatten() for side in (known.lower, known.upper))
            elements = ((lower < 0) & (upper > 0)).nonzero().flatten().cpu().numpy()
            found[f"at/{place}"] = small(elements)
        return found

    def slopes(self, values: Tensor, at: dict[str, Array]) -> dict[int, Array]:
        """Return slopes (rows, pre-activations) by step K, (rows, elements of at/K), as bytes where all lie
        between 0 and 1.
        """
        found = {}
        by_argument = split_by_node(self.graph, values.detach())
        for node, place in self.places.items():
            step = self.program.steps[place]
            assert isinstance(step, FunctionStep)
            assert isinstance(step.function, PiecewiseLinear)
            low, high = min(step.function.factors), max(step.function.factors)
            given = np.nan_to_num(
                by_argument[node.inputs[0]].flatten(1).cpu().numpy()[:, at[f"at/{place}"].astype(np.int64)]
            )
            wanted = np.clip(given, low, high)
            bytes_do = low >= 0 and high <= 1
            found[place] = np.rint(wanted * 255).astype(np.uint8) if bytes_do else wanted.astype(np.float32)
        return found


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


def small(numbers: Array) -> Array:
    """Return whole numbers in the smallest integer type that holds them."""
    return numbers.astype(np.int16 if not numbers.size or numbers.max() < 2**15 else np.int32)


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
    elements = match.elements()
    starts = dict(
        zip(
            relu_preactivations(match.graph),
            np.cumsum([0, *(node.size for node in relu_preactivations(match.graph))]),
            strict=False,
        )
    )
    for node, (chosen, slopes) in ends.items():
        own = elements[starts[node] + chosen.cpu().numpy()]
        target = int(own[0, 0])
        arrays[f"ends/{target}"] = small(own[:, 1])
        for place, array in match.slopes(slopes.flatten(0, 1), at).items():
            if place < target:
                arrays[f"ends/{place}/{target}"] = array.reshape(2, len(chosen), -1)
    return arrays
