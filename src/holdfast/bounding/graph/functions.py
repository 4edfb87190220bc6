"""The functions of a traced graph, as a table: activations, powers, clipping, maxima, softmax, with their relaxations."""

import functools
import itertools
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from holdfast.bounding.graph import compose, masks
from holdfast.bounding.graph.graph import Affine, Call, Entry, Graph, Handler, Node, Relaxed, handles, leaves
from holdfast.bounding.graph.node import Lowered, Unbounded
from holdfast.bounding.relax import (
    Abs,
    Atan,
    Ceil,
    Clip,
    Cosine,
    Elu,
    Erf,
    Exp,
    Floor,
    Gelu,
    GeluTanh,
    Hardswish,
    LeakyRelu,
    Log,
    Mish,
    Power,
    Product,
    Reciprocal,
    Relaxation,
    Relu,
    Round,
    Rsqrt,
    Sigmoid,
    Sign,
    Silu,
    Sine,
    Softplus,
    Sqrt,
    Step,
    Tanh,
    Unsure,
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
    (aten.sin.default, aten.sin_.default): Sine(),
    (aten.cos.default, aten.cos_.default): Cosine(),
    (aten.atan.default, aten.atan_.default): Atan(),
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
def power(graph: Graph, call: Call) -> Node | Tensor:
    node, exponent = call.args
    if isinstance(exponent, Tensor) and exponent.numel() == 1:
        exponent = exponent.item()
    if not isinstance(node, Node) or not isinstance(exponent, int | float):
        raise UnsupportedLayer(f"{call.name}: a power whose exponent is no constant number has no bound here; attacks still work.")
    whole = float(exponent).is_integer()
    if exponent in (0, 1):
        return node if exponent == 1 else torch.ones(node.shape, dtype=torch.float64, device=graph.device)
    if exponent >= 2 and whole:
        return graph.relaxed(call.name, [node], Power(int(exponent)))
    special: dict[float, Relaxation] = {0.5: Sqrt(), -0.5: Rsqrt(), -1.0: Reciprocal()}
    if float(exponent) in special:
        return graph.relaxed(call.name, [node], special[float(exponent)])
    if whole:
        return graph.relaxed(call.name, [graph.relaxed(call.name, [node], Power(-int(exponent)))], Reciprocal())
    return _exponential(graph, call.name, graph.relaxed(call.name, [node], Log()), float(exponent))


def _exponential(graph: Graph, name: str, node: Node, rate: float) -> Node:
    """exp(rate v)."""
    return graph.relaxed(name, [_times(graph, name, node, rate)], Exp())


def _times(graph: Graph, name: str, node: Node, factor: float) -> Node:
    return graph.affine(name, [node], lambda v: v * factor, lambda m: m * abs(factor))


@handles(aten.pow.Scalar, aten.exp2.default)
def exponential(graph: Graph, call: Call) -> Node:
    base, node = call.args if call.target == aten.pow.Scalar else (2.0, call.args[0])
    if not base > 0:
        raise UnsupportedLayer(f"{call.name}: powers of {base:g} have no bound here, only those of a positive number; attacks still work.")
    return _exponential(graph, call.name, node, math.log(base))


LOGARITHMS: dict[Any, float] = {aten.log2.default: 1 / math.log(2), aten.log10.default: 1 / math.log(10)}


@handles(*LOGARITHMS)
def logarithm(graph: Graph, call: Call) -> Node:
    return _times(graph, call.name, graph.relaxed(call.name, call.nodes, Log()), LOGARITHMS[call.target])


@handles(aten.sinh.default, aten.cosh.default)
def hyperbolic(graph: Graph, call: Call) -> Node:
    """(exp(v) -+ exp(-v)) / 2."""
    (node,), sign = call.nodes, -1 if call.target == aten.sinh.default else 1
    rising, falling = (_exponential(graph, call.name, node, rate) for rate in (1.0, -1.0))
    return graph.affine(call.name, [rising, falling], lambda v, z: (v + sign * z) / 2, lambda v, z: (v + z) / 2)


@handles(aten.tan.default)
def tangent(graph: Graph, call: Call) -> Node:
    """sin / cos; nothing is known where the cosine may be zero."""
    sine, cosine = (graph.relaxed(call.name, call.nodes, f) for f in (Sine(), Cosine()))
    return compose.quotient(graph, call.name, sine, cosine)


@handles(aten.atanh.default, aten.logit.default)
def log_odds(graph: Graph, call: Call) -> Node:
    """log(p) - log(1 - p); the area tangent is half of that at (1 + v) / 2."""
    (node,), area = call.nodes, call.target == aten.atanh.default
    if not area and len(call.args) > 1 and call.args[1] is not None:
        node = graph.relaxed(call.name, [node], Clip(float(call.args[1]), 1 - float(call.args[1])))
    low = 1.0 if area else 0.0
    sides = [
        graph.affine(call.name, [node], lambda v: low + v, lambda m: low + m),
        graph.affine(call.name, [node], lambda v: 1 - v, lambda m: 1 + m),
    ]
    half = 0.5 if area else 1.0
    logs = [graph.relaxed(call.name, [side], Log()) for side in sides]
    return graph.affine(call.name, logs, lambda a, b: half * (a - b), lambda a, b: half * (a + b))


# ---- whole numbers


JUMPS: dict[Any, Relaxation] = {
    target: relaxation
    for targets, relaxation in (
        ((aten.floor.default, aten.floor_.default), Floor()),
        ((aten.ceil.default, aten.ceil_.default), Ceil()),
        ((aten.round.default, aten.round_.default), Round()),
        ((aten.sign.default, aten.sign_.default, aten.sgn.default), Sign()),
    )
    for target in targets
}


@handles(*JUMPS)
def jumping(graph: Graph, call: Call) -> Node:
    return _jumping(graph, call.name, call.args[0], JUMPS[call.target])


def _jumping(graph: Graph, name: str, node: Node, relaxation: Relaxation) -> Node:
    """The function of what the network's arithmetic may have computed; its input, and what is moved or cut off of it, is what it is."""
    return graph.relaxed(name, [node if _given(node) else graph.relaxed(name, [node], Unsure())], relaxation)


def _given(node: Node) -> bool:
    copies = (isinstance(node, Affine) and node.copies) or (isinstance(node, Relaxed) and isinstance(node.relaxation, Relu))
    return isinstance(node, Entry) or (copies and all(_given(source) for source in node.inputs))


@handles(aten.round.decimals)
def rounded(graph: Graph, call: Call) -> Node:
    node, unit = call.args[0], 10.0 ** call.kwargs.get("decimals", 0)
    return _times(graph, call.name, _jumping(graph, call.name, _times(graph, call.name, node, unit), Round()), 1 / unit)


@handles(aten.trunc.default, aten.trunc_.default, aten.fix.default)
def truncated(graph: Graph, call: Call) -> Node:
    return _truncated(graph, call.name, call.args[0])


@handles(aten.frac.default)
def fraction(graph: Graph, call: Call) -> Node:
    return _difference(graph, call.name, call.args[0], _truncated(graph, call.name, call.args[0]))


def _truncated(graph: Graph, name: str, node: Node) -> Node:
    """floor of what is above zero, ceil of what is below."""
    if not _given(node):
        node = graph.relaxed(name, [node], Unsure())
    above = graph.relaxed(name, [graph.relaxed(name, [node], Relu())], Floor())
    below = graph.relaxed(name, [graph.relaxed(name, [node], Clip(high=0.0))], Ceil())
    return graph.summed(name, [above, below])


@handles(aten.div.Tensor_mode, aten.div.Scalar_mode, aten.floor_divide.default)
def divided(graph: Graph, call: Call) -> Node:
    a, b = call.args
    return _whole_quotient(graph, call.name, a, b, call.kwargs.get("rounding_mode", "floor"))


@handles(aten.remainder.Scalar, aten.remainder.Tensor, aten.fmod.Scalar, aten.fmod.Tensor)
def remainder(graph: Graph, call: Call) -> Node:
    """a - b floor(a / b), or with fmod b trunc(a / b)."""
    a, b = call.args
    mode = "trunc" if call.target in (aten.fmod.Scalar, aten.fmod.Tensor) else "floor"
    times = _whole_quotient(graph, call.name, a, b, mode)
    if isinstance(b, Node):
        return _difference(graph, call.name, a, compose.product(graph, call.name, b, times))
    return _difference(graph, call.name, a, graph.affine(call.name, [times], lambda v: v * b, lambda m: m * abs(b)))


def _whole_quotient(graph: Graph, name: str, a: Any, b: Any, mode: str | None) -> Node:
    ratio = compose.quotient(graph, name, a, b) if isinstance(b, Node) else graph.affine(name, [a], lambda v: v / b, lambda m: m / abs(b))
    if mode is None:
        return ratio
    return _jumping(graph, name, ratio, Floor()) if mode == "floor" else _truncated(graph, name, ratio)


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
def clip(graph: Graph, call: Call) -> Any:
    ends = CLIPS[call.target]
    low = call.args[1] if len(call.args) > 1 else call.kwargs.get("min", call.kwargs.get("min_val", ends[0]))
    high = call.args[2] if len(call.args) > 2 else call.kwargs.get("max", call.kwargs.get("max_val", ends[1]))
    return _clip(graph, call, low, high)


@handles(aten.clamp_min.default, aten.clamp_min_.default)
def clip_below(graph: Graph, call: Call) -> Any:
    return _clip(graph, call, call.args[1], None)


@handles(aten.clamp_max.default, aten.clamp_max_.default)
def clip_above(graph: Graph, call: Call) -> Any:
    return _clip(graph, call, None, call.args[1])


def _clip(graph: Graph, call: Call, low: Any, high: Any) -> Any:
    if any(isinstance(end, Node) or (isinstance(end, Tensor) and end.numel() > 1) for end in (low, high)):
        node = call.args[0]
        for end, target in ((low, aten.maximum.default), (high, aten.minimum.default)):
            node = node if end is None else maximum(graph, Call(call.name, target, (node, end), {}))
        return node
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


def may_be_truth(value: Any) -> bool:
    """Whether it is made of comparisons alone, moved or multiplied; float64 nodes do not say what they were to torch."""
    if isinstance(value, Relaxed) and not isinstance(value.relaxation, Product):
        return isinstance(value.relaxation, Step)
    if isinstance(value, Node):
        return bool(value.inputs) and all(may_be_truth(source) for source in value.inputs)
    return isinstance(value, bool) or (isinstance(value, Tensor) and value.dtype == torch.bool)


EITHER = (aten.logical_or.default, aten.bitwise_or.Tensor, aten.__or__.Tensor)
NOT = (aten.logical_not.default, aten.bitwise_not.default)


@handles(*EITHER, *NOT, aten.logical_and.default, aten.bitwise_and.Tensor, aten.__and__.Tensor)
def logic(graph: Graph, call: Call) -> Any:
    """1 - a, a b and 1 - (1 - a) (1 - b)."""
    if not all(may_be_truth(value) for value in call.args):
        raise UnsupportedLayer(f"{call.name}: {call.target} is bounded for truth values only; attacks still work.")
    turned = call.target in EITHER
    sides = [_not(graph, call.name, side) if turned or call.target in NOT else side for side in call.args]
    if len(sides) == 1:
        return sides[0]
    a, b = sides if isinstance(sides[0], Node) else sides[::-1]
    both = compose.product(graph, call.name, a, b) if isinstance(b, Node) else graph.affine(call.name, [a], *(lambda v: v * b,) * 2)
    return _not(graph, call.name, both) if turned else both


def _not(graph: Graph, name: str, value: Any) -> Any:
    return graph.affine(name, [value], lambda v: 1 - v, lambda m: 1 + m) if isinstance(value, Node) else ~torch.as_tensor(value)


@handles(aten.threshold.default)
def threshold(graph: Graph, call: Call) -> Any:
    """v above it, else the value."""
    node, at, value = call.args
    above = comparison(graph, Call(call.name, aten.gt.Scalar, (node, at), {}))
    return where(graph, Call(call.name, aten.where.self, (above, node, value), {}))


@handles(aten.nan_to_num.default)
def numbers(graph: Graph, call: Call) -> Node:
    """Where there may be none, nothing is known of the node anyway."""
    node: Node = call.args[0]
    return node


@handles(aten.where.self, aten.where.ScalarSelf, aten.where.ScalarOther, aten.where.Scalar, masked=True)
def where(graph: Graph, call: Call) -> Node | Lowered:
    """b + condition (a - b)."""
    condition, a, b = call.args
    low = [
        isinstance(side, Lowered) or (not isinstance(side, Node) and bool((torch.as_tensor(side) <= masks.LOW).any())) for side in (a, b)
    ]
    if any(low) and not isinstance(condition, Node):
        a, b = (side if isinstance(side, Node | Lowered) else torch.as_tensor(side, device=graph.device) for side in (a, b))
        return masks.chosen(graph, call.name, condition, a, b)
    a, b = (graph.settled(call.name, side) for side in (a, b))
    if not isinstance(condition, Node):
        return graph.affine(call.name, call.nodes, *(_choice(call, size) for size in (False, True)))
    if any(not isinstance(side, Node) and not bool(torch.as_tensor(side).isfinite().all()) for side in (a, b)):
        raise UnsupportedLayer(
            f"{call.name}: a mask that depends on the input has no bound where it says minus infinity; attacks still work."
        )
    if not isinstance(a, Node) and not isinstance(b, Node):
        a, b = (torch.as_tensor(v, device=graph.device).double() for v in (a, b))
        return graph.affine(call.name, [condition], lambda c: b + c * (a - b), lambda c: b.abs() + c * (a.abs() + b.abs()))
    chosen = compose.product(graph, call.name, condition, _difference(graph, call.name, a, b))
    if isinstance(b, Node):
        return graph.affine(call.name, [b, chosen], *(lambda v, c: v + c,) * 2)
    return graph.affine(call.name, [chosen], lambda c: b + c, lambda c: abs(b) + c)


@handles(aten.masked_fill.Scalar, aten.masked_fill.Tensor, masked=True)
def masked_fill(graph: Graph, call: Call) -> Any:
    node, mask, value = call.args
    return where(graph, Call(call.name, aten.where.self, (mask, value, node), {}))


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


POOLS: dict[Any, int] = {
    aten.max_pool1d.default: 1, aten.max_pool2d.default: 2, aten.max_pool3d.default: 3,
    aten.max_pool1d_with_indices.default: 1, aten.max_pool2d_with_indices.default: 2, aten.max_pool3d_with_indices.default: 3,
}  # fmt: skip
ADAPTIVE_POOLS: dict[Any, int] = {
    aten.adaptive_max_pool1d.default: 1,
    aten.adaptive_max_pool2d.default: 2,
    aten.adaptive_max_pool3d.default: 3,
}
WHICH = Unbounded("which element is the largest or smallest depends on the input")


@handles(*POOLS)
def max_pool(graph: Graph, call: Call) -> Node | tuple[Node, Unbounded]:
    """The largest of the elements that stand at one place of all windows, over the places."""
    given: list[Any] = [*call.args, *[(), 0, 1, False][len(call.args) - 2 :]]
    node, kernel, stride, padding, dilation, _ = given
    if call.kwargs:
        raise UnsupportedLayer(f"{call.name}: max pooling with {', '.join(call.kwargs)} has no bound here; attacks still work.")
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
def adaptive_max_pool(graph: Graph, call: Call) -> tuple[Node, Unbounded]:
    """Windows from floor(i length / count) to ceil((i + 1) length / count); in a shorter one its first element stands once more."""
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
    """Over windows; seen: (windows, places) for each of the last axes, the elements that a window has there."""

    def corner(places: tuple[int, ...]) -> Callable[[Tensor], Tensor]:
        def cut(v: Tensor) -> Tensor:
            for axis, (place, which) in enumerate(zip(places, seen, strict=True), -len(seen)):
                v = v.index_select(axis, which[:, place])
            return v

        return cut

    windows = itertools.product(*(range(which.shape[1]) for which in seen))
    return compose.largest(graph, name, [graph.moved(name, [node], corner(places)) for places in windows])


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


@handles(aten.amax.default, masked=True)
def amax(graph: Graph, call: Call) -> Node:
    return _reduced(graph, call, Relu())


@handles(aten.amin.default)
def amin(graph: Graph, call: Call) -> Node:
    turned = (_negated(graph, call.name, call.args[0]), *call.args[1:])
    return _negated(graph, call.name, _reduced(graph, Call(call.name, call.target, turned, call.kwargs), Relu()))


@handles(aten.max.dim, aten.min.dim, aten.max.default, aten.min.default, masked=True)
def extreme(graph: Graph, call: Call) -> tuple[Node, Unbounded]:
    """The value along one axis; all axes together have the batch among them, which is refused."""
    largest = call.target in (aten.max.dim, aten.max.default)
    value = call.args[0] if largest else graph.settled(call.name, call.args[0])
    dims = [call.args[1]] if len(call.args) > 1 else []
    found = (amax if largest else amin)(graph, Call(call.name, call.target, (value, dims, *call.args[2:]), call.kwargs))
    return found, WHICH


@handles(aten.linalg_vector_norm.default)
def vector_norm(graph: Graph, call: Call) -> Node:
    """The root of the sum of squares, the sum of sizes, the largest size."""
    node, order, dims, keep = (*call.args, *(2, None, False)[len(call.args) - 1 :])[:4]
    if order == math.inf:
        return _reduced(graph, Call(call.name, call.target, (graph.relaxed(call.name, [node], Abs()), dims or [], keep), {}), Relu())
    if order not in (1, 2):
        raise UnsupportedLayer(
            f"{call.name}: a norm of order {order:g} has no bound here, only those of order 1, 2 and inf; attacks still work."
        )
    total = _summed(graph, call, graph.relaxed(call.name, [node], Abs() if order == 1 else Power(2)), dims, keep)
    return total if order == 1 else _root(graph, call.name, total)


VARIANCES = (aten.var.dim, aten.var.correction, aten.std.dim, aten.std.correction)


@handles(*VARIANCES)
def variance(graph: Graph, call: Call) -> Node:
    """The sum of squares of what is centred, over their number less one (or less the correction given), and its root."""
    node, dims, unbiased, keep = (*call.args, *(None, True, call.kwargs.get("keepdim", False))[len(call.args) - 1 :])[:4]
    correction = call.kwargs.get("correction", 1) if call.target in (aten.var.correction, aten.std.correction) else int(unbiased)
    axes = _axes(call, node, dims)
    count = math.prod(node.shape[axis] for axis in axes)
    square = graph.relaxed(call.name, [compose.centred(graph, call.name, node, axes)], Power(2))
    share = 1 / (count - (1 if correction is None else correction))
    spread = _times(graph, call.name, _summed(graph, call, square, axes, keep), share)
    return spread if call.target in (aten.var.dim, aten.var.correction) else _root(graph, call.name, spread)


def _root(graph: Graph, name: str, node: Node) -> Node:
    """The root of what is no less than zero, whatever rounding says of its bounds."""
    return graph.relaxed(name, [graph.relaxed(name, [node], Clip(low=0.0))], Sqrt())


def _summed(graph: Graph, call: Call, node: Node, dims: Any, keep: bool) -> Node:
    axes = _axes(call, node, dims)
    return graph.affine(call.name, [node], *(lambda v: v.sum(axes, keepdim=keep),) * 2)


def _axes(call: Call, node: Node | Lowered, dims: Any) -> list[int]:
    """Those that are named, or all; never that of the batch."""
    axes = [d % len(node.shape) for d in leaves(dims) if d is not None] or list(range(len(node.shape)))
    if 0 in axes:
        raise UnsupportedLayer(f"{call.name}: {call.target} goes over the inputs of a batch, so nothing about one of them can be proved.")
    return axes


@handles(aten.prod.dim_int)
def product(graph: Graph, call: Call) -> Node:
    """One half times the other, again and again."""
    node, axis = call.args[0], call.args[1] % len(call.args[0].shape)
    _axes(call, node, [axis])
    while (size := node.shape[axis]) > 1:
        half = size // 2
        parts = [
            graph.moved(call.name, [node], lambda v, a=a, n=n: v.narrow(axis, a, n))
            for a, n in ((0, half), (half, half), (2 * half, size % 2))
        ]
        first = compose.product(graph, call.name, *parts[:2])
        node = graph.moved(call.name, [first, parts[2]], lambda *v: torch.cat(v, axis)) if size % 2 else first
    keep = len(call.args) > 2 and call.args[2]
    return node if keep else graph.moved(call.name, [node], lambda v: v.squeeze(axis))


@handles(aten.logsumexp.default, masked=True)
def logsumexp(graph: Graph, call: Call) -> Node:
    return _reduced(graph, call, compose.LOG_SUM)


def _reduced(graph: Graph, call: Call, relaxation: Relaxation) -> Node:
    node: Node | Lowered = call.args[0]
    dims = call.args[1] if len(call.args) > 1 else call.kwargs.get("dim", [])
    keep = bool(call.args[2]) if len(call.args) > 2 else bool(call.kwargs.get("keepdim", False))
    axes = _axes(call, node, dims)
    if isinstance(node, Lowered):
        shape = [1 if axis in axes else size for axis, size in enumerate(node.shape)]
        found = compose.along(graph, call.name, masks.joined(graph, call.name, node, axes), -1, relaxation)
        whole = graph.moved(call.name, [found], lambda v: v.reshape(shape))
    else:
        whole = functools.reduce(lambda part, axis: compose.along(graph, call.name, part, axis, relaxation), axes, node)
    return whole if keep else graph.moved(call.name, [whole], lambda v: v.squeeze(axes))


@handles(aten.softmax.int, aten._softmax.default, masked=True)
def softmax(graph: Graph, call: Call) -> Node:
    return compose.softmax(graph, call.name, call.args[0], call.args[1])


@handles(aten.log_softmax.int, aten._log_softmax.default, masked=True)
def log_softmax(graph: Graph, call: Call) -> Node | Lowered:
    return compose.log_softmax(graph, call.name, call.args[0], call.args[1])
