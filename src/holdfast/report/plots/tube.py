"""The tube of one state over time: proved bounds as a band, simulated trajectories as lines."""

import numpy as np
from markupsafe import Markup
from torch import Tensor

from holdfast.report.plots.canvas import INK, MOST_POINTS, PROVED, UNKNOWN, WITNESSED, canvas

WIDTH, HEIGHT = 5.4, 2.6  # Size of a chart in inches.
MOST_LINES = 24  # Trajectories that are drawn: more cannot be distinguished.


def draw(
    name: str,
    unit: str,
    index: int,
    period: float,
    tube: Tensor | None,
    ends: Tensor | None,
    discrete: bool,
    times: Tensor,
    sampled: Tensor,
    witness: Tensor | None,
    window: tuple[float, float],
    limits: tuple[float | None, float | None],
) -> Markup:
    """An inline SVG.

    Args:
        tube: (steps, 2), bounds over each period; not-a-number where none is known.
        ends: (steps + 1, 2), bounds at the beginning of each period.
        sampled: (trajectories, times). witness: (times,), the trajectory that violates.
        limits: the least and the largest value of the state where the condition is one on this state alone.
    """
    label = f"{name} [{unit}]" if unit else name
    with canvas(
        f"tube{index}", f"{label} over time: proved bounds and simulated trajectories", WIDTH, HEIGHT
    ) as drawn:
        axes = drawn.axes
        if tube is not None and ends is not None:
            edges = np.arange(len(tube) + 1) * period
            if discrete:
                low, high = ends[:, 0].numpy(), ends[:, 1].numpy()
                axes.fill_between(
                    edges, low, high, color=PROVED, alpha=0.25, linewidth=0, label="proved bounds"
                )
                axes.plot(edges, low, color=PROVED, linewidth=0.8)
                axes.plot(edges, high, color=PROVED, linewidth=0.8)
            else:
                low, high = tube[:, 0].numpy(), tube[:, 1].numpy()
                known = np.isfinite(low) & np.isfinite(high)
                axes.stairs(
                    np.where(known, high, np.nan), edges, baseline=np.where(known, low, np.nan), fill=True,
                    color=PROVED, alpha=0.25, linewidth=0, label="proved bounds over a period",
                )  # fmt: skip
        every = max(1, len(times) // MOST_POINTS)
        moments = times[::every].numpy()
        for k, line in enumerate(sampled[:MOST_LINES]):
            axes.plot(
                moments, line[::every].numpy(), color=INK, linewidth=0.5, alpha=0.6,
                label="simulated (no proof)" if k == 0 else None,
            )  # fmt: skip
        if witness is not None:
            axes.plot(moments, witness[::every].numpy(), color=WITNESSED, linewidth=1.6, label="violates")
        for k, limit in enumerate(end for end in limits if end is not None):
            axes.plot(
                window, (limit, limit), color=WITNESSED, linewidth=1.0, linestyle="--", marker="|",
                label="limit" if k == 0 else None,
            )  # fmt: skip
        if tube is None:
            axes.axhspan(0, 0, color=UNKNOWN, label="no bounds were computed")
        axes.set_xlabel("time")
        axes.set_ylabel(label)
        drawn.legend()
    return Markup(drawn.svg)  # The SVG is matplotlib's own; its texts are escaped.
