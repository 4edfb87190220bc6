"""Mean bounds over the time of a run."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from matplotlib.axes import Axes

from holdfast.formatting import format_bounds
from holdfast.report.plots.canvas import INK, MOST_POINTS, PROVED, UNKNOWN, WITNESSED, canvas
from holdfast.report.summary import mean_of
from holdfast.report.wording import RADIUS, Quantity
from holdfast.result import Key
from holdfast.store import Event


@dataclass(frozen=True)
class MeanOverTime:
    """A mean over time. It begins when all its inputs have a bound, so that its population never changes."""

    seconds: list[float]
    values: list[float]


def draw(
    history: Sequence[Event], sense: Quantity = RADIUS, things: str = "inputs", name: str = "convergence"
) -> str:
    """Return the chart of the mean lower and upper bound over the seconds per input, both over the same
    inputs.
    """
    with canvas(name, f"Mean lower and upper bound of the {sense.quantity} over time", height=2.4) as drawn:
        chosen = followed_inputs(history)
        lower, upper = _mean_curves(history, chosen)
        if lower.seconds or upper.seconds:
            _lines(drawn.axes, lower, upper, sense)
            drawn.axes.set_xlabel(f"seconds spent on each of {_count_phrase(chosen, things)}")
            drawn.axes.set_ylabel(f"mean {sense.quantity}")
            drawn.legend()
        else:
            drawn.nothing("no history yet")
    return drawn.svg


def is_single_point(history: Sequence[Event]) -> bool:
    """Return whether the chart of this history has a single moment for each line, and so no line at all."""
    curves = _mean_curves(history, followed_inputs(history))
    return bool(history) and all(len(set(curve.seconds)) < 2 for curve in curves)


def _mean_curves(history: Sequence[Event], chosen: "Followed") -> tuple[MeanOverTime, MeanOverTime]:
    lower = [(e.key, e.seconds, e.lower) for e in history if e.key in chosen.lower]
    upper = [(e.key, e.seconds, e.upper) for e in history if e.key in chosen.upper]
    return mean_over_time(lower, largest=True), mean_over_time(upper, largest=False)


@dataclass(frozen=True)
class Followed:
    """The keys of each mean: the same ones for both, or none for one of the two. count: number of
    all keys.
    """

    lower: frozenset[Key]
    upper: frozenset[Key]
    count: int


def followed_inputs(history: Sequence[Event]) -> Followed:
    """Return the keys with two finite bounds, so that the mean lower bound never lies above the mean upper
    one.

    Without any, return those of the bound that became finite more often, alone.
    """
    lower = frozenset(e.key for e in history if math.isfinite(e.lower))
    upper = frozenset(e.key for e in history if math.isfinite(e.upper))
    count, none = len({e.key for e in history}), frozenset[Key]()
    if lower & upper:
        return Followed(lower & upper, lower & upper, count)
    return Followed(lower, none, count) if len(lower) > len(upper) else Followed(none, upper, count)


def _count_phrase(chosen: Followed, things: str) -> str:
    some = len(chosen.lower or chosen.upper)
    known = (
        "both bounds are"
        if chosen.lower and chosen.upper
        else "the lower bound is"
        if chosen.lower
        else "the upper bound is"
    )
    return (
        f"the {some} {things}"
        if some == chosen.count
        else f"\nthe {some} of {chosen.count} {things} of which {known} known"
    )


def mean_over_time(moments: Sequence[tuple[Key, float, float]], *, largest: bool) -> MeanOverTime:
    """Return the mean over keys of the best finite value at each time, from (key, seconds, value) in any
    order.
    """
    better = max if largest else min
    finite = sorted((m for m in moments if math.isfinite(m[2])), key=lambda m: m[1])
    waiting = {key for key, _, _ in finite}
    best: dict[Key, float] = {}
    total, curve = 0.0, MeanOverTime([], [])
    for seconds, together in groupby(finite, key=lambda m: m[1]):
        for key, _, value in together:
            now = better(best.get(key, value), value)
            total += now - best.get(key, 0.0)
            best[key] = now
            waiting.discard(key)
        if not waiting:
            curve.seconds.append(seconds)
            curve.values.append(total / len(best))
    if curve.values:
        curve.values[-1] = mean_of(list(best.values()))  # Agrees with other views in the last digit.
    return curve


def _close(lower: MeanOverTime, upper: MeanOverTime) -> bool:
    """Return whether the two curves end closer than their labels are high."""
    if not (lower.values and upper.values):
        return False
    return abs(upper.values[-1] - lower.values[-1]) < 0.06 * max(map(abs, (*lower.values, *upper.values)))


def _lines(axes: Axes, lower: MeanOverTime, upper: MeanOverTime, sense: Quantity) -> None:
    end = max(lower.seconds[-1:] + upper.seconds[-1:])
    start = min(lower.seconds[:1] + upper.seconds[:1])
    high, low = (WITNESSED, PROVED) if sense.rises else (PROVED, WITNESSED)
    least, most = format_bounds(
        lower.values[-1] if lower.values else math.nan, upper.values[-1] if upper.values else math.nan
    )
    if _close(lower, upper):
        least, most = (
            "",
            least if least == most else f"{least} to {most}",
        )  # Two labels would overlap.
    for curve, colour, label, shown in (
        (upper, high, "mean upper bound", most),
        (lower, low, "mean lower bound", least),
    ):
        if not curve.seconds:
            continue
        every = max(1, len(curve.seconds) // MOST_POINTS)
        times = [*curve.seconds[:-1:every], curve.seconds[-1], end]
        values = [*curve.values[:-1:every], curve.values[-1], curve.values[-1]]
        axes.step(times, values, where="post", color=colour, label=label)
        axes.plot(times[:1], values[:1], "o", color=colour, markersize=4)
        if shown:
            axes.annotate(shown, (end, values[-1]), xytext=(5, -3), textcoords="offset points", color=INK)
    if start > 0 and end > 100 * start:
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter(lambda seconds, _: f"{seconds:g}")
    axes.axvline(end, color=UNKNOWN, linewidth=0.8)
    axes.margins(x=0.02)
    if axes.get_ylim()[0] > 0:
        axes.set_ylim(bottom=0)
