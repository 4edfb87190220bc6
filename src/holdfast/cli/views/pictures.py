"""Draw inputs with matplotlib into the files that commands write."""

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from holdfast.files import new_file
from holdfast.foreign_text import printable_lines
from holdfast.network import Network
from holdfast.report.class_probabilities import flatten_map, not_measured

Array = NDArray[Any]


def drawable(shape: tuple[int, ...]) -> bool:
    """Whether inputs of this shape can be drawn: (1 or 3, height, width) or (time, features)."""
    return len(shape) == 2 or (len(shape) == 3 and shape[0] in (1, 3))


def ends_of(net: Network) -> tuple[float, float]:
    """The values drawn as black and as white: the limits of the domain."""
    return float(net.domain.lower.min()), float(net.domain.upper.max())


def draw_input(axes: Axes, x: Array, ends: tuple[float, float], title: str) -> None:
    if x.ndim == 3 and len(x) == 3:
        axes.imshow(
            ((np.moveaxis(x, 0, -1) - ends[0]) / (ends[1] - ends[0])).clip(0, 1), interpolation="nearest"
        )
    else:
        axes.imshow(x.reshape(x.shape[-2:]), cmap="gray", vmin=ends[0], vmax=ends[1], interpolation="nearest")
    _label(axes, title)


def draw_map(axes: Axes, values: Array, cmap: str, ends: tuple[float, float], title: str) -> None:
    """Draw values (height, width); NaN is left blank."""
    axes.imshow(values, cmap=cmap, vmin=ends[0], vmax=ends[1], interpolation="nearest")
    _label(axes, title)


def draw_saliency(x: Array, found: Array, ends: tuple[float, float], title: str) -> Figure:
    """The input and its saliency map, hatched where nothing was measured."""
    figure = Figure(figsize=(4.2, 2.4), layout="constrained")
    left, right = figure.subplots(1, 2)
    draw_input(left, x, ends, title)
    plane = flatten_map(np.broadcast_to(found, np.broadcast_shapes(found.shape, x.shape[-2:])))
    missing = not_measured(found)
    said = "fall of the margin" + (f"\nhatched: {missing} of {found.size}\nnot measured" if missing else "")
    right.patch.set(
        facecolor="white", edgecolor="grey", hatch="xxxx", linewidth=0
    )  # Visible where the map is NaN.
    draw_map(right, plane, "viridis", (0.0, max(float(np.nan_to_num(plane).max()), 1e-12)), said)
    return figure


def draw_change(
    before: Array, after: Array, ends: tuple[float, float], titles: tuple[str, str], change: str
) -> Figure:
    """The input, the changed input, and their difference."""
    figure = Figure(figsize=(6, 2.4), layout="constrained")
    moved = (after - before).reshape(-1, *after.shape[-2:])
    strongest = np.take_along_axis(moved, np.abs(moved).argmax(0)[None], 0)[0]
    reach = float(np.abs(strongest).max()) or 1.0
    first, second, third = figure.subplots(1, 3)
    draw_input(first, before, ends, titles[0])
    draw_input(second, after, ends, titles[1])
    draw_map(third, strongest, "RdBu_r", (-reach, reach), change)
    return figure


def save(figure: Figure, path: Path) -> None:
    """Write a PNG file."""
    with new_file(path) as stream:
        figure.savefig(stream, format="png", dpi=100)


def _label(axes: Axes, title: str) -> None:
    # Names are plain text, not formulas; a matplotlibrc in the working folder must not start LaTeX.
    axes.set_title(printable_lines(title), fontsize=9, parse_math=False, usetex=False)
    axes.set_xticks([])
    axes.set_yticks([])
