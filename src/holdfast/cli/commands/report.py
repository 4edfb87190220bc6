"""`holdfast report`: a run as a page, a model card, JSON or one picture for a slide."""

from pathlib import Path
from typing import Annotated

import typer

from holdfast.cli.terminal import Terminal
from holdfast.commands.options import RUNS, Run
from holdfast.errors import BadInput
from holdfast.foreign_text import printable

PAGES = ("", ".html", ".htm", ".md", ".json")
SLIDES = (".png", ".svg")


def register(app: typer.Typer) -> None:
    app.command("report", rich_help_panel=RUNS)(report)


def report(
    run: Run,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            metavar="FILE",
            help="A page (.html), a model card (.md), JSON (.json), or one picture for a slide (.png, .svg). "
            "Default: "
            "report.html in the folder of the run.",
        ),
    ] = None,
    at: Annotated[
        float | None,
        typer.Option(
            "--at",
            metavar="RADIUS",
            help="Radius of the sentence on the slide. Default: the median certified radius.",
        ),
    ] = None,
) -> None:
    """Write a run as one self-contained page, a model card, JSON, or one picture for a slide.

    A run of more than 1,000 inputs becomes several pages that link to each other.
    """
    from holdfast.report import write_report
    from holdfast.store import Store

    with Store.read(run) as store:
        if out is not None and out.suffix in SLIDES:
            from holdfast.cli.views.slide import write_slide

            path = write_slide(store, out, at)
        elif out is not None and out.suffix not in PAGES:
            raise BadInput(f"{out}: unknown ending; use one of {', '.join((*PAGES[1:], *SLIDES))}.")
        else:
            path = write_report(store, out or run / "report.html")
    Terminal().print(f"report: {printable(path)}", soft_wrap=True, highlight=False)
