"""How steep a relaxed function can be: for every argument an interval of its derivative over a box, as a table.

Sound means: low <= f'(v) <= high at every v of the box where f has a derivative, and along any path inside the box f changes by no more
than these allow (kinks are crossed in no time; where f jumps, the interval is infinite). Each range comes from the places where f' is
largest and smallest, by its monotone pieces, and is moved out by 64 units of its own size (plus what the table says) for its rounding.
"""

import math
from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor

from holdfast.bounding.graph.graph import Relaxed
from holdfast.bounding.relax import (
    Abs,
    Clip,
    Elu,
    Erf,
    Exp,
    Gelu,
    Hardswish,
    LeakyRelu,
    Log,
    Power,
    Product,
    Reciprocal,
    Relaxation,
    Relu,
    Rsqrt,
    Sigmoid,
    SigmoidTanh,
    SigmoidTimes,
    Silu,
    Softplus,
    Sqrt,
    Step,
    Tanh,
)
from holdfast.bounding.relax.base import UNIT, Point, clamp
from holdfast.errors import UnsupportedLayer

Interval = tuple[Tensor, Tensor]
Rule = Callable[[Relaxation, Point, Point], list[Interval]]
RULES: dict[type[Relaxation], Rule] = {}
R = TypeVar("R", bound=Relaxation)
INF = torch.inf


def derivative_ranges(node: Relaxed, lower: Point, upper: Point) -> list[Interval]:
    """For each argument low, high of the derivative over the box, the shape of the box; infinite where nothing is known."""
    rule = RULES.get(type(node.relaxation))
    if rule is None:
        raise UnsupportedLayer(
            f"layer {node.name}: there is no bound for the derivative of {type(node.relaxation).__name__}, so the steepness of what lies "
            f"behind it is not known. Radii and scores can still be proved; to add one, see bounding/relax/derivative.py."
        )
    found = rule(node.relaxation, lower, upper)
    return [(low.nan_to_num(-INF, INF, -INF), high.nan_to_num(INF, INF, -INF)) for low, high in found]


def _of(*kinds: type[R]) -> Callable[[Callable[[R, Point, Point], list[Interval]]], Callable[[R, Point, Point], list[Interval]]]:
    def register(rule: Callable[[R, Point, Point], list[Interval]]) -> Callable[[R, Point, Point], list[Interval]]:
        for kind in kinds:
            assert kind not in RULES, f"{kind.__name__} has a rule already"
            RULES[kind] = rule  # type: ignore[assignment]
        return rule

    return register


def _hull(*values: Tensor, units: float = 64.0) -> Interval:
    """The smallest and the largest of them, moved out by so many units of their size."""
    stacked = torch.stack(torch.broadcast_tensors(*values))
    slack = units * UNIT * stacked.abs() + 1e-300
    return (stacked - slack).amin(0), (stacked + slack).amax(0)


def _nearest_and_furthest(low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
    """The sizes |v| in the box next to zero and furthest from it: the ends of a derivative that is even and falls with |v|."""
    return clamp(torch.zeros_like(low), low, high).abs(), torch.maximum(low.abs(), high.abs())


def _times(a: Interval, b: Interval) -> Interval:
    return _hull(*(x * y for x in a for y in b), units=4)


# ---- pieces of straight lines


@_of(LeakyRelu, Relu, Abs)
def _leaky(f: LeakyRelu, lower: Point, upper: Point) -> list[Interval]:
    """Exact: 1 where the box has no negative number, the slope where it has no positive one, else both."""
    (low,), (high,) = lower, upper
    one, slope = torch.ones_like(low), torch.full_like(low, f.negative_slope)
    small, large = torch.minimum(one, slope), torch.maximum(one, slope)
    return [tuple(torch.where(low >= 0, one, torch.where(high <= 0, slope, end)) for end in (small, large))]  # type: ignore[list-item]


@_of(Clip)
def _clip(f: Clip, lower: Point, upper: Point) -> list[Interval]:
    """1 between the ends, 0 outside."""
    (low,), (high,) = lower, upper
    inside, outside = (low >= f.low) & (high <= f.high), (high <= f.low) | (low >= f.high)
    return [(torch.where(inside, 1.0, 0.0).to(low), torch.where(outside & ~inside, 0.0, 1.0).to(low))]


@_of(Step)
def _step(f: Step, lower: Point, upper: Point) -> list[Interval]:
    """Level, but for the jump."""
    (low,), (high,) = lower, upper
    jump = torch.where((low <= 0) & (high >= 0), INF, 0.0).to(low)
    return [(torch.zeros_like(jump), jump)]


@_of(Hardswish)
def _hardswish(f: Hardswish, lower: Point, upper: Point) -> list[Interval]:
    """(2 v + 3) / 6 between -3 and 3, 0 before, 1 after: both sides of each kink in the box count."""
    (low,), (high,) = lower, upper
    middle = [(2 * v.clamp(-3, 3) + 3) / 6 for v in lower + upper]
    none = torch.full_like(low, torch.nan)
    parts = [torch.where((low < 3) & (high > -3), m, none) for m in middle]
    parts += [torch.where(low < -3, 0.0, none), torch.where(high > 3, 1.0, none)]
    stacked = torch.stack(parts)
    least, most = torch.where(stacked.isnan(), INF, stacked).amin(0), torch.where(stacked.isnan(), -INF, stacked).amax(0)
    known = least <= most  # a box that is one of the kinks may be taken for either side
    least, most = torch.where(known, least, -0.5), torch.where(known, most, 1.5)
    return [(least - 64 * UNIT, most + 64 * UNIT)]


@_of(Elu)
def _elu(f: Elu, lower: Point, upper: Point) -> list[Interval]:
    """alpha exp(v) rises up to alpha at zero; behind it, 1."""
    (low,), (high,) = lower, upper
    ends = [f.alpha * torch.exp(v.clamp_max(0)) for v in (low, high)]
    least, most = _hull(*ends)
    one = torch.ones_like(low)
    least = torch.where(low >= 0, one, torch.where(high > 0, torch.minimum(least, one), least))
    return [(least, torch.where(low >= 0, one, torch.where(high > 0, torch.maximum(most, one), most)))]


# ---- smooth functions of one number


@_of(Tanh)
def _tanh(f: Tanh, lower: Point, upper: Point) -> list[Interval]:
    return [_tanh_slope(lower[0], upper[0])]


def _tanh_slope(low: Tensor, high: Tensor) -> Interval:
    """1 / cosh(v)^2, even, falling with |v|; cosh overflows where it is zero but for 1e-300."""
    return _hull(*(torch.cosh(v).square().reciprocal() for v in _nearest_and_furthest(low, high)))


@_of(Sigmoid)
def _sigmoid(f: Sigmoid, lower: Point, upper: Point) -> list[Interval]:
    return [_sigmoid_slope(lower[0], upper[0])]


def _sigmoid_slope(low: Tensor, high: Tensor) -> Interval:
    """sigmoid(v) sigmoid(-v), even, falling with |v|."""
    return _hull(*(torch.sigmoid(v) * torch.sigmoid(-v) for v in _nearest_and_furthest(low, high)))


@_of(Erf)
def _erf(f: Erf, lower: Point, upper: Point) -> list[Interval]:
    """2 exp(-v^2) / sqrt(pi), even, falling with |v|; the square in the exponent, at most 750 where it counts, is rounded too."""
    size = _nearest_and_furthest(lower[0], upper[0])
    return [_hull(*(torch.exp(-v * v) * (2 / math.sqrt(math.pi)) for v in size), units=4096)]


@_of(Softplus)
def _softplus(f: Softplus, lower: Point, upper: Point) -> list[Interval]:
    """sigmoid(beta v) rises. Torch answers v itself from the threshold on, which is a jump down: there the slope has no lower end."""
    (low,), (high,) = lower, upper
    least, most = _hull(*(torch.sigmoid(f.beta * v) for v in (low, high)), units=4096)
    drop = min(f.threshold / f.beta, 1e300)
    aside = abs(drop) * 2.0**-50 + 1e-300
    before, behind = high < drop - aside, low > drop + aside
    one = torch.ones_like(low)
    return [(torch.where(before, least, torch.where(behind, one, -INF)), torch.where(behind, one, torch.maximum(most, one * ~before)))]


@_of(Exp)
def _exp(f: Exp, lower: Point, upper: Point) -> list[Interval]:
    return [_hull(torch.exp(lower[0]), torch.exp(upper[0]))]


def _falling(derivative: Callable[[Tensor], Tensor], lower: Tensor, upper: Tensor) -> list[Interval]:
    """A derivative that is monotone for v > 0; a box that reaches zero has none."""
    least, most = _hull(derivative(lower), derivative(upper), units=128)
    inside = lower > 0
    return [(torch.where(inside, least, -INF), torch.where(inside, most, INF))]


@_of(Log)
def _log(f: Log, lower: Point, upper: Point) -> list[Interval]:
    return _falling(lambda v: 1 / v, lower[0], upper[0])


@_of(Sqrt)
def _sqrt(f: Sqrt, lower: Point, upper: Point) -> list[Interval]:
    return _falling(lambda v: 0.5 / v.sqrt(), lower[0], upper[0])


@_of(Rsqrt)
def _rsqrt(f: Rsqrt, lower: Point, upper: Point) -> list[Interval]:
    return _falling(lambda v: -0.5 / (v * v.sqrt()), lower[0], upper[0])


@_of(Reciprocal)
def _reciprocal(f: Reciprocal, lower: Point, upper: Point) -> list[Interval]:
    """-1 / v^2, even: what holds for positive boxes holds for their mirror images."""
    (low,), (high,) = lower, upper
    small = torch.where(high < 0, -high, low)
    return _falling(lambda v: -1 / (v * v), small, torch.where(high < 0, -low, high))


@_of(Power)
def _power(f: Power, lower: Point, upper: Point) -> list[Interval]:
    """n v^(n - 1): rises for even n; for odd n it is even and rises with |v|."""
    ends = (lower[0], upper[0]) if f.exponent % 2 == 0 else _nearest_and_furthest(lower[0], upper[0])
    return [_hull(*(f.exponent * v ** (f.exponent - 1) for v in ends), units=64 + 4 * f.exponent)]


SILU_TOP = 2.3993572805154676  # where silu' is largest: 2 + v (1 - 2 sigmoid(v)) = 0; at minus this it is smallest
GELU_TOP = math.sqrt(2)  # where gelu'' = phi(v) (2 - v^2) = 0


@_of(Silu)
def _silu(f: Silu, lower: Point, upper: Point) -> list[Interval]:
    """sigmoid(v) (1 + v sigmoid(-v)) has one smallest and one largest place, and is monotone before, between and behind."""
    points = _ends_and(lower, upper, SILU_TOP)
    return [_moved(_hull(*(torch.sigmoid(v) * (1 + v * torch.sigmoid(-v)) for v in points)))]


@_of(Gelu)
def _gelu(f: Gelu, lower: Point, upper: Point) -> list[Interval]:
    """Phi(v) + v phi(v), likewise."""
    root = math.sqrt(2 * math.pi)
    points = _ends_and(lower, upper, GELU_TOP)
    return [_moved(_hull(*(torch.special.ndtr(v) + v * torch.exp(-v * v / 2) / root for v in points)))]


def _ends_and(lower: Point, upper: Point, top: float) -> list[Tensor]:
    (low,), (high,) = lower, upper
    # Far out exp(-v^2) v is 0 times infinity; the derivative has long been flat there.
    tops = [clamp(torch.full_like(low, place), low, high) for place in (top, -top)]
    return [v.clamp(-1e3, 1e3) for v in (low, high, *tops)]


def _moved(found: Interval) -> Interval:
    """Their sums may cancel near a zero of the derivative, and a place of the top is right to a few units: charge units of one."""
    return found[0] - 256 * UNIT, found[1] + 256 * UNIT


# ---- products


@_of(Product)
def _product(f: Product, lower: Point, upper: Point) -> list[Interval]:
    return [(lower[1], upper[1]), (lower[0], upper[0])]


@_of(SigmoidTimes)
def _sigmoid_times(f: SigmoidTimes, lower: Point, upper: Point) -> list[Interval]:
    steep = _sigmoid_slope(lower[0], upper[0])
    return [_times(steep, (lower[1], upper[1])), _hull(torch.sigmoid(lower[0]), torch.sigmoid(upper[0]))]


@_of(SigmoidTanh)
def _sigmoid_tanh(f: SigmoidTanh, lower: Point, upper: Point) -> list[Interval]:
    gate, value = (_hull(torch.sigmoid(lower[0]), torch.sigmoid(upper[0])), _hull(torch.tanh(lower[1]), torch.tanh(upper[1])))
    return [_times(_sigmoid_slope(lower[0], upper[0]), value), _times(gate, _tanh_slope(lower[1], upper[1]))]
