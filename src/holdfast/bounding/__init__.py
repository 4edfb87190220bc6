"""Under the floor, for every room: the network's graph, its relaxations, and the walks that bound it: backwards by planes (crown),
forwards by affine forms (zonotope) and by quadratic models (second_order)."""

from torch import Tensor

from holdfast.bounding.graph import assigned, cells, operators  # they fill the table of operators
from holdfast.bounding.graph.graph import build
from holdfast.network import Network

__all__ = ["assigned", "cells", "operators", "stops"]


def stops(net: Network, x: Tensor) -> dict[str, str]:
    """The nodes of the traced program that no bound is known for, and why: what a proof about inputs like x would meet."""
    found: dict[str, str] = {}
    build(net, x, stopped=found)
    return found
