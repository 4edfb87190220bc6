"""Seconds per input, by the status in which its search ended."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes

from holdfast.report.plots.canvas import INK, MOST_POINTS, PROVED, UNKNOWN, canvas


def draw(seconds: Mapping[str, Sequence[float]], name: str = "times") -> str:
    """Return a box plot for each status: the middle half, the median, and whiskers to the 5th and 95th
    percentile.
    """
    groups = [(status, list(values)) for status, values in seconds.items() if len(values)]
    with canvas(
        name,
        "Seconds spent on each input, by how the search ended",
        height=max(1.3, 0.75 + 0.42 * len(groups)),
    ) as drawn:
        if groups:
            _boxes(drawn.axes, groups)
        else:
            drawn.nothing("no answers yet")
    return drawn.svg


def _boxes(axes: Axes, groups: Sequence[tuple[str, list[float]]]) -> None:
    axes.boxplot(
        [_thin_quantiles(values) for _, values in groups],
        orientation="horizontal",
        whis=(5, 95),
        widths=0.55,
        patch_artist=True,
        tick_labels=[f"{name} ({len(values)})" for name, values in groups],
        boxprops={"facecolor": PROVED, "alpha": 0.35, "edgecolor": PROVED},
        medianprops={"color": INK, "linewidth": 1.6},
        whiskerprops={"color": PROVED},
        capprops={"color": PROVED},
        flierprops={"marker": ".", "markersize": 3, "markeredgecolor": UNKNOWN, "markerfacecolor": UNKNOWN},
    )
    axes.grid(axis="y", visible=False)
    axes.grid(axis="x", visible=True)
    every = [value for _, values in groups for value in values]
    if min(every) > 0 and max(every) > 100 * min(every):
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    else:
        axes.set_xlim(left=0)
    axes.set_xlabel("seconds per input")


def _thin_quantiles(values: list[float]) -> list[float]:
    """Return at most MOST_POINTS evenly spaced quantiles, which draw the same box."""
    if len(values) <= MOST_POINTS:
        return values
    thinned: list[float] = np.quantile(values, np.linspace(0, 1, MOST_POINTS)).tolist()
    return thinned
