"""Graphs for branch and bound, which bounds them thousands of times: as few nodes as possible, also for
models that take single inputs.
"""

import copy
from dataclasses import replace
from typing import Any
from weakref import WeakKeyDictionary

from torch import Tensor

from holdfast.bounding.graph import equivalence_check
from holdfast.bounding.graph.affine import Affine, exact_nodes
from holdfast.bounding.graph.exact_rewriting import simplify_exactly
from holdfast.bounding.graph.graph import Graph, Node, build
from holdfast.errors import UnsupportedLayer
from holdfast.network import Network
from holdfast.network.adapter import Adapter, FirstRow, MappedOverBatch, RowByRow, single_input_model
from holdfast.network.recurrent import copy_module
from holdfast.network.trace import BatchSizeBranch
from holdfast.region import Region


def prepare_graph(net: Network, region: Region) -> Graph:
    """The graph of the network for the points of a region, checked against the model; UnsupportedLayer names
    a layer without bounds.
    """
    one = single_input_network(net, region.centre)
    graph = simplify_exactly(fuse_affine(build(one, region.centre)))
    equivalence_check.check(net, graph, region, one)
    return graph


_singles: "WeakKeyDictionary[Network, Network]" = WeakKeyDictionary()


def single_input_network(net: Network, x: Tensor) -> Network:
    """The network to trace, for inputs like x.

    Graphs describe one input. A model that takes single inputs is mapped over a batch, and a model that takes
    lengths may depend on their values. Neither can be traced except for one input, so this returns a network
    that passes it exactly one.
    """
    if net in _singles:
        return _singles[net]
    adapter, alone = net.module, single_input_model(net.module)
    if alone is None and not _only_alone(net, x):
        return net
    one = copy.copy(net)
    one._programs, one._twins, one._recorded = {}, {}, {}
    if alone is None:
        one.module = Adapter(FirstRow(MappedOverBatch(copy_module(adapter))))
    else:
        one.module = copy_module(adapter)
        inner: Any = one.module.model
        one.module.model = FirstRow(inner.model if isinstance(inner, RowByRow) else inner)
    _singles[net] = one
    return one


def _only_alone(net: Network, x: Tensor) -> bool:
    """Whether the network takes lengths and cannot be traced for batches of any size, for another reason than
    depending on that size.
    """
    if not isinstance(net.module, Adapter) or not net.module.takes_lengths:
        return False
    try:
        net.program(x)
    except UnsupportedLayer as error:
        return not isinstance(error, BatchSizeBranch)
    return False


def fuse_affine(graph: Graph) -> Graph:
    """The same function with fewer nodes: the product and the sum that an exporter writes become x W + b.
    This does not round, because a shift is only merged into a map without one.
    """
    readers: dict[Node, int] = {}
    for node in graph.nodes:
        for source in node.inputs:
            readers[source] = readers.get(source, 0) + 1
    shorter, known = (
        Graph(device=graph.device, folded=graph.folded, recurrent=graph.recurrent, ending=graph.ending),
        dict[Node, Node](),
    )
    for node in graph.nodes:
        inputs = tuple(known[source] for source in node.inputs)
        made: Node = replace(node, place=len(shorter.nodes), inputs=inputs)
        last = inputs[0] if inputs else None
        if (
            isinstance(made, Affine)
            and made.factor == 1
            and last is shorter.nodes[-1]
            and readers[node.inputs[0]] == 1
        ):
            one = made.after(last) if isinstance(last, Affine) else None
            if one is not None:
                shorter.nodes.pop()
                made = one
        shorter.nodes.append(made)
        known[node] = made
    shorter.exact = exact_nodes(shorter.nodes)
    return shorter
