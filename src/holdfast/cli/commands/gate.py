"""`holdfast gate`: a run must satisfy rules."""

from pathlib import Path
from typing import Annotated

import typer

from holdfast.cli.options import RUNS, Part, Run
from holdfast.cli.terminal import Terminal


def register(app: typer.Typer) -> None:
    app.command("gate", rich_help_panel=RUNS)(gate)


RULES, FILES = "What it must satisfy", "Where the decision goes"  # panels of --help


def gate(
    run: Run,
    at: Annotated[
        float | None,
        typer.Option(
            metavar="RADIUS",
            rich_help_panel=RULES,
            help="The radius to be certified; for worst scores 0 if not said.",
        ),
    ] = None,
    part: Part = None,
    min_certified: Annotated[
        float | None,
        typer.Option(
            metavar="SHARE",
            rich_help_panel=RULES,
            help="At least so many are certified; unknown ones are not.",
        ),
    ] = None,
    max_broken: Annotated[
        float | None,
        typer.Option(
            metavar="SHARE",
            rich_help_panel=RULES,
            help="At most this share is broken; unknown inputs count, unless --max-unknown is given.",
        ),
    ] = None,
    max_unknown: Annotated[
        float | None,
        typer.Option(
            metavar="SHARE",
            rich_help_panel=RULES,
            help="At most so many are unknown, or not measured in the baseline.",
        ),
    ] = None,
    min_accuracy: Annotated[
        float | None, typer.Option(metavar="SHARE", rich_help_panel=RULES, help="At least so many are right.")
    ] = None,
    against: Annotated[
        Path | None,
        typer.Option(
            metavar="BASELINE",
            rich_help_panel=RULES,
            help="No worse than this run: accuracy, and share at --at or mean radius.",
        ),
    ] = None,
    slack: Annotated[
        float,
        typer.Option(
            metavar="SHARE", rich_help_panel=RULES, help="With --against: worse by so much is let through."
        ),
    ] = 0.0,
    junit: Annotated[
        Path | None, typer.Option(metavar="FILE", rich_help_panel=FILES, help="JUnit XML.")
    ] = None,
    markdown: Annotated[
        Path | None, typer.Option(metavar="FILE", rich_help_panel=FILES, help="A summary for a pull request.")
    ] = None,
    json: Annotated[Path | None, typer.Option(metavar="FILE", rich_help_panel=FILES, help="JSON.")] = None,
) -> None:
    """May this model ship? Exit code 0: yes. 1: no. 2: the run cannot be judged."""
    from holdfast.cli.views.gate import gate as judge
    from holdfast.report.gate import Rules

    files = {"junit": junit, "markdown": markdown, "json": json}
    judge(
        run,
        Rules(at, min_certified, max_broken, min_accuracy, slack, max_unknown),
        part,
        against,
        files,
        Terminal(),
    )
