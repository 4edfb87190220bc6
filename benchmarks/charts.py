"""Charts of the benchmarks: each is written as a png and an svg file."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#555555", "#F0E442")


LEGEND_SHARE = 0.1  # Height of a line of a legend, as a share of the axes; chosen by hand.


def new_figure(width: float, height: float) -> Any:
    """A figure, or None with a printed remark where matplotlib is missing."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        print("No figure: matplotlib is not installed.")
        return None
    return Figure(figsize=(width, height), layout="constrained")


def save(figure: Any, file: Path) -> None:
    """Write FILE.png and FILE.svg."""
    file.parent.mkdir(parents=True, exist_ok=True)
    for suffix in (".png", ".svg"):
        figure.savefig(file.with_suffix(suffix), dpi=150)


def draw_bars(
    axes: Any,
    groups: Sequence[str],
    series: Mapping[str, Sequence[float]],
    errors: Mapping[str, Sequence[float]] | None = None,
) -> None:
    """Draw one group of bars for each name in `groups`, with one bar for each series.

    Args:
        errors: half the length of the error bars of a series; a series that is missing has none.
    """
    width = 0.8 / len(series)
    for place, (name, values) in enumerate(series.items()):
        at = [group + (place - (len(series) - 1) / 2) * width for group in range(len(groups))]
        shown = [value if math.isfinite(value) else math.nan for value in values]
        spread = (errors or {}).get(name)
        axes.bar(at, shown, width, yerr=spread, label=name, color=COLOURS[place % len(COLOURS)], capsize=2)
    axes.set_xticks(range(len(groups)), groups)
    axes.spines[["top", "right"]].set_visible(False)
    if len(series) > 1:
        axes.legend(frameon=False, fontsize=8)
        # Leave space for the legend above the bars.
        bottom, top = axes.get_ylim()
        axes.set_ylim(bottom, bottom + (top - bottom) * (1 + LEGEND_SHARE * len(series)))


def draw_lines(
    axes: Any,
    x: Sequence[float],
    series: Mapping[str, Sequence[float]],
    styles: Mapping[str, str] | None = None,
) -> None:
    """Draw one line with markers for each series; values that are not finite leave a gap."""
    for place, (name, values) in enumerate(series.items()):
        shown = [value if math.isfinite(value) else math.nan for value in values]
        style = (styles or {}).get(name, "-")
        axes.plot(x, shown, style, marker="o", markersize=3, label=name, color=COLOURS[place % len(COLOURS)])
    axes.spines[["top", "right"]].set_visible(False)
    if len(series) > 1:
        axes.legend(frameon=False, fontsize=8)
