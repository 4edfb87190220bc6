"""Products of a dynamically quantised tensor with integer weights, as single operators of traced programs.

Statement. Let m = min(0, min x), M = max(0, max x) over all elements of x, s = (M - m) / 255 (or 1 if that is 0), and
zero = round(-m / s). The operators compute

    z W,   z = s (clamp(round(x / s) + zero, 0, 255) - zero),   |z - x| <= s / 2 in real arithmetic,

with integers W times their scale. The grid depends on all elements of x, also on those of other inputs in a batch. They are
single operators because bounds need the inequality, which is lost if s and the integers are bounded apart
(`bounding.relax.dynamic_rounding`).

Assumption: decisions are made in float32, in the order of onnxruntime's kernels; sums of integers are exact.

Reference: the ONNX operators DynamicQuantizeLinear, MatMulInteger and ConvInteger.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

LEVELS = 255  # Steps of the grid of an unsigned integer of 8 bits.
CONVOLUTIONS: dict[int, Callable[..., Tensor]] = {
    1: functional.conv1d,
    2: functional.conv2d,
    3: functional.conv3d,
}


def grid_of(x: Tensor) -> tuple[Tensor, Tensor]:
    """The integers of x less their zero point, in float64, and the scale in float32."""
    values = x.to(torch.float32)
    low, high = values.amin().clamp(max=0), values.amax().clamp(min=0)
    scale = (high - low) / LEVELS
    scale = torch.where(scale == 0, torch.ones_like(scale), scale)
    zero = torch.round((-low / scale).clamp(0, LEVELS))
    whole = (torch.round(values / scale) + zero).clamp(0, LEVELS)
    return (whole - zero).double(), scale


@torch.library.custom_op("holdfast::dynamic_product", mutates_args=())
def dynamic_product(x: Tensor, weight: Tensor, scale: Tensor) -> Tensor:
    """x (..., n) on its grid, times weight (n, k) int32 times scale, one number or (k,)."""
    whole, step = grid_of(x)
    total = torch.matmul(whole, weight.double()).to(torch.float32)
    return (total * (step * scale.to(torch.float32))).to(x.dtype)


@dynamic_product.register_fake
def _(x: Tensor, weight: Tensor, scale: Tensor) -> Tensor:
    return x.new_empty((*x.shape[:-1], weight.shape[-1]))


@torch.library.custom_op("holdfast::dynamic_convolution", mutates_args=())
def dynamic_convolution(
    x: Tensor, weight: Tensor, scale: Tensor, stride: list[int], dilation: list[int], groups: int
) -> Tensor:
    """x (batch, channels, *sizes) on its grid, convolved with weight int32 times scale, a number or (out,)."""
    whole, step = grid_of(x)
    total = CONVOLUTIONS[x.dim() - 2](whole, weight.double(), None, stride, 0, dilation, groups)
    factor = (step * scale.to(torch.float32)).reshape(-1, *[1] * (x.dim() - 2))
    return (total.to(torch.float32) * factor).to(x.dtype)


@dynamic_convolution.register_fake
def _(
    x: Tensor, weight: Tensor, scale: Tensor, stride: list[int], dilation: list[int], groups: int
) -> Tensor:
    return CONVOLUTIONS[x.dim() - 2](x, weight.to(x.dtype), None, stride, 0, dilation, groups)


# ---- gradients: those of the product with the numbers on the grid replaced by x (straight through)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs[:3])
    ctx.rest = inputs[3:]


def _product_gradient(context: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
    x, weight, scale = context.saved_tensors
    return gradient @ (weight.to(x.dtype) * scale.to(x.dtype)).mT, None, None


def _convolution_gradient(context: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    x, weight, scale = context.saved_tensors
    real = weight.to(x.dtype) * scale.to(x.dtype).reshape(-1, *[1] * (x.dim() - 1))
    with torch.enable_grad():
        at = x.detach().requires_grad_()
        stride, dilation, groups = context.rest
        value = CONVOLUTIONS[x.dim() - 2](at, real, None, stride, 0, dilation, groups)
        (found,) = torch.autograd.grad(value, at, gradient)
    return found, None, None, None, None, None


dynamic_product.register_autograd(_product_gradient, setup_context=_keep)
dynamic_convolution.register_autograd(_convolution_gradient, setup_context=_keep)
