"""Operators that reshape, slice, concatenate, repeat and pad values."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from holdfast.errors import UnreadableFile
from holdfast.network.onnx.operators.static import (
    as_static,
    axes_of,
    flat,
    python_slices,
    slice_bounds,
    target_shape,
)
from holdfast.network.onnx.operators.table import OnnxNode, Static, operator, rewrite


@operator("Shape")
def shape(node: OnnxNode, data: Tensor) -> Static:
    return as_static(list(data.shape[node.integer("start", 0) : node.attributes.get("end")]))


@operator("Size")
def size(node: OnnxNode, data: Tensor) -> Static:
    return as_static(data.numel())


@operator("Reshape")
def reshape(node: OnnxNode, data: Tensor, shape: Static) -> Tensor:
    return data.reshape(target_shape(flat(shape), data.shape, node.integer("allowzero", 0)))


@operator("Flatten")
def flatten(node: OnnxNode, data: Tensor) -> Tensor:
    """Reshape to two axes: those before `axis`, and the others."""
    axis = node.integer("axis", 1)
    axis = axis + data.dim() if axis < 0 else axis
    if axis == 1 and data.dim() > 1:
        return data.flatten(1)
    leading = data.shape[:axis].numel()
    return data.reshape(leading, data.shape[axis:].numel())


@operator("Squeeze")
def squeeze(node: OnnxNode, data: Tensor, axes: Static | None = None) -> Tensor:
    dims = axes_of(node, axes)
    if dims == []:
        raise node.unsupported_error("an empty list of axes, which may mean none or all,")
    return data.squeeze() if dims is None else data.squeeze(dims)


@operator("Unsqueeze")
def unsqueeze(node: OnnxNode, data: Tensor, axes: Static | None = None) -> Tensor:
    dims = axes_of(node, axes) or []
    rank = data.dim() + len(dims)
    for dim in sorted(dim % rank for dim in dims):
        data = data.unsqueeze(dim)
    return data


@operator("Transpose")
def transpose(node: OnnxNode, data: Tensor) -> Tensor:
    return data.permute(node.integers("perm", reversed(range(data.dim()))))


@operator("Expand")
def expand(node: OnnxNode, data: Tensor, shape: Static) -> Tensor:
    """Broadcast in both directions: a target size of 1 keeps the size of the data."""
    sizes = flat(shape)
    least = 0 if node.integer("fills", 0) else 1
    if any(isinstance(size, int) and size < least for size in sizes):
        raise node.unsupported_error(f"an expansion to {sizes}, which runtimes disagree about,")
    rank = max(data.dim(), len(sizes))
    current = [1] * (rank - data.dim()) + list(data.shape)
    target = [1] * (rank - len(sizes)) + sizes
    if any(
        isinstance(old, int) and isinstance(new, int) and 1 not in (old, new) and old != new
        for old, new in zip(current, target, strict=True)
    ):
        raise UnreadableFile(
            f"Expand node {node.name!r}: {current} does not broadcast to {target}. Export the file again."
        )
    return data.expand([new if old == 1 else old for old, new in zip(current, target, strict=True)])


@rewrite("ConstantOfShape")
def constant_of_shape(node: OnnxNode) -> list[OnnxNode]:
    """Rewrite as the Expand of a constant, whose buffer follows the module's device and dtype.

    The shape may be empty.
    """
    value: Any = node.attributes.get("value", torch.zeros(1))
    name = f"{node.outputs[0]}/value"
    return [
        OnnxNode("Constant", node.name, (), (name,), node.opset, {"value": value.reshape(())}),
        OnnxNode("Expand", node.name, (name, node.inputs[0]), node.outputs, node.opset, {"fills": 1}),
    ]


@operator("Tile")
def tile(node: OnnxNode, data: Tensor, repeats: Static) -> Tensor:
    return data.repeat(flat(repeats))


@operator("Concat")
def concat(node: OnnxNode, *values: Tensor) -> Tensor:
    return torch.cat(values, dim=node.integer("axis", 0))


@operator("Split")
def split(node: OnnxNode, data: Tensor, sizes: Static | None = None) -> tuple[Tensor, ...]:
    """Split an axis.

    The sizes are an attribute before opset 13 and an input since then; by default equal, with a smaller last.
    """
    axis = node.integer("axis", 0)
    given = None
    if sizes is not None:
        given = flat(sizes)
    elif "split" in node.attributes:
        given = node.integers("split", ())
    parts = node.integer("num_outputs", len(node.outputs)) if given is None else len(given)
    if parts != len(node.outputs):
        raise node.unsupported_error(
            f"a split of {data.shape[axis]} into {parts} parts, {len(node.outputs)} of which have names,"
        )
    if given is not None:
        return torch.split(data, given, dim=axis)
    each = -(-data.shape[axis] // parts)
    last = data.shape[axis] - each * (parts - 1)
    if last < 0 or (node.opset < 18 and last != each):
        raise node.unsupported_error(f"a split of {data.shape[axis]} into {parts}")
    return torch.split(data, [*[each] * (parts - 1), last], dim=axis)


@operator("Slice")
def slice_(
    node: OnnxNode,
    data: Tensor,
    starts: Static | None = None,
    ends: Static | None = None,
    axes: Static | None = None,
    steps: Static | None = None,
) -> Tensor:
    slices = list(python_slices(data.shape, *slice_bounds(node, starts, ends, axes, steps)))
    for axis, piece in enumerate(slices):
        if piece.step is not None and piece.step < 0:
            data = _backwards(data, axis, piece)
            slices[axis] = slice(None)
    return data[tuple(slices)]


def _backwards(data: Tensor, axis: int, piece: slice) -> Tensor:
    """A slice with a negative step, which torch does not have: the same elements with a positive step,
    flipped."""
    indices = range(*piece.indices(data.shape[axis]))
    if len(indices) == 0:
        return data.narrow(axis, 0, 0)
    forwards = [slice(None)] * data.dim()
    forwards[axis] = slice(indices[-1], indices[0] + 1, -piece.step)
    return data[tuple(forwards)].flip(axis)


@operator("Gather")
def gather(node: OnnxNode, data: Tensor, indices: Tensor | int) -> Tensor:
    """data (..., n, ...) with the axis replaced by the axes of the indices, which have any shape."""
    axis = node.integer("axis", 0) % data.dim()
    if not isinstance(indices, Tensor):
        return data.select(axis, indices)
    picked = data.index_select(axis, _from_start(node, indices, data.shape[axis]).reshape(-1))
    return picked.reshape(*data.shape[:axis], *indices.shape, *data.shape[axis + 1 :])


@operator("Embedding")
def embedding(node: OnnxNode, table: Tensor, words: Tensor) -> Tensor:
    """A Gather of rows of a constant, as one operator in traced graphs. The ids are not negative."""
    return functional.embedding(words, table)


@operator("GatherElements")
def gather_elements(node: OnnxNode, data: Tensor, indices: Tensor) -> Tensor:
    axis = node.integer("axis", 0)
    return data.gather(axis, _from_start(node, indices, data.shape[axis]).long())


@rewrite("GatherND")
def checked_gather_many(node: OnnxNode) -> list[OnnxNode]:
    if node.integer("batch_dims", 0):
        raise node.unsupported_error("batch_dims other than 0")
    return [node]


@operator("GatherND")
def gather_many(node: OnnxNode, data: Tensor, indices: Tensor) -> Tensor:
    return data[tuple(indices.unbind(-1))]


def _from_start(node: OnnxNode, indices: Tensor, size: int) -> Tensor:
    """The indices with negative ones counted from the end.

    Indices that are known to be non-negative are returned unchanged.
    """
    return indices if node.integer("forwards", 0) else torch.where(indices < 0, indices + size, indices)


_PAD_MODES = {"edge": "replicate", "reflect": "reflect", "wrap": "circular"}


@operator("Pad")
def pad(
    node: OnnxNode,
    data: Tensor,
    pads: Static | None = None,
    value: Static | None = None,
    axes: Static | None = None,
) -> Tensor:
    """Pad.

    The amounts are attributes before opset 11 and inputs since then: first those at the starts, then those at
    the ends.
    """
    amounts = flat(pads) if pads is not None else node.integers("pads", ())
    dims = flat(axes) if axes is not None else list(range(data.dim()))
    begins, ends = amounts[: len(dims)], amounts[len(dims) :]
    around = {dim % data.dim(): (begin, end) for dim, begin, end in zip(dims, begins, ends, strict=True)}
    pairs = [around.get(dim, (0, 0)) for dim in range(data.dim())]
    mode = node.text("mode", "constant")
    if mode == "constant":
        fill = value.item() if value is not None else node.number("value", 0.0)
        return functional.pad(data, last_first(pairs), value=fill)
    if mode not in _PAD_MODES:
        raise node.unsupported_error(f"mode {mode!r}")
    if not _torch_has(pairs, data.shape, mode):
        raise node.unsupported_error(f"{mode} padding by {pairs} around {tuple(data.shape)}")
    return _pad_from_data(data, pairs, _PAD_MODES[mode])


def _torch_has(pairs: list[tuple[Any, Any]], sizes: Any, mode: str) -> bool:
    """Whether torch can pad so: at most the last three axes, by non-negative amounts, and by at most the size
    of the data."""
    first = next((axis for axis, pair in enumerate(pairs) if pair != (0, 0)), len(pairs))
    excess = {"edge": None, "reflect": 1, "wrap": 0}[mode]
    return len(pairs) - first <= 3 and all(
        amount >= 0 and (excess is None or amount <= size - excess)
        for size, pair in zip(sizes, pairs, strict=True)
        for amount in pair
        if amount != 0
    )


def last_first(pairs: list[tuple[Any, Any]]) -> list[Any]:
    """Pairs (begin, end) for each axis as the flat list of torch's pad, which starts at the last axis."""
    return [amount for pair in reversed(pairs) for amount in pair]


def _pad_from_data(data: Tensor, pairs: list[tuple[Any, Any]], mode: str) -> Tensor:
    """Pad with values of the data.

    Torch pads the last axes of a tensor with one more axis, so the others are flattened.
    """
    first = next((axis for axis, pair in enumerate(pairs) if pair != (0, 0)), len(pairs))
    if first == len(pairs):
        return data
    padded = functional.pad(data[None].flatten(0, first), last_first(pairs[first:]), mode=mode)
    return padded.reshape(*data.shape[:first], *padded.shape[1:])


@rewrite("Range")
def range_(node: OnnxNode) -> list[OnnxNode]:
    """Rewrite with a constant as another input, whose buffer gives the device of the result."""
    like = f"{node.outputs[0]}/like"
    return [
        OnnxNode(
            "Constant", node.name, (), (like,), node.opset, {"value": torch.zeros((), dtype=torch.int64)}
        ),
        OnnxNode("RangeLike", node.name, (*node.inputs, like), node.outputs, node.opset),
    ]


@operator("RangeLike")
def range_like(node: OnnxNode, start: Static, limit: Static, step: Static, like: Tensor) -> Tensor:
    ends = (start.item(), limit.item(), step.item())
    if any(isinstance(end, float) and not end.is_integer() for end in ends):
        raise node.unsupported_error(f"a range in fractions ({', '.join(f'{end:g}' for end in ends)})")
    return torch.arange(*ends, device=like.device)


@operator("Trilu")
def triangle(node: OnnxNode, data: Tensor, diagonal: Static | None = None) -> Tensor:
    offset = 0 if diagonal is None else diagonal.item()
    return data.triu(offset) if node.integer("upper", 1) else data.tril(offset)
