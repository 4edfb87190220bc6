"""Operators that enlarge an image (Upsample, Resize) and the one-hot encoding of classes (OneHot).

Enlarging by whole factors only. With factor s, element q s + r (0 <= r < s) of the result lies at

    asymmetric:  q + r / s                        half_pixel:  q + (r + 1/2) / s - 1/2

of the data. So the nearest element is q for `asymmetric` with rounding down, and for `half_pixel` with any rounding to
the nearest, since -1/2 < (r + 1/2) / s - 1/2 < 1/2: each element is repeated s times. Linear interpolation is torch's
for `half_pixel` and `align_corners`. Everything else is refused.

Reference: the definitions of Resize (opset 10 to 19), Upsample (opset 7 and 9) and OneHot (opset 9 and 11) in the
ONNX operator documentation.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from holdfast.network.onnx.operators.static import flat
from holdfast.network.onnx.operators.table import OnnxNode, Static, operator, rewrite

# Attributes of Resize that change the result and have one supported value each.
_SUPPORTED = {"antialias": 0, "exclude_outside": 0, "keep_aspect_ratio_policy": "stretch"}
# torch's name of linear interpolation along the last one, two or three axes.
_LINEAR = {1: "linear", 2: "bilinear", 3: "trilinear"}


@rewrite("Upsample")
def as_resize(node: OnnxNode) -> list[OnnxNode]:
    """Upsample is a Resize from asymmetric coordinates, rounded down; opset 7 has its scales as an attribute."""
    attributes = dict(node.attributes) | {
        "coordinate_transformation_mode": "asymmetric",
        "nearest_mode": "floor",
    }
    if node.opset >= 9:
        return [_resize_by(node, (*node.inputs, ""), attributes)]
    scales = torch.tensor([float(scale) for scale in attributes.pop("scales", ())])
    name = f"{node.outputs[0]}/scales"
    return [
        OnnxNode("Constant", node.name, (), (name,), node.opset, {"value": scales}),
        _resize_by(node, (node.inputs[0], name, ""), attributes),
    ]


@rewrite("Resize")
def with_named_scales(node: OnnxNode) -> list[OnnxNode]:
    """Resize without its region of interest. Opset 10 has no such input, and rounds asymmetric coordinates down."""
    for key, value in _SUPPORTED.items():
        if node.attributes.get(key, value) != value:
            raise node.unsupported_error(f"{key} = {node.attributes[key]}")
    if node.opset < 11:
        down = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
        return [_resize_by(node, (*node.inputs, ""), down | dict(node.attributes))]
    return [_resize_by(node, (node.inputs[0], *(*node.inputs[2:], "", "")[:2]), dict(node.attributes))]


def _resize_by(node: OnnxNode, inputs: tuple[str, ...], attributes: dict[str, Any]) -> OnnxNode:
    """The operator that all versions become, with inputs data, scales and sizes."""
    return OnnxNode("ResizeBy", node.name, inputs, node.outputs, node.opset, attributes)


@operator("ResizeBy")
def resize(node: OnnxNode, data: Tensor, scales: Static | None = None, sizes: Static | None = None) -> Tensor:
    axes = [axis % data.dim() for axis in node.integers("axes", range(data.dim()))]
    factors = dict(zip(axes, _factors(node, data, axes, scales, sizes), strict=True))
    enlarged = [axis for axis in sorted(factors) if factors[axis] != 1]
    if not data.is_floating_point():
        raise node.unsupported_error(f"a resize of {data.dtype}")
    mode = node.text("mode", "nearest")
    coordinates = node.text("coordinate_transformation_mode", "half_pixel")
    if mode == "nearest":
        _check_nearest(node, coordinates)
        for axis in enlarged:
            data = data.repeat_interleave(factors[axis], axis)
        return data
    spatial = list(range(2, data.dim()))
    if mode != "linear" or coordinates not in ("half_pixel", "align_corners") or len(spatial) not in _LINEAR:
        raise node.unsupported_error(f"mode {mode!r} with {coordinates!r} of {data.dim()} axes")
    if not set(enlarged) <= set(spatial):
        raise node.unsupported_error("linear interpolation along the batch or the channels")
    target = [data.shape[axis] * factors.get(axis, 1) for axis in spatial]
    return functional.interpolate(
        data, size=target, mode=_LINEAR[len(spatial)], align_corners=coordinates == "align_corners"
    )


def _factors(
    node: OnnxNode, data: Tensor, axes: list[int], scales: Static | None, sizes: Static | None
) -> list[int]:
    """The whole factor of each axis. Exactly one of scales and sizes is given and not empty."""
    by_scale = flat(scales) if scales is not None and scales.size else None
    by_size = flat(sizes) if sizes is not None and sizes.size else None
    if (by_scale is None) == (by_size is None):
        raise node.unsupported_error("a resize without, or with both of, scales and sizes")
    given: list[Any] = by_scale if by_scale is not None else by_size or []
    if len(given) != len(axes):
        raise node.unsupported_error(f"{len(given)} factors for {len(axes)} axes")
    ratios = (
        given
        if by_scale is not None
        else [size / data.shape[axis] for size, axis in zip(given, axes, strict=True)]
    )
    for ratio in ratios:
        if not (ratio >= 1 and float(ratio).is_integer()):
            raise node.unsupported_error(f"a factor of {float(ratio):g}, which is not a whole number,")
    return [int(ratio) for ratio in ratios]


def _check_nearest(node: OnnxNode, coordinates: str) -> None:
    """Refuse the combinations in which the nearest element is not the repeated one."""
    rounding = node.text("nearest_mode", "round_prefer_floor")
    down = coordinates == "asymmetric" and rounding == "floor"
    nearest = coordinates == "half_pixel" and rounding in ("round_prefer_floor", "round_prefer_ceil")
    if not down and not nearest:
        raise node.unsupported_error(f"the nearest element by {coordinates!r} and {rounding!r}")


@operator("OneHot")
def one_hot(node: OnnxNode, indices: Tensor, depth: Static, values: Tensor) -> Tensor:
    """values[1] where the index equals the position along the new axis, otherwise values[0].

    An index from -depth to -1 counts from the end; outside of [-depth, depth) all elements are values[0].
    Opset 9 leaves negative indices open; onnxruntime counts them from the end there too.
    """
    if indices.is_floating_point():
        raise node.unsupported_error(f"indices of {indices.dtype}")
    flat_depth = flat(depth)
    if len(flat_depth) != 1 or int(flat_depth[0]) != flat_depth[0] or flat_depth[0] < 1:
        raise node.unsupported_error(f"a depth of {flat_depth}")
    count, axis = int(flat_depth[0]), node.integer("axis", -1)
    axis = axis + indices.dim() + 1 if axis < 0 else axis
    positions = torch.arange(count, device=indices.device)
    positions = positions.reshape([-1 if d == axis else 1 for d in range(indices.dim() + 1)])
    chosen = indices.unsqueeze(axis)
    off, on = values.unbind(0)
    return torch.where((chosen == positions) | (chosen == positions - count), on, off)
