"""Ranges of functions over intervals in closed form: monotone functions, gates, products, |v|, powers.

Statement. Each function returns (min, max) of f(v) over lower <= v <= upper, up to rounding: a monotone f
at the ends, a product v z at one of the four corners, and sigmoid(v) z too, because it is monotone in v for
fixed z.

Assumption: the ranges are for a loss; nothing is rounded outwards.

Reference: Moore, "Interval analysis" (1966).
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from holdfast.bounding.relax import (
    Abs,
    Atan,
    Clip,
    Elu,
    Erf,
    Exp,
    LeakyRelu,
    Log,
    Power,
    Product,
    Relu,
    Sigmoid,
    SigmoidTanh,
    SigmoidTimes,
    Softplus,
    Sqrt,
    Tanh,
)
from holdfast.bounding.relax.base import Interval, Point

Range = Callable[[Any, Point, Point], Interval]


def rising(relaxation: Any, lower: Point, upper: Point) -> Interval:
    return relaxation.function(*lower), relaxation.function(*upper)


def multiply_gate(gate: Interval, value: Interval) -> Interval:
    """Return the range of gate * value, for 0 <= gate."""
    (shut, wide), (low, high) = gate, value
    return torch.minimum(shut * low, wide * low), torch.maximum(shut * high, wide * high)


def _sigmoid_times(_: Any, lower: Point, upper: Point) -> Interval:
    return multiply_gate((lower[0].sigmoid(), upper[0].sigmoid()), (lower[1], upper[1]))


def _sigmoid_tanh(_: Any, lower: Point, upper: Point) -> Interval:
    return multiply_gate((lower[0].sigmoid(), upper[0].sigmoid()), (lower[1].tanh(), upper[1].tanh()))


def _product(_: Any, lower: Point, upper: Point) -> Interval:
    corners = torch.stack([a * b for a in (lower[0], upper[0]) for b in (lower[1], upper[1])])
    return corners.amin(0), corners.amax(0)


def _sizes(low: Tensor, high: Tensor) -> Interval:
    """Return the range of |v|."""
    return torch.maximum(low, -high).clamp_min(0), torch.maximum(-low, high)


def _power(relaxation: Power, lower: Point, upper: Point) -> Interval:
    (low,), (high,) = lower, upper
    return rising(
        relaxation,
        *((lower, upper) if relaxation.exponent % 2 else tuple((end,) for end in _sizes(low, high))),
    )


def _abs(_: Any, lower: Point, upper: Point) -> Interval:
    return _sizes(lower[0], upper[0])


RANGES: dict[type, Range] = {
    **dict.fromkeys((Relu, LeakyRelu, Tanh, Sigmoid, Exp, Log, Sqrt, Softplus, Erf, Atan, Elu, Clip), rising),
    Abs: _abs,
    Power: _power,
    Product: _product,
    SigmoidTimes: _sigmoid_times,
    SigmoidTanh: _sigmoid_tanh,
}
