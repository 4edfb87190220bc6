"""`holdfast report`: a run as a page, a model card or JSON."""

from pathlib import Path
from typing import Annotated

import typer

from holdfast.cli.options import RUNS, Run
from holdfast.cli.terminal import Terminal
from holdfast.foreign_text import printable


def register(app: typer.Typer) -> None:
    app.command("report", rich_help_panel=RUNS)(report)


def report(
    run: Run,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            metavar="FILE",
            help="A page (.html), a model card (.md) or JSON (.json); default: report.html there.",
        ),
    ] = None,
) -> None:
    """Write the run as one self-contained page (more than 1,000 inputs: as pages side by side), as a model card, or as JSON."""
    from holdfast.report import write_report
    from holdfast.store import Store

    with Store.read(run) as store:
        path = write_report(store, out or run / "report.html")
    Terminal().print(f"report: {printable(path)}", soft_wrap=True, highlight=False)
