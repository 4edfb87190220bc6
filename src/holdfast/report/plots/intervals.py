"""Ranges of outputs, one line for each: the proved outer range, and inside it the range that concrete
inputs reached.
"""

from collections.abc import Sequence

import numpy as np

from holdfast.report.plots.canvas import INK, PROVED, WITNESSED, canvas
from holdfast.result import Bracket

MOST_LINES = 40  # Lines of one chart: at 0.2 inch each it stays below the height of a printed page.


def draw(names: Sequence[str], ranges: Sequence[tuple[Bracket, Bracket]], *, narrow: bool = False) -> str:
    """Inline SVG of the first MOST_LINES ranges; a bound that is infinite ends at the edge of the chart.

    Args:
        names: one label for each range.
        ranges: the brackets of the smallest and of the largest value of each output.
        narrow: whether the chart is for a screen of about 400 px.
    """
    shown = list(zip(names, ranges, strict=True))[:MOST_LINES]
    name, width, head = ("intervals-narrow", 4.2, 1.1) if narrow else ("intervals", 11.4, 0.8)
    with canvas(
        name, "Proved and reached range of each output", width, max(1.2, head + 0.2 * len(shown))
    ) as drawn:
        if not shown:
            drawn.nothing("no answers yet")
        else:
            ends = np.array(
                [
                    (low.lower.value, low.upper.value, high.lower.value, high.upper.value)
                    for _, (low, high) in shown
                ]
            )
            finite = ends[np.isfinite(ends)]
            least, most = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 1.0)
            air = 0.03 * ((most - least) or 1.0)
            ends = ends.clip(least - air, most + air)
            places = np.arange(len(shown))
            axes = drawn.axes
            axes.hlines(
                places,
                ends[:, 0],
                ends[:, 3],
                color=PROVED,
                linewidth=6,
                alpha=0.45,
                label="never outside (proved)",
            )
            reached = ends[:, 1] <= ends[:, 2]
            axes.hlines(
                places[reached],
                ends[reached, 1],
                ends[reached, 2],
                color=WITNESSED,
                linewidth=2,
                label="reached by an input (witnessed)",
            )
            axes.set_yticks(places, [label.replace("$", r"\$") for label, _ in shown])
            axes.invert_yaxis()
            axes.grid(axis="y", visible=False)
            axes.grid(axis="x", visible=True)
            if least < 0 < most:
                axes.axvline(0, color=INK, linewidth=0.8)
            axes.set_xlim(least - air, most + air)
            axes.set_xlabel("value of the output")
            drawn.legend(columns=1 if narrow else 2)
    return drawn.svg
