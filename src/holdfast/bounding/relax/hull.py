"""Slopes for functions that bend both ways: those of the convex hull of a few points of the curve, in the middle of the box."""

from collections.abc import Callable

import torch
from torch import Tensor

SIDE = 6  # points on either side of the middle


def hull_slopes(
    function: Callable[[Tensor], Tensor], derivative: Callable[[Tensor], Tensor], lower: Tensor, upper: Tensor
) -> list[Tensor]:
    """The slope below and the slope above.

    Among the chords from a point on the left to one on the right, the one that passes the middle lowest carries the hull; if none passes
    below the curve, the tangent does. Likewise above. They are only good slopes: a few points are enough.
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
