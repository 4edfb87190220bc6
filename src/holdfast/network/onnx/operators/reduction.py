"""Reductions over axes, and normalisations built on them."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from holdfast.network.onnx.operators.static import axes_of
from holdfast.network.onnx.operators.table import OnnxNode, Static, operator, rewrite

# (data, axes, whether to keep the axes with size 1) -> the reduced data.
Reduction = Callable[[Tensor, list[int], bool], Tensor]


def _product(data: Tensor, axes: list[int], keep: bool) -> Tensor:
    """A product over several axes, one at a time from the last on, so that the remaining axes keep their
    positions."""
    for axis in sorted((axis % data.dim() for axis in axes), reverse=True):
        data = data.prod(axis, keepdim=keep)
    return data


_REDUCTIONS: dict[str, Reduction] = {
    "ReduceL1": lambda data, axes, keep: data.abs().sum(axes, keepdim=keep),
    "ReduceL2": lambda data, axes, keep: torch.linalg.vector_norm(data, 2, axes, keepdim=keep),
    "ReduceLogSum": lambda data, axes, keep: data.sum(axes, keepdim=keep).log(),
    "ReduceLogSumExp": lambda data, axes, keep: data.logsumexp(axes, keepdim=keep),
    "ReduceMax": lambda data, axes, keep: data.amax(axes, keepdim=keep),
    "ReduceMean": lambda data, axes, keep: data.mean(axes, keepdim=keep),
    "ReduceMin": lambda data, axes, keep: data.amin(axes, keepdim=keep),
    "ReduceProd": _product,
    "ReduceSum": lambda data, axes, keep: data.sum(axes, keepdim=keep),
    "ReduceSumSquare": lambda data, axes, keep: data.square().sum(axes, keepdim=keep),
}

# ONNX does not define how these round integers.
_FLOATS_ONLY = ("ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMean")
# These have no value for an empty tensor.
_NEEDS_ONE = ("ReduceMax", "ReduceMin")


def _register(name: str, reduction: Reduction) -> None:
    @operator(name)
    def run(node: OnnxNode, data: Tensor, axes: Static | None = None) -> Tensor:
        dims = axes_of(node, axes)
        if name in _FLOATS_ONLY and not data.is_floating_point():
            raise node.unsupported_error(f"a reduction of {data.dtype}")
        if name in _NEEDS_ONE and 0 in data.shape:
            raise node.unsupported_error("a reduction of nothing")
        if dims and len({dim % max(data.dim(), 1) for dim in dims}) < len(dims):
            raise node.unsupported_error("a reduction that names one axis twice")
        if not dims and node.integer("noop_with_empty_axes", 0):
            return reduction(
                data[None], [0], False
            )  # squares and logarithms apply although nothing is summed
        if data.dim() == 0:
            return reduction(data[None], [0], False)
        return reduction(data, dims or list(range(data.dim())), bool(node.integer("keepdims", 1))).to(
            data.dtype
        )


for _name, _reduction in _REDUCTIONS.items():
    _register(_name, _reduction)


@operator("ArgMax")
def argmax(node: OnnxNode, data: Tensor) -> Tensor:
    return _first_or_last(node, data, torch.argmax)


@operator("ArgMin")
def argmin(node: OnnxNode, data: Tensor) -> Tensor:
    return _first_or_last(node, data, torch.argmin)


def _first_or_last(node: OnnxNode, data: Tensor, find: Callable[[Tensor, int, bool], Tensor]) -> Tensor:
    axis, keep = node.integer("axis", 0), bool(node.integer("keepdims", 1))
    if not node.integer("select_last_index", 0):
        return find(data, axis, keep)
    return data.shape[axis] - 1 - find(data.flip(axis), axis, keep)


@rewrite("CumSum")
def checked_sum(node: OnnxNode) -> list[OnnxNode]:
    if node.integer("exclusive", 0) or node.integer("reverse", 0):
        raise node.unsupported_error("an exclusive or reverse sum")
    return [node]


@operator("CumSum")
def cumulative_sum(node: OnnxNode, data: Tensor, axis: Static) -> Tensor:
    return data.cumsum(axis.item(), dtype=data.dtype)  # by default torch computes in 64 bits


@rewrite("BatchNormalization")
def checked_batch_normalization(node: OnnxNode) -> list[OnnxNode]:
    if node.integer("training_mode", 0) or not node.integer("spatial", 1):
        raise node.unsupported_error("training mode, or one mean per position (spatial=0),")
    return [node]


@operator("BatchNormalization")
def batch_normalization(
    node: OnnxNode, data: Tensor, scale: Tensor, shift: Tensor, mean: Tensor, variance: Tensor
) -> Tensor:
    """data (batch, channels, ...), all other inputs (channels,)."""
    if data.dim() < 2:
        raise node.unsupported_error("an input without an axis of channels")
    return functional.batch_norm(
        data, mean, variance, scale, shift, training=False, eps=node.number("epsilon", 1e-5)
    )


@operator("InstanceNormalization")
def instance_normalization(node: OnnxNode, data: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    """data (batch, channels, ...), normalised over all but the first two axes.

    Scale and shift (channels,).
    """
    if data.dim() < 3 or data.shape[2:].numel() == 1:
        raise node.unsupported_error("normalising one number by itself")
    return functional.instance_norm(data, weight=scale, bias=shift, eps=node.number("epsilon", 1e-5))


@operator("LayerNormalization")
def layer_normalization(node: OnnxNode, data: Tensor, scale: Tensor, shift: Tensor | None = None) -> Tensor:
    """Normalise over all axes from `axis` on."""
    axis = node.integer("axis", -1)
    if not -data.dim() <= axis < data.dim():
        raise node.unsupported_error(f"axis {axis} of an input of {data.dim()} axes")
    sizes = data.shape[axis:]
    epsilon = node.number("epsilon", 1e-5)
    if scale.shape == sizes and (shift is None or shift.shape == sizes):
        return functional.layer_norm(data, sizes, scale, shift, epsilon)
    normal = functional.layer_norm(data, sizes, eps=epsilon)
    return normal * scale if shift is None else normal * scale + shift


@operator("LpNormalization")
def lp_normalization(node: OnnxNode, data: Tensor) -> Tensor:
    if node.integer("p", 2) not in (1, 2):
        raise node.unsupported_error(f"the norm of order {node.integer('p', 2)}")
    tiny = torch.finfo(data.dtype).tiny  # for the zero vector, which remains zero
    return functional.normalize(data, p=node.integer("p", 2), dim=node.integer("axis", -1), eps=tiny)
