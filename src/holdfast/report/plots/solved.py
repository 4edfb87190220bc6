"""Instances solved within t seconds, by answer and together: the cactus plot of solver competitions."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.ticker import MaxNLocator

from holdfast.report.plots.canvas import INK, PROVED, WITNESSED, canvas

FEWEST_SOLVED = 5  # Of fewer solved instances the table says as much (chosen by hand).
LOG_RATIO = 20  # The time axis is logarithmic if the slowest instance took more than this times the fastest.


def draw(seconds: Mapping[str, Sequence[float]], *, narrow: bool = False) -> str:
    """Return the chart as inline SVG: a step of one at the time of each solved instance.

    Args:
        seconds: the positive times of the instances solved with the answers "unsat" and "sat"; one or more.
        narrow: whether the chart is for a screen of about 400 px.
    """
    lines = {answer: sorted(times) for answer, times in seconds.items() if times}
    if len(lines) > 1:
        lines = {"both": sorted(time for times in lines.values() for time in times), **lines}
    fastest = min(times[0] for times in lines.values())
    slowest = max(times[-1] for times in lines.values())
    logarithmic = slowest > LOG_RATIO * fastest
    start = fastest / 1.5 if logarithmic else 0.0
    end = slowest * 1.15 if logarithmic else slowest * 1.03
    name, width = ("solved-narrow", 4.2) if narrow else ("solved", 11.4)
    with canvas(name, "Number of instances solved within t seconds", width, 2.6) as drawn:
        for answer, times in lines.items():
            drawn.axes.step(
                [start, *times, end],
                [*np.arange(len(times) + 1), len(times)],
                where="post",
                color={"unsat": PROVED, "sat": WITNESSED}.get(answer, INK),
                linestyle="--" if answer == "both" else "-",
                zorder=3 if answer == "both" else 2,  # Visible where it coincides with another line.
                label=f"{answer} ({len(times)})",
            )
        if logarithmic:
            drawn.axes.set_xscale("log")
            drawn.axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        drawn.axes.set_xlim(start, end)
        drawn.axes.set_ylim(bottom=0)
        drawn.axes.yaxis.set_major_locator(MaxNLocator(integer=True))
        drawn.axes.set_xlabel("seconds t of each instance")
        drawn.axes.set_ylabel("solved within t")
        drawn.legend()
    return drawn.svg
