"""`holdfast export`: the records of a run for other programs."""

from pathlib import Path
from typing import Annotated

import typer

from holdfast.cli.terminal import Terminal
from holdfast.commands.options import RUNS, Run
from holdfast.foreign_text import printable


def register(app: typer.Typer) -> None:
    app.command("export", rich_help_panel=RUNS)(export)


def export(
    run: Run,
    to: Annotated[
        Path,
        typer.Argument(
            metavar="FILE",
            help="A .json, .csv or .parquet file for the records, .npz for the counterexamples.",
        ),
    ],
) -> None:
    """Write the records of a run as JSON, CSV or Parquet, or its counterexamples as npz."""
    from holdfast.store import Store

    with Store.read(run) as store:
        Terminal().print(f"written: {printable(store.export(to))}", soft_wrap=True, highlight=False)
