"""`holdfast compare`: runs side by side."""

from pathlib import Path
from typing import Annotated

import typer

from holdfast.cli.options import RUNS, Part
from holdfast.cli.terminal import Terminal


def register(app: typer.Typer) -> None:
    app.command("compare", rich_help_panel=RUNS)(compare)


def compare(
    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN_A RUN_B ...", help="Folders of runs that asked the same of the same inputs."
        ),
    ],
    at: Annotated[
        str | None,
        typer.Option(
            metavar="RADII",
            help="Share certified at these, as in 0.01,0.05. Default: quartiles of what is proved; for scores 0.",
        ),
    ] = None,
    part: Part = None,
    confidence: Annotated[
        float, typer.Option(metavar="SHARE", help="Of the intervals of paired differences.")
    ] = 0.95,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="FILE", help="A page (.html), .json or .md.")
    ] = None,
) -> None:
    """Models side by side on the same inputs: who wins where brackets decide, and where they do not."""
    from holdfast.cli.views.compare import compare as lay

    lay(runs, at, part, confidence, out, Terminal())
