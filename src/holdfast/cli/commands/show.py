"""`holdfast show`: a run in the terminal, as a table or input by input."""

from typing import Annotated

import typer

from holdfast.cli.terminal import Terminal
from holdfast.commands.options import AT, RUNS, SORT, Run
from holdfast.commands.parse import check_order


def register(app: typer.Typer) -> None:
    app.command("show", rich_help_panel=RUNS)(show)


def show(
    run: Run,
    number: Annotated[
        int | None,
        typer.Option(
            "--input",
            "-i",
            metavar="NUMBER",
            help="Show this input, by its number in the data (from 0): input, counterexample, difference, "
            "and the "
            "evidence for each bound. Default: the table of all inputs, or the only input.",
        ),
    ] = None,
    sort: Annotated[str, SORT] = "input",
    at: Annotated[float | None, AT] = None,
) -> None:
    """Show a run in the terminal: the table of its results, or one input with its evidence."""
    from holdfast.cli.views.results import show_run
    from holdfast.cli.views.show import show_input
    from holdfast.store import Store

    check_order(sort, at)
    console = Terminal()
    if number is None:
        with Store.read(run) as store:
            known = store.answered_inputs()
            if len(known) != 1 or at is not None or sort != "input":
                show_run(store, console, sort, at)
                return
        number = known[0]
    show_input(run, number, console)
