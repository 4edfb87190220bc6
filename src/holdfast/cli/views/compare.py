"""`holdfast compare`: runs side by side, in the terminal and as a page, JSON or Markdown."""

import contextlib
import json
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from holdfast.cli.views.output import line, paragraph
from holdfast.commands.parse import numbers
from holdfast.errors import BadInput
from holdfast.question_text import describe_question
from holdfast.report.compare import Comparison
from holdfast.report.compare import compare as compare_runs
from holdfast.report.compare_table import (
    Cells,
    as_json,
    as_markdown,
    comparison_sentence,
    explain_numbers,
    pair_table,
    run_table,
)
from holdfast.report.pairing import Run, distinct_names, load
from holdfast.report.writing import write_document
from holdfast.store import Store

ENDINGS = (".html", ".json", ".md")


def open_runs(folders: Sequence[Path], part: str | None = None) -> list[Run]:
    """Load the runs, with names that distinguish them."""
    names = distinct_names([folder.resolve().name for folder in folders], [str(folder) for folder in folders])
    with contextlib.ExitStack() as stack:
        stores = [stack.enter_context(Store.read(folder)) for folder in folders]
        return [load(store, name, part) for store, name in zip(stores, names, strict=True)]


def compare(
    folders: Sequence[Path],
    at: str | None,
    part: str | None,
    confidence: float,
    out: Path | None,
    console: Console,
) -> None:
    if out is not None and out.suffix not in ENDINGS:
        raise BadInput(f"{out}: unknown ending; use one of {', '.join(ENDINGS)}.")
    found = compare_runs(open_runs(folders, part), radii=numbers(at, "at"), confidence=confidence)
    for view in (*_tables(run_table(found), console), *_tables(pair_table(found), console)):
        console.print(view, highlight=False)
    console.print(Text(explain_numbers(found), style="dim"))
    line(console, "answer", comparison_sentence(found))
    for run in found.runs:
        paragraph(console, run.name, describe_question(run.question))
    for note in found.notes:
        line(console, "note", note, warns=True)
    if out is not None:
        line(console, "written", str(write_document(_document(found, out, folders[0]), out)))


def _document(found: Comparison, out: Path, first: Path) -> str:
    if out.suffix == ".json":
        return json.dumps(as_json(found), indent=1, allow_nan=False)
    if out.suffix == ".md":
        return as_markdown(found)
    from holdfast.report.compare_page import (
        render,
        thumbnails,
    )  # Here because matplotlib takes a second to import.

    with Store.read(first) as store:
        return render(found, thumbnails(store))


def _tables(cells: Cells, console: Console) -> list[Table]:
    """One wide table, or on a narrow terminal as few transposed tables as fit."""
    headings, rows = cells
    wide = Table()
    for place, heading in enumerate(headings):
        wide.add_column(heading, justify="left" if place < 2 else "right")
    for row in rows:
        wide.add_row(*map(Text, row))
    if _fits(wide, console):
        return [wide]
    for size in range(len(rows), 0, -1):
        turned = [_transpose(headings, rows[k : k + size]) for k in range(0, len(rows), size)]
        if size == 1 or all(_fits(view, console) for view in turned):
            return turned
    return []


def _transpose(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    view = Table(headings[0])
    for row in rows:
        view.add_column(Text(row[0]), justify="right")
    for place, heading in enumerate(headings[1:], 1):
        view.add_row(heading, *(Text(row[place]) for row in rows))
    return view


def _fits(view: Table, console: Console) -> bool:
    return console.measure(view, options=console.options.update(width=10_000)).maximum <= console.width
