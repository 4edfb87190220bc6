"""The graph as branch and bound wants it, who bounds it thousands of times: as few nodes as possible, also of models for single inputs."""

import copy
from dataclasses import replace
from weakref import WeakKeyDictionary

from torch import Tensor, nn

from holdfast.bounding.graph import agreement
from holdfast.bounding.graph.affine import Affine, exact_nodes
from holdfast.bounding.graph.graph import Graph, Node, build
from holdfast.network import Network
from holdfast.network.adapter import Adapter, InTurn, OneByOne
from holdfast.region import Region


def prepared(net: Network, region: Region) -> Graph:
    """The graph of the network for the points of a region, compared with it there; UnsupportedLayer names what cannot be bounded."""
    one = for_one(net)
    graph = fused(build(one, region.centre))
    agreement.check(net, graph, region, one)
    return graph


_singles: "WeakKeyDictionary[Network, Network]" = WeakKeyDictionary()


def for_one(net: Network) -> Network:
    """A model that takes single inputs is mapped over a batch, which no graph can show. Graphs are about one input, so it is given one."""
    adapter = net.module
    inner = adapter.model if isinstance(adapter, Adapter) else None
    single = inner.model if isinstance(inner, InTurn) else inner
    if not isinstance(adapter, Adapter) or not isinstance(single, OneByOne):
        return net
    if net in _singles:
        return _singles[net]
    _singles[net] = one = copy.copy(net)
    one.module, one._programs, one._twins = copy.deepcopy(adapter), {}, {}
    one.module.model = _First(single)
    return one


class _First(nn.Module):
    """The first row of a batch by itself."""

    def __init__(self, model: OneByOne) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        return self.model.single(x[0]).unsqueeze(0)


def fused(graph: Graph) -> Graph:
    """The same values with fewer nodes: what an exporter writes as a product and a sum is x W + b. Nothing is rounded by that, since a
    shift is only joined to a map that has none of its own."""
    readers: dict[Node, int] = {}
    for node in graph.nodes:
        for source in node.inputs:
            readers[source] = readers.get(source, 0) + 1
    shorter, known = Graph(device=graph.device, folded=graph.folded, ending=graph.ending), dict[Node, Node]()
    for node in graph.nodes:
        inputs = tuple(known[source] for source in node.inputs)
        made: Node = replace(node, place=len(shorter.nodes), inputs=inputs)
        last = inputs[0] if inputs else None
        if isinstance(made, Affine) and made.factor == 1 and last is shorter.nodes[-1] and readers[node.inputs[0]] == 1:
            one = made.after(last) if isinstance(last, Affine) else None
            if one is not None:
                shorter.nodes.pop()
                made = one
        shorter.nodes.append(made)
        known[node] = made
    shorter.exact = exact_nodes(shorter.nodes)
    return shorter
