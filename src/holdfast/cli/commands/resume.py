"""`holdfast resume`: a run that exists goes on."""

import typer
from rich.console import Console

from holdfast.cli.options import RUNS, Run


def register(app: typer.Typer) -> None:
    app.command("resume", rich_help_panel=RUNS)(resume)


def resume(run: Run) -> None:
    """Take up a run that was stopped by its budget, interrupted or killed; what is finished is not asked again."""
    from holdfast.cli.run import resume as go_on

    go_on(run, Console())
