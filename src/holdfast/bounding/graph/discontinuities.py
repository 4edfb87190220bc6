"""Discontinuous functions: rounding to integers, comparisons, truth values and selection by a condition.

Identities used: trunc(v) = floor(max(v, 0)) + ceil(min(v, 0)); a mod b = a - b floor(a / b); not a = 1 - a; a
or b = 1 - (1 - a) (1 - b); where(c, a, b) = b + c (a - b). The input of a discontinuity is widened by
`Unsure`, because the model's own rounding decides on which side of a jump a computed value lies.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from holdfast.bounding.graph import compose, masks
from holdfast.bounding.graph.graph import Affine, Graph, InputNode, Node, OperatorCall, Relaxed, handles
from holdfast.bounding.graph.node import MaskedValue
from holdfast.bounding.relax import (
    Ceil,
    Clip,
    Floor,
    Product,
    Relaxation,
    Relu,
    Round,
    RoundedInput,
    Sign,
    Step,
)
from holdfast.errors import UnsupportedLayer

aten = torch.ops.aten


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
    return graph.add_relaxed(
        name, [node if _is_constant(node) else graph.add_relaxed(name, [node], RoundedInput())], relaxation
    )


def _is_constant(node: Node) -> bool:
    """Whether the node is the input, or only moved or clipped at zero, so that it is not rounded."""
    copies = (isinstance(node, Affine) and node.copies) or (
        isinstance(node, Relaxed) and isinstance(node.relaxation, Relu)
    )
    return isinstance(node, InputNode) or (copies and all(_is_constant(source) for source in node.inputs))


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


@handles(*ABOVE, aten.lt.Scalar, aten.lt.Tensor, aten.le.Scalar, aten.le.Tensor)
def comparison(graph: Graph, call: OperatorCall) -> Node:
    """1 where the comparison holds, otherwise 0: a step of the difference."""
    a, b = call.args
    sign = 1 if call.target in ABOVE else -1
    return graph.add_relaxed(call.name, [compose.difference(graph, call.name, a, b, sign)], Step())


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
    if not all(may_be_truth(value) for value in call.args):
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


@handles(aten.where.self, aten.where.ScalarSelf, aten.where.ScalarOther, aten.where.Scalar, masked=True)
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
