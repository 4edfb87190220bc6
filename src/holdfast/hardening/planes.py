"""Linear relaxations of activations for a loss: differentiable, without outward rounding.

Statement.

    lower . v + lower_offset <= f(v) <= upper . v + upper_offset   for v in the box

Assumption: up to rounding, since the planes are for a loss. Any slope s is valid with the intercepts min
and max of f(v) - s . v over the box.

References: Zhang et al. 2018 (CROWN); see also `bounding.relax`, which holds the sound version.
"""

import torch
from torch import Tensor

from holdfast.bounding.relax import (
    Abs,
    Atan,
    Clip,
    Erf,
    LeakyRelu,
    LinearBounds,
    Product,
    Relaxation,
    Relu,
    Sigmoid,
    SigmoidTanh,
    SigmoidTimes,
    Tanh,
)
from holdfast.bounding.relax.base import Point, chord

# slopes are closed-form in the box's bounds
OWN = (Relu, LeakyRelu, Abs, Clip, Product, SigmoidTimes, SigmoidTanh)
S_SHAPED = (Tanh, Sigmoid, Erf, Atan)  # the engine searches tangent slopes; here the chord is used
Slopes = tuple[Point, Point]  # of the lower and of the upper linear bound


def linear_bounds(relaxation: Relaxation, lower: Point, upper: Point) -> LinearBounds:
    """Return linear bounds of f on the box, up to rounding.

    The gradient of an intercept is that of f(v) - slope . v at its extreme point: a point at a bound of the
    box moves with the bound, an interior point is stationary.
    """
    below, above = _slopes(relaxation, lower, upper)
    low, high = _intercepts(relaxation, lower, upper, below)
    if below is not above:
        _, high = _intercepts(relaxation, lower, upper, above)
    return LinearBounds(below, low, above, high)


def _slopes(relaxation: Relaxation, lower: Point, upper: Point) -> Slopes:
    """Return the slopes. Slopes that are found by a search get no gradient."""
    if type(relaxation) in S_SHAPED:
        (low,), (high,) = lower, upper
        middle, step = (low.detach() + high.detach()) / 2, 1e-2
        there = (relaxation.function(middle + step) - relaxation.function(middle - step)) / (2 * step)
        both = (chord(relaxation.function(low), relaxation.function(high), low, high, there),)
        return both, both
    if type(relaxation) in OWN:
        found = relaxation.slopes(lower, upper)
    else:
        with torch.no_grad():
            found = relaxation.slopes(*_still(lower, upper))
    below, above = (tuple(torch.nan_to_num(s, 0.0, 0.0, 0.0).to(lower[0]) for s in side) for side in found)
    return (below, below) if found[0] is found[1] else (below, above)


def _intercepts(relaxation: Relaxation, lower: Point, upper: Point, slope: Point) -> tuple[Tensor, Tensor]:
    """Return the minimum and maximum of f(v) - slope . v over the box.

    The extreme points are found in float64.
    """
    with torch.no_grad():
        tilt = _double(slope)
        points = [
            torch.stack(v) for v in zip(*relaxation.candidates(*_still(lower, upper), tilt), strict=True)
        ]
        values = _above(relaxation, tuple(points), tilt)
        places = values.argmin(0, keepdim=True), values.argmax(0, keepdim=True)
    ends = []
    for place in places:
        at = tuple(
            _at(v.gather(0, place)[0], low, high) for v, low, high in zip(points, lower, upper, strict=True)
        )
        ends.append(_above(relaxation, at, slope))
    return ends[0], ends[1]


def _above(relaxation: Relaxation, point: Point, slope: Point) -> Tensor:
    """f(v) - slope . v."""
    value = relaxation.function(*point)
    for s, v in zip(slope, point, strict=True):
        value = value - s * v
    return value


def _double(point: Point) -> Point:
    return tuple(v.detach().double() for v in point)


def _still(lower: Point, upper: Point) -> tuple[Point, Point]:
    return _double(lower), _double(upper)


def _at(v: Tensor, lower: Tensor, upper: Tensor) -> Tensor:
    """Return the point v, replaced by the box's bound if it is at or beyond it (so that gradients flow)."""
    here = v.to(lower)
    return torch.where(here <= lower, lower, torch.where(here >= upper, upper, here))
