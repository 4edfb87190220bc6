"""How much the output depends on every element of every node, to first order at the centres of a region.

Statement. For the output y and a node v, with random signs s_k that are the same in every run,

    influence_i = sqrt(sum over k of (d(s_k . y) / d v_i)^2),

in expectation proportional to the Euclidean length of the derivatives of all outputs. It chooses which noise
symbols affine forms keep (`reduced_forms`) and proves nothing, so it may be computed in any way.
"""

from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from holdfast import time_limit
from holdfast.bounding.graph.equivalence_check import values
from holdfast.bounding.graph.graph import Graph, Node
from holdfast.region import Region

DIRECTIONS = 4  # Number of combinations of the outputs that are differentiated (chosen by hand).
# Largest number of float64 values of all nodes that are differentiated at once (128 MiB; chosen by hand).
MAX_VALUES = 2**24

Influence = dict[Node, Tensor]  # (batch, size) of every node but the input; zero where nothing is known
# The last centres of each graph and what was found there: a search over radii needs the same ones again.
_last: "WeakKeyDictionary[Graph, tuple[Tensor, Influence]]" = WeakKeyDictionary()


def find_influence(graph: Graph, region: Region) -> Influence:
    """The influence of every node at the centre of each row of the batch."""
    centres, place = region.centre.to(graph.device, torch.float64).unique(dim=0, return_inverse=True)
    known = _last.get(graph)
    if known is None or not torch.equal(known[0], centres):
        step = max(1, MAX_VALUES // sum(node.size for node in graph.nodes))
        parts = [_differentiate(graph, some) for some in centres.split(step)]
        known = centres, {node: torch.cat([part[node] for part in parts]) for node in parts[0]}
        _last[graph] = known
    return {node: found[place] for node, found in known[1].items()}


def _differentiate(graph: Graph, centres: Tensor) -> Influence:
    with torch.enable_grad():
        at = centres.clone().requires_grad_()
        nodes = graph.nodes[1:]
        found = values(graph, at, kept=set(graph.nodes))
        output = found[graph.output].flatten(1)
        signs = torch.randint(0, 2, (DIRECTIONS, output.shape[1]), generator=torch.Generator().manual_seed(0))
        total = {node: torch.zeros((len(at), node.size), dtype=torch.float64) for node in nodes}
        for direction in (2 * signs - 1).to(output):
            time_limit.raise_if_expired()
            wanted = [found[node] for node in nodes]
            slopes = torch.autograd.grad(
                (output @ direction).sum(), wanted, retain_graph=True, allow_unused=True
            )
            for node, slope in zip(nodes, slopes, strict=True):
                if slope is not None:
                    total[node] = total[node].to(slope.device) + slope.flatten(1).square()
    return {node: torch.nan_to_num(square.sqrt(), 0.0, 0.0, 0.0) for node, square in total.items()}
