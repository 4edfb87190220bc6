"""Sampled radii of inputs, sorted: one point for each input, in the colour of estimates."""

from collections.abc import Sequence

import numpy as np
from matplotlib.ticker import MaxNLocator

from holdfast.report.plots.canvas import ESTIMATED, MOST_POINTS, canvas


def draw(radii: Sequence[float], *, narrow: bool = False) -> str:
    """Return the chart of the radii as inline SVG; of more than MOST_POINTS inputs it draws a share, evenly.

    narrow: whether the chart is for a screen of about 400 px.
    """
    name, width = ("sampled-narrow", 4.2) if narrow else ("sampled", 11.4)
    with canvas(name, "Sampled radius of each input, sorted", width, 2.6) as drawn:
        if not radii:
            drawn.nothing("no answers yet")
        else:
            axes, ordered = drawn.axes, np.sort(np.array(radii))
            places = np.unique(
                np.linspace(0, len(ordered) - 1, min(len(ordered), MOST_POINTS)).round().astype(int)
            )
            axes.vlines(places, 0.0, ordered[places], color=ESTIMATED, linewidth=1.2, alpha=0.4)
            axes.plot(places, ordered[places], "o", color=ESTIMATED, markersize=5)
            axes.set_ylim(0.0, 1.1 * float(ordered.max()) or 1.0)
            axes.set_xlim(-0.5, len(ordered) - 0.5)
            thinned = (
                f" ({len(places)} of {len(ordered)} drawn, evenly)" if len(places) < len(ordered) else ""
            )
            axes.set_xlabel(f"inputs, by sampled radius{thinned}")
            axes.set_ylabel("sampled L2 radius")
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    return drawn.svg
