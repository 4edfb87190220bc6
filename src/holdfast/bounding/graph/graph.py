"""The network for bound propagation: a list of affine maps and relaxed scalar functions, in float64.

A node's value for one input keeps the batch axis that the operators expect, at size one; bounding methods add
their own axes for inputs and rows.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import getitem
from typing import Any

import torch
from torch import Tensor, fx

from holdfast.bounding.graph.affine import (
    Affine,
    MapFunction,
    Transform,
    exact_nodes,
    make_copy,
    make_map,
    make_sum,
)
from holdfast.bounding.graph.kernel import Kernel
from holdfast.bounding.graph.node import InputNode, MaskedValue, Node, Relaxed, Unbounded
from holdfast.bounding.relax import Relaxation
from holdfast.errors import HoldfastError, UnsupportedLayer
from holdfast.foreign_text import first_line
from holdfast.network import Network
from holdfast.network.low_precision import is_coarse
from holdfast.network.trace import as_plain_module, convert_graph, where

__all__ = [
    "HANDLERS",
    "Affine",
    "Graph",
    "Handler",
    "InputNode",
    "Node",
    "OperatorCall",
    "Relaxed",
    "build",
    "handles",
    "leaves",
    "unsupported_nodes",
]

# The largest Jacobian that is stored as a matrix, in elements (32 MiB; chosen by hand).
LARGEST_MATRIX = 2**22


@dataclass(eq=False)
class Graph:
    """Nodes in topological order; the last is the output. Handlers in `operators`, `functions`, `reductions`
    and `cells` add nodes.
    """

    nodes: list[Node] = field(default_factory=list)
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    # Nodes through which coefficients pass backwards without rounding.
    exact: set[Node] = field(default_factory=set)
    # Names of layers that compute constants from weights alone, in float64.
    folded: list[str] = field(default_factory=list)
    # Names of layers that torch computes in one kernel, with other sums than those of the nodes here.
    fused: list[str] = field(default_factory=list)
    # node -> (z, a, b): the node equals sigmoid(z) a + (1 - sigmoid(z)) b.
    blends: dict[Node, tuple[Node, Node, Node]] = field(default_factory=dict)
    # Whether some layer was unrolled over time.
    recurrent: bool = False
    # A final softmax that was left out of the graph: (n, outputs) -> (n, outputs).
    ending: Callable[[Tensor], Tensor] | None = None
    # Whether a cast or an argmax has made integers from floating values.
    makes_integers: bool = False

    @property
    def entry(self) -> InputNode:
        first = self.nodes[0]
        assert isinstance(first, InputNode)
        return first

    @property
    def output(self) -> Node:
        return self.nodes[-1]

    def subgraph_ending_at(self, node: Node) -> "Graph":
        """The subgraph whose output is this node."""
        return replace(self, nodes=self.nodes[: node.place + 1], ending=None)

    def add_entry(self, shape: Sequence[int]) -> Node:
        return self._keep(InputNode(len(self.nodes), "input", (), tuple(shape)))

    def affine(
        self,
        name: str,
        inputs: Sequence[Node],
        function: Transform,
        magnitude: Transform,
        *,
        kernel: Kernel | None = None,
        last_axis: Tensor | None = None,
    ) -> Node:
        """Add the map function(*inputs) = J inputs + b, affine in all inputs together; magnitude(*m) = |J| m
        + |b| for m >= 0. kernel: J, if the map is a convolution or pooling of an image. last_axis: W, if it is
        x W + b along the last axis.
        """
        made = MapFunction(function, magnitude, kernel, last_axis)
        return self._keep(make_map(len(self.nodes), name, inputs, made, self.device, LARGEST_MATRIX))

    def add_sum(self, name: str, inputs: Sequence[Node]) -> Node:
        """Add the sum of different nodes of one shape."""
        return self._keep(make_sum(len(self.nodes), name, inputs))

    def add_move(self, name: str, inputs: Sequence[Node], function: Transform) -> Node:
        """Add a function that only moves, drops or repeats elements; applying it to their indices determines
        which.
        """
        starts = torch.tensor([0, *(n.size for n in inputs)], device=self.device).cumsum(0)
        numbers = [
            torch.arange(n.size, device=self.device).reshape(n.shape) + a
            for n, a in zip(inputs, starts, strict=False)
        ]
        moved = function(*numbers)
        node = make_copy(len(self.nodes), name, inputs, moved.shape, moved.flatten())
        # Compose with a source that only moves elements.
        while node.moves and isinstance(source := node.inputs[0], Affine) and source.copies:
            direct = node.after(source)
            if direct is None or not direct.moves:
                break
            node = direct
        return self._keep(node)

    def add_relaxed(self, name: str, inputs: Sequence[Node], relaxation: Relaxation) -> Node:
        return self._keep(Relaxed(len(self.nodes), name, tuple(inputs), inputs[0].shape, relaxation))

    def resolve_mask(self, name: str, value: Any) -> Any:
        """A masked value as a node, the sum of its parts; UnsupportedLayer if the mask is infinite. Other
        values are returned unchanged.
        """
        if not isinstance(value, MaskedValue):
            return value
        by = value.by
        if not bool(by.isfinite().all()):
            raise UnsupportedLayer(
                f"layer {name}: minus infinity in some places, as in a mask, is bounded only if a "
                "softmax or a "
                "maximum follows with nothing but moves and constants in between; attacks still work."
            )
        return self.affine(name, [value.node], lambda v: v + by, lambda m: m + by.abs())

    def _keep(self, node: Node) -> Node:
        self.nodes.append(node)
        return node


@dataclass(frozen=True)
class OperatorCall:
    """An operator of the traced graph with its arguments; arguments that depend on the input are Nodes.

    types: the torch type of each argument in the traced program; None where it is no tensor or not recorded.
    """

    name: str
    target: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    types: tuple[torch.dtype | None, ...] = ()

    @property
    def nodes(self) -> list[Node]:
        """The distinct nodes among the arguments, in order."""
        return [leaf for leaf in dict.fromkeys(leaves((self.args, self.kwargs))) if isinstance(leaf, Node)]


Handler = Callable[["Graph", OperatorCall], Any]
HANDLERS: dict[Any, Handler] = {}
# Operators whose handlers accept masked values (`MaskedValue`).
MASKED: set[Any] = set()
# Operators that are bounded for integers; all others compute with floating values, and integers could overflow there,
# or be rounded when they are converted.
INTEGERS: set[Any] = set()


def handles(*targets: Any, masked: bool = False, integers: bool = False) -> Callable[[Handler], Handler]:
    """Register the handler of some operators; registering two handlers for one operator is an error."""

    def register(handler: Handler) -> Handler:
        for target in targets:
            assert target not in HANDLERS, f"{target} has a handler already"
            HANDLERS[target] = handler
        MASKED.update(targets if masked else ())
        INTEGERS.update(targets if integers else ())
        return handler

    return register


def build(net: Network, x: Tensor, *, ranking: bool = False) -> Graph:
    """The graph of the network for inputs like x; UnsupportedLayer names the layer that cannot be bounded.

    With `ranking`, only the order of the outputs matters, so a final softmax, which preserves it, is left
    out.
    """
    graph, output = _built(net, x, ranking, None)
    if output is not graph.output:
        graph.add_move("output", [output], lambda v: v)
    _keep_what_is_read(graph)
    graph.exact = exact_nodes(graph.nodes)
    return graph


def unsupported_nodes(net: Network, x: Tensor) -> dict[str, str]:
    """Every node of the traced program without a bound: its name and the reason. Nodes behind it are examined
    as if it were an input.
    """
    refused: dict[str, str] = {}
    _built(net, x, False, refused)
    return refused


def _built(net: Network, x: Tensor, ranking: bool, refused: dict[str, str] | None) -> tuple[Graph, Node]:
    """The graph and its output. An unsupported node raises, or is recorded in `refused` if that is given."""
    # Refused nodes are listed by their names in the program that torch.export traces.
    program = net.operators(x) if refused is None else as_plain_module(net.program(x))
    names = {node.name: where(node) for node in program.graph.nodes}
    coarse = _rounds(program.graph, net.dtype, names)
    module = convert_graph(program, dtype=torch.float64, device=net.device)
    graph = Graph(device=net.device)
    skipped = last_softmax(module.graph) if ranking else None
    known: dict[fx.Node, Any] = {}
    result: Any = None
    for node in module.graph.nodes:
        if node.op == "placeholder":
            known[node] = graph.add_entry((1, *x.shape[1:]))
        elif node.op == "get_attr":
            known[node] = _attribute(module, str(node.target))
        elif node.op == "output":
            (result,) = node.args
        elif skipped is not None and node is skipped:
            (known[node],) = fx.node.map_arg(node.args[:1], known.__getitem__)
            graph.ending = torch.nn.LogSoftmax(-1) if "log" in str(node.target) else torch.nn.Softmax(-1)
        else:
            try:
                if node.name in coarse:
                    raise UnsupportedLayer(coarse[node.name])
                known[node] = _call(graph, names.get(node.name, node.name), node, known)
            except UnsupportedLayer as error:
                if refused is None:
                    raise
                refused[node.name] = str(error)
                known[node] = _stand_in(graph, node.meta.get("val"))
    try:
        output = output_node(graph, net.name, result, known)
    except UnsupportedLayer as error:
        if refused is None:
            raise
        refused.setdefault("output", str(error))
        output = graph.output
    return graph, output


def _stand_in(graph: Graph, value: Any) -> Any:
    """An input node that replaces an unsupported node, with the shape that the tracer recorded."""
    if isinstance(value, tuple | list):
        return tuple(_stand_in(graph, part) for part in value)
    shape = value.shape if isinstance(value, Tensor) else ()
    return graph.add_entry([size if isinstance(size, int) else 1 for size in shape])


def _keep_what_is_read(graph: Graph) -> None:
    """Drop the nodes on which the output does not depend, and renumber the others."""
    read = {graph.entry, graph.output}
    for node in reversed(graph.nodes):
        if node in read:
            read.update(node.inputs)
    graph.nodes = [node for node in graph.nodes if node in read]
    for place, node in enumerate(graph.nodes):
        object.__setattr__(node, "place", place)
        # A sum over everything is a single number; bounds are stored with at least one axis besides the batch.
        object.__setattr__(node, "shape", node.shape or (1,))


def _rounds(graph: fx.Graph, dtype: torch.dtype, names: dict[str, str]) -> dict[str, str]:
    """Nodes that cast to a coarser type than the network's own, or compute in a coarser type than float32, with the
    reason for refusing them: in real arithmetic their rounding, which may change the class, would vanish.
    """
    found = {}
    for node in graph.nodes:
        kind = dtype if is_coarse(dtype) else _traced_type(node)
        if node.op == "call_function" and kind is not None and is_coarse(kind):
            found[node.name] = (
                f"{names[node.name]}: computes in {kind}, whose rounding has no bound here, so nothing is proved; "
                "attacks still work. The same network in float32 (module.float()) has bounds, which are about "
                "that network."
            )
        kinds = [
            leaf
            for leaf in leaves((node.args, node.kwargs))
            if isinstance(leaf, torch.dtype) and leaf.is_floating_point
        ]
        if any(torch.finfo(kind).eps > torch.finfo(dtype).eps for kind in kinds):
            found[node.name] = (
                f"{names[node.name]}: rounds to {kinds[0]} on purpose, which has no bound here, so nothing is "
                "proved; attacks still work."
            )
    return found


# The softmax operators, and the reshaping operators that may follow a final softmax.
SOFTMAX = (
    torch.ops.aten.softmax.int,
    torch.ops.aten.log_softmax.int,
    torch.ops.aten._softmax.default,
    torch.ops.aten._log_softmax.default,
)
RESHAPES = (
    torch.ops.aten.flatten.using_ints,
    torch.ops.aten.view.default,
    torch.ops.aten.reshape.default,
    torch.ops.aten.squeeze.dim,
)


def last_softmax(graph: fx.Graph) -> fx.Node | None:
    """The final softmax over all outputs, if the graph ends with one; only a change of shape may follow."""
    (node,) = leaves(next(n for n in graph.nodes if n.op == "output").args[0])[:1]
    while isinstance(node, fx.Node) and node.target in RESHAPES:
        node = node.args[0]
    if not isinstance(node, fx.Node) or node.target not in SOFTMAX:
        return None
    value = node.meta.get("val")
    if not isinstance(value, Tensor) or any(size != 1 for size in value.shape[1:-1]):
        return None
    return node if node.args[1] in (-1, value.dim() - 1) else None


def _traced_type(argument: Any) -> torch.dtype | None:
    """The torch type of an argument of the traced program; None if it is no tensor or was not recorded."""
    value = argument.meta.get("val") if isinstance(argument, fx.Node) else argument
    return value.dtype if isinstance(value, Tensor) else None


def is_integer(kind: torch.dtype | None) -> bool:
    """Whether a torch type is an integer type; truth values are none."""
    return kind is not None and kind != torch.bool and not kind.is_floating_point and not kind.is_complex


def _call(graph: Graph, name: str, node: fx.Node, known: dict[fx.Node, Any]) -> Any:
    """The value of a node of the traced program: a constant, or the result of the operator's handler."""
    args = fx.node.map_arg(node.args, known.__getitem__)
    kwargs = fx.node.map_arg(node.kwargs, known.__getitem__)
    if str(getattr(node.target, "__module__", "")).startswith("torch._functorch"):
        raise UnsupportedLayer(
            f"{name}: the model maps over its inputs (torch.func), which has no bound here; "
            "attacks still work."
        )
    given = leaves((args, kwargs))
    if unknown := next(
        (leaf for leaf in given if isinstance(leaf, Unbounded) and node.target is not getitem), None
    ):
        raise UnsupportedLayer(f"layer {name}: {unknown.what}, which has no bound here; attacks still work.")
    if not any(isinstance(leaf, Node | MaskedValue) for leaf in given):
        if torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ()) and not _switched_off(
            node, args
        ):
            raise UnsupportedLayer(
                f"{name}: {node.target} is random, so nothing can be proved; attacks still work."
            )
        if "_assert_async" in str(node.target) and not bool(args[0]):
            raise UnsupportedLayer(f"{name}: {args[1] if len(args) > 1 else 'a check of the model fails'}.")
        constant = node.target(*args, **kwargs)  # type: ignore[operator]
        if any(isinstance(leaf, Tensor) and leaf.is_floating_point() for leaf in given):
            graph.folded.append(name)
        return (
            constant.double() if isinstance(constant, Tensor) and constant.is_floating_point() else constant
        )
    if node.target not in HANDLERS:
        raise UnsupportedLayer(
            f"layer {name}: there is no bound for {node.target}, so nothing behind it can be proved. "
            "Attacks, sampling and all black-box methods still work; to add one, see docs/extending.md."
        )
    types = tuple(_traced_type(argument) for argument in node.args)
    # A result that is an integer may wrap around, whatever its operands were made from.
    checked = graph.makes_integers or is_integer(_traced_type(node))
    if checked and node.target not in INTEGERS and any(map(is_integer, types)):
        raise UnsupportedLayer(
            f"layer {name}: {node.target} of integers that depend on the input has no bound here; attacks still work."
        )
    call = OperatorCall(name, node.target, args, kwargs, types)  # type: ignore[arg-type]
    return run_handler(graph, HANDLERS[node.target], call, "has no bound ({reason}); attacks still work.")


def run_handler(graph: Graph, handler: Handler, call: OperatorCall, refusal: str) -> Any:
    """The result of an operator's handler, with masked arguments resolved where it does not read masks.

    UnsupportedLayer, with `refusal` after "this form of the operator", if the handler does not expect the
    arguments; {reason} in it is the handler's own error.
    """
    if call.target not in MASKED:
        args, kwargs = fx.node.map_aggregate(
            (call.args, call.kwargs), lambda leaf: graph.resolve_mask(call.name, leaf)
        )
        call = replace(call, args=args, kwargs=kwargs)
    try:
        return handler(graph, call)
    except HoldfastError:
        raise
    except Exception as error:
        reason = f"{type(error).__name__}: {first_line(error, silent='no reason given')}"
        raise UnsupportedLayer(
            f"layer {call.name}: this form of {call.target} {refusal.format(reason=reason)}"
        ) from error


def output_node(graph: Graph, name: str, result: Any, known: Mapping[fx.Node, Any]) -> Node:
    """The node of a program's first output; UnsupportedLayer if it does not depend on the input."""
    while isinstance(result, tuple | list):
        result = result[0]
    output = graph.resolve_mask("output", known[result])
    if not isinstance(output, Node):
        raise UnsupportedLayer(f"{name}: the output does not depend on the input.")
    return output


def _switched_off(node: fx.Node, args: Any) -> bool:
    """Whether it is dropout outside of training, which draws no random numbers."""
    return "dropout" in str(node.target) and len(args) > 2 and args[2] is False


def leaves(value: Any) -> list[Any]:
    """All elements of nested tuples, lists and dicts."""
    if isinstance(value, tuple | list):
        return [leaf for part in value for leaf in leaves(part)]
    if isinstance(value, dict):
        return [leaf for part in value.values() for leaf in leaves(part)]
    return [value]


def _attribute(module: fx.GraphModule, path: str) -> Any:
    value: Any = module
    for part in path.split("."):
        value = getattr(value, part)
    return value.detach() if isinstance(value, Tensor) else value
