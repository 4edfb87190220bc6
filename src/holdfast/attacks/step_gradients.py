"""Estimated gradients of networks whose own gradient is zero: binarised and quantised networks, saturated softmax.

A sign or a rounding has the derivative zero nearly everywhere, so gradient descent stands still. The straight-through
estimator replaces the derivative of the function, not its value: a sign counts as z / (root mean square of z), a rounding
as z, a softmax as its argument, whose order of entries is the same. Only searches use these gradients; points that they find are
evaluated like all others.

Reference: Bengio, Leonard, Courville, "Estimating or propagating gradients through stochastic neurons for conditional
computation" (2013).
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

# Functions with two or three values, and functions that round to a grid.
SIGNS: frozenset[Any] = frozenset(
    {torch.sign, torch.sgn, torch.heaviside, Tensor.sign, Tensor.sgn, Tensor.heaviside}
)
ROUNDINGS: frozenset[Any] = frozenset(
    {
        *(torch.round, torch.floor, torch.ceil, torch.trunc, torch.fix),
        *(Tensor.round, Tensor.floor, Tensor.ceil, Tensor.trunc, Tensor.fix),
    }
)
SOFTMAXES: frozenset[Any] = frozenset({torch.softmax, functional.softmax, Tensor.softmax})
STEPS = SIGNS | ROUNDINGS | SOFTMAXES


class _StraightThrough(torch.autograd.Function):
    """The value of a function, with the derivative of z / scale."""

    @staticmethod
    def forward(ctx: Any, z: Tensor, value: Tensor, scale: float) -> Tensor:
        ctx.scale = scale
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        return gradients[0] / ctx.scale, None, None


class StepGradients(TorchFunctionMode):
    """Within this context, functions of torch that are constant in steps have estimated derivatives."""

    def __torch_function__(
        self,
        function: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        value = function(*args, **(kwargs or {}))
        if function not in STEPS or not args:
            return value
        z = args[0]
        if not (isinstance(z, Tensor) and z.requires_grad and torch.is_floating_point(value)):
            return value
        scale = 1.0
        if function in SIGNS:
            scale = float(z.detach().double().square().mean().sqrt()) or 1.0
        return _StraightThrough.apply(z, value.detach(), scale)  # type: ignore[no-untyped-call]
