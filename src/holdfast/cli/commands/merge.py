"""`holdfast merge`: runs that asked the same thing as one."""

from pathlib import Path
from typing import Annotated

import typer

from holdfast.cli.options import RUNS, NewRun
from holdfast.cli.terminal import Terminal
from holdfast.foreign_text import printable


def register(app: typer.Typer) -> None:
    app.command("merge", rich_help_panel=RUNS)(merge)


def merge(
    runs: Annotated[
        list[Path],
        typer.Argument(metavar="RUN...", help="Folders of runs that asked the same with the same means."),
    ],
    out: NewRun,
) -> None:
    """Join runs of one question, such as shards, into a new one. Of a single run, also one that is being written, this makes a copy."""
    from holdfast.store.merge import merge as join

    Terminal().print(f"run: {printable(join(runs, out))}", soft_wrap=True, highlight=False)
