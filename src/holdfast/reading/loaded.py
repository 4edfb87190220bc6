"""The result of reading any form of data, before it is checked against the network."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from holdfast.errors import BadInput
from holdfast.foreign_text import first_line

# Usual names of the arrays that are called x and y here.
MEANT = {
    "x": (
        "X",
        "inputs",
        "input",
        "images",
        "image",
        "data",
        "features",
        "arr_0",
        "x_test",
        "X_test",
        "x_train",
        "X_train",
    ),
    "y": ("Y", "labels", "label", "target", "targets", "y_test", "y_train", "arr_1"),
}


def input_number(place: int) -> str:
    return f"input {place}"


def row_number(place: int) -> str:
    return f"row {place}"


@dataclass(frozen=True)
class LoadedData:
    """x or texts, one for each input, with labels and names.

    y: class indices or names. among: the names of all classes, if `y` holds names and may lack some.
    where: the location of an input, for messages.
    """

    x: Sequence[Any] | None = None
    texts: Sequence[str] | None = None
    y: Any = None
    names: Any = None
    classes: Any = None
    among: Sequence[str] | None = None
    lengths: Any = None
    columns: Any = None
    notes: tuple[str, ...] = ()
    fingerprint: str = ""  # Empty: hash the numbers themselves.
    where: Callable[[int], str] = input_number


def of_mapping(held: Mapping[str, Any], source: str, fingerprint: str = "") -> LoadedData:
    """Data from a mapping with x, and optionally y, names, classes, lengths and columns."""
    for key in ("x", "y"):
        near = [name for name in MEANT[key] if name in held]
        if key not in held and (near or key == "x"):
            hint = f" Is {near[0]!r} meant? Call it {key}." if near else ""
            raise BadInput(
                f"{source}: no array named {key!r}; it holds "
                f"{', '.join(sorted(map(str, held))) or 'nothing'}.{hint}"
            )
    x, columns = held["x"], held.get("columns")
    if isinstance(x, str | bytes) or (not isinstance(x, list | tuple) and np.ndim(x) == 0):
        raise BadInput(
            f"{source}: x is a single {'text' if isinstance(x, str) else 'number'}; give (inputs, ...) rows."
        )
    if columns is None and hasattr(x, "to_numpy") and hasattr(x, "columns"):  # A DataFrame.
        columns = list(x.columns)
    rows = x.to_numpy() if hasattr(x, "to_numpy") else x
    texts = list(rows) if len(rows) and all(isinstance(row, str) for row in rows) else None
    return LoadedData(
        None if texts else rows,
        texts,
        held.get("y"),
        held.get("names"),
        held.get("classes"),
        lengths=held.get("lengths"),
        columns=columns,
        fingerprint=fingerprint,
    )


def real_numbers(values: Any, what: str, source: str) -> Tensor:
    """Real numbers as a tensor."""
    try:
        tensor = torch.as_tensor(values)
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise BadInput(f"{source}: {what} does not hold numbers ({first_line(error)}).") from error
    if tensor.is_complex():
        raise BadInput(f"{source}: {what} holds complex numbers; give real ones.")
    return tensor
