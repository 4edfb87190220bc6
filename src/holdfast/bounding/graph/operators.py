"""The table of supported operators of a traced graph: affine maps with their magnitudes, products and norms.
`functions`, `discontinuities` and `reductions` hold the rest.
"""

import math
import operator
import re
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from holdfast.bounding.graph import compose, discontinuities, functions, masks, reductions
from holdfast.bounding.graph.graph import Graph, Node, OperatorCall, handles, is_integer, leaves
from holdfast.bounding.graph.kernel import Kernel, convolution, pooling, scaling
from holdfast.bounding.graph.node import MaskedValue, is_image
from holdfast.errors import UnsupportedLayer

__all__ = ["discontinuities", "functions", "reductions"]  # Imported because they register handlers.

aten = torch.ops.aten


def affine(
    graph: Graph,
    call: OperatorCall,
    *,
    function: Callable[..., Any] | None = None,
    magnitude: Callable[..., Any] | None = None,
    kernel: Kernel | None = None,
    last_axis: Tensor | None = None,
) -> Node:
    """A node for the call, affine in its nodes. Unless given, the magnitude is the same call with absolute
    values of all constants.
    """
    target = function or call.target
    return graph.affine(
        call.name,
        call.nodes,
        bind_constants(call, target),
        bind_constants(call, magnitude or target, _positive),
        kernel=kernel,
        last_axis=last_axis,
    )


def resolve_masks(graph: Graph, call: OperatorCall) -> OperatorCall:
    """The call with masked values replaced by nodes."""
    args, kwargs = _map((call.args, call.kwargs), lambda leaf: graph.resolve_mask(call.name, leaf))
    return OperatorCall(call.name, call.target, args, kwargs)


def bind_constants(
    call: OperatorCall, target: Callable[..., Any], change: Callable[[Any], Any] = lambda leaf: leaf
) -> Callable[..., Tensor]:
    """The target as a function of the call's nodes alone, with `change` applied to its other arguments."""

    def run(*values: Tensor) -> Tensor:
        place = dict(zip(call.nodes, values, strict=True))
        args, kwargs = _map(
            (call.args, call.kwargs), lambda leaf: place[leaf] if isinstance(leaf, Node) else change(leaf)
        )
        result: Tensor = target(*args, **kwargs)
        return result

    return run


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


# ---- moving elements, means and sums: every coefficient is nonnegative


@handles(
    aten.view.default, aten.reshape.default, aten._unsafe_view.default, aten.flatten.using_ints,
    aten.squeeze.dim,
    aten.squeeze.dims, aten.unsqueeze.default, aten.permute.default, aten.transpose.int, aten.t.default,
    aten.numpy_T.default,
    aten.expand.default, aten.select.int, aten.slice.Tensor, aten.cat.default, aten.stack.default,
    aten.index_select.default,
    aten.index.Tensor, aten.gather.default, aten.repeat.default, aten.flip.default, aten.roll.default,
    aten.pixel_shuffle.default,
    aten.unflatten.int,
    aten.movedim.int, aten.swapaxes.default, aten.tile.default, aten.repeat_interleave.self_int,
    aten.unfold.default,
    aten.pixel_unshuffle.default, aten.adjoint.default, aten.narrow.default, aten.broadcast_to.default,
    aten.reshape_as.default, aten.expand_as.default, aten.view_as.default, aten.mT.default,
    masked=True, integers=True,
)  # fmt: skip
def lower_move(graph: Graph, call: OperatorCall) -> Node | MaskedValue | Tensor:
    lowered, *others = [
        leaf for leaf in leaves((call.args, call.kwargs)) if isinstance(leaf, Node | MaskedValue)
    ]
    if call.args[0] is lowered and isinstance(lowered, MaskedValue) and not others:
        inner = OperatorCall(call.name, call.target, (lowered.node, *call.args[1:]), call.kwargs)
        node = lower_move(graph, inner)
        return (
            MaskedValue(node, call.target(lowered.by, *call.args[1:], **call.kwargs))
            if isinstance(node, Node)
            else node
        )
    call = resolve_masks(graph, call)
    picks = call.target in (aten.index.Tensor, aten.gather.default, aten.index_select.default)
    if picks and any(isinstance(leaf, Node) for leaf in leaves(call.args[1:])):
        raise UnsupportedLayer(
            f"{call.name}: a choice of elements that depends on the input has no bound here; "
            "attacks still work."
        )
    # Constants together with nodes.
    if not picks and any(isinstance(leaf, Tensor) for leaf in leaves((call.args, call.kwargs))):
        return affine(graph, call, magnitude=lambda *a, **k: call.target(*a, **k).abs())
    return _unless_empty(graph, graph.add_move(call.name, call.nodes, bind_constants(call, call.target)))


def _unless_empty(graph: Graph, node: Node) -> Node | Tensor:
    """The node, or an empty constant if it has no elements."""
    return node if node.size else torch.zeros(node.shape, dtype=torch.float64, device=graph.device)


@handles(
    aten.mean.default, aten.mean.dim, aten.sum.default, aten.sum.dim_IntList, aten.avg_pool1d.default,
    aten.avg_pool2d.default,
    aten.avg_pool3d.default, aten.adaptive_avg_pool1d.default, aten.adaptive_avg_pool2d.default,
    aten.adaptive_avg_pool3d.default,
    aten.upsample_nearest1d.vec, aten.upsample_nearest2d.vec, aten.upsample_nearest3d.vec,
    aten.upsample_linear1d.vec,
    aten.upsample_bilinear2d.vec, aten.upsample_trilinear3d.vec, aten.cumsum.default, aten.tril.default,
    aten.triu.default,
    aten.im2col.default, aten.col2im.default, integers=True
)  # fmt: skip
def lower_average_pool(graph: Graph, call: OperatorCall) -> Node:
    return affine(graph, call, kernel=_pooling_kernel(graph, call))


def _pooling_kernel(graph: Graph, call: OperatorCall) -> Kernel | None:
    """The kernel of a pooling whose windows all have one size and lie within the image and its padding;
    otherwise None.
    """
    if call.target != aten.avg_pool2d.default or not is_image(call.args[0]) or call.kwargs:
        return None
    node, size, stride, padding, ceil, counted, divisor = _with_defaults(call.args, [], 0, False, True, None)
    plain = not ceil and divisor is None and (counted or padding in (0, [0], [0, 0]))
    return pooling(node.shape[1], size, stride, padding, graph.device) if plain else None


@handles(aten.squeeze.default, integers=True)
def squeeze(graph: Graph, call: OperatorCall) -> Node:
    """All axes of size one but the first, which is the batch axis and has that size only here."""
    node: Node = call.args[0]
    axes = [axis for axis, size in enumerate(node.shape) if axis and size == 1]
    return graph.add_move(call.name, [node], lambda v: v.squeeze(axes))


@handles(aten.split.Tensor, aten.split_with_sizes.default, aten.chunk.default, aten.unbind.int, integers=True)
def several(graph: Graph, call: OperatorCall) -> list[Node | Tensor]:
    (node,) = call.nodes
    count = len(call.target(torch.zeros(node.shape, device=graph.device), *call.args[1:], **call.kwargs))
    parts = [
        graph.add_move(call.name, [node], bind_constants(call, lambda *a, i=i, **k: call.target(*a, **k)[i]))
        for i in range(count)
    ]
    return [_unless_empty(graph, part) for part in parts]


@handles(operator.getitem, integers=True)
def getitem(graph: Graph, call: OperatorCall) -> Any:
    return call.args[0][call.args[1]]


@handles(
    aten._to_copy.default, aten.to.dtype, aten.to.device, aten.to.dtype_layout, aten.to.other,
    aten._assert_tensor_metadata.default,
    aten.contiguous.default, aten.clone.default, aten.alias.default, aten.detach.default,
    aten.lift_fresh_copy.default,
    masked=True, integers=True,
)  # fmt: skip
def same(graph: Graph, call: OperatorCall) -> Any:
    """The value itself: all values are float64 and none is overwritten, so copies and casts between float
    types do nothing. Casts to integers and truth values are discontinuous.
    """
    if call.target == aten._assert_tensor_metadata.default:
        return call.args[0]
    kinds = [
        leaf.dtype if isinstance(leaf, Tensor) else leaf for leaf in leaves((call.args[1:], call.kwargs))
    ]
    for kind in kinds:
        if isinstance(kind, torch.dtype) and not kind.is_floating_point:
            return discontinuities.cast_to_integers(graph, call, kind)
        if graph.makes_integers and isinstance(kind, torch.dtype) and is_integer(call.types[0]):
            return discontinuities.cast_from_integers(graph, call)
    return call.args[0]


@handles(aten.dropout.default, aten.feature_dropout.default, masked=True)
def dropout(graph: Graph, call: OperatorCall) -> Any:
    if call.args[2]:
        raise UnsupportedLayer(
            f"{call.name}: dropout in training mode is random, so nothing can be proved. "
            "Export the model in evaluation mode."
        )
    return call.args[0]


@handles(aten.sym_size.int, masked=True, integers=True)
def size(graph: Graph, call: OperatorCall) -> int:
    return int(call.args[0].shape[call.args[1]])


@handles(
    aten.new_zeros.default, aten.new_ones.default, aten.new_full.default, aten.zeros_like.default,
    aten.ones_like.default,
    aten.full_like.default,
)  # fmt: skip
def lower_constant_like(graph: Graph, call: OperatorCall) -> Tensor:
    """A constant that takes only its shape or type from a node."""
    node, *rest = call.args
    constant: Tensor = call.target(
        torch.zeros(node.shape, dtype=torch.float64, device=graph.device), *rest, **call.kwargs
    )
    return constant


# ---- affine maps with constants


@handles(
    aten.linear.default, aten.conv1d.default, aten.conv2d.default, aten.conv3d.default,
    aten.convolution.default, aten.addmm.default,
    aten.conv_transpose1d.default, aten.conv_transpose2d.input, aten.conv_transpose3d.input,
)  # fmt: skip
def lower_linear(graph: Graph, call: OperatorCall) -> Node:
    spot = 1 if call.target == aten.addmm.default else 0
    if any(isinstance(leaf, Node) for i, leaf in enumerate(call.args) if i != spot):
        raise UnsupportedLayer(
            f"{call.name}: the weights of {call.target} depend on the input; such a layer has no bound here."
        )
    factors = {key: abs(value) for key, value in call.kwargs.items()}  # beta and alpha of addmm
    return affine(
        graph,
        call,
        magnitude=lambda *a, **_: call.target(*a, **factors),
        kernel=_convolution_kernel(call),
        last_axis=call.args[1].double().T if call.target == aten.linear.default else None,
    )


def _convolution_kernel(call: OperatorCall) -> Kernel | None:
    """The kernel of a convolution of images; otherwise None."""
    if (
        call.target not in (aten.conv2d.default, aten.convolution.default)
        or not is_image(call.args[0])
        or call.kwargs
    ):
        return None
    if call.target == aten.conv2d.default:
        _, weight, _, stride, padding, dilation, groups = _with_defaults(call.args, None, 1, 0, 1, 1)
        return convolution(weight, stride, padding, dilation, groups)
    _, weight, _, stride, padding, dilation, transposed, _, groups = call.args
    return None if transposed or weight.dim() != 4 else convolution(weight, stride, padding, dilation, groups)


@handles(
    aten.add.Tensor,
    aten.add.Scalar,
    aten.sub.Tensor,
    aten.sub.Scalar,
    aten.rsub.Scalar,
    aten.rsub.Tensor,
    masked=True,
)
def add(graph: Graph, call: OperatorCall) -> Node | MaskedValue:
    a, b = call.args[:2]
    if call.target == aten.add.Tensor and not isinstance(a, Node | MaskedValue):
        a, b = b, a
    if (
        not isinstance(b, Node | MaskedValue)
        and not call.kwargs
        and call.target in (aten.add.Tensor, aten.sub.Tensor)
    ):
        constant = torch.as_tensor(b if call.target == aten.add.Tensor else -b, device=graph.device)
        if isinstance(a, MaskedValue) or masks.masks_positions(constant):
            return masks.add_mask(graph, call.name, a, constant)
    call = resolve_masks(graph, call)
    if all(discontinuities.may_be_truth(value) for value in call.args[:2]):
        raise UnsupportedLayer(
            f"{call.name}: a sum of truth values means 'or', which has no bound here; attacks still work."
        )
    if call.target == aten.add.Tensor and _apart(call.args) and not call.kwargs:
        return graph.add_sum(call.name, call.nodes)
    scales_first = call.target in (aten.rsub.Scalar, aten.rsub.Tensor)
    return affine(
        graph,
        call,
        magnitude=(lambda a, b, alpha=1: _add_scaled(b, a, alpha)) if scales_first else _add_scaled,
        kernel=None if scales_first or len(call.args) > 2 or call.kwargs else _scaling_kernel(graph, call),
    )


def _apart(args: tuple[Any, ...]) -> bool:
    """Whether the arguments are two different nodes of one shape."""
    return (
        len(args) == 2
        and args[0] is not args[1]
        and all(isinstance(a, Node) for a in args)
        and args[0].shape == args[1].shape
    )


def _add_scaled(a: Any, b: Any, alpha: float = 1) -> Tensor:
    both: Tensor = _size(a) + abs(alpha) * _size(b)
    return both


def _size(value: Any) -> Any:
    return (
        value if isinstance(value, Tensor) and value.dtype == torch.bool else abs(value)
    )  # Also for integer tensors.


@handles(aten.lerp.Scalar, aten.addcmul.default)
def lower_lerp(graph: Graph, call: OperatorCall) -> Any:
    """a + weight (b - a), or a + value b c."""
    a, b, weight = call.args
    if call.target == aten.addcmul.default:
        scaled = (
            multiply(graph, OperatorCall(call.name, aten.mul.Tensor, (b, weight), {}))
            if call.nodes
            else b * weight
        )
        return add(
            graph,
            OperatorCall(call.name, aten.add.Tensor, (a, scaled), {"alpha": call.kwargs.get("value", 1)}),
        )
    return affine(graph, call, magnitude=lambda v, z, _: abs(v) * abs(1 - weight) + abs(z) * abs(weight))


@handles(aten.neg.default)
def negate(graph: Graph, call: OperatorCall) -> Node:
    return affine(graph, call, magnitude=lambda m: m)


@handles(aten.mul.Tensor, aten.mul.Scalar, masked=True)
def multiply(graph: Graph, call: OperatorCall) -> Node | MaskedValue:
    if (scaled := _scale_masked(graph, call)) is not None:
        return scaled
    call = resolve_masks(graph, call)
    v, z = call.args
    if isinstance(v, Node) and isinstance(z, Node):
        return compose.product(graph, call.name, v, z)
    return affine(
        graph, call, magnitude=lambda a, b: _size(a) * _size(b), kernel=_scaling_kernel(graph, call)
    )


def _scaling_kernel(graph: Graph, call: OperatorCall) -> Kernel | None:
    """The kernel of an image plus, minus, times or divided by a constant number for each channel; else None."""
    image, constant = call.args if isinstance(call.args[0], Node) else call.args[::-1]
    if not is_image(image) or isinstance(constant, Node):
        return None
    channels = image.shape[1]
    value = torch.as_tensor(constant, dtype=torch.float64, device=graph.device)
    value = value.reshape((1,) * (4 - value.dim()) + value.shape)
    if (
        value.dim() > 4
        or value.shape[0] != 1
        or value.shape[2:] != (1, 1)
        or value.shape[1] not in (1, channels)
    ):
        return None
    of_each = value.flatten().expand(channels)
    if call.target in (aten.mul.Tensor, aten.mul.Scalar):
        return scaling(of_each)
    if call.target in (aten.div.Tensor, aten.div.Scalar):
        return scaling(1 / of_each)
    sign = -1.0 if call.target == aten.sub.Tensor and image is call.args[1] else 1.0
    return scaling(torch.full_like(of_each, sign))


def _scale_masked(graph: Graph, call: OperatorCall) -> MaskedValue | None:
    """A masked value times or divided by a positive number: both parts are scaled."""
    value, factor = call.args
    number = isinstance(factor, int | float) or (isinstance(factor, Tensor) and factor.numel() == 1)
    if not isinstance(value, MaskedValue) or not number or not float(factor) > 0:
        return None
    node = affine(graph, OperatorCall(call.name, call.target, (value.node, factor), call.kwargs))
    return MaskedValue(node, call.target(value.by, factor).expand(node.shape))


@handles(aten.div.Tensor, aten.div.Scalar, masked=True)
def divide(graph: Graph, call: OperatorCall) -> Node | MaskedValue:
    if (scaled := _scale_masked(graph, call)) is not None:
        return scaled
    call = resolve_masks(graph, call)
    a, b = call.args
    if isinstance(b, Node):
        return compose.quotient(graph, call.name, a, b)
    return affine(
        graph, call, magnitude=lambda a, b: _size(a) / _size(b), kernel=_scaling_kernel(graph, call)
    )


@handles(aten.mm.default, aten.matmul.default, aten.bmm.default)
def matrix_product(graph: Graph, call: OperatorCall) -> Node:
    a, b = call.args
    if isinstance(a, Node) and isinstance(b, Node) and min(len(a.shape), len(b.shape)) < 2:
        raise UnsupportedLayer(
            f"{call.name}: a product with a vector where both depend on the input has no bound here."
        )
    return compose.matrix_product(graph, call.name, a, b)


@handles(aten.einsum.default)
def einsum(graph: Graph, call: OperatorCall) -> Node:
    equation, operands = call.args[:2]
    nodes = [operand for operand in operands if isinstance(operand, Node)]
    if len(nodes) == 1:
        return affine(graph, call)
    sides = re.fullmatch(r"(\w+),(\w+)->(\w*)", equation.replace(" ", ""))
    if sides is None or len(operands) > 2 or any(len(set(side)) < len(side) for side in sides.groups()):
        raise UnsupportedLayer(
            f"{call.name}: einsum {equation!r} of several operands that depend on the input has no bound "
            "here."
        )
    left, right, result = sides.groups()
    letters = result + "".join(sorted({*left, *right} - {*result}))

    def expand_letters(node: Node, side: str) -> Node:
        """All letters as axes, with size one for letters that the operand lacks."""
        order = [side.index(letter) for letter in letters if letter in side]
        shape = [node.shape[side.index(letter)] if letter in side else 1 for letter in letters]
        return graph.add_move(call.name, [node], lambda v: v.permute(order).reshape(shape))

    products = compose.product(
        graph, call.name, expand_letters(nodes[0], left), expand_letters(nodes[-1], right)
    )
    summed = list(range(len(result), len(letters)))
    return graph.affine(call.name, [products], *(lambda v: v.sum(summed) if summed else v,) * 2)


@handles(aten.baddbmm.default)
def added_product(graph: Graph, call: OperatorCall) -> Any:
    """beta base + alpha a b."""
    base, a, b = call.args
    beta, alpha = (call.kwargs.get(key, 1) for key in ("beta", "alpha"))
    product = _times(graph, call.name, compose.matrix_product(graph, call.name, a, b), alpha)
    return add(
        graph, OperatorCall(call.name, aten.add.Tensor, (product, _times(graph, call.name, base, beta)), {})
    )


def _times(graph: Graph, name: str, value: Node | Tensor, factor: float) -> Node | Tensor:
    if factor == 1:
        return value
    return compose.times(graph, name, value, factor) if isinstance(value, Node) else value * factor


@handles(aten.scaled_dot_product_attention.default)
def attention(graph: Graph, call: OperatorCall) -> Node | Tensor:
    """softmax(q k' scale + mask) v. Positions where the mask is false or minus infinity have weight zero."""
    names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
    given: dict[str, Any] = dict(zip(names, call.args, strict=False)) | call.kwargs
    query, key, value = (given[name] for name in names[:3])
    mask = given.get("attn_mask")
    if given.get("dropout_p"):
        raise UnsupportedLayer(
            f"{call.name}: attention with dropout is random, so nothing can be proved. "
            "Export the model in evaluation mode."
        )
    if isinstance(mask, Node):
        raise UnsupportedLayer(
            f"{call.name}: an attention mask that depends on the input has no bound here; attacks still work."
        )
    if given.get("enable_gqa"):
        key, value = (_repeat_heads(graph, call.name, part, query.shape[-3]) for part in (key, value))
    scale = given.get("scale")
    factor = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    query = _times(graph, call.name, query, factor)
    key = (
        graph.add_move(call.name, [key], lambda v: v.transpose(-1, -2))
        if isinstance(key, Node)
        else key.transpose(-1, -2)
    )
    if given.get("is_causal"):
        mask = torch.ones(query.shape[-2], key.shape[-1], dtype=torch.bool, device=graph.device).tril()
    if mask is not None and mask.dtype == torch.bool:
        mask = torch.where(mask, 0.0, -torch.inf).double()
    scores: Node | MaskedValue | Tensor
    if isinstance(query, Node) or isinstance(key, Node):
        scores = compose.matrix_product(graph, call.name, query, key)
        scores = (
            scores
            if mask is None
            else add(graph, OperatorCall(call.name, aten.add.Tensor, (scores, mask), {}))
        )
        weights: Node | Tensor = compose.softmax(graph, call.name, scores, -1)
    else:
        weights = (query @ key + (0.0 if mask is None else mask)).softmax(-1)
    return compose.matrix_product(graph, call.name, weights, value)


def _repeat_heads(graph: Graph, name: str, part: Node | Tensor, heads: int) -> Node | Tensor:
    """Repeat each head for all query heads that share it."""
    times = heads // part.shape[-3]
    return (
        graph.add_move(name, [part], lambda v: v.repeat_interleave(times, -3))
        if isinstance(part, Node)
        else part.repeat_interleave(times, -3)
    )


@handles(aten.batch_norm.default, aten._native_batch_norm_legit_no_training.default)
def batch_norm(graph: Graph, call: OperatorCall) -> Any:
    native = call.target == aten._native_batch_norm_legit_no_training.default
    x, weight, bias, mean, variance = call.args[:5]
    if not native and call.args[5]:
        raise UnsupportedLayer(
            f"{call.name}: batch norm in training mode mixes the inputs of a batch. "
            "Export in evaluation mode."
        )
    scale = (variance + call.args[6 if native else 7]).rsqrt()
    scale = scale if weight is None else scale * weight
    moved, bias = mean * scale, torch.zeros_like(mean) if bias is None else bias
    # The two may cancel, but their rounding errors do not.
    shift, weight_of_shift = (
        bias - moved,
        bias.abs() + moved.abs(),
    )
    spread = (1, -1, *(1 for _ in x.shape[2:]))
    scale, shift, weight_of_shift = (t.reshape(spread) for t in (scale, shift, weight_of_shift))
    kernel = scaling(scale.flatten()) if is_image(x) else None
    node = graph.affine(
        call.name,
        [x],
        lambda v: v * scale + shift,
        lambda m: m * scale.abs() + weight_of_shift,
        kernel=kernel,
    )
    return (node, None, None) if native else node


@handles(aten.constant_pad_nd.default, aten.pad.default)
def pad(graph: Graph, call: OperatorCall) -> Node:
    args, kwargs = call.args, call.kwargs
    mode = args[2] if len(args) > 2 and isinstance(args[2], str) else kwargs.get("mode", "constant")
    value = next((a for a in args[2:] if isinstance(a, int | float)), kwargs.get("value")) or 0.0

    if not math.isfinite(value):
        raise UnsupportedLayer(
            f"{call.name}: padding with {value:g} has no bound here. If a max pooling follows, let it "
            "pad by itself. "
            "Attacks still work."
        )

    def pad_with(v: Tensor, fill: float) -> Tensor:
        return torch.nn.functional.pad(v, args[1], mode, fill if mode == "constant" else None)

    return graph.affine(call.name, [args[0]], lambda v: pad_with(v, value), lambda m: pad_with(m, abs(value)))


@handles(aten.layer_norm.default, aten.native_layer_norm.default)
def layer_norm(graph: Graph, call: OperatorCall) -> Any:
    node, shape, weight, bias, eps = _with_defaults(call.args, None, None, 1e-5)
    axes = range(len(node.shape) - len(shape), len(node.shape))
    answer = compose.scale_and_shift(
        graph, call.name, compose.standardise(graph, call.name, node, axes, eps), weight, bias
    )
    return (answer, None, None) if call.target == aten.native_layer_norm.default else answer


@handles(aten.rms_norm.default)
def rms_norm(graph: Graph, call: OperatorCall) -> Node:
    node, shape, weight, eps = _with_defaults(call.args, None, None)
    if eps is None:
        raise UnsupportedLayer(
            f"{call.name}: RMS norm without an eps uses that of its float type. "
            "Give it one: nn.RMSNorm(n, eps=1e-6)."
        )
    axes = range(len(node.shape) - len(shape), len(node.shape))
    return compose.scale_and_shift(
        graph,
        call.name,
        compose.standardise(graph, call.name, node, axes, eps, around_mean=False),
        weight,
        None,
    )


@handles(aten.group_norm.default)
def group_norm(graph: Graph, call: OperatorCall) -> Node:
    node, groups, weight, bias, eps = _with_defaults(call.args, None, None, 1e-5)
    return _group_norm(graph, call.name, node, groups, weight, bias, eps)


@handles(aten.native_group_norm.default)
def native_group_norm(graph: Graph, call: OperatorCall) -> tuple[Node, None, None]:
    node, weight, bias, _, _, _, groups, eps = call.args
    return _group_norm(graph, call.name, node, groups, weight, bias, eps), None, None


@handles(aten.instance_norm.default)
def instance_norm(graph: Graph, call: OperatorCall) -> Node:
    node, weight, bias, mean, variance, own, _, eps, _ = call.args
    if own:
        return _group_norm(graph, call.name, node, node.shape[1], weight, bias, eps)
    answer: Node = batch_norm(
        graph,
        OperatorCall(
            call.name, aten.batch_norm.default, (node, weight, bias, mean, variance, False, 0.0, eps), {}
        ),
    )
    return answer


def _with_defaults(args: tuple[Any, ...], *defaults: Any) -> tuple[Any, ...]:
    """Two required arguments and optional ones, filled with their defaults."""
    return (*args, *defaults[len(args) - 2 :])[: 2 + len(defaults)]


def _group_norm(graph: Graph, name: str, node: Node, groups: int, weight: Any, bias: Any, eps: float) -> Node:
    shape = node.shape
    apart = graph.add_move(name, [node], lambda v: v.reshape(shape[0], groups, -1))
    normal = compose.standardise(graph, name, apart, [2], eps)
    back = graph.add_move(name, [normal], lambda v: v.reshape(shape))
    spread = (1, -1, *(1 for _ in shape[2:]))
    weight, bias = (None if t is None else t.reshape(spread) for t in (weight, bias))
    return compose.scale_and_shift(graph, name, back, weight, bias)
