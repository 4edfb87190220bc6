"""The graph of two networks side by side, rewritten in terms of their difference.

Statement. Let layer by layer z = J h + c in one network and z' = J' h' + c' in the other, with h = relu(z) and
h' = relu(z') in the next. With D(v) = v - v', in real arithmetic

    D(z) = J D(h) + (J - J') h' + (c - c'),     D(h) = relu(z' + D(z)) - relu(z'),     y = y' + D(y),

and the graph of (z', D(z), h', D(h), ...) computes the same outputs. Where the weights are similar, D is small
and its bounds depend on the changed weights alone, while bounds of y and y' on their own are as wide as
those of one network.
J - J' and c - c' are kept exact: what float64 cannot represent of a difference is added as a map of its own.

The rewriting is an identity, so it is sound for every pair of networks. It is useful if they have the same
structure; a layer that has no counterpart is bounded as before.

References: Paulsen et al. 2020 (ReluDiff, NeuroDiff); Teuber et al. 2025 (VeryDiff).

Assumption: both networks read the same input, and the map of the remainder that float64 cannot represent is exact.
"""

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from holdfast.bounding.graph.affine import Affine, exact_nodes, make_copy, make_matrix, make_sum
from holdfast.bounding.graph.exact_rewriting import add_exactly
from holdfast.bounding.graph.graph import LARGEST_MATRIX, Graph, Node, Relaxed
from holdfast.bounding.relax import Relu
from holdfast.bounding.relax.relu_difference import ReluDifference


def subtract_branches(graph: Graph, first: int, second: int, size: int) -> Graph | None:
    """Return the same function, computed by the second network and the difference of the first from it.

    Args:
        first, second: numbers of the first outputs of both networks.
        size: the number of outputs of each.

    Returns:
        None if the networks differ in structure, or a map is too large to be stored.
    """
    numbers = torch.arange(size, device=graph.device)
    one, other = (_source(graph.output, numbers + begin) for begin in (first, second))
    if one is None or other is None or one is other:
        return None
    rewriting = _Rewriting(graph, one, other)
    try:
        rewriting.copy_all()
    except _MismatchError:
        return None
    made = rewriting.made
    made.exact = exact_nodes(made.nodes)
    return made


class _MismatchError(Exception):
    """A layer of one network has no counterpart in the other that can be subtracted."""


def _source(node: Node, elements: Tensor) -> Node | None:
    """The node whose elements, all in order, are copied to these elements; None if there is none."""
    while isinstance(node, Affine) and node.copies:
        begin, values, ends = 0, [], []
        for source in node.inputs:
            values.append(
                torch.arange(begin, begin + source.size, dtype=torch.float64, device=elements.device)
            )
            begin += source.size
            ends.append(begin)
        origin = node.forward(values)[elements].long()
        which = next(k for k, end in enumerate(ends) if int(origin[0]) < end)
        elements = origin - (ends[which] - node.inputs[which].size)
        node = node.inputs[which]
        if not bool(((elements >= 0) & (elements < node.size)).all()):
            return None
    whole = torch.arange(node.size, device=elements.device)
    return node if torch.equal(elements, whole) else None


@dataclass
class _Rewriting:
    """The new graph `made` while it is built. `one` and `other` are the outputs of the networks in `graph`."""

    graph: Graph
    one: Node
    other: Node
    made: Graph = field(init=False)
    known: dict[Node, Node] = field(default_factory=dict)  # the new node of an old one
    # The new node of the difference of two old ones; None: zero.
    changes: dict[tuple[Node, Node], Node | None] = field(default_factory=dict)
    partner: dict[Node, Node] = field(default_factory=dict)  # of nodes of the first network

    def __post_init__(self) -> None:
        graph = self.graph
        self.made = Graph(
            device=graph.device,
            folded=graph.folded,
            fused=graph.fused,
            recurrent=graph.recurrent,
            ending=graph.ending,
            makes_integers=graph.makes_integers,
        )

    def copy_all(self) -> None:
        """Copy the second network, add the differences, then copy what reads the first network."""
        first = _ancestors(self.one) - _ancestors(self.other)
        later = []
        reads_first = set(first)
        for node in self.graph.nodes:
            if node in first:
                continue
            if reads_first.intersection(node.inputs):
                reads_first.add(node)
                later.append(node)
            else:
                self.copy(node)
        self.change(self.one, self.other)
        for node in later:
            self.copy(node)

    def copy(self, node: Node) -> None:
        inputs = tuple(self.value(source) for source in node.inputs)
        self.known[node] = self.keep(replace(node, place=len(self.made.nodes), inputs=inputs))

    def keep(self, node: Node) -> Node:
        self.made.nodes.append(node)
        return node

    def value(self, node: Node) -> Node:
        """The new node of an old one; of the first network the sum of its partner and the difference."""
        if node not in self.known:
            if node not in self.partner:
                raise _MismatchError
            other = self.partner[node]
            change = self.changes[node, other]
            base = self.value(other)
            place = len(self.made.nodes)
            if change is None:  # A copy, because a node reads each of its inputs once.
                same = torch.arange(base.size, device=self.made.device)
                made: Node = make_copy(place, node.name, [base], node.shape, same)
            else:
                made = make_sum(place, node.name, [base, change])
            self.known[node] = self.keep(made)
        return self.known[node]

    def change(self, one: Node, other: Node) -> Node | None:
        """The difference of a node of the first network from one of the second; None if they are the same."""
        if one is other:
            return None
        if (one, other) not in self.changes:
            if one.size != other.size:
                raise _MismatchError
            if isinstance(one, Relaxed) and isinstance(other, Relaxed):
                found = self.change_of_relu(one, other)
            elif isinstance(one, Affine) and isinstance(other, Affine):
                found = self.change_of_map(one, other)
            else:
                raise _MismatchError
            self.changes[one, other] = found
            self.partner[one] = other
        return self.changes[one, other]

    def change_of_relu(self, one: Relaxed, other: Relaxed) -> Node | None:
        if not (isinstance(one.relaxation, Relu) and isinstance(other.relaxation, Relu)):
            raise _MismatchError
        change = self.change(one.inputs[0], other.inputs[0])
        if change is None:
            return None
        inputs = (self.value(other.inputs[0]), change)
        return self.keep(Relaxed(len(self.made.nodes), one.name, inputs, inputs[0].shape, ReluDifference()))

    def change_of_map(self, one: Affine, other: Affine) -> Node | None:
        """J D(h) + (J - J') h' + c - c'; where the inputs are no pairs, J h - J' h' of inputs that both read."""
        try:
            if len(one.inputs) != len(other.inputs):
                raise _MismatchError
            changes = [self.change(a, b) for a, b in zip(one.inputs, other.inputs, strict=True)]
        except _MismatchError:
            if not all(source in self.known for source in (*one.inputs, *other.inputs)):
                raise
            return self.subtract(one, other, [], one.inputs)
        terms = [(change, _matrix(one, k)) for k, change in enumerate(changes) if change is not None]
        return self.subtract(one, other, terms, other.inputs)

    def subtract(
        self, one: Affine, other: Affine, terms: list[tuple[Node, Tensor]], read: tuple[Node, ...]
    ) -> Node | None:
        """The map of the terms plus the map of the first network, applied to `read`, minus that of the second."""
        pairs: dict[Node, list[tuple[Tensor, int]]] = {}
        for node, sign, inputs in ((one, 1, read), (other, -1, other.inputs)):
            for k, source in enumerate(inputs):
                pairs.setdefault(self.value(source), []).append((_matrix(node, k), sign))
        rest: list[tuple[Node, Tensor]] = []
        for source, parts in pairs.items():
            total = torch.zeros_like(parts[0][0])
            for matrix, sign in parts:
                total, missed = add_exactly(total, sign * matrix)
                if bool(missed.any()):
                    rest.append((source, missed))
            if bool(total.any()):
                terms.append((source, total))
        shift, missed = add_exactly(_shift(one), -_shift(other))
        nodes = []
        if terms or bool(shift.any()):
            nodes.append(self.add_map(other, terms, shift))
        for source, matrix in rest:
            nodes.append(self.add_map(other, [(source, matrix)], torch.zeros_like(shift)))
        if bool(missed.any()):
            raise _MismatchError  # A shift alone is no map of an input.
        if not nodes:
            return None
        if len(nodes) == 1:
            return nodes[0]
        return self.keep(make_sum(len(self.made.nodes), other.name, nodes))

    def add_map(self, like: Affine, terms: list[tuple[Node, Tensor]], shift: Tensor) -> Node:
        if not terms:  # A constant difference: zero times an input.
            source = self.value(like.inputs[0])
            terms = [(source, torch.zeros(like.size, source.size, dtype=torch.float64, device=shift.device))]
        inputs, matrices = zip(*terms, strict=True)
        return self.keep(make_matrix(len(self.made.nodes), like.name, inputs, matrices, like.shape, shift))


def _ancestors(node: Node) -> set[Node]:
    """The node and all nodes that it reads, directly or not."""
    found, waiting = {node}, [node]
    while waiting:
        for source in waiting.pop().inputs:
            if source not in found:
                found.add(source)
                waiting.append(source)
    return found


def _matrix(node: Affine, k: int) -> Tensor:
    """J_k, (size, size of input k). Products with unit vectors are exact."""
    if node.size * node.inputs[k].size > LARGEST_MATRIX:
        raise _MismatchError
    device = node.shift.device if node.shift is not None else None
    unit = torch.eye(node.inputs[k].size, dtype=torch.float64, device=device)
    return node.part(k, unit).t()


def _shift(node: Affine) -> Tensor:
    return torch.zeros(node.size, dtype=torch.float64) if node.shift is None else node.shift
