"""`holdfast compare`: several runs on the same inputs."""

from pathlib import Path
from typing import Annotated

import typer

from holdfast.cli.terminal import Terminal
from holdfast.commands.options import RUNS, Part


def register(app: typer.Typer) -> None:
    app.command("compare", rich_help_panel=RUNS)(compare)


def compare(
    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN_A RUN_B ...", help="Folders of runs that asked the same question of the same inputs."
        ),
    ],
    at: Annotated[
        str | None,
        typer.Option(
            metavar="RADII",
            help="Compare the certified share at these radii, as in 0.01,0.05. Default: quartiles of the "
            "lower "
            "bounds; for scores 0.",
        ),
    ] = None,
    part: Part = None,
    confidence: Annotated[
        float, typer.Option(metavar="SHARE", help="Confidence of the intervals of paired differences.")
    ] = 0.95,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", metavar="FILE", help="Write a page (.html), .json or .md file."),
    ] = None,
) -> None:
    """Compare models on the same inputs: where the bounds decide which is more robust, and where not."""
    from holdfast.cli.views.compare import compare as compare_runs

    compare_runs(runs, at, part, confidence, out, Terminal())
