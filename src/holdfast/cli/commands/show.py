"""`holdfast show`: one input of a run in the terminal."""

from typing import Annotated

import typer

from holdfast.cli.options import RUNS, Run
from holdfast.cli.terminal import Terminal


def register(app: typer.Typer) -> None:
    app.command("show", rich_help_panel=RUNS)(show)


def show(
    run: Run,
    number: Annotated[
        int, typer.Option("--input", "-i", metavar="NUMBER", help="Which input, by its place in the data.")
    ] = 0,
) -> None:
    """One input of a run in the terminal: the input, its witness, the change, and why each number may be believed."""
    from holdfast.cli.views.show import show as draw

    draw(run, number, Terminal())
