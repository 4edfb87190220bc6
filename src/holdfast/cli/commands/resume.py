"""`holdfast resume`: a run that exists goes on."""

from typing import Annotated

import typer

from holdfast.cli.options import EACH, EXECUTOR, MEMORY, RUNS, STOPPING, WORKERS, Run, Running, TrustRun
from holdfast.cli.terminal import Terminal

MORE = typer.Option(
    metavar="NUMBER",
    rich_help_panel=STOPPING,
    help="After so many seconds; default: as many as it was begun with.",
)


def register(app: typer.Typer) -> None:
    app.command("resume", rich_help_panel=RUNS)(resume)


def resume(
    run: Run,
    executor: Annotated[str, EXECUTOR] = "local",
    workers: Annotated[int | None, WORKERS] = None,
    seconds: Annotated[float | None, MORE] = None,
    seconds_each: Annotated[float | None, EACH] = None,
    memory: Annotated[str | None, MEMORY] = None,
    trust: TrustRun = False,
) -> None:
    """Take up a run that was stopped by its budget, interrupted or killed; what is finished is not asked again. Code that the run folder
    names is only run with --trust."""
    from holdfast.cli.parse import bytes_option
    from holdfast.cli.run import resume as go_on
    from holdfast.memory_budget import limit_process

    with limit_process(bytes_option(memory)):
        go_on(run, Terminal(), Running(executor, workers, None, seconds_each, memory), seconds, trust=trust)
