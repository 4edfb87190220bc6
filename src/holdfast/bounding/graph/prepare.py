"""The graph as branch and bound wants it, who bounds it thousands of times: as few nodes as possible, also of models for single inputs."""

import copy
from dataclasses import replace
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from holdfast.bounding.graph import agreement
from holdfast.bounding.graph.graph import Affine, Graph, Node, Transform, build, exact_nodes
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
        last = inputs[0] if inputs else None
        made: Node
        if _shifts(node) and _maps(last) and readers[node.inputs[0]] == 1 and last is shorter.nodes[-1]:
            shorter.nodes.pop()
            made = _joined(last, node)
        else:
            made = replace(node, place=len(shorter.nodes), inputs=inputs)
        shorter.nodes.append(made)
        known[node] = made
    shorter.exact = exact_nodes(shorter.nodes)
    return shorter


def _shifts(node: Node) -> bool:
    """x + b, nothing else."""
    if not isinstance(node, Affine) or node.matrices is None or len(node.matrices) != 1:
        return False
    (matrix,) = node.matrices
    return matrix.shape[0] == matrix.shape[1] and torch.equal(matrix, torch.eye(len(matrix), dtype=matrix.dtype, device=matrix.device))


def _maps(node: Node | None) -> bool:
    return isinstance(node, Affine) and node.matrices is not None and node.joins is None and not bool(node.offset_size.any())


def _joined(inner: Node, outer: Node) -> Affine:
    assert isinstance(inner, Affine)
    assert isinstance(outer, Affine)
    return replace(
        inner,
        name=outer.name,
        shape=outer.shape,
        function=_after(outer.function, inner.function),
        magnitude=_after(outer.magnitude, inner.magnitude),
        offset=outer.offset,
        offset_size=outer.offset_size,
    )


def _after(second: Transform, first: Transform) -> Transform:
    def both(*values: Tensor) -> Tensor:
        made: Tensor = second(first(*values))
        return made

    return both
