"""Data from Python objects: a mapping, a pair, a DataFrame, a data set or any sequence of rows."""

import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from holdfast.errors import BadInput
from holdfast.files import explained_errors
from holdfast.network import Network
from holdfast.network.several_inputs import join_values
from holdfast.reading.loaded import MEANT, LoadedData, of_mapping
from holdfast.reading.pictures import of_picture
from holdfast.reading.read_settings import ReadSettings
from holdfast.reading.tables import LABELS, TEXTS, is_frame, of_frame, of_table

EXPECTED = (
    "expected a dict with x and y, a pair (x, y), a DataFrame, or a data set: rows that are pairs or dicts"
)
INPUTS = ("x", "image", "img", "pixel_values", "input_ids", "features", "input", "audio")


def of_object(made: Any, source: str, net: Network, how: ReadSettings, limit: int | None) -> LoadedData:
    """Data from an object; limit: greatest number of rows that are read from a data set."""
    if is_frame(made):
        return of_table(of_frame(made, source), net, how)
    if isinstance(made, tuple) and len(made) == 2 and is_frame(made[0]):
        made = {"x": made[0], "y": made[1]}
    if isinstance(made, Mapping):
        if net.columns is not None and is_frame(made.get("x")):
            made = {**made, "x": net.rows(made["x"]), "columns": list(net.columns.features)}
        if net.input_tensors and "x" not in made:
            held = {tensor.name for tensor in net.input_tensors}
            rest = {name: value for name, value in made.items() if name not in held}
            made = {"x": join_values(net.input_tensors, made, source), **rest}
        return of_mapping(made, source)
    if isinstance(made, Tensor | np.ndarray):
        return of_mapping({"x": made}, source)
    if isinstance(made, tuple) and len(made) == 2 and not _is_row(made):
        return of_mapping({"x": made[0], "y": made[1]}, source)
    made = getattr(made, "dataset", made) if isinstance(made, torch.utils.data.DataLoader) else made
    if isinstance(made, str | bytes) or not (isinstance(made, Iterable) or hasattr(made, "__getitem__")):
        raise BadInput(f"{source}: {type(made).__name__}; {EXPECTED}.")
    with explained_errors(
        source, "its rows cannot be read", f"From {type(made).__name__}, {EXPECTED}.", BadInput
    ):
        rows = list(itertools.islice(_rows(made), limit))
        return _of_rows(rows, getattr(made, "features", None), source, net, how)


def _is_row(pair: tuple[Any, Any]) -> bool:
    """Whether the pair is two rows (each a pair), not inputs and labels."""
    return all(isinstance(one, tuple | Mapping) and len(one) == 2 for one in pair) and not isinstance(
        pair[1], Tensor
    )


def _rows(made: Any) -> Iterator[Any]:
    """The rows one by one, by index if the object cannot be iterated."""
    if hasattr(made, "__getitem__") and hasattr(made, "__len__"):
        return (made[place] for place in range(len(made)))
    return iter(made)


def _of_rows(rows: list[Any], features: Any, source: str, net: Network, how: ReadSettings) -> LoadedData:
    if not rows:
        raise BadInput(f"{source}: no row: there is no input.")
    first = rows[0]
    if isinstance(first, Mapping):
        own = how.text_column if net.vectors is not None else None
        given = _key(
            first, own, (*TEXTS, *INPUTS) if net.vectors is not None else INPUTS, source, "the input"
        )
        label = _key(first, how.label_column, (*LABELS, *MEANT["y"]), source, "")
        pairs = [(row[given], row[label] if label is not None else None) for row in rows]
        names = (
            getattr(features[label], "names", None)
            if isinstance(features, Mapping) and label in features
            else None
        )
    elif isinstance(first, tuple | list) and len(first) == 2:
        pairs, label, names = [(row[0], row[1]) for row in rows], "", getattr(features, "names", None)
    else:
        raise BadInput(f"{source}: its first row is {type(first).__name__}; {EXPECTED}.")
    x = [
        of_picture(one, net, f"{source}, row {k}")
        if hasattr(one, "convert") and hasattr(one, "mode")
        else one
        for k, (one, _) in enumerate(pairs)
    ]
    y = (
        None
        if label is None
        else [one.item() if isinstance(one, Tensor | np.generic) else one for _, one in pairs]
    )
    return of_mapping(
        {"x": x, **({} if y is None else {"y": y}), **({} if names is None else {"classes": names})}, source
    )


def _key(row: Mapping[str, Any], own: str | None, known: Iterable[str], source: str, what: str) -> str | None:
    """The given key, or the first known one."""
    keys = [str(key) for key in row]
    found = own if own is not None else next((name for name in known if name in row), None)
    if (found is None and what) or (found is not None and found not in row):
        raise BadInput(
            f"{source}: rows hold {', '.join(keys)}; which is {what or 'the label'}? Name it "
            f"{'x' if what else 'y'}."
        )
    return found
