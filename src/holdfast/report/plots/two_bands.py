"""The same inputs before and after hardening: two bands from the proved to the witnessed bounds, as an SVG
file.
"""

import io
from collections.abc import Sequence

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from holdfast.report.plots.canvas import INK, STYLE
from holdfast.report.plots.curves import COLOURS
from holdfast.report.wording import RADIUS, Quantity
from holdfast.result import Bracket


def draw(
    before: Sequence[Bracket],
    after: Sequence[Bracket],
    at: float | None = None,
    sense: Quantity = RADIUS,
    asked: int | None = None,
) -> str:
    """Return an SVG file. Each band is sorted by its own proved bounds; infinite bounds are drawn at the top.

    Args:
        before, after: brackets of the measured inputs.
        at: the radius that was trained for.
        asked: number of all inputs, if some were not measured; the legend reports it.
    """
    with matplotlib.rc_context({**STYLE, "figure.facecolor": "white"}):  # type: ignore[dict-item]
        figure = Figure(figsize=(6.4, 3.6), layout="constrained")
        axes = figure.add_subplot()
        every = [end for b in (*before, *after) for end in (b.lower.value, b.upper.value) if np.isfinite(end)]
        top = 1.05 * max([*every, at or 0.0, 1e-9])
        for name, brackets, colour in (("before", before, COLOURS[0]), ("after", after, COLOURS[1])):
            ends = (
                np.array(sorted((b.lower.value, b.upper.value) for b in brackets)).clip(0, top).reshape(-1, 2)
            )
            edges = np.linspace(0, 1, len(ends) + 1)
            some = "" if asked is None or len(ends) == asked else f" ({len(ends)} of {asked} measured)"
            if not len(ends):
                axes.plot([], [], color=colour, label=f"{name}: not measured")
                continue
            axes.stairs(
                ends[:, 1], edges, baseline=ends[:, 0], fill=True, color=colour, alpha=0.22, linewidth=0
            )
            axes.stairs(
                ends[:, 0], edges, baseline=None, color=colour, label=f"{name}: proved, up to witnessed{some}"
            )
        if at is not None:
            axes.axhline(at, color=INK, linewidth=0.8, linestyle="--", label=f"trained for {at:g}")
        axes.set_xlim(0, 1)
        axes.set_ylim(0, top)
        axes.set_xlabel("share of the inputs, by proved bound")
        axes.set_ylabel(sense.quantity)
        axes.yaxis.set_major_locator(MaxNLocator(6))
        figure.legend(loc="outside upper left", ncols=3, handlelength=1.4, columnspacing=1.6)
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    return buffer.getvalue()
