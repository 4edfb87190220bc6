"""Fitted scalers of scikit-learn as the two numbers of each feature that `mean` and `std` hold.

scaled = (x - mean) / std,    x = scaled * std + mean
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from holdfast.errors import BadInput
from holdfast.network.estimators.library_code import is_unmodified

Pair = tuple[Any, Any]  # mean, std; None where the scaler leaves that out

# The attributes of a fitted scaler of each class as mean and std.
SCALERS: dict[str, Callable[[Any], Pair]] = {
    "StandardScaler": lambda s: (s.mean_ if s.with_mean else None, s.scale_ if s.with_std else None),
    "RobustScaler": lambda s: (
        s.center_ if s.with_centering else None,
        s.scale_ if s.with_scaling else None,
    ),
    "MinMaxScaler": lambda s: (-s.min_ / s.scale_, 1 / s.scale_),
    "MaxAbsScaler": lambda s: (None, s.scale_),
}


def numbers_of_scaler(scaler: Any, what: str) -> tuple[Tensor | None, Tensor | None]:
    """The mean and the std (features,) float64 of a fitted scaler; None for one without effect.

    Args:
        what: the name of the argument in messages.
    """
    kind = type(scaler).__name__
    if isinstance(scaler, type):
        raise BadInput(f"{what}: {scaler.__name__} is a class. Give the scaler that was fitted in training.")
    if kind not in SCALERS or not is_unmodified(scaler):
        raise BadInput(
            f"{what}: {kind} is no scaler that is known here ({', '.join(SCALERS)} of scikit-learn). "
            f"Give the numbers instead: {_numbers_of(what)}."
        )
    if getattr(scaler, "clip", False):
        raise BadInput(
            f"{what}: a MinMaxScaler with clip=True cuts values off, which is no scaling. Fit one without it."
        )
    if not hasattr(scaler, "n_features_in_"):
        raise BadInput(f"{what}: this {kind} is not fitted. Give the one that was fitted in training.")
    mean, std = SCALERS[kind](scaler)
    return _as_tensor(mean), _as_tensor(std)


def scale_along_last_axis(
    scaler: Any, what: str, shape: Sequence[int | None] | None
) -> tuple[Tensor | None, Tensor | None]:
    """The mean and std of a fitted scaler, in the shapes in which they broadcast over an input or output.

    Its features are the last axis. A scaler that was fitted to flattened inputs has one number for each number
    of an input.

    Args:
        what: the name of the argument in messages.
        shape: of one input, if it is known.
    """
    mean, std = (_along_last_axis(value, shape) for value in numbers_of_scaler(scaler, what))
    return mean, std


def _along_last_axis(value: Tensor | None, shape: Sequence[int | None] | None) -> Tensor | None:
    if value is None or len(value) == 1:
        return value
    sizes = [size for size in shape or () if size is not None]
    flat = shape is not None and len(sizes) == len(shape) > 1 and sizes[-1] != len(value)
    return value.reshape(sizes) if flat and math.prod(sizes) == len(value) else value[None]


def _as_tensor(value: Any) -> Tensor | None:
    return None if value is None else torch.as_tensor(np.asarray(value, dtype=np.float64))


def _numbers_of(what: str) -> str:
    return "output_mean= and output_std=" if what.startswith("output") else "mean= and std="
