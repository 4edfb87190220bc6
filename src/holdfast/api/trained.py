"""Slopes trained by the engine, for the functions as the checker counts them. Any slopes are sound, so nothing here has to be trusted."""

from typing import Any

import numpy as np
import torch

from holdfast import batch
from holdfast.bounding.alpha_beta_crown import Rows, apart, arguments, bent
from holdfast.bounding.crown_within import propagate
from holdfast.bounding.graph.of_problem import graph_of
from holdfast.errors import HoldfastError
from holdfast.problem import Problem
from holdfast.region import Region
from holdfast_check.functions import Pieces
from holdfast_check.steps import Applied, Program

STEPS, PACE = 60, 0.1  # of training
Array = np.ndarray[Any, Any]


def trained_slopes(part: Problem, region: Region, program: Program, matrix: Array, offset: Array) -> dict[str, Array]:
    """For the rows of a claim over a region of one input, `rows/K`; nothing where the network has no such slopes, or where its functions
    are not those of the checker, one by one."""
    try:
        graph = graph_of(part)
    except HoldfastError:
        return {}
    bending = bent(graph)
    places = [place for place, step in enumerate(program.steps) if isinstance(step, Applied) and isinstance(step.function, Pieces)]
    if not bending or [node.size for node in bending] != [program.steps[place].size for place in places]:
        return {}
    copies = batch.take(region, torch.zeros(len(matrix), dtype=torch.int64))
    known, empty = propagate(graph, copies)
    if bool(empty.any()):
        return {}
    none = torch.zeros((len(matrix), sum(node.size for node in arguments(graph))), dtype=torch.float64)
    rows = torch.from_numpy(matrix).double()[:, None], torch.from_numpy(offset).double()[:, None]
    with torch.no_grad():
        found = Rows(graph, known, graph.output, *rows, none).trained(none * torch.nan, none, STEPS, PACE)
    by_argument = apart(graph, found.slope)
    slopes = {}
    for place, node in zip(places, bending, strict=True):
        step = program.steps[place]
        assert isinstance(step, Applied)
        assert isinstance(step.function, Pieces)
        wanted = by_argument[node.inputs[0]].flatten(1).numpy().astype(np.float32)
        array = np.clip(wanted, min(step.function.factors), max(step.function.factors)).astype(np.float32)
        if not bool(np.isfinite(array).all()):
            return {}
        slopes[f"rows/{place}"] = array[None]
    return slopes
