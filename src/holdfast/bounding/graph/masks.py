"""Masked softmax and maximum. A position masked with minus infinity has weight zero, and no bound is computed
for it.

Statement. A masked value is v + c with constants c (`MaskedValue`), minus infinity at masked positions.
Log-sum-exp is computed pair by pair, as in `compose.along`, after sorting each row by c:

    log(exp(v_a + c_a) + exp(v_b + c_b)) = c_a + v_a + log(1 + exp(v_b - v_a + c_b - c_a)),   c_a >= c_b,

so only c_b - c_a <= 0 enters the graph, and the constants of visible positions, usually zero, are not added
to anything. Where c_b is minus infinity the pair equals v_a + c_a exactly.

Assumption: in every row some position is visible; rows that are masked everywhere are refused.

Reference: none; log-sum-exp pair by pair is this package's own.
"""

import torch
from torch import Tensor

from holdfast.bounding.graph.graph import Graph, Node
from holdfast.bounding.graph.node import MaskedValue
from holdfast.bounding.relax import Clip, Exp, Relaxation
from holdfast.errors import UnsupportedLayer

# Constants at or below this count as masks: exp(-1000) underflows to zero in every float type, and masks add
# lower constants (chosen by hand).
LOW = -1e3


def masks_positions(constant: Tensor | float) -> bool:
    """Whether a constant masks some positions. A finite constant that lowers all of them does not."""
    numbers = torch.as_tensor(constant)
    low = numbers <= LOW
    return bool(low.any()) and not (bool(low.all()) and bool(numbers.isfinite().all()))


def add_mask(graph: Graph, name: str, value: Node | MaskedValue, constant: Tensor) -> MaskedValue:
    """value + constant, stored separately."""
    node, by = (
        (value.node, value.by)
        if isinstance(value, MaskedValue)
        else (value, torch.zeros((), device=graph.device))
    )
    shape = torch.broadcast_shapes(node.shape, constant.shape)
    if node.shape != shape:
        node = graph.add_move(name, [node], lambda v: v.expand(shape))
    return MaskedValue(node, (by + constant.double()).expand(shape))


def chosen(
    graph: Graph, name: str, condition: Tensor, a: Node | MaskedValue | Tensor, b: Node | MaskedValue | Tensor
) -> MaskedValue:
    """a where the constant condition holds, otherwise b; constants may mask positions."""
    (node_a, by_a), (node_b, by_b) = (_parts(side, condition.device) for side in (a, b))
    nodes = list(dict.fromkeys(side for side in (node_a, node_b) if isinstance(side, Node)))
    shape = torch.broadcast_shapes(condition.shape, *(side.shape for side in (node_a, node_b)))

    def pick_elements(*values: Tensor, size: bool = False) -> Tensor:
        given = dict(zip(nodes, values, strict=True))
        one, other = (
            given[side] if isinstance(side, Node) else side.abs() if size else side
            for side in (node_a, node_b)
        )
        return torch.where(condition, one, other).expand(shape)

    node = graph.affine(name, nodes, pick_elements, lambda *m: pick_elements(*m, size=True))
    return MaskedValue(node, torch.where(condition, by_a, by_b).expand(shape))


def _parts(side: Node | MaskedValue | Tensor, device: torch.device) -> tuple[Node | Tensor, Tensor]:
    """The node or the unmasked numbers, and the constants of the mask."""
    if isinstance(side, MaskedValue):
        return side.node, side.by
    if isinstance(side, Node):
        return side, torch.zeros((), dtype=torch.float64, device=device)
    low = side <= LOW
    return torch.where(low, 0, side).double(), torch.where(low, side, 0).double()


def merge_axes(graph: Graph, name: str, value: MaskedValue, axes: list[int]) -> MaskedValue:
    """Merge these axes into one, the last: a row that is masked in one of them may be visible in another."""
    others = [axis for axis in range(len(value.shape)) if axis not in axes]

    def merge_last(v: Tensor) -> Tensor:
        return v.permute(*others, *axes).flatten(len(others))

    return MaskedValue(graph.add_move(name, [value.node], merge_last), merge_last(value.by))


def along(
    graph: Graph, name: str, value: MaskedValue, axis: int, relaxation: Relaxation
) -> tuple[Node, Tensor]:
    """The maximum (ReLU) or log-sum-exp (softplus) along an axis, kept at size one: a node, and the constant
    to add to it.
    """
    rows = value.by.movedim(axis, -1)
    by, order = rows.flatten(0, -2).sort(dim=1, descending=True, stable=True)
    if bool((by[:, 0] <= LOW).any()):
        raise UnsupportedLayer(
            f"layer {name}: in some row everything is masked (0 / 0 in a softmax), so nothing can be proved. "
            "Leave one place of every row unmasked; attacks still work."
        )
    last = int((by > -torch.inf).sum(1).max())
    by, order = by[:, :last], order[:, :last]
    node = graph.add_move(name, [value.node], lambda v: v.movedim(axis, -1).flatten(0, -2).gather(1, order))
    while by.shape[1] > 1:
        node, by = _pairwise_masked(graph, name, node, by, relaxation)
    shape = (*rows.shape[:-1], 1)
    return graph.add_move(name, [node], lambda v: v.reshape(shape).movedim(-1, axis)), by.reshape(
        shape
    ).movedim(-1, axis)


def _pairwise_masked(
    graph: Graph, name: str, node: Node, by: Tensor, relaxation: Relaxation
) -> tuple[Node, Tensor]:
    """(rows, n), sorted -> (rows, about n / 2): combine each position of the first half with one of the
    second half, unless that is masked.
    """
    half = by.shape[1] // 2
    rest = torch.cat([by[:, :half], by[:, 2 * half :]], 1)
    row, place = (by[:, half : 2 * half] > -torch.inf).nonzero(as_tuple=True)
    gap = by[row, place + half] - by[row, place]
    slot = torch.full((len(by), half), len(row), device=by.device)
    slot[row, place] = torch.arange(len(row), device=by.device)

    def join_halves(rise: Tensor, v: Tensor) -> Tensor:
        return torch.cat([v[:, :half] + torch.cat([rise, rise.new_zeros(1)])[slot], v[:, 2 * half :]], 1)

    ahead = graph.affine(
        name,
        [node],
        lambda v: v[row, place + half] - v[row, place] + gap,
        lambda m: m[row, place + half] + m[row, place] + gap.abs(),
    )
    return graph.affine(
        name, [graph.add_relaxed(name, [ahead], relaxation), node], join_halves, join_halves
    ), rest


def log_softmax(graph: Graph, name: str, value: MaskedValue, axis: int, log_sum: Relaxation) -> MaskedValue:
    total, top = along(graph, name, value, axis, log_sum)
    return MaskedValue(
        graph.affine(name, [value.node, total], lambda v, t: v - t, lambda v, t: v + t), value.by - top
    )


def softmax(graph: Graph, name: str, value: MaskedValue, axis: int, log_sum: Relaxation) -> Node:
    """exp(log softmax) at visible positions, zero elsewhere."""
    total, top = along(graph, name, value, axis, log_sum)
    seen = (value.by > -torch.inf).nonzero(as_tuple=True)
    its_row = tuple(
        torch.zeros_like(place) if k == axis % len(value.shape) else place for k, place in enumerate(seen)
    )
    below = (value.by - top)[seen]
    logarithm = graph.affine(
        name,
        [value.node, total],
        lambda v, t: v[seen] - t[its_row] + below,
        lambda v, t: v[seen] + t[its_row] + below.abs(),
    )
    weight = graph.add_relaxed(name, [graph.add_relaxed(name, [logarithm], Clip(high=0.0))], Exp())
    slot = torch.full(value.shape, len(below), device=below.device)
    slot[seen] = torch.arange(len(below), device=below.device)
    return graph.affine(name, [weight], *(lambda w: torch.cat([w, w.new_zeros(1)])[slot],) * 2)
