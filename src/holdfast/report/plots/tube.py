"""The tube of one state over time: proved bounds as a band, simulated trajectories as lines."""

from typing import TYPE_CHECKING

import numpy as np
from markupsafe import Markup

from holdfast.report.plots.canvas import INK, MOST_POINTS, PROVED, UNKNOWN, WITNESSED, canvas

if TYPE_CHECKING:
    from holdfast.api.loop import LoopAnswer

WIDTH, HEIGHT = 5.4, 2.6  # Size of a chart in inches.
MOST_LINES = 24  # Trajectories that are drawn: more cannot be distinguished.


def draw(answer: "LoopAnswer", state: int, limits: tuple[float | None, float | None]) -> Markup:
    """An inline SVG of one state of an answer.

    Args:
        state: its index.
        limits: the least and the largest value of the state where the condition is one on this state alone.
    """
    name, unit = answer.states[state], answer.units[state]
    label = f"{name} [{unit}]" if unit else name
    with canvas(
        f"tube{state}", f"{label} over time: proved bounds and simulated trajectories", WIDTH, HEIGHT
    ) as drawn:
        axes = drawn.axes
        if answer.tube is not None and answer.ends is not None:
            edges = np.arange(len(answer.tube) + 1) * answer.period
            if answer.discrete:
                low, high = answer.ends[:, state].numpy().T
                axes.fill_between(
                    edges, low, high, color=PROVED, alpha=0.25, linewidth=0, label="proved bounds"
                )
                axes.plot(edges, low, color=PROVED, linewidth=0.8)
                axes.plot(edges, high, color=PROVED, linewidth=0.8)
            else:
                low, high = answer.tube[:, state].numpy().T
                known = np.isfinite(low) & np.isfinite(high)
                axes.stairs(
                    np.where(known, high, np.nan), edges, baseline=np.where(known, low, np.nan), fill=True,
                    color=PROVED, alpha=0.25, linewidth=0, label="proved bounds over a period",
                )  # fmt: skip
        every = max(1, len(answer.times) // MOST_POINTS)
        moments = answer.times[::every].numpy()
        for k, line in enumerate(answer.sampled[:MOST_LINES, :, state]):
            axes.plot(
                moments, line[::every].numpy(), color=INK, linewidth=0.5, alpha=0.6,
                label="simulated (no proof)" if k == 0 else None,
            )  # fmt: skip
        if answer.trajectory is not None:
            violating = answer.trajectory[::every, state].numpy()
            axes.plot(moments, violating, color=WITNESSED, linewidth=1.6, label="violates")
        for k, limit in enumerate(end for end in limits if end is not None):
            axes.plot(
                answer.window, (limit, limit), color=WITNESSED, linewidth=1.0, linestyle="--", marker="|",
                label="limit" if k == 0 else None,
            )  # fmt: skip
        if answer.tube is None:
            axes.axhspan(0, 0, color=UNKNOWN, label="no bounds were computed")
        axes.set_xlabel("time")
        axes.set_ylabel(label)
        drawn.legend()
    return Markup(drawn.svg)  # The SVG is matplotlib's own; its texts are escaped.
