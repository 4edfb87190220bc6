"""Read tables with named columns: CSV, Parquet, DataFrames.

Options name the columns of texts and labels; otherwise they are guessed from names, and the guess is
reported.
"""

import csv
import io
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from holdfast.errors import BadInput, MissingExtra
from holdfast.files import LARGEST_JSON, explained_errors, read_text, require_file, require_memory
from holdfast.network import Network
from holdfast.network.fingerprint import of_file
from holdfast.reading.loaded import LoadedData, row_number
from holdfast.reading.read_settings import ReadSettings
from holdfast.region.columns import Columns, pandas_frame

SURE = ("label", "labels", "target", "y")  # Names that only labels have.
LABELS = (*SURE, "class", "category", "sentiment", "intent", "outcome", "species", "diagnosis")
TEXTS = (
    "text",
    "texts",
    "sentence",
    "review",
    "message",
    "content",
    "comment",
    "document",
    "utterance",
    "question",
    "tweet",
    "body",
)
NAMES = (
    "",
    "id",
    "name",
    "index",
    "file",
    "filename",
    "file_name",
    "path",
    "key",
    "unnamed: 0",
    "__index_level_0__",
)
MISSING = ("", "na", "n/a", "nan", "null", "none", "?")
TRUTH = {"true": 1.0, "false": 0.0}
SEPARATORS = ",;\t|"
FEW = 3  # Missing numbers that a message names one by one.

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Table:
    """Columns of texts or numbers, in order; where: the location of a row, for messages."""

    source: str
    columns: Mapping[str, Sequence[Any]]
    where: Callable[[int], str]
    fingerprint: str = ""
    names: Sequence[str] | None = None  # Names of the rows, if the table has them outside its columns.

    def describe_columns(self) -> str:
        return ", ".join(repr(name) for name in self.columns)


def read_csv(path: Path) -> Table:
    """Read CSV with separator , ; tab or |, quotes, and a byte order mark.

    The first line names the columns.
    """
    text = read_text(path, LARGEST_JSON)
    with explained_errors(
        path, "cannot be read as .csv", "Write it by a program that quotes texts, as UTF-8."
    ):
        separator = _separator(text, "\t" if path.suffix in (".tsv", ".txt") else ",")
        lines = _lines(text, separator)
    if len(lines) < 2:
        raise BadInput(
            f"{path}: holds {'no line' if not lines else 'one line'}; expected a line of column names, and a "
            "line for each input."
        )
    (_, names), rows = lines[0], lines[1:]
    names = [name.strip() for name in names]
    if all(_number(name) is not None for name in names):
        raise BadInput(
            f"{path}: its first line holds numbers ({', '.join(names[:4])} ...); add a first line with the "
            "names of the columns."
        )
    if len(set(names)) != len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise BadInput(f"{path}: two columns are named {twice!r}. Give each a different name.")
    odd = next((k for k, (_, row) in enumerate(rows) if len(row) != len(names)), None)
    if odd is not None:
        raise BadInput(
            f"{path}, line {rows[odd][0]}: {len(rows[odd][1])} cells, but the first line names {len(names)} "
            "columns. Are texts that hold a "
            f"{'tab' if separator == chr(9) else separator!r} in quotes?"
        )
    numbers = [number for number, _ in rows]
    cells: list[Sequence[str]] = list(zip(*(row for _, row in rows), strict=True))
    if separator == ";":  # A decimal comma is possible.
        cells = [column if as_numbers(column)[1] is None else _with_points(column) for column in cells]
    return Table(
        str(path), dict(zip(names, cells, strict=True)), lambda place: f"line {numbers[place]}", of_file(path)
    )


def _lines(text: str, separator: str, *, quoted: bool = True) -> list[tuple[int, list[str]]]:
    """The line number and cells of each line that is not empty."""
    how: Literal[0, 3] = csv.QUOTE_MINIMAL if quoted else csv.QUOTE_NONE
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator, quoting=how, strict=True)
    try:
        return [(reader.line_num, row) for row in reader if any(cell.strip() for cell in row)]
    except csv.Error:
        if separator != "\t" or not quoted:
            raise
        return _lines(
            text, separator, quoted=False
        )  # In tab-separated files quotes are often part of the text.


def _separator(text: str, usual: str) -> str:
    """The separator that gives the first line the most columns."""
    line = text.lstrip("\r\n").partition("\n")[0]
    counts = [(len(next(csv.reader([line], delimiter=each), [])), each == usual, each) for each in SEPARATORS]
    return max(counts)[2]


def _with_points(column: Sequence[str]) -> Sequence[str]:
    pointed = [cell.replace(",", ".") for cell in column]
    return pointed if as_numbers(pointed)[1] is None else column


def read_parquet(path: Path) -> Table:
    try:
        import pyarrow.parquet
    except ImportError as error:
        raise MissingExtra(
            "Parquet needs pyarrow: pip install 'holdfast[parquet]'. CSV works without."
        ) from error
    with (
        explained_errors(require_file(path), "cannot be read as .parquet", "Write it again, or as .csv."),
        pyarrow.parquet.ParquetFile(path) as file,
    ):
        groups = (file.metadata.row_group(k) for k in range(file.metadata.num_row_groups))
        require_memory(
            max(
                sum(group.total_byte_size for group in groups),
                8 * file.metadata.num_rows * file.metadata.num_columns,
            ),
            path,
        )
        read = file.read()
        columns = {name: read.column(name).to_numpy(zero_copy_only=False) for name in read.column_names}
    return Table(str(path), columns, row_number, of_file(path))


def is_frame(made: object) -> bool:
    """Whether this is a DataFrame of pandas or polars, without importing either."""
    return hasattr(made, "columns") and hasattr(made, "dtypes") and hasattr(made, "to_numpy")


def of_frame(frame: Any, source: str) -> Table:
    columns = {str(name): frame[name].to_numpy() for name in frame.columns}
    index: Any = getattr(frame, "index", ())
    counted = type(index).__name__ in ("tuple", "RangeIndex")
    return Table(source, columns, row_number, names=None if counted else [str(name) for name in index])


def of_table(table: Table, net: Network, how: ReadSettings) -> LoadedData:
    """Texts and labels for a network that reads words; numbers and labels for any other."""
    for option, wanted in (("--text-column", how.text_column), ("--label-column", how.label_column)):
        if wanted is not None and wanted not in table.columns:
            raise BadInput(
                f"{table.source}: {option} {wanted!r} is none of its columns {table.describe_columns()}."
            )
    if not table.columns or not len(next(iter(table.columns.values()))):
        raise BadInput(f"{table.source}: holds no row.")
    if net.vectors is not None:
        return _texts(table, how)
    if net.columns is not None and (
        not net.columns.plain or {column.name for column in net.columns.each} <= set(table.columns)
    ):
        return _read_described_columns(table, net, net.columns, how)
    return _rows(table, net, how)


def _read_described_columns(table: Table, net: Network, columns: Columns, how: ReadSettings) -> LoadedData:
    """Rows encoded by the columns of the network, matched by name in any order."""
    known = {name for column in columns.each for name in (column.name, *column.features)}
    rest = [name for name in table.columns if name not in known and name.casefold() not in NAMES]
    label = how.label_column or _only(
        [name for name in rest if name.casefold() in LABELS] or rest, table, "labels", "--label-column"
    )
    read = {name: as_numbers(column) for name, column in table.columns.items()}
    x = columns.encode(
        pandas_frame(
            {
                name: table.columns[name] if strange is not None else cells
                for name, (cells, strange) in read.items()
            }
        )
    )
    _check_whole(x.numpy(), columns.features, table)
    notes: tuple[str, ...] = (
        ()
        if label is None or how.label_column or how.labels
        else (f"labels are column {label!r} of {table.source}",)
    )
    return LoadedData(
        list(x),
        y=None if label is None else table.columns[label],
        names=table.names,
        columns=list(columns.features),
        notes=notes,
        fingerprint=table.fingerprint,
        where=table.where,
    )


def _texts(table: Table, how: ReadSettings) -> LoadedData:
    of_text = [
        name for name, column in table.columns.items() if name != how.label_column and _is_text(column)
    ]
    known = [name for name in of_text if name.casefold() in TEXTS]
    long = [
        name
        for name in of_text
        if sum(str(cell).count(" ") for cell in table.columns[name]) >= len(table.columns[name])
    ]
    text = how.text_column or _only(known or long or of_text, table, "texts", "--text-column")
    if text is None:
        raise BadInput(
            f"{table.source}: none of its columns {table.describe_columns()} holds texts. Name one with "
            "--text-column."
        )
    rest = [name for name in table.columns if name != text]
    named = [name for name in rest if name.casefold() in LABELS]
    label = how.label_column or _only(
        named or [n for n in rest if n.casefold() not in NAMES], table, "labels", "--label-column"
    )
    empty = next(
        (k for k, cell in enumerate(table.columns[text]) if not isinstance(cell, str) or not cell.strip()),
        None,
    )
    if empty is not None:
        raise BadInput(
            f"{table.source}, {table.where(empty)}: column {text!r} holds no text. Leave that row out."
        )
    texts = [str(cell) for cell in table.columns[text]]
    labels = f", labels column {label!r}" if label is not None else ""
    guessed = (how.text_column is None or (how.label_column is None and label is not None)) and len(
        table.columns
    ) > 1
    notes = (f"texts are column {text!r} of {table.source}{labels}",) if guessed else ()
    return LoadedData(
        texts=texts,
        y=None if label is None else table.columns[label],
        names=table.names or [cell.strip() for cell in texts],
        fingerprint=table.fingerprint,
        where=table.where,
        notes=notes,
    )


def _rows(table: Table, net: Network, how: ReadSettings) -> LoadedData:
    if how.text_column is not None:
        raise BadInput(
            f"--text-column has no effect here: {net.name} does not read words. Leave it out, or give "
            "--vocabulary."
        )
    wanted = (
        None
        if net.shape is None or None in net.shape
        else math.prod(size for size in net.shape if size is not None)
    )
    read = {name: as_numbers(column) for name, column in table.columns.items()}
    odd = [name for name, (_, strange) in read.items() if strange is not None]
    label = how.label_column or _label(table, odd, wanted)
    rest = [name for name in table.columns if name != label]
    called = next((name for name in rest if name.casefold() in NAMES), None) if len(rest) != wanted else None
    inputs = [name for name in rest if name != called]
    strange = next((name for name in inputs if name in odd), None)
    if strange is not None:
        place = read[strange][1]
        assert place is not None
        raise BadInput(
            f"{table.source}, {table.where(place)}: column {strange!r} holds "
            f"{str(table.columns[strange][place])[:40]!r}, no number. "
            "Write it as the network was trained to read it (numbers, or a column of 0 and 1 for each "
            "value), or leave the column out"
            + (
                f"; if it holds the labels, give --label-column {strange!r}."
                if label is None or how.label_column is None
                else "."
            )
        )
    if wanted is not None and len(inputs) != wanted:
        besides = f" besides the label {label!r}" if label is not None else ""
        hint = (
            " Name the one with the labels with --label-column."
            if label is None and len(inputs) == wanted + 1
            else ""
        )
        raise BadInput(
            f"{table.source}: {net.name} takes {wanted} numbers, and the table has {len(inputs)} "
            f"columns{besides}: "
            f"{', '.join(map(repr, inputs))}.{hint}"
        )
    x = np.stack([read[name][0] for name in inputs], axis=1) if inputs else np.zeros((0, 0))
    _check_whole(x, inputs, table)
    notes: tuple[str, ...] = (
        ()
        if label is None or how.label_column or how.labels
        else (f"labels are column {label!r} of {table.source}",)
    )
    rows: npt.NDArray[Any] = x
    columns: list[str] | None = inputs
    if net.shape is not None and len(net.shape) > 1 and wanted is not None:
        # An image, row by row. Bytes stay whole numbers, so that a missing --scale is reported.
        rows = (x.astype(np.int64) if (x == np.round(x)).all() else x).reshape(-1, *net.shape)
        columns, sizes = None, " x ".join(map(str, net.shape))
        notes += (f"the {wanted} columns of {table.source} are read as {sizes} numbers, row by row",)
    names = table.names if called is None else [str(cell) for cell in table.columns[called]]
    return LoadedData(
        list(rows),
        y=None if label is None else table.columns[label],
        names=names,
        columns=columns,
        notes=notes,
        fingerprint=table.fingerprint,
        where=table.where,
    )


def _label(table: Table, odd: Sequence[str], wanted: int | None) -> str | None:
    """The label column: by name, or the only one without numbers; None if every column is an input."""
    unclear = not odd and not any(name.casefold() in SURE for name in table.columns)
    if unclear and wanted == len([name for name in table.columns if name.casefold() not in NAMES]):
        return None
    named = [name for name in table.columns if name.casefold() in LABELS]
    texts = [name for name in odd if name.casefold() not in NAMES]
    if wanted == len(table.columns) - 1 and not named and not texts:
        raise BadInput(
            f"{table.source}: which of its columns {table.describe_columns()} holds the labels? Give "
            "--label-column."
        )
    return _only(named, table, "labels", "--label-column") if named else texts[0] if len(texts) == 1 else None


def _only(names: Sequence[str], table: Table, what: str, option: str) -> str | None:
    if len(names) > 1:
        raise BadInput(
            f"{table.source}: which of its columns {', '.join(map(repr, names))} holds the {what}? Give "
            f"{option}."
        )
    return names[0] if names else None


def _is_text(column: Sequence[Any]) -> bool:
    return any(isinstance(cell, str) for cell in column) and as_numbers(column)[1] is not None


def as_numbers(column: Sequence[Any]) -> tuple[Floats, int | None]:
    """The cells as numbers, NaN if missing, and the index of the first that is not a number."""
    try:
        return np.asarray(column, dtype=np.float64), None
    except (TypeError, ValueError, OverflowError):
        cells = [_number(cell) for cell in column]
        strange = next((place for place, cell in enumerate(cells) if cell is None), None)
        return np.array([math.nan if cell is None else cell for cell in cells]), strange


def _number(cell: Any) -> float | None:
    """The number in a cell; NaN if it is missing, None if it is not a number."""
    if cell is None:
        return math.nan
    text = str(cell).strip()
    if text.casefold() in MISSING or text == "<NA>":
        return math.nan
    try:
        return TRUTH[text.casefold()] if text.casefold() in TRUTH else float(text)
    except ValueError:
        return None


def _check_whole(x: Floats, inputs: Sequence[str], table: Table) -> None:
    holes = np.argwhere(np.isnan(x))
    if len(holes):
        shown = "; ".join(
            f"{table.where(int(row))}, column {inputs[int(column)]!r}" for row, column in holes[:FEW]
        )
        more = f" and {len(holes) - FEW} more" if len(holes) > FEW else ""
        raise BadInput(
            f"{table.source}: a number is missing in {shown}{more}. Fill it in as for the training of the "
            "network, or leave the row out."
        )
