"""`holdfast prove`: certificates of what a run proved or met, for `holdfast-check`."""

from pathlib import Path
from typing import Annotated

import typer

from holdfast.cli.commands.check import files_option
from holdfast.cli.options import RUNS, STOPPING, Run
from holdfast.cli.terminal import Terminal


def register(app: typer.Typer) -> None:
    app.command("prove", rich_help_panel=RUNS)(prove)


def prove(
    run: Run,
    out: Annotated[
        Path,
        typer.Option(
            "--out", "-o", metavar="FOLDER", help="Where the certificates go, with the model if need be."
        ),
    ],
    input: Annotated[
        list[int] | None,
        typer.Option(
            "--input", metavar="NUMBER", help="Only this input, by its place in the data; may be repeated."
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            "-m",
            metavar="MODEL",
            help="The model where it lies now. Default: where the run found it.",
        ),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(
            "--data", "-d", metavar="DATA", help="The data where they lie now; of verify, the property."
        ),
    ] = None,
    files: Annotated[
        list[str] | None,
        typer.Option(
            "--with",
            metavar="OPTION=FILE",
            help="Another file of the run, as in substitutes=words.json; may be repeated.",
        ),
    ] = None,
    trust: Annotated[
        bool,
        typer.Option("--trust", metavar="", help="Open a .pt2 file although that can run code it contains."),
    ] = False,
    seconds: Annotated[
        float | None,
        typer.Option(
            metavar="NUMBER", rich_help_panel=STOPPING, help="For all of them; what is left then has none."
        ),
    ] = None,
) -> None:
    """What a run proved or met, as files that holdfast-check accepts without holdfast. Exit code 3: some claims have none, with why."""
    from holdfast.cli.prove import prove as write

    write(run, files_option(model, data, files), out, input or (), seconds, trust, Terminal())
