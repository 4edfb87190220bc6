"""Reductions along axes: maxima, max pooling, log-sum-exp and softmax, norms, variances, products."""

import functools
import itertools
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from holdfast.bounding.graph import compose, masks
from holdfast.bounding.graph.graph import Graph, Node, OperatorCall, handles, leaves
from holdfast.bounding.graph.node import MaskedValue, Unbounded
from holdfast.bounding.relax import Abs, Clip, Power, Relaxation, Relu, Sqrt
from holdfast.errors import UnsupportedLayer

aten = torch.ops.aten


# The number of spatial axes of each pooling operator.
POOLS: dict[Any, int] = {
    aten.max_pool1d.default: 1, aten.max_pool2d.default: 2, aten.max_pool3d.default: 3,
    aten.max_pool1d_with_indices.default: 1, aten.max_pool2d_with_indices.default: 2,
    aten.max_pool3d_with_indices.default: 3,
}  # fmt: skip
ADAPTIVE_POOLS: dict[Any, int] = {
    aten.adaptive_max_pool1d.default: 1,
    aten.adaptive_max_pool2d.default: 2,
    aten.adaptive_max_pool3d.default: 3,
}
WHICH = Unbounded("which element is the largest or smallest depends on the input")


@handles(*POOLS)
def max_pool(graph: Graph, call: OperatorCall) -> Node | tuple[Node, Unbounded]:
    """The elementwise maximum over the positions in a window: one node per position, holding that element of
    every window.
    """
    given: list[Any] = [*call.args, *[(), 0, 1, False][len(call.args) - 2 :]]
    node, kernel, stride, padding, dilation, _ = given
    if call.kwargs:
        raise UnsupportedLayer(
            f"{call.name}: max pooling with {', '.join(call.kwargs)} has no bound here; attacks still work."
        )
    axes = POOLS[call.target]
    sizes, gaps, begins = (_each_axis(value, axes) for value in (kernel, dilation, padding))
    steps = _each_axis(stride, axes) if leaves(stride) else sizes
    answer = call.target(torch.zeros(node.shape), *call.args[1:])
    counts = leaves(answer)[0].shape[-axes:]
    seen = [
        _seen(call.name, length, count, graph.device, *window)
        for length, count, *window in zip(node.shape[-axes:], counts, sizes, steps, gaps, begins, strict=True)
    ]
    largest = _largest(graph, call.name, node, seen)
    return (largest, WHICH) if isinstance(answer, tuple) else largest


@handles(*ADAPTIVE_POOLS)
def adaptive_max_pool(graph: Graph, call: OperatorCall) -> tuple[Node, Unbounded]:
    """Windows from floor(i length / count) to ceil((i + 1) length / count); shorter windows repeat their
    first element.
    """
    node, axes = call.args[0], ADAPTIVE_POOLS[call.target]
    seen = []
    for length, wanted in zip(node.shape[-axes:], leaves(call.args[1]), strict=True):
        count = length if wanted is None else wanted
        begin = torch.arange(count, device=graph.device) * length // count
        end = -(-(torch.arange(count, device=graph.device) + 1) * length // count)
        at = begin[:, None] + torch.arange(int((end - begin).max()), device=graph.device)
        seen.append(torch.where(at < end[:, None], at, begin[:, None]))
    return _largest(graph, call.name, node, seen), WHICH


def _largest(graph: Graph, name: str, node: Node, seen: list[Tensor]) -> Node:
    """The maximum over windows. seen: for each of the last axes (windows, positions), the indices that a
    window reads.
    """

    def corner(places: tuple[int, ...]) -> Callable[[Tensor], Tensor]:
        def cut(v: Tensor) -> Tensor:
            for axis, (place, which) in enumerate(zip(places, seen, strict=True), -len(seen)):
                v = v.index_select(axis, which[:, place])
            return v

        return cut

    windows = itertools.product(*(range(which.shape[1]) for which in seen))
    return compose.largest(graph, name, [graph.add_move(name, [node], corner(places)) for places in windows])


def _seen(
    name: str, length: int, count: int, device: torch.device, size: int, step: int, gap: int, begin: int
) -> Tensor:
    """(windows, positions) along one axis: the indices that each window reads. Padding, which is below every
    value, is replaced by the window's first real element.
    """
    at = torch.arange(count, device=device)[:, None] * step - begin + torch.arange(size, device=device) * gap
    real = (at >= 0) & (at < length)
    if not bool(real.any(1).all()):
        raise UnsupportedLayer(
            f"{name}: a window of the max pooling contains only padding, which has no bound; "
            "attacks still work."
        )
    first = at.gather(1, real.int().argmax(1, keepdim=True))
    return torch.where(real, at, first)


def _each_axis(value: Any, axes: int) -> list[int]:
    found = [int(leaf) for leaf in leaves(value)]
    return found * axes if len(found) == 1 else found


@handles(aten.amax.default, masked=True)
def amax(graph: Graph, call: OperatorCall) -> Node:
    return _reduce_axes(graph, call, Relu())


@handles(aten.amin.default)
def amin(graph: Graph, call: OperatorCall) -> Node:
    turned = (compose.negate(graph, call.name, call.args[0]), *call.args[1:])
    return compose.negate(
        graph,
        call.name,
        _reduce_axes(graph, OperatorCall(call.name, call.target, turned, call.kwargs), Relu()),
    )


@handles(aten.max.dim, aten.min.dim, aten.max.default, aten.min.default, masked=True)
def extreme(graph: Graph, call: OperatorCall) -> tuple[Node, Unbounded]:
    """The extreme value along one axis. All axes together include the batch axis, which is refused."""
    largest = call.target in (aten.max.dim, aten.max.default)
    value = call.args[0] if largest else graph.resolve_mask(call.name, call.args[0])
    dims = [call.args[1]] if len(call.args) > 1 else []
    found = (amax if largest else amin)(
        graph, OperatorCall(call.name, call.target, (value, dims, *call.args[2:]), call.kwargs)
    )
    return found, WHICH


@handles(aten.linalg_vector_norm.default)
def vector_norm(graph: Graph, call: OperatorCall) -> Node:
    """The norm of order 2 (root of the sum of squares), 1 (sum of absolute values) or infinity (largest
    absolute value).
    """
    node, order, dims, keep = (*call.args, *(2, None, False)[len(call.args) - 1 :])[:4]
    if order == math.inf:
        return _reduce_axes(
            graph,
            OperatorCall(
                call.name, call.target, (graph.add_relaxed(call.name, [node], Abs()), dims or [], keep), {}
            ),
            Relu(),
        )
    if order not in (1, 2):
        raise UnsupportedLayer(
            f"{call.name}: a norm of order {order:g} has no bound here, only those of order 1, 2 and inf; "
            "attacks still work."
        )
    total = _sum_axes(
        graph, call, graph.add_relaxed(call.name, [node], Abs() if order == 1 else Power(2)), dims, keep
    )
    return total if order == 1 else _root(graph, call.name, total)


VARIANCES = (aten.var.dim, aten.var.correction, aten.std.dim, aten.std.correction)


@handles(*VARIANCES)
def variance(graph: Graph, call: OperatorCall) -> Node:
    """The sum of squared deviations from the mean, divided by the count minus the correction (default: one),
    or its root.
    """
    node, dims, unbiased, keep = (
        *call.args,
        *(None, True, call.kwargs.get("keepdim", False))[len(call.args) - 1 :],
    )[:4]
    correction = (
        call.kwargs.get("correction", 1)
        if call.target in (aten.var.correction, aten.std.correction)
        else int(unbiased)
    )
    axes = _axes(call, node, dims)
    count = math.prod(node.shape[axis] for axis in axes)
    square = graph.add_relaxed(call.name, [compose.subtract_mean(graph, call.name, node, axes)], Power(2))
    share = 1 / (count - (1 if correction is None else correction))
    spread = compose.times(graph, call.name, _sum_axes(graph, call, square, axes, keep), share)
    return spread if call.target in (aten.var.dim, aten.var.correction) else _root(graph, call.name, spread)


def _root(graph: Graph, name: str, node: Node) -> Node:
    """The square root of a value that is nonnegative in real arithmetic, whatever rounding does to its
    bounds.
    """
    return graph.add_relaxed(name, [graph.add_relaxed(name, [node], Clip(low=0.0))], Sqrt())


def _sum_axes(graph: Graph, call: OperatorCall, node: Node, dims: Any, keep: bool) -> Node:
    axes = _axes(call, node, dims)
    return graph.affine(call.name, [node], *(lambda v: v.sum(axes, keepdim=keep),) * 2)


def _axes(call: OperatorCall, node: Node | MaskedValue, dims: Any) -> list[int]:
    """The given axes, or all; the batch axis is refused."""
    axes = [d % len(node.shape) for d in leaves(dims) if d is not None] or list(range(len(node.shape)))
    if 0 in axes:
        raise UnsupportedLayer(
            f"{call.name}: {call.target} goes over the inputs of a batch, so nothing about one of them "
            "can be proved."
        )
    return axes


@handles(aten.prod.dim_int)
def product(graph: Graph, call: OperatorCall) -> Node:
    """The product along an axis, by repeatedly multiplying its two halves."""
    node, axis = call.args[0], call.args[1] % len(call.args[0].shape)
    _axes(call, node, [axis])
    while (size := node.shape[axis]) > 1:
        half = size // 2
        parts = [
            graph.add_move(call.name, [node], lambda v, a=a, n=n: v.narrow(axis, a, n))
            for a, n in ((0, half), (half, half), (2 * half, size % 2))
        ]
        first = compose.product(graph, call.name, *parts[:2])
        node = (
            graph.add_move(call.name, [first, parts[2]], lambda *v: torch.cat(v, axis)) if size % 2 else first
        )
    keep = len(call.args) > 2 and call.args[2]
    return node if keep else graph.add_move(call.name, [node], lambda v: v.squeeze(axis))


@handles(aten.logsumexp.default, masked=True)
def logsumexp(graph: Graph, call: OperatorCall) -> Node:
    return _reduce_axes(graph, call, compose.LOG_SUM)


def _reduce_axes(graph: Graph, call: OperatorCall, relaxation: Relaxation) -> Node:
    node: Node | MaskedValue = call.args[0]
    dims = call.args[1] if len(call.args) > 1 else call.kwargs.get("dim", [])
    keep = bool(call.args[2]) if len(call.args) > 2 else bool(call.kwargs.get("keepdim", False))
    axes = _axes(call, node, dims)
    if isinstance(node, MaskedValue):
        shape = [1 if axis in axes else size for axis, size in enumerate(node.shape)]
        found = compose.along(
            graph, call.name, masks.merge_axes(graph, call.name, node, axes), -1, relaxation
        )
        whole = graph.add_move(call.name, [found], lambda v: v.reshape(shape))
    else:
        whole = functools.reduce(
            lambda part, axis: compose.along(graph, call.name, part, axis, relaxation), axes, node
        )
    return whole if keep else graph.add_move(call.name, [whole], lambda v: v.squeeze(axes))


@handles(aten.softmax.int, aten._softmax.default, masked=True)
def softmax(graph: Graph, call: OperatorCall) -> Node:
    return compose.softmax(graph, call.name, call.args[0], call.args[1])


@handles(aten.log_softmax.int, aten._log_softmax.default, masked=True)
def log_softmax(graph: Graph, call: OperatorCall) -> Node | MaskedValue:
    return compose.log_softmax(graph, call.name, call.args[0], call.args[1])
