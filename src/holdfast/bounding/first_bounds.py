"""Which bounds of all nodes a network gets first: backward passes, affine forms, or both.

Backward passes to every pre-activation (`crown.propagate`) take time that grows with the square of the depth;
affine forms with a bounded number of noise symbols (`reduced_forms`) take time that grows with the number of
frames and, while `NOISE_SYMBOLS` suffice, of layers.

- Networks that are not recurrent: backward passes.
- Gated recurrent networks: affine forms, which bound products of gates more tightly than any relaxation over
  boxes does. Backward passes are added as long as they cost little more.
- Plain recurrent networks: backward passes as long as they cost little more than affine forms, else these.

Either way every bound holds over the region, and a last backward pass from the output (`crown.lower_bound`)
costs no more than linear time. The choice depends on the network alone, so it is the same on every machine.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from holdfast.bounding import crown, crown_with_fixed_bounds
from holdfast.bounding.constant_nodes import find_constant_nodes
from holdfast.bounding.crown_with_fixed_bounds import ZonotopePropagation
from holdfast.bounding.graph.graph import Affine, Graph, Node, Relaxed
from holdfast.bounding.influence import find_influence
from holdfast.bounding.node_bounds import Boxes, IntervalBounds
from holdfast.bounding.product_forms import ProductForms, VariableInputs
from holdfast.bounding.reduced_forms import ReducedForms, consumer_first_order, live_values
from holdfast.bounding.relax import Product, Sigmoid, SigmoidTanh, SigmoidTimes
from holdfast.memory_budget import free_bytes
from holdfast.region import Box, Region

# Number of noise symbols that affine forms keep. With 1,200 an LSTM of 28 frames and two layers of 32 proves nearly
# what it proves with all of its 3,600 (tuned on cert-rnn's practice images).
NOISE_SYMBOLS = 1200
# Least number of noise symbols for each value that is usually live at once (the median over the nodes): order reduction
# replaces a symbol for each live value every time, and what must stay besides grows with them. Cert-rnn's LSTM with its
# second layer stacked to seven (544 such values, 28 frames) proves nothing with 2.8 symbols for each, and with 3.4 or
# 4.5 it does.
NOISE_SYMBOLS_OF_A_LIVE_VALUE = 4.5
# Networks of layers wider than this keep to backward passes, since a form holds a number for every noise
# symbol and every neuron (chosen by hand).
WIDEST_LAYER = 4096
# Backward passes are added to affine forms if they take at most this many times as many multiplications (chosen
# by hand: a multiplication of a backward pass is the cheaper one, being part of a larger product of matrices).
WALK_SHARE = 2.0
# In norms other than the maximum norm where more inputs vary than have symbols of their own, forms see the box around the
# ball, which is up to sqrt(n) times as wide in norm 2: with 14 frames of 56 pixels they prove a fifth of what backward
# passes prove, and add nothing to these. Backward passes replace them there up to this many times as many multiplications:
# an LSTM of 32 units with up to 34 frames (2.2 with 14 frames, 4.1 with 28).
WALK_SHARE_OF_BALLS = 5.0
COPIES_OF_A_FORM = 4  # Tensors of the size of all live forms that exist at once, for planning memory.
# Largest number of float64 values in the forms of one batch on a CPU: usually, so that single tensors stay below the 32 MiB
# above which the C library returns memory to the system at once, which costs more than the computation (tuned on
# cert-rnn's practice images); and where most values are live (chosen by hand). Larger batches gain nothing, and rows
# that begin to vary later would carry the noise symbols of others.
CPU_FORM_VALUES, LARGEST_CPU_FORM_VALUES = 2**22, 2**23


@dataclass(frozen=True)
class FormsPlan:
    """How affine forms are propagated through a network.

    Attributes:
        order: the order in which nodes are visited.
        noise: the number of noise symbols that forms keep, if the memory holds them.
        live: the largest number of values that are live at once.
        usual: the median of these numbers over all nodes.
        depth_of_inputs: (inputs,), the largest number of activations on a path from each input to the output.
        least_depth: the smallest number of activations on a path from an input to the output: with LSTM layers, their
            number.
        walks: whether backward passes refine all pre-activations too.
        walk_share: how many times as many multiplications backward passes take as forms.
    """

    order: list[Node]
    noise: int
    live: int
    usual: int
    depth_of_inputs: Tensor
    least_depth: int
    walks: bool
    walk_share: float

    def noise_symbols(self, device: torch.device) -> int:
        """How many noise symbols a form may have, given the memory; 0 if it holds too few."""
        allowed = free_bytes(device) // (8 * COPIES_OF_A_FORM * self.live)
        return min(self.noise, allowed) if allowed >= min(self.noise, 2 * self.live) else 0

    def rows_at_once(self, device: torch.device) -> int:
        """How many inputs are bounded together."""
        rows = free_bytes(device) // (8 * COPIES_OF_A_FORM * self.noise * self.live)
        if device.type == "cpu":
            rows = min(rows, CPU_FORM_VALUES // (self.noise * self.usual))
            rows = min(rows, LARGEST_CPU_FORM_VALUES // (self.noise * self.live))
        return max(1, rows)


_plans: "WeakKeyDictionary[Graph, FormsPlan | None]" = WeakKeyDictionary()


def plan_forms(graph: Graph, region: Region | None = None) -> FormsPlan | None:
    """How affine forms bound this network first, over a region; None if backward passes alone do.

    region: default: one in the maximum norm.
    """
    if graph not in _plans:
        _plans[graph] = _make_plan(graph)
    plan = _plans[graph]
    if plan is None or region is None or plan.walk_share > WALK_SHARE_OF_BALLS or not _is_seen_as_box(region):
        return plan
    return None


def _is_seen_as_box(region: Region) -> bool:
    """Whether forms see only the box around the balls of this region."""
    family = region.as_norm_family()
    if family is None or math.isinf(family.p):
        return False
    return not VariableInputs.of(region).suit(long=True)


def describe_forms(graph: Graph, region: Region) -> str:
    """Which affine forms `propagate_first` uses in the memory there is, for a record; empty if it uses none."""
    plan = plan_forms(graph, region)
    noise = 0 if plan is None else plan.noise_symbols(graph.device)
    if plan is None or noise == 0:
        return ""
    return f"affine forms with {noise} noise symbols" + " and backward passes" * plan.walks


def _make_plan(graph: Graph) -> FormsPlan | None:
    kinds = {type(node.relaxation) for node in graph.nodes if isinstance(node, Relaxed)}
    gated = bool(kinds & {SigmoidTimes, SigmoidTanh}) or {Sigmoid, Product} <= kinds
    if not (gated or graph.recurrent):
        return None
    if any(not node.small for node in graph.nodes if isinstance(node, Affine)):
        return None
    if max(node.size for node in graph.nodes if node is not graph.entry) > WIDEST_LAYER:
        return None
    order = consumer_first_order(graph)
    counts = list(live_values(graph, order).values())
    live, usual = max(counts), max(1, int(statistics.median(counts)))
    noise = _noise_kept(graph, usual)
    share = _work_of_walks(graph) / _work_of_forms(graph, noise)
    walks = share <= WALK_SHARE
    if walks and not gated:
        return None
    return FormsPlan(order, noise, live, usual, _depth_of_inputs(graph), _least_depth(graph), walks, share)


def _depth_of_inputs(graph: Graph) -> Tensor:
    """(inputs,): the largest number of activations on a path from each input to the output."""
    behind = dict.fromkeys(graph.nodes, 0)
    depth = torch.zeros(graph.entry.size, dtype=torch.long, device=graph.device)
    for node in reversed(graph.nodes[1:]):
        own = behind[node] + isinstance(node, Relaxed)
        for source in node.inputs:
            behind[source] = max(behind[source], own)
        if graph.entry in node.inputs:
            index = torch.arange(graph.entry.size, device=graph.device)
            read = node.forward([index]) if isinstance(node, Affine) and node.moves else index
            depth[read] = depth[read].clamp_min(own)
    return depth


def _least_depth(graph: Graph) -> int:
    """The smallest number of activations on a path from an input to the output."""
    depth = dict.fromkeys(graph.nodes, len(graph.nodes)) | {graph.output: 0}
    for node in reversed(graph.nodes[1:]):
        for source in node.inputs:
            depth[source] = min(depth[source], depth[node] + isinstance(node, Relaxed))
    return depth[graph.entry]


def _work_of_walks(graph: Graph) -> int:
    """Multiplications of backward passes to all pre-activations, about: two rows for each, through all nodes
    before it.
    """
    before, work = 0, 0
    refined = crown.nodes_to_refine(graph)
    for node in graph.nodes:
        work += 2 * node.size * before if node in refined else 0
        before += node.size
    return work


def _work_of_forms(graph: Graph, noise: int) -> int:
    """Multiplications of affine forms, about: one for each noise symbol and value."""
    return noise * sum(node.size for node in graph.nodes)


def _noise_kept(graph: Graph, usual: int) -> int:
    """How many noise symbols forms keep: enough for what is usually live, and never more than arise."""
    relaxed = sum(node.size for node in graph.nodes if isinstance(node, Relaxed))
    return min(max(NOISE_SYMBOLS, int(NOISE_SYMBOLS_OF_A_LIVE_VALUE * usual)), graph.entry.size + relaxed)


def forms_for(graph: Graph, boxes: Boxes, order: Sequence[Node]) -> ZonotopePropagation | None:
    """Affine forms to be propagated next to these boxes in the given order; None if the network has none, or
    the memory does not hold those of all rows.
    """
    plan = plan_forms(graph)
    if plan is None:
        return None
    live = max(live_values(graph, order).values())
    needed = 8 * COPIES_OF_A_FORM * plan.noise * live * len(boxes.region)
    if needed > free_bytes(graph.device):
        return None
    forms = ReducedForms(graph, *boxes.region.enclosing_box(), order, plan.noise)
    return ZonotopePropagation(forms, boxes)


def propagate_first(
    graph: Graph,
    region: Region,
    executed: torch.dtype | None = None,
    known: Mapping[Node, IntervalBounds] | None = None,
) -> Boxes:
    """Bounds of all nodes over the region, by the methods that suit the network; arguments as for
    `crown.propagate`.

    Affine forms bound the network in real arithmetic only.
    """
    plan = plan_forms(graph, region) if executed is None else None
    most = 0 if plan is None else plan.noise_symbols(graph.device)
    if plan is None or most == 0:
        return crown.propagate(graph, region, executed, known)
    influence = find_influence(graph, region)
    inputs = VariableInputs.of(region)
    forms = (
        ProductForms(graph, inputs, plan.order, most, influence)
        if inputs.suit(long=not plan.walks)
        else ReducedForms(graph, *region.enclosing_box(), plan.order, most, influence)
    )
    constant = find_constant_nodes(
        graph, region, plan.order, partial(_bound_centres, graph, plan.order, most)
    )
    boxes, _ = crown_with_fixed_bounds.propagate(
        graph, region, forms, known, walks=plan.walks, order=plan.order, constant=constant
    )
    boxes.forms = forms
    return boxes


def _bound_centres(
    graph: Graph, order: Sequence[Node], most: int, centre: Tensor
) -> dict[Node, IntervalBounds]:
    """Bounds of all nodes at single points, (points, inputs)."""
    points = centre.reshape(len(centre), *graph.entry.shape[1:])
    forms = ReducedForms(graph, points, points, order, most)
    boxes, _ = crown_with_fixed_bounds.propagate(
        graph, Box(points, points, points), forms, walks=False, order=order
    )
    return {node: (boxes.lower[node], boxes.upper[node]) for node in order}
