"""Elementwise functions of a traced graph: a table of activations, powers and clipping with their
relaxations.
"""

import math
from typing import Any

import torch
from torch import Tensor

from holdfast.bounding.graph import compose
from holdfast.bounding.graph.graph import Graph, Handler, Node, OperatorCall, handles
from holdfast.bounding.relax import (
    Abs,
    Atan,
    Clip,
    Cosine,
    Elu,
    Erf,
    Exp,
    Gelu,
    GeluTanh,
    Hardswish,
    LeakyRelu,
    Log,
    Mish,
    Power,
    Reciprocal,
    Relaxation,
    Relu,
    Rsqrt,
    Sigmoid,
    Silu,
    Sine,
    Softplus,
    Sqrt,
    Tanh,
)
from holdfast.errors import UnsupportedLayer

aten = torch.ops.aten


# ---- elementwise functions

# The relaxation of every operator that is a single relaxed function.
FUNCTIONS: dict[tuple[Any, ...], Relaxation] = {
    (aten.relu.default, aten.relu_.default): Relu(),
    (aten.tanh.default, aten.tanh_.default): Tanh(),
    (aten.sigmoid.default, aten.sigmoid_.default): Sigmoid(),
    (aten.erf.default, aten.erf_.default): Erf(),
    (aten.silu.default, aten.silu_.default): Silu(),
    (aten.mish.default, aten.mish_.default): Mish(),
    (aten.hardswish.default, aten.hardswish_.default): Hardswish(),
    (aten.abs.default, aten.abs_.default): Abs(),
    (aten.exp.default, aten.exp_.default): Exp(),
    (aten.log.default, aten.log_.default): Log(),
    (aten.sqrt.default, aten.sqrt_.default): Sqrt(),
    (aten.rsqrt.default, aten.rsqrt_.default): Rsqrt(),
    (aten.square.default, aten.square_.default): Power(2),
    (aten.reciprocal.default, aten.reciprocal_.default): Reciprocal(),
    (aten.sin.default, aten.sin_.default): Sine(),
    (aten.cos.default, aten.cos_.default): Cosine(),
    (aten.atan.default, aten.atan_.default): Atan(),
}


def _handler_of(relaxation: Relaxation) -> Handler:
    return lambda graph, call: graph.add_relaxed(call.name, call.nodes, relaxation)


for _targets, _relaxation in FUNCTIONS.items():
    handles(*_targets)(_handler_of(_relaxation))


@handles(aten.softplus.default)
def softplus(graph: Graph, call: OperatorCall) -> Node:
    beta, threshold = map(float, [*call.args[1:], *(1, 20)[len(call.args) - 1 :]])
    if not beta > 0:
        raise UnsupportedLayer(
            f"{call.name}: softplus with beta {beta:g} has no bound here, only with beta > 0; "
            "attacks still work."
        )
    return graph.add_relaxed(call.name, call.nodes, Softplus(beta, threshold))


@handles(aten.log_sigmoid.default)
def log_sigmoid(graph: Graph, call: OperatorCall) -> Node:
    """-softplus(-v)."""
    smooth = graph.add_relaxed(call.name, [compose.negate(graph, call.name, call.args[0])], compose.LOG_SUM)
    return compose.negate(graph, call.name, smooth)


@handles(aten.logaddexp.default)
def log_add_exp(graph: Graph, call: OperatorCall) -> Node:
    """b + softplus(a - b); with a zero constant, softplus of the node."""
    a, b = call.args
    if isinstance(a, Node) and isinstance(b, Node):
        shape = torch.broadcast_shapes(a.shape, b.shape)
        a, b = (graph.add_move(call.name, [node], lambda v: v.expand(shape)) for node in (a, b))
        return compose.larger(graph, call.name, a, b, compose.LOG_SUM)
    node, constant = (a, b) if isinstance(a, Node) else (b, a)
    if not bool(constant.any()) and torch.broadcast_shapes(node.shape, constant.shape) == node.shape:
        return graph.add_relaxed(call.name, [node], compose.LOG_SUM)
    above = graph.add_relaxed(
        call.name, [compose.difference(graph, call.name, node, constant)], compose.LOG_SUM
    )
    return graph.affine(call.name, [above], lambda v: v + constant, lambda m: m + constant.abs())


@handles(aten.log1p.default, aten.log1p_.default)
def log1p(graph: Graph, call: OperatorCall) -> Node:
    return graph.add_relaxed(call.name, [graph.affine(call.name, call.nodes, *(lambda v: v + 1,) * 2)], Log())


@handles(aten.expm1.default, aten.expm1_.default)
def expm1(graph: Graph, call: OperatorCall) -> Node:
    return graph.affine(
        call.name, [graph.add_relaxed(call.name, call.nodes, Exp())], lambda v: v - 1, lambda m: m + 1
    )


@handles(aten.gelu.default, aten.gelu_.default)
def gelu(graph: Graph, call: OperatorCall) -> Node:
    return graph.add_relaxed(
        call.name, call.nodes, GeluTanh() if call.kwargs.get("approximate", "none") == "tanh" else Gelu()
    )


@handles(aten.glu.default)
def glu(graph: Graph, call: OperatorCall) -> Node:
    """The first half times the sigmoid of the second half."""
    node, axis = call.args[0], call.args[1] if len(call.args) > 1 else -1
    half = node.shape[axis] // 2
    first, second = (
        graph.add_move(call.name, [node], lambda v, at=at: v.narrow(axis, at, half)) for at in (0, half)
    )
    return compose.product(graph, call.name, first, graph.add_relaxed(call.name, [second], Sigmoid()))


@handles(aten.leaky_relu.default, aten.leaky_relu_.default)
def leaky_relu(graph: Graph, call: OperatorCall) -> Node:
    slope = float(call.args[1]) if len(call.args) > 1 else 0.01
    if not 0 <= slope <= 1:
        raise UnsupportedLayer(
            f"{call.name}: leaky ReLU with slope {slope:g} outside [0, 1] has no bound here; "
            "attacks still work."
        )
    return graph.add_relaxed(call.name, call.nodes, LeakyRelu(slope))


@handles(aten.prelu.default)
def prelu(graph: Graph, call: OperatorCall) -> Node:
    """v + (1 - slope) relu(-v)."""
    node, slope = call.args
    rise = 1 - slope.reshape(-1, *(1 for _ in node.shape[2:]))
    below = graph.add_relaxed(call.name, [compose.negate(graph, call.name, node)], Relu())
    return graph.affine(call.name, [node, below], lambda v, r: v + rise * r, lambda v, r: v + rise.abs() * r)


@handles(aten.elu.default, aten.elu_.default)
def elu(graph: Graph, call: OperatorCall) -> Node:
    return _elu(graph, call, *map(float, call.args[1:]))


@handles(aten.selu.default, aten.selu_.default)
def selu(graph: Graph, call: OperatorCall) -> Node:
    return _elu(graph, call, 1.6732632423543772848170429916717, 1.0507009873554804934193349852946)


@handles(aten.celu.default, aten.celu_.default)
def celu(graph: Graph, call: OperatorCall) -> Node:
    alpha = float(call.args[1]) if len(call.args) > 1 else 1.0
    return _elu(graph, call, alpha, 1.0, 1 / alpha)


def _elu(
    graph: Graph, call: OperatorCall, alpha: float = 1.0, scale: float = 1.0, inner: float = 1.0
) -> Node:
    """scale v for v > 0, scale alpha (exp(inner v) - 1) below: scale / inner times ELU with parameter alpha
    inner, of inner v.
    """
    if not (alpha > 0 and scale > 0 and inner > 0):
        raise UnsupportedLayer(
            f"{call.name}: ELU is bounded for positive alpha and scales only; attacks still work."
        )
    node: Node = call.args[0]
    if inner != 1:
        node = graph.affine(call.name, [node], *(lambda v: v * inner,) * 2)
    node = graph.add_relaxed(call.name, [node], Elu(alpha * inner))
    return node if scale == inner else graph.affine(call.name, [node], *(lambda v: v * (scale / inner),) * 2)


@handles(aten.pow.Tensor_Scalar, aten.pow_.Scalar, aten.pow.Tensor_Tensor)
def power(graph: Graph, call: OperatorCall) -> Node | Tensor:
    node, exponent = call.args
    if isinstance(exponent, Tensor) and exponent.numel() == 1:
        exponent = exponent.item()
    if isinstance(exponent, Node) and not isinstance(node, Node) and bool((node > 0).all()):
        rate = node.log()
        argument = graph.affine(call.name, [exponent], lambda v: v * rate, lambda m: m * rate.abs())
        return graph.add_relaxed(call.name, [argument], Exp())
    if not isinstance(node, Node) or not isinstance(exponent, int | float):
        raise UnsupportedLayer(
            f"{call.name}: a power whose exponent is not a constant number has no bound here; "
            "attacks still work."
        )
    whole = float(exponent).is_integer()
    if exponent in (0, 1):
        return node if exponent == 1 else torch.ones(node.shape, dtype=torch.float64, device=graph.device)
    if exponent >= 2 and whole:
        return graph.add_relaxed(call.name, [node], Power(int(exponent)))
    special: dict[float, Relaxation] = {0.5: Sqrt(), -0.5: Rsqrt(), -1.0: Reciprocal()}
    if float(exponent) in special:
        return graph.add_relaxed(call.name, [node], special[float(exponent)])
    if whole:
        return graph.add_relaxed(
            call.name, [graph.add_relaxed(call.name, [node], Power(-int(exponent)))], Reciprocal()
        )
    return _exponential(graph, call.name, graph.add_relaxed(call.name, [node], Log()), float(exponent))


def _exponential(graph: Graph, name: str, node: Node, rate: float) -> Node:
    """exp(rate v)."""
    return graph.add_relaxed(name, [compose.times(graph, name, node, rate)], Exp())


@handles(aten.pow.Scalar, aten.exp2.default)
def exponential(graph: Graph, call: OperatorCall) -> Node:
    base, node = call.args if call.target == aten.pow.Scalar else (2.0, call.args[0])
    if not base > 0:
        raise UnsupportedLayer(
            f"{call.name}: powers of {base:g} have no bound here, only those of a positive number; "
            "attacks still work."
        )
    return _exponential(graph, call.name, node, math.log(base))


# The factor by which each operator differs from the natural logarithm.
LOGARITHMS: dict[Any, float] = {aten.log2.default: 1 / math.log(2), aten.log10.default: 1 / math.log(10)}


@handles(*LOGARITHMS)
def logarithm(graph: Graph, call: OperatorCall) -> Node:
    return compose.times(
        graph, call.name, graph.add_relaxed(call.name, call.nodes, Log()), LOGARITHMS[call.target]
    )


@handles(aten.sinh.default, aten.cosh.default)
def hyperbolic(graph: Graph, call: OperatorCall) -> Node:
    """(exp(v) -+ exp(-v)) / 2."""
    (node,), sign = call.nodes, -1 if call.target == aten.sinh.default else 1
    rising, falling = (_exponential(graph, call.name, node, rate) for rate in (1.0, -1.0))
    return graph.affine(
        call.name, [rising, falling], lambda v, z: (v + sign * z) / 2, lambda v, z: (v + z) / 2
    )


@handles(aten.tan.default)
def tangent(graph: Graph, call: OperatorCall) -> Node:
    """sin / cos; the bounds are infinite where the cosine may be zero."""
    sine, cosine = (graph.add_relaxed(call.name, call.nodes, f) for f in (Sine(), Cosine()))
    return compose.quotient(graph, call.name, sine, cosine)


@handles(aten.atanh.default, aten.logit.default)
def log_odds(graph: Graph, call: OperatorCall) -> Node:
    """log(p) - log(1 - p); atanh(v) is half of it at p = (1 + v) / 2."""
    (node,), area = call.nodes, call.target == aten.atanh.default
    if not area and len(call.args) > 1 and call.args[1] is not None:
        node = graph.add_relaxed(call.name, [node], Clip(float(call.args[1]), 1 - float(call.args[1])))
    low = 1.0 if area else 0.0
    sides = [
        graph.affine(call.name, [node], lambda v: low + v, lambda m: low + m),
        graph.affine(call.name, [node], lambda v: 1 - v, lambda m: 1 + m),
    ]
    half = 0.5 if area else 1.0
    logs = [graph.add_relaxed(call.name, [side], Log()) for side in sides]
    return graph.affine(call.name, logs, lambda a, b: half * (a - b), lambda a, b: half * (a + b))


# ---- clipping, maxima

# The bounds that each operator has by default.

CLIPS: dict[Any, tuple[float | None, float | None]] = {
    target: ends
    for targets, ends in (
        (
            (
                aten.clamp.default,
                aten.clamp_.default,
                aten.clip.default,
                aten.clip_.default,
                aten.clamp.Tensor,
            ),
            (None, None),
        ),
        ((aten.hardtanh.default, aten.hardtanh_.default), (-1.0, 1.0)),
        ((aten.relu6.default, aten.relu6_.default), (0.0, 6.0)),
    )
    for target in targets
}


@handles(*CLIPS)
def clip(graph: Graph, call: OperatorCall) -> Any:
    ends = CLIPS[call.target]
    low = call.args[1] if len(call.args) > 1 else call.kwargs.get("min", call.kwargs.get("min_val", ends[0]))
    high = call.args[2] if len(call.args) > 2 else call.kwargs.get("max", call.kwargs.get("max_val", ends[1]))
    return _clip(graph, call, low, high)


@handles(aten.clamp_min.default, aten.clamp_min_.default)
def clip_below(graph: Graph, call: OperatorCall) -> Any:
    return _clip(graph, call, call.args[1], None)


@handles(aten.clamp_max.default, aten.clamp_max_.default)
def clip_above(graph: Graph, call: OperatorCall) -> Any:
    return _clip(graph, call, None, call.args[1])


def _clip(graph: Graph, call: OperatorCall, low: Any, high: Any) -> Any:
    if any(isinstance(end, Node) or (isinstance(end, Tensor) and end.numel() > 1) for end in (low, high)):
        node = call.args[0]
        for end, target in ((low, aten.maximum.default), (high, aten.minimum.default)):
            node = node if end is None else maximum(graph, OperatorCall(call.name, target, (node, end), {}))
        return node
    top = torch.inf if high is None else float(high)
    # If the bounds are in the wrong order, torch returns the upper one.
    return graph.add_relaxed(
        call.name, [call.args[0]], Clip(min(-torch.inf if low is None else float(low), top), top)
    )


@handles(aten.hardsigmoid.default, aten.hardsigmoid_.default)
def hardsigmoid(graph: Graph, call: OperatorCall) -> Node:
    line = graph.affine(call.name, call.nodes, *(lambda v: v / 6 + 0.5,) * 2)
    return graph.add_relaxed(call.name, [line], Clip(0.0, 1.0))


@handles(aten.softshrink.default)
def softshrink(graph: Graph, call: OperatorCall) -> Node:
    """v - clip(v, -size, size)."""
    (node,), size = call.nodes, float(call.args[1]) if len(call.args) > 1 else 0.5
    middle = graph.add_relaxed(call.name, [node], Clip(-size, size))
    return graph.affine(call.name, [node, middle], lambda v, c: v - c, lambda v, c: v + c)


@handles(aten.maximum.default, aten.max.other, aten.minimum.default, aten.min.other)
def maximum(graph: Graph, call: OperatorCall) -> Node:
    sign = 1 if call.target in (aten.maximum.default, aten.max.other) else -1
    nodes = [leaf for leaf in call.args if isinstance(leaf, Node)]
    if len(nodes) == 1:  # With a constant c: v + relu(c - v), or v - relu(v - c).
        (constant,) = (leaf for leaf in call.args if not isinstance(leaf, Node))
        ahead = compose.difference(graph, call.name, constant, nodes[0], sign)
        return graph.affine(
            call.name,
            [*nodes, graph.add_relaxed(call.name, [ahead], Relu())],
            lambda v, r: v + sign * r,
            lambda v, r: v + r,
        )
    shape = torch.broadcast_shapes(*(node.shape for node in nodes))
    a, b = (
        graph.affine(call.name, [node], lambda v: sign * v.expand(shape), lambda m: m.expand(shape))
        for node in nodes
    )
    answer = compose.larger(graph, call.name, a, b)
    return answer if sign == 1 else compose.negate(graph, call.name, answer)
