"""The description of a table's columns, from a file of rows, for the user to edit."""

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from holdfast.errors import BadInput
from holdfast.reading.tables import LABELS, Table, as_numbers, read_csv, read_parquet
from holdfast.region.columns import Column, Columns, pandas_frame

# A column of words with more values than this is more likely a name or an identifier (chosen by hand).
MAX_WORDS = 50


def describe_table(
    path: Path, *, label_column: str | None, frozen: Sequence[str]
) -> tuple[Columns, list[tuple[str, str]]]:
    """Describe the columns of a CSV or Parquet file, without its labels.

    Returns:
        The columns, and for each a sentence about what was found.
    """
    table = read_parquet(path) if path.suffix == ".parquet" else read_csv(path)
    known = list(table.columns)
    for wanted in (label_column, *frozen):
        if wanted is not None and wanted not in known:
            raise BadInput(
                f"{path}: there is no column {wanted!r}; its columns are {table.describe_columns()}."
            )
    labels = [label_column] if label_column is not None else [n for n in known if n.casefold() in LABELS][:1]
    inputs = [name for name in known if name not in labels]
    if not inputs:
        raise BadInput(f"{path}: no column is left besides the labels {labels[0]!r}.")
    frame = pandas_frame({name: _cells(table, name) for name in inputs})
    columns = Columns.of(frame, frozen=frozen, whole=())
    whole = {
        c.name for c in columns.each if not c.worded and c.missing_of is None and _only_whole(frame[c.name])
    }
    columns = replace(
        columns, each=tuple(replace(c, step=1.0) if c.name in whole else c for c in columns.each)
    )
    return columns, [(c.name, _sentence(c, c.name in whole)) for c in columns.each]


def _cells(table: Table, name: str) -> Any:
    """The cells of a column as numbers, or as words if one of them is no number."""
    cells, strange = as_numbers(table.columns[name])
    if strange is None:
        return cells
    return np.array([str(cell) if cell is not None else "" for cell in table.columns[name]], dtype=object)


def _only_whole(series: Any) -> bool:
    numbers = series.dropna().to_numpy()
    return bool(len(numbers)) and bool((numbers == np.round(numbers)).all())


def _sentence(column: Column, is_whole: bool) -> str:
    if column.missing_of is not None:
        return f"1 where {column.missing_of} is missing; it stays so unless you set frozen to false"
    if column.values is not None:
        shown = ", ".join(map(str, column.values[:4])) + (" ..." if len(column.values) > 4 else "")
        found = f"words ({len(column.values)} values: {shown})"
        if len(column.values) > MAX_WORDS:
            found += "; if it names each row, remove it"
        return found + (", frozen" if column.frozen else "")
    if is_whole:
        found = (
            f"whole numbers from {column.low:.10g} to {column.high:.10g}; remove step if fractions may occur"
        )
    else:
        found = f"numbers from {column.low:.10g} to {column.high:.10g}"
    if math.isclose(column.low, column.high):
        found += "; constant in these rows, so it does not change"
    return found + (", frozen" if column.frozen else "")
