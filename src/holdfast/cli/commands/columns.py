"""`holdfast columns`: a description of a table's columns, to edit."""

from pathlib import Path
from typing import Annotated

import typer

from holdfast.cli.terminal import Terminal
from holdfast.commands.options import OTHER


def register(app: typer.Typer) -> None:
    app.command("columns", rich_help_panel=OTHER)(columns)


def columns(
    data: Annotated[Path, typer.Argument(metavar="DATA", help="A table: .csv, .tsv or .parquet.")],
    out: Annotated[
        Path, typer.Option(metavar="FILE", help="File for the description; it must not exist.")
    ] = Path("columns.json"),
    label_column: Annotated[
        str | None, typer.Option(metavar="NAME", help="Column of the table that holds the labels.")
    ] = None,
    frozen: Annotated[
        str, typer.Option(metavar="NAMES", help="Columns that do not change, separated by commas.")
    ] = "",
) -> None:
    """Describe the columns of a table in a file that you edit and give to --columns.

    Whole numbers get steps of 1, words their values, numbers with missing values an indicator.
    """
    import json

    from holdfast.cli.views.output import line
    from holdfast.errors import BadInput
    from holdfast.reading.table_description import describe_table
    from holdfast.report.writing import write_document

    if out.exists():
        raise BadInput(
            f"{out} exists already, perhaps with your changes. Remove it, or name another file with --out."
        )
    kept = [name.strip() for name in frozen.split(",") if name.strip()]
    found, sentences = describe_table(data, label_column=label_column, frozen=kept)
    write_document(json.dumps(found.as_json(), indent=2) + "\n", out)
    console = Terminal()
    for name, sentence in sentences:
        line(console, name, sentence)
    line(console, "written", f"{out}: edit scale, frozen, low and high, then give it to --columns")
