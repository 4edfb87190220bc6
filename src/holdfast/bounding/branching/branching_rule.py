"""The choice of a branching rule.

Few perturbed inputs are split themselves (halves of boxes). With many, the signs of ReLU-like pre-activations
are split, or the ranges of pre-activations of other activations. Input splits need a region that is a box;
the others need none, because linear bounds are minimised over the region itself.
"""

from typing import Any

from holdfast.bounding import taylor
from holdfast.bounding.alpha_beta_crown import relu_preactivations
from holdfast.bounding.branching.input_split import InputSplit
from holdfast.bounding.branching.nonlinear_split import NonlinearSplit
from holdfast.bounding.branching.relu_split import ActivationSplit
from holdfast.bounding.branching.smooth_split import SmoothSplit
from holdfast.bounding.branching.subproblem_queue import Branching
from holdfast.bounding.graph.graph import Graph, Relaxed
from holdfast.region import Region

# The limits were chosen by hand.
# Largest number of perturbed inputs for Taylor models of smooth networks; with more, boxes hardly get small
# enough.
MAX_TAYLOR_INPUTS = 6
# Largest number of perturbed inputs for input splits of ReLU-like networks.
MAX_INPUT_SPLIT_INPUTS = 16


def choose_branching(graph: Graph, region: Region, *, models: bool = False) -> Branching[Any]:
    """The branching rule for a graph and a region.

    With `models`, quadratic models will bound the subproblems. Without them, input splits (zonotopes and
    linear bounds that also shrink the boxes) are better than range splits.
    """
    lower, upper = region.enclosing_box()
    moving = int((lower < upper).flatten(1).sum(1).max())
    read = set(relu_preactivations(graph))
    decidable = all(set(node.inputs) <= read for node in graph.nodes if isinstance(node, Relaxed))
    if region.boxed and (moving <= MAX_INPUT_SPLIT_INPUTS or (not decidable and not models)):
        return (
            SmoothSplit() if moving <= MAX_TAYLOR_INPUTS and taylor.obstacle(graph) is None else InputSplit()
        )
    return ActivationSplit() if decidable else NonlinearSplit()
