"""Sums of products of copied elements, such as the scores and the values of attention: y_s = sum over p in s of a_p b_p.

Notation. a_p = u[i_p] and b_p = v[j_p] are copies of elements of two nodes u and v. Every product p belongs to one sum
s(p). CROWN bounds products by linear functions with means m_p a_p + m'_p b_p + c_p, and half differences h_p, h'_p and d_p.

Statement. The backward pass of coefficients L of y through sums, products and copies, one node after the other, gives u
the coefficients

    (L M + |L| H)[i],    M[s, i] = sum over p with s(p) = s, i_p = i of m_p,    and H so with h_p,

v the same with m', h', and the constant L c + |L| d, with c_p and d_p summed over s. Here the matrices M, H, c and d are
summed first, once for all rows of coefficients. The result is a sum of the same products in another order.

Rounding. A sum of at most n products in any order differs by at most gamma(n) times the sum of their sizes (docs/rounding.md).
`BackwardWalk` charges the products' node with the size of all terms of the linear bounds, slopes times largest values
included, and that of the copies with the same size, since |m| + |h| is the larger slope.

Why. With 17 tokens of 3 heads of 16 numbers there are 13,872 products of 816 elements, and about ten operations on each for
every row; the blocks of M and H have 27,744 numbers in all, and multiply all rows at once.

Assumption: every product is summed once, with the factor 1, and nothing else reads it; both copies are read by it alone.

Reference: none; sums are reordered only.
"""

from dataclasses import dataclass
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from holdfast.bounding.graph.affine import Affine
from holdfast.bounding.graph.graph import Graph, InputNode, Node, Relaxed
from holdfast.bounding.graph.matrix_blocks import BlockMatrix, EqualBlocks, take_columns
from holdfast.bounding.relax import Product

# Smaller sums take as long node by node, and larger patterns take too much memory to be examined (chosen by hand).
MIN_PRODUCTS, MAX_PATTERN_ELEMENTS = 2**11, 2**24


@dataclass(frozen=True, eq=False)
class SlopeBlocks:
    """Where the slopes of products stand in the blocks of M and H of one factor."""

    source: Node
    blocks: EqualBlocks  # of ones where some product is
    place: Tensor  # (products,): the place of each product among the numbers of all blocks

    def fill(self, slopes: Tensor) -> Tensor:
        """(batch, products) -> (batch, blocks, height, width): the sums of slopes."""
        whole = slopes.new_zeros((len(slopes), self.blocks.blocks.numel()))
        return whole.index_add(1, self.place, slopes).reshape(len(slopes), *self.blocks.blocks.shape)

    def back(self, rows: Tensor, filled: Tensor) -> Tensor:
        """rows (batch, rows, size of y) times the matrix: (batch, rows, size of the source)."""
        count, height, width = self.blocks.blocks.shape
        some = take_columns(rows.flatten(0, 1), self.blocks.rows).reshape(*rows.shape[:2], count, height)
        made = (some.transpose(1, 2) @ filled).transpose(1, 2).reshape(*rows.shape[:2], count * width)
        columns = self.blocks.columns
        if columns == slice(0, self.source.size):
            return made
        whole = rows.new_zeros((*rows.shape[:2], self.source.size))
        columns = torch.arange(self.source.size, device=rows.device)[columns]
        return whole.index_copy(2, columns, made)


@dataclass(frozen=True, eq=False)
class SumsOfProducts:
    """The nodes of y_s = sum of a_p b_p in a graph."""

    sums: Affine
    products: Relaxed
    copies: tuple[Node, ...]  # a and b
    factors: tuple[SlopeBlocks, ...]
    owner: Tensor  # (products,): s(p)

    @property
    def nodes(self) -> tuple[Node, ...]:
        return self.products, *self.copies, *(factor.source for factor in self.factors)

    def add(self, values: Tensor) -> Tensor:
        """Sum (batch, products, ...) over the products of each sum."""
        whole = values.new_zeros((len(values), self.sums.size, *values.shape[2:]))
        return whole.index_add(1, self.owner, values)


@dataclass(frozen=True)
class SummedBounds:
    """The linear bounds of sums of products over the boxes, as the backward pass uses them."""

    middle: list[Tensor]  # M of each factor, (rows, blocks, height, width)
    half: list[Tensor]  # H of each factor
    offset: Tensor  # (rows, sums): c
    of_size: Tensor  # (rows, sums, 2): d, and the sums of the sizes of all terms

    @staticmethod
    def of(
        form: SumsOfProducts, middle: list[Tensor], half: list[Tensor], offset: Tensor, of_size: Tensor
    ) -> "SummedBounds":
        """The sums of `node_bounds.MeanAndHalfDifference` of the products."""
        means, differences = (
            [factor.fill(side[:, 0].flatten(1)) for factor, side in zip(form.factors, sides, strict=True)]
            for sides in (middle, half)
        )
        return SummedBounds(means, differences, form.add(offset.flatten(1)), form.add(of_size))


_found: "WeakKeyDictionary[Graph, dict[Node, SumsOfProducts]]" = WeakKeyDictionary()


def find_sums_of_products(graph: Graph) -> dict[Node, SumsOfProducts]:
    """The sums of products of a graph, by their last node."""
    if graph not in _found:
        readers: dict[Node, list[Node]] = {}
        for node in graph.nodes:
            for source in node.inputs:
                readers.setdefault(source, []).append(node)
        made = [
            _sums_of(node, readers, graph.device)
            for node in graph.nodes
            if isinstance(node, Relaxed) and isinstance(node.relaxation, Product) and node is not graph.output
        ]
        _found[graph] = {form.sums: form for form in made if form is not None}
    return _found[graph]


def _sums_of(
    products: Relaxed, readers: dict[Node, list[Node]], device: torch.device
) -> SumsOfProducts | None:
    """The sums that read these products, if they are as the assumption says."""
    if products.size < MIN_PRODUCTS or len(readers.get(products, [])) != 1:
        return None
    (sums,) = readers[products]
    owner = _find_owner(sums, device)
    if owner is None or not isinstance(sums, Affine):
        return None
    factors = list[SlopeBlocks]()
    for copy in products.inputs:
        if not (isinstance(copy, Affine) and copy.moves and readers[copy] == [products]):
            return None
        (source,) = copy.inputs
        if isinstance(source, InputNode) or sums.size * source.size > MAX_PATTERN_ELEMENTS:
            return None
        origin = copy.forward([torch.arange(source.size, device=owner.device)])
        pattern = torch.zeros((sums.size, source.size), dtype=torch.float64, device=owner.device)
        pattern[owner, origin] = 1
        found = BlockMatrix.of(pattern)
        if found is None or len(found.groups) != 1:
            return None
        (blocks,) = found.groups
        _, height, width = blocks.blocks.shape
        count = len(torch.arange(sums.size)[blocks.rows]) // height
        whole = EqualBlocks(blocks.rows, blocks.columns, blocks.blocks.expand(count, height, width))
        factors.append(SlopeBlocks(source, whole, _places(whole, sums.size, source.size, owner, origin)))
    return SumsOfProducts(sums, products, products.inputs, tuple(factors), owner)


def _places(blocks: EqualBlocks, height: int, width: int, owner: Tensor, origin: Tensor) -> Tensor:
    """Where the elements (owner, origin) of a matrix stand among the numbers of its blocks."""
    _, high, wide = blocks.blocks.shape
    ranks = list[Tensor]()
    for size, where in ((height, blocks.rows), (width, blocks.columns)):
        numbers = torch.arange(size, device=owner.device)[where]
        rank = torch.zeros(size, dtype=torch.long, device=owner.device)
        rank[numbers] = torch.arange(len(numbers), device=owner.device)
        ranks.append(rank)
    row, column = ranks[0][owner], ranks[1][origin]
    assert bool((row // high == column // wide).all())
    return row * wide + column % wide


def _find_owner(sums: Node, device: torch.device) -> Tensor | None:
    """(size of the input,): the element of the sums that reads each input element, once and with the factor 1; None if
    the node is another map.

    Let w be the column of an input element. If its numbers and their absolute values add up to 1, it is a probability
    distribution of the sums' numbers; if the mean of their squares is the square of their mean, it is a single number.
    """
    if not isinstance(sums, Affine) or len(sums.inputs) != 1 or sums.shift is not None:
        return None
    numbers = torch.arange(1, sums.size + 1, dtype=torch.float64, device=device)
    once, mean, square = sums.back(torch.stack([torch.ones_like(numbers), numbers, numbers.square()]))[0]
    sizes = sums.back(torch.ones_like(numbers)[None], absolute=True)[0][0]
    alone = (once == 1) & (sizes == 1) & (square == mean.square())
    return mean.long() - 1 if bool(alone.all()) else None
