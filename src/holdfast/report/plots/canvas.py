"""Shared parts of all charts: colours that follow the page's theme, and conversion of figures to inline
SVG.
"""

import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from html import escape
from typing import Literal

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

# Okabe and Ito's palette for colour-blind readers. On the page every colour becomes the CSS variable of its
# name.
PROVED = "#0072b2"
WITNESSED = "#d55e00"
ESTIMATED = "#009e73"
UNKNOWN = "#b0b4ba"
INK = "#3c4149"
GRID = "#dfe2e6"
VARIABLES = {
    PROVED: "proved",
    WITNESSED: "witnessed",
    ESTIMATED: "estimated",
    UNKNOWN: "unknown",
    INK: "ink",
    GRID: "grid",
}

STYLE = {
    "svg.fonttype": "none",
    "svg.hashsalt": "holdfast",
    "font.size": 9,
    "text.usetex": False,  # Overrides a matplotlibrc in the working folder.
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": UNKNOWN,
    "axes.facecolor": "none",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "grid.color": GRID,
    "grid.linewidth": 0.7,
    "xtick.color": INK,
    "ytick.color": INK,
    "figure.facecolor": "none",
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "lines.linewidth": 1.6,
}
LAYOUT: Literal["constrained"] | None = "constrained"  # Matplotlib's, which keeps labels apart.
MOST_POINTS = 200  # Points of a curve: more cannot be distinguished at 450 px, and would enlarge the file.


class Canvas:
    """A figure with one pair of axes; after the `with` block, `svg` holds it."""

    def __init__(self, width: float, height: float) -> None:
        self.figure = Figure(figsize=(width, height), layout=LAYOUT)
        self.axes: Axes = self.figure.add_subplot()
        self.svg = ""

    def legend(self, columns: int = 3) -> None:
        """Place the legend above the axes."""
        handles, labels = self.axes.get_legend_handles_labels()
        self.figure.legend(
            handles,
            labels,
            loc="outside upper left",
            ncols=min(columns, len(labels)),
            handlelength=1.4,
            columnspacing=1.6,
        )

    def nothing(self, text: str) -> None:
        """Show a text instead of axes."""
        self.axes.set_axis_off()
        self.axes.text(0.5, 0.5, text, ha="center", va="center", transform=self.axes.transAxes)


@contextmanager
def canvas(name: str, description: str, width: float = 4.5, height: float = 2.8) -> Iterator[Canvas]:
    """Yield a canvas; on exit its `svg` is set. name: prefix of the ids in the SVG. description: text for
    screen readers.
    """
    with matplotlib.rc_context(STYLE):  # type: ignore[arg-type]
        drawn = Canvas(width, height)
        yield drawn
        buffer = io.StringIO()
        drawn.figure.savefig(
            buffer, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None}
        )
    drawn.svg = _inline(buffer.getvalue(), name, description)


def _inline(document: str, name: str, description: str) -> str:
    svg = document[document.index("<svg") :].strip()
    svg = re.sub(r"<metadata>.*?</metadata>\s*", "", svg, flags=re.DOTALL)
    svg = re.sub(r'\bid="', f'id="{name}-', svg)
    svg = re.sub(r'(url\(|href=")#', rf"\g<1>#{name}-", svg)
    svg = re.sub(r"font-family: [^;]*;|\n\s*", " ", svg)  # The page sets the font.
    svg = re.sub(r' d="[^"]*"', lambda path: re.sub(r"(\.\d)\d+", r"\1", path[0]), svg)
    for colour, variable in VARIABLES.items():
        svg = svg.replace(colour, f"var(--{variable}, {colour})")
    return svg.replace("<svg ", f'<svg role="img" aria-label="{escape(description)}" ', 1)
