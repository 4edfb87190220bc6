"""Under the floor, for every room: the network's graph, its relaxations, and the walks that bound it: backwards by planes (crown),
forwards by affine forms (zonotope) and by quadratic models (second_order)."""

import torch

from holdfast.bounding.graph import assigned, cells, operators  # they fill the table of operators
from holdfast.bounding.graph.graph import HANDLERS
from holdfast.network.trace import layers

__all__ = ["assigned", "cells", "operators", "stops"]


def stops(program: torch.export.ExportedProgram) -> set[str]:
    """The operators of the graph that no bound is known for."""
    known = {str(target) for target in HANDLERS}
    constant = ("aten.zeros", "aten.ones", "aten.full", "aten.arange", "aten.scalar_tensor", "aten.lift_fresh_copy", "aten.empty")
    return {layer.operator for layer in layers(program) if layer.operator not in known and not layer.operator.startswith(constant)}
