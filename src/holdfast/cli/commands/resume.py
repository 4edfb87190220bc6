"""`holdfast resume`: continue a run."""

from typing import Annotated

import typer

from holdfast.cli.terminal import Terminal
from holdfast.commands.options import EXECUTOR, MEMORY, RUNS, SECONDS_EACH, WORKERS, Run, Running, TrustRun
from holdfast.commands.parse import bytes_option

MORE = typer.Option(
    metavar="NUMBER",
    help="Stop after this many seconds in all. Default: the limit of the run.",
)


def register(app: typer.Typer) -> None:
    app.command("resume", rich_help_panel=RUNS)(resume)


def resume(
    run: Run,
    executor: Annotated[str, EXECUTOR] = "local",
    workers: Annotated[int | None, WORKERS] = None,
    seconds: Annotated[float | None, MORE] = None,
    seconds_each: Annotated[float | None, SECONDS_EACH] = None,
    memory: Annotated[str | None, MEMORY] = None,
    trust: TrustRun = False,
) -> None:
    """Continue a run that ran out of budget, was interrupted or was killed; finished inputs are kept.

    Code that the run folder names is run only with --trust.
    """
    from holdfast.cli.run import resume as go_on
    from holdfast.memory_budget import limit_process

    with limit_process(bytes_option(memory)):
        go_on(run, Terminal(), Running(executor, workers, None, seconds_each, memory), seconds, trust=trust)
