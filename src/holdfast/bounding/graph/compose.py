"""Tensor functions as affine maps and relaxed scalar functions: products, maxima, softmax, norms, attention.

Statement. Each decomposition is an identity in real arithmetic, so bounds of its parts bound the function:

    max(a, b) = b + relu(a - b)
    log(exp(a) + exp(b)) = b + softplus(a - b)
    softmax(v) = exp(v - logsumexp(v))
    a / b = a (1 / b)
    (v - mean) / sqrt(mean of (v - mean)^2 + eps) = centred * rsqrt(mean of centred^2 + eps)

Reference: Shi et al. 2020 (Robustness Verification for Transformers) for softmax, layer norm and products in
attention; the pairwise log-sum-exp is this package's own.

Assumption: divisors and arguments of roots stay in the domains of their relaxations; where they do not, these
have no bound (`relax.convex`).
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from holdfast.bounding.graph import masks
from holdfast.bounding.graph.graph import Affine, Graph, Node, Relaxed
from holdfast.bounding.graph.node import MaskedValue
from holdfast.bounding.relax import (
    Clip,
    Exp,
    Power,
    Product,
    Reciprocal,
    Relaxation,
    Relu,
    Rsqrt,
    Sigmoid,
    SigmoidTanh,
    SigmoidTimes,
    Silu,
    Softplus,
    Tanh,
)

# softplus in log(exp(a) + exp(b)) = b + softplus(a - b), without torch's threshold.
LOG_SUM = Softplus(threshold=math.inf, stable=True)


def product(graph: Graph, name: str, v: Node, z: Node) -> Node:
    """v z. Squares, gates (sigmoid, or one minus it) and self-gated values are relaxed as one function, which
    is tighter.
    """
    if v is z:
        return graph.add_relaxed(name, [v], Power(2))
    if v.shape != z.shape:
        shape = torch.broadcast_shapes(v.shape, z.shape)
        v, z = (
            n if n.shape == shape else graph.add_move(name, [n], lambda t: t.expand(shape)) for n in (v, z)
        )
    for gate, passed in ((v, z), (z, v)):
        opening = _gate(graph, name, gate)
        if opening is None:
            continue
        if opening is passed:
            return graph.add_relaxed(name, [passed], Silu())
        if isinstance(passed, Relaxed) and isinstance(passed.relaxation, Tanh):
            return graph.add_relaxed(name, [opening, passed.inputs[0]], SigmoidTanh())
        return graph.add_relaxed(name, [opening, passed], SigmoidTimes())
    return graph.add_relaxed(name, [v, z], Product())


def _gate(graph: Graph, name: str, node: Node) -> Node | None:
    """For a node sigmoid(u), the node u; for 1 - sigmoid(u) = sigmoid(-u), a node -u; otherwise None."""
    if isinstance(node, Relaxed) and isinstance(node.relaxation, Sigmoid):
        return node.inputs[0]
    if (
        not isinstance(node, Affine)
        or node.shift is None
        or len(node.inputs) != 1
        or not bool((node.shift == 1).all())
    ):
        return None
    (inner,) = node.inputs
    if (
        not isinstance(inner, Relaxed)
        or not isinstance(inner.relaxation, Sigmoid)
        or inner.shape != node.shape
    ):
        return None
    return graph.affine(name, [inner.inputs[0]], lambda v: -v, lambda m: m) if node.factor == -1 else None


def negate(graph: Graph, name: str, node: Node) -> Node:
    """-v."""
    return graph.affine(name, [node], lambda v: -v, lambda m: m)


def times(graph: Graph, name: str, node: Node, factor: float) -> Node:
    """v times a constant."""
    return graph.affine(name, [node], lambda v: v * factor, lambda m: m * abs(factor))


def difference(graph: Graph, name: str, a: Any, b: Any, sign: int = 1) -> Node:
    """sign (a - b), where at least one is a node."""
    if not isinstance(b, Node):
        return graph.affine(name, [a], lambda v: sign * (v - b), lambda m: m + abs(b))
    if not isinstance(a, Node):
        return graph.affine(name, [b], lambda v: sign * (a - v), lambda m: m + abs(a))
    return graph.affine(name, [a, b], lambda v, z: sign * (v - z), lambda v, z: v + z)


def quotient(graph: Graph, name: str, a: Node | Tensor | float, b: Node) -> Node:
    """a / b; the bounds are infinite where b may be zero."""
    inverse = graph.add_relaxed(name, [b], Reciprocal())
    if isinstance(a, Node):
        return product(graph, name, a, inverse)
    return graph.affine(name, [inverse], lambda v: v * a, lambda m: m * abs(a))


def larger(graph: Graph, name: str, a: Node, b: Node, relaxation: Relaxation | None = None) -> Node:
    """max(a, b) = b + relu(a - b), or log(exp(a) + exp(b)) with softplus instead of ReLU."""
    ahead = difference(graph, name, a, b)
    return graph.affine(
        name, [graph.add_relaxed(name, [ahead], relaxation or Relu()), b], *(lambda v, z: v + z,) * 2
    )


def largest(graph: Graph, name: str, nodes: list[Node]) -> Node:
    """The elementwise maximum, pair by pair."""
    while len(nodes) > 1:
        pairs = zip(nodes[::2], nodes[1::2], strict=False)
        nodes = [larger(graph, name, a, b) for a, b in pairs] + nodes[len(nodes) // 2 * 2 :]
    return nodes[0]


def along(graph: Graph, name: str, node: Node | MaskedValue, axis: int, relaxation: Relaxation) -> Node:
    """The maximum (ReLU) or log-sum-exp (softplus) along an axis, kept at size one, by repeatedly combining
    its two halves.
    """
    if relaxation is LOG_SUM:
        graph.fused.append(name)
    if isinstance(node, MaskedValue):
        found, top = masks.along(graph, name, node, axis, relaxation)
        return (
            graph.affine(name, [found], lambda v: v + top, lambda m: m + top.abs())
            if bool(top.any())
            else found
        )
    while node.shape[axis] > 1:
        node = _pairwise_reduce(graph, name, node, axis, relaxation)
    return node


def _pairwise_reduce(graph: Graph, name: str, node: Node, axis: int, relaxation: Relaxation) -> Node:
    """Combine the first half of an axis with the second half."""
    size, half = node.shape[axis], node.shape[axis] // 2

    def against(v: Tensor, sign: int) -> Tensor:
        return v.narrow(axis, 0, half) + sign * v.narrow(axis, half, half)

    def join_halves(ahead: Tensor, v: Tensor) -> Tensor:
        return torch.cat(
            [ahead + v.narrow(axis, half, half), v.narrow(axis, 2 * half, size - 2 * half)], axis
        )

    between = graph.affine(name, [node], lambda v: against(v, -1), lambda m: against(m, 1))
    return graph.affine(
        name, [graph.add_relaxed(name, [between], relaxation), node], join_halves, join_halves
    )


def log_softmax(graph: Graph, name: str, node: Node | MaskedValue, axis: int) -> Node | MaskedValue:
    if isinstance(node, MaskedValue):
        graph.fused.append(name)
        return masks.log_softmax(graph, name, node, axis, LOG_SUM)
    return _log_softmax(graph, name, node, axis)


def _log_softmax(graph: Graph, name: str, node: Node, axis: int) -> Node:
    total = along(graph, name, node, axis, LOG_SUM)
    return difference(graph, name, node, total)


def softmax(graph: Graph, name: str, node: Node | MaskedValue, axis: int) -> Node:
    """exp(log softmax). A logarithm of a softmax is never positive; clipping it at zero keeps loose bounds
    from growing.
    """
    if isinstance(node, MaskedValue):
        graph.fused.append(name)
        return masks.softmax(graph, name, node, axis, LOG_SUM)
    return graph.add_relaxed(
        name, [graph.add_relaxed(name, [_log_softmax(graph, name, node, axis)], Clip(high=0.0))], Exp()
    )


def subtract_mean(graph: Graph, name: str, node: Node, axes: Sequence[int]) -> Node:
    """v minus its mean along the axes: J has 1 - 1 / n on the diagonal and -1 / n elsewhere."""
    dims = list(axes)
    weight = 1 - 2 / math.prod(node.shape[axis] for axis in dims)
    return graph.affine(
        name,
        [node],
        lambda v: v - v.mean(dims, keepdim=True),
        lambda m: m * weight + m.mean(dims, keepdim=True),
    )


def standardise(
    graph: Graph, name: str, node: Node, axes: Sequence[int], eps: float, *, around_mean: bool = True
) -> Node:
    """(v - mean) / sqrt(mean of its square + eps) along the axes. Its absolute value is at most sqrt(n - 1)
    for n elements, sqrt(n) if not centred.
    """
    graph.fused.append(name)
    dims = list(axes)
    count = math.prod(node.shape[axis] for axis in dims)
    if around_mean:
        node = subtract_mean(graph, name, node, dims)
    square = graph.add_relaxed(name, [node], Power(2))
    spread = graph.affine(name, [square], *(lambda v: v.mean(dims, keepdim=True) + eps,) * 2)
    ratio = product(graph, name, node, graph.add_relaxed(name, [spread], Rsqrt()))
    most = math.sqrt(max(count - int(around_mean), 0)) * (1 + 1e-15)
    return graph.add_relaxed(name, [ratio], Clip(-most, most))


def scale_and_shift(graph: Graph, name: str, node: Node, weight: Tensor | None, bias: Tensor | None) -> Node:
    """v * weight + bias, each optional."""
    one = torch.ones((), dtype=torch.float64, device=graph.device)
    factor, shift = one if weight is None else weight, 0 * one if bias is None else bias
    return graph.affine(name, [node], lambda v: v * factor + shift, lambda m: m * factor.abs() + shift.abs())


def matrix_product(graph: Graph, name: str, a: Node | Tensor, b: Node | Tensor) -> Node:
    """(..., m, k) times (..., k, n), where at least one is a node. For two nodes: the products of all pairs
    of numbers, then sums.
    """
    if not isinstance(a, Node):
        return graph.affine(name, [b], lambda v: torch.matmul(a, v), lambda m: torch.matmul(a.abs(), m))  # type: ignore[list-item]
    if not isinstance(b, Node):
        last_axis = b.double() if b.dim() == 2 else None
        return graph.affine(
            name, [a], lambda v: torch.matmul(v, b), lambda m: torch.matmul(m, b.abs()), last_axis=last_axis
        )
    left = graph.add_move(name, [a], lambda v: v.unsqueeze(-1))
    right = graph.add_move(name, [b], lambda v: v.unsqueeze(-3))
    return graph.affine(name, [product(graph, name, left, right)], *(lambda v: v.sum(-2),) * 2)
