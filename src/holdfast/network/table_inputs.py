"""Rows of a table and class names as inputs and labels of a network."""

from typing import TYPE_CHECKING, Any

from torch import Tensor

from holdfast.errors import BadInput
from holdfast.network.classes import numbers_of
from holdfast.region.columns import Columns

if TYPE_CHECKING:
    from holdfast.network.network import Network


def check_columns(net: "Network", columns: Columns) -> None:
    """Raise BadInput unless the columns have one feature for each number of an input."""
    if net.shape is not None and net.shape != (len(columns.features),):
        raise BadInput(
            f"{net.name} takes inputs of shape {net.shape}, the columns are {len(columns.features)} numbers "
            f"in a row."
        )


def class_numbers(net: "Network", y: Any) -> Any:
    """Class labels of the user's data as output numbers.

    Values that are output numbers already are returned unchanged.
    """
    if isinstance(y, Tensor):
        return y
    given = y.tolist() if hasattr(y, "tolist") else list(y)
    names = net.labels or (net.classes if any(isinstance(label, str) for label in given) else None)
    if names is None or names == tuple(range(len(names))):
        return y if not hasattr(y, "to_numpy") else given
    return numbers_of(given, names, lambda place: f"{net.name}, label {place}")
