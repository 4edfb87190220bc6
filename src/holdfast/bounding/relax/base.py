"""Linear relaxation: all that is known of a function, and how slopes become planes."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from holdfast.rounding import UNDERFLOW, gamma

UNIT = 2.0**-53

Point = tuple[Tensor, ...]  # one tensor for each argument of the function, all of one shape
Interval = tuple[Tensor, Tensor]  # low, high
Deviation = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class LinearBounds:
    """lower.v + lower_offset <= f(v) <= upper.v + upper_offset on the box; slopes hold one tensor for each argument."""

    lower: Point
    lower_offset: Tensor
    upper: Point
    upper_offset: Tensor


@dataclass(frozen=True)
class KinkSides:
    """f(v) = value + below (v - at) for v <= at, and value + above (v - at) for v >= at: on which side v lies makes f a line."""

    at: float
    value: float
    below: float
    above: float


class Curve(ABC):
    """A function of one argument that parabolas can follow; `parabola.py` has the kinds of them."""

    @abstractmethod
    def function(self, x: Tensor) -> Tensor: ...

    @abstractmethod
    def sizes(self, lower: Tensor, upper: Tensor) -> tuple[Tensor | float, Tensor | float]:
        """value, steep: on the interval |f(x)| <= value + steep |x|, and no slope of f is larger in size than steep."""

    @abstractmethod
    def extremes(
        self, deviation: Deviation, slope: Tensor, bend: Tensor, lower: Tensor, upper: Tensor, at: Tensor
    ) -> Interval:
        """Bounds of deviation(x) = f(x) - slope (x - at) - bend (x - at)^2 for lower <= x <= upper, but for rounding."""


def unsplit(why: str) -> Mapping[str, str]:
    return {"sign split": why}


BENT = unsplit("bends everywhere")


class Relaxation(ABC):
    """A function of one or two arguments, element by element, with all that is known of it. What is not known is answered with None."""

    arguments: ClassVar[int] = 1
    unknown: ClassVar[Mapping[str, str]] = {}  # abilities (see abilities.py) that it has not, and why
    measured: ClassVar[bool] = (
        False  # torch's kernels for it were found to be well within `rounding_error(magnitude)`
    )

    @abstractmethod
    def function(self, *v: Tensor) -> Tensor:
        """The function itself."""

    @abstractmethod
    def candidates(self, lower: Point, upper: Point, slope: Point) -> list[Point]:
        """Points of the box, among them (up to rounding) every minimiser and maximiser of f(v) - slope . v over it."""

    @abstractmethod
    def slopes(self, lower: Point, upper: Point) -> tuple[Point, Point]:
        """Good slopes for the lower and for the upper plane. Any would be sound."""

    def extremes(self, lower: Point, upper: Point) -> list[Point]:
        """Points of the box, among them every minimiser and maximiser of f itself."""
        return self.candidates(lower, upper, tuple(torch.zeros_like(end) for end in lower))

    def magnitude(self, lower: Point, upper: Point) -> Tensor:
        """A number that no |f| and no intermediate result of computing f exceeds on the box."""
        return torch.stack([self.function(*ends).abs() for ends in (lower, upper)]).amax(0)

    def limits(self, lower: Point, upper: Point) -> Interval | None:
        """low <= f <= high on the box, where nothing was rounded to know it: whole numbers, the ends of a clip, the zero of a square."""
        return None

    def can_tighten(self, lower: Point, upper: Point) -> Tensor:
        """bool: where a tighter box could bring the planes closer together."""
        return torch.stack([u > low for low, u in zip(lower, upper, strict=True)]).any(0)

    def derivative_range(self, lower: Point, upper: Point) -> list[Interval] | None:
        """For each argument low <= derivative <= high wherever f has one on the box, and along any path inside it f changes by no more
        than these allow: kinks are crossed in no time, a jump is infinitely steep. Infinite on boxes of which nothing is known."""
        return None

    def curves(self) -> tuple[Curve | None, ...] | None:
        """f is the product of these curves, one for each argument; where there is none, of the argument itself."""
        return None

    def sides(self) -> KinkSides | None:
        """The two lines it is made of."""
        return None

    def executed_error(self, lower: Point, upper: Point, dtype: torch.dtype) -> Tensor | None:
        """At no point of the box that is a number of this kind is f, as torch computes it in float32 or float64, further from the truth."""
        return rounding_error(self.magnitude(lower, upper), dtype) if self.measured else None


def planes(relaxation: Relaxation, lower: Point, upper: Point) -> LinearBounds:
    """The planes with the relaxation's own slopes and exact intercepts, each moved out by its rounding error."""
    # A box with an infinite end may leave no sensible slope; a level plane is always one.
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
    """The smallest and largest value on the box: the intercepts of level planes, held to what is known without rounding."""
    level = tuple(torch.zeros_like(end) for end in lower)
    least, most = _outermost(relaxation, relaxation.extremes(lower, upper), lower, upper, level)
    known = relaxation.limits(lower, upper)
    if known is None:
        return least, most
    numbers = (
        torch.stack([*lower, *upper]).isfinite().all(0)
    )  # an infinite end may mean that the argument has no value somewhere
    low, high = torch.maximum(least, known[0]), torch.minimum(most, known[1])
    return torch.where(numbers, low, least), torch.where(numbers, high, most)


def intercept(relaxation: Relaxation, lower: Point, upper: Point, slope: Point) -> tuple[Tensor, Tensor]:
    """The smallest and the largest f(v) - slope . v over the box, rounded outwards; infinite where nothing is known.

    A candidate that misses its true place by d moves the value by at most curvature * d^2 / 2, far below one unit for the roots
    used here; the functions themselves are right to a few units. Sixty-four units of everything that enters cover both.
    """
    return _outermost(relaxation, relaxation.candidates(lower, upper, slope), lower, upper, slope)


def _outermost(
    relaxation: Relaxation, points: list[Point], lower: Point, upper: Point, slope: Point
) -> tuple[Tensor, Tensor]:
    values = []
    for point in points:
        value = relaxation.function(*point)
        for s, v in zip(slope, point, strict=True):
            value = value - torch.where(s == 0, 0, s * v)
        values.append(value)
    stacked = torch.stack(values)
    weight = relaxation.magnitude(lower, upper)
    for s, low, high in zip(slope, lower, upper, strict=True):
        weight = weight + torch.where(s == 0, 0, s.abs() * torch.maximum(low.abs(), high.abs()))
    slack = 64 * UNIT * weight + 1e-300
    # Where a value is no number (a box outside the function's domain, say) nothing is known.
    inf = torch.inf
    return torch.nan_to_num(stacked.amin(0) - slack, -inf, inf, -inf), torch.nan_to_num(
        stacked.amax(0) + slack, inf, inf, -inf
    )


def rounding_error(size: Tensor, dtype: torch.dtype) -> Tensor:
    """Twenty units of rounding of this size; infinite where it may overflow on its way.

    For every finite float32 the kernels of torch 2.11 on a CPU (AVX-512) and on an H200 are within 6.4 such units (GELU; the others
    within 3.3), of what `magnitude` says of the point itself. Those of float64 are built alike, to one or two of their last places. Sine,
    cosine and the arc tangent were measured on a CPU; on cards NVIDIA's guide says two units for any argument.
    """
    return torch.where(size < torch.finfo(dtype).max / 16, gamma(16, dtype) * size + UNDERFLOW, torch.inf)


def hull(*values: Tensor, units: float = 64.0, more: float = 0.0) -> Interval:
    """The smallest and the largest of them, moved out by so many units of their size and by so much more; infinite where one is none."""
    stacked = torch.stack(torch.broadcast_tensors(*values))
    slack = units * UNIT * stacked.abs() + (more + 1e-300)
    low, high = (stacked - slack).amin(0), (stacked + slack).amax(0)
    return torch.nan_to_num(low, -torch.inf, torch.inf, -torch.inf), torch.nan_to_num(
        high, torch.inf, torch.inf, -torch.inf
    )


def near_and_far(low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
    """The sizes |v| in the box next to zero and furthest from it: where a derivative that is even and falls with |v| has its ends."""
    return clamp(torch.zeros_like(low), low, high).abs(), torch.maximum(low.abs(), high.abs())


def clamp(v: Tensor, lower: Tensor, upper: Tensor) -> Tensor:
    """v inside the box; where v is no number, the lower bound."""
    inside = torch.minimum(torch.maximum(v, lower), upper)
    return torch.where(v.isnan(), lower, inside)


def chord(f_lower: Tensor, f_upper: Tensor, lower: Tensor, upper: Tensor, slope_there: Tensor) -> Tensor:
    """(f(u) - f(l)) / (u - l), and the given slope where the box is too narrow to divide by."""
    width = upper - lower
    wide = width > 1e-9 * (1 + lower.abs() + upper.abs())
    return torch.where(wide, (f_upper - f_lower) / torch.where(wide, width, 1.0), slope_there)
