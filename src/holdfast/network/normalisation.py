"""The axis of an input to which the numbers of `mean`, `std` and `domain` belong.

A list of n numbers has one for each channel of an image (channels, height, width), or one for each feature of
a row (features,) or of a sequence (frames, features). For a sequence it has one for each frame if only the
number of frames is n. If two axes fit equally well or no axis fits, BadInput is raised; an array that
broadcasts over an input is never ambiguous.
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
    """`value` as a tensor that broadcasts over inputs of this shape. what: its name in messages."""
    if value is None:
        return None
    try:
        tensor = torch.as_tensor(value, dtype=dtype)
    except (TypeError, ValueError, RuntimeError) as error:
        raise BadInput(f"{what} must be a number, or several, got {value!r}.") from error
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
            tensor = tensor[0]  # this broadcasts in the same way, and never along the batch axis
        return tensor
    if shape is None:
        raise BadInput(
            f"{what} has {len(tensor)} numbers, and the shape of an input says whether they are for "
            f"channels or for features: pass shape=(channels, height, width) or shape=(frames, features); "
            f"on the command line --shape."
        )
    whole = [size for size in shape if size is not None]
    axis = _axis(len(tensor), shape, what)
    if axis is None and len(whole) == len(shape):
        return tensor.reshape(whole)  # one for each number of an input
    return tensor.reshape([-1 if k == axis else 1 for k in range(len(shape))])


def domain_along_axis(domain: Domain, shape: Shape | None) -> Domain:
    """The domain with lists of limits reshaped to the channels of an image, or to the features or frames of a
    sequence.

    Limits of other shapes are returned unchanged; they broadcast over an input.
    """
    if shape is None:
        return domain
    return Domain(_limit_along_axis(domain.lower, shape), _limit_along_axis(domain.upper, shape))


def _limit_along_axis(limit: Tensor, shape: Shape) -> Tensor:
    if limit.dim() != 1 or len(limit) == 1 or len(shape) < 2:
        return limit
    count, last = len(limit), shape[-1]
    if len(shape) == 2:
        return limit[:, None] if last not in (count, None) and shape[0] == count else limit
    if shape[0] != count:
        return limit
    if last == count:
        raise BadInput(_ambiguous("domain", count, shape, (0, len(shape) - 1)))
    return limit.reshape(-1, *(1 for _ in shape[1:]))


def _axis(count: int, shape: Shape, what: str) -> int | None:
    """The axis that `count` numbers belong to.

    Returns None if there is one for each number of an input. BadInput if it is ambiguous.
    """
    fits = [axis for axis, size in enumerate(shape) if size == count]
    # An image has its channels first. With more than three axes the first may be frames, and the second the
    # channels.
    if len(shape) >= 3:
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
        f"{what} has {count} numbers, and inputs are {_format_shape(shape)}: give one number, one for each "
        f"{'channel (the first axis)' if len(shape) > 2 else 'feature (the last axis)'}, one for each "
        f"number of an input, or an array that broadcasts over an input."
    )


def _ambiguous(what: str, count: int, shape: Shape, fits: Sequence[int]) -> str:
    names = _axis_names(len(shape))
    shapes = [
        "(" + ", ".join(str(count) if k == axis else "1" for k in range(len(shape))) + ")" for axis in fits
    ]
    choices = " or ".join(
        f"{broadcast} for one number for each {names[axis]}"
        for broadcast, axis in zip(reversed(shapes), reversed(fits), strict=True)
    )
    total = math.prod(size or 1 for size in shape)
    every = "" if None in shape else f"; on the command line all {total} numbers of an input, row by row"
    axes = " or for each ".join(names[axis] for axis in fits)
    return (
        f"{what} has {count} numbers, and inputs are {_format_shape(shape)}: they could be one for each "
        f"{axes}. Give an array that broadcasts over an input: of shape {choices}{every}."
    )


def _axis_names(rank: int) -> list[str]:
    if rank == 2:
        return ["frame", "feature"]
    return ["channel", "row", "column"] if rank == 3 else [f"index of axis {k}" for k in range(rank)]


def _format_shape(shape: Shape) -> str:
    sizes = ", ".join("any" if size is None else str(size) for size in shape)
    return f"({sizes}{',' if len(shape) == 1 else ''})"


def _check_broadcast(tensor: Tensor, shape: Shape, what: str) -> None:
    """Raise BadInput unless an array broadcasts over inputs of this shape and not along the batch axis."""
    ahead = max(0, tensor.dim() - len(shape))
    own = tuple(tensor.shape[ahead:])
    sizes = zip(reversed(own), reversed(shape), strict=False)
    if any(size != 1 for size in tensor.shape[:ahead]) or any(
        size not in (1, expected) and expected is not None for size, expected in sizes
    ):
        raise BadInput(
            f"{what} has shape {tuple(tensor.shape)}, which does not broadcast over inputs "
            f"{_format_shape(shape)}."
        )
