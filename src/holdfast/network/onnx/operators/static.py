"""Shape arithmetic in Python numbers.

Exporters write `x.reshape(x.shape[0], -1)` as Shape, Gather, Concat, Reshape. Computed with tensors, the
target of the Reshape would depend on data, which torch.export cannot trace. Computed with numbers, which are
symbolic during tracing, it can be traced.
"""

import functools
import operator as python
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from holdfast.errors import UnsupportedLayer
from holdfast.network.onnx.operators.table import OnnxNode, Static, static


def as_static(values: Any) -> Static:
    """A number, a nested list or an array of numbers as a Static."""
    return np.asarray(values, dtype=object)


def flat(values: Static) -> list[Any]:
    """The numbers as a flat list."""
    return list(values.reshape(-1).tolist())


def target_shape(shape: list[Any], current: Any, keep_zeros: int) -> list[Any]:
    """The target of a Reshape, in which 0 means the present size unless `keep_zeros`. -1 is kept."""
    return [current[axis] if size == 0 and not keep_zeros else size for axis, size in enumerate(shape)]


# The numbers that exporters write for "to the end" of an axis of unknown size: the largest 32-bit and 64-bit
# integers.
_TO_THE_END = (2**31 - 1, 2**63 - 1)


def python_slices(
    sizes: Sequence[Any], starts: list[Any], ends: list[Any], axes: list[int], steps: list[Any]
) -> tuple[slice, ...]:
    """One Python slice for each axis.

    ONNX clamps and counts from the end like Python, with one exception: for a negative step from before the
    first element, Python takes nothing and ONNX takes the first element.
    """
    rank = len(sizes)
    slices = [slice(None)] * rank
    if len({axis % rank for axis in axes}) < len(axes):
        raise UnsupportedLayer("a Slice cuts one axis twice, which ONNX does not define.")
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        if step < 0 and isinstance(end, int) and end in _TO_THE_END:
            raise UnsupportedLayer(
                "a Slice goes backwards to the largest integer, which runtimes read as either end of the "
                "axis."
            )
        before_first = step < 0 and start < -1 and start < -sizes[axis]
        slices[axis] = slice(0 if before_first else start, end, step)
    return tuple(slices)


def _remainder(node: OnnxNode, a: Any, b: Any) -> Any:
    """The remainder of a / b with the sign of b, or with fmod=1 that of a."""
    return a - b * _divide(a, b) if node.integer("fmod", 0) else a % b


def _convert_like(value: Any, like: Any) -> Any:
    if isinstance(value, float) and type(like) is int and not value.is_integer():
        # Products and quotients are rounded to float64 here and to float32 in the file, so they may round to
        # different integers.
        raise UnsupportedLayer(
            f"a size is {value:g} before it is cast to an integer; sizes computed in fractions are not "
            f"supported."
        )
    return _CONVERSIONS[type(like)](value)


def _divide(a: Any, b: Any) -> Any:
    """Division; of integers with rounding towards zero as in C, where Python's // rounds down."""
    if isinstance(a, float | torch.SymFloat) or isinstance(b, float | torch.SymFloat):
        return a / b
    return a // b if (a >= 0) == (b > 0) else -(-a // b)


_CONVERSIONS: dict[type, Callable[[Any], Any]] = {bool: bool, int: torch.sym_int, float: torch.sym_float}

_ELEMENTWISE: dict[str, tuple[int, Callable[..., Any]]] = {
    "Identity": (1, lambda a: a),
    "Neg": (1, python.neg),
    "Abs": (1, abs),
    "Not": (1, python.not_),
    "Add": (2, python.add),
    "Sub": (2, python.sub),
    "Mul": (2, python.mul),
    "Div": (2, _divide),
    "Equal": (2, python.eq),
    "Less": (2, python.lt),
    "LessOrEqual": (2, python.le),
    "Greater": (2, python.gt),
    "GreaterOrEqual": (2, python.ge),
    "And": (2, lambda a, b: a and b),
    "Or": (2, lambda a, b: a or b),
    "Where": (3, lambda condition, a, b: a if condition else b),
    "CastLike": (2, _convert_like),
}


def _register_elementwise(name: str, arity: int, function: Callable[..., Any]) -> None:
    universal = np.frompyfunc(function, arity, 1)

    @static(name)
    def run(node: OnnxNode, *values: Static) -> Static:
        return as_static(universal(*values))


for _name, (_arity, _function) in _ELEMENTWISE.items():
    _register_elementwise(_name, _arity, _function)


@static("Mod")
def modulo(node: OnnxNode, a: Static, b: Static) -> Static:
    return as_static(np.frompyfunc(functools.partial(_remainder, node), 2, 1)(a, b))


@static("Min")
def smallest(node: OnnxNode, *values: Static) -> Static:
    return as_static(functools.reduce(np.frompyfunc(torch.sym_min, 2, 1), values))


@static("Max")
def largest(node: OnnxNode, *values: Static) -> Static:
    return as_static(functools.reduce(np.frompyfunc(torch.sym_max, 2, 1), values))


@static("Shape")
def shape(node: OnnxNode, data: Static) -> Static:
    return as_static(list(data.shape[node.integer("start", 0) : node.attributes.get("end")]))


@static("Size")
def size(node: OnnxNode, data: Static) -> Static:
    return as_static(data.size)


@static("Concat")
def concat(node: OnnxNode, *values: Static) -> Static:
    return np.concatenate(values, axis=node.integer("axis", 0))


@static("Gather")
def gather(node: OnnxNode, data: Static, indices: Static) -> Static:
    return as_static(data.take(indices.astype(int), axis=node.integer("axis", 0)))


@static("Slice")
def slice_(
    node: OnnxNode,
    data: Static,
    starts: Static | None = None,
    ends: Static | None = None,
    axes: Static | None = None,
    steps: Static | None = None,
) -> Static:
    return data[python_slices(data.shape, *slice_bounds(node, starts, ends, axes, steps))]


def slice_bounds(
    node: OnnxNode, starts: Static | None, ends: Static | None, axes: Static | None, steps: Static | None
) -> tuple[list[Any], list[Any], list[int], list[Any]]:
    """Starts, ends, axes and steps of a Slice, which are attributes before opset 10 and inputs since then."""
    first = flat(starts) if starts is not None else node.integers("starts", ())
    last = flat(ends) if ends is not None else node.integers("ends", ())
    which = flat(axes) if axes is not None else node.integers("axes", range(len(first)))
    return first, last, which, flat(steps) if steps is not None else [1] * len(first)


def axes_of(node: OnnxNode, axes: Static | None) -> list[int] | None:
    """The axes of a Squeeze, Unsqueeze or reduction, an attribute in old opsets and an input in new ones.

    The result is None if they are absent.
    """
    if axes is not None:
        return flat(axes)
    return node.integers("axes", ()) if "axes" in node.attributes else None


@static("Squeeze")
def squeeze(node: OnnxNode, data: Static, axes: Static | None = None) -> Static:
    dims = axes_of(node, axes)
    return data.squeeze() if dims is None else data.squeeze(tuple(dims))


@static("Unsqueeze")
def unsqueeze(node: OnnxNode, data: Static, axes: Static | None = None) -> Static:
    return np.expand_dims(data, tuple(axes_of(node, axes) or ()))


@static("Reshape")
def reshape(node: OnnxNode, data: Static, shape: Static) -> Static:
    return data.reshape(target_shape(flat(shape), data.shape, node.integer("allowzero", 0)))


@static("Transpose")
def transpose(node: OnnxNode, data: Static) -> Static:
    return data.transpose(node.integers("perm", reversed(range(data.ndim))))


@static("Expand")
def expand(node: OnnxNode, data: Static, shape: Static) -> Static:
    sizes = flat(shape)
    least = 0 if node.integer("fills", 0) else 1
    if any(isinstance(size, int) and size < least for size in sizes):
        raise node.unsupported_error(f"an expansion to {sizes}, which runtimes disagree about,")
    return np.broadcast_to(data, np.broadcast_shapes(data.shape, tuple(sizes)))


@static("RangeLike")
def range_like(node: OnnxNode, start: Static, limit: Static, step: Static, like: Static) -> Static:
    return as_static(list(range(start.item(), limit.item(), step.item())))


@static("ReduceProd")
def reduce_product(node: OnnxNode, data: Static, axes: Static | None = None) -> Static:
    dims = axes_of(node, axes)
    keep = bool(node.integer("keepdims", 1))
    if not dims and node.integer("noop_with_empty_axes", 0):
        return data
    return as_static(data.prod(axis=tuple(dims) if dims else None, keepdims=keep))
