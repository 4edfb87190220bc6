"""Elementwise operators, matrix products, comparisons and casts."""

import functools
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import functional

from holdfast.network.onnx.operators.table import OnnxNode, Static, operator, rewrite
from holdfast.network.onnx.tensors import DTYPES, type_name


def softplus(value: Tensor) -> Tensor:
    """log(exp(x) + 1) everywhere, as ONNX defines it; torch's softplus is the identity above 20."""
    return torch.logaddexp(value, torch.zeros_like(value))


_UNARY: dict[str, Callable[[Tensor], Tensor]] = {
    "Abs": torch.abs,
    "Acos": torch.acos,
    "Acosh": torch.acosh,
    "Asin": torch.asin,
    "Asinh": torch.asinh,
    "Atan": torch.atan,
    "Atanh": torch.atanh,
    "Ceil": torch.ceil,
    "Cos": torch.cos,
    "Cosh": torch.cosh,
    "Erf": torch.erf,
    "Exp": torch.exp,
    "Floor": torch.floor,
    "HardSwish": functional.hardswish,
    "Identity": lambda value: value,
    "Log": torch.log,
    "Mish": functional.mish,
    "Neg": torch.neg,
    "Not": torch.logical_not,
    "Reciprocal": torch.reciprocal,
    "Relu": torch.relu,
    "Round": torch.round,
    "Sigmoid": torch.sigmoid,
    "Sign": torch.sign,
    "Sin": torch.sin,
    "Sinh": torch.sinh,
    "Softplus": softplus,
    "Softsign": functional.softsign,
    "Sqrt": torch.sqrt,
    "Tan": torch.tan,
    "Tanh": torch.tanh,
}

_BINARY: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "Add": torch.add,
    "And": torch.logical_and,
    "Div": lambda a, b: a / b if a.is_floating_point() else torch.div(a, b, rounding_mode="trunc"),
    "Equal": torch.eq,
    "Greater": torch.gt,
    "GreaterOrEqual": torch.ge,
    "Less": torch.lt,
    "LessOrEqual": torch.le,
    "MatMul": torch.matmul,
    "Mul": torch.mul,
    "Or": torch.logical_or,
    "Sub": torch.sub,
    "Xor": torch.logical_xor,
}

_VARIADIC: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "Max": torch.maximum,
    "Min": torch.minimum,
    "Sum": torch.add,
}


def _register_unary(name: str, function: Callable[[Tensor], Tensor]) -> None:
    @operator(name)
    def run(node: OnnxNode, value: Tensor) -> Tensor:
        return function(value)


def _register_binary(name: str, function: Callable[[Tensor, Tensor], Tensor]) -> None:
    @operator(name)
    def run(node: OnnxNode, a: Tensor, b: Tensor) -> Tensor:
        return function(a, b)


def _register_variadic(name: str, function: Callable[[Tensor, Tensor], Tensor]) -> None:
    @operator(name)
    def run(node: OnnxNode, *values: Tensor) -> Tensor:
        return functools.reduce(function, values)


for _name, _unary in _UNARY.items():
    _register_unary(_name, _unary)
for _name, _binary in _BINARY.items():
    _register_binary(_name, _binary)
for _name, _variadic in _VARIADIC.items():
    _register_variadic(_name, _variadic)


@operator("Mean")
def mean(node: OnnxNode, *values: Tensor) -> Tensor:
    return functools.reduce(torch.add, values) / len(values)


@operator("Mod")
def modulo(node: OnnxNode, a: Tensor, b: Tensor) -> Tensor:
    """The remainder with the sign of b, or with fmod=1 that of a.

    For floats without fmod it is defined only since opset 28.
    """
    if node.integer("fmod", 0):
        return torch.fmod(a, b)
    if a.is_floating_point() and node.opset < 28:
        raise node.unsupported_error(
            "a remainder of floats without fmod=1, which this operator set leaves undefined,"
        )
    return torch.remainder(a, b)


@operator("Pow")
def power(node: OnnxNode, base: Tensor, exponent: Tensor | int) -> Tensor:
    return torch.pow(base, exponent).to(base.dtype)  # ONNX keeps the type of the base, torch promotes it


@rewrite("Gemm")
def turned_gemm(node: OnnxNode) -> list[OnnxNode]:
    """Rewrite a Gemm with its weight as (out, in), torch's layout.

    A constant weight is transposed at import.
    """
    if node.integer("transB", 0):
        return [node]
    data, weight, *shift = node.inputs
    turned = f"{node.outputs[0]}/turned"
    attributes = {**node.attributes, "transB": 1}
    return [
        OnnxNode("Transpose", node.name, (weight,), (turned,), node.opset),
        OnnxNode("Gemm", node.name, (data, turned, *shift), node.outputs, node.opset, attributes),
    ]


@operator("Gemm")
def gemm(node: OnnxNode, a: Tensor, weight: Tensor, c: Tensor | None = None) -> Tensor:
    """alpha * a' @ weight.T + beta * c, with a' (m, k), weight (n, k) and c broadcast to (m, n)."""
    alpha, beta = node.number("alpha", 1.0), node.number("beta", 1.0)
    if not a.is_floating_point():
        raise node.unsupported_error("a product of integers")
    left = a.t() if node.integer("transA", 0) else a
    if alpha == 1 and beta == 1 and (c is None or c.dim() == 1):
        return functional.linear(left, weight, c)
    product = alpha * functional.linear(left, weight)
    return product if c is None else product + beta * c


@operator("Einsum")
def einsum(node: OnnxNode, *values: Tensor) -> Tensor:
    return torch.einsum(node.text("equation", ""), *values)


@operator("Clip")
def clip(
    node: OnnxNode, data: Tensor, low: Tensor | int | None = None, high: Tensor | int | None = None
) -> Tensor:
    """Clamp. The bounds are attributes before opset 11 and inputs since then; either may be absent."""
    lower = node.attributes.get("min", low)
    upper = node.attributes.get("max", high)
    if lower is None and upper is None:
        return data
    if isinstance(lower, Tensor) or isinstance(upper, Tensor):  # torch does not accept a tensor and a number
        lower = lower if lower is None else torch.as_tensor(lower, dtype=data.dtype, device=data.device)
        upper = upper if upper is None else torch.as_tensor(upper, dtype=data.dtype, device=data.device)
    return torch.clamp(data, lower, upper)


@operator("LeakyRelu")
def leaky_relu(node: OnnxNode, data: Tensor) -> Tensor:
    return functional.leaky_relu(data, node.number("alpha", 0.01))


@operator("PRelu")
def parametric_relu(node: OnnxNode, data: Tensor, slope: Tensor) -> Tensor:
    """PReLU with a slope that broadcasts.

    Torch's operator if the slope is one number or one for each channel.
    """
    if data.dim() > 1 and (slope.numel() == 1 or slope.shape == (data.shape[1], *[1] * (data.dim() - 2))):
        return functional.prelu(data, slope.reshape(-1))
    return torch.where(data < 0, slope * data, data)


@operator("Elu")
def elu(node: OnnxNode, data: Tensor) -> Tensor:
    return functional.elu(data, node.number("alpha", 1.0))


@operator("Celu")
def celu(node: OnnxNode, data: Tensor) -> Tensor:
    return functional.celu(data, node.number("alpha", 1.0))


@operator("Selu")
def selu(node: OnnxNode, data: Tensor) -> Tensor:
    """gamma * elu(x, alpha), because torch.selu has fixed constants."""
    alpha = node.number("alpha", 1.67326319217681884765625)
    return node.number("gamma", 1.05070102214813232421875) * functional.elu(data, alpha)


@operator("ThresholdedRelu")
def thresholded_relu(node: OnnxNode, data: Tensor) -> Tensor:
    return functional.threshold(data, node.number("alpha", 1.0), 0.0)


@operator("HardSigmoid")
def hard_sigmoid(node: OnnxNode, data: Tensor) -> Tensor:
    return torch.clamp(node.number("alpha", 0.2) * data + node.number("beta", 0.5), 0, 1)


@operator("Gelu")
def gelu(node: OnnxNode, data: Tensor) -> Tensor:
    approximate = node.text("approximate", "none")
    if approximate not in ("none", "tanh"):
        raise node.unsupported_error(f"the approximation {approximate!r}")
    return functional.gelu(data, approximate=approximate)


@operator("Softmax")
def softmax(node: OnnxNode, data: Tensor) -> Tensor:
    return _along_axis(node, data, torch.softmax)


@operator("LogSoftmax")
def log_softmax(node: OnnxNode, data: Tensor) -> Tensor:
    return _along_axis(node, data, torch.log_softmax)


def _along_axis(node: OnnxNode, data: Tensor, function: Callable[[Tensor, int], Tensor]) -> Tensor:
    """A softmax over one axis since opset 13, before that over all axes from `axis` (default 1) on."""
    if node.opset >= 13:
        return function(data, node.integer("axis", -1))
    axis = node.integer("axis", 1)
    if not -data.dim() <= axis < data.dim():
        raise node.unsupported_error(f"axis {axis} of an input of {data.dim()} axes")
    axis %= data.dim()
    return function(data.flatten(axis), axis).reshape(data.shape)


@rewrite("Dropout")
def checked_dropout(node: OnnxNode) -> list[OnnxNode]:
    """Remove the mask output before opset 12, which did not define the mask outside of training.

    Nodes that read it are refused.
    """
    return [node if node.opset >= 12 else replace(node, outputs=node.outputs[:1])]


@operator("Dropout")
def dropout(
    node: OnnxNode, data: Tensor, ratio: Tensor | None = None, training: Static | None = None
) -> tuple[Tensor, ...]:
    """The identity: holdfast measures networks in evaluation mode."""
    if training is not None and training.item():
        raise node.unsupported_error("training mode")
    return data, torch.ones_like(data, dtype=torch.bool)


@operator("Where")
def where(node: OnnxNode, condition: Tensor, a: Tensor, b: Tensor) -> Tensor:
    return torch.where(condition, a, b)


@rewrite("Cast")
def cast(node: OnnxNode) -> list[OnnxNode]:
    """Rewrite a Cast as a cast to the type of a constant.

    The constant is a buffer, so `.double()` changes the cast too.
    """
    code = node.integer("to", 0)
    if code not in DTYPES:
        raise node.unsupported_error(f"a cast to {type_name(code)}")
    like = f"{node.outputs[0]}/like"
    value = torch.zeros((), dtype=DTYPES[code])
    return [
        OnnxNode("Constant", node.name, (), (like,), node.opset, {"value": value}),
        OnnxNode("CastLike", node.name, (node.inputs[0], like), node.outputs, node.opset),
    ]


@operator("CastLike")
def cast_like(node: OnnxNode, data: Tensor, like: Tensor) -> Tensor:
    return data.to(like.dtype)


_CONSTANTS = {
    "value_int": torch.int64,
    "value_ints": torch.int64,
    "value_float": torch.float32,
    "value_floats": torch.float32,
}


@operator("Constant")
def constant(node: OnnxNode) -> Tensor:
    """The value of the attribute value, value_int, value_floats or similar."""
    [(kind, value)] = node.attributes.items()
    if isinstance(value, Tensor):
        return value
    if kind not in _CONSTANTS:
        raise node.unsupported_error(f"a constant that is a {kind}")
    return torch.as_tensor(value, dtype=_CONSTANTS[kind])
