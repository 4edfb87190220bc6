"""Quantised operators: integers of 8 or 16 bits on a grid, sums of their products, and the way back.

The integers of a quantised tensor are held as floating-point numbers, which represent them exactly. Products are
added up in float64: sums that fit into the 32 bits of runtimes are far below 2^53, so they have no rounding error in any
order. What runtimes round is computed in float32, in the order of onnxruntime's kernels, in every dtype of
the module:

    QuantizeLinear   round(clamp(fl(x / scale), low - zero, high - zero)) + zero
    requantisation   round(clamp(fl(fl(sum) fl(fl(s_a s_b) / s_y)), low - zero, high - zero)) + zero

with halves rounded to even. Reference: the ONNX operators; Jacob et al., "Quantization and training of neural
networks for efficient integer-arithmetic-only inference" (2018).
"""

import math
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import functional

from holdfast.network.dynamic_quantisation import dynamic_convolution, dynamic_product
from holdfast.network.onnx.operators.convolution import KernelWindow, convolution
from holdfast.network.onnx.operators.table import OnnxNode, operator, rewrite

# Operators of onnxruntime's own domain that its quantisation tool writes.
MICROSOFT = frozenset(
    {
        *("QGemm", "QLinearAdd", "QLinearMul", "QLinearConcat", "QLinearAveragePool"),
        *("QLinearGlobalAveragePool", "QLinearLeakyRelu", "QLinearSigmoid", "DynamicQuantizeLSTM"),
    }
)
# Integer types of quantised tensors, with their smallest and largest value.
RANGES = {
    kind: (torch.iinfo(kind).min, torch.iinfo(kind).max)
    for kind in (torch.uint8, torch.int8, torch.uint16, torch.int16)
}
# Largest absolute value of an integer of 8 bits less its zero point.
LARGEST_BYTE = 255
# Operators whose result holds the integers of a grid.
MAKES_GRID = frozenset({"QuantizeLinear", "Requantise", "MatMulInteger", "ConvInteger", "IntegerBias"})
# Operators that read such integers, and give other numbers.
READS_GRID = frozenset({"DequantizeLinear", "CastLike", "Shape", "Size"})
# Operators that move them, or choose some of them.
MOVES_GRID = frozenset(
    {
        *("Concat", "Expand", "Flatten", "Gather", "Identity", "MaxPool", "Reshape", "Slice", "Split"),
        *("Squeeze", "Tile", "Transpose", "Unsqueeze", "DepthToSpace", "SpaceToDepth"),
    }
)


# ---- onto the grid and back


@operator("QuantizeLinear")
def quantise(node: OnnxNode, data: Tensor, scale: Tensor, zero: Tensor | None = None) -> Tensor:
    """The nearest point of the grid with its saturation."""
    quotient = data.to(torch.float32) / _along_axis(node, scale, data.dim()).to(torch.float32)
    return _saturate(node, quotient, data.dtype)


@operator("Requantise")
def requantise(node: OnnxNode, total: Tensor, multiplier: Tensor, zero: Tensor) -> Tensor:
    """An exact sum of products, multiplied by the quotient of the scales, on the grid of the result."""
    product = total.to(torch.float32) * _along_axis(node, multiplier, total.dim()).to(torch.float32)
    return _saturate(node, product, multiplier.dtype)


def _saturate(node: OnnxNode, value: Tensor, kind: torch.dtype) -> Tensor:
    """Clamp, then round: for integer limits the order makes no difference.

    The node's "grid" is (low, high, zero), which the importer takes from the constant zero point.
    """
    low, high, zero = node.integers("grid", ())
    return torch.round(torch.clamp(value, low - zero, high - zero)).to(kind) + zero


@operator("DequantizeLinear")
def dequantise(node: OnnxNode, data: Tensor, scale: Tensor, zero: Tensor | None = None) -> Tensor:
    """(integer - zero) scale. With `block_size` a scale holds for so many neighbours along the axis."""
    block = node.integer("block_size", 0)

    def spread(value: Tensor) -> Tensor:
        if not block:
            return _along_axis(node, value, data.dim())
        axis = node.integer("axis", 1)
        return value.repeat_interleave(block, axis).narrow(axis, 0, data.shape[axis])

    wide = data.to(_wide(data))  # a zero point of no axes would not widen it
    centred = wide if zero is None else wide - spread(zero).to(wide.dtype)
    return centred.to(scale.dtype) * spread(scale)


def _wide(data: Tensor) -> torch.dtype:
    """A type in which the difference of an integer and its zero point does not wrap around."""
    return data.dtype if data.is_floating_point() else torch.int64


def _along_axis(node: OnnxNode, value: Tensor, rank: int) -> Tensor:
    """A scale or zero point: a single number, or one for each element along the node's axis."""
    if value.numel() == 1:
        return value.reshape(())
    if value.dim() != 1:
        raise node.unsupported_error(f"a scale of {value.dim()} axes")
    axis = node.integer("axis", 1) % rank
    return value.reshape(-1, *[1] * (rank - 1 - axis))


# ---- sums of products of integers


@operator("Centred")
def centre(node: OnnxNode, value: Tensor, zero: Tensor | None = None) -> Tensor:
    """Integers less their zero point: computed at import for weights."""
    if value.is_floating_point():
        return value if zero is None else value - zero
    wide = value.to(torch.int32)
    return wide if zero is None else wide - _along_axis(node, zero, value.dim()).to(torch.int32)


@operator("Multiplier")
def multiplier(node: OnnxNode, first: Tensor, second: Tensor, result: Tensor | None = None) -> Tensor:
    """alpha s_a s_b / s_y in float32, in this order."""
    product = first * second
    if node.number("alpha", 1.0) != 1:
        product = node.number("alpha", 1.0) * first * second
    return product if result is None else product / result


@operator("MatMulInteger")
def integer_product(
    node: OnnxNode, a: Tensor, b: Tensor, a_zero: Tensor | None = None, b_zero: Tensor | None = None
) -> Tensor:
    """The exact matrix product of integers less their zero points."""
    if a_zero is not None and a_zero.numel() > 1:
        raise node.unsupported_error("a zero point for each row")
    check_sum_fits(node, a.shape[-1] * LARGEST_BYTE**2 if a.shape else 0)
    left, right = _exact(a), _exact(b)
    if a_zero is not None:
        left = left - _exact(a_zero)
    if b_zero is not None:
        right = right - _exact(b_zero)
    return torch.matmul(left, right)


@operator("ConvInteger")
def integer_convolution(
    node: OnnxNode, x: Tensor, w: Tensor, x_zero: Tensor | None = None, w_zero: Tensor | None = None
) -> Tensor:
    """The exact convolution of integers less their zero points; padding has the value of the zero point."""
    check_sum_fits(node, math.prod(w.shape[1:]) * LARGEST_BYTE**2)
    data, weight = _exact(x), _exact(w)
    if x_zero is not None:
        data = data - _exact(x_zero)
    if w_zero is not None:
        weight = weight - _exact(w_zero).reshape(-1, *[1] * (w.dim() - 1))
    return convolution(node, data, weight)


@operator("IntegerBias")
def integer_bias(node: OnnxNode, total: Tensor, bias: Tensor) -> Tensor:
    """An exact sum plus an integer for each channel."""
    return total + _along_axis(node, _exact(bias), total.dim())


def check_sum_fits(node: OnnxNode, largest: int) -> None:
    """UnsupportedLayer if a sum may exceed 32 bits: runtimes add in that type, which wraps around."""
    if largest >= 2**31:
        raise node.unsupported_error("a sum of products that may exceed 32 bits")


def _exact(value: Tensor) -> Tensor:
    return value.to(torch.float64)


@rewrite("QLinearMatMul")
def split_quantised_product(node: OnnxNode) -> list[OnnxNode]:
    a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero = node.inputs
    piece = _Pieces(node)
    return [
        piece("Multiplier", (a_scale, b_scale, y_scale), "multiplier"),
        piece("Centred", (b, b_zero), "weight", axis=-1),
        piece("MatMulInteger", (a, piece.name("weight"), a_zero), "sum"),
        piece("Requantise", (piece.name("sum"), piece.name("multiplier"), y_zero), axis=-1),
    ]


@rewrite("QLinearConv")
def split_quantised_convolution(node: OnnxNode) -> list[OnnxNode]:
    x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero, *bias = node.inputs
    piece = _Pieces(node)
    pieces = [
        piece("Multiplier", (x_scale, w_scale, y_scale), "multiplier"),
        piece("Centred", (w, w_zero), "weight", axis=0),
        replace(piece("ConvInteger", (x, piece.name("weight"), x_zero), "sum"), attributes=node.attributes),
    ]
    total = piece.name("sum")
    if bias and bias[0]:
        pieces.append(piece("IntegerBias", (total, bias[0]), "biased", axis=1))
        total = piece.name("biased")
    return [*pieces, piece("Requantise", (total, piece.name("multiplier"), y_zero), axis=1)]


@rewrite("QGemm")
def split_quantised_gemm(node: OnnxNode) -> list[OnnxNode]:
    """alpha (A - a_zero) (B - b_zero) + C; without a scale of the result it is a floating-point number."""
    a, a_scale, a_zero, b, b_scale, b_zero, *rest = node.inputs
    bias, y_scale, y_zero = (*rest, "", "", "")[:3]
    piece = _Pieces(node)
    pieces = [
        piece("Multiplier", (a_scale, b_scale, y_scale), "multiplier", alpha=node.number("alpha", 1.0)),
        piece("Centred", (b, b_zero), "weight", axis=0 if node.integer("transB", 0) else 1),
    ]
    left, right = a, piece.name("weight")
    if node.integer("transA", 0):
        pieces.append(piece("Transpose", (a,), "left"))
        left = piece.name("left")
    if node.integer("transB", 0):
        pieces.append(piece("Transpose", (right,), "right"))
        right = piece.name("right")
    pieces.append(piece("MatMulInteger", (left, right, a_zero), "sum"))
    total = piece.name("sum")
    if bias:
        pieces.append(piece("IntegerBias", (total, bias), "biased", axis=1))
        total = piece.name("biased")
    if y_scale:
        return [*pieces, piece("Requantise", (total, piece.name("multiplier"), y_zero), axis=1)]
    return [*pieces, piece("DequantizeLinear", (total, piece.name("multiplier")), axis=1)]


class _Pieces:
    """The nodes into which one node is split, with names derived from its result."""

    def __init__(self, node: OnnxNode) -> None:
        self.node = node

    def name(self, part: str) -> str:
        return f"{self.node.outputs[0]}/{part}"

    def __call__(
        self, operator: str, inputs: tuple[str, ...], part: str = "", **attributes: float
    ) -> OnnxNode:
        outputs = (self.name(part),) if part else self.node.outputs
        return OnnxNode(operator, self.node.name, inputs, outputs, self.node.opset, attributes)


# ---- grids that depend on the data


@operator("DynamicProduct")
def product_on_dynamic_grid(
    node: OnnxNode, data: Tensor, weight: Tensor, zero: Tensor | None, scale: Tensor
) -> Tensor:
    """x on the grid of its own range, times constant integers less their zero point, times their scale."""
    check_sum_fits(node, weight.shape[0] * LARGEST_BYTE**2)
    found: Tensor = dynamic_product(data, _centred(node, weight, zero, -1), scale.reshape(-1))
    return found


@operator("DynamicConvolution")
def convolution_on_dynamic_grid(
    node: OnnxNode, data: Tensor, weight: Tensor, zero: Tensor | None, scale: Tensor
) -> Tensor:
    """The same for a convolution. Padding is zero, which is a point of every such grid."""
    check_sum_fits(node, math.prod(weight.shape[1:]) * LARGEST_BYTE**2)
    window = KernelWindow.of(node, weight.shape[2:], data.shape[2:])
    padded = functional.pad(data, window.pads) if any(window.pads) else data
    whole = _centred(node, weight, zero, 0)
    groups = node.integer("group", 1)
    found: Tensor = dynamic_convolution(
        padded, whole, scale.reshape(-1), window.stride, window.dilation, groups
    )
    return found


@operator("DynamicQuantizeLSTM")
def dynamic_lstm(
    node: OnnxNode,
    data: Tensor,
    weight: Tensor,
    recurrence: Tensor,
    bias: Tensor | None,
    lengths: Tensor | None,
    hidden: Tensor | None,
    cell: Tensor | None,
    peepholes: Tensor | None,
    weight_scale: Tensor,
    weight_zero: Tensor,
    recurrence_scale: Tensor,
    recurrence_zero: Tensor,
) -> tuple[Tensor, ...]:
    """data (time, batch, in), weight (directions, in, 4 h), recurrence (directions, h, 4 h), gates i, o, f, c.

    The input of all frames has one grid, the state of each frame its own.
    """
    kind = node.text("direction", "forward")
    if (
        lengths is not None
        or peepholes is not None
        or node.number("clip", 0)
        or "activations" in node.attributes
    ):
        raise node.unsupported_error("an LSTM with lengths, peepholes, clip or other activations")
    size, batch = recurrence.shape[1], data.shape[1]
    outputs, lasts, cells = [], [], []
    for k in range(weight.shape[0]):
        w, r = (
            _centred(node, matrix[k], zero[k] if zero.dim() > 1 else zero.reshape(-1)[k], -1)
            for matrix, zero in ((weight, weight_zero), (recurrence, recurrence_zero))
        )
        w_scale, r_scale = (
            (scale[k] if scale.dim() > 1 else scale.reshape(-1)[k]).reshape(-1)
            for scale in (weight_scale, recurrence_scale)
        )
        gates = dynamic_product(data, w, w_scale)
        if bias is not None:
            gates = gates + bias[k][: 4 * size] + bias[k][4 * size :]
        h = data.new_zeros((batch, size)) if hidden is None else hidden[k]
        c = data.new_zeros((batch, size)) if cell is None else cell[k]
        backwards = kind == "reverse" or k == 1
        frames: list[Tensor] = []
        order = range(data.shape[0])
        for t in reversed(order) if backwards else order:
            i, o, f, new = (gates[t] + dynamic_product(h, r, r_scale)).chunk(4, -1)
            c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(new)
            h = torch.sigmoid(o) * torch.tanh(c)
            frames.append(h)
        outputs.append(torch.stack(frames[::-1] if backwards else frames))
        lasts.append(h)
        cells.append(c)
    return torch.stack(outputs, 1), torch.stack(lasts), torch.stack(cells)


def _centred(node: OnnxNode, weight: Tensor, zero: Tensor | None, axis: int) -> Tensor:
    """Constant integers less their zero point, one number or one for each element along the axis."""
    if weight.is_floating_point():
        raise node.unsupported_error("a weight that depends on the input")
    wide = weight.to(torch.int32)
    if zero is None:
        return wide
    shift = zero.to(torch.int32)
    if shift.numel() > 1:
        shift = shift.reshape(-1, *[1] * (weight.dim() - 1 - axis % weight.dim()))
    return wide - shift


# ---- operators that onnxruntime computes from the dequantised numbers


@rewrite("QLinearAdd", "QLinearMul")
def split_quantised_pair(node: OnnxNode) -> list[OnnxNode]:
    a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero = node.inputs
    piece = _Pieces(node)
    return [
        piece("DequantizeLinear", (a, a_scale, a_zero), "a"),
        piece("DequantizeLinear", (b, b_scale, b_zero), "b"),
        piece(node.operator.removeprefix("QLinear"), (piece.name("a"), piece.name("b")), "real"),
        piece("QuantizeLinear", (piece.name("real"), y_scale, y_zero)),
    ]


@rewrite("QLinearAveragePool", "QLinearGlobalAveragePool", "QLinearLeakyRelu", "QLinearSigmoid")
def split_quantised_function(node: OnnxNode) -> list[OnnxNode]:
    if node.integer("channels_last", 0):
        raise node.unsupported_error("channels_last")
    x, x_scale, x_zero, y_scale, y_zero = (*node.inputs, "")[:5]
    piece = _Pieces(node)
    function = piece(node.operator.removeprefix("QLinear"), (piece.name("x"),), "real")
    return [
        piece("DequantizeLinear", (x, x_scale, x_zero), "x"),
        replace(function, attributes=node.attributes),
        piece("QuantizeLinear", (piece.name("real"), y_scale, y_zero)),
    ]


@rewrite("QLinearConcat")
def split_quantised_join(node: OnnxNode) -> list[OnnxNode]:
    y_scale, y_zero, *groups = node.inputs
    piece = _Pieces(node)
    parts = [tuple(groups[start : start + 3]) for start in range(0, len(groups), 3)]
    names = tuple(piece.name(f"part{k}") for k in range(len(parts)))
    return [
        *(piece("DequantizeLinear", part, f"part{k}") for k, part in enumerate(parts)),
        replace(piece("Concat", names, "real"), attributes=node.attributes),
        piece("QuantizeLinear", (piece.name("real"), y_scale, y_zero)),
    ]
