"""The operators of a traced graph, as a table: affine maps with their magnitudes, and functions with their relaxations."""

import itertools
import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from holdfast.bounds.graph import Call, Graph, Node, Relaxed, handles, leaves
from holdfast.bounds.relax import Elu, LeakyRelu, Product, Relu, Sigmoid, SigmoidTanh, SigmoidTimes, Tanh
from holdfast.errors import UnsupportedLayer

aten = torch.ops.aten


def affine(graph: Graph, call: Call, *, function: Callable[..., Any] | None = None, magnitude: Callable[..., Any] | None = None) -> Node:
    """A node for the call, affine in its nodes. The magnitude is the same call with every constant made positive, unless given."""
    inputs = call.nodes

    def filled(target: Callable[..., Any], change: Callable[[Any], Any]) -> Callable[..., Tensor]:
        def run(*values: Tensor) -> Tensor:
            place = dict(zip(inputs, values, strict=True))
            args, kwargs = _map((call.args, call.kwargs), lambda leaf: place[leaf] if isinstance(leaf, Node) else change(leaf))
            result: Tensor = target(*args, **kwargs)
            return result

        return run

    target = function or call.target
    return graph.affine(call.name, inputs, filled(target, lambda leaf: leaf), filled(magnitude or target, _positive))


def _map(value: Any, change: Callable[[Any], Any]) -> Any:
    if isinstance(value, tuple):
        return tuple(_map(v, change) for v in value)
    if isinstance(value, list):
        return [_map(v, change) for v in value]
    if isinstance(value, dict):
        return {k: _map(v, change) for k, v in value.items()}
    return change(value)


def _positive(leaf: Any) -> Any:
    return leaf.abs() if isinstance(leaf, Tensor) and leaf.is_floating_point() else leaf


# ---- moving numbers about, and means and sums of them: every coefficient is zero or positive


@handles(
    aten.view.default, aten.reshape.default, aten._unsafe_view.default, aten.flatten.using_ints, aten.squeeze.dim,
    aten.squeeze.dims, aten.unsqueeze.default, aten.permute.default, aten.transpose.int, aten.t.default, aten.numpy_T.default,
    aten.expand.default, aten.select.int, aten.slice.Tensor, aten.cat.default, aten.stack.default, aten.index_select.default,
    aten.index.Tensor, aten.gather.default, aten.contiguous.default, aten.clone.default, aten.alias.default, aten.detach.default,
    aten.repeat.default, aten.flip.default, aten.roll.default, aten.mean.default, aten.mean.dim, aten.sum.default, aten.sum.dim_IntList,
    aten.avg_pool1d.default, aten.avg_pool2d.default, aten.avg_pool3d.default, aten.adaptive_avg_pool1d.default,
    aten.adaptive_avg_pool2d.default, aten.upsample_nearest2d.vec, aten.pixel_shuffle.default, aten.unflatten.int,
    aten.movedim.int, aten.swapaxes.default, aten.narrow.default, aten.broadcast_to.default, aten.cumsum.default,
    aten.reshape_as.default, aten.expand_as.default, aten.view_as.default,
)  # fmt: skip
def moved(graph: Graph, call: Call) -> Node:
    return affine(graph, call, magnitude=lambda *a, **k: call.target(*a, **k).abs())  # integer constants among them may be negative


@handles(aten.squeeze.default)
def squeeze(graph: Graph, call: Call) -> Node:
    """All axes of size one but the first, which is the batch and has that size only here."""
    node: Node = call.args[0]
    axes = [axis for axis, size in enumerate(node.shape) if axis and size == 1]
    return graph.affine(call.name, [node], *(lambda v: v.squeeze(axes),) * 2)


@handles(aten.split.Tensor, aten.split_with_sizes.default, aten.chunk.default, aten.unbind.int)
def several(graph: Graph, call: Call) -> list[Node]:
    (node,) = call.nodes
    count = len(call.target(torch.zeros(node.shape, device=graph.device), *call.args[1:], **call.kwargs))
    return [affine(graph, call, function=lambda *a, i=i, **k: call.target(*a, **k)[i]) for i in range(count)]


@handles(operator.getitem)
def getitem(graph: Graph, call: Call) -> Any:
    return call.args[0][call.args[1]]


@handles(
    aten._to_copy.default, aten.to.dtype, aten.to.device, aten.to.dtype_layout, aten.to.other, aten._assert_tensor_metadata.default
)  # fmt: skip
def same(graph: Graph, call: Call) -> Any:
    """Everything here is float64; a change of float type is none, but integers and truth values are steps."""
    types = [leaf.dtype if isinstance(leaf, Tensor) else leaf for leaf in leaves((call.args[1:], call.kwargs))]
    if any(isinstance(kind, torch.dtype) and not kind.is_floating_point for kind in types):
        raise UnsupportedLayer(f"{call.name}: a cast to integers or truth values has no bound here; attacks still work.")
    return call.args[0]


@handles(aten.dropout.default, aten.feature_dropout.default)
def dropout(graph: Graph, call: Call) -> Any:
    if call.args[2]:
        raise UnsupportedLayer(
            f"{call.name}: dropout in training mode is random, so nothing can be proved. Export the model in evaluation mode."
        )
    return call.args[0]


@handles(aten.sym_size.int)
def size(graph: Graph, call: Call) -> int:
    return int(call.args[0].shape[call.args[1]])


# ---- affine maps with constants


@handles(aten.linear.default, aten.conv1d.default, aten.conv2d.default, aten.conv3d.default, aten.convolution.default, aten.addmm.default)
def weighted(graph: Graph, call: Call) -> Node:
    spot = 1 if call.target == aten.addmm.default else 0
    if any(isinstance(leaf, Node) for i, leaf in enumerate(call.args) if i != spot):
        raise UnsupportedLayer(f"{call.name}: the weights of {call.target} depend on the input; such a layer has no bound here.")
    factors = {key: abs(value) for key, value in call.kwargs.items()}  # beta and alpha of addmm
    return affine(graph, call, magnitude=lambda *a, **_: call.target(*a, **factors))


@handles(aten.add.Tensor, aten.add.Scalar, aten.sub.Tensor, aten.sub.Scalar, aten.rsub.Scalar, aten.rsub.Tensor)
def add(graph: Graph, call: Call) -> Node:
    scales_first = call.target in (aten.rsub.Scalar, aten.rsub.Tensor)
    return affine(graph, call, magnitude=(lambda a, b, alpha=1: _added(b, a, alpha)) if scales_first else _added)


def _added(a: Any, b: Any, alpha: float = 1) -> Tensor:
    both: Tensor = _size(a) + abs(alpha) * _size(b)
    return both


def _size(value: Any) -> Any:
    return abs(value)  # of integer tensors too


@handles(aten.neg.default)
def negate(graph: Graph, call: Call) -> Node:
    return affine(graph, call, magnitude=lambda m: m)


@handles(aten.mul.Tensor, aten.mul.Scalar)
def multiply(graph: Graph, call: Call) -> Node:
    v, z = call.args
    if isinstance(v, Node) and isinstance(z, Node):
        return product(graph, call.name, v, z)
    return affine(graph, call, magnitude=lambda a, b: _size(a) * _size(b))


@handles(aten.div.Tensor, aten.div.Scalar)
def divide(graph: Graph, call: Call) -> Node:
    if isinstance(call.args[1], Node):
        raise UnsupportedLayer(f"{call.name}: division by something that depends on the input has no bound here; attacks still work.")
    return affine(graph, call, magnitude=lambda a, b: _size(a) / _size(b))


@handles(aten.mm.default, aten.matmul.default, aten.bmm.default)
def matrix_product(graph: Graph, call: Call) -> Node:
    if all(isinstance(leaf, Node) for leaf in call.args):
        raise UnsupportedLayer(
            f"{call.name}: a matrix product of two things that depend on the input has no bound here; attacks still work."
        )
    return affine(graph, call, function=torch.matmul)


@handles(aten.batch_norm.default, aten._native_batch_norm_legit_no_training.default)
def batch_norm(graph: Graph, call: Call) -> Any:
    native = call.target == aten._native_batch_norm_legit_no_training.default
    x, weight, bias, mean, variance = call.args[:5]
    if not native and call.args[5]:
        raise UnsupportedLayer(f"{call.name}: batch norm in training mode mixes the inputs of a batch. Export in evaluation mode.")
    scale = (variance + call.args[6 if native else 7]).rsqrt()
    scale = scale if weight is None else scale * weight
    moved, bias = mean * scale, torch.zeros_like(mean) if bias is None else bias
    shift, weight_of_shift = bias - moved, bias.abs() + moved.abs()  # the two may cancel, their roundings do not
    spread = (1, -1, *(1 for _ in x.shape[2:]))
    scale, shift, weight_of_shift = (t.reshape(spread) for t in (scale, shift, weight_of_shift))
    node = graph.affine(call.name, [x], lambda v: v * scale + shift, lambda m: m * scale.abs() + weight_of_shift)
    return (node,) if native else node


@handles(aten.constant_pad_nd.default, aten.pad.default)
def pad(graph: Graph, call: Call) -> Node:
    args, kwargs = call.args, call.kwargs
    mode = args[2] if len(args) > 2 and isinstance(args[2], str) else kwargs.get("mode", "constant")
    value = next((a for a in args[2:] if isinstance(a, int | float)), kwargs.get("value")) or 0.0

    def padded(v: Tensor, fill: float) -> Tensor:
        return torch.nn.functional.pad(v, args[1], mode, fill if mode == "constant" else None)

    return graph.affine(call.name, [args[0]], lambda v: padded(v, value), lambda m: padded(m, abs(value)))


# ---- functions


@handles(aten.relu.default, aten.relu_.default)
def relu(graph: Graph, call: Call) -> Node:
    return graph.relaxed(call.name, call.nodes, Relu())


@handles(aten.leaky_relu.default, aten.leaky_relu_.default)
def leaky_relu(graph: Graph, call: Call) -> Node:
    slope = float(call.args[1]) if len(call.args) > 1 else 0.01
    if not 0 <= slope <= 1:
        raise UnsupportedLayer(f"{call.name}: leaky ReLU with slope {slope:g} outside [0, 1] has no bound here; attacks still work.")
    return graph.relaxed(call.name, call.nodes, LeakyRelu(slope))


@handles(aten.elu.default, aten.elu_.default)
def elu(graph: Graph, call: Call) -> Node:
    alpha = float(call.args[1]) if len(call.args) > 1 else 1.0
    if len(call.args) > 2 or not 0 < alpha <= 1:
        raise UnsupportedLayer(f"{call.name}: ELU is bounded for 0 < alpha <= 1 without further scales; attacks still work.")
    return graph.relaxed(call.name, call.nodes, Elu(alpha))


@handles(aten.tanh.default, aten.tanh_.default)
def tanh(graph: Graph, call: Call) -> Node:
    return graph.relaxed(call.name, call.nodes, Tanh())


@handles(aten.sigmoid.default, aten.sigmoid_.default)
def sigmoid(graph: Graph, call: Call) -> Node:
    return graph.relaxed(call.name, call.nodes, Sigmoid())


@handles(aten.hardtanh.default, aten.clamp.default, aten.relu6.default)
def clip(graph: Graph, call: Call) -> Node:
    """max(v, low) = low + relu(v - low), then min(v, high) = high - relu(high - v)."""
    ends = {aten.relu6.default: (0.0, 6.0), aten.hardtanh.default: (-1.0, 1.0)}.get(call.target, (None, None))  # type: ignore[call-overload]
    low = call.args[1] if len(call.args) > 1 else call.kwargs.get("min", call.kwargs.get("min_val", ends[0]))
    high = call.args[2] if len(call.args) > 2 else call.kwargs.get("max", call.kwargs.get("max_val", ends[1]))
    node: Node = call.args[0]
    if low is not None and low != -torch.inf:
        node = _above(graph, call.name, node, 1.0, float(low))
    return node if high is None or high == torch.inf else _above(graph, call.name, node, -1.0, float(high))


def _above(graph: Graph, name: str, node: Node, sign: float, end: float) -> Node:
    """end + sign relu(sign (v - end)): the larger of v and end for sign 1, the smaller for sign -1."""
    past = graph.affine(name, [node], lambda v: sign * (v - end), lambda m: m + abs(end))
    return graph.affine(name, [graph.relaxed(name, [past], Relu())], lambda v: end + sign * v, lambda m: abs(end) + m)


@handles(aten.max_pool1d.default, aten.max_pool2d.default)
def max_pool(graph: Graph, call: Call) -> Node:
    given: list[Any] = [*call.args, *[(), 0, 1, False][len(call.args) - 2 :]]
    node, kernel, stride, padding, dilation, ceil = given
    if any(leaf != 0 for leaf in leaves(padding)) or any(leaf != 1 for leaf in leaves(dilation)) or ceil or call.kwargs:
        raise UnsupportedLayer(f"{call.name}: max pooling is bounded without padding, dilation or ceil mode only; attacks still work.")
    axes = 1 if call.target == aten.max_pool1d.default else 2
    sizes = _each_axis(kernel, axes)
    steps = _each_axis(stride, axes) if leaves(stride) else sizes
    spans = [(length - size) // step * step + 1 for length, size, step in zip(node.shape[-axes:], sizes, steps, strict=True)]

    def corner(starts: tuple[int, ...]) -> Callable[[Tensor], Tensor]:
        def cut(v: Tensor) -> Tensor:
            for axis, (start, span, step) in enumerate(zip(starts, spans, steps, strict=True), -axes):
                v = aten.slice.Tensor(v, axis, start, start + span, step)
            return v

        return cut

    windows = itertools.product(*(range(size) for size in sizes))
    return _largest(graph, call.name, [graph.affine(call.name, [node], *(corner(starts),) * 2) for starts in windows])


def _each_axis(value: Any, axes: int) -> list[int]:
    found = [int(leaf) for leaf in leaves(value)]
    return found * axes if len(found) == 1 else found


@handles(aten.amax.default)
def amax(graph: Graph, call: Call) -> Node:
    (node,) = call.nodes
    dims = call.args[1] if len(call.args) > 1 else call.kwargs.get("dim", [])
    keep = bool(call.args[2]) if len(call.args) > 2 else bool(call.kwargs.get("keepdim", False))
    for axis in sorted((d % len(node.shape) for d in (dims or range(len(node.shape)))), reverse=True):
        node = _largest(graph, call.name, [_slot(graph, call.name, node, axis, i, keep) for i in range(node.shape[axis])])
    return node


def _slot(graph: Graph, name: str, node: Node, axis: int, place: int, keep: bool) -> Node:
    return graph.affine(name, [node], *(lambda v: v.narrow(axis, place, 1) if keep else v.select(axis, place),) * 2)


def _largest(graph: Graph, name: str, nodes: list[Node]) -> Node:
    """The elementwise maximum, in pairs: max(a, b) = b + relu(a - b)."""
    while len(nodes) > 1:
        pairs = zip(nodes[::2], nodes[1::2], strict=False)
        rest = nodes[len(nodes) // 2 * 2 :]
        nodes = [_larger(graph, name, a, b) for a, b in pairs] + rest
    return nodes[0]


def _larger(graph: Graph, name: str, a: Node, b: Node) -> Node:
    ahead = graph.affine(name, [a, b], lambda v, z: v - z, lambda v, z: v + z)
    return graph.affine(name, [graph.relaxed(name, [ahead], Relu()), b], *(lambda v, z: v + z,) * 2)


def product(graph: Graph, name: str, v: Node, z: Node) -> Node:
    """v * z; a gate (a sigmoid) is bounded together with what it lets through, which is tighter."""
    if v.shape != z.shape:
        shape = torch.broadcast_shapes(v.shape, z.shape)
        v, z = (n if n.shape == shape else graph.affine(name, [n], *(lambda t: t.expand(shape),) * 2) for n in (v, z))
    for gate, passed in ((v, z), (z, v)):
        if isinstance(gate, Relaxed) and isinstance(gate.relaxation, Sigmoid):
            if isinstance(passed, Relaxed) and isinstance(passed.relaxation, Tanh):
                return graph.relaxed(name, [gate.inputs[0], passed.inputs[0]], SigmoidTanh())
            return graph.relaxed(name, [gate.inputs[0], passed], SigmoidTimes())
    return graph.relaxed(name, [v, z], Product())
