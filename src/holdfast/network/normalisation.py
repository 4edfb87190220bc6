"""Which axis of an input the numbers of `mean`, `std` and `domain` belong to.

A plain list of n numbers is one for each channel of an image (channels, height, width), and one for each feature of a row (features,) or
of a sequence (frames, features). Of a sequence it is one for each frame where only the number of frames fits. Where two axes fit equally
well, and where none does, nobody can know what is meant, and that is refused: an array that broadcasts over an input says it.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from holdfast.errors import BadInput
from holdfast.region import Domain

Shape = Sequence[int | None]


def normaliser(
    value: float | Sequence[float] | Tensor | None, shape: Shape | None, dtype: torch.dtype, what: str
) -> Tensor | None:
    """`value` as a tensor that broadcasts over inputs of this shape as meant. what: its name, in messages."""
    if value is None:
        return None
    tensor = torch.as_tensor(value, dtype=dtype)
    if not bool(tensor.isfinite().all()) or (what == "std" and bool((tensor == 0).any())):
        raise BadInput(f"{what} holds zero, NaN or infinity: {value}.")
    if not tensor.numel():
        raise BadInput(f"{what} holds no numbers. Give one, or one for each channel or feature.")
    if tensor.numel() == 1:
        return tensor.reshape(())
    if tensor.dim() != 1:
        if shape is not None:
            _check_broadcast(tensor, shape, what)
        while tensor.shape[0] == 1:
            tensor = tensor[0]  # which broadcasts in the same way, and never along the batch
        return tensor
    if shape is None:
        raise BadInput(
            f"{what} has {len(tensor)} numbers, and the shape of an input says whether they are for channels or for features: pass "
            f"shape=(channels, height, width) or shape=(frames, features); on the command line --shape."
        )
    whole = [size for size in shape if size is not None]
    axis = _axis(len(tensor), shape, what)
    if axis is None and len(whole) == len(shape):
        return tensor.reshape(whole)  # one number for each number of an input
    return tensor.reshape([-1 if k == axis else 1 for k in range(len(shape))])


def domain_along_axis(domain: Domain, shape: Shape | None) -> Domain:
    """The domain of which a list of ends is one for each channel of an image, else for each feature.

    Other shapes broadcast over an input, as they stand.
    """
    if shape is None:
        return domain
    return Domain(_end_along_axis(domain.lower, shape), _end_along_axis(domain.upper, shape))


def _end_along_axis(end: Tensor, shape: Shape) -> Tensor:
    if end.dim() != 1 or len(end) == 1 or len(shape) < 2:
        return end
    count, last = len(end), shape[-1]
    if len(shape) == 2:
        return end[:, None] if last not in (count, None) and shape[0] == count else end
    if shape[0] != count:
        return end
    if last == count:
        raise BadInput(_ambiguous("domain", count, shape, (0, len(shape) - 1)))
    return end.reshape(-1, *(1 for _ in shape[1:]))


def _axis(count: int, shape: Shape, what: str) -> int | None:
    """The axis that so many numbers stand for; None: they are one for each number of an input. BadInput where that cannot be known."""
    fits = [axis for axis, size in enumerate(shape) if size == count]
    if (
        len(shape) >= 3
    ):  # an image: channels first; with more axes the first may be frames, and the second the channels
        if 0 in fits and not (len(shape) > 3 and 1 in fits):
            return 0
        if shape[0] is None and not fits:
            return 0
        fits = fits if 0 in fits else []
    if len(fits) > 1:
        raise BadInput(_ambiguous(what, count, shape, fits))
    if fits:
        return fits[0]
    if all(size is not None for size in shape) and count == math.prod(size or 1 for size in shape):
        return None
    if len(shape) == 1 and shape[0] is None:
        return 0
    raise BadInput(
        f"{what} has {count} numbers, and inputs are {_told(shape)}: give one number, one for each "
        f"{'channel (the first axis)' if len(shape) > 2 else 'feature (the last axis)'}, one for each number of an input, or an array that "
        f"broadcasts over an input."
    )


def _ambiguous(what: str, count: int, shape: Shape, fits: Sequence[int]) -> str:
    names = _axis_names(len(shape))
    shapes = [
        "(" + ", ".join(str(count) if k == axis else "1" for k in range(len(shape))) + ")" for axis in fits
    ]
    ways = " or ".join(
        f"{told} for one number for each {names[axis]}"
        for told, axis in zip(reversed(shapes), reversed(fits), strict=True)
    )
    every = (
        ""
        if None in shape
        else f"; on the command line all {math.prod(size or 1 for size in shape)} numbers of an input, row by row"
    )
    axes = " or for each ".join(names[axis] for axis in fits)
    return (
        f"{what} has {count} numbers, and inputs are {_told(shape)}: they could be one for each {axes}. Give an array that broadcasts over "
        f"an input: of shape {ways}{every}."
    )


def _axis_names(rank: int) -> list[str]:
    if rank == 2:
        return ["frame", "feature"]
    return ["channel", "row", "column"] if rank == 3 else [f"place of axis {k}" for k in range(rank)]


def _told(shape: Shape) -> str:
    return (
        "("
        + ", ".join("any" if size is None else str(size) for size in shape)
        + ("," if len(shape) == 1 else "")
        + ")"
    )


def _check_broadcast(tensor: Tensor, shape: Shape, what: str) -> None:
    """An array that fits no input of this shape would fail in the model, or stand along the batch."""
    ahead = max(0, tensor.dim() - len(shape))
    own = tuple(tensor.shape[ahead:])
    sizes = zip(reversed(own), reversed(shape), strict=False)
    if any(size != 1 for size in tensor.shape[:ahead]) or any(
        size not in (1, wanted) and wanted is not None for size, wanted in sizes
    ):
        raise BadInput(
            f"{what} has shape {tuple(tensor.shape)}, which does not broadcast over inputs {_told(shape)}."
        )
