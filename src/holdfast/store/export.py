"""The records of a run for other programs, a few at a time however many there are."""

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
from holdfast.question import Said, plain
from holdfast.question_text import describe_question
from holdfast.result import DONE, Bound, Key, Record
from holdfast.store.rows import body_of, in_parts

if TYPE_CHECKING:
    from holdfast.store.run import Store

TOGETHER = 1000  # records
FORMULA = ("=", "+", "-", "@", "\t", "\r", "\N{FULLWIDTH EQUALS SIGN}", "\N{FULLWIDTH PLUS SIGN}", "\N{FULLWIDTH HYPHEN-MINUS}",
           "\N{FULLWIDTH COMMERCIAL AT}")  # fmt: skip
NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
WORDS = (
    "name", "label_name", "prediction_name", "part", "goal", "lower_kind", "lower_method", "upper_kind", "upper_method", "status", "note",
    "question",
)  # fmt: skip
WHOLE_NUMBERS = ("input", "label", "prediction", "frame", "queries")
NUMBERS = ("lower", "upper", "seconds")

COLUMNS = (
    "input", "name", "label", "label_name", "prediction", "prediction_name", "frame", "part", "goal", "lower", "lower_kind", "lower_method",
    "upper", "upper_kind", "upper_method", "status", "seconds", "queries", "note",
    "question",
)  # fmt: skip
NOTHING: dict[str, Any] = {
    "name": "",
    "label": None,
    "label_name": "",
    "prediction": None,
    "prediction_name": "",
}


def export(store: "Store", path: str | Path) -> Path:
    """All records as .json, .csv or .parquet, or all witnesses as .npz, by the file's ending."""
    target = Path(path)
    writers = {".json": _json, ".csv": _csv, ".parquet": _parquet, ".npz": _npz}
    if target.suffix not in writers:
        raise StoreError(f"{target}: unknown ending; use one of {', '.join(writers)}.")
    part = target.with_name(target.name + ".part")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        new_file(part).close()
        writers[target.suffix](store, part)
        os.replace(part, target)  # never half a file
    except OSError as error:
        raise StoreError(f"{target}: cannot be written ({error}).") from error
    finally:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)
    return target


def flat(r: Record, about: Mapping[str, Any] = NOTHING) -> dict[str, Any]:
    """One row of a table. about: what is known of the input. An end that no method found is left empty, and its kind says so: that no
    distance is below zero is no result."""
    lower, upper = (_end(r, side) for side in (0, 1))
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


def _end(r: Record, side: int) -> dict[str, Any]:
    """The number, the kind and the method of one end."""
    bound: Bound = (r.bracket.lower, r.bracket.upper)[side]
    if not bound.known and not r.bracket.closed:
        return {
            "": None,
            "_kind": r.bracket.missing[side] if r.status in DONE else "not measured",
            "_method": "",
        }
    return {"": bound.value, "_kind": bound.evidence.kind, "_method": bound.evidence.method}


def _with_inputs(store: "Store", together: int) -> Iterator[list[tuple[Record, dict[str, Any]]]]:
    """The records, each with what is known of its input: its name, label and what the network says of it, by number and by name."""
    data = store.question.data
    for some in in_parts(store.stream(light=True), together):
        inputs = store.stream_inputs(some[0].key.index, some[-1].key.index, light=True)
        about = {
            given.index: {
                "name": given.name, "label": _single(given.label), "label_name": data.class_name(given.label),
                "prediction": _single(given.prediction), "prediction_name": data.class_name(given.prediction),
            }
            for given in inputs
        }  # fmt: skip
        yield [(record, about.get(record.key.index, NOTHING)) for record in some]


def _single(said: Said | None) -> int | None:
    """The number of a class; several have only names."""
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
            said = store.answers([record.key for record, _ in some])
            for record, about in some:
                told = {
                    "input": record.key.index,
                    **about,
                    "frame": record.key.frame,
                    "part": record.key.part,
                    **body_of(record),
                }
                for side, end in enumerate(("lower", "upper")):
                    told |= (
                        {end: {**told[end], "kind": "definition"}} if _end(record, side)[""] is None else {}
                    )
                told |= {"answers": asdict(said[record.key])} if record.key in said else {}
                stream.write(
                    f"{comma}\n" + textwrap.indent(json.dumps(plain(told), indent=1, allow_nan=False), "  ")
                )
                comma = ","
        stream.write("\n ]\n}" if comma else "]\n}")


def csv_cell(value: Any) -> Any:
    """Return a cell of a CSV file that no spreadsheet takes for a formula.

    A text that begins with =, +, -, @, a tab or a carriage return (or one of the wide forms of these signs) is a formula to Excel and its
    like, which may run commands: such a text gets an apostrophe in front. Numbers stay as they are, negative ones and those in texts too.
    """
    if not isinstance(value, str) or not value.startswith(FORMULA) or NUMBER.fullmatch(value):
        return value
    return f"'{value}"


def _csv(store: "Store", path: Path) -> None:
    asked = {
        "question": describe_question(store.question)
    }  # in every row: a row that is copied elsewhere takes its conditions along
    rows = (
        {name: csv_cell(value) for name, value in (flat(record, about) | asked).items()}
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
    asked = {"question": describe_question(store.question)}
    with pyarrow.parquet.ParquetWriter(path, schema) as writer:
        for some in _with_inputs(store, 10 * TOGETHER):
            writer.write_table(
                pyarrow.Table.from_pylist([flat(*pair) | asked for pair in some], schema=schema)
            )


def _npz(store: "Store", path: Path) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, array in witnesses(store):
            with archive.open(f"{name}.npy", "w", force_zip64=True) as stream:
                np.lib.format.write_array(stream, array, allow_pickle=False)


def witnesses(store: "Store") -> Iterator[tuple[str, np.ndarray[Any, Any]]]:
    """Every witness with the name of its record's key, as a part of a file's name."""
    for record in store.stream():
        if record.witness is not None:
            yield file_name(record.key), record.witness.numpy()


def file_name(key: Key) -> str:
    return str(key).replace("/", "_").replace(" ", "_")
