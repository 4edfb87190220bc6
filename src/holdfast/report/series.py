"""Line charts of a time series and its counterexample as inline SVG, one strip for each channel."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from holdfast.formatting import format_nearest, shorten

Array = NDArray[Any]
MOST_CHANNELS = 6  # Channels of a chart: six strips are 200 px high. Wider arrays are drawn as images.
FEWEST_STEPS = 4  # Time steps of a chart; shorter sequences are shown as images, one pixel for each number.
MOST_POINTS = 120  # Points of a line: the chart is 240 px wide, and a line of 120 points takes about 1 KB.
WIDTH, STRIP, AXIS = 240, 32, 14  # Pixels: width of the chart, height of a strip, height of the time axis.
SAME_OFFSET = (
    1e-5  # Relative spread up to which a change counts as one offset; float32 rounding is below 1e-6.
)


def is_series(x: Array) -> bool:
    """Recognise a sensor series (time, channels): few channels, and more time steps than channels."""
    return (
        x.ndim == 2
        and 1 <= x.shape[1] <= MOST_CHANNELS
        and x.shape[0] >= max(FEWEST_STEPS, x.shape[1] + 1)
        and bool(np.isfinite(x).all())
    )


def chart(name: str, x: Array, other: Array | None = None, names: Sequence[str] = ()) -> Markup:
    """Draw a series; with `other`, `x` is drawn over it, on a common scale.

    Args:
        name: what `x` is, for screen readers.
        x: (time, channels).
        other: the original series, drawn thin in grey.
        names: of the channels, with their units; default: channel 0, channel 1, ...
    """
    steps, channels = x.shape
    height = channels * STRIP + AXIS
    parts = []
    spans = []
    for k in range(channels):
        both = x[:, k] if other is None else np.concatenate([x[:, k], other[:, k]])
        low, high = float(both.min()), float(both.max())
        top = k * STRIP
        label = channel_name(names, k, channels)
        spans.append(f"{label} {format_nearest(low)} to {format_nearest(high)}")
        if other is not None:
            parts.append(_line("was", other[:, k], low, high, top))
        parts.append(_line("now" if other is not None else "own", x[:, k], low, high, top))
        parts.append(Markup('<text x="2" y="{}">{}</text>').format(top + 8, label))
        parts.append(
            Markup('<text x="{}" y="{}" text-anchor="end">{} to {}</text>').format(
                WIDTH - 2, top + 8, format_nearest(low, 3), format_nearest(high, 3)
            )
        )
    base = channels * STRIP
    parts.append(
        Markup('<path class="axis" d="M2 {0}H{1}"/><text x="2" y="{2}">0</text>').format(
            base, WIDTH - 2, base + 11
        )
    )
    parts.append(
        Markup(
            '<text x="{}" y="{}" text-anchor="middle">time step</text>'
            '<text x="{}" y="{}" text-anchor="end">{}</text>'
        ).format(WIDTH // 2, base + 11, WIDTH - 2, base + 11, steps - 1)
    )
    described = f"{name}: {'; '.join(spans)}, over {steps} time steps"
    return Markup('<svg class="series" role="img" aria-label="{}" viewBox="0 0 {} {}">{}</svg>').format(
        described, WIDTH, height, Markup().join(parts)
    )


def channel_name(names: Sequence[str], k: int, channels: int) -> str:
    """Return the name of channel k, if the data name as many channels as there are."""
    return shorten(names[k], 24) if len(names) == channels else f"channel {k}"


def describe_offsets(change: Array, names: Sequence[str] = ()) -> str:
    """Return the offset of each channel as numbers, if the change is the same in every time step; else
    nothing.
    """
    if change.ndim != 2 or not change.size or not np.isfinite(change).all():
        return ""
    size = np.abs(change).max()
    if size == 0 or float(np.ptp(change, axis=0).max()) > SAME_OFFSET * max(1.0, float(size)):
        return ""
    offsets = change.mean(0)
    shown = [
        f"{channel_name(names, k, len(offsets))} {'+' if value > 0 else ''}{format_nearest(float(value), 3)}"
        for k, value in enumerate(offsets)
        if value
    ]
    return f"constant offset: {', '.join(shown)}"


def _line(style: str, values: Array, low: float, high: float, top: int) -> Markup:
    """Draw one channel between 10 px below the top of its strip, under the label, and the bottom."""
    times, values = _thin(values)
    across = 2 + (WIDTH - 4) * times
    span = (high - low) or 1.0
    down = top + STRIP - 2 - (STRIP - 12) * (values - low) / span
    points = " ".join(f"{a:.1f},{b:.1f}" for a, b in zip(across, down, strict=True))
    return Markup('<polyline class="{}" points="{}"/>').format(style, points)


def _thin(values: Array) -> tuple[Array, Array]:
    """Return times in [0, 1] and values, at most MOST_POINTS: minimum and maximum of equal groups of
    steps."""
    steps = len(values)
    values = np.asarray(values, dtype=float)
    times = np.arange(steps) / max(1, steps - 1)
    if steps <= MOST_POINTS:
        return times, values
    edges = np.linspace(0, steps, MOST_POINTS // 2 + 1).astype(int)[:-1]
    low, high = np.minimum.reduceat(values, edges), np.maximum.reduceat(values, edges)
    return np.repeat(times[edges], 2), np.stack([low, high], 1).ravel()
