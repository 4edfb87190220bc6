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
from holdfast.bounding.input_forms import is_wide
from holdfast.bounding.sums_of_products import find_sums_of_products
from holdfast.region import Region

# The limits were chosen by hand.
# Largest number of perturbed inputs for Taylor models of smooth networks; with more, boxes hardly get small
# enough.
MAX_TAYLOR_INPUTS = 6
# Largest number of perturbed inputs for input splits of ReLU-like networks.
MAX_INPUT_SPLIT_INPUTS = 16
# The same for networks of wide convolutions, of which a core bounds a box in seconds: halving 16 inputs once each takes
# 65,536 boxes.
MAX_WIDE_INPUT_SPLIT_INPUTS = 8


def choose_branching(graph: Graph, region: Region, *, models: bool = False) -> Branching[Any]:
    """The branching rule for a graph and a region.

    With `models`, quadratic models will bound the subproblems. Without them, input splits (zonotopes and
    linear bounds that also shrink the boxes) are better than range splits; but not for attention over many inputs,
    where zonotopes take several times as long as backward passes and prove less.
    """
    lower, upper = region.enclosing_box()
    moving = int((lower < upper).flatten(1).sum(1).max())
    read = set(relu_preactivations(graph))
    decidable = all(set(node.inputs) <= read for node in graph.nodes if isinstance(node, Relaxed))
    most = MAX_WIDE_INPUT_SPLIT_INPUTS if decidable and is_wide(graph) else MAX_INPUT_SPLIT_INPUTS
    if moving > most and not decidable and not models and is_wide(graph) and find_sums_of_products(graph):
        return NonlinearSplit()
    if region.boxed and (moving <= most or (not decidable and not models)):
        return (
            SmoothSplit() if moving <= MAX_TAYLOR_INPUTS and taylor.obstacle(graph) is None else InputSplit()
        )
    return ActivationSplit() if decidable else NonlinearSplit()
