"""The interface of relaxations, and sound intercepts for any slopes.

Statement. For a function f of k = 1 or 2 pre-activations v on a box l <= v <= u and slopes a_l, a_u, `planes`
returns

    a_l . v + b_l <= f(v) <= a_u . v + b_u   for all l <= v <= u,
    b_l = min over candidates of (f(v) - a_l . v) - s,   b_u = max over candidates of (f(v) - a_u . v) + s,
    s = 64 u (magnitude + |a| . max(|l|, |u|)) + 1e-300,   u = 2^-53.

A function with a `deviation` d is bounded by its `trend` t instead: |f - t| <= d is added to s.

Assumptions: `candidates` includes every minimiser and maximiser of f(v) - a . v over the box, up to rounding;
`magnitude` bounds |f| and all intermediate results of computing f.

Rounding. f is computed within a few u of `magnitude`; products and the difference add at most 3 u (magnitude
+ |a| |v|) per pre-activation. A candidate that misses its exact location by d changes the value by at most
|f''| d^2 / 2, since f(v) - a . v is stationary there; for the closed-form roots used here d is a few u of
|v|, so this is far below one u. 64 u covers the sum; each relaxation justifies the cases in which this is not
obvious (docs/rounding.md).

References: Zhang et al. 2018 (CROWN); Singh et al. 2019 (DeepPoly).
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from holdfast.derivations import (
    EXECUTED_FUNCTION,
)
from holdfast.rounding import UNDERFLOW, charge

UNIT = 2.0**-53  # The unit roundoff u of float64.

Point = tuple[Tensor, ...]  # One tensor per pre-activation, all of one shape.
Interval = tuple[Tensor, Tensor]  # low, high
Deviation = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class LinearBounds:
    """lower . v + lower_offset <= f(v) <= upper . v + upper_offset on the box; slopes hold one tensor per
    pre-activation.
    """

    lower: Point
    lower_offset: Tensor
    upper: Point
    upper_offset: Tensor


@dataclass(frozen=True)
class KinkSides:
    """f(v) = value + below (v - at) for v <= at and value + above (v - at) for v >= at: two linear pieces."""

    at: float
    value: float
    below: float
    above: float


class Curve(ABC):
    """A function of one pre-activation with quadratic bounds; `parabola.py` has the kinds of curves."""

    @abstractmethod
    def function(self, x: Tensor) -> Tensor: ...

    @abstractmethod
    def sizes(self, lower: Tensor, upper: Tensor) -> tuple[Tensor | float, Tensor | float]:
        """(value, steep) with |f(x)| <= value + steep |x| on the interval, and |slope of f| <= steep."""

    @abstractmethod
    def extremes(
        self, deviation: Deviation, slope: Tensor, quad: Tensor, lower: Tensor, upper: Tensor, at: Tensor
    ) -> Interval:
        """(low, high) that enclose f(x) - slope (x - at) - quad (x - at)^2 on lower <= x <= upper, up to
        rounding.
        """


def without_sign_split(why: str) -> Mapping[str, str]:
    """An entry of `unknown`: the reason why the function has no sign split."""
    return {"sign split": why}


# For functions that are nonlinear around every point: deciding a sign does not make them linear.
NO_KINK = without_sign_split("nonlinear on both sides of every point")


class Relaxation(ABC):
    """A function of one or two pre-activations, applied element by element, with its bounds. A method returns
    None where the function does not support it.
    """

    arguments: ClassVar[int] = 1
    unknown: ClassVar[Mapping[str, str]] = {}  # Missing abilities (abilities.py) and the reasons.
    # Whether torch's kernels were measured to be well within `rounding_error(magnitude)`.
    measured: ClassVar[bool] = False

    @abstractmethod
    def function(self, *v: Tensor) -> Tensor:
        """The function itself."""

    def trend(self, *v: Tensor) -> Tensor:
        """What the candidates and slopes are about: the function itself, unless it has a `deviation`."""
        return self.function(*v)

    def deviation(self, lower: Point, upper: Point) -> Tensor | None:
        """A bound of |f - trend| on the box; None: they are the same."""
        return None

    @abstractmethod
    def candidates(self, lower: Point, upper: Point, slope: Point) -> list[Point]:
        """Points of the box that include (up to rounding) every minimiser and maximiser of f(v) - slope . v
        over it.
        """

    @abstractmethod
    def slopes(self, lower: Point, upper: Point) -> tuple[Point, Point]:
        """Slopes of tight lower and upper linear bounds. Any slopes are sound."""

    def extremes(self, lower: Point, upper: Point) -> list[Point]:
        """Points of the box that include every minimiser and maximiser of f."""
        return self.candidates(lower, upper, tuple(torch.zeros_like(end) for end in lower))

    def magnitude(self, lower: Point, upper: Point) -> Tensor:
        """A bound of |f| and of every intermediate result of computing f on the box."""
        return torch.stack([self.function(*ends).abs() for ends in (lower, upper)]).amax(0)

    def limits(self, lower: Point, upper: Point) -> Interval | None:
        """low <= f <= high on the box, if known without rounding: integers, bounds of a clip, the zero of a
        square.
        """
        return None

    def can_tighten(self, lower: Point, upper: Point) -> Tensor:
        """Boolean: where tighter intermediate bounds could bring the linear bounds closer together."""
        return torch.stack([u > low for low, u in zip(lower, upper, strict=True)]).any(0)

    def derivative_range(self, lower: Point, upper: Point) -> list[Interval] | None:
        """For each pre-activation, low <= derivative <= high wherever the derivative exists on the box.

        Along any path inside the box f changes by no more than these slopes allow: kinks have measure zero,
        and a jump has an infinite slope. The range is infinite on boxes where nothing is known.
        """
        return None

    def curves(self) -> tuple[Curve | None, ...] | None:
        """Factors of f: f is the product of these curves, one per pre-activation; None as a factor is the
        identity.
        """
        return None

    def sides(self) -> KinkSides | None:
        """The two linear pieces, if f is linear on either side of a kink."""
        return None

    def executed_error(self, lower: Point, upper: Point, dtype: torch.dtype) -> Tensor | None:
        """A bound of |computed f - f| for torch's float32 or float64 kernel, at every point of the box that
        this type represents.
        """
        return rounding_error(self.magnitude(lower, upper), dtype) if self.measured else None


def planes(relaxation: Relaxation, lower: Point, upper: Point) -> LinearBounds:
    """Linear bounds with the relaxation's own slopes and exact intercepts, moved outwards by their rounding
    error.
    """
    # An infinite bound may make a slope NaN; slope zero is always sound.
    sides = relaxation.slopes(lower, upper)
    below, above = (tuple(torch.nan_to_num(s, 0.0, 0.0, 0.0) for s in side) for side in sides)
    if sides[0] is sides[1]:
        low, high = intercept(relaxation, lower, upper, below)
        return LinearBounds(below, low, below, high)
    return LinearBounds(
        below,
        intercept(relaxation, lower, upper, below)[0],
        above,
        intercept(relaxation, lower, upper, above)[1],
    )


def value_range(relaxation: Relaxation, lower: Point, upper: Point) -> tuple[Tensor, Tensor]:
    """(low, high) with low <= f <= high on the box: the intercepts of slope zero, within `limits`."""
    level = tuple(torch.zeros_like(end) for end in lower)
    least, most = _outermost(relaxation, relaxation.extremes(lower, upper), lower, upper, level)
    known = relaxation.limits(lower, upper)
    if known is None:
        return least, most
    # An infinite bound may mean that the pre-activation is undefined somewhere.
    numbers = torch.stack([*lower, *upper]).isfinite().all(0)
    low, high = torch.maximum(least, known[0]), torch.minimum(most, known[1])
    return torch.where(numbers, low, least), torch.where(numbers, high, most)


def intercept(relaxation: Relaxation, lower: Point, upper: Point, slope: Point) -> tuple[Tensor, Tensor]:
    """(low, high) with low <= f(v) - slope . v <= high on the box, rounded outwards; infinite where nothing
    is known.

    Rounding: see the module's docstring.
    """
    return _outermost(relaxation, relaxation.candidates(lower, upper, slope), lower, upper, slope)


def _outermost(
    relaxation: Relaxation, points: list[Point], lower: Point, upper: Point, slope: Point
) -> tuple[Tensor, Tensor]:
    """The extremes of f(v) - slope . v over given points, moved outwards by 64 u of the sum of absolute
    values.
    """
    values = []
    for point in points:
        value = relaxation.trend(*point)
        for s, v in zip(slope, point, strict=True):
            value = value - torch.where(s == 0, 0, s * v)
        values.append(value)
    stacked = torch.stack(values)
    weight = relaxation.magnitude(lower, upper)
    for s, low, high in zip(slope, lower, upper, strict=True):
        weight = weight + torch.where(s == 0, 0, s.abs() * torch.maximum(low.abs(), high.abs()))
    slack = 64 * UNIT * weight + 1e-300
    deviation = relaxation.deviation(lower, upper)
    if deviation is not None:
        slack = slack + deviation
    # A NaN (for example, a box outside the function's domain) gives infinite bounds.
    inf = torch.inf
    return torch.nan_to_num(stacked.amin(0) - slack, -inf, inf, -inf), torch.nan_to_num(
        stacked.amax(0) + slack, inf, inf, -inf
    )


def rounding_error(size: Tensor, dtype: torch.dtype) -> Tensor:
    """20 units roundoff of the type times a size; infinite where computing it may overflow.

    Measured: for every finite float32, torch 2.11's kernels on a CPU (AVX-512) and on an H200 are within 6.4
    such units (GELU; the others within 3.3) of `magnitude` at the point itself. The float64 kernels are built
    alike, with one or two units. Sine, cosine and arc tangent were measured on a CPU; for GPUs NVIDIA's guide
    states two units for any argument.
    """
    return torch.where(
        size < torch.finfo(dtype).max / 16,
        charge(size, EXECUTED_FUNCTION, dtype=dtype) + UNDERFLOW,
        torch.inf,
    )


def hull(*values: Tensor, units: float = 64.0, more: float = 0.0) -> Interval:
    """The smallest and largest of several tensors, moved outwards by `units` u of their size plus `more`;
    infinite where one is NaN.
    """
    stacked = torch.stack(torch.broadcast_tensors(*values))
    slack = units * UNIT * stacked.abs() + (more + 1e-300)
    low, high = (stacked - slack).amin(0), (stacked + slack).amax(0)
    return torch.nan_to_num(low, -torch.inf, torch.inf, -torch.inf), torch.nan_to_num(
        high, torch.inf, torch.inf, -torch.inf
    )


def smallest_and_largest_magnitude(low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
    """The smallest and the largest |v| on the box, where an even derivative that falls with |v| attains its
    extremes.
    """
    return clamp(torch.zeros_like(low), low, high).abs(), torch.maximum(low.abs(), high.abs())


def clamp(v: Tensor, lower: Tensor, upper: Tensor) -> Tensor:
    """v clamped to the box; the lower bound where v is NaN."""
    inside = torch.minimum(torch.maximum(v, lower), upper)
    return torch.where(v.isnan(), lower, inside)


def ends_and_places(lower: Point, upper: Point, places: Iterable[float]) -> list[Point]:
    """The corners of boxes of one argument, and the places clamped to the boxes."""
    (low,), (high,) = lower, upper
    return [lower, upper, *((clamp(torch.full_like(low, place), low, high),) for place in places)]


def chord(f_lower: Tensor, f_upper: Tensor, lower: Tensor, upper: Tensor, slope_there: Tensor) -> Tensor:
    """(f(u) - f(l)) / (u - l), or the given slope where the box is too narrow for the division."""
    width = upper - lower
    wide = width > 1e-9 * (1 + lower.abs() + upper.abs())
    return torch.where(wide, (f_upper - f_lower) / torch.where(wide, width, 1.0), slope_there)
