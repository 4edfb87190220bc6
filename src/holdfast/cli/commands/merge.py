"""`holdfast merge`: runs of one question as one run."""

from pathlib import Path
from typing import Annotated

import typer

from holdfast.cli.terminal import Terminal
from holdfast.commands.options import RUNS, NewRun
from holdfast.foreign_text import printable


def register(app: typer.Typer) -> None:
    app.command("merge", rich_help_panel=RUNS)(merge)


def merge(
    runs: Annotated[
        list[Path],
        typer.Argument(metavar="RUN...", help="Folders of runs of the same question, with the same methods."),
    ],
    out: NewRun,
) -> None:
    """Join runs of the same question, such as shards, into a new run.

    With a single run this makes a consistent copy, also while the run is being written.
    """
    from holdfast.store.merge import merge as join

    Terminal().print(f"run: {printable(join(runs, out))}", soft_wrap=True, highlight=False)
