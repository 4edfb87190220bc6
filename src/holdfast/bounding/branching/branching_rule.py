"""Which cut branch and bound takes: halves of inputs while few of them move, else signs of activations (ReLU splitting), and ranges of
what other functions read.

Halves of inputs are boxes, so they need a region that is one. Signs need functions that are lines on both sides of zero. Neither signs nor
ranges need a particular region: planes are minimised over the region itself.
"""

from typing import Any

from holdfast.bounding import taylor
from holdfast.bounding.alpha_beta_crown import arguments
from holdfast.bounding.branching.input_split import InputSplit
from holdfast.bounding.branching.nonlinear_split import NonlinearSplit
from holdfast.bounding.branching.relu_split import ActivationSplit
from holdfast.bounding.branching.smooth_split import SmoothSplit
from holdfast.bounding.branching.subproblem_queue import Branching
from holdfast.bounding.graph.graph import Graph, Relaxed
from holdfast.region import Region

FEWER = 6  # up to so many, boxes of smooth networks are bounded by models first; of more, hardly any box gets small enough
FEW_INPUTS = 16  # up to so many that move, boxes of inputs are cut; beyond, activations are decided


def cut_for(graph: Graph, region: Region, *, models: bool = False) -> Branching[Any]:
    """models: second-order models will bound the parts. Without them boxes are cut down by planes and affine forms before they are halved,
    which wins more than ranges do."""
    lower, upper = region.enclosing_box()
    moving = int((lower < upper).flatten(1).sum(1).max())
    read = set(arguments(graph))
    decidable = all(set(node.inputs) <= read for node in graph.nodes if isinstance(node, Relaxed))
    if region.boxed and (moving <= FEW_INPUTS or (not decidable and not models)):
        return SmoothSplit() if moving <= FEWER and taylor.obstacle(graph) is None else InputSplit()
    return ActivationSplit() if decidable else NonlinearSplit()
