"""`holdfast prove`: certificates of the results of a run, for `holdfast-check`."""

from pathlib import Path
from typing import Annotated

import typer

from holdfast.cli.commands.check import files_option
from holdfast.cli.terminal import Terminal
from holdfast.commands.options import RUNS, DataNow, FilesNow, ModelNow, Run, Trust


def register(app: typer.Typer) -> None:
    app.command("prove", rich_help_panel=RUNS)(prove)


def prove(
    run: Run,
    out: Annotated[
        Path,
        typer.Option(
            "--out", "-o", metavar="FOLDER", help="Folder for the certificates, and for the model if needed."
        ),
    ],
    input: Annotated[
        list[int] | None,
        typer.Option(
            "--input",
            metavar="NUMBER",
            help="Only this input, by its number in the data (from 0); may be repeated.",
        ),
    ] = None,
    model: ModelNow = None,
    data: DataNow = None,
    files: FilesNow = None,
    trust: Trust = False,
    seconds: Annotated[
        float | None,
        typer.Option(
            metavar="NUMBER",
            help="Stop after this many seconds in all; results that are left then get no certificate.",
        ),
    ] = None,
) -> None:
    """Write certificates of the results of a run: files that holdfast-check verifies without holdfast.

    Exit code 3: some results have no certificate; the reasons are printed.
    """
    from holdfast.cli.prove import prove as write

    write(run, files_option(model, data, files), out, input or (), seconds, trust, Terminal())
