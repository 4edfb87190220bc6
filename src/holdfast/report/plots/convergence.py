"""How the ends closed in while the run went on."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from matplotlib.axes import Axes

from holdfast.report.plots.canvas import INK, MOST_POINTS, PROVED, UNKNOWN, WITNESSED, canvas
from holdfast.report.sense import RADIUS, Sense
from holdfast.result import Key
from holdfast.store import Event


@dataclass(frozen=True)
class Curve:
    """A mean over time. It begins when all that count in it have a number, so that it never changes its population."""

    seconds: list[float]
    values: list[float]


def draw(history: Sequence[Event], sense: Sense = RADIUS, things: str = "inputs", name: str = "convergence") -> str:
    """Mean lower and upper end over the seconds spent on each input; ends that never became finite do not count."""
    with canvas(name, f"Mean lower and upper end of the {sense.quantity} over time", height=2.4) as drawn:
        lower = mean_over_time([(e.key, e.seconds, e.lower) for e in history], largest=True)
        upper = mean_over_time([(e.key, e.seconds, e.upper) for e in history], largest=False)
        if lower.seconds or upper.seconds:
            _lines(drawn.axes, lower, upper, sense)
            drawn.axes.set_xlabel(f"seconds spent on each of the {things}")
            drawn.axes.set_ylabel(f"mean {sense.quantity}")
            drawn.legend()
        else:
            drawn.nothing("no history yet")
    return drawn.svg


def mean_over_time(moments: Sequence[tuple[Key, float, float]], *, largest: bool) -> Curve:
    """(key, seconds, value) in any order -> the mean over keys of the best finite value so far."""
    better = max if largest else min
    finite = sorted((m for m in moments if math.isfinite(m[2])), key=lambda m: m[1])
    waiting = {key for key, _, _ in finite}
    best: dict[Key, float] = {}
    total, curve = 0.0, Curve([], [])
    for seconds, together in groupby(finite, key=lambda m: m[1]):
        for key, _, value in together:
            now = better(best.get(key, value), value)
            total += now - best.get(key, 0.0)
            best[key] = now
            waiting.discard(key)
        if not waiting:
            curve.seconds.append(seconds)
            curve.values.append(total / len(best))
    return curve


def _lines(axes: Axes, lower: Curve, upper: Curve, sense: Sense) -> None:
    end = max(lower.seconds[-1:] + upper.seconds[-1:])
    start = min(lower.seconds[:1] + upper.seconds[:1])
    high, low = (WITNESSED, PROVED) if sense.rises else (PROVED, WITNESSED)
    for curve, colour, label in ((upper, high, "mean upper end"), (lower, low, "mean lower end")):
        if not curve.seconds:
            continue
        every = max(1, len(curve.seconds) // MOST_POINTS)
        times = [*curve.seconds[:-1:every], curve.seconds[-1], end]
        values = [*curve.values[:-1:every], curve.values[-1], curve.values[-1]]
        axes.step(times, values, where="post", color=colour, label=label)
        axes.plot(times[:1], values[:1], "o", color=colour, markersize=4)
        axes.annotate(f"{values[-1]:.3g}", (end, values[-1]), xytext=(5, -3), textcoords="offset points", color=INK)
    if start > 0 and end > 100 * start:
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter(lambda seconds, _: f"{seconds:g}")
    axes.axvline(end, color=UNKNOWN, linewidth=0.8)
    axes.margins(x=0.02)
    if axes.get_ylim()[0] > 0:
        axes.set_ylim(bottom=0)
