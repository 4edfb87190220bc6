"""Match the elements of the engine's graph with those of the checker's program, by their values.

Engine and checker unroll a network differently. Both are evaluated at the same points of the region, and two elements
with the same values at every point are taken for the same. A wrong match costs a certificate and no soundness: the
checker accepts any slopes, splits and parabolas only if they prove the claim.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from holdfast.bounding.alpha_beta_crown import concatenate_nodes, relu_preactivations
from holdfast.bounding.graph.equivalence_check import sampled_points, values
from holdfast.bounding.graph.graph import Graph
from holdfast.bounding.graph.problem_graph import graph_of
from holdfast.bounding.node_bounds import Boxes
from holdfast.errors import HoldfastError
from holdfast.problem import Problem
from holdfast_check.functions import PiecewiseLinear
from holdfast_check.steps import FunctionStep, Program

SAME = 1e-7  # Values match if they differ by at most this times the checker's largest value (chosen by hand).
Array = np.ndarray[Any, Any]


def match_columns(engine: Array, checker: Array) -> Array:
    """Return for each column of `checker`, (points, m), the column of `engine`, (points, n), with the same values, or
    -1.

    Equal columns are matched in order. If the engine has fewer of them, its last one is matched repeatedly.
    """
    tolerance = SAME * max(1.0, float(np.abs(checker).max(initial=0.0)))
    count = engine.shape[1]
    group = _group_columns(np.concatenate([engine, checker], 1), tolerance)
    matched = np.full(checker.shape[1], -1)
    theirs: dict[int, list[int]] = {}
    for column, number in enumerate(group[:count].tolist()):
        theirs.setdefault(number, []).append(column)
    used: dict[int, int] = {}
    for column, number in enumerate(group[count:].tolist()):
        if number in theirs:
            rank = used.get(number, 0)
            used[number] = rank + 1
            matched[column] = theirs[number][min(rank, len(theirs[number]) - 1)]
    return matched


def _group_columns(columns: Array, tolerance: float) -> Array:
    """Return the number of the group of each column, (points, n) -> (n,): sorted by any one point, the values of a
    group have no gap larger than the tolerance.
    """
    group = np.zeros(columns.shape[1], dtype=np.int64)
    for row in columns:
        order = np.lexsort((row, group))
        begins = (np.diff(group[order]) != 0) | (np.diff(row[order]) > tolerance)
        group[order] = np.concatenate([[0], np.cumsum(begins)])
    return group


@dataclass(frozen=True, eq=False)
class MatchedActivations:
    """The pre-activations of the engine's ReLU-like activations in the numbering of the checker's program.

    Attributes:
        graph: the engine's graph.
        program: the checker's program.
        elements: (pre-activations, 2), the checker's step and element of each pre-activation; -1 where the checker
            has none.
        preactivations: for each piecewise-linear step K of the checker, the number of the engine's pre-activation
            for each of its elements.
    """

    graph: Graph
    program: Program
    elements: Array
    preactivations: dict[int, Array]

    @staticmethod
    def of(part: Problem, program: Program) -> "MatchedActivations | None":
        """Return the match, or None unless every element that the checker's piecewise-linear functions read is a
        pre-activation of the engine, and no two of them are the same one.
        """
        try:
            graph = graph_of(part)
        except HoldfastError:
            return None
        nodes = relu_preactivations(graph)
        steps = {
            place: step.parts[0]
            for place, step in enumerate(program.steps)
            if isinstance(step, FunctionStep) and isinstance(step.function, PiecewiseLinear)
        }
        if not nodes or not steps:
            return None
        points = sampled_points(part.region).double()
        known = values(graph, points.to(graph.device), nodes)
        engine = np.asarray(concatenate_nodes(graph, known).cpu().numpy())
        read = np.concatenate(
            [np.stack([np.full(len(term.take), term.source), term.take], 1) for term in steps.values()]
        )
        elements, back = np.unique(read, axis=0, return_inverse=True)
        computed = program.values(points.cpu().numpy())
        checker = np.stack([computed[source][:, take] for source, take in elements.tolist()], 1)
        matched = match_columns(engine, checker)
        if bool((matched < 0).any()) or len(np.unique(matched)) < len(matched):
            return None
        own = np.full((engine.shape[1], 2), -1)
        own[matched] = elements
        ends = np.cumsum([len(term.take) for term in steps.values()])[:-1]
        parts = np.split(matched[back.reshape(-1)], ends)
        return MatchedActivations(graph, program, own, dict(zip(steps, parts, strict=True)))

    @property
    def width(self) -> int:
        """The number of pre-activations."""
        return len(self.elements)

    def unstable_elements(self, known: Boxes) -> dict[str, Array]:
        """Return the arrays `at/K`: the unstable elements of a region of one row, whose slopes are free."""
        lower, upper = (
            concatenate_nodes(self.graph, side)[0].cpu().numpy() for side in (known.lower, known.upper)
        )
        unstable = (lower < 0) & (upper > 0)
        return {
            f"at/{place}": smallest_integers(np.flatnonzero(unstable[numbers]))
            for place, numbers in self.preactivations.items()
        }

    def slopes(self, slopes: Tensor, at: dict[str, Array]) -> dict[int, Array]:
        """Return slopes (rows, pre-activations) by step K, (rows, elements of at/K), as bytes where all lie
        between 0 and 1.
        """
        found = {}
        given = slopes.detach().cpu().numpy()
        for place, numbers in self.preactivations.items():
            step = self.program.steps[place]
            assert isinstance(step, FunctionStep)
            assert isinstance(step.function, PiecewiseLinear)
            low, high = min(step.function.factors), max(step.function.factors)
            own = np.nan_to_num(given[:, numbers[at[f"at/{place}"].astype(np.int64)]])
            wanted = np.clip(own, low, high)
            fits_bytes = low >= 0 and high <= 1
            found[place] = np.rint(wanted * 255).astype(np.uint8) if fits_bytes else wanted.astype(np.float32)
        return found


def smallest_integers(numbers: Array) -> Array:
    """Return whole numbers in the smallest integer type that holds them."""
    return numbers.astype(np.int16 if not numbers.size or numbers.max() < 2**15 else np.int32)
