"""Operations on frozen dataclasses whose tensors share a leading batch axis: select rows, move, concatenate.

Regions and properties are such classes. Fields that are not tensors (a norm, a domain) belong to the whole
batch.
"""

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any, TypeVar

import torch
from torch import Tensor

T = TypeVar("T")


def take(item: T, rows: Tensor) -> T:
    """Select rows of every tensor field; `rows` is an index or boolean tensor over the batch axis."""
    changes = {f.name: getattr(item, f.name)[rows] for f in _tensors(item)}
    return replace(item, **changes)  # type: ignore[type-var]


def move(item: T, device: torch.device) -> T:
    """The item with its tensors on the device; the item itself if they are there already."""
    changes = {
        f.name: getattr(item, f.name).to(device)
        for f in _tensors(item)
        if getattr(item, f.name).device != device
    }
    return replace(item, **changes) if changes else item  # type: ignore[type-var]


def concatenate(items: Sequence[T]) -> T:
    """One item whose batch is the concatenation of all batches. Their signatures must be equal."""
    first = items[0]
    changes = {f.name: torch.cat([getattr(item, f.name) for item in items]) for f in _tensors(first)}
    return replace(first, **changes)  # type: ignore[type-var]


def signature(item: Any) -> tuple[object, ...]:
    """Class, shapes without the batch axis, dtypes and settings. Items with equal signatures can be
    concatenated.
    """
    parts: list[object] = [type(item)]
    for f in fields(item):
        value = getattr(item, f.name)
        parts.append(
            (f.name, tuple(value.shape[1:]), value.dtype) if isinstance(value, Tensor) else (f.name, value)
        )
    return tuple(parts)


def tensors(item: Any) -> list[Tensor]:
    """The tensor fields, in order."""
    return [getattr(item, f.name) for f in _tensors(item)]


def settings(item: Any) -> list[tuple[str, Any]]:
    """The class name and every field that is not a tensor: what belongs to the whole batch."""
    rows = {f.name for f in _tensors(item)}
    return [
        ("kind", type(item).__qualname__),
        *((f.name, getattr(item, f.name)) for f in fields(item) if f.name not in rows),
    ]


def _tensors(item: Any) -> list[Any]:
    return [f for f in fields(item) if isinstance(getattr(item, f.name), Tensor)]
