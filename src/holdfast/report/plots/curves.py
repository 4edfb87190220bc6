"""Several runs in one picture: the share of inputs that each proves to hold, and that each has not shown to break, at every radius."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import PercentFormatter
from numpy.typing import NDArray

from holdfast.formatting import short
from holdfast.report.plots.canvas import ESTIMATED, MOST_POINTS, PROVED, WITNESSED, canvas
from holdfast.report.summary import InputRow
from holdfast.report.wording import RADIUS

COLOURS = (
    PROVED,
    WITNESSED,
    ESTIMATED,
    "#cc79a7",
    "#8a6d00",
    "#56b4e9",
)  # Okabe and Ito; the yellow darkened to be seen on white
MARKS = ("o", "s", "^", "D", "v", "P")  # so that no run is told apart by its colour alone


def draw(names: Sequence[str], columns: Sequence[Sequence[InputRow]], *, narrow: bool = False) -> str:
    """At most as many runs as there are colours; a solid line for what is proved, a dotted one for what still stands."""
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
                grid, _share(rows, grid, proved=proved), line, drawstyle=steps, color=COLOURS[place], marker=MARKS[place], markersize=5,
                markevery=(place * 7, 50), label=label,
            )  # fmt: skip
    axes.set_xlabel(quantity)
    axes.set_ylabel("share of inputs")
    axes.set_ylim(0, 1.02)
    axes.set_xlim(grid[0], grid[-1])
    axes.yaxis.set_major_formatter(PercentFormatter(xmax=1))


def _share(rows: Sequence[InputRow], grid: NDArray[np.float64], *, proved: bool) -> NDArray[np.float64]:
    """At each radius, the share of rows whose end reaches it; a misclassified input never does."""
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
    """matplotlib hides labels with a line in front and reads dollars as formulas."""
    return short(name.replace("$", r"\$"), 30).lstrip("_") or "run"
