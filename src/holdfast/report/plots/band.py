"""All brackets, sorted: the proved bound, the witnessed bound, and the unknown gap between them."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from holdfast.report.plots.canvas import ESTIMATED, INK, MOST_POINTS, PROVED, UNKNOWN, WITNESSED, canvas
from holdfast.report.wording import RADIUS, Quantity
from holdfast.result import Bracket


def draw(
    brackets: Sequence[Bracket], sense: Quantity = RADIUS, things: str = "inputs", name: str = "band"
) -> str:
    """Return the chart; an open bracket has a hatched band to the edge and no witnessed line."""
    with canvas(name, f"Lower and upper bounds of the {sense.quantity} of all {things}, sorted") as drawn:
        if brackets:
            _fill(drawn.axes, brackets, sense, things)
            drawn.legend()
        else:
            drawn.nothing("no answers yet")
    return drawn.svg


def _fill(axes: Axes, brackets: Sequence[Bracket], sense: Quantity, things: str) -> None:
    ordered = sorted(range(len(brackets)), key=[(b.lower.value, b.upper.value) for b in brackets].__getitem__)
    chosen = np.unique(np.linspace(0, len(ordered) - 1, min(len(ordered), MOST_POINTS)).round().astype(int))
    shown = [brackets[ordered[i]] for i in chosen]
    lower, upper = np.array([b.lower.value for b in shown]), np.array([b.upper.value for b in shown])
    guesses = np.array(
        [(x, e.value) for x, b in zip(chosen, shown, strict=True) for e in b.estimates]
    ).reshape(-1, 2)
    guesses = guesses[np.isfinite(guesses).all(1)]
    floor, top = _limits(np.concatenate([lower, upper, guesses[:, 1]]))
    edges = np.append(chosen, len(ordered)) - 0.5
    low, high = lower.clip(floor, top), upper.clip(floor, top)
    is_open = np.array([sense.is_open(b) for b in shown])
    proved, side = (low, floor) if sense.rises else (high, top)
    axes.stairs(proved, edges, baseline=side, fill=True, color=PROVED, alpha=0.18, linewidth=0)
    axes.stairs(
        np.where(is_open, low, high), edges, baseline=low, fill=True, color=UNKNOWN, alpha=0.3, linewidth=0
    )
    if is_open.any():
        # facecolor none: an open band has only the hatch, so that it never looks like a measured one.
        axes.stairs(
            np.where(is_open, high, low), edges, baseline=low, fill=True, facecolor="none", edgecolor=UNKNOWN,
            hatch="////", linewidth=0, label=f"open, {sense.missing}",
        )  # fmt: skip
    is_proved = np.array(
        [b.closed or sense.proved_bound(b).known for b in shown]
    )  # A bound by definition is not drawn as proved.
    for ends, is_proof in ((lower, sense.rises), (upper, not sense.rises)):
        known = np.isfinite(ends) & (is_proved if is_proof else ~is_open)
        _line(
            axes,
            edges,
            np.where(known, ends, np.nan),
            *((PROVED, "proved") if is_proof else (WITNESSED, sense.shown)),
        )
    if len(guesses):
        axes.plot(guesses[:, 0], guesses[:, 1], ".", color=ESTIMATED, markersize=3, label="estimate")
    if floor < 0 < top:
        axes.axhline(0, color=INK, linewidth=0.8)
    axes.set_xlim(edges[0], edges[-1])
    axes.set_ylim(floor, top)
    thinned = f" ({len(chosen)} of {len(ordered)} drawn, evenly)" if len(chosen) < len(ordered) else ""
    axes.set_xlabel(f"{things}, by lower bound{thinned}")
    axes.set_ylabel(sense.quantity)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    finite = np.concatenate([ends[np.isfinite(ends)] for ends in (lower, upper)])
    if len(finite) and bool((finite == finite.round()).all()):  # counts of words or pixels
        axes.yaxis.set_major_locator(MaxNLocator(integer=True))


def _line(axes: Axes, edges: np.ndarray, values: np.ndarray, colour: str, label: str) -> None:
    """Draw steps with gaps at NaN."""
    if np.isfinite(values).any():
        axes.stairs(values, edges, baseline=None, color=colour, linewidth=1.5, label=label)


def _limits(values: np.ndarray) -> tuple[float, float]:
    """Return axis limits that include zero, with a margin; (0, 1) if nothing is finite."""
    finite = values[np.isfinite(values)]
    least, most = (
        (min(0.0, float(finite.min())), max(0.0, float(finite.max()))) if len(finite) else (0.0, 0.0)
    )
    if least == most:
        return 0.0, 1.0
    air = 0.1 * (most - least)
    return least - air if least < 0 else 0.0, most + air
