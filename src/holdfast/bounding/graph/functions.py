"""The functions of a traced graph, as a table: activations, powers, clipping, maxima, softmax, with their relaxations."""

import itertools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from holdfast.bounding.graph import compose
from holdfast.bounding.graph.graph import Call, Graph, Handler, Node, handles, leaves
from holdfast.bounding.relax import (
    Abs,
    Clip,
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
    Softplus,
    Sqrt,
    Step,
    Tanh,
)
from holdfast.errors import UnsupportedLayer

aten = torch.ops.aten

# ---- functions of single numbers

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
}


def _relaxed(relaxation: Relaxation) -> Handler:
    return lambda graph, call: graph.relaxed(call.name, call.nodes, relaxation)


for _targets, _relaxation in FUNCTIONS.items():
    handles(*_targets)(_relaxed(_relaxation))


@handles(aten.softplus.default)
def softplus(graph: Graph, call: Call) -> Node:
    beta, threshold = map(float, [*call.args[1:], *(1, 20)[len(call.args) - 1 :]])
    if not beta > 0:
        raise UnsupportedLayer(f"{call.name}: softplus with beta {beta:g} has no bound here, only with beta > 0; attacks still work.")
    return graph.relaxed(call.name, call.nodes, Softplus(beta, threshold))


@handles(aten.log_sigmoid.default)
def log_sigmoid(graph: Graph, call: Call) -> Node:
    """-softplus(-v)."""
    smooth = graph.relaxed(call.name, [_negated(graph, call.name, call.args[0])], compose.LOG_SUM)
    return _negated(graph, call.name, smooth)


@handles(aten.logaddexp.default)
def log_add_exp(graph: Graph, call: Call) -> Node:
    """b + softplus(a - b); of zero and the rest, softplus itself."""
    a, b = call.args
    if isinstance(a, Node) and isinstance(b, Node):
        shape = torch.broadcast_shapes(a.shape, b.shape)
        a, b = (graph.moved(call.name, [node], lambda v: v.expand(shape)) for node in (a, b))
        return compose.larger(graph, call.name, a, b, compose.LOG_SUM)
    node, constant = (a, b) if isinstance(a, Node) else (b, a)
    if not bool(constant.any()) and torch.broadcast_shapes(node.shape, constant.shape) == node.shape:
        return graph.relaxed(call.name, [node], compose.LOG_SUM)
    above = graph.relaxed(call.name, [_difference(graph, call.name, node, constant)], compose.LOG_SUM)
    return graph.affine(call.name, [above], lambda v: v + constant, lambda m: m + constant.abs())


def _negated(graph: Graph, name: str, node: Node) -> Node:
    return graph.affine(name, [node], lambda v: -v, lambda m: m)


@handles(aten.log1p.default, aten.log1p_.default)
def log1p(graph: Graph, call: Call) -> Node:
    return graph.relaxed(call.name, [graph.affine(call.name, call.nodes, *(lambda v: v + 1,) * 2)], Log())


@handles(aten.expm1.default, aten.expm1_.default)
def expm1(graph: Graph, call: Call) -> Node:
    return graph.affine(call.name, [graph.relaxed(call.name, call.nodes, Exp())], lambda v: v - 1, lambda m: m + 1)


@handles(aten.gelu.default, aten.gelu_.default)
def gelu(graph: Graph, call: Call) -> Node:
    return graph.relaxed(call.name, call.nodes, GeluTanh() if call.kwargs.get("approximate", "none") == "tanh" else Gelu())


@handles(aten.glu.default)
def glu(graph: Graph, call: Call) -> Node:
    """The first half times the sigmoid of the second."""
    node, axis = call.args[0], call.args[1] if len(call.args) > 1 else -1
    half = node.shape[axis] // 2
    first, second = (graph.moved(call.name, [node], lambda v, at=at: v.narrow(axis, at, half)) for at in (0, half))
    return compose.product(graph, call.name, first, graph.relaxed(call.name, [second], Sigmoid()))


@handles(aten.leaky_relu.default, aten.leaky_relu_.default)
def leaky_relu(graph: Graph, call: Call) -> Node:
    slope = float(call.args[1]) if len(call.args) > 1 else 0.01
    if not 0 <= slope <= 1:
        raise UnsupportedLayer(f"{call.name}: leaky ReLU with slope {slope:g} outside [0, 1] has no bound here; attacks still work.")
    return graph.relaxed(call.name, call.nodes, LeakyRelu(slope))


@handles(aten.prelu.default)
def prelu(graph: Graph, call: Call) -> Node:
    """v + (1 - slope) relu(-v)."""
    node, slope = call.args
    bend = 1 - slope.reshape(-1, *(1 for _ in node.shape[2:]))
    below = graph.relaxed(call.name, [_negated(graph, call.name, node)], Relu())
    return graph.affine(call.name, [node, below], lambda v, r: v + bend * r, lambda v, r: v + bend.abs() * r)


@handles(aten.elu.default, aten.elu_.default)
def elu(graph: Graph, call: Call) -> Node:
    return _elu(graph, call, *map(float, call.args[1:]))


@handles(aten.selu.default, aten.selu_.default)
def selu(graph: Graph, call: Call) -> Node:
    return _elu(graph, call, 1.6732632423543772848170429916717, 1.0507009873554804934193349852946)


@handles(aten.celu.default, aten.celu_.default)
def celu(graph: Graph, call: Call) -> Node:
    alpha = float(call.args[1]) if len(call.args) > 1 else 1.0
    return _elu(graph, call, alpha, 1.0, 1 / alpha)


def _elu(graph: Graph, call: Call, alpha: float = 1.0, scale: float = 1.0, inner: float = 1.0) -> Node:
    """scale v above zero, scale alpha (exp(inner v) - 1) below: scale / inner times ELU with alpha inner, of inner v."""
    if not (alpha > 0 and scale > 0 and inner > 0):
        raise UnsupportedLayer(f"{call.name}: ELU is bounded for positive alpha and scales only; attacks still work.")
    node: Node = call.args[0]
    if inner != 1:
        node = graph.affine(call.name, [node], *(lambda v: v * inner,) * 2)
    node = graph.relaxed(call.name, [node], Elu(alpha * inner))
    return node if scale == inner else graph.affine(call.name, [node], *(lambda v: v * (scale / inner),) * 2)


@handles(aten.pow.Tensor_Scalar, aten.pow_.Scalar, aten.pow.Tensor_Tensor)
def power(graph: Graph, call: Call) -> Node:
    node, exponent = call.args
    if isinstance(exponent, Tensor) and exponent.numel() == 1:
        exponent = exponent.item()
    if not isinstance(node, Node) or not isinstance(exponent, int | float):
        raise UnsupportedLayer(f"{call.name}: a power whose exponent is no constant number has no bound here; attacks still work.")
    if exponent >= 2 and float(exponent).is_integer():
        return graph.relaxed(call.name, [node], Power(int(exponent)))
    special: dict[float, Relaxation] = {0.5: Sqrt(), -0.5: Rsqrt(), -1.0: Reciprocal()}
    if float(exponent) not in special:
        raise UnsupportedLayer(f"{call.name}: there is no bound for the power {exponent:g}; 0.5, -0.5, -1, 2, 3, ... have one.")
    return graph.relaxed(call.name, [node], special[float(exponent)])


# ---- clipping, maxima, softmax

CLIPS: dict[Any, tuple[float | None, float | None]] = {
    target: ends
    for targets, ends in (
        ((aten.clamp.default, aten.clamp_.default, aten.clip.default, aten.clip_.default, aten.clamp.Tensor), (None, None)),
        ((aten.hardtanh.default, aten.hardtanh_.default), (-1.0, 1.0)),
        ((aten.relu6.default, aten.relu6_.default), (0.0, 6.0)),
    )
    for target in targets
}


@handles(*CLIPS)
def clip(graph: Graph, call: Call) -> Node:
    ends = CLIPS[call.target]
    low = call.args[1] if len(call.args) > 1 else call.kwargs.get("min", call.kwargs.get("min_val", ends[0]))
    high = call.args[2] if len(call.args) > 2 else call.kwargs.get("max", call.kwargs.get("max_val", ends[1]))
    return _clip(graph, call, low, high)


@handles(aten.clamp_min.default, aten.clamp_min_.default)
def clip_below(graph: Graph, call: Call) -> Node:
    return _clip(graph, call, call.args[1], None)


@handles(aten.clamp_max.default, aten.clamp_max_.default)
def clip_above(graph: Graph, call: Call) -> Node:
    return _clip(graph, call, None, call.args[1])


def _clip(graph: Graph, call: Call, low: Any, high: Any) -> Node:
    if any(isinstance(end, Node) or (isinstance(end, Tensor) and end.numel() > 1) for end in (low, high)):
        raise UnsupportedLayer(f"{call.name}: clipping is bounded between two numbers only; attacks still work.")
    top = torch.inf if high is None else float(high)
    # Where the ends are the wrong way round torch answers with the upper one.
    return graph.relaxed(call.name, [call.args[0]], Clip(min(-torch.inf if low is None else float(low), top), top))


@handles(aten.hardsigmoid.default, aten.hardsigmoid_.default)
def hardsigmoid(graph: Graph, call: Call) -> Node:
    line = graph.affine(call.name, call.nodes, *(lambda v: v / 6 + 0.5,) * 2)
    return graph.relaxed(call.name, [line], Clip(0.0, 1.0))


@handles(aten.softshrink.default)
def softshrink(graph: Graph, call: Call) -> Node:
    """v less what clipping leaves of it."""
    (node,), size = call.nodes, float(call.args[1]) if len(call.args) > 1 else 0.5
    middle = graph.relaxed(call.name, [node], Clip(-size, size))
    return graph.affine(call.name, [node, middle], lambda v, c: v - c, lambda v, c: v + c)


@handles(aten.maximum.default, aten.max.other, aten.minimum.default, aten.min.other)
def maximum(graph: Graph, call: Call) -> Node:
    sign = 1 if call.target in (aten.maximum.default, aten.max.other) else -1
    nodes = [leaf for leaf in call.args if isinstance(leaf, Node)]
    if len(nodes) == 1:  # against a constant c: v + relu(c - v), or v - relu(v - c)
        (constant,) = (leaf for leaf in call.args if not isinstance(leaf, Node))
        ahead = _difference(graph, call.name, constant, nodes[0], sign)
        return graph.affine(
            call.name, [*nodes, graph.relaxed(call.name, [ahead], Relu())], lambda v, r: v + sign * r, lambda v, r: v + r
        )  # fmt: skip
    shape = torch.broadcast_shapes(*(node.shape for node in nodes))
    a, b = (graph.affine(call.name, [node], lambda v: sign * v.expand(shape), lambda m: m.expand(shape)) for node in nodes)
    answer = compose.larger(graph, call.name, a, b)
    return answer if sign == 1 else _negated(graph, call.name, answer)


ABOVE = (aten.gt.Scalar, aten.gt.Tensor, aten.ge.Scalar, aten.ge.Tensor)


@handles(*ABOVE, aten.lt.Scalar, aten.lt.Tensor, aten.le.Scalar, aten.le.Tensor)
def comparison(graph: Graph, call: Call) -> Node:
    """1 where it holds, else 0: a step of the difference."""
    a, b = call.args
    sign = 1 if call.target in ABOVE else -1
    return graph.relaxed(call.name, [_difference(graph, call.name, a, b, sign)], Step())


@handles(aten.where.self, aten.where.ScalarSelf, aten.where.ScalarOther, aten.where.Scalar)
def where(graph: Graph, call: Call) -> Node:
    """b + condition (a - b)."""
    condition, a, b = call.args
    if not isinstance(condition, Node):
        return graph.affine(call.name, call.nodes, *(_choice(call, size) for size in (False, True)))
    if not isinstance(a, Node) and not isinstance(b, Node):
        a, b = (torch.as_tensor(v, device=graph.device).double() for v in (a, b))
        return graph.affine(call.name, [condition], lambda c: b + c * (a - b), lambda c: b.abs() + c * (a.abs() + b.abs()))
    chosen = compose.product(graph, call.name, condition, _difference(graph, call.name, a, b))
    if isinstance(b, Node):
        return graph.affine(call.name, [b, chosen], *(lambda v, c: v + c,) * 2)
    return graph.affine(call.name, [chosen], lambda c: b + c, lambda c: abs(b) + c)


def _choice(call: Call, size: bool) -> Callable[..., Tensor]:
    """The call for a condition that is known, as a function of its nodes; with `size` of everything's size."""

    def run(*values: Tensor) -> Tensor:
        place = dict(zip(call.nodes, values, strict=True))
        condition, a, b = call.args
        a, b = (place[v] if isinstance(v, Node) else abs(v) if size else v for v in (a, b))
        return torch.where(condition, a, b)

    return run


def _difference(graph: Graph, name: str, a: Any, b: Any, sign: int = 1) -> Node:
    """sign (a - b), of which one at least is a node."""
    if not isinstance(b, Node):
        return graph.affine(name, [a], lambda v: sign * (v - b), lambda m: m + abs(b))
    if not isinstance(a, Node):
        return graph.affine(name, [b], lambda v: sign * (a - v), lambda m: m + abs(a))
    return graph.affine(name, [a, b], lambda v, z: sign * (v - z), lambda v, z: v + z)


@handles(aten.max_pool1d.default, aten.max_pool2d.default)
def max_pool(graph: Graph, call: Call) -> Node:
    """The largest of the elements that stand at one place of all windows, over the places."""
    given: list[Any] = [*call.args, *[(), 0, 1, False][len(call.args) - 2 :]]
    node, kernel, stride, padding, dilation, _ = given
    if call.kwargs:
        raise UnsupportedLayer(f"{call.name}: max pooling with {', '.join(call.kwargs)} has no bound here; attacks still work.")
    axes = 1 if call.target == aten.max_pool1d.default else 2
    sizes, gaps, begins = (_each_axis(value, axes) for value in (kernel, dilation, padding))
    steps = _each_axis(stride, axes) if leaves(stride) else sizes
    counts = call.target(torch.zeros(node.shape), *call.args[1:]).shape[-axes:]
    seen = [
        _seen(call.name, length, count, graph.device, *window)
        for length, count, *window in zip(node.shape[-axes:], counts, sizes, steps, gaps, begins, strict=True)
    ]

    def corner(places: tuple[int, ...]) -> Callable[[Tensor], Tensor]:
        def cut(v: Tensor) -> Tensor:
            for axis, (place, which) in enumerate(zip(places, seen, strict=True), -axes):
                v = v.index_select(axis, which[:, place])
            return v

        return cut

    windows = itertools.product(*(range(size) for size in sizes))
    return compose.largest(graph, call.name, [graph.moved(call.name, [node], corner(places)) for places in windows])


def _seen(name: str, length: int, count: int, device: torch.device, size: int, step: int, gap: int, begin: int) -> Tensor:
    """(windows, places) along one axis: the elements that each window sees. Where one lies in the padding, which is below everything,
    an element of the same window stands there once more."""
    at = torch.arange(count, device=device)[:, None] * step - begin + torch.arange(size, device=device) * gap
    real = (at >= 0) & (at < length)
    if not bool(real.any(1).all()):
        raise UnsupportedLayer(f"{name}: a window of the max pooling sees padding only, which has no bound; attacks still work.")
    first = at.gather(1, real.int().argmax(1, keepdim=True))
    return torch.where(real, at, first)


def _each_axis(value: Any, axes: int) -> list[int]:
    found = [int(leaf) for leaf in leaves(value)]
    return found * axes if len(found) == 1 else found


@handles(aten.amax.default)
def amax(graph: Graph, call: Call) -> Node:
    return _reduced(graph, call, Relu())


@handles(aten.logsumexp.default)
def logsumexp(graph: Graph, call: Call) -> Node:
    return _reduced(graph, call, compose.LOG_SUM)


def _reduced(graph: Graph, call: Call, relaxation: Relaxation) -> Node:
    node: Node = call.args[0]
    dims = call.args[1] if len(call.args) > 1 else call.kwargs.get("dim", [])
    keep = bool(call.args[2]) if len(call.args) > 2 else bool(call.kwargs.get("keepdim", False))
    axes = [d % len(node.shape) for d in dims or range(len(node.shape))]
    if 0 in axes:
        raise UnsupportedLayer(f"{call.name}: {call.target} goes over the inputs of a batch, so nothing about one of them can be proved.")
    for axis in axes:
        node = compose.along(graph, call.name, node, axis, relaxation)
    return node if keep else graph.moved(call.name, [node], lambda v: v.squeeze(axes))


@handles(aten.softmax.int, aten._softmax.default)
def softmax(graph: Graph, call: Call) -> Node:
    return compose.softmax(graph, call.name, call.args[0], call.args[1])


@handles(aten.log_softmax.int, aten._log_softmax.default)
def log_softmax(graph: Graph, call: Call) -> Node:
    return compose.log_softmax(graph, call.name, call.args[0], call.args[1])
