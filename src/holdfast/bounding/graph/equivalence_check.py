"""Check at sample points that the graph computes the same function as the user's model, before anything is
certified.

Three comparisons, in batches of one and of many, each as tight as the arithmetic allows:

- the traced program and the user's module, in the module's own arithmetic: to 64 units roundoff;
- the graph and the module in float64, if the module runs in float64: to 1e-9 of the largest output;
- the graph and the module in its own arithmetic, which differ by rounding: to 1e-3, in half precision 5e-2.

Near a jump, such as the rounding of a quantised layer, a rounding error becomes a whole step. If the outputs differ for
that reason, those of the module must lie within the intervals that the graph has at the same points.

This is a test, not a proof: it detects a wrong graph, and every certificate lists it as a check.
"""

from collections.abc import Collection

import torch
from torch import Tensor

from holdfast.bounding.graph.graph import Affine, Graph, InputNode, Node, Relaxed, leaves
from holdfast.bounding.relax import DynamicRounding, RoundedInput
from holdfast.errors import HoldfastError, UnsupportedLayer
from holdfast.foreign_text import first_line
from holdfast.network import Network
from holdfast.process_state import without_tf32
from holdfast.random_streams import RandomStreams
from holdfast.region import Box, Region

CHECKS = (
    "the traced program answers as the model does, in batches of one and of many, at the inputs and at "
    "random points of the region",
    "the graph that is bounded answers as the model does in float64 and in its own arithmetic at the "
    "same points",
    "the model draws no random numbers, and nothing that it holds changes when it is evaluated",
)
SAMPLES = 16  # The number of random points of the region (chosen by hand).
SINGLE = 3  # How many of them are evaluated in batches of one (chosen by hand).
NUMBERS = 2**24  # The number of float64 values in all nodes of the graph at once (128 MiB; chosen by hand).
# Tolerances relative to the largest output, by the model's type (chosen by hand).
ROUNDING = {torch.float64: 1e-9, torch.float32: 1e-3}
# The tolerance for half precision, and the width of intervals next to jumps, relative to the largest output (chosen
# by hand).
COARSE = 5e-2
FINE = 1e-9  # The tolerance for two float64 evaluations, relative to the largest output (chosen by hand).


def check(net: Network, graph: Graph, region: Region, traced: Network | None = None) -> None:
    """Raise UnsupportedLayer unless graph and network agree at the centres and at random points of the
    region.

    Args:
        traced: the network of whose program the graph was built, if that is a form of `net` for single
            inputs.
    """
    try:
        _check(net, graph, sampled_points(region).to(net.dtype), traced or net)
    except HoldfastError:
        raise
    except Exception as error:
        reason = first_line(error)
        raise UnsupportedLayer(
            f"{net.name} and its graph cannot be compared ({reason}), so nothing is proved; "
            "attacks still work."
        ) from error


def _check(net: Network, graph: Graph, points: Tensor, source: Network) -> None:
    outputs = net(points)
    single = torch.cat([net(row[None]) for row in points[-SINGLE:]])
    size = _size(outputs)
    program = source.operators(points)
    with torch.no_grad(), without_tf32():  # The network itself is evaluated in full precision, too.
        rows = points if source is net else points[:0]
        for batch, answer in (
            (rows, outputs),
            *((row[None], one[None]) for row, one in zip(points[-SINGLE:], single, strict=True)),
        ):
            if len(batch):
                _same(
                    leaves(program(batch.to(net.device)))[0].reshape(len(batch), -1),
                    answer,
                    size,
                    net,
                    "the traced program",
                )
    values = value(graph, points)
    wide = ROUNDING.get(net.dtype, COARSE)
    _close_to_graph(graph, points, values, outputs, wide * size, net)
    _close_to_graph(graph, points[-SINGLE:], values[-SINGLE:], single, wide * size, net)
    twin = net.double(points)
    if twin is not None and twin is not net:
        precise = twin(points)
        if not _within(values, precise, FINE * size):
            # A model that casts internally to its own type has no more precise version.
            _close_to_graph(graph, points, values, precise, wide * size, net)


def _close_to_graph(
    graph: Graph, points: Tensor, values: Tensor, outputs: Tensor, tolerance: float, net: Network
) -> None:
    """Raise UnsupportedLayer unless outputs are close to the graph's values, or explained by its jumps."""
    if _within(values, outputs, tolerance) or not _within_jumps(graph, points, values, outputs, tolerance):
        _close(values, outputs, tolerance, net, "the graph")


def _within_jumps(graph: Graph, points: Tensor, values: Tensor, outputs: Tensor, tolerance: float) -> bool:
    """Whether the graph has jumps, outputs lie within its intervals at the points, and these mean something: at
    one point or more they are narrow."""
    from holdfast.bounding.crown import intervals  # it imports graphs

    jumps = any(
        isinstance(node, Relaxed) and isinstance(node.relaxation, RoundedInput | DynamicRounding)
        for node in graph.nodes
    )
    if not jumps or graph.ending is not None or values.shape != outputs.shape:
        return False
    at = points.to(graph.device, torch.float64)
    boxes = intervals(graph, Box(at, at, at))
    low, high = (side[graph.output].flatten(1) for side in (boxes.lower, boxes.upper))
    inside = (low - tolerance <= outputs) & (outputs <= high + tolerance)
    narrow = (high - low).amax(1) <= COARSE * _size(outputs)
    return bool(inside.all()) and bool(narrow.any())


def value(graph: Graph, x: Tensor) -> Tensor:
    """(n, *shape) -> (n, outputs) float64: the output of the graph, including a final softmax."""
    at_once = max(1, NUMBERS // sum(node.size for node in graph.nodes))
    return torch.cat([_value(graph, part.to(graph.device, torch.float64)) for part in x.split(at_once)])


def _value(graph: Graph, x: Tensor) -> Tensor:
    outputs = values(graph, x)[graph.output].reshape(len(x), -1)
    return graph.ending(outputs) if graph.ending is not None else outputs


def values(graph: Graph, x: Tensor, kept: Collection[Node] = ()) -> dict[Node, Tensor]:
    """Evaluate the graph at x, (n, *shape) in float64: the output (without a final softmax that was left out)
    and the nodes in `kept`.
    """
    known: dict[Node, Tensor] = {}
    last = {source: node for node in graph.nodes for source in node.inputs}  # the last reader
    for node in graph.nodes:
        inputs = [known[source] for source in node.inputs]
        if isinstance(node, InputNode):
            known[node] = x.reshape(len(x), *node.shape)
        elif isinstance(node, Affine):
            known[node] = node.forward([value.flatten(1) for value in inputs]).reshape(len(x), *node.shape)
        else:
            assert isinstance(node, Relaxed)
            known[node] = node.relaxation.function(*inputs)
        for source in node.inputs:
            if last[source] is node and source not in kept:
                known.pop(source, None)
    return known


def sampled_points(region: Region) -> Tensor:
    """(n, *shape): every centre, then random points of the region."""
    wide = region.widen()
    count = max(1, -(-SAMPLES // len(region)))
    sampled = wide.sample(count, RandomStreams.of(range(len(region)), 0, region.centre.device)).flatten(0, 1)[
        :SAMPLES
    ]
    return torch.cat([region.centre, sampled.to(region.centre)])


def _size(outputs: Tensor) -> float:
    """The largest finite absolute value among the outputs; overflow in the model's arithmetic is ignored."""
    return float(torch.where(outputs.isfinite(), outputs, 0).double().abs().amax())


def _same(found: Tensor, wanted: Tensor, size: float, net: Network, what: str) -> None:
    _close(found.double(), wanted, 64 * torch.finfo(wanted.dtype).eps * size, net, what)


def _close(found: Tensor, wanted: Tensor, tolerance: float, net: Network, what: str) -> None:
    if not _within(found, wanted, tolerance):
        _refuse(found, wanted, net, what)


def _within(found: Tensor, wanted: Tensor, tolerance: float) -> bool:
    if found.shape != wanted.shape:
        return False
    rows = wanted.isfinite().all(1)
    return bool(((found[rows] - wanted[rows].double()).abs() <= tolerance).all())


def _refuse(found: Tensor, wanted: Tensor, net: Network, what: str) -> None:
    apart = (
        f"by up to {float((found.double() - wanted.double()).abs().amax()):.3g}"
        if found.shape == wanted.shape
        else "in its shape"
    )
    raise UnsupportedLayer(
        f"{what} does not answer as {net.name} does (they differ {apart}), so nothing can be proved. "
        f"{_suspicion(net)} Attacks still work."
    )


def _suspicion(net: Network) -> str:
    """A hint at the cause of a difference."""
    if any(
        isinstance(part, torch.nn.TransformerEncoder) and part.enable_nested_tensor
        for part in net.module.modules()
    ):
        return (
            "torch's fast path for nn.TransformerEncoder blanks padded frames, which its code does not: "
            "build it with enable_nested_tensor=False."
        )
    return (
        "Does the model depend on the size of the batch, on whether it is being traced or compiled, "
        "or on something it remembers?"
    )
