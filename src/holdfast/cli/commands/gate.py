"""`holdfast gate`: accept or reject a run by rules, as in CI."""

from pathlib import Path
from typing import Annotated

import typer

from holdfast.cli.terminal import Terminal
from holdfast.commands.options import RUNS, Part, Run


def register(app: typer.Typer) -> None:
    app.command("gate", rich_help_panel=RUNS)(gate)


RULES, FILES = "Rules", "Output files"  # headings of --help


def gate(
    run: Run,
    at: Annotated[
        float | None,
        typer.Option(
            metavar="RADIUS",
            rich_help_panel=RULES,
            help="Radius at which inputs must be certified. Default for worst scores: 0.",
        ),
    ] = None,
    part: Part = None,
    min_certified: Annotated[
        float | None,
        typer.Option(
            metavar="SHARE",
            rich_help_panel=RULES,
            help="At least this share of the inputs is certified; unknown inputs do not count.",
        ),
    ] = None,
    confidence: Annotated[
        float | None,
        typer.Option(
            metavar="SHARE",
            rich_help_panel=RULES,
            help="With --min-certified: the share of the population that the inputs were drawn from, at this "
            "confidence (Clopper and Pearson), as in 0.95. Assumes independent draws.",
        ),
    ] = None,
    max_broken: Annotated[
        float | None,
        typer.Option(
            metavar="SHARE",
            rich_help_panel=RULES,
            help="At most this share has a counterexample; unknown inputs count too, unless --max-unknown is "
            "given.",
        ),
    ] = None,
    max_unknown: Annotated[
        float | None,
        typer.Option(
            metavar="SHARE",
            rich_help_panel=RULES,
            help="At most this share is unknown, or not measured in the baseline.",
        ),
    ] = None,
    min_accuracy: Annotated[
        float | None,
        typer.Option(
            metavar="SHARE", rich_help_panel=RULES, help="At least this share is classified correctly."
        ),
    ] = None,
    against: Annotated[
        Path | None,
        typer.Option(
            metavar="BASELINE",
            rich_help_panel=RULES,
            help="Be no worse than this run in accuracy and in the share certified at --at (or mean radius).",
        ),
    ] = None,
    slack: Annotated[
        float,
        typer.Option(
            metavar="SHARE",
            rich_help_panel=RULES,
            help="With --against: accept a share that is lower by at most this.",
        ),
    ] = 0.0,
    junit: Annotated[
        Path | None, typer.Option(metavar="FILE", rich_help_panel=FILES, help="Write JUnit XML.")
    ] = None,
    markdown: Annotated[
        Path | None,
        typer.Option(metavar="FILE", rich_help_panel=FILES, help="Write a summary for a pull request."),
    ] = None,
    json: Annotated[
        Path | None, typer.Option(metavar="FILE", rich_help_panel=FILES, help="Write JSON.")
    ] = None,
) -> None:
    """Accept or reject a run by rules. Exit code 0: accepted. 1: rejected. 2: the run cannot be judged."""
    from holdfast.cli.views.gate import gate as judge
    from holdfast.report.gate import Rules

    files = {"junit": junit, "markdown": markdown, "json": json}
    judge(
        run,
        Rules(at, min_certified, max_broken, min_accuracy, slack, max_unknown, confidence),
        part,
        against,
        files,
        Terminal(),
    )
