"""Several runs in one chart: the certified share and the unbroken share of inputs at every radius."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import PercentFormatter
from numpy.typing import NDArray

from holdfast.formatting import shorten
from holdfast.report.plots.canvas import MOST_POINTS, canvas
from holdfast.report.summary import InputRow
from holdfast.report.wording import RADIUS

# Colours of runs. Blue, orange and green are not among them: on every page they mean proved, witnessed and
# estimated.
# All have a contrast of at least 3:1 on white and on the dark background.
COLOURS = ("#8e63c0", "#967b00", "#c9508f", "#6f7a86", "#1f8f8f", "#a0653c")
MARKS = ("o", "s", "^", "D", "v", "P")  # Markers distinguish the runs without colours.


def draw(names: Sequence[str], columns: Sequence[Sequence[InputRow]], *, narrow: bool = False) -> str:
    """Return the chart of the first runs, one per colour: solid for certified, dotted for not yet broken."""
    quantity = next((rows[0].sense for rows in columns if rows), RADIUS).quantity
    shown = list(zip(names, columns, strict=True))[: len(COLOURS)]
    finite = [
        v
        for _, rows in shown
        for row in rows
        for v in (row.bracket.lower.value, row.bracket.upper.value)
        if np.isfinite(v)
    ]
    name, width, height = ("curves-narrow", 4.2, 3.8) if narrow else ("curves", 11.4, 3.6)
    with canvas(
        name, f"Share of inputs certified and not broken, by {quantity}, two lines a run", width, height
    ) as drawn:
        if finite:
            _lines(
                drawn.axes,
                shown,
                np.linspace(min(0.0, min(finite)), 1.02 * max(finite) or 1.0, MOST_POINTS),
                quantity,
            )
            drawn.legend(
                columns=max(1, round(13 * width) // (6 + max(len(_plain(name)) for name, _ in shown)))
            )
        else:
            drawn.nothing("no answers yet")
    return drawn.svg


def _lines(
    axes: Axes, shown: Sequence[tuple[str, Sequence[InputRow]]], grid: NDArray[np.float64], quantity: str
) -> None:
    for place, (name, rows) in enumerate(shown):
        for proved, line, steps, label in (
            (True, "-", "steps-pre", _plain(name)),
            (False, ":", "steps-post", None),
        ):
            axes.plot(
                grid,
                _share(rows, grid, proved=proved),
                line,
                drawstyle=steps,
                color=COLOURS[place],
                marker=MARKS[place],
                markersize=5,
                markevery=(place * 7, 50),
                label=label,
            )
    axes.set_xlabel(quantity)
    axes.set_ylabel("share of inputs")
    axes.set_ylim(0, 1.02)
    axes.set_xlim(grid[0], grid[-1])
    axes.yaxis.set_major_formatter(PercentFormatter(xmax=1))


def _share(rows: Sequence[InputRow], grid: NDArray[np.float64], *, proved: bool) -> NDArray[np.float64]:
    """Return the share of rows with a bound of at least each radius; misclassified inputs never have one."""
    values = np.sort([_reach(row, proved=proved) for row in rows])
    if not rows[0].sense.rises:
        below: NDArray[np.float64] = np.searchsorted(values, grid, side="right") / len(values)
        return below
    share: NDArray[np.float64] = 1 - np.searchsorted(values, grid, side="left") / len(values)
    return share


def _reach(row: InputRow, *, proved: bool) -> float:
    if row.fails_at_once:
        return -np.inf
    return (row.sense.proved_bound if proved else row.sense.witnessed_bound)(row.bracket).value


def _plain(name: str) -> str:
    """Escape a label: matplotlib hides labels with a leading underscore and reads dollars as formulas."""
    return shorten(name.replace("$", r"\$"), 30).lstrip("_") or "run"
