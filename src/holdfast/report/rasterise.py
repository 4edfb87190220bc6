"""Pen strokes and waveforms, rasterised into (height, width) shares of ink."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Ink = NDArray[np.float64]  # 0 is paper, 1 is ink.
SIDE = 40  # Pixels of each side of a picture of strokes, at 1 bit each 200 bytes.
WIDE, HIGH = 96, 24  # Pixels of a waveform; the width of a table cell at the height of a text line.
FEWEST_NUMBERS = 16  # Fewer numbers are shown as text.


def is_strokes(x: Array) -> bool:
    """Recognise (time, [dx, dy, end of stroke[, end of drawing]]): the last columns hold only 0 and 1."""
    if x.ndim != 2 or x.shape[1] not in (3, 4) or len(x) < 3 or not np.isfinite(x).all():
        return False
    pens = x[:, 2:]
    return bool(np.isin(pens, (0, 1)).all() and pens.any() and not np.isin(x[:, :2], (0, 1)).all())


def is_wave(x: Array) -> bool:
    """Recognise a waveform: (n,) or (1, n) with more than MANY numbers."""
    long_row = (x.ndim == 1 and len(x) > FEWEST_NUMBERS) or (
        x.ndim == 2 and len(x) == 1 and x.shape[1] > FEWEST_NUMBERS
    )
    return long_row and bool(np.isfinite(x).all())


def strokes(x: Array, other: Array | None = None) -> Ink:
    """Draw the path of the pen, in the common bounding box with `other`, so that both pictures align."""
    points = _path(x)
    frame = points if other is None else np.concatenate([points, _path(other)])
    low, size = frame.min(0), float(np.ptp(frame, 0).max()) or 1.0
    places = (points - low) / size * (SIDE - 3) + 1
    drawn = x[:-1, 2] < 0.5  # The pen stays down after this step.
    along = np.linspace(0, 1, 2 * SIDE)[:, None, None]
    dots = (places[:-1] + along * (places[1:] - places[:-1]))[:, drawn].reshape(-1, 2)
    column, row = dots.round().astype(int).clip(0, SIDE - 1).T
    ink = np.zeros((SIDE, SIDE))
    ink[row, column] = 1.0
    return ink


def _path(x: Array) -> Array:
    return np.asarray(x[:, :2], dtype=float).cumsum(0)


def wave(x: Array, low: float, high: float, wide: int = WIDE) -> Ink:
    """Draw each column from the smallest to the largest of its numbers."""
    values = np.asarray(x, dtype=float).ravel()
    edges = np.linspace(0, len(values), min(wide, len(values)) + 1).astype(int)[:-1]
    ends = np.stack([np.maximum.reduceat(values, edges), np.minimum.reduceat(values, edges)])
    top, bottom = ((high - ends) / ((high - low) or 1.0) * (HIGH - 1)).round().clip(0, HIGH - 1)
    rows = np.arange(HIGH)[:, None]
    ink: Ink = ((rows >= top) & (rows <= bottom)).astype(float)
    return ink
