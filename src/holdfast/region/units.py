"""The unit of change under norm 0: a pixel, a frame or a number."""

from collections.abc import Sequence
from typing import Literal, get_args

from holdfast.errors import BadInput

Unit = Literal["pixel", "frame", "number"]


def unit_axes(shape: Sequence[int], unit: Unit | None = None) -> tuple[int, ...]:
    """Return the axes of an input that change together, for `Sparse`.

    pixel: all channels of an image (channels, height, width). frame: all features of a frame (frames, ...).
    number: each number separately, for example a channel, a byte or a table feature. None: pixels for images,
    else numbers.
    """
    rank = len(shape)
    if unit is None:
        return (0,) if rank == 3 else ()
    if unit not in get_args(Unit):
        raise BadInput(f"unit {unit!r} is unknown; choose one of {', '.join(get_args(Unit))}.")
    if unit == "pixel" and rank != 3:
        raise BadInput(
            f"unit 'pixel' needs images (channels, height, width), these inputs are {tuple(shape)}; use "
            "'number' or 'frame'."
        )
    if unit == "frame" and rank < 2:
        raise BadInput(
            f"unit 'frame' needs inputs (frames, features), these are {tuple(shape)}; use 'number'."
        )
    return {"pixel": (0,), "frame": tuple(range(1, rank)), "number": ()}[unit]
