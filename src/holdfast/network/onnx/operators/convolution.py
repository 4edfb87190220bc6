"""Convolutions and pooling over one, two or three spatial axes."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from holdfast.network.onnx.operators.shape import last_first
from holdfast.network.onnx.operators.table import OnnxNode, operator, rewrite

_CONVOLUTIONS: dict[int, Callable[..., Tensor]] = {
    1: functional.conv1d,
    2: functional.conv2d,
    3: functional.conv3d,
}
_TRANSPOSED: dict[int, Callable[..., Tensor]] = {
    1: functional.conv_transpose1d,
    2: functional.conv_transpose2d,
    3: functional.conv_transpose3d,
}
_MAXIMA: dict[int, Callable[..., Any]] = {
    1: functional.max_pool1d,
    2: functional.max_pool2d,
    3: functional.max_pool3d,
}
_AVERAGES: dict[int, Callable[..., Tensor]] = {
    1: functional.avg_pool1d,
    2: functional.avg_pool2d,
    3: functional.avg_pool3d,
}


@dataclass(frozen=True)
class KernelWindow:
    """The window of a convolution or pooling, with one entry for each spatial axis."""

    kernel: list[int]
    stride: list[int]
    dilation: list[int]
    begins: list[int]
    ends: list[int]

    @classmethod
    def of(cls, node: OnnxNode, kernel: Sequence[int], sizes: Sequence[int]) -> "KernelWindow":
        """The window of a node for an input of these spatial sizes, with automatic padding computed."""
        rank = len(kernel)
        stride = node.integers("strides", [1] * rank)
        dilation = node.integers("dilations", [1] * rank)
        automatic = node.text("auto_pad", "NOTSET")
        if automatic not in ("NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER"):
            raise node.unsupported_error(f"auto_pad {automatic!r}")
        if automatic != "NOTSET" and any(node.integers("pads", ())):
            raise node.unsupported_error(f"auto_pad {automatic} together with pads, which ONNX forbids,")
        if automatic in ("SAME_UPPER", "SAME_LOWER"):
            extents = [(k - 1) * d + 1 for k, d in zip(kernel, dilation, strict=True)]
            totals = [
                max((-(-size // s) - 1) * s + extent - size, 0)
                for size, s, extent in zip(sizes, stride, extents, strict=True)
            ]
            small, large = [total // 2 for total in totals], [total - total // 2 for total in totals]
            begins, ends = (small, large) if automatic == "SAME_UPPER" else (large, small)
        else:
            pads = [0] * 2 * rank if automatic == "VALID" else node.integers("pads", [0] * 2 * rank)
            begins, ends = pads[:rank], pads[rank:]
        return cls(list(kernel), stride, dilation, begins, ends)

    @property
    def symmetric(self) -> bool:
        """Whether torch's operators can pad: equally on both sides and by non-negative amounts."""
        return self.begins == self.ends and min(self.begins, default=0) >= 0

    @property
    def pads(self) -> list[int]:
        """The pads in the order of torch.nn.functional.pad."""
        return last_first(list(zip(self.begins, self.ends, strict=True)))

    @property
    def extent(self) -> list[int]:
        """The distance from the first to the last element of a window, plus one."""
        return [(k - 1) * d + 1 for k, d in zip(self.kernel, self.dilation, strict=True)]


@operator("Conv")
def convolution(node: OnnxNode, data: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """data (batch, channels, *sizes), weight (out, channels / groups, *kernel), bias (out,)."""
    window = KernelWindow.of(node, weight.shape[2:], data.shape[2:])
    padding = window.begins if window.symmetric else [0] * len(window.begins)
    data = data if window.symmetric else functional.pad(data, window.pads)
    function = _of_rank(node, _CONVOLUTIONS, len(padding))
    return function(data, weight, bias, window.stride, padding, window.dilation, node.integer("group", 1))


@operator("ConvTranspose")
def transposed_convolution(
    node: OnnxNode, data: Tensor, weight: Tensor, bias: Tensor | None = None
) -> Tensor:
    """data (batch, channels, *sizes), weight (channels, out / groups, *kernel), bias (out,).

    Asymmetric pads, which torch does not have, are cut from the full result.
    """
    rank = data.dim() - 2
    extra = node.integers("output_padding", [0] * rank)
    window = KernelWindow.of(node, weight.shape[2:], data.shape[2:])
    begins, ends = _cut(node, window, data.shape[2:], extra)
    function = _of_rank(node, _TRANSPOSED, rank)
    usual = all(more < max(s, d) for more, s, d in zip(extra, window.stride, window.dilation, strict=True))
    if begins == ends and min(begins) >= 0 and usual:
        return function(
            data, weight, bias, window.stride, begins, extra, node.integer("group", 1), window.dilation
        )
    full = function(data, weight, None, window.stride, 0, 0, node.integer("group", 1), window.dilation)
    kept = functional.pad(
        full, last_first([(-a, more - b) for a, b, more in zip(begins, ends, extra, strict=True)])
    )
    # The bias is added last, because elements outside of the full result have it too.
    return kept if bias is None else kept + bias.reshape(-1, *[1] * rank)


def _cut(
    node: OnnxNode, window: KernelWindow, sizes: Sequence[int], extra: list[int]
) -> tuple[list[int], list[int]]:
    """The amounts that a transposed convolution cuts from the start and the end.

    They are its pads, or follow from its output shape.
    """
    automatic = node.text("auto_pad", "NOTSET")
    same = automatic in ("SAME_UPPER", "SAME_LOWER")
    if not same and "output_shape" not in node.attributes:
        return window.begins, window.ends
    wanted = node.integers("output_shape", [size * s for size, s in zip(sizes, window.stride, strict=True)])
    wanted = wanted[-len(sizes) :]  # some files include batch and channels
    full = [
        (size - 1) * s + extent + more
        for size, s, extent, more in zip(sizes, window.stride, window.extent, extra, strict=True)
    ]
    totals = [have - want for have, want in zip(full, wanted, strict=True)]
    # All runtimes add one more element at the end in this case.
    one_more = "output_shape" in node.attributes and automatic != "SAME_UPPER"
    if min(totals) < (-1 if one_more else 0):
        raise node.unsupported_error(
            f"an output of {wanted}, larger than the {full} that the kernel reaches,"
        )
    small, large = [total // 2 for total in totals], [total - total // 2 for total in totals]
    return (small, large) if automatic == "SAME_UPPER" else (large, small)


@rewrite("MaxPool", "AveragePool")
def checked_pool(node: OnnxNode) -> list[OnnxNode]:
    """The node unchanged; UnsupportedLayer at import if torch has no such pooling."""
    if node.has_output(1):
        raise node.unsupported_error("the second output (indices)")
    sides = node.integers("pads", ())
    if any(amount < 0 for amount in sides):
        raise node.unsupported_error("negative padding")
    same = node.text("auto_pad", "NOTSET").startswith("SAME")
    if same and any(step != 1 for step in node.integers("dilations", ())):
        raise node.unsupported_error(
            "automatic padding of a pool with dilations, which runtimes compute differently,"
        )
    if node.operator == "AveragePool" and any(step != 1 for step in node.integers("dilations", ())):
        raise node.unsupported_error("dilation of an average")
    return [node]


@operator("MaxPool")
def maximum_pool(node: OnnxNode, data: Tensor) -> Tensor:
    """data (batch, channels, *sizes). Padding is minus infinity."""
    window = KernelWindow.of(node, node.integers("kernel_shape", ()), data.shape[2:])
    function = _of_rank(node, _MAXIMA, len(window.kernel))
    if _torch_pads(window):
        padding, up = window.begins, bool(node.integer("ceil_mode", 0))
        return torch.as_tensor(
            function(data, window.kernel, window.stride, padding, window.dilation, ceil_mode=up)
        )
    for axis, (begin, end) in enumerate(_with_remainder(node, window, data.shape[2:]), 2):
        data = data.index_select(axis, _taps(node, window, axis - 2, data.shape[axis] + begin + end, data))
    return torch.as_tensor(function(data, window.kernel, window.kernel))


def _taps(node: OnnxNode, window: KernelWindow, axis: int, room: int, data: Tensor) -> Tensor:
    """The elements of each window along one axis, window after window.

    A padding element, which is below every number, is replaced by a data element of the same window. This
    does not change the maximum and avoids infinities, which have no bounds.
    """
    size, gap = data.shape[axis + 2], window.dilation[axis]
    chosen: list[int] = []
    for start in range(
        -window.begins[axis], room - window.begins[axis] - window.extent[axis] + 1, window.stride[axis]
    ):
        elements = [start + k * gap for k in range(window.kernel[axis])]
        real = [element for element in elements if 0 <= element < size]
        if not real:
            raise node.unsupported_error("a window that sees padding only")
        chosen += [element if 0 <= element < size else real[0] for element in elements]
    return torch.tensor(chosen, device=data.device)


@operator("AveragePool")
def average_pool(node: OnnxNode, data: Tensor) -> Tensor:
    """data (batch, channels, *sizes).

    Elements beyond the padding, which a rounded-up size adds, are never counted.
    """
    window = KernelWindow.of(node, node.integers("kernel_shape", ()), data.shape[2:])
    function = _of_rank(node, _AVERAGES, len(window.kernel))
    counted = bool(node.integer("count_include_pad", 0))
    if _torch_pads(window):
        up = bool(node.integer("ceil_mode", 0))
        return function(
            data, window.kernel, window.stride, window.begins, ceil_mode=up, count_include_pad=counted
        )
    pads = last_first(_with_remainder(node, window, data.shape[2:]))
    if (
        any(
            pad >= size
            for side in (window.begins, window.ends)
            for pad, size in zip(side, window.kernel, strict=True)
        )
        and not counted
    ):
        raise node.unsupported_error("a window that sees padding only")
    real = torch.ones_like(data[:1, :1])
    if counted:
        real = functional.pad(real, window.pads, value=1.0)
        missing = [pad - known for pad, known in zip(pads, window.pads, strict=True)]
    else:
        missing = pads
    total = function(functional.pad(data, pads), window.kernel, window.stride)
    return total / function(functional.pad(real, missing), window.kernel, window.stride)


def _torch_pads(window: KernelWindow) -> bool:
    """Whether torch's pooling can pad: equally on both sides, by at most half the kernel."""
    return window.symmetric and all(
        2 * pad <= size for pad, size in zip(window.begins, window.kernel, strict=True)
    )


def _with_remainder(node: OnnxNode, window: KernelWindow, sizes: Sequence[int]) -> list[tuple[int, int]]:
    """The pads, with those at the end adjusted to the end of the last window.

    No window starts in the padding at the end.
    """
    up = node.integer("ceil_mode", 0)
    pairs = []
    for axis, size in enumerate(sizes):
        begin, end, stride = window.begins[axis], window.ends[axis], window.stride[axis]
        room = size + begin + end - window.extent[axis]
        count = (-(-room // stride) if up else room // stride) + 1
        if up and (count - 1) * stride >= size + begin:
            count -= 1
        pairs.append((begin, (count - 1) * stride + window.extent[axis] - size - begin))
    return pairs


def _of_rank(node: OnnxNode, table: dict[int, Callable[..., Tensor]], rank: int) -> Callable[..., Tensor]:
    if rank not in table:
        raise node.unsupported_error(f"a window over {rank} axes")
    return table[rank]


@operator("GlobalAveragePool")
def global_average(node: OnnxNode, data: Tensor) -> Tensor:
    if data.dim() < 3:
        raise node.unsupported_error("an input without an axis to pool over")
    return data.mean(list(range(2, data.dim())), keepdim=True)


@operator("GlobalMaxPool")
def global_maximum(node: OnnxNode, data: Tensor) -> Tensor:
    if data.dim() < 3:
        raise node.unsupported_error("an input without an axis to pool over")
    return data.amax(list(range(2, data.dim())), keepdim=True)
