"""The records of a run as JSON, CSV, Parquet or NumPy files, written in constant memory."""

import contextlib
import csv
import json
import os
import re
import textwrap
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from holdfast.errors import MissingExtra, StoreError
from holdfast.files import new_file
from holdfast.question import ClassLabel, plain
from holdfast.question_text import describe_question
from holdfast.result import DONE, Bound, Key, Record
from holdfast.store.rows import body_of, in_batches

if TYPE_CHECKING:
    from holdfast.store.run import Store

# Number of records that are in memory at once (chosen by hand).
TOGETHER = 1000
# A spreadsheet takes text that starts with one of these for a formula.
FORMULA = (
    "=",
    "+",
    "-",
    "@",
    "\t",
    "\r",
    "\N{FULLWIDTH EQUALS SIGN}",
    "\N{FULLWIDTH PLUS SIGN}",
    "\N{FULLWIDTH HYPHEN-MINUS}",
    "\N{FULLWIDTH COMMERCIAL AT}",
)
NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
# The columns of Parquet files by type, and their order.
WORDS = (
    "name",
    "label_name",
    "prediction_name",
    "part",
    "goal",
    "lower_kind",
    "lower_method",
    "upper_kind",
    "upper_method",
    "status",
    "note",
    "question",
)
WHOLE_NUMBERS = ("input", "label", "prediction", "frame", "queries")
NUMBERS = ("lower", "upper", "seconds")

COLUMNS = (
    "input",
    "name",
    "label",
    "label_name",
    "prediction",
    "prediction_name",
    "frame",
    "part",
    "goal",
    "lower",
    "lower_kind",
    "lower_method",
    "upper",
    "upper_kind",
    "upper_method",
    "status",
    "seconds",
    "queries",
    "note",
    "question",
)
NOTHING: dict[str, Any] = {
    "name": "",
    "label": None,
    "label_name": "",
    "prediction": None,
    "prediction_name": "",
}


def export(store: "Store", path: str | Path) -> Path:
    """Write all records as .json, .csv or .parquet, or all witnesses as .npz, depending on the file's
    ending."""
    target = Path(path)
    writers = {".json": _json, ".csv": _csv, ".parquet": _parquet, ".npz": _npz}
    if target.suffix not in writers:
        raise StoreError(f"{target}: unknown ending; use one of {', '.join(writers)}.")
    part = target.with_name(target.name + ".part")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        new_file(part).close()
        writers[target.suffix](store, part)
        os.replace(part, target)  # readers never see a partial file
    except OSError as error:
        raise StoreError(f"{target}: cannot be written ({error}).") from error
    finally:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)
    return target


def flat(r: Record, about: Mapping[str, Any] = NOTHING) -> dict[str, Any]:
    """One row of a table.

    A bound that no method found is left empty, and its kind says why: that no distance is below zero is not a
    result.

    Args:
        about: the columns that describe the input.
    """
    lower, upper = (_bound_columns(r, side) for side in (0, 1))
    return {
        "input": r.key.index,
        **about,
        "frame": r.key.frame,
        "part": r.key.part,
        "goal": r.goal,
        **{f"lower{name}": value for name, value in lower.items()},
        **{f"upper{name}": value for name, value in upper.items()},
        "status": r.status,
        "seconds": r.seconds,
        "queries": r.queries,
        "note": r.bracket.note,
    }


def _bound_columns(r: Record, side: int) -> dict[str, Any]:
    """The value, kind and method of one bound. side: 0 lower, 1 upper."""
    bound: Bound = (r.bracket.lower, r.bracket.upper)[side]
    if not bound.known and not r.bracket.closed:
        return {
            "": None,
            "_kind": r.bracket.missing[side] if r.status in DONE else "not measured",
            "_method": "",
        }
    return {"": bound.value, "_kind": bound.evidence.kind, "_method": bound.evidence.method}


def _with_inputs(store: "Store", together: int) -> Iterator[list[tuple[Record, dict[str, Any]]]]:
    """The records in lists of at most `concatenate_nodes`, each with the name, label and prediction of its input."""
    data = store.question.data
    for some in in_batches(store.stream(light=True), together):
        inputs = store.stream_inputs(some[0].key.index, some[-1].key.index, light=True)
        about = {
            stored.index: {
                "name": stored.name,
                "label": _single(stored.label),
                "label_name": data.class_name(stored.label),
                "prediction": _single(stored.prediction),
                "prediction_name": data.class_name(stored.prediction),
            }
            for stored in inputs
        }
        yield [(record, about.get(record.key.index, NOTHING)) for record in some]


def _single(said: ClassLabel | None) -> int | None:
    """The number of a single class; None for a set of classes, which is exported by its names only."""
    return None if isinstance(said, tuple) else said


def _json(store: "Store", path: Path) -> None:
    head = json.dumps(
        plain({"question": store.question.as_json(), "provenance": store.provenance}),
        indent=1,
        allow_nan=False,
    )
    with path.open("w") as stream:
        stream.write(head.removesuffix("\n}") + ',\n "records": [')
        comma = ""
        for some in _with_inputs(store, TOGETHER):
            answers = store.answers([record.key for record, _ in some])
            for record, about in some:
                entry = {
                    "input": record.key.index,
                    **about,
                    "frame": record.key.frame,
                    "part": record.key.part,
                    **body_of(record),
                }
                for side, name in enumerate(("lower", "upper")):
                    if _bound_columns(record, side)[""] is None:
                        entry[name] = {**entry[name], "kind": "definition"}
                if record.key in answers:
                    entry["answers"] = asdict(answers[record.key])
                text = json.dumps(plain(entry), indent=1, allow_nan=False)
                stream.write(f"{comma}\n" + textwrap.indent(text, "  "))
                comma = ","
        stream.write("\n ]\n}" if comma else "]\n}")


def csv_cell(value: Any) -> Any:
    """A cell of a CSV file that spreadsheets do not take for a formula.

    Spreadsheets take a text that begins with =, +, -, @, a tab or a carriage return (or a fullwidth form of
    these signs) for a formula, and a formula may run commands. Such a text gets an apostrophe in front.
    Numbers, and texts that are numbers, are not changed.
    """
    if not isinstance(value, str) or not value.startswith(FORMULA) or NUMBER.fullmatch(value):
        return value
    return f"'{value}"


def _csv(store: "Store", path: Path) -> None:
    # Every row holds the question, so that a row that is copied elsewhere still states its conditions.
    question = {"question": describe_question(store.question)}
    rows = (
        {name: csv_cell(value) for name, value in (flat(record, about) | question).items()}
        for some in _with_inputs(store, TOGETHER)
        for record, about in some
    )
    first = next(rows, None)
    with path.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, ["input"] if first is None else list(first))
        writer.writeheader()
        writer.writerows([] if first is None else [first])
        writer.writerows(rows)


def _parquet(store: "Store", path: Path) -> None:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise MissingExtra(
            "Parquet needs pyarrow: pip install 'holdfast[parquet]'. CSV and JSON work without."
        ) from error
    kinds = ((WORDS, pyarrow.string()), (WHOLE_NUMBERS, pyarrow.int64()), (NUMBERS, pyarrow.float64()))
    known = {name: kind for names, kind in kinds for name in names}
    schema = pyarrow.schema([(name, known[name]) for name in COLUMNS])
    question = {"question": describe_question(store.question)}
    with pyarrow.parquet.ParquetWriter(path, schema) as writer:
        for some in _with_inputs(store, 10 * TOGETHER):
            writer.write_table(
                pyarrow.Table.from_pylist([flat(*pair) | question for pair in some], schema=schema)
            )


def _npz(store: "Store", path: Path) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, array in witnesses(store):
            with archive.open(f"{name}.npy", "w", force_zip64=True) as stream:
                np.lib.format.write_array(stream, array, allow_pickle=False)


def witnesses(store: "Store") -> Iterator[tuple[str, np.ndarray[Any, Any]]]:
    """Every witness, with the `file_name` of its record's key."""
    for record in store.stream():
        if record.witness is not None:
            yield file_name(record.key), record.witness.numpy()


def file_name(key: Key) -> str:
    """The key as part of a file name."""
    return str(key).replace("/", "_").replace(" ", "_")
