"""The share of inputs that is certified, broken and unknown at every radius."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator, PercentFormatter

from holdfast.report.plots.canvas import MOST_POINTS, PROVED, UNKNOWN, WITNESSED, canvas
from holdfast.report.wording import RADIUS, Quantity
from holdfast.result import Bracket


def draw(
    brackets: Sequence[Bracket], sense: Quantity = RADIUS, things: str = "inputs", name: str = "share"
) -> str:
    """Return the chart. At r an input is certified if r <= its lower bound and broken if r > its upper bound.

    Where smaller is better, the roles are exchanged.
    """
    with canvas(name, f"Share of {things} proved to hold and shown to break, by {sense.quantity}") as drawn:
        if brackets:
            _fill(drawn.axes, brackets, sense)
            drawn.axes.set_xlabel(sense.quantity)
            drawn.axes.set_ylabel(f"share of {things}")
            drawn.legend()
        else:
            drawn.nothing("no answers yet")
    return drawn.svg


def _fill(axes: Axes, brackets: Sequence[Bracket], sense: Quantity) -> None:
    lower = np.sort([b.lower.value for b in brackets])
    upper = np.sort([b.upper.value for b in brackets])
    ends = np.unique(np.concatenate([lower, upper, [0.0]]))
    ends = ends[np.isfinite(ends)]
    least, most = float(ends[0]), float(ends[-1])
    most += 0.05 * (most - least) or 1.0
    knots = ends if len(ends) <= MOST_POINTS else np.linspace(least, most, MOST_POINTS, endpoint=False)
    # Shares are constant between two neighbouring bounds, so the middle of a step represents all of it.
    edges = np.append(knots, most)
    middle = (edges[:-1] + edges[1:]) / 2
    beyond_lower, beyond_upper = (
        np.searchsorted(values, middle, side="left") / len(values) for values in (lower, upper)
    )
    proved, standing = (1 - beyond_lower, 1 - beyond_upper) if sense.rises else (beyond_upper, beyond_lower)
    axes.stairs(proved, edges, fill=True, color=PROVED, alpha=0.35, linewidth=0, label="proved to hold")
    axes.stairs(
        standing, edges, baseline=proved, fill=True, color=UNKNOWN, alpha=0.3, linewidth=0, label="unknown"
    )
    axes.stairs(
        np.ones_like(middle),
        edges,
        baseline=standing,
        fill=True,
        color=WITNESSED,
        alpha=0.35,
        linewidth=0,
        label="shown to break",
    )
    axes.stairs(proved, edges, baseline=None, color=PROVED, linewidth=1.5)
    axes.stairs(standing, edges, baseline=None, color=WITNESSED, linewidth=1.5)
    axes.set_xlim(least, most)
    if bool((ends == ends.round()).all()):  # counts of words or pixels
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_ylim(0, 1)
    axes.yaxis.set_major_formatter(PercentFormatter(xmax=1))
