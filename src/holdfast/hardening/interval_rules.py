"""Interval rules where the generic rules are looser or slower: linear layers, maxima, softmax."""

from typing import Any

import torch
from torch import Tensor

from holdfast.bounding.graph.graph import Graph, OperatorCall, leaves
from holdfast.bounding.graph.node import MaskedValue, Node
from holdfast.bounding.graph.operators import bind_constants
from holdfast.bounding.graph.reductions import WHICH
from holdfast.errors import UnsupportedLayer
from holdfast.hardening.intervals import IntervalGraph, Span, around, between, rule

aten = torch.ops.aten


@rule(aten.linear.default, aten.conv1d.default, aten.conv2d.default, aten.conv3d.default)
def interval_linear(graph: Graph, call: OperatorCall) -> Span:
    """W x + b: the bias moves only the centre."""
    x, weight, *rest = call.args
    if not isinstance(x, Span) or any(isinstance(leaf, Node) for leaf in leaves((weight, rest, call.kwargs))):
        raise UnsupportedLayer(
            f"{call.name}: the weights of {call.target} depend on the input; such a layer has no interval "
            "bounds."
        )
    bias = rest[:1] or [call.kwargs.get("bias")]
    others = {name: value for name, value in call.kwargs.items() if name != "bias"}
    assert isinstance(graph, IntervalGraph)

    def function(v: Tensor) -> Tensor:
        found: Tensor = call.target(v, weight, *bias, *rest[1:], **others)
        return found

    reach = call.target(x.reach, weight.abs(), None, *rest[1:], **others)
    return graph.record_node(around(call.name, function(x.centre), reach), [x], function)


@rule(
    aten.max_pool1d.default,
    aten.max_pool2d.default,
    aten.max_pool3d.default,
    aten.amax.default,
    aten.amin.default,
    aten.maximum.default,
    aten.minimum.default,
    aten.max.other,
    aten.min.other,
    aten.logsumexp.default,
)
def rising(graph: Graph, call: OperatorCall) -> Span:
    """A function that increases in each argument attains its bounds at theirs."""
    call = _finite_call(graph, call)
    run = bind_constants(call, call.target)
    return between(
        call.name, *(run(*(getattr(node, end) for node in call.nodes)) for end in ("lower", "upper"))
    )


@rule(
    aten.max_pool1d_with_indices.default,
    aten.max_pool2d_with_indices.default,
    aten.max_pool3d_with_indices.default,
    aten.max.dim,
    aten.min.dim,
    aten.adaptive_max_pool1d.default,
    aten.adaptive_max_pool2d.default,
    aten.adaptive_max_pool3d.default,
)
def rising_and_which(graph: Graph, call: OperatorCall) -> tuple[Span, Any]:
    call = _finite_call(graph, call)
    run = bind_constants(call, call.target)
    return between(
        call.name, *(run(*(getattr(node, end) for node in call.nodes))[0] for end in ("lower", "upper"))
    ), WHICH


def _finite_call(graph: Graph, call: OperatorCall) -> OperatorCall:
    """Resolve masks: to a maximum, minus infinity is a bound like any other."""
    first, *rest = call.args
    if isinstance(first, MaskedValue) and isinstance(first.node, Span):
        first = between(call.name, first.node.lower + first.by, first.node.upper + first.by)
    return OperatorCall(call.name, call.target, (first, *rest), call.kwargs)


@rule(aten.softmax.int, aten._softmax.default, aten.log_softmax.int, aten._log_softmax.default)
def softmax(graph: Graph, call: OperatorCall) -> Span:
    """An output is smallest if its own pre-activation is smallest and all others are largest."""
    call = _finite_call(graph, call)
    node, axis = call.args[:2]
    log = call.target in (aten.log_softmax.int, aten._log_softmax.default)
    lower, upper = (
        _share(own, others, axis) for own, others in ((node.lower, node.upper), (node.upper, node.lower))
    )
    return between(call.name, *((lower, upper) if log else (lower.exp(), upper.exp())))


def _share(own: Tensor, others: Tensor, axis: int) -> Tensor:
    """Return log(exp(own) / (exp(own) + sum of exp over the others)), elementwise."""
    top = torch.maximum(own, others).amax(axis, keepdim=True).detach()
    top = torch.nan_to_num(top, 0.0, 0.0, 0.0)
    mine, theirs = (own - top).exp(), (others - top).exp()
    rest = (theirs.sum(axis, keepdim=True) - theirs).clamp_min(0)
    return own - top - (mine + rest).clamp_min(1e-30).log()
