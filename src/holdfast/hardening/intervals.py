"""Interval bound propagation (IBP), differentiable in the weights (Gowal et al. 2018).

Statement. For an affine layer and an interval with centre m and radius r >= 0,

    W x + b in [ W m + b - |W| r,  W m + b + |W| r ],

and an activation maps an interval to its range. The margins of a last linear layer with rows w_k are bounded
jointly,

    z_c - z_k >= (w_c - w_k) m - |w_c - w_k| r + b_c - b_k.

The operators are those of the engine (`holdfast.bounding.graph`): `IntervalGraph` replaces the graph that
they build, and computes intervals at once, in the network's dtype, for a whole batch. So every layer that can
be certified can be trained.

Assumption: these intervals are for a loss. Nothing is rounded outwards, and nothing here is ever reported
as a certificate.

Reference: Gowal et al., "On the effectiveness of interval bound propagation for training verifiably robust
models" (2018).
"""

import operator
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn

from holdfast.bounding.graph import cells as _cells  # noqa: F401  for what they add to the table of handlers
from holdfast.bounding.graph import operators as _operators  # noqa: F401
from holdfast.bounding.graph.graph import (
    HANDLERS,
    Graph,
    Handler,
    OperatorCall,
    last_softmax,
    leaves,
    output_node,
    run_handler,
)
from holdfast.bounding.graph.kernel import Kernel
from holdfast.bounding.graph.node import MaskedValue, Node, Unbounded
from holdfast.bounding.relax import Relaxation
from holdfast.bounding.relax.base import value_range
from holdfast.errors import UnsupportedLayer
from holdfast.hardening.ranges import RANGES
from holdfast.network import Network
from holdfast.network.trace import as_plain_module, weights_of, where

__all__ = ["IntervalGraph", "Span", "Traced", "rule"]

aten = torch.ops.aten
RULES: dict[Any, Handler] = {}  # operators with a better or faster interval rule than the generic one


def rule(*targets: Any) -> Callable[[Handler], Handler]:
    def register(handler: Handler) -> Handler:
        RULES.update(dict.fromkeys(targets, handler))
        return handler

    return register


@dataclass(frozen=True, eq=False)
class Span(Node):
    """lower <= value <= upper, each (batch, *shape)."""

    lower: Tensor
    upper: Tensor

    @property
    def centre(self) -> Tensor:
        return (self.lower + self.upper) / 2

    @property
    def reach(self) -> Tensor:
        """Radius: half of the width."""
        return (self.upper - self.lower) / 2


def around(name: str, centre: Tensor, reach: Tensor) -> Span:
    return Span(0, name, (), tuple(centre.shape), centre - reach, centre + reach)


def between(name: str, lower: Tensor, upper: Tensor) -> Span:
    return Span(0, name, (), tuple(lower.shape), lower, upper)


@dataclass(eq=False)
class IntervalGraph(Graph):
    """A graph that computes the interval of each node when it is added, and stores no nodes."""

    # called with the name and interval of every pre-activation
    seen: Callable[[str, Span], None] | None = None

    def affine(
        self,
        name: str,
        inputs: Sequence[Node],
        function: Any,
        magnitude: Any,
        *,
        kernel: Kernel | None = None,
        last_axis: Tensor | None = None,
    ) -> Node:
        """Apply function(*inputs) = J inputs + b to the centres, and magnitude(*m) = |J| m + |b| to the
        radii."""
        spans = [as_span(node) for node in inputs]
        size = magnitude(*(span.reach for span in spans)) - magnitude(
            *(torch.zeros_like(span.lower) for span in spans)
        )
        return around(name, function(*(span.centre for span in spans)), size)

    def add_sum(self, name: str, inputs: Sequence[Node]) -> Node:
        spans = [as_span(node) for node in inputs]
        return between(name, sum(s.lower for s in spans), sum(s.upper for s in spans))  # type: ignore[arg-type]

    def add_move(self, name: str, inputs: Sequence[Node], function: Any) -> Node:
        spans = [as_span(node) for node in inputs]
        return between(name, function(*(s.lower for s in spans)), function(*(s.upper for s in spans)))

    def record_node(self, node: Span, inputs: Sequence[Node], by: Callable[..., Tensor] | Relaxation) -> Span:
        """Record a node that a rule computed as this function of its inputs."""
        return node

    def handler(self, target: Any) -> Handler | None:
        """Return the handler of an operator."""
        return RULES.get(target) or HANDLERS.get(target)

    def add_relaxed(self, name: str, inputs: Sequence[Node], relaxation: Relaxation) -> Node:
        spans = [as_span(node) for node in inputs]
        if self.seen is not None:
            for span in spans:
                self.seen(name, span)
        lower, upper = tuple(s.lower for s in spans), tuple(s.upper for s in spans)
        found = RANGES.get(type(relaxation))
        return between(
            name,
            *(value_range(relaxation, lower, upper) if found is None else found(relaxation, lower, upper)),
        )


def as_span(node: Node) -> Span:
    assert isinstance(node, Span)
    return node


class Traced:
    """A traced network for one input shape, evaluated on intervals with the current weights.

    The module is a copy of the network's own whose parameters are being trained; the program defines the
    computation.
    """

    def __init__(self, net: Network, x: Tensor, module: nn.Module) -> None:
        program = net.program(x)
        self.name = net.name
        self.names = {node.name: where(node) for node in program.graph.nodes}
        self.graph = as_plain_module(program)
        self.dtype, self.device = net.dtype, net.device
        self.skipped: Any = last_softmax(self.graph.graph)
        self.module = module
        live = weights_of(module)
        self.constants: dict[fx.Node, Any] = {}
        for node in self.graph.graph.nodes:
            if node.op == "get_attr":
                path = str(node.target)
                self.constants[node] = live[path] if path in live else operator.attrgetter(path)(self.graph)

    def logits(
        self, lower: Tensor, upper: Tensor, seen: Callable[[str, Span], None] | None = None
    ) -> tuple[Tensor, Tensor]:
        """Bound the outputs over lower <= x <= upper: lower and upper bounds, (batch, outputs) each.

        A final softmax, which preserves the order of the outputs, is skipped.
        """
        span, _ = self.run(lower, upper, self._graph(seen), elide=False)
        return span.lower, span.upper

    def margins(
        self, lower: Tensor, upper: Tensor, label: Tensor, seen: Callable[[str, Span], None] | None = None
    ) -> Tensor:
        """Lower-bound the margins over lower <= x <= upper: label (batch,) -> (batch, outputs).

        result[b, k] <= output[label] - output[k], up to rounding. If the network ends with a linear layer,
        the differences are bounded as rows of their own, which is tighter than the difference of two bounds.
        """
        span, head = self.run(lower, upper, self._graph(seen), elide=True)
        if head is None:
            own = span.lower.gather(1, label[:, None])
            return (own - span.upper).scatter(1, label[:, None], 0.0)
        weight, bias = head
        rows = weight[label][:, None, :] - weight  # (batch, outputs, features)
        shift = 0.0 if bias is None else bias[label][:, None] - bias
        least = rows @ span.centre[..., None] - rows.abs() @ span.reach[..., None]
        found: Tensor = least.squeeze(-1) + shift
        return found

    def check(self, x: Tensor) -> None:
        """Raise UnsupportedLayer if an operator has no interval bounds."""
        with torch.no_grad():
            self.logits(x, x)

    def _graph(self, seen: Callable[[str, Span], None] | None) -> IntervalGraph:
        return IntervalGraph(device=self.device, seen=seen)

    def run(
        self, lower: Tensor, upper: Tensor, graph: IntervalGraph, *, elide: bool
    ) -> tuple[Span, tuple[Tensor, Tensor | None] | None]:
        """The last node; with `elide`, if the network ends with a linear layer, its input and its weights."""
        known: dict[Any, Any] = dict(self.constants)
        last: Any = self._last_linear() if elide else None
        result: Any = None
        for node in self.graph.graph.nodes:
            if node.op == "placeholder":
                known[node] = between(
                    "input", lower.to(self.device, self.dtype), upper.to(self.device, self.dtype)
                )
            elif node.op == "output":
                (result,) = node.args
            elif node is self.skipped:
                known[node] = known[self.skipped.args[0]]
            elif node is last and isinstance(entering := known[last.args[0]], Span):
                weights: list[Any] = [known.get(leaf) for leaf in (*last.args[1:3], None)[:2]]
                return entering, (weights[0], weights[1])
            elif node.op == "call_function":
                known[node] = self._call_operator(graph, node, known)
        return as_span(output_node(graph, self.name, result, known)), None

    def _last_linear(self) -> fx.Node | None:
        (node,) = leaves(next(n for n in self.graph.graph.nodes if n.op == "output").args[0])[:1]
        while isinstance(node, fx.Node) and (node is self.skipped or _flattens(node)):
            node = node.args[0]
        if not isinstance(node, fx.Node) or node.target != aten.linear.default:
            return None
        return (
            node
            if all(part.meta["val"].dim() == 2 for part in node.args[:2] if isinstance(part, fx.Node))
            else None
        )

    def _call_operator(self, graph: IntervalGraph, node: fx.Node, known: dict[Any, Any]) -> Any:
        name: str = self.names.get(node.name, node.name)
        target: Any = node.target
        args: Any = fx.node.map_arg(node.args, known.__getitem__)
        kwargs: Any = fx.node.map_arg(node.kwargs, known.__getitem__)
        given = leaves((args, kwargs))
        if not any(isinstance(leaf, Node | MaskedValue) for leaf in given):
            if any(isinstance(leaf, Unbounded) for leaf in given):
                return Unbounded("a result that depends on the order of values")
            return target(*args, **kwargs)
        handler = graph.handler(target)
        if handler is None:
            raise UnsupportedLayer(
                f"layer {name}: there are no interval bounds for {target}, so the network cannot be trained "
                "with "
                f"bounds. Train with recipe='pgd', which needs none, or remove the layer."
            )
        call = OperatorCall(name, target, args, kwargs)
        return self._own(run_handler(graph, handler, call, "has no interval bounds ({reason})."))

    def _own(self, value: Any) -> Any:
        """Convert constants that a handler makes in float64 to the dtype of training."""
        return value.to(self.dtype) if isinstance(value, Tensor) and value.dtype == torch.float64 else value


def _flattens(node: fx.Node) -> bool:
    """Whether the node only reshapes (batch, outputs) to itself, as adapters do at the end."""
    if node.target not in (aten.flatten.using_ints, aten.view.default, aten.reshape.default):
        return False
    before, after = (part.meta.get("val") for part in (node.args[0], node))  # type: ignore[union-attr]
    return before is not None and after is not None and before.dim() == after.dim() == 2


@contextmanager
def frozen(module: nn.Module) -> Iterator[None]:
    """Disable gradients of the module's parameters within the context."""
    needed = [(p, p.requires_grad) for p in module.parameters()]
    try:
        for p, _ in needed:
            p.requires_grad_(False)
        yield
    finally:
        for p, was in needed:
            p.requires_grad_(was)
