"""Graphs with fewer nodes and neurons that compute the same function, in real arithmetic, as before.

Statement. Two rewritings are identities:

    relu(-z) = relu(z) - z,                     A (B x + c) + d = (A B) x + (A c + d).

The first one merges opposite ReLUs, those of pre-activations z and -z. Networks that write min(a, b) as

    (relu(a + b) - relu(-a - b) - relu(a - b) - relu(b - a)) / 2

keep one ReLU of four, and a neuron that was split in two, z = relu(z) - relu(-z), vanishes. Linear bounds of relu(z)
and relu(-z) on their own lose the relation between both.

New coefficients are sums of products of the old ones. They are used only if float64 computes them without rounding:
if every a_ik is a multiple of g_i and every b_kj one of h_j, each partial sum of sum over k of a_ik b_kj is a multiple of
g_i h_j, so it is a float64 number as long as sum over k of |a_ik b_kj| <= 2^53 g_i h_j. With g_i and h_j powers of two
that is a comparison of float64 numbers.

Reference: the two-level lattice networks of Ferlez and Shoukry, "AReN" (2020), have the minima above.

Assumption: weights are finite float64 numbers; a product that the comparison does not show to be exact is not
formed.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.functional import conv2d

from holdfast.bounding.graph.affine import (
    Affine,
    MapFunction,
    exact_nodes,
    make_map,
    make_matrix,
    make_sum,
    matrices_of,
)
from holdfast.bounding.graph.graph import LARGEST_MATRIX, Graph, Node, Relaxed
from holdfast.bounding.graph.kernel import Kernel
from holdfast.bounding.relax import Relu

# Merge opposite ReLUs where they are at least this share of a layer (chosen by hand).
MIN_OPPOSITE_SHARE = 1 / 16
# Bits of a float64 number. Sums of absolute values are compared with half of 2^53, which covers their own rounding.
MANTISSA_BITS = 53
TRIED_ROWS = 4  # Rows of a product that are examined before the others.
SMALLEST_UNIT = 2.0**-900  # Products with smaller units might underflow.


def simplify_exactly(graph: Graph) -> Graph:
    """The same function with opposite ReLUs merged and successive matrices multiplied, where no number is rounded."""
    simpler = _compose_matrices(_merge_opposite_relus(_compose_matrices(graph)))
    simpler.exact = exact_nodes(simpler.nodes)
    return simpler


def multiply_exactly(a: Tensor, b: Tensor) -> Tensor | None:
    """a b, (m, k) times (k, n) in float64; None unless it is computed without rounding.

    The first rows of a are tried alone: most products are rounded there already.
    """
    if len(a) > TRIED_ROWS and multiply_exactly(a[:TRIED_ROWS], b) is None:
        return None
    unit = _unit(a, 1)[:, None] * _unit(b, 0)[None]
    size = a.abs() @ b.abs()
    fits = bool((size <= 2.0 ** (MANTISSA_BITS - 1) * unit).all()) and bool((unit >= SMALLEST_UNIT).all())
    return a @ b if fits else None


def add_exactly(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """(fl(a + b), the exact rest): Knuth's TwoSum."""
    total = a + b
    part = total - a
    return total, (a - (total - part)) + (b - part)


def _unit(values: Tensor, axis: int) -> Tensor:
    """The largest power of two of which all numbers along the axis are multiples; infinite where all are zero."""
    mantissa, exponent = torch.frexp(values)
    digits = (mantissa * 2.0**MANTISSA_BITS).to(torch.int64)
    lowest = (digits & -digits).double()
    found = torch.where(values == 0, torch.inf, torch.ldexp(lowest, exponent - MANTISSA_BITS))
    return torch.where(values.isfinite(), found, 0.0).amin(axis)


# ---- opposite ReLUs


def _merge_opposite_relus(graph: Graph) -> Graph:
    """Merge layer by layer, the last one first: a merged layer's pre-activations read the layers before it."""
    for place in reversed(range(len(graph.nodes) - 1)):
        node = graph.nodes[place]
        if not isinstance(node, Relaxed):
            continue
        readers = [other for other in graph.nodes if node in other.inputs]
        merged = _merge_relu_units(node, readers)
        if merged is None:
            continue
        made = _Rebuilt(graph)
        for other in graph.nodes:
            if other is node:
                merged.add_units(made)
            elif isinstance(other, Affine) and other in readers:
                made.known[other] = merged.add_reader(made, other)
            else:
                made.keep(other)
        graph = _without_unread(made.graph())
    return graph


class _Merged:
    """A layer of ReLUs whose units fall into groups of equal or opposite pre-activations.

    `units` is the number of rows of a matrix, or of channels of a convolution. The ReLU of unit i is relu(z) of its group
    if its sign is +1 and relu(z) - z if it is -1, so coefficients C of the units are C S_relu of relu(z) and C S_line of z.
    """

    def __init__(self, node: Relaxed, group: Tensor, sign: Tensor, first: Tensor) -> None:
        self.node, self.first = node, first  # first (groups,): a unit of sign +1 of each group
        count = len(first)
        one = torch.nn.functional.one_hot(group, count).double()
        self.to_relu, self.to_line = one, -one * (sign < 0)[:, None]
        self.relu: Node | None = None
        self.line: Node | None = None
        # (groups,) bool: whose relu(z), and whose z, some reader uses
        self.used_relu = torch.zeros(count, dtype=torch.bool, device=group.device)
        self.used_line = self.used_relu.clone()
        self.coefficients = dict[Node, tuple[Tensor, Tensor]]()

    def add_coefficients(self, reader: Affine) -> bool:
        """Compute the coefficients of a reader; False if they would be rounded."""
        weights = _unit_columns(reader)
        assert weights is not None
        both = [multiply_exactly(weights, to) for to in (self.to_relu, self.to_line)]
        if both[0] is None or both[1] is None:
            return False
        self.coefficients[reader] = both[0], both[1]
        self.used_relu |= both[0].any(0)
        self.used_line |= both[1].any(0)
        return True

    def add_units(self, made: "_Rebuilt") -> None:
        """Add the pre-activations that are used, and the ReLUs."""
        (before,) = self.node.inputs
        assert isinstance(before, Affine)
        if bool(self.used_relu.any()):
            z = made.add_selected(before, self.first[self.used_relu])
            self.relu = made.keep(self.node, (z,), z.shape)
        if bool(self.used_line.any()):
            self.line = made.add_selected(before, self.first[self.used_line])

    def add_reader(self, made: "_Rebuilt", reader: Affine) -> Node:
        """Add the reader, as a map of relu(z) and z."""
        relu, line = self.coefficients[reader]
        parts = [
            (node, weights[:, used])
            for node, weights, used in (
                (self.relu, relu, self.used_relu),
                (self.line, line, self.used_line),
            )
            if node is not None
        ]
        return made.add_map(reader, parts)


def _merge_relu_units(node: Relaxed, readers: Sequence[Node]) -> _Merged | None:
    """How the units of a ReLU layer merge; None if too few are opposite, or a reader is not known as a matrix."""
    before = node.inputs[0]
    if type(node.relaxation) is not Relu or not isinstance(before, Affine) or not readers:
        return None
    channels = before.kernel is not None
    for reader in readers:
        known = isinstance(reader, Affine) and reader.inputs == (node,)
        if not known or (reader.kernel is not None) != channels or _unit_columns(reader) is None:  # type: ignore[attr-defined, arg-type]
            return None
    rows = _unit_rows(before)
    if rows is None:
        return None
    place = (rows != 0).to(torch.uint8).argmax(1, keepdim=True)
    sign = torch.where(rows.gather(1, place) < 0, -1.0, 1.0)
    # Adding zero turns -0 into 0, so that equal rows have equal bytes.
    numbers, groups = (sign * rows + 0.0).cpu().numpy(), dict[bytes, int]()
    which = [groups.setdefault(row.tobytes(), len(groups)) for row in numbers]
    if len(rows) - len(groups) < MIN_OPPOSITE_SHARE * len(rows):
        return None
    group = torch.tensor(which, device=rows.device)
    # The representative is the first unit of its group, with sign +1.
    first = torch.tensor([which.index(k) for k in range(len(groups))], device=rows.device)
    found = _Merged(node, group, sign[:, 0] * sign[first, 0][group], first)
    return found if all(found.add_coefficients(reader) for reader in readers) else None  # type: ignore[arg-type]


def _unit_rows(node: Affine) -> Tensor | None:
    """(units, numbers): everything on which the pre-activation of a unit depends; None if it is not stored."""
    if node.kernel is not None:
        if node.kernel.weight.dim() != 4 or len(node.inputs) != 1:
            return None
        units = node.kernel.weight.shape[2]
        parts = [node.kernel.weight.permute(2, 0, 1, 3).reshape(units, -1)]
    else:
        matrices = matrices_of(node)
        if matrices is None:
            return None
        units, parts = node.size, list(matrices)
    if node.shift is not None:
        parts.append(node.shift.reshape(units, -1))
    return torch.cat(parts, dim=1)


def _unit_columns(node: Affine) -> Tensor | None:
    """(numbers, units): the coefficients of the units that a map with one input reads; None if they are not stored."""
    if node.kernel is not None:
        return node.kernel.weight.flatten(0, 2) if node.kernel.weight.dim() == 4 else None
    matrices = matrices_of(node)
    return None if matrices is None else matrices[0]


class _Rebuilt:
    """A graph under construction, and the new node for each old one."""

    def __init__(self, graph: Graph) -> None:
        self.old, self.nodes, self.known = graph, list[Node](), dict[Node, Node]()

    def keep(
        self, node: Node, inputs: tuple[Node, ...] | None = None, shape: tuple[int, ...] | None = None
    ) -> Node:
        """Add a copy of an old node, with the new inputs."""
        inputs = tuple(self.known[source] for source in node.inputs) if inputs is None else inputs
        made = replace(node, place=len(self.nodes), inputs=inputs, shape=shape or node.shape)
        self.known[node] = made
        return self.add(made)

    def add(self, node: Node) -> Node:
        self.nodes.append(node)
        return node

    def add_selected(self, node: Affine, units: Tensor) -> Node:
        """Add some units of an old map."""
        place, inputs = len(self.nodes), tuple(self.known[source] for source in node.inputs)
        if node.kernel is None:
            matrices = matrices_of(node)
            assert matrices is not None
            shift = None if node.shift is None else node.shift[units]
            some = [matrix[units] for matrix in matrices]
            return self.add(make_matrix(place, node.name, inputs, some, (1, len(units)), shift))
        kernel = replace(node.kernel, weight=node.kernel.weight[:, :, units])
        shift = None if node.shift is None else node.shift.reshape(node.shape)[:, units]
        return self.add(self._convolution(node.name, inputs[0], kernel, shift))

    def add_map(self, node: Affine, parts: Sequence[tuple[Node, Tensor]]) -> Node:
        """Add an old map with other inputs: `parts` holds each input and its coefficients (numbers, units)."""
        place = len(self.nodes)
        if not parts:  # all coefficients cancel: the map is constant
            nothing = torch.zeros(
                (node.size, self.nodes[0].size), dtype=torch.float64, device=self.old.device
            )
            return self.add(make_matrix(place, node.name, self.nodes[:1], [nothing], node.shape, node.shift))
        if node.kernel is None:
            inputs, matrices = [source for source, _ in parts], [weights for _, weights in parts]
            return self.add(make_matrix(place, node.name, inputs, matrices, node.shape, node.shift))
        shift = None if node.shift is None else node.shift.reshape(node.shape)
        maps = list[Node]()
        for source, weights in parts:
            weight = weights.reshape(*node.kernel.weight.shape[:3], -1)
            kernel = replace(node.kernel, weight=weight)
            maps.append(self.add(self._convolution(node.name, source, kernel, None if maps else shift)))
        return maps[0] if len(maps) == 1 else self.add(make_sum(len(self.nodes), node.name, maps))

    def _convolution(self, name: str, source: Node, kernel: Kernel, shift: Tensor | None) -> Affine:
        def by(weight: Tensor, offset: Tensor | None) -> Callable[[Tensor], Tensor]:
            def apply(v: Tensor) -> Tensor:
                found = conv2d(
                    v, weight, stride=kernel.stride, padding=kernel.padding, dilation=kernel.dilation
                )
                return found if offset is None else found + offset

            return apply

        weight = kernel.weight.permute(2, 3, 0, 1).contiguous()
        size = None if shift is None else shift.abs()
        function = MapFunction(by(weight, shift), by(weight.abs(), size), kernel)
        return make_map(len(self.nodes), name, [source], function, self.old.device, LARGEST_MATRIX)

    def graph(self) -> Graph:
        return replace(self.old, nodes=self.nodes, blends={})


# ---- successive matrices


def _compose_matrices(graph: Graph) -> Graph:
    """Multiply a matrix with the matrices that it reads, where the product has no more elements and is exact.

    Nodes that copy elements count as matrices.
    """
    made = _Rebuilt(graph)
    for node in graph.nodes:
        joined: Node | None = made.keep(node)
        while isinstance(joined, Affine):
            made.nodes[-1] = made.known[node] = joined
            joined = _compose_affine(joined)
    return _without_unread(made.graph())


def _compose_affine(node: Affine) -> Node | None:
    """The map with one of its inputs replaced by that input's own inputs; None if there is none of this kind."""
    matrices = matrices_of(node)
    if node.moves and (inner := matrices_of(node.inputs[0])) is not None:  # a copy of rows of a matrix
        (source,) = node.inputs
        assert isinstance(source, Affine)
        if any(_grows_too_large(node.size, part.shape[1], part) for part in inner):
            return None
        rows = node.forward([torch.arange(source.size, device=inner[0].device)])
        shift = None if source.shift is None else source.shift[rows]
        return make_matrix(node.place, node.name, source.inputs, [m[rows] for m in inner], node.shape, shift)
    for k, source in enumerate(node.inputs if matrices is not None else ()):
        assert matrices is not None
        if not isinstance(source, Affine):
            continue
        found = _through(matrices[k], node.shift, source)
        if found is None:
            continue
        new, shift = found
        others = [(s, m) for j, (s, m) in enumerate(zip(node.inputs, matrices, strict=True)) if j != k]
        joined = _join_inputs([*others, *new])
        if joined is not None:
            return make_matrix(node.place, node.name, *joined, node.shape, shift)
    return None


def _through(
    matrix: Tensor, shift: Tensor | None, source: Affine
) -> tuple[list[tuple[Node, Tensor]], Tensor | None] | None:
    """matrix source + shift as a map of the inputs of `source`; None if it would grow or be rounded."""
    if source.moves and source.exact_back:  # a selection without repetitions: the coefficients move
        if _grows_too_large(len(matrix), source.inputs[0].size, matrix):
            return None
        return [(source.inputs[0], source.back(matrix)[0])], shift
    inner = matrices_of(source)
    if inner is None or sum(part.shape[1] for part in inner) > source.size:
        return None
    if source.shift is not None:
        # A b + d as one product, so that its sum is exact, too.
        left, right = matrix, source.shift[:, None]
        if shift is not None:
            left = torch.cat([left, shift[:, None]], dim=1)
            right = torch.cat([right, torch.ones_like(right[:1])])
        total = multiply_exactly(left, right)
        if total is None:
            return None
        shift = total[:, 0]
    products = [multiply_exactly(matrix, part) for part in inner]
    new = [(s, part) for s, part in zip(source.inputs, products, strict=True) if part is not None]
    return (new, shift) if len(new) == len(products) else None


def _grows_too_large(rows: int, columns: int, before: Tensor) -> bool:
    """Whether a matrix of this size takes more memory than the matrix before, and than any matrix may take."""
    return rows * columns > max(before.numel(), LARGEST_MATRIX)


def _join_inputs(parts: Sequence[tuple[Node, Tensor]]) -> tuple[list[Node], list[Tensor]] | None:
    """The distinct inputs with the sums of their matrices; None if a sum would be rounded."""
    found = dict[Node, Tensor]()
    for source, matrix in parts:
        if source in found:
            total, missed = add_exactly(found[source], matrix)
            if bool(missed.any()):
                return None
            matrix = total
        found[source] = matrix
    return list(found), list(found.values())


def _without_unread(graph: Graph) -> Graph:
    """Drop the nodes on which the output does not depend."""
    read = {graph.entry, graph.output}
    for node in reversed(graph.nodes):
        if node in read:
            read.update(node.inputs)
    made = _Rebuilt(graph)
    for node in graph.nodes:
        if node in read:
            made.keep(node)
    return made.graph()
