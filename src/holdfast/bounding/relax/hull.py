"""Slopes for functions that are neither convex nor concave: those of the convex hull of a few points of the
graph, at the middle of the box. They need not be exact, because any slopes are sound (`base.py`).
"""

from collections.abc import Callable

import torch
from torch import Tensor

SIDE = 6  # The number of points on either side of the middle (chosen by hand; it affects tightness only).


def hull_slopes(
    function: Callable[[Tensor], Tensor], derivative: Callable[[Tensor], Tensor], lower: Tensor, upper: Tensor
) -> list[Tensor]:
    """The slopes of the convex envelope (below) and of the concave envelope (above) at the middle of the box,
    from a few points.

    Among the chords from a point left of the middle to one right of it, the lowest one at the middle belongs
    to the convex hull of the points; if none passes below the function, the tangent is used. Likewise above.
    """
    middle, half = lower / 2 + upper / 2, upper / 2 - lower / 2
    tangent, centre = derivative(middle), function(middle)
    steps = torch.arange(1, SIDE + 1, dtype=lower.dtype, device=lower.device).reshape(
        -1, *(1 for _ in lower.shape)
    )
    left, right = (function(middle + sign * half * (steps / SIDE)) for sign in (-1, 1))
    apart = steps[:, None] + steps[None]
    height = (left[:, None] * steps[None] + right[None] * steps[:, None]) / apart
    chords = (right[None] - left[:, None]) / (apart * half / SIDE)
    wide = half > 1e-9 * (1 + lower.abs() + upper.abs())
    found = []
    for sign in (1, -1):
        best, which = (sign * height).flatten(0, 1).min(0)
        chord = chords.flatten(0, 1).gather(0, which[None])[0]
        found.append(torch.where(wide & (best < sign * centre), chord, tangent))
    return found
