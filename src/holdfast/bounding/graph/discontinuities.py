"""Discontinuous functions: rounding to integers, comparisons, truth values and selection by a condition.

Statement. These are identities: trunc(v) = floor(max(v, 0)) + ceil(min(v, 0)); a mod b = a - b floor(a / b); not a = 1 - a; a
or b = 1 - (1 - a) (1 - b); where(c, a, b) = b + c (a - b). The input of a discontinuity is widened by
`Unsure`, because the model's own rounding decides on which side of a jump a computed value lies.

Assumptions: conditions and truth values are 0 or 1, and the divisor b is not zero.

Reference: none; the identities are elementary.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from holdfast.bounding.graph import compose, masks
from holdfast.bounding.graph.graph import Affine, Graph, InputNode, Node, OperatorCall, Relaxed, handles
from holdfast.bounding.graph.kernel import convolution
from holdfast.bounding.graph.node import MaskedValue, is_image
from holdfast.bounding.relax import (
    Abs,
    Ceil,
    Clip,
    DynamicRounding,
    Floor,
    IntegerRange,
    Product,
    Relaxation,
    Relu,
    Round,
    RoundedInput,
    Sign,
    Step,
)
from holdfast.errors import UnsupportedLayer
from holdfast.network.dynamic_quantisation import CONVOLUTIONS, LEVELS

aten = torch.ops.aten


# Largest number of values of an argmax: each takes a comparison, a product and a maximum (chosen by hand).
LARGEST_ARGMAX = 64
# The relaxation of every elementwise operator with jumps.
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
def jumping(graph: Graph, call: OperatorCall) -> Node:
    return _jumping(graph, call.name, call.args[0], JUMPS[call.target])


def _jumping(graph: Graph, name: str, node: Node, relaxation: Relaxation) -> Node:
    """The function of a value that the network's arithmetic may have rounded; inputs that are not computed
    are not widened.
    """
    limits = _integer_limits(node) if isinstance(relaxation, Round) else None
    if limits is not None:
        (node,) = node.inputs
    widened = node if _is_constant(node) else graph.add_relaxed(name, [node], RoundedInput())
    if limits is not None:
        low, high = limits
        above = graph.add_relaxed(name, [widened], Relu() if low == 0 else Clip(low=low))
        widened = graph.add_relaxed(name, [above], Clip(high=high))
    return graph.add_relaxed(name, [widened], relaxation)


def _integer_limits(node: Node) -> tuple[float, float] | None:
    """The limits of a node that is clipped at two integers, as in front of the rounding of a quantised layer.

    There the clipping is exact: only its argument is widened, and each limit is a function with one kink.
    """
    if not isinstance(node, Relaxed) or not isinstance(node.relaxation, Clip):
        return None
    low, high = node.relaxation.low, node.relaxation.high
    return (low, high) if low.is_integer() and high.is_integer() and low < high else None


def _is_constant(node: Node) -> bool:
    """Whether the node is the input, or only moved or clipped at zero, so that it is not rounded."""
    copies = (isinstance(node, Affine) and node.copies) or (
        isinstance(node, Relaxed) and isinstance(node.relaxation, Relu)
    )
    return isinstance(node, InputNode) or (copies and all(_is_constant(source) for source in node.inputs))


@handles(torch.ops.holdfast.dynamic_product.default, torch.ops.holdfast.dynamic_convolution.default)
def dynamic_quantisation(graph: Graph, call: OperatorCall) -> Node:
    """A product of integer weights with a node on a grid that its largest and smallest element determine."""
    node, weight, scale, *window = call.args
    rounded = _on_dynamic_grid(graph, call.name, node)
    if call.target == torch.ops.holdfast.dynamic_product.default:
        real = weight.double() * scale.double()  # Integers of 9 bits times float32: exact.
        return graph.affine(call.name, [rounded], lambda v: v @ real, lambda m: m @ real.abs())
    axes = weight.dim() - 2
    real = weight.double() * scale.double().reshape(-1, *[1] * (axes + 1))
    stride, dilation, groups = window
    convolve = CONVOLUTIONS[axes]
    return graph.affine(
        call.name,
        [rounded],
        lambda v: convolve(v, real, None, stride, 0, dilation, groups),
        lambda m: convolve(m, real.abs(), None, stride, 0, dilation, groups),
        kernel=convolution(real, stride, [0, 0], dilation, groups) if is_image(rounded) else None,
    )


def _on_dynamic_grid(graph: Graph, name: str, node: Node) -> Node:
    """The node rounded to the grid with the step (max(0, largest) + max(0, -smallest)) / LEVELS."""
    flat = graph.add_move(name, [node], lambda v: v.reshape(1, -1))
    ends = [
        graph.add_relaxed(name, [compose.along(graph, name, side, 1, Relu())], Relu())
        for side in (flat, compose.negate(graph, name, flat))
    ]
    step = graph.affine(name, ends, *(lambda a, b: (a + b) / LEVELS,) * 2)
    each = graph.add_move(name, [step], lambda v: v.reshape((1,) * len(node.shape)).expand(node.shape))
    return graph.add_relaxed(name, [node, each], DynamicRounding())


@handles(aten.round.decimals)
def lower_round(graph: Graph, call: OperatorCall) -> Node:
    node, unit = call.args[0], 10.0 ** call.kwargs.get("decimals", 0)
    return compose.times(
        graph,
        call.name,
        _jumping(graph, call.name, compose.times(graph, call.name, node, unit), Round()),
        1 / unit,
    )


@handles(aten.trunc.default, aten.trunc_.default, aten.fix.default)
def lower_trunc(graph: Graph, call: OperatorCall) -> Node:
    return _truncate(graph, call.name, call.args[0])


@handles(aten.frac.default)
def fraction(graph: Graph, call: OperatorCall) -> Node:
    return compose.difference(graph, call.name, call.args[0], _truncate(graph, call.name, call.args[0]))


def _truncate(graph: Graph, name: str, node: Node) -> Node:
    """floor of the positive part plus ceil of the negative part."""
    if not _is_constant(node):
        node = graph.add_relaxed(name, [node], RoundedInput())
    above = graph.add_relaxed(name, [graph.add_relaxed(name, [node], Relu())], Floor())
    below = graph.add_relaxed(name, [graph.add_relaxed(name, [node], Clip(high=0.0))], Ceil())
    return graph.add_sum(name, [above, below])


@handles(aten.div.Tensor_mode, aten.div.Scalar_mode, aten.floor_divide.default)
def lower_integer_division(graph: Graph, call: OperatorCall) -> Node:
    a, b = call.args
    return _whole_quotient(graph, call.name, a, b, call.kwargs.get("rounding_mode", "floor"))


@handles(aten.remainder.Scalar, aten.remainder.Tensor, aten.fmod.Scalar, aten.fmod.Tensor)
def remainder(graph: Graph, call: OperatorCall) -> Node:
    """a - b floor(a / b), or with fmod b trunc(a / b)."""
    a, b = call.args
    mode = "trunc" if call.target in (aten.fmod.Scalar, aten.fmod.Tensor) else "floor"
    times = _whole_quotient(graph, call.name, a, b, mode)
    if isinstance(b, Node):
        return compose.difference(graph, call.name, a, compose.product(graph, call.name, b, times))
    return compose.difference(
        graph, call.name, a, graph.affine(call.name, [times], lambda v: v * b, lambda m: m * abs(b))
    )


def _whole_quotient(graph: Graph, name: str, a: Any, b: Any, mode: str | None) -> Node:
    """a / b, rounded to an integer according to torch's rounding mode."""
    ratio = (
        compose.quotient(graph, name, a, b)
        if isinstance(b, Node)
        else graph.affine(name, [a], lambda v: v / b, lambda m: m / abs(b))
    )
    if mode is None:
        return ratio
    return _jumping(graph, name, ratio, Floor()) if mode == "floor" else _truncate(graph, name, ratio)


ABOVE = (aten.gt.Scalar, aten.gt.Tensor, aten.ge.Scalar, aten.ge.Tensor)


@handles(*ABOVE, aten.lt.Scalar, aten.lt.Tensor, aten.le.Scalar, aten.le.Tensor, integers=True)
def comparison(graph: Graph, call: OperatorCall) -> Node:
    """1 where the comparison holds, otherwise 0: a step of the difference."""
    a, b = call.args
    sign = 1 if call.target in ABOVE else -1
    return graph.add_relaxed(call.name, [compose.difference(graph, call.name, a, b, sign)], Step())


@handles(aten.eq.Scalar, aten.eq.Tensor, aten.ne.Scalar, aten.ne.Tensor, integers=True)
def equality(graph: Graph, call: OperatorCall) -> Node:
    """1 where two integers are equal, otherwise 0: relu(1 - |a - b|), whose relaxation has no jump.

    Of a truth value a and a constant c this is a for c = 1, 1 - a for c = 0, and 0 for any other c. Equal floating
    values would be decided by rounding, so they are refused.
    """
    if not all(_is_whole(kind, value) for kind, value in zip(call.types, call.args, strict=True)):
        raise UnsupportedLayer(
            f"{call.name}: equality is bounded for integers and truth values only; attacks still work."
        )
    first = 0 if isinstance(call.args[0], Node) else 1
    a, b = call.args[first], call.args[1 - first]
    if not isinstance(b, Node) and (call.types[first] == torch.bool or _is_step(a)):
        equal = _equal_to_constant(graph, call.name, a, torch.as_tensor(b, device=graph.device))
    else:
        apart = graph.add_relaxed(call.name, [compose.difference(graph, call.name, a, b)], Abs())
        equal = graph.add_relaxed(call.name, [_not(graph, call.name, apart)], Relu())
    if call.target in (aten.ne.Scalar, aten.ne.Tensor):
        return graph.affine(call.name, [equal], lambda v: 1 - v, lambda m: 1 + m)
    return equal


def _is_step(node: Node) -> bool:
    """Whether all values of a node are 0 or 1: it is a step, or copies elements of steps."""
    if isinstance(node, Relaxed):
        return isinstance(node.relaxation, Step)
    return isinstance(node, Affine) and node.copies and all(_is_step(source) for source in node.inputs)


def _is_whole(kind: torch.dtype | None, value: Any) -> bool:
    """Whether an argument holds integers or truth values."""
    return isinstance(value, int) if kind is None else not kind.is_floating_point and not kind.is_complex


def _equal_to_constant(graph: Graph, name: str, truth: Node, constant: Tensor) -> Node:
    """Whether a truth value equals a constant, element by element: c a + (1 - c) (1 - a), or 0."""
    one, zero = (constant == 1).double(), (constant == 0).double()
    return graph.affine(name, [truth], lambda v: one * v + zero * (1 - v), lambda m: one * m + zero * (1 + m))


@handles(aten.argmax.default, aten.argmin.default, integers=True)
def argmax(graph: Graph, call: OperatorCall) -> Node:
    """The first position of the largest value along an axis, by comparing each value with the largest so far:

    best_0 = v_0, position_0 = 0; s_j = [v_j > best_{j-1}], position_j = position_{j-1} + s_j (j - position_{j-1}),
    best_j = max(best_{j-1}, v_j).
    """
    given: dict[str, Any] = dict(zip(("node", "dim", "keepdim"), call.args, strict=False)) | call.kwargs
    node, axis, keep = given["node"], given.get("dim"), given.get("keepdim", False)
    if axis is None or not 1 < node.shape[axis] <= LARGEST_ARGMAX:
        raise UnsupportedLayer(
            f"{call.name}: an argmax is bounded along one axis of 2 to {LARGEST_ARGMAX} values; attacks still work."
        )
    graph.makes_integers = True
    if call.target == aten.argmin.default:
        node = compose.negate(graph, call.name, node)
    values: list[Node] = [
        graph.add_move(call.name, [node], lambda v, j=j: v.narrow(axis, j, 1) if keep else v.select(axis, j))
        for j in range(node.shape[axis])
    ]
    best, position = values[0], values[0]
    for j, value in enumerate(values[1:], 1):
        larger = comparison(graph, OperatorCall(call.name, aten.gt.Tensor, (value, best), {}))
        if j == 1:
            position = larger
        else:
            step = graph.affine(call.name, [position], lambda p, j=j: j - p, lambda m, j=j: j + m)
            position = graph.add_sum(call.name, [position, compose.product(graph, call.name, larger, step)])
        if j < len(values) - 1:
            best = compose.larger(graph, call.name, value, best)
    return position


def cast_from_integers(graph: Graph, call: OperatorCall) -> Any:
    """A cast of integers to floating values; a value that may not be representable has infinite bounds."""
    return graph.add_relaxed(call.name, [call.args[0]], IntegerRange())


def cast_to_integers(graph: Graph, call: OperatorCall, kind: torch.dtype) -> Any:
    """A cast to integers or truth values.

    Integers and truth values keep their value, other values lose their fraction. A result that does not fit into
    `IntegerRange` has infinite bounds.
    """
    node, own = call.args[0], call.types[0] if call.types else None
    whole = kind in (torch.bool, torch.int32, torch.int64)  # shorter integers wrap around soon
    if own == kind or (own == torch.bool and whole):
        return node
    if (
        kind == torch.bool
        or kind not in (torch.int32, torch.int64)
        or own is None
        or not isinstance(node, Node)
    ):
        to = "truth values" if kind == torch.bool else str(kind)
        raise UnsupportedLayer(f"{call.name}: a cast to {to} has no bound here; attacks still work.")
    graph.makes_integers = True
    rounded = _truncate(graph, call.name, node) if own.is_floating_point else node
    return graph.add_relaxed(call.name, [rounded], IntegerRange())


def may_be_truth(value: Any) -> bool:
    """Whether a value is built only from comparisons, moved or multiplied; float64 nodes do not record their
    torch type.
    """
    if isinstance(value, Relaxed) and not isinstance(value.relaxation, Product):
        return isinstance(value.relaxation, Step)
    if isinstance(value, Node):
        return bool(value.inputs) and all(may_be_truth(source) for source in value.inputs)
    return isinstance(value, bool) or (isinstance(value, Tensor) and value.dtype == torch.bool)


EITHER = (aten.logical_or.default, aten.bitwise_or.Tensor, aten.__or__.Tensor)
NOT = (aten.logical_not.default, aten.bitwise_not.default)


@handles(*EITHER, *NOT, aten.logical_and.default, aten.bitwise_and.Tensor, aten.__and__.Tensor)
def logic(graph: Graph, call: OperatorCall) -> Any:
    """not a = 1 - a, a and b = a b, a or b = 1 - (1 - a) (1 - b)."""
    kinds = call.types or (None,) * len(call.args)
    if not all(
        kind == torch.bool or (kind is None and may_be_truth(value))
        for kind, value in zip(kinds, call.args, strict=True)
    ):
        raise UnsupportedLayer(
            f"{call.name}: {call.target} is bounded for truth values only; attacks still work."
        )
    turned = call.target in EITHER
    sides = [_not(graph, call.name, side) if turned or call.target in NOT else side for side in call.args]
    if len(sides) == 1:
        return sides[0]
    a, b = sides if isinstance(sides[0], Node) else sides[::-1]
    both = (
        compose.product(graph, call.name, a, b)
        if isinstance(b, Node)
        else graph.affine(call.name, [a], *(lambda v: v * b,) * 2)
    )
    return _not(graph, call.name, both) if turned else both


def _not(graph: Graph, name: str, value: Any) -> Any:
    return (
        graph.affine(name, [value], lambda v: 1 - v, lambda m: 1 + m)
        if isinstance(value, Node)
        else ~torch.as_tensor(value)
    )


@handles(aten.threshold.default)
def threshold(graph: Graph, call: OperatorCall) -> Any:
    """v where v > threshold, otherwise a constant."""
    node, at, value = call.args
    above = comparison(graph, OperatorCall(call.name, aten.gt.Scalar, (node, at), {}))
    return where(graph, OperatorCall(call.name, aten.where.self, (above, node, value), {}))


@handles(aten.nan_to_num.default)
def numbers(graph: Graph, call: OperatorCall) -> Node:
    """The input: where it may be NaN or infinite, its bounds are infinite anyway."""
    node: Node = call.args[0]
    return node


@handles(
    aten.where.self,
    aten.where.ScalarSelf,
    aten.where.ScalarOther,
    aten.where.Scalar,
    masked=True,
    integers=True,
)
def where(graph: Graph, call: OperatorCall) -> Node | MaskedValue:
    """b + condition (a - b)."""
    condition, a, b = call.args
    low = [
        isinstance(side, MaskedValue)
        or (not isinstance(side, Node) and bool((torch.as_tensor(side) <= masks.LOW).any()))
        for side in (a, b)
    ]
    if any(low) and not isinstance(condition, Node):
        a, b = (
            side if isinstance(side, Node | MaskedValue) else torch.as_tensor(side, device=graph.device)
            for side in (a, b)
        )
        return masks.chosen(graph, call.name, condition, a, b)
    a, b = (graph.resolve_mask(call.name, side) for side in (a, b))
    if not isinstance(condition, Node):
        return graph.affine(call.name, call.nodes, *(_choice(call, size) for size in (False, True)))
    if any(
        not isinstance(side, Node) and not bool(torch.as_tensor(side).isfinite().all()) for side in (a, b)
    ):
        raise UnsupportedLayer(
            f"{call.name}: a mask that depends on the input and is minus infinity somewhere has no bound; "
            "attacks still work."
        )
    if not isinstance(a, Node) and not isinstance(b, Node):
        a, b = (torch.as_tensor(v, device=graph.device).double() for v in (a, b))
        return graph.affine(
            call.name, [condition], lambda c: b + c * (a - b), lambda c: b.abs() + c * (a.abs() + b.abs())
        )
    chosen = compose.product(graph, call.name, condition, compose.difference(graph, call.name, a, b))
    if isinstance(b, Node):
        return graph.affine(call.name, [b, chosen], *(lambda v, c: v + c,) * 2)
    return graph.affine(call.name, [chosen], lambda c: b + c, lambda c: abs(b) + c)


@handles(
    aten.masked_fill.Scalar,
    aten.masked_fill.Tensor,
    aten.masked_fill_.Scalar,
    aten.masked_fill_.Tensor,
    masked=True,
)
def masked_fill(graph: Graph, call: OperatorCall) -> Any:
    node, mask, value = call.args
    return where(graph, OperatorCall(call.name, aten.where.self, (mask, value, node), {}))


def _choice(call: OperatorCall, size: bool) -> Callable[..., Tensor]:
    """torch.where for a constant condition, as a function of the call's nodes; with `size`, its magnitude."""

    def run(*values: Tensor) -> Tensor:
        place = dict(zip(call.nodes, values, strict=True))
        condition, a, b = call.args
        a, b = (place[v] if isinstance(v, Node) else abs(v) if size else v for v in (a, b))
        return torch.where(condition, a, b)

    return run
