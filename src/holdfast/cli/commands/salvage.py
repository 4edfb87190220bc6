"""`holdfast salvage`: the readable records of a damaged run."""

import typer

from holdfast.cli.terminal import Terminal
from holdfast.commands.options import RUNS, NewRun, Run


def register(app: typer.Typer) -> None:
    app.command("salvage", rich_help_panel=RUNS)(salvage)


def salvage(run: Run, out: NewRun) -> None:
    """Copy the readable records of a damaged run into a new run; 'holdfast resume' then computes the rest."""
    from holdfast.store.salvage import salvage as save

    found = save(run, out)
    Terminal().print(f"run: {found.folder}\n{found}", soft_wrap=True, markup=False, highlight=False)
